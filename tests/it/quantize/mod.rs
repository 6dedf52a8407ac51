//! Tests of `quantize`.

mod bad_input;
mod calibrate;
mod calibrated_ladder;
mod checkpoint;
mod files;
mod kept;
mod ladder;
mod like;
pub mod magnitudes;
mod one_arithmetic;
mod one_pass;
mod options;
pub mod program;
mod recipe;
mod recipes;
mod stats;
mod target;
mod work;

use std::path::Path;

use crate::support::programs::{Outcome, command, finish, run_unsynced};
use crate::support::{bundled, fixture};

/// Runs `gguf-quantize` with `--no-sync`.
pub fn run(dir: &Path, args: &[&str]) -> Outcome {
    run_unsynced("gguf-quantize", dir, args)
}

/// Converts the bundled model to `in.gguf`.
fn convert(dir: &Path, ty: &str) {
    convert_from(&fixture("tiny-llama"), dir, ty);
}

/// Converts the first two layers of the bundled model to `in.gguf`.
fn convert_two_layers(dir: &Path, ty: &str) {
    let checkpoint = tempfile::tempdir().unwrap();
    bundled::write_layers(2, checkpoint.path());
    convert_from(checkpoint.path(), dir, ty);
}

fn convert_from(checkpoint: &Path, dir: &Path, ty: &str) {
    let mut convert = command("gguf-convert", dir);
    convert.args(["hf2gguf", "--type", ty, "--quiet", "--no-sync", "-o"]).arg(dir.join("in.gguf"));
    finish(convert.arg(checkpoint)).ok();
}
