//! Tests of `quantize`.

mod bad_input;
mod calibrate;
mod calibrate_plan;
mod calibrated_ladder;
mod checkpoint;
mod files;
mod ladder;
mod ladder_again;
mod like;
pub mod magnitudes;
mod one_pass;
mod options;
pub mod program;
mod recipe;
mod recipes;
mod target;
mod work;

use std::path::Path;

use safetensors::SafeTensors;

use crate::support::checkpoints::Safetensors;
use crate::support::programs::{Outcome, command, finish, run_unsynced};
use crate::support::tiers::Tier;
use crate::support::{bundled, fixture};

/// Runs `gguf-quantize` with `--no-sync`.
pub fn run(dir: &Path, args: &[&str]) -> Outcome {
    run_unsynced("gguf-quantize", dir, args)
}

/// Converts the bundled model to `in.gguf`.
fn convert(dir: &Path, ty: &str) {
    convert_from(&fixture("tiny-llama"), dir, ty);
}

/// Converts the bundled model to `in.gguf`, every day as [`convert_two_layers`].
fn convert_for(tier: Tier, dir: &Path, ty: &str) {
    if tier.is_deep() {
        convert(dir, ty);
    } else {
        convert_two_layers(tier, dir, ty);
    }
}

/// Converts the model of [`write_two_layers`] to `in.gguf`.
fn convert_two_layers(tier: Tier, dir: &Path, ty: &str) {
    let temp = tempfile::tempdir().unwrap();
    // The folder gives the model its name.
    let checkpoint = temp.path().join("tiny-llama");
    write_two_layers(tier, &checkpoint);
    convert_from(&checkpoint, dir, ty);
}

/// Writes a checkpoint of the first two layers of the bundled model, every day with a third of their feed-forward, which
/// is most of the work: enough where bytes or messages are compared.
fn write_two_layers(tier: Tier, dir: &Path) {
    bundled::write_layers(2, dir);
    if tier.is_deep() {
        return;
    }
    let mut config = bundled::config(2);
    let wide = config["intermediate_size"].as_u64().unwrap() as usize;
    let narrow = wide / 3;
    config["intermediate_size"] = narrow.into();
    let file = fs_err::read(dir.join("model.safetensors")).unwrap();
    let mut cut = Safetensors::default();
    for (name, tensor) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let (shape, data) = (tensor.shape(), tensor.data());
        let dims: Vec<usize> = shape.iter().map(|&n| if n == wide { narrow } else { n }).collect();
        let rows = data.chunks(data.len() / shape[0]).take(dims[0]);
        let kept = |row: &[u8]| row.len() * dims[dims.len() - 1] / shape[shape.len() - 1];
        let bytes: Vec<u8> = rows.flat_map(|row| row[..kept(row)].to_vec()).collect();
        cut.add(&name, "BF16", &dims, &bytes);
    }
    cut.write_checkpoint(dir, &config);
}

fn convert_from(checkpoint: &Path, dir: &Path, ty: &str) {
    let mut convert = command("gguf-convert", dir);
    convert.args(["hf2gguf", "--type", ty, "--quiet", "--no-sync", "-o"]).arg(dir.join("in.gguf"));
    finish(convert.arg(checkpoint)).ok();
}
