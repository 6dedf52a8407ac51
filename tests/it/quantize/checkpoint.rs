//! Calibrated quantization directly from a checkpoint, and folders of checkpoints as the input of `gguf-quantize`.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;

use super::write_two_layers;
use crate::support::goldens::{Goldens, conformance_tests, tiered_conformance_tests};
use crate::support::programs::run_unsynced as run;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture, report_cases};
use crate::testkit::memory::tensor_bytes;
use crate::testkit::noise::Noise;

fn bytes(dir: &Path, name: &str) -> Vec<u8> {
    fs_err::read(dir.join(name)).unwrap()
}

fn write_text(dir: &Path) {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(text.len() / 4)]).unwrap();
}

deep_test!(one_pass_gives_the_bytes_of_the_f32_file);

fn one_pass_gives_the_bytes_of_the_f32_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_text(dir);
    write_two_layers(Tier::Deep, &dir.join("hf"));
    let model = "hf";
    run("gguf-convert", dir, &["hf2gguf", model, "-o", "f32.gguf", "--type", "f32"]).ok();
    let text = ["--calibrate", "text.txt", "--calibrate-tokens", "2048"];
    let flags: [&[&str]; 2] = [
        // The model writes half of the text; not every day.
        &["--type", "q4_k_m"],
        &["--type", "q4_0", "--no-self-text", "--tensor-type", "attn_k=q6_k", "--threads", "1"],
    ];
    for flags in &flags {
        let flags = [&text[..], *flags].concat();
        run("gguf-quantize", dir, &[&["f32.gguf", "two.gguf"], &flags[..]].concat()).ok();
        run("gguf-convert", dir, &[&["hf2gguf", model, "-o", "one.gguf"], &flags[..]].concat()).ok();
        assert!(bytes(dir, "one.gguf") == bytes(dir, "two.gguf"), "{flags:?}");
        run("gguf-quantize", dir, &[&[model, "folder.gguf"], &flags[..]].concat()).ok();
        assert!(bytes(dir, "folder.gguf") == bytes(dir, "two.gguf"), "{flags:?}");
        let file = GgufFile::open(&dir.join("one.gguf")).unwrap();
        assert!(file.metadata().contains("gguf_foundry.quantize.kld"));
    }
    // Also in parts.
    let parts = [&["hf2gguf", model, "-o", "s.gguf", "--split-max-tensors", "12"], &text[..]].concat();
    run("gguf-convert", dir, &[&parts[..], flags[1]].concat()).ok();
    let (whole, parts) = (
        GgufFile::open(&dir.join("one.gguf")).unwrap(),
        GgufFile::open(&dir.join("s-00001-of-00002.gguf")).unwrap(),
    );
    assert_eq!(whole.tensors(), parts.tensors());
    for at in 0..whole.tensors().len() {
        assert_eq!(tensor_bytes(&whole, at), tensor_bytes(&parts, at));
    }
}

deep_test!(types_for_a_size_are_those_of_the_f32_file);

fn types_for_a_size_are_those_of_the_f32_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_two_layers(Tier::Everyday, &dir.join("hf"));
    let whole = fixture("tiny-llama");
    let model = whole.to_str().unwrap();
    run("gguf-convert", dir, &["hf2gguf", model, "-o", "f32.gguf", "--type", "f32"]).ok();
    // The smaller model has fewer small tensors to fill the size with.
    let (target, least, most) = ("2600K", 2580 << 10, 2600 << 10);
    let size = ["--target-size", target, "--types", "q3_k,q4_k,q6_k"];
    let write = |name| [&size[..], &["--write-types", name]].concat();
    run("gguf-quantize", dir, &[&["f32.gguf", "two.gguf"], &write("two.txt")[..]].concat()).ok();
    run("gguf-convert", dir, &[&["hf2gguf", model, "-o", "one.gguf"], &write("one.txt")[..]].concat()).ok();
    run("gguf-quantize", dir, &[&[model, "folder.gguf"], &size[..]].concat()).ok();
    let two = bytes(dir, "two.gguf");
    assert!(two.len() <= most && two.len() > least, "{}", two.len());
    assert!(bytes(dir, "one.gguf") == two && bytes(dir, "folder.gguf") == two);
    assert!(bytes(dir, "one.txt") == bytes(dir, "two.txt"));
    // Only the types.
    run(
        "gguf-convert",
        dir,
        &[&["hf2gguf", model, "-o", "no.gguf", "--dry-run"], &write("dry.txt")[..]].concat(),
    )
    .ok();
    assert!(bytes(dir, "dry.txt") == bytes(dir, "two.txt") && !dir.join("no.gguf").exists());
    // A default file name contains the size.
    fs_err::create_dir(dir.join("out")).unwrap();
    run("gguf-convert", dir, &["hf2gguf", model, "-o", "out", "--target-bpw", "5.5"]).ok();
    let name = &files::names(dir.join("out"))[0];
    assert!(name.to_lowercase().ends_with("5.5bpw.gguf"), "{name}");
}

two_tiers!(a_folder_is_converted_as_the_converter_does);
fn a_folder_is_converted_as_the_converter_does(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs_err::create_dir(dir.join("model")).unwrap();
    files::copy(fixture("tiny-llama"), &dir.join("model"));
    let types = [
        ("q4_k_m", &["--tensor-type", "attn_k=f16"][..]),
        ("Q6_K", &["--pure"]),
        ("q8_0", &[]),
        ("F16", &[]),
    ];
    for (file_type, flags) in tier.some(2, types) {
        run(
            "gguf-convert",
            dir,
            &[&["hf2gguf", "model", "-o", "a.gguf", "--type", file_type], flags].concat(),
        )
        .ok();
        run(
            "gguf-quantize",
            dir,
            &[&["model", "b.gguf", "--type", file_type, "--threads", "1"], flags].concat(),
        )
        .ok();
        assert!(bytes(dir, "a.gguf") == bytes(dir, "b.gguf"), "{file_type}");
        // Arguments in the order of llama-quantize.
        run("gguf-quantize", dir, &[&["model", "c.gguf", file_type, "2"], flags].concat()).ok();
        assert!(bytes(dir, "a.gguf") == bytes(dir, "c.gguf"), "{file_type}");
    }
    // The default output path is that of the converter.
    let before = fs_err::read_dir(dir.join("model")).unwrap().count();
    run("gguf-quantize", dir, &["model", "q4_0", "--dry-run"]).ok();
    assert_eq!(fs_err::read_dir(dir.join("model")).unwrap().count(), before);
    run("gguf-quantize", dir, &["model", "q4_0"]).ok();
    let names = files::names(dir.join("model"));
    let is_named = |name: &&String| name.ends_with("Q4_0.gguf") && !name.starts_with("ggml-model");
    assert!(names.len() == before + 1 && names.iter().any(|name| is_named(&name)), "{names:?}");
}

#[test]
fn what_does_not_go_with_a_checkpoint_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_text(dir);
    fs_err::create_dir(dir.join("empty")).unwrap();
    let model = fixture("tiny-llama");
    let model = model.to_str().unwrap();
    let text = ["--calibrate", "text.txt", "--calibrate-tokens", "2048"];
    for (args, code, words) in [
        (&["--type", "q4_0", "--keep-split"][..], 2, "--keep-split goes with GGUF files"),
        (&["--type", "q4_0", "--allow-requantize", "--override-kv", "x"], 2, "x"),
        (&["--type", "q9_9"], 2, "unknown type"),
    ] {
        run("gguf-quantize", dir, &[args, &[model, "out.gguf"]].concat()).says(code, words);
    }
    let (code, _, err) = run("gguf-quantize", dir, &["empty", "out.gguf", "--type", "q4_0"]).parts();
    let (expected, _, converter) = run("gguf-convert", dir, &["hf2gguf", "empty"]).parts();
    assert_eq!((code, err), (expected, converter));
    for (args, code, words) in [
        (&["--type", "f16"][..], 2, "quantization options go with a quantized type, not with `--type f16`"),
        (&["--type", "auto"], 2, "quantization options go with a quantized type"),
        (&["--type", "native"], 2, "quantization options go with a quantized type"),
        (&["--type", "q4_0", "--vocab-only"], 2, "leave `--vocab-only` out"),
        (&["--type", "q4_0", "--mtp"], 2, "draft heads alone"),
        (&["--type", "q4_0", "--imatrix", "x"], 2, "cannot be used with"),
        (&["--type", "q4_0", "--prune-layers", "1"], 2, "cannot be used with"),
        (&["--type", "q4_0", "--no-tokenizer"], 1, "tokenizer"),
    ] {
        let args = [&["hf2gguf", model, "-o", "out.gguf"], args, &text[..]].concat();
        run("gguf-convert", dir, &args).says(code, words);
    }
    run(
        "gguf-convert",
        dir,
        &["hf2gguf", model, "--type", "q4_0", "-o", "text.txt", "--calibrate", "text.txt"],
    )
    .says(2, "same file as input");
    for (args, words) in [
        (&["--vocab-only"][..], "leave `--vocab-only` out"),
        (&["--split-max-tensors", "20"], "cannot be used with"),
        (&["--type", "q4_0"], "cannot be used with"),
    ] {
        let args = [&["hf2gguf", model, "-o", "out.gguf", "--target-bpw", "5"], args].concat();
        run("gguf-convert", dir, &args).says(2, words);
    }
    assert!(!dir.join("out.gguf").exists());
}

/// Sequences of tokens, for checkpoints without a tokenizer.
fn write_tokens(dir: &Path) {
    let mut noise = Noise::new(1);
    let mut token = || 3 + noise.below(180);
    let line = |_| serde_json::json!({ "tokens": (0..96).map(|_| token()).collect::<Vec<_>>() }).to_string();
    fs_err::write(dir.join("t.jsonl"), (0..64).map(line).collect::<Vec<_>>().join("\n")).unwrap();
}

const TOKENS: [&str; 5] = ["--calibrate", "t.jsonl", "--no-self-text", "--calibrate-tokens", "4096"];

conformance_tests!(codes_that_are_kept_stay_as_they_are);

/// The integers of a quantized checkpoint are kept if the type asks for it, calibrated or not.
fn codes_that_are_kept_stay_as_they_are(corpus: &Goldens) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_tokens(dir);
    let model = corpus.join("arch/llama_gptq4/hf");
    let convert = ["hf2gguf", model.to_str().unwrap(), "--no-tokenizer", "--type", "q5_0"];
    run("gguf-convert", dir, &[&convert[..], &["-o", "plain.gguf"]].concat()).ok();
    let file = GgufFile::open(&dir.join("plain.gguf")).unwrap();
    let solve = |name: &str, flags: &[&str]| {
        run("gguf-convert", dir, &[&convert[..], &["-o", name], &TOKENS, flags].concat()).ok();
        let own = GgufFile::open(&dir.join(name)).unwrap();
        assert_eq!(own.tensors().len(), file.tensors().len());
        let same = |at: &usize| tensor_bytes(&own, *at) == tensor_bytes(&file, *at);
        let is_weight = |at: &usize| {
            let tensor = &file.tensors()[*at];
            tensor.ty == GgmlType::Q5_0 && tensor.name.starts_with("blk.")
        };
        let (same, other): (Vec<_>, Vec<_>) = (0..file.tensors().len()).filter(is_weight).partition(same);
        (same.len(), other.len())
    };
    assert_eq!(solve("kept.gguf", &[]), (7, 0));
    assert_eq!(solve("new.gguf", &["--requantize"]), (0, 7));
    report_cases("codes kept", 1);
}

/// Tensors, other than embeddings, that are not multiplied with activations.
const NOT_MET: &[&str] = &[];

tiered_conformance_tests!(every_kind_of_model_is_calibrated);

/// Every matrix of a type with a solver is solved: none has the blocks of the importance matrix. Every day of a dense
/// model, of experts and of states.
fn every_kind_of_model_is_calibrated(corpus: &Goldens, tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_tokens(dir);
    let all = [
        "llama",
        "llama_tied_f16",
        "gemma2",
        "chatglm3",
        "qwen3_moe",
        "gpt_oss",
        "deepseek_v2",
        "kimi_linear",
        "mamba2",
        "rwkv6",
        "lfm2",
        "minimax_text_01",
        "t5",
    ];
    let names = tier.of(vec!["qwen3_moe"], all.to_vec());
    let mut unsolved = Vec::new();
    for &name in &names {
        let model = corpus.join(format!("arch/{name}/hf"));
        let file = |solver: &str| {
            let path = format!("{name}-{solver}.gguf");
            let args =
                ["hf2gguf", model.to_str().unwrap(), "--no-tokenizer", "--requantize", "--type", "q4_0"];
            let own = ["-o", &path, "--solver", solver, "--json"];
            let report = run("gguf-convert", dir, &[&args[..], &TOKENS, &own].concat()).ok().json();
            (GgufFile::open(&dir.join(path)).unwrap(), report["calibration"].clone())
        };
        let ((plain, _), (solved, calibration)) = (file("reference"), file("sequential"));
        assert_eq!(calibration["used"], true, "{name}: {calibration}");
        assert_eq!(calibration["not_solved"], serde_json::json!([]), "{name}");
        let is_tied = !plain.tensors().iter().any(|tensor| tensor.name == "output.weight");
        for (at, tensor) in plain.tensors().iter().enumerate() {
            let is_met = is_tied || tensor.name != "token_embd.weight";
            if tensor.ty != GgmlType::Q4_0 || !is_met {
                continue;
            }
            let (one, other) = (tensor_bytes(&plain, at), tensor_bytes(&solved, at));
            // Each matrix of a stack.
            let dims = tensor.shape.dims();
            let n = dims[..dims.len() - 2].iter().product::<u64>() as usize;
            let size = one.len() / n;
            let is_same = |at: &usize| one[at * size..][..size] == other[at * size..][..size];
            unsolved.extend((0..n).filter(is_same).map(|at| format!("{name}: {} {at}", tensor.name)));
        }
    }
    let is_listed = |found: &&String| !NOT_MET.iter().any(|known| found.contains(known));
    let unsolved: Vec<_> = unsolved.iter().filter(is_listed).collect();
    assert!(unsolved.is_empty(), "{unsolved:#?}");
    for name in ["bert", "modernbert"] {
        let model = corpus.join(format!("arch/{name}/hf"));
        let args = ["hf2gguf", model.to_str().unwrap(), "--no-tokenizer", "--type", "q4_0", "-o", "e.gguf"];
        run("gguf-convert", dir, &[&args[..], &TOKENS].concat()).says(1, "error: the model makes embeddings");
    }
    report_cases("models calibrated", names.len());
}
