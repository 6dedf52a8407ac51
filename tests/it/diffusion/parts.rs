//! Models in parts whose later parts hold tensors with five dimensions or long names.

use std::path::Path;

use gguf_foundry::gguf::{GgufFile, Metadata, Value};

use super::{add, convert, run, tensors, wan};
use crate::support::files;

const LONG: &str = "blocks.0.this_name_is_longer_than_those_that_llama_cpp_has_room_for.weight";

/// Writes a model of video whose last tensor has five dimensions, and its file in one part.
fn prepare(dir: &Path) {
    let mut model = wan();
    add(&mut model, LONG, &[8, 256]);
    add(&mut model, "vace_patch_embedding.weight", &[6, 4, 1, 2, 2]);
    model.write(&dir.join("in.safetensors"));
    convert(dir, "in.safetensors", "whole.gguf", "auto").ok();
    assert_eq!(tensors(&dir.join("whole.gguf")).last().unwrap().1, [6, 4, 1, 2, 2]);
}

fn read(dir: &Path, name: &str) -> Vec<u8> {
    fs_err::read(dir.join(name)).unwrap()
}

#[test]
fn a_model_in_parts_is_written_read_merged_and_quantized() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let split = ["--split-max-tensors", "4", "--type", "auto"];
    run("gguf-convert", dir, &[&["hf2gguf", "in.safetensors", "-o", "set.gguf"], &split[..]].concat()).ok();
    let parts = ["set-00001-of-00003.gguf", "set-00002-of-00003.gguf", "set-00003-of-00003.gguf"];
    assert!(parts.iter().all(|part| dir.join(part).is_file()), "{:?}", files::names(dir));
    assert_eq!(tensors(&dir.join(parts[0])), tensors(&dir.join("whole.gguf")));
    for part in parts {
        run("gguf-inspect", dir, &[part]).prints(0, "[6, 4, 1, 2, 2]");
        run("gguf-inspect", dir, &["diff", part, "whole.gguf"]).prints(1, "4 keys and 0 tensors differ");
        run("gguf-verify", dir, &[part, "--weights-only", "--baseline", "in.safetensors"])
            .exits_with_one_of(&[0, 4]);
        // One part is the argument, all are merged.
        run("gguf-inspect", dir, &["merge", part, "-o", "merged.gguf"]).ok();
        assert!(read(dir, "merged.gguf") == read(dir, "whole.gguf"), "{part}");
        fs_err::remove_file(dir.join("merged.gguf")).unwrap();
        run("gguf-quantize", dir, &[part, "q.gguf", "--type", "q4_k_m"]).ok();
        run("gguf-quantize", dir, &["whole.gguf", "single.gguf", "--type", "q4_k_m"]).ok();
        assert!(read(dir, "q.gguf") == read(dir, "single.gguf"), "{part}");
    }
    // Parts of the quantized file, as those of the source.
    run("gguf-quantize", dir, &[parts[1], "kept.gguf", "--type", "q4_k_m", "--keep-split"]).ok();
    run("gguf-inspect", dir, &["merge", "kept-00001-of-00003.gguf", "-o", "merged.gguf"]).ok();
    assert!(read(dir, "merged.gguf") == read(dir, "single.gguf"));
    // A set that the other splitter makes.
    run("gguf-inspect", dir, &["split", "whole.gguf", "-o", "other", "--split-max-tensors", "3"]).ok();
    assert_eq!(tensors(&dir.join("other-00001-of-00004.gguf")), tensors(&dir.join("whole.gguf")));
}

/// Writes `set` again, with other keys in the first part.
fn edit_first(dir: &Path, edit: impl FnOnce(&mut Metadata)) {
    let path = dir.join("set-00001-of-00003.gguf");
    let file = GgufFile::open(&path).unwrap();
    let first = &file.parts()[0];
    let mut metadata = first.header().metadata.clone();
    edit(&mut metadata);
    let tensors = &first.header().tensors;
    let plan = gguf_foundry::gguf::FilePlan::new(&metadata, tensors, &file.layout()).unwrap();
    let data = first.bytes()[usize::try_from(first.header().data_offset).unwrap()..].to_vec();
    let mut bytes = plan.header;
    bytes.resize(usize::try_from(plan.data_offset).unwrap(), 0);
    bytes.extend(data);
    drop(file);
    fs_err::write(path, bytes).unwrap();
}

#[test]
fn a_set_of_an_image_model_stays_one_with_another_key() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    prepare(dir);
    let split = ["--split-max-tensors", "4", "--type", "auto"];
    run("gguf-convert", dir, &[&["hf2gguf", "in.safetensors", "-o", "set.gguf"], &split[..]].concat()).ok();
    edit_first(dir, |metadata| metadata.set("wan.block_count", Value::U32(1)));
    for part in ["set-00001-of-00003.gguf", "set-00003-of-00003.gguf"] {
        run("gguf-quantize", dir, &[part, "out.gguf", "--type", "q8_0"]).ok();
        run("gguf-inspect", dir, &["out.gguf"]).prints(0, "wan.block_count");
        fs_err::remove_file(dir.join("out.gguf")).unwrap();
    }
}
