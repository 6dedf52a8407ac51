//! Logit files: written ones compared with llama-perplexity's, figures from a file, hostile files.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use serde_json::Value;

use super::gguf_verify;
use crate::support::fixture;
use crate::support::tiers::deep_test;
use crate::testkit::tiny::Tiny;

const VOCAB: usize = 1024;
const ROW_BYTES: usize = 8 + 2 * VOCAB;

fn corpus() -> String {
    fixture("tiny-llama/corpus.txt").to_str().unwrap().to_owned()
}

/// Directory with `base.gguf` and `q4_0.gguf`.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new();
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4_0.gguf");
    dir
}

fn json(args: &[&str], dir: &Path) -> (i32, Value) {
    let ended = gguf_verify(&[args, &["--json", "--no-sync"]].concat(), dir);
    (ended.code(), ended.model())
}

fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {report}"))
}

#[test]
fn figures_from_llama_perplexitys_file_are_llama_perplexitys() {
    let dir = directory();
    let file = fixture("logits/tiny-llama.logits");
    let (_, report) = json(&["q4_0.gguf", "--baseline", file.to_str().unwrap()], dir.path());
    // Its last line has chunk, perplexity, ln(PPL ratio), divergence, rms Δp, same top choice; each with its error.
    let text = fs_err::read_to_string(fixture("logits/q4_0.txt")).unwrap();
    let line = text.lines().last().unwrap();
    let peer: Vec<f64> = line.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
    let [chunks, ppl, ppl_error, ratio, ratio_error, kld, kld_error, rms, rms_error, same, same_error] =
        peer[..]
    else {
        panic!("{line}");
    };
    assert_eq!(chunks, 3.0);
    assert_eq!(report["perplexity"]["tokens"].as_u64(), Some(3 * 15));
    for (name, expected, found, digits) in [
        ("perplexity", ppl, number(&report, "/perplexity/value"), 4),
        ("its error", ppl_error, number(&report, "/perplexity/stderr"), 4),
        ("ln ratio", ratio, number(&report, "/delta_ln_ppl/value"), 5),
        ("its error", ratio_error, number(&report, "/delta_ln_ppl/stderr"), 5),
        ("divergence", kld, number(&report, "/kld/mean"), 5),
        ("its error", kld_error, number(&report, "/kld/stderr"), 5),
        ("rms Δp", rms, 100.0 * number(&report, "/rms_dp"), 3),
        ("its error", rms_error, 100.0 * number(&report, "/rms_dp_stderr"), 3),
        ("same choice", same, 100.0 * number(&report, "/top1_agreement"), 3),
        ("its error", same_error, 100.0 * number(&report, "/top1_stderr"), 3),
    ] {
        let step = 10f64.powi(-digits);
        assert!((expected - found).abs() < 1.5 * step, "{name}: {found}, the peer {expected}");
    }
}

#[test]
fn what_is_written_is_llama_perplexitys_file() {
    let dir = directory();
    let args =
        ["base.gguf", "--prompts", &corpus(), "--ctx", "32", "--chunks", "3", "--save-baseline", "own"];
    let (code, out, err) = gguf_verify(&[&args[..], &["--no-sync"]].concat(), dir.path()).parts();
    assert_eq!(code & !4, 0, "{out}{err}");
    assert!(err.contains("note: own will have 95.0 KiB: 45 predictions over 1024 tokens"), "{err}");
    let own = fs_err::read(dir.path().join("own")).unwrap();
    let peer = fs_err::read(fixture("logits/tiny-llama.logits")).unwrap();
    // Behind the peer's rows stands what the model is known by.
    let (own, mark) = own.split_at(peer.len());
    assert_eq!(mark[..8], *b"_model__");
    let head = 20 + 4 * 3 * 32;
    assert_eq!(own[..head], peer[..head], "header and tokens");
    let mut n_equal = 0;
    for (own, peer) in own[head..].chunks(ROW_BYTES).zip(peer[head..].chunks(ROW_BYTES)) {
        for (own, peer) in own[8..].as_chunks::<2>().0.iter().zip(peer[8..].as_chunks::<2>().0) {
            let (own, peer) = (u16::from_le_bytes(*own), u16::from_le_bytes(*peer));
            assert!(own.abs_diff(peer) <= 1, "{own} {peer}");
            n_equal += usize::from(own == peer);
        }
    }
    // Sums of floats in another order change a code at a rounding edge occasionally.
    assert!(n_equal * 100 > 97 * 45 * VOCAB, "{n_equal}");
}

deep_test!(a_baseline_that_was_kept_says_what_it_said);

fn a_baseline_that_was_kept_says_what_it_said() {
    let dir = directory();
    let corpus = corpus();
    let cut = ["--prompts", corpus.as_str(), "--ctx", "64", "--chunks", "5"];
    let run = [&["q4_0.gguf", "--baseline", "base.gguf", "--save-baseline", "kept"], &cut[..]].concat();
    let (_, direct) = json(&run, dir.path());
    let (_, kept) = json(&["q4_0.gguf", "--baseline", "kept"], dir.path());
    // With a baseline that runs, the model's own logits are summed in other tiles.
    let (a, b) = (number(&direct, "/perplexity/value"), number(&kept, "/perplexity/value"));
    assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    assert_eq!(direct["perplexity"]["tokens"], kept["perplexity"]["tokens"]);
    for name in
        ["/kld/mean", "/kld/p99", "/dp/p90", "/ppl_ratio/value", "/baseline_ppl", "/ln_ppl_correlation"]
    {
        let (a, b) = (number(&direct, name), number(&kept, name));
        assert!((a - b).abs() < 2e-4 * a.abs().max(1.0), "{name}: {a} {b}");
    }
    assert!((number(&direct, "/top1_agreement") - number(&kept, "/top1_agreement")).abs() < 0.01);
    // The same model that wrote it, without a baseline.
    json(&[&["base.gguf", "--save-baseline", "again"], &cut[..]].concat(), dir.path());
    let read = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert_eq!(read("kept"), read("again"));
    // Only the first chunks.
    let (_, few) = json(&["q4_0.gguf", "--baseline", "kept", "--chunks", "2"], dir.path());
    assert_eq!(few["perplexity"]["tokens"].as_u64(), Some(2 * 31));
}

#[test]
fn a_logit_file_of_another_model_is_no_baseline() {
    let dir = directory();
    let names: Vec<String> = Tiny::new().tensors.tensors().iter().map(|meta| meta.name.clone()).collect();
    let edited = |name: &str, is_edited: &dyn Fn(&str) -> bool| {
        let mut model = Tiny::new();
        names.iter().filter(|name| is_edited(name)).for_each(|name| model.edit(name, <[f32]>::reverse));
        model.write(dir.path(), name);
    };
    edited("fine.gguf", &|name| name.ends_with("attn_norm.weight"));
    edited("other.gguf", &|name| !name.contains("norm"));
    Tiny::new().with_layers(2).write(dir.path(), "short.gguf");
    Tiny::new().quantized(GgmlType::Q2K).write(dir.path(), "q2_k.gguf");
    let corpus = corpus();
    let cut = ["--prompts", &corpus, "--ctx", "32", "--chunks", "1"];
    gguf_verify(&[&["base.gguf", "--save-baseline", "kept"], &cut[..]].concat(), dir.path());
    for (file, reason) in [
        ("q4_0.gguf", None),
        ("q2_k.gguf", None),
        ("fine.gguf", Some("the norms of this file are other ones")),
        ("other.gguf", Some("have nothing to do with it")),
        ("short.gguf", Some("llama, 4 layers, width 256, this file llama, 2 layers, width 256")),
    ] {
        let (code, report) = json(&[file, "--baseline", "kept"], dir.path());
        let errors = report["findings"].as_array().unwrap().iter().filter(|f| f["check"] == "baseline");
        let errors: Vec<&str> = errors.filter_map(|f| f["message"].as_str()).collect();
        match reason {
            None => assert_eq!(errors, [""; 0], "{file}"),
            Some(reason) => {
                assert!(code == 3 && errors[0].contains(reason), "{file}: {code} {errors:?}");
            }
        }
    }
    // Something else behind the rows is no logit file.
    let mut bytes = fs_err::read(dir.path().join("kept")).unwrap();
    bytes.pop();
    fs_err::write(dir.path().join("cut"), bytes).unwrap();
    gguf_verify(&["base.gguf", "--baseline", "cut"], dir.path()).says(1, "its header declares");
}

#[test]
fn what_a_logit_file_leaves_open_is_said() {
    let dir = directory();
    let corpus = corpus();
    let file = fixture("logits/tiny-llama.logits");
    let args = ["base.gguf", "--baseline", file.to_str().unwrap()];
    let messages = |report: &Value, severity: &str| -> String {
        let findings = report["findings"].as_array().unwrap().iter().filter(|f| f["severity"] == severity);
        findings.map(|f| format!("{}: {}\n", f["check"], f["message"])).collect::<Vec<_>>().concat()
    };
    let open = |report: &Value| -> Vec<String> {
        let open = report["not_judged"].as_array().unwrap().iter();
        open.map(|open| format!("{}: {}", open["aspect"], open["reason"])).collect()
    };
    let is_open = |report: &Value, line: &str| open(report).iter().any(|open| open == line);
    let (code, report) = json(&args, dir.path());
    assert_eq!(code, 4);
    for aspect in ["metadata", "weights"] {
        assert!(is_open(&report, &format!("\"{aspect}\": \"the baseline is a logit file\"")), "{report}");
    }
    let tokenizer = "\"tokenizer\": \"the text comes from the logit file, as token ids\"";
    assert!(is_open(&report, tokenizer), "{report}");
    // The same text shows that the tokenizers agree; another text shows that something differs.
    let (code, report) = json(&[&args[..], &["--prompts", &corpus]].concat(), dir.path());
    assert!(code == 4 && !is_open(&report, tokenizer), "{report}");
    assert_eq!(messages(&report, "error"), "");
    fs_err::write(dir.path().join("other.txt"), &fs_err::read(&corpus).unwrap()[7..4000]).unwrap();
    let (code, report) = json(&[&args[..], &["--prompts", "other.txt"]].concat(), dir.path());
    assert!(
        code == 3 && messages(&report, "error").contains("another text, or another tokenizer"),
        "{report}"
    );
}

#[test]
fn damaged_files_are_refused_by_offset() {
    let dir = directory();
    let whole = fs_err::read(fixture("logits/tiny-llama.logits")).unwrap();
    let rows = 20 + 4 * 3 * 32;
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    for (name, bytes, expected) in [
        ("header", whole[..17].to_vec(), "17 bytes, its header declares 20"),
        ("tokens", whole[..200].to_vec(), "200 bytes, its header declares"),
        ("rows", whole[..whole.len() - 1].to_vec(), "its header declares"),
        ("more", [&whole[..], b"x"].concat(), "its header declares"),
        ("n_ctx", with(8, &0u32.to_le_bytes()), "offset 8: n_ctx is 0, expected at least 4"),
        ("long", with(8, &i32::MAX.to_le_bytes()), "its header declares"),
        ("negative", with(12, &(-1i32).to_le_bytes()), "offset 12: n_vocab is -1, expected at least 1"),
        ("n_vocab", with(12, &i32::MAX.to_le_bytes()), "its header declares"),
        ("n_chunk", with(16, &0u32.to_le_bytes()), "offset 16: n_chunk is 0, expected at least 1"),
        ("chunks", with(16, &i32::MAX.to_le_bytes()), "its header declares"),
        ("token", with(28, &1024u32.to_le_bytes()), "offset 28: token 1024, the vocabulary has 1024"),
        ("minus", with(28, &(-1i32).to_le_bytes()), "offset 28: token -1, the vocabulary has 1024"),
        ("scale", with(rows, &f32::NAN.to_le_bytes()), "scale NaN"),
        ("back", with(rows + ROW_BYTES, &(-1f32).to_le_bytes()), "scale -1"),
        ("least", with(rows + 4, &f32::INFINITY.to_le_bytes()), "least log-probability inf"),
        ("likely", with(rows + 4, &9f32.to_le_bytes()), "least log-probability 9"),
    ] {
        fs_err::write(dir.path().join(name), bytes).unwrap();
        gguf_verify(&["base.gguf", "--baseline", name], dir.path()).says(1, expected);
    }
    // File of another model, so nothing can be compared.
    let narrow = {
        let mut bytes = whole[..20 + 4 * 3 * 32].to_vec();
        bytes[12..16].copy_from_slice(&1023u32.to_le_bytes());
        let row = [&0f32.to_le_bytes()[..], &(-7f32).to_le_bytes(), &[0; 2048]].concat();
        for _ in 0..45 {
            bytes.extend(&row);
        }
        bytes
    };
    fs_err::write(dir.path().join("narrow"), narrow).unwrap();
    gguf_verify(&["base.gguf", "--baseline", "narrow"], dir.path())
        .prints(3, "1024 logits, the baseline has 1023");
}

#[test]
fn options_that_do_not_fit_a_logit_file_are_refused() {
    let dir = directory();
    let file = fixture("logits/tiny-llama.logits");
    let read = ["base.gguf", "--baseline", file.to_str().unwrap()];
    let corpus = corpus();
    let write = ["base.gguf", "--prompts", corpus.as_str(), "--ctx", "64", "--save-baseline", "own"];
    fs_err::write(dir.path().join("short.jsonl"), "{\"tokens\": [0, 342, 278]}\n").unwrap();
    for (code, args) in [
        (2, [&read[..], &["--ctx", "64"]].concat()),
        (2, [&read[..], &["--stride", "8"]].concat()),
        (2, [&read[..], &["--score", "all"]].concat()),
        (2, [&read[..], &["--save-baseline", "own"]].concat()),
        (2, [&write[..], &["q4_0.gguf"]].concat()),
        (2, [&write[..], &["--structure-only"]].concat()),
        (2, [&write[..], &["--score", "all"]].concat()),
        (2, [&write[..], &["--stride", "8"]].concat()),
        // An incomplete chunk cannot be stored in the file.
        (1, ["base.gguf", "--prompts", "short.jsonl", "--save-baseline", "own"].to_vec()),
    ] {
        gguf_verify(&args, dir.path()).exits_with(code);
        assert!(!dir.path().join("own").exists());
    }
}
