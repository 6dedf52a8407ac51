//! Tests of PyTorch checkpoints: accepted and refused input, and no side effects.

mod hostile;
mod machine;
mod views;

use std::path::Path;

use gguf_checkpoint::{Checkpoint, CheckpointError};
use gguf_core::limits::Limits;
use gguf_core::{ElementType, Hint, WeightSource};
use serde_json::Value as Json;
use tempfile::TempDir;

use super::dir;
use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::torch::{Tensor, container, dict, floats, int, legacy, pickle, text, zip};
use gguf_testkit::{files, report_cases, sha256};

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(path, &Limits::default())
}

/// Error of opening a directory, without its path.
fn error(dir: &TempDir) -> String {
    open(dir.path()).unwrap_err().to_string().replace(&format!("{}/", dir.path().display()), "")
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.weights().iter().map(|meta| meta.name.as_str()).collect()
}

/// File with F32 tensors of two elements.
fn file(names: &[&str]) -> Vec<u8> {
    let keys = ["0", "1", "2", "3"];
    let tensor = |(&name, key)| (name, Tensor::new("FloatStorage", key, &[2]).bytes());
    let tensors: Vec<(&str, Vec<u8>)> = names.iter().zip(keys).map(tensor).collect();
    let storages: Vec<Vec<u8>> = (0..names.len()).map(|i| floats([i as f32, -1.0])).collect();
    let storages: Vec<&[u8]> = storages.iter().map(Vec::as_slice).collect();
    container(&pickle(&dict(&tensors)), &storages)
}

/// All elements of a weight, read in pieces of odd lengths.
fn read(source: &dyn WeightSource, weight: usize) -> Vec<u8> {
    let meta = &source.weights()[weight];
    let elem = meta.ty.bytes().unwrap();
    let n = meta.shape.n_elems() as usize;
    let mut bytes = vec![0xee; n * elem];
    let (mut at, mut piece) = (0, 1);
    while at < n {
        let len = piece.min(n - at);
        source.read_elems(weight, at as u64, &mut bytes[at * elem..(at + len) * elem]).unwrap();
        source.release_elems(weight, at as u64, len as u64);
        at += len;
        piece = piece * 2 + 1;
    }
    if let Some(borrowed) = source.borrow(weight) {
        assert_eq!(borrowed, bytes, "{}", meta.name);
    }
    bytes
}

/// Decodes a float of eight bits from its parts.
fn float8(byte: u8, mantissa_bits: u32, bias: i32, has_infinity: bool) -> f32 {
    let sign = if byte >= 0x80 { -1.0 } else { 1.0 };
    let exponent = i32::from((byte & 0x7f) >> mantissa_bits);
    let mantissa = f32::from(byte & ((1 << mantissa_bits) - 1));
    let unit = (mantissa_bits as f32).exp2();
    if has_infinity && exponent == 31 {
        return if mantissa == 0.0 { sign * f32::INFINITY } else { f32::NAN };
    }
    if !has_infinity && byte & 0x7f == 0x7f {
        return f32::NAN;
    }
    let power = |n: i32| (n as f32).exp2();
    if exponent == 0 {
        sign * mantissa / unit * power(1 - bias)
    } else {
        sign * (1.0 + mantissa / unit) * power(exponent - bias)
    }
}

fn as_f32(ty: ElementType, bytes: &[u8]) -> Vec<u8> {
    macro_rules! each {
        ($n:literal, $from:expr) => {
            floats(bytes.as_chunks::<$n>().0.iter().map(|&raw| $from(raw)))
        };
    }
    match ty {
        ElementType::F64 => each!(8, |raw| f64::from_le_bytes(raw) as f32),
        ElementType::F32 => bytes.to_vec(),
        ElementType::F16 => each!(2, |raw| half::f16::from_le_bytes(raw).to_f32()),
        ElementType::Bf16 => each!(2, |raw| half::bf16::from_le_bytes(raw).to_f32()),
        ElementType::I64 => each!(8, |raw| i64::from_le_bytes(raw) as f32),
        ElementType::I32 => each!(4, |raw| i32::from_le_bytes(raw) as f32),
        ElementType::I16 => each!(2, |raw| f32::from(i16::from_le_bytes(raw))),
        ElementType::I8 => each!(1, |raw: [u8; 1]| f32::from(raw[0] as i8)),
        ElementType::U8 | ElementType::Bool => each!(1, |raw: [u8; 1]| f32::from(raw[0])),
        ElementType::F8E4M3 => each!(1, |raw: [u8; 1]| float8(raw[0], 3, 7, false)),
        ElementType::F8E5M2 => each!(1, |raw: [u8; 1]| float8(raw[0], 2, 15, true)),
        other => panic!("{other}"),
    }
}

/// Copies a case of the corpus into a directory with a configuration, and renames its file to a supported name.
fn case_dir(case: &Path, about: &Json) -> TempDir {
    let dir = dir(&[]);
    for file in about["files"].as_array().unwrap().iter().filter_map(Json::as_str) {
        let target = if file == "consolidated.00.pth" { "model.pth" } else { file };
        fs_err::copy(case.join(file), dir.path().join(target)).unwrap();
    }
    fs_err::remove_file(dir.path().join("expected.safetensors")).ok();
    dir
}

conformance_tests!(conformance_tensors_have_the_expected_values);
fn conformance_tensors_have_the_expected_values(corpus: &Goldens) {
    let (mut n_cases, mut n_tensors, mut refused) = (0, 0, Vec::new());
    for case in files::entries(corpus.join("formats/pytorch")) {
        let about = files::json(case.join("case.json"));
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        match about["outcome"].as_str().unwrap() {
            "error" => continue,
            "either" => {
                // Both outcomes are right; it only must return.
                let _ = open(case_dir(&case, &about).path());
                n_cases += 1;
                continue;
            }
            other => assert_eq!(other, "ok"),
        }
        let dir = case_dir(&case, &about);
        n_cases += 1;
        let checkpoint = match open(dir.path()) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("compressed records are not read"), "{name}: {error}");
                refused.push(name);
                continue;
            }
        };
        let expected = files::json(case.join("expected.json"));
        let tensors = about["tensors"].as_object().unwrap();
        let mut want: Vec<&str> = tensors.keys().map(String::as_str).collect();
        let mut have = names(&checkpoint);
        if checkpoint.parts().len() > 1 {
            want.sort_unstable();
            have.sort_unstable();
        }
        assert_eq!(have, want, "{name}");
        for (weight, meta) in checkpoint.weights().iter().enumerate() {
            let row = &tensors[&meta.name];
            let shape: Vec<u64> = row["shape"].as_array().unwrap().iter().filter_map(Json::as_u64).collect();
            assert_eq!(meta.shape.dims(), shape, "{name}: {}", meta.name);
            assert_eq!(meta.ty.name(), row["dtype"], "{name}: {}", meta.name);
            let values = as_f32(meta.ty, &read(&checkpoint, weight));
            let want = &expected["tensors"][&meta.name]["sha256_f32le"];
            assert_eq!(sha256(&values), *want, "{name}: {}", meta.name);
            n_tensors += 1;
        }
    }
    assert_eq!(refused, ["zip-deflated"]);
    assert!(n_tensors > 100, "{n_tensors} tensors compared");
    report_cases("PyTorch files", n_cases);
}

#[test]
fn shards_come_by_name_and_tensors_in_the_order_of_the_dictionary() {
    let index =
        br#"{"weight_map":{"z":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin",
        "a":"pytorch_model-00002-of-00002.bin"}}"#;
    let files: &[(&str, &[u8])] = &[
        ("pytorch_model-00002-of-00002.bin", &file(&["b", "a"])),
        ("pytorch_model-00001-of-00002.bin", &file(&["z"])),
        ("optimizer.bin", b"not looked at"),
    ];
    let without_index = dir(files);
    let checkpoint = open(without_index.path()).unwrap();
    assert_eq!(names(&checkpoint), ["z", "b", "a"]);
    assert_eq!(checkpoint.part_of(1), "pytorch_model-00002-of-00002.bin");
    assert_eq!(read(&checkpoint, 2), floats([1.0, -1.0]));
    let with_index = dir(files);
    let path = with_index.path().join("pytorch_model.bin.index.json");
    fs_err::write(&path, index).unwrap();
    assert_eq!(names(&open(with_index.path()).unwrap()), ["z", "b", "a"]);

    fs_err::write(&path, br#"{"weight_map":{"z":"pytorch_model-00001-of-00002.bin"}}"#).unwrap();
    assert_eq!(names(&open(with_index.path()).unwrap()), ["z"]);
    fs_err::write(&path, br#"{"weight_map":{"b":"pytorch_model-00002-of-00002.bin"}}"#).unwrap();
    let checkpoint = open(with_index.path()).unwrap();
    assert_eq!(names(&checkpoint), ["b", "a"]);
    let of_index = |warning: &&String| warning.contains("does not list, but a shard has `a`");
    assert_eq!(checkpoint.warnings().iter().filter(of_index).count(), 1);
    fs_err::write(&path, br#"{"weight_map":{"b":"../b.bin"}}"#).unwrap();
    assert_eq!(error(&with_index), "pytorch_model.bin.index.json: shard `../b.bin` is outside the directory");

    let twice = |second: &[&str]| {
        dir(&[("pytorch_model-1.bin", &file(&["a", "b"])), ("pytorch_model-2.bin", &file(second))])
    };
    let checkpoint = open(twice(&["a", "c"]).path()).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b", "c"]);
    assert_eq!(read(&checkpoint, 2), floats([1.0, -1.0]));
    let twice = twice(&["c", "a"]);
    assert_eq!(error(&twice), "tensor `a` is in `pytorch_model-1.bin` and in `pytorch_model-2.bin`");
    let part = dir(&[("pytorch_model-00001-of-00002.bin", &file(&["a"]))]);
    assert!(error(&part).ends_with("shard `pytorch_model-00002-of-00002.bin` is missing"));
}

#[test]
fn files_are_found_by_name_and_safetensors_come_first() {
    for name in ["pytorch_model.bin", "model.pth", "weights.PT", "epoch=3.ckpt", "some.bin"] {
        let dir = dir(&[(name, &file(&["a"])), ("training_args.bin", b"x"), ("rng_state_0.pth", b"x")]);
        let from_dir = open(dir.path()).unwrap();
        assert_eq!(from_dir.parts()[0].name, name);
        let from_file = open(&dir.path().join(name)).unwrap();
        assert_eq!(names(&from_file), ["a"]);
        assert_eq!(from_file.dir().path(), dir.path());
        assert_eq!(from_file.paths(), [dir.path().join(name)]);
    }
    let two = dir(&[("a.pth", &file(&["a"])), ("b.pth", &file(&["b"]))]);
    assert!(error(&two).ends_with("`a.pth` and `b.pth` could both be the weights"));
    assert_eq!(open(two.path()).unwrap_err().hints().len(), 1);
    let parts = dir(&[("hf_model_0001_0.pt", &file(&["a"])), ("hf_model_0002_0.pt", &file(&["b"]))]);
    assert!(open(parts.path()).unwrap_err().hints()[0].contains("pytorch_model-00001-of-00002.bin"));
    assert_eq!(names(&open(&two.path().join("b.pth")).unwrap()), ["b"]);

    let mut safetensors = Safetensors::default();
    safetensors.add("s", "U8", [1], b"x");
    let both = dir(&[("pytorch_model.bin", &file(&["a"])), ("model.safetensors", &safetensors.bytes())]);
    assert_eq!(names(&open(both.path()).unwrap()), ["s"]);
    assert_eq!(names(&open(&both.path().join("pytorch_model.bin")).unwrap()), ["a"]);

    fs_err::remove_file(both.path().join("config.json")).unwrap();
    let error = open(&both.path().join("pytorch_model.bin")).unwrap_err();
    assert!(matches!(error, CheckpointError::FileMissing { name: "config.json", .. }));
    let meta = dir(&[("consolidated.00.pth", &file(&["a"])), ("params.json", b"{}")]);
    for path in [meta.path().to_owned(), meta.path().join("consolidated.00.pth")] {
        let error = open(&path).unwrap_err();
        assert!(error.to_string().ends_with("a checkpoint in Meta's own layout cannot be read yet"));
        assert_eq!(error.hints().len(), 1);
    }
}

#[test]
fn weights_are_found_inside_what_training_programs_save() {
    let w = || Tensor::new("FloatStorage", "0", &[2]).bytes();
    let one = |body: Vec<u8>| container(&pickle(&body), &[&floats([1.0, 2.0])]);
    let inner = || dict(&[("w", w())]);
    for (body, expected) in [
        (dict(&[("w", w()), ("step", int(3)), ("note", text("x"))]), "w"),
        (dict(&[("state_dict", inner()), ("optimizer", dict(&[("o", w())]))]), "w"),
        (dict(&[("model_state_dict", inner()), ("loss", w())]), "w"),
        (dict(&[("rng_state", w()), ("model", dict(&[("module.w", w())]))]), "w"),
        (dict(&[("a.w", w()), ("ema", inner())]), "a.w"),
        (dict(&[("epoch", int(1)), ("model", dict(&[("state_dict", inner())]))]), "w"),
        (dict(&[("encoder", dict(&[("0", inner())])), ("optimizer", inner())]), "encoder.0.w"),
        (dict(&[("module.w", w())]), "w"),
        (dict(&[("module._orig_mod.w", w())]), "w"),
        (dict(&[("model.model.w", w())]), "model.w"),
        (dict(&[("model.w", w())]), "model.w"),
    ] {
        let dir = dir(&[("pytorch_model.bin", &one(body))]);
        assert_eq!(names(&open(dir.path()).unwrap()), [expected]);
    }
    let dir_of = |body: Vec<u8>| dir(&[("pytorch_model.bin", &one(body))]);
    let model = || dict(&[("a.w", w())]);
    for (body, expected) in [
        (
            dict(&[("ema", model()), ("model", model()), ("critic", model())]),
            Some("`model` are taken, other weights under `ema`, `critic` are"),
        ),
        (
            dict(&[("state_dict", dict(&[("module", model()), ("module_ema", model())]))]),
            Some("`module_ema` are"),
        ),
        (dict(&[("model", model()), ("optimizer", dict(&[("state", model())])), ("loss", w())]), None),
    ] {
        let opened = open(dir_of(body).path()).unwrap();
        let said = opened.warnings().join("\n");
        assert!(
            names(&opened) == ["a.w"]
                && expected.map_or(!said.contains("taken"), |words| said.contains(words)),
            "{said}"
        );
    }
    for (body, expected) in [
        (dict(&[("a", int(1))]), "pytorch_model.bin: no dictionary of tensors in it"),
        (dict(&[]), "pytorch_model.bin: no dictionary of tensors in it"),
        (dict(&[("optimizer", inner())]), "pytorch_model.bin: no dictionary of tensors in it"),
        (w(), "pytorch_model.bin: a tensor at the top, a dictionary of tensors expected"),
        (b"]".to_vec(), "pytorch_model.bin: a list at the top, a dictionary of tensors expected"),
        (dict(&[("w", w()), ("w", w())]), "pytorch_model.bin: tensor `w`: name occurs twice"),
        (
            [&b"}K\x01"[..], &w(), b"s"].concat(),
            "pytorch_model.bin: a tensor under an integer, text expected",
        ),
        (
            dict(&[("a", [&b"}q\x01"[..], &text("b"), b"h\x01s"].concat())]),
            "pytorch_model.bin: dictionary `a.b` is contained twice",
        ),
    ] {
        assert_eq!(error(&dir_of(body)), expected);
    }
    // Thirty levels of dictionaries, each with two references to the one below: a billion names, if all were visited.
    let mut body = b"}q\x00".to_vec();
    for level in 1..30u8 {
        body = [
            &body[..],
            b"0}q",
            &[level],
            &text("a"),
            b"h",
            &[level - 1],
            b"s",
            &text("b"),
            b"h",
            &[level - 1],
            b"s",
        ]
        .concat();
    }
    assert!(error(&dir_of(body)).contains("nested too deeply"));
}

#[test]
fn both_containers_hold_every_type() {
    let classes: [(&str, ElementType, usize); 10] = [
        ("DoubleStorage", ElementType::F64, 8),
        ("FloatStorage", ElementType::F32, 4),
        ("HalfStorage", ElementType::F16, 2),
        ("BFloat16Storage", ElementType::Bf16, 2),
        ("LongStorage", ElementType::I64, 8),
        ("IntStorage", ElementType::I32, 4),
        ("ShortStorage", ElementType::I16, 2),
        ("CharStorage", ElementType::I8, 1),
        ("ByteStorage", ElementType::U8, 1),
        ("BoolStorage", ElementType::Bool, 1),
    ];
    for (class, ty, n_bytes) in classes {
        let body = dict(&[("w", Tensor::new(class, "0", &[2, 3]).bytes())]);
        let data: Vec<u8> = (1..=6 * n_bytes as u8).collect();
        let mut big = data.clone();
        big.chunks_exact_mut(n_bytes).for_each(<[u8]>::reverse);
        let program = pickle(&body);
        let big = zip(&[("x/data.pkl", &program), ("x/byteorder", b"big"), ("x/data/0", &big)]);
        for content in [container(&program, &[&data]), legacy(&body, &[("0", 6, &data)]), big] {
            let dir = dir(&[("pytorch_model.bin", &content)]);
            let checkpoint = open(dir.path()).unwrap();
            assert_eq!(checkpoint.weights()[0].ty, ty);
            assert_eq!(checkpoint.weights()[0].shape.dims(), [2, 3]);
            assert_eq!(read(&checkpoint, 0), data, "{class}");
        }
    }
}
