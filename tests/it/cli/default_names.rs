//! Default names of outputs, which never replace another model's file.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorMeta, TensorSource};
use gguf_foundry::gguf::GgufFile;

use crate::support::programs::run_unsynced as run;
use crate::support::{files, fixture};

fn checkpoint(dir: &Path) {
    fs_err::create_dir_all(dir).unwrap();
    files::copy(fixture("tiny-llama"), dir);
}

/// Changes every norm a little, as further training does.
fn change(path: &Path) {
    let file = GgufFile::open(path).unwrap();
    let norms = file.tensors().iter().filter(|tensor| tensor.ty == GgmlType::F32);
    let place = |tensor: &TensorMeta| file.place(file.tensor_index(&tensor.name).unwrap()).offset;
    let offsets: Vec<_> = norms.map(place).collect();
    drop(file);
    let mut bytes = fs_err::read(path).unwrap();
    for &offset in &offsets {
        bytes[usize::try_from(offset).unwrap()] ^= 1;
    }
    fs_err::write(path, bytes).unwrap();
}

const HINT: &str = "\n\nhint: name the output (`gguf-convert ... -o FILE`, `gguf-quantize --type TYPE IN OUT`), or remove \
                    that file first\n";

#[test]
fn a_quantized_file_replaces_its_own_earlier_self_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    checkpoint(&dir.join("One"));
    run("gguf-convert", dir, &["hf2gguf", "One", "--type", "f16", "-o", "a-F16.gguf"]).ok();
    let quantize = ["a-F16.gguf", "--type", "q4_0"];
    run("gguf-quantize", dir, &quantize).ok();
    run("gguf-quantize", dir, &quantize).ok();
    // Another model of the same shapes, with another name or only other values.
    let other = ["hf2gguf", "One", "--type", "q4_0", "--set", "general.name=str:Other", "-o", "a-Q4_0.gguf"];
    run("gguf-convert", dir, &other).ok();
    let before = fs_err::read(dir.join("a-Q4_0.gguf")).unwrap();
    let want = "error: a-Q4_0.gguf: the output's default name is taken by another model: its `general.name` is `Other`, \
                here it is `One`";
    run("gguf-quantize", dir, &quantize).says_only(1, &format!("{want}{HINT}"));
    assert!(fs_err::read(dir.join("a-Q4_0.gguf")).unwrap() == before);
    let err = run("gguf-quantize", dir, &[&quantize[..], &["--dry-run"]].concat()).ok().err;
    assert!(err.contains("warning: a run would stop here: a-Q4_0.gguf: the output's default name"), "{err}");
    // A name given by the user may be overwritten.
    run("gguf-quantize", dir, &["a-F16.gguf", "a-Q4_0.gguf", "--type", "q4_0"]).ok();
    change(&dir.join("a-Q4_0.gguf"));
    let err = run("gguf-quantize", dir, &quantize).exits_with(1).err;
    assert!(err.contains("another model: its tensor `output_norm.weight` has other values"), "{err}");
}

#[test]
fn a_folder_of_outputs_keeps_the_models_of_other_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    checkpoint(&dir.join("One"));
    fs_err::create_dir(dir.join("out")).unwrap();
    for file_type in ["f16", "q4_k_m"] {
        let convert = ["hf2gguf", "One", "--type", file_type, "-o", "out"];
        run("gguf-convert", dir, &convert).ok();
        run("gguf-convert", dir, &convert).ok();
        let name = files::entries(dir.join("out")).remove(0);
        change(&name);
        let err = run("gguf-convert", dir, &convert).exits_with(1).err;
        assert!(err.contains("the output's default name is taken by another model"), "{err}");
        fs_err::remove_file(name).unwrap();
    }
}

#[test]
fn a_snapshot_of_the_hubs_cache_is_named_after_its_repository() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let snapshot = dir.join("models--org--Tiny-Thing/snapshots/0123456789abcdef0123456789abcdef01234567");
    checkpoint(&snapshot);
    fs_err::create_dir(dir.join("out")).unwrap();
    let output = dir.join("out");
    let output = output.to_str().unwrap();
    run("gguf-convert", &snapshot, &["hf2gguf", ".", "--type", "f16", "-o", output]).ok();
    let path = files::entries(output).remove(0);
    let name = files::name(&path);
    assert!(name.starts_with("Tiny-Thing-") && name.ends_with("-F16.gguf"), "{name}");
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.metadata().get("general.name").and_then(|name| name.as_str()), Some("Tiny Thing"));
}
