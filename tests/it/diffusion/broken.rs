//! Damaged and contradictory checkpoints: one error with a way out, and no file.

use std::path::Path;

use serde_json::json;

use super::{FLUX, add, convert, flux, run, tensors, values, wan};
use crate::testkit::checkpoints::Safetensors;

const WEIGHT: &str = "double_blocks.0.img_mlp.0.weight";
const MODULE: &str = "double_blocks.0.img_mlp.0";

/// Checks that `in.safetensors` ends in one error with these words and a hint, without a file, in two of the four ways to
/// read it: all ways have one reader.
fn refused(dir: &Path, words: &str) {
    let before = fs_err::read_dir(dir).unwrap().count();
    let ways: [&[&str]; 4] = [
        &["gguf-convert", "hf2gguf", "in.safetensors", "-o", "out.gguf", "--type", "auto"],
        &["gguf-convert", "hf2gguf", "in.safetensors", "-o", "out.gguf", "--type", "q8_0"],
        &["gguf-quantize", "in.safetensors", "out.gguf", "--type", "q4_k_s"],
        &["gguf-quantize", "ladder", "in.safetensors", "-o", "out", "--types", "q8_0,q4_k_s"],
    ];
    for way in ways.iter().cycle().skip(words.len() % 4).take(2) {
        let err = run(way[0], dir, &way[1..]).exits_with(1).err;
        assert!(err.contains(words), "{way:?}: `{words}` in {err}");
        assert_eq!(err.matches("error: ").count(), 1, "{err}");
        assert!(err.contains("hint: "), "{err}");
        let names: Vec<_> = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        // A ladder that begins to write has made its folder.
        let is_empty = |name: &std::ffi::OsString| {
            name == "out" && fs_err::read_dir(dir.join(name)).unwrap().next().is_none()
        };
        assert_eq!(names.iter().filter(|name| !is_empty(name)).count(), before, "{way:?}: {names:?}");
        let _ = fs_err::remove_dir(dir.join("out"));
    }
}

fn refused_bytes(bytes: &[u8], words: &str) {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("in.safetensors"), bytes).unwrap();
    refused(dir.path(), words);
}

fn refused_file(file: &Safetensors, words: &str) {
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("in.safetensors"));
    refused(dir.path(), words);
}

fn bytes_of(file: &Safetensors) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    file.write(&path);
    fs_err::read(path).unwrap()
}

/// Replaces text of a header by other text, padded to the same length.
fn edited(file: &Safetensors, from: &str, to: &str) -> Vec<u8> {
    let mut bytes = bytes_of(file);
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    let to = format!("{to:from$}", from = from.len());
    assert_eq!(to.len(), from.len(), "the text must not grow");
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    bytes
}

/// Flux whose weights with these names are FP8.
fn coded(names: &[&str]) -> Safetensors {
    let mut file = Safetensors::default();
    for (name, dims) in FLUX {
        let n = dims.iter().product::<u64>();
        if names.contains(&name) {
            file.add(name, "F8_E4M3", dims, &vec![0x38; usize::try_from(n).unwrap()]);
        } else {
            file.add_bf16(name, dims, &values(n, n));
        }
    }
    file
}

#[test]
fn files_that_are_cut_short_or_no_weights() {
    let whole = bytes_of(&flux(""));
    refused_bytes(&whole[..whole.len() - 1000], "file ends at");
    refused_bytes(&whole[..200], "192 present");
    refused_bytes(&[], "the file is empty");
    refused_bytes(b"<!DOCTYPE html><html>Access denied</html>", "at most 100000000 allowed");
    refused_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "at most 100000000 allowed");
}

#[test]
fn headers_that_lie() {
    let model = flux("");
    refused_bytes(&edited(&model, "\"BF16\"", "\"Q9\""), "unknown dtype `Q9`");
    refused_bytes(&edited(&model, "[16,256]", "[16,255]"), "range holds");
    refused_bytes(&edited(&model, "[16,256]", "[-16,25]"), "expected an unsigned 64-bit integer");
}

#[test]
fn models_that_are_mixed() {
    let mut both = flux("");
    wan().header().iter().for_each(|(name, entry)| {
        let dims: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        add(&mut both, name, &dims);
    });
    refused_file(&both, "models of two architectures, `flux` and `wan`");
    for (prefix, other) in
        [("model.diffusion_model.", ""), ("model.diffusion_model.", "net."), ("model.", "")]
    {
        let mut mixed = Safetensors::default();
        for (at, (name, dims)) in FLUX.iter().enumerate() {
            let prefix = if at < 4 { prefix } else { other };
            add(&mut mixed, &format!("{prefix}{name}"), dims);
        }
        refused_file(
            &mixed,
            &format!("it lacks the prefix `{prefix}`, which other tensors of its module have"),
        );
    }
    // Other models of a whole checkpoint have other modules.
    let dir = tempfile::tempdir().unwrap();
    let mut whole = flux("model.diffusion_model.");
    for name in
        ["first_stage_model.decoder.conv_in.weight", "text_encoders.t5xxl.blocks.weight", "scaled_fp8"]
    {
        add(&mut whole, name, &[8, 8]);
    }
    whole.write(&dir.path().join("in.safetensors"));
    convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok();
    assert_eq!(tensors(&dir.path().join("out.gguf")).len(), FLUX.len());
}

#[test]
fn factors_that_are_damaged() {
    for (value, words) in [(f32::NAN, "element 0 is NaN"), (f32::INFINITY, "element 0 is inf")] {
        let mut file = coded(&[WEIGHT]);
        file.add_f32(&format!("{MODULE}.scale_weight"), json!([]), &[value]);
        refused_file(&file, words);
    }
    let mut file = coded(&[WEIGHT]);
    file.add_f32(&format!("{MODULE}.scale_weight"), [3], &[1.0; 3]);
    refused_file(&file, "expected 1 element, or 8, one for each row");
    let mut file = coded(&[WEIGHT]);
    file.add(&format!("{MODULE}.scale_weight"), "I32", json!([]), &[0; 4]);
    refused_file(&file, "elements are I32, expected floats");
    let mut file = flux("");
    file.add_f32("nobody.scale_weight", json!([]), &[1.0]);
    refused_file(&file, "tensor `nobody.scale_weight`: a factor or description without its weight");
    for (text, words) in [
        (&br#"{"format": "float8_e4m3fn"}"#[..], "weight_scale` is missing"),
        (br#"{"format":"#, "no JSON"),
        (br#"{"kind": 1}"#, "no `format`"),
    ] {
        let mut file = coded(&[WEIGHT]);
        file.add(&format!("{MODULE}.comfy_quant"), "U8", [text.len()], text);
        refused_file(&file, words);
    }
}

#[test]
fn a_missing_factor_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = coded(&[WEIGHT, "double_blocks.0.img_attn.qkv.weight"]);
    file.add("scaled_fp8", "F8_E4M3", [0], &[]);
    file.add_f32(&format!("{MODULE}.scale_weight"), json!([]), &[0.5]);
    file.write(&dir.path().join("in.safetensors"));
    let said = convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok().err;
    assert!(
        said.contains("1 weight in FP8 without a factor")
            && said.contains("`double_blocks.0.img_attn.qkv.weight`"),
        "{said}"
    );
    // FP8 without any factors is a form of its own.
    coded(&[WEIGHT]).write(&dir.path().join("in.safetensors"));
    assert!(!convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok().err.contains("factor"));
}

#[test]
fn tensors_that_no_reader_takes() {
    let mut file = flux("");
    file.add("double_blocks.0.packed.weight", "U8", [8, 256], &[7; 2048]);
    refused_file(&file, "a weight of U8, which is the code of an unknown quantization");
    let mut file = flux("");
    file.add("double_blocks.0.x.weight", "F6_E3M2", [8, 256], &[0; 1536]);
    refused_file(&file, "elements are F6_E3M2, expected floats");
    let mut file = flux("model.");
    add(&mut file, "model.", &[8]);
    refused_file(&file, "name of 0 bytes, 1 to 127 allowed");
    let mut file = flux("");
    add(&mut file, "a.weight", &[1, 1, 1, 1, 1, 8]);
    refused_file(&file, "at most 5 dimensions can be written");
    let dir = tempfile::tempdir().unwrap();
    file.write(&dir.path().join("in.safetensors"));
    let drop = ["hf2gguf", "in.safetensors", "-o", "out.gguf", "--drop", r"^a\.weight$"];
    run("gguf-convert", dir.path(), &drop).ok();
    let mut file = flux("");
    file.add_f32("double_blocks.0.x.weight", [8, 256], &[f32::NAN; 2048]);
    refused_file(&file, "element 0 is NaN");
}

#[test]
fn pickles_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("a.ckpt", &b"PK\x03\x04garbage"[..]), ("b.pt", b"\x80\x02}q\x00."), ("c.pth", b"text")]
    {
        fs_err::write(dir.path().join(name), bytes).unwrap();
        let err = convert(dir.path(), name, "out.gguf", "q8_0").exits_with(1).err;
        assert!(err.contains(name) && err.contains("hint: "), "{err}");
        assert!(!dir.path().join("out.gguf").exists());
    }
}

#[test]
fn what_other_blocks_have_is_missed_in_a_checkpoint_and_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let blocks = |gone: &str| {
        let mut file = flux("");
        let rows = (1..3)
            .flat_map(|n| FLUX.map(|(name, dims)| (name.replace("blocks.0", &format!("blocks.{n}")), dims)));
        let rows = rows.filter(|(name, _)| name.contains("blocks") && !name.starts_with(gone));
        rows.for_each(|(name, dims)| add(&mut file, &name, dims));
        file
    };
    refused_file(
        &blocks("double_blocks.1.img_attn.qkv"),
        "lacks `double_blocks.1.img_attn.qkv.weight`, which",
    );
    refused_file(
        &blocks("double_blocks.2.img_mlp.0.weight"),
        "lacks `double_blocks.2.img_mlp.0.weight`, which",
    );
    let mut file = blocks("nothing");
    add(&mut file, "single_blocks.1.gate.weight", &[4, 256]);
    file.write(&at("in.safetensors"));
    let said = convert(dir.path(), "in.safetensors", "out.gguf", "auto").ok().err;
    assert!(said.contains("`single_blocks.1.gate.weight`: only in some blocks"), "{said}");
    run("gguf-inspect", dir.path(), &["drop", "out.gguf", "double_blocks.1.*proj", "--force"]).ok();
    let said = run("gguf-verify", dir.path(), &["out.gguf", "--structure-only"]).exits_with(3).text();
    assert!(said.contains("`double_blocks.1.img_attn.proj.weight`: missing"), "{said}");
    assert!(said.contains("`single_blocks.1.gate.weight`: not in every block"), "{said}");
}
