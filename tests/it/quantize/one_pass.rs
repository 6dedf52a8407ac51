//! Converting directly to a quantized type gives the same file as converting to f32 and quantizing.

use std::path::Path;

use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::{fixture, programs, report_cases};

fn run(program: &str, dir: &Path, args: &[&str]) -> (i32, String) {
    let (code, _, err) = programs::run(program, dir, &[args, &["--no-sync", "--quiet"]].concat()).parts();
    (code, err)
}

#[test]
fn one_pass_and_two_give_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = fixture("tiny-llama");
    let model = model.to_str().unwrap();
    assert_eq!(
        run("gguf-convert", dir, &["hf2gguf", model, "-o", "f32.gguf", "--type", "f32"]),
        (0, String::new())
    );
    let flags: [&[&str]; 3] = [
        &[],
        &["--pure", "--override-kv", "general.name=str:other"],
        &["--tensor-type", "attn_k=f16", "--output-tensor-type", "q8_0", "--prune-layers", "0"],
    ];
    for (file_type, flags) in ["q4_k_m", "Q6_K", "2"].iter().zip(flags) {
        let one = [&["hf2gguf", model, "-o", "one.gguf", "--type", file_type], flags].concat();
        assert_eq!(run("gguf-convert", dir, &one), (0, String::new()), "{one:?}");
        let two = [&["f32.gguf", "two.gguf", "--type", file_type], flags].concat();
        assert_eq!(run("gguf-quantize", dir, &two), (0, String::new()), "{two:?}");
        let bytes = |name: &str| fs_err::read(dir.join(name)).unwrap();
        assert!(bytes("one.gguf") == bytes("two.gguf"), "{file_type} {flags:?}");
        assert!(bytes("one.gguf").len() < bytes("f32.gguf").len());
    }
}

conformance_tests!(one_pass_and_two_agree_on_experts_in_blocks);

/// Experts that stay blocks in the f32 file are requantized from their values.
fn one_pass_and_two_agree_on_experts_in_blocks(corpus: &Goldens) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = corpus.join("prequant/mxfp4-gpt-oss/hf");
    let model = model.to_str().unwrap();
    let convert = ["hf2gguf", model, "--no-tokenizer", "--model-name", "golden"];
    let f32 = [&convert[..], &["-o", "f32.gguf", "--type", "f32"]].concat();
    assert_eq!(run("gguf-convert", dir, &f32), (0, String::new()));
    let file_types = ["q4_k_m", "q6_k", "iq4_nl", "mxfp4_moe"];
    for file_type in file_types {
        let one = [&convert[..], &["-o", "one.gguf", "--type", file_type]].concat();
        assert_eq!(run("gguf-convert", dir, &one), (0, String::new()), "{one:?}");
        let two = ["f32.gguf", "two.gguf", "--type", file_type, "--allow-requantize"];
        assert_eq!(run("gguf-quantize", dir, &two), (0, String::new()), "{two:?}");
        let bytes = |name: &str| fs_err::read(dir.join(name)).unwrap();
        assert!(bytes("one.gguf") == bytes("two.gguf"), "{file_type}");
    }
    report_cases("experts in blocks, one pass", file_types.len());
}

#[test]
fn an_unknown_type_is_bad_usage() {
    let dir = tempfile::tempdir().unwrap();
    let model = fixture("tiny-llama");
    let model = model.to_str().unwrap();
    let (code, message) =
        run("gguf-convert", dir.path(), &["hf2gguf", model, "-o", "o.gguf", "--type", "q9_9"]);
    assert_eq!(
        (code, message.as_str()),
        (2, "error: unknown type `q9_9`\n\nhint: `--help` lists the types\n")
    );
    assert!(fs_err::read_dir(dir.path()).unwrap().next().is_none());
}
