//! Broken files, and files made to break their reader.

use std::path::Path;

use gguf_checkpoint::torch::{TorchError, parse};
use gguf_core::limits::Limits;
use proptest::prelude::*;
use serde_json::Value as Json;

use super::{dir, open};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::torch::{Tensor, container, dict, floats, global, int, legacy, pickle, text, tuple, zip};
use gguf_testkit::{files, fixture, report_cases};

/// Returns true if a directory has an entry with this name.
fn holds_pwned(dir: &Path) -> bool {
    fs_err::read_dir(dir).unwrap().any(|entry| entry.unwrap().file_name() == "PWNED")
}

conformance_tests!(conformance_hostile_files_get_clear_errors);

/// Reads each file of the corpus alone, completely. `fixtures/torch/answers.json` has a part of each message.
fn conformance_hostile_files_get_clear_errors(corpus: &Goldens) {
    let corpus = corpus.join("formats/pytorch/hostile");
    let about = files::json(corpus.join("case.json"));
    let answers = files::json(fixture("torch/answers.json"));
    let mut n_cases = 0;
    for file in about["files"].as_object().unwrap().keys() {
        let dir = dir(&[]);
        let path = dir.path().join(file);
        fs_err::copy(corpus.join(file), &path).unwrap();
        match (&answers[file], open(&path)) {
            (Json::Null, Ok(checkpoint)) => {
                for (weight, meta) in gguf_core::WeightSource::weights(&checkpoint).iter().enumerate() {
                    let mut bytes = vec![0; meta.shape.n_elems() as usize * 4];
                    gguf_core::WeightSource::read_elems(&checkpoint, weight, 0, &mut bytes).unwrap();
                    assert_eq!(bytes, floats((0..6).map(|i| i as f32)), "{file}");
                }
            }
            (Json::String(part), Err(error)) => {
                let message = error.to_string();
                assert!(message.contains(part.as_str()), "{file}: `{part}` expected, found {message}");
            }
            (answer, opened) => panic!("{file}: {answer} expected, found {opened:?}"),
        }
        assert!(!holds_pwned(dir.path()), "{file}");
        n_cases += 1;
    }
    assert!(!holds_pwned(Path::new(".")));
    report_cases("hostile PyTorch files", n_cases);
}

/// Valid files of both containers.
fn good() -> Vec<Vec<u8>> {
    let views = Tensor {
        offset: 1,
        sizes: vec![3, 2],
        strides: vec![1, 3],
        ..Tensor::new("FloatStorage", "1", &[8])
    };
    let body = dict(&[
        ("a", Tensor::new("HalfStorage", "0", &[2, 2]).bytes()),
        ("b", views.bytes()),
        ("note", text("x")),
    ]);
    let (halves, floats) = (vec![7; 8], floats((0..8).map(|i| i as f32)));
    vec![
        container(&pickle(&body), &[&halves, &floats]),
        legacy(&body, &[("0", 4, &halves), ("1", 8, &floats)]),
    ]
}

/// Reads all tensors of a file if it opens.
fn read_all(file: &[u8]) {
    let Ok(content) = parse(file, &Limits::default()) else { return };
    for tensor in &content.tensors {
        let n = tensor.meta.shape.n_elems();
        let mut bytes = vec![0; n as usize * tensor.meta.ty.bytes().unwrap()];
        tensor.read_elems(file, 0, &mut bytes);
        if let Some(borrowed) = tensor.borrow(file) {
            assert_eq!(borrowed, bytes);
        }
        if let Some((offset, n_bytes)) = tensor.window(0, n) {
            assert!(offset + n_bytes <= file.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn pickles_of_any_opcodes_end_with_a_result_or_an_error(
        parts in prop::collection::vec(prop::sample::select(vec![
            vec![b'('], vec![b'0'], vec![b'1'], vec![b'2'], vec![b'N'], vec![b')'], vec![b']'], vec![b'}'],
            vec![b't'], vec![0x85], vec![0x86], vec![b'l'], vec![b'd'], vec![b'a'], vec![b'e'], vec![b's'],
            vec![b'u'], vec![b'R'], vec![0x81], vec![0x92], vec![b'b'], vec![b'Q'], vec![0x94], vec![b'h', 0],
            vec![b'h', 1], vec![b'K', 1], text("storage"), text("0"), int(2), global("torch", "FloatStorage"),
            global("torch._utils", "_rebuild_tensor_v2"), global("collections", "OrderedDict"), dict(&[]),
            tuple(&[int(1)]), vec![0x90], vec![0x8f], vec![0x91], vec![0x93],
        ]), 0..40),
    ) {
        read_all(&container(&pickle(&parts.concat()), &[&[0; 8]]));
        read_all(&legacy(&parts.concat(), &[("0", 2, &[0; 8])]));
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    for file in good() {
        for len in 0..file.len() {
            assert!(parse(&file[..len], &Limits::default()).is_err(), "{len} of {} bytes", file.len());
        }
        assert!(parse(&file, &Limits::default()).is_ok());
    }
}

#[test]
fn archives_that_are_no_weights_are_named() {
    let program = pickle(&dict(&[("w", Tensor::new("FloatStorage", "0", &[1]).bytes())]));
    let program = program.as_slice();
    let data: &[u8] = &[0; 4];
    let message =
        |records: &[(&str, &[u8])]| parse(&zip(records), &Limits::default()).unwrap_err().to_string();
    for (records, expected) in [
        (&[("x/other", data)][..], "zip archive without `data.pkl`: not a PyTorch file"),
        (&[("data.pkl", program), ("data/0", data)], "zip archive without `data.pkl`: not a PyTorch file"),
        (
            &[("a/data.pkl", program), ("b/data.pkl", program)],
            "zip archive with `a/data.pkl` and `b/data.pkl`",
        ),
        (
            &[("a/data.pkl", program), ("a/constants.pkl", data)],
            "a TorchScript archive: a program, not a dictionary of weights",
        ),
        (
            &[("a/data.pkl", program), ("a/code/x.py", data)],
            "a TorchScript archive: a program, not a dictionary of weights",
        ),
        (&[("a/data.pkl", program)], "tensor `w`: storage `0` is missing"),
        (&[("a/data.pkl", program), ("b/data/0", data)], "tensor `w`: storage `0` is missing"),
        (
            &[("a/data.pkl", program), ("a/data/0", data), ("a/byteorder", b"middle")],
            "zip record `byteorder`: `little` or `big` expected, found `middle`",
        ),
    ] {
        assert_eq!(message(records), expected);
    }
    let other = |file: &[u8]| parse(file, &Limits::default()).unwrap_err();
    assert!(matches!(other(b""), TorchError::Empty));
    assert!(matches!(other(b"<!DOCTYPE html>"), TorchError::WebPage));
    assert!(matches!(other(b"version https://git-lfs.github.com/spec/v1\n"), TorchError::LfsPointer));
    assert!(matches!(other(b"\x02\0\0\0\0\0\0\0{}"), TorchError::Safetensors));
    assert!(matches!(other(b"something else"), TorchError::Magic));
    assert!(matches!(other(&pickle(&dict(&[]))), TorchError::Magic));
    let small = Limits { pickle_bytes: 10, ..Limits::default() };
    let file = zip(&[("a/data.pkl", program), ("a/data/0", data)]);
    assert!(matches!(parse(&file, &small), Err(TorchError::PickleTooLong { limit: 10, .. })));
}

conformance_tests!(conformance_files_that_are_damaged_end_with_a_result_or_an_error);

/// Tests truncated and changed files of the corpus: a few hundred of each.
fn conformance_files_that_are_damaged_end_with_a_result_or_an_error(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in
        ["zip-dtypes", "zip-protocol4", "legacy-dtypes", "zip-views", "extras-in-dict", "zip-float8-uint"]
    {
        let good = fs_err::read(corpus.join("formats/pytorch").join(case).join("pytorch_model.bin")).unwrap();
        read_all(&good);
        for i in 0..400usize {
            // Steps that reach every part of the file.
            let at = i * 7919 % good.len();
            let mut file = good.clone();
            file[at] ^= [0xff, 0x01, 0x80, 0x20][i % 4];
            read_all(&file);
            read_all(&good[..at]);
        }
        n_cases += 1;
    }
    report_cases("damaged PyTorch files", n_cases);
}
