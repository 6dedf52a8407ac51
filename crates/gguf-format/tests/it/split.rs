//! Split files: written, opened through any part, merged, and refused if parts do not fit.

use std::path::{Path, PathBuf};

use gguf_core::progress::Silent;
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{
    GgufFile, Metadata, OpenOptions, SplitSpec, SplitStyle, Value, WriteOptions, merged_metadata, write_gguf,
};

use super::build::{Pattern, tensor};
use gguf_testkit::memory::write_source;

fn source() -> Pattern {
    Pattern::new((0..7).map(|i| tensor(&format!("t{i}"), &[3, 32 + 8 * i], GgmlType::F32)).collect())
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.name", "Parts");
    metadata
}

fn write(target: &Path, spec: Option<SplitSpec>, metadata: &Metadata) -> Vec<PathBuf> {
    let options = WriteOptions { split: spec, sync: false, ..WriteOptions::default() };
    write_gguf(target, metadata, &source(), &options, &Silent).unwrap().paths
}

fn three_parts(dir: &Path) -> Vec<PathBuf> {
    let spec = SplitSpec { max_tensors: Some(3), ..SplitSpec::default() };
    write(&dir.join("m.gguf"), Some(spec), &metadata())
}

fn error(path: &Path, dir: &Path) -> String {
    GgufFile::open(path).unwrap_err().to_string().replace(&format!("{}/", dir.display()), "")
}

/// Parts without an id are llama-gguf-split's; all others give the file back when they are merged.
#[test]
fn outer_dimensions_of_one_are_dropped_where_llama_gguf_split_drops_them() {
    let dir = tempfile::tempdir().unwrap();
    let source = Pattern::new(vec![tensor("t0", &[1, 32], GgmlType::F32), tensor("t1", &[1], GgmlType::F32)]);
    for (style, without_id, is_dropped) in [
        (SplitStyle::GgufSplit, true, true),
        (SplitStyle::GgufSplit, false, false),
        (SplitStyle::Converter, true, false),
    ] {
        let spec = SplitSpec { max_tensors: Some(1), style, without_id, ..SplitSpec::default() };
        let options = WriteOptions { split: Some(spec), sync: false, ..WriteOptions::default() };
        let paths =
            write_gguf(&dir.path().join("m.gguf"), &metadata(), &source, &options, &Silent).unwrap().paths;
        let file = GgufFile::open(&paths[0]).unwrap();
        let shapes: Vec<&[u64]> = file.tensors().iter().map(|tensor| tensor.shape.dims()).collect();
        let first: &[u64] = if is_dropped { &[32] } else { &[1, 32] };
        assert_eq!(shapes, [first, &[1]], "{style:?} {without_id}");
    }
}

#[test]
fn any_part_opens_all_and_merging_gives_the_whole_back() {
    let dir = tempfile::tempdir().unwrap();
    let whole = write(&dir.path().join("whole.gguf"), None, &metadata());
    for (name, style) in [("c", SplitStyle::Converter), ("g", SplitStyle::GgufSplit)] {
        let spec = SplitSpec { max_tensors: Some(3), style, ..SplitSpec::default() };
        let parts = write(&dir.path().join(name), Some(spec), &metadata());
        let names: Vec<_> = parts.iter().map(|part| part.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, [1, 2, 3].map(|part| format!("{name}-0000{part}-of-00003.gguf")),);
        for part in &parts {
            let file = GgufFile::open(part).unwrap();
            assert_eq!(file.paths(), parts);
            assert_eq!(file.tensors(), source().tensors());
            assert_eq!(file.metadata().get("split.no"), Some(&Value::U16(0)));
            let index = file.tensor_index("t5").unwrap();
            assert_eq!(file.place(index).part, 1);
            assert_eq!(file.raw_tensor(index), source().bytes(5));
            assert_eq!(file.parts()[2].first_tensor(), 6);

            let merged = dir.path().join("merged.gguf");
            let options = WriteOptions { sync: false, inputs: file.paths(), ..WriteOptions::default() };
            write_gguf(&merged, &merged_metadata(file.metadata()), &file, &options, &Silent).unwrap();
            assert_eq!(fs_err::read(&merged).unwrap(), fs_err::read(&whole[0]).unwrap());
        }
        let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
        let second = GgufFile::open_with(&parts[1], &alone).unwrap();
        assert_eq!(second.tensors().len(), 3);
        let keys: Vec<_> = second.metadata().iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), 4);
        assert_eq!(keys[3], "gguf_foundry.split.id");
    }
}

#[test]
fn one_part_is_split_only_in_the_style_of_gguf_split() {
    let dir = tempfile::tempdir().unwrap();
    let spec = SplitSpec { max_bytes: Some(1 << 30), ..SplitSpec::default() };
    assert_eq!(write(&dir.path().join("a.gguf"), Some(spec), &metadata()), [dir.path().join("a.gguf")]);
    let spec = SplitSpec { style: SplitStyle::GgufSplit, ..spec };
    let parts = write(&dir.path().join("b.gguf"), Some(spec), &metadata());
    assert_eq!(parts, [dir.path().join("b-00001-of-00001.gguf")]);
    assert_eq!(GgufFile::open(&parts[0]).unwrap().metadata().get("split.count"), Some(&Value::U16(1)));
}

#[test]
fn a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = three_parts(dir.path());
    fs_err::remove_file(&parts[1]).unwrap();
    assert_eq!(error(&parts[2], dir.path()), "m-00002-of-00003.gguf: part 2 of 3 is missing");
}

#[test]
fn a_part_twice_or_under_a_wrong_name_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = three_parts(dir.path());
    fs_err::copy(&parts[0], &parts[2]).unwrap();
    assert_eq!(
        error(&parts[0], dir.path()),
        "m-00003-of-00003.gguf: part 3 expected, key `split.no` declares part 1"
    );
    let renamed = dir.path().join("second.gguf");
    fs_err::copy(&parts[1], &renamed).unwrap();
    assert_eq!(
        error(&renamed, dir.path()),
        "second.gguf: part 2 of 3 by its keys, so its name must end in `-00002-of-00003.gguf`"
    );
}

#[test]
fn parts_of_other_models_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = three_parts(dir.path());
    let patched = |change: fn(&mut Metadata)| {
        let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
        let file = GgufFile::open_with(&parts[1], &alone).unwrap();
        let kept = fs_err::read(&parts[1]).unwrap();
        let mut metadata = file.metadata().clone();
        change(&mut metadata);
        write_source(&parts[1], &metadata, &file);
        let message = error(&parts[0], dir.path());
        fs_err::write(&parts[1], kept).unwrap();
        message
    };
    let prefix = "m-00002-of-00003.gguf: not of the same model as the first part: ";
    assert_eq!(patched(|m| m.set("split.count", 4u16)), format!("{prefix}`split.count` 3 expected, found 4"));
    assert_eq!(
        patched(|m| m.set("split.tensors.count", 8i32)),
        format!("{prefix}`split.tensors.count` 7 expected, found 8")
    );
    assert_eq!(
        patched(|m| m.set("general.architecture", "qwen2")),
        format!("{prefix}`general.architecture` `llama` expected, found `qwen2`")
    );
    assert_eq!(
        patched(|m| {
            m.remove("split.no");
        }),
        format!("{prefix}`split.no` 1 expected, found none")
    );
    assert_eq!(
        patched(|m| m.set("split.no", "one")),
        "m-00002-of-00003.gguf: key `split.no`: a number that is not negative expected, found str"
    );
}

#[test]
fn a_tensor_in_two_parts_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = three_parts(dir.path());
    // The third part with the tensors of the first: its own keys, `t0` instead of `t6`.
    let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
    let metadata = GgufFile::open_with(&parts[2], &alone).unwrap().metadata().clone();
    let again = Pattern::new(source().tensors[..1].to_vec());
    write_source(&parts[2], &metadata, &again);
    assert_eq!(
        error(&parts[0], dir.path()),
        format!(
            "m-00003-of-00003.gguf: tensor `t0` is in `{}` too: the parts are of two files",
            "m-00001-of-00003.gguf"
        )
    );
}

#[test]
fn a_wrong_total_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = three_parts(dir.path());
    let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
    let metadata = GgufFile::open_with(&parts[2], &alone).unwrap().metadata().clone();
    write_source(&parts[2], &metadata, &Pattern::new(vec![]));
    assert_eq!(
        error(&parts[1], dir.path()),
        "m-00001-of-00003.gguf: 6 tensors in all parts, key `split.tensors.count` declares 7"
    );
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write_with = |count: Value, no: Value| {
        let mut metadata = metadata();
        metadata.set("split.no", no);
        metadata.set("split.count", count);
        let path = write(&dir.path().join("m-00001-of-00003.gguf"), None, &metadata);
        GgufFile::open(&path[0]).map_err(|_| error(&path[0], dir.path())).map(|file| file.parts().len())
    };
    let name = "m-00001-of-00003.gguf";
    assert_eq!(
        write_with(Value::I32(-1), Value::U16(0)),
        Err(format!("{name}: key `split.count`: a number that is not negative expected, found -1"))
    );
    assert_eq!(
        write_with(Value::U64(1 << 40), Value::U16(0)),
        Err(format!(
            "{name}: key `split.count`: a number of parts that is possible expected, found 1099511627776"
        ))
    );
    assert_eq!(
        write_with(Value::U16(3), Value::U16(3)),
        Err(format!("{name}: key `split.no`: a part number below `split.count` expected, found 3"))
    );
    // Keys that `llama-gguf-split --merge` leaves behind.
    assert_eq!(write_with(Value::U16(0), Value::U16(0)), Ok(1));
}
