//! `gguf-verify imatrix`: collecting, saving, resuming, merging and showing.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_foundry::core::TensorSource;
use gguf_foundry::core::progress::{CancelFlag, Silent};
use gguf_foundry::engine::EngineOptions;
use gguf_foundry::gguf::{
    ColumnSums, GgufFile, ImatrixSums, StoredImatrix, UnfinishedRun, Value as GgufValue, WriteOptions,
    merge_imatrices,
};
use gguf_foundry::verify::{
    Collected, ImportanceOptions, ImportanceRun, PromptForm, Scoring, VerifyError, read_prompts,
};
use serde_json::Value;

use super::{gguf_verify, llama, model};
use crate::support::fixture;
use crate::support::tiers::deep_test;
use crate::testkit::memory::f32_values;
use crate::testkit::tiny::{self, Tiny};

fn prompts() -> String {
    fixture("tiny-llama/corpus.txt").to_str().unwrap().to_owned()
}

/// Runs `gguf-verify imatrix` over the bundled text; returns standard error.
fn collect(dir: &Path, model: &str, output: &str, more: &[&str]) -> String {
    let prompts = prompts();
    let args = ["imatrix", model, "--prompts", &prompts, "--ctx", "256", "-o", output, "--no-sync"];
    gguf_verify(&[&args[..], more].concat(), dir).ok().err
}

/// Importance sums of a file.
fn sums(dir: &Path, name: &str) -> ImatrixSums {
    let stored = StoredImatrix::open(&dir.join(name)).unwrap();
    merge_imatrices(&[stored], 256).unwrap()
}

/// Compares tensors and counts exactly, and sums within a relative error.
fn assert_near(a: &ImatrixSums, b: &ImatrixSums, tolerance: f64) {
    assert!(a.tensors.keys().eq(b.tensors.keys()));
    let mut worst = 0f64;
    for (name, own) in &a.tensors {
        let other = &b.tensors[name];
        assert_eq!((&own.counts, own.n_cols), (&other.counts, other.n_cols), "{name}");
        for (x, y) in own.sums.iter().zip(&other.sums) {
            worst = worst.max((x - y).abs() / y.abs().max(1e-30));
        }
    }
    println!("largest relative difference {worst:.2e}");
    assert!(worst <= tolerance, "{worst}");
}

#[test]
fn importance_matrices_are_mean_squares_of_inputs() {
    let dir = tiny::directory();
    collect(dir.path(), "base.gguf", "i.gguf", &["--chunks", "3"]);
    let file = GgufFile::open(&dir.path().join("i.gguf")).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let raw = file.raw_tensor(file.tensor_index(name).unwrap());
        f32_values(raw)
    };
    assert_eq!(floats("blk.0.attn_q.weight.counts"), [768.0]);
    assert_eq!(floats("blk.0.attn_q.weight.in_sum2"), floats("blk.0.attn_v.weight.in_sum2"));
    // An rms-normed input has a mean square of the weight's square: never zero, and different for each column.
    let sums = floats("blk.3.ffn_down.weight.in_sum2");
    assert!(sums.len() == 768 && sums.iter().all(|x| x.is_finite() && *x > 0.0));
    assert_eq!(file.metadata().get("imatrix.chunk_count").and_then(GgufValue::as_u64), Some(3));

    collect(dir.path(), "base.gguf", "i.dat", &["--chunks", "3", "--legacy"]);
    let legacy = fs_err::read(dir.path().join("i.dat")).unwrap();
    assert_eq!(legacy[..4], 28i32.to_le_bytes());
}

deep_test!(the_parts_of_a_text_add_up_to_the_whole);

fn the_parts_of_a_text_add_up_to_the_whole() {
    let dir = tiny::directory();
    let at = |name: &str| sums(dir.path(), name);
    collect(dir.path(), "base.gguf", "whole.gguf", &["--chunks", "5"]);
    collect(dir.path(), "base.gguf", "a.gguf", &["--chunks", "2"]);
    collect(dir.path(), "base.gguf", "b.gguf", &["--from-chunk", "2", "--chunks", "3"]);
    let merge = |output: &str, more: &[&str]| {
        let args = [&["imatrix", "merge", "a.gguf", "b.gguf", "-o", output, "--no-sync"], more].concat();
        gguf_verify(&args, dir.path()).ok().out
    };
    let out = merge("merged.gguf", &[]);
    assert!(out.starts_with("merged.gguf: 2 files, 28 tensors, 5 chunks of 256, "), "{out}");
    assert_near(&at("merged.gguf"), &at("whole.gguf"), 1e-6);
    assert_eq!(at("merged.gguf").datasets.len(), 2);
    // One run and two runs give the same, except for the rounding of the file in between.
    let more = ["--in-file", "a.gguf", "--from-chunk", "2", "--chunks", "3"];
    collect(dir.path(), "base.gguf", "continued.gguf", &more);
    assert_near(&at("continued.gguf"), &at("whole.gguf"), 1e-6);
    let continued = at("continued.gguf");
    assert_eq!((continued.n_chunks, continued.datasets.len()), (5, 2));
    // Through the older format, which holds means.
    merge("merged.dat", &["--legacy"]);
    assert_near(&at("merged.dat"), &at("whole.gguf"), 1e-6);
    assert_eq!(StoredImatrix::open(&dir.path().join("merged.dat")).unwrap().n_chunks(), 5);
}

/// Writes a small importance matrix.
fn write_sums(dir: &Path, name: &str, tensor: &str, n_cols: usize, counts: &[i64], chunk_size: usize) {
    let columns = ColumnSums { n_cols, sums: vec![1.0; n_cols * counts.len()], counts: counts.to_vec() };
    let tensors = [(tensor.to_owned(), columns)].into();
    let sums = ImatrixSums { tensors, datasets: vec![name.as_bytes().to_vec()], n_chunks: 1, chunk_size };
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    if Path::new(name).extension().is_some_and(|suffix| suffix == "dat") {
        sums.write_legacy(&dir.join(name), &options).unwrap();
    } else {
        sums.write(&dir.join(name), &options, &Silent).unwrap();
    }
}

#[test]
fn what_contradicts_is_not_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let up = "blk.0.ffn_up_exps.weight";
    write_sums(dir.path(), "a.gguf", up, 4, &[9, 9, 9], 8);
    write_sums(dir.path(), "wide.gguf", up, 5, &[9, 9, 9], 8);
    write_sums(dir.path(), "experts.gguf", up, 6, &[9, 9], 8);
    write_sums(dir.path(), "long.gguf", up, 4, &[9, 9, 9], 16);
    write_sums(dir.path(), "old.dat", up, 4, &[9, 9, 9], 8);
    let merge = |files: &[&str]| {
        gguf_verify(&[&["imatrix", "merge", "-o", "out.gguf", "--no-sync"], files].concat(), dir.path())
    };
    for (file, what) in [
        ("wide.gguf", "wide.gguf: tensor `blk.0.ffn_up_exps.weight`: 15 values, but 12 values in a.gguf"),
        ("experts.gguf", "experts.gguf: tensor `blk.0.ffn_up_exps.weight`: 2 counts, but 3 counts in a.gguf"),
    ] {
        merge(&["a.gguf", file]).says(1, &format!("error: {what}\n"));
        assert!(!dir.path().join("out.gguf").exists());
    }
    merge(&["a.gguf", "long.gguf"])
        .says(0, "warning: chunks of [8, 16] tokens: they are counted in 16")
        .prints(0, "1 chunk of 16");
    merge(&["a.gguf", "old.dat", "long.gguf"]).says(2, "give `--ctx N`");
    merge(&["a.gguf", "old.dat"]).says(0, "`old.dat` does not declare the length of its chunks: 8 tokens");
    let err = merge(&["a.gguf", "a.gguf"]).err;
    assert!(err.contains("`a.gguf` is added twice"), "{err}");
    gguf_verify(&["imatrix", "merge", "a.gguf", "-o", "a.gguf"], dir.path())
        .says(2, "output is the same file as input");
    merge(&[]).exits_with(2);
}

#[test]
fn a_matrix_of_another_model_is_not_added_to() {
    let dir = tiny::directory_of_a_layer();
    write_sums(dir.path(), "wide.gguf", "blk.0.attn_q.weight", 128, &[9], 256);
    write_sums(dir.path(), "other.gguf", "blk.9.attn_q.weight", 256, &[9], 256);
    let prompts = prompts();
    let run = |file: &str| {
        let args = ["imatrix", "base.gguf", "--prompts", &prompts, "--chunks", "1", "-o", "out.gguf"];
        gguf_verify(&[&args[..], &["--in-file", file]].concat(), dir.path())
    };
    let expected = "wide.gguf: tensor `blk.0.attn_q.weight`: 128 importance values, 256 expected";
    run("wide.gguf").says(1, expected);
    run("other.gguf").says(1, "importance matrix of another model");
}

fn options() -> ImportanceOptions {
    ImportanceOptions {
        engine: EngineOptions::default(),
        files: Vec::new(),
        scoring: Scoring { n_ctx: 256, n_chunks: Some(5), ..Scoring::default() },
        from_chunk: 0,
        parse_special: false,
        process_output: false,
        perplexity: true,
        every: vec![2],
    }
}

/// Runs until `n_chunks` are done and is then interrupted; leaves the files that the program would.
fn interrupted(tiny: &Tiny, path: &Path, n_chunks: usize) {
    let features = llama();
    let prompts = read_prompts(&fixture("tiny-llama/corpus.txt"), PromptForm::Detected).unwrap();
    let run = ImportanceRun::new(&model(tiny, &features), &prompts, options(), &Silent).unwrap();
    let datasets = vec![prompts_name()];
    let nothing = ImatrixSums { tensors: BTreeMap::new(), datasets, n_chunks: 0, chunk_size: 256 };
    let mut collected = Collected::from_sums(nothing.clone());
    let flag = CancelFlag::default();
    let error = run.run(&mut collected, &flag, &mut |collected: &Collected| {
        if collected.n_done >= n_chunks {
            flag.cancel();
        }
        Ok::<(), VerifyError>(())
    });
    assert!(error.is_err());
    assert_eq!(collected.n_done, n_chunks);
    let unfinished = run.unfinished(&nothing, &collected);
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    collected.sums.write_unfinished(path, &unfinished, &options, &Silent).unwrap();
}

fn prompts_name() -> Vec<u8> {
    prompts().into_bytes()
}

deep_test!(an_interrupted_run_goes_on_to_the_same_bytes);

fn an_interrupted_run_goes_on_to_the_same_bytes() {
    let dir = tiny::directory();
    let tiny = Tiny::new();
    let frequency = ["--chunks", "5", "--output-frequency", "2"];
    collect(dir.path(), "base.gguf", "whole.gguf", &frequency);
    interrupted(&tiny, &dir.path().join("part.gguf"), 2);
    // The file is a matrix of these chunks for programs that do not know the additional keys.
    let part = sums(dir.path(), "part.gguf");
    assert_eq!((part.n_chunks, part.tensors["blk.0.attn_q.weight"].counts[0]), (2, 512));
    let run = UnfinishedRun::find(&dir.path().join("part.gguf")).unwrap();
    assert_eq!((run.n_done, run.n_total, run.nll.len()), (2, 5, 2 * 127));
    let err = gguf_verify(&["imatrix", "show", "part.gguf"], dir.path()).err;
    assert!(err.contains("the run was not finished: 2 of 5 chunks"), "{err}");

    let resume = [&frequency[..], &["--resume"]].concat();
    let err = collect(dir.path(), "base.gguf", "part.gguf", &resume);
    assert!(err.contains("2 of 5 chunks done"), "{err}");
    let bytes = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert!(bytes("part.gguf") == bytes("whole.gguf"), "a resumed run differs");
    assert_eq!(UnfinishedRun::find(&dir.path().join("part.gguf")), None);
    // Without a file it starts from the beginning.
    let err = collect(dir.path(), "base.gguf", "new.gguf", &resume);
    assert!(err.contains("no file `new.gguf` yet") && bytes("new.gguf") == bytes("whole.gguf"), "{err}");
}

deep_test!(only_the_same_run_goes_on);

fn only_the_same_run_goes_on() {
    let dir = tiny::directory();
    let tiny = Tiny::new();
    let part = dir.path().join("part.gguf");
    interrupted(&tiny, &part, 4);
    let before = fs_err::read(&part).unwrap();
    let prompts = prompts();
    let resume = |model: &str, more: &[&str]| {
        let args = ["imatrix", model, "--prompts", &prompts, "-o", "part.gguf", "--resume", "--no-sync"];
        gguf_verify(&[&args[..], more].concat(), dir.path())
    };
    let mut other = tiny.clone();
    other.edit("blk.2.attn_q.weight", |values| values[7] += 0.5);
    other.write(dir.path(), "other.gguf");
    for (model, more) in [
        ("other.gguf", &["--ctx", "256"][..]),
        ("base.gguf", &["--ctx", "128"]),
        ("base.gguf", &["--ctx", "256", "--from-chunk", "1"]),
        ("base.gguf", &["--ctx", "256", "--no-ppl"]),
    ] {
        resume(model, more).says(1, "part.gguf: the file of another run: its 4 chunks");
        assert_eq!(fs_err::read(&part).unwrap(), before);
    }
    resume("base.gguf", &["--ctx", "256", "--chunks", "3"])
        .says(1, "part.gguf: 4 chunks are done, this run has 3");
    // A run with more chunks counts as the same run.
    resume("base.gguf", &["--ctx", "256", "--chunks", "6"]).ok();
    assert_eq!(sums(dir.path(), "part.gguf").n_chunks, 6);
    // A finished one is left as it is; that of another run is not replaced.
    let finished = fs_err::read(&part).unwrap();
    resume("base.gguf", &["--ctx", "256", "--chunks", "6"])
        .says(0, "part.gguf: finished earlier, and left as it is");
    for more in [&["--ctx", "256", "--chunks", "7"][..], &["--ctx", "256", "--chunks", "6", "--no-ppl"]] {
        resume("base.gguf", more).says(1, "the command without `--resume` measures it again");
    }
    assert_eq!(fs_err::read(&part).unwrap(), finished);
    gguf_verify(&["imatrix", "merge", "part.gguf", "part.gguf", "-o", "sum.gguf"], dir.path()).ok();
    fs_err::rename(dir.path().join("sum.gguf"), &part).unwrap();
    resume("base.gguf", &["--ctx", "256", "--chunks", "6"]).says(1, "there is nothing to resume");
    resume("base.gguf", &["--ctx", "256", "--legacy"]).says(2, "--legacy");
}

#[test]
fn a_damaged_unfinished_file_is_refused() {
    let dir = tiny::directory();
    let part = dir.path().join("part.gguf");
    interrupted(&Tiny::new(), &part, 2);
    let (offset, len) = {
        let file = GgufFile::open(&part).unwrap();
        let tensor = file.tensor_index("blk.0.attn_q.weight.in_sum2_f64").unwrap();
        (file.place(tensor).offset as usize, file.tensors()[tensor].n_bytes().unwrap() as usize)
    };
    let mut bytes = fs_err::read(&part).unwrap();
    bytes[offset..offset + len].fill(0xff);
    fs_err::write(&part, &bytes).unwrap();
    let prompts = prompts();
    let args = ["imatrix", "base.gguf", "--prompts", &prompts, "--ctx", "256", "-o", "part.gguf", "--resume"];
    let expected =
        "part.gguf: tensor `blk.0.attn_q.weight`: the sums of the unfinished run are missing or damaged";
    gguf_verify(&args, dir.path()).says(1, expected);
}

/// Starts the program, interrupts it after its first save, and returns its exit code and standard error.
#[cfg(unix)]
fn run_and_interrupt(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    use std::process::{Command, Stdio};

    use crate::support::programs::{Outcome, command};

    let mut child = command("gguf-verify", dir).args(args).stderr(Stdio::piped()).spawn().unwrap();
    while !dir.join("part.gguf").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = Outcome::from(child.wait_with_output().unwrap());
    (ended.code, ended.err)
}

deep_test!(an_interrupt_leaves_what_is_done);

#[cfg(unix)]
fn an_interrupt_leaves_what_is_done() {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().with_layers(2).write(dir.path(), "base.gguf");
    let prompts = prompts();
    let args = ["imatrix", "base.gguf", "--prompts", &prompts, "--ctx", "256", "--no-sync", "--threads", "1"];
    let args = [&args[..], &["--chunks", "12", "--output-frequency", "1", "-o"]].concat();
    gguf_verify(&[&args[..], &["whole.gguf"]].concat(), dir.path()).ok();
    // The run may end before the signal arrives.
    let stopped = (0..5).find_map(|_| {
        let _ = fs_err::remove_file(dir.path().join("part.gguf"));
        let (code, err) = run_and_interrupt(dir.path(), &[&args[..], &["part.gguf"]].concat());
        (code != Some(0)).then_some((code, err))
    });
    let (code, err) = stopped.expect("interrupted");
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains(" of 12 chunks: the same command with `--resume` resumes from it"), "{err}");
    let run = UnfinishedRun::find(&dir.path().join("part.gguf")).unwrap();
    assert!((1..12).contains(&run.n_done), "{run:?}");
    gguf_verify(&[&args[..], &["part.gguf", "--resume"]].concat(), dir.path()).ok();
    let bytes = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    assert!(bytes("part.gguf") == bytes("whole.gguf"), "a resumed run differs");
}

deep_test!(copies_are_kept_by_the_number_of_their_chunks);

fn copies_are_kept_by_the_number_of_their_chunks() {
    let dir = tiny::directory();
    let more = ["--chunks", "5", "--output-frequency", "0", "--save-frequency", "2"];
    collect(dir.path(), "base.gguf", "i.gguf", &more);
    let bytes = |name: &str| fs_err::read(dir.path().join(name)).unwrap();
    for n in ["2", "4"] {
        collect(dir.path(), "base.gguf", "n.gguf", &["--chunks", n, "--output-frequency", "2"]);
        assert!(bytes(&format!("i.gguf.at_{n}")) == bytes("n.gguf"), "{n}");
    }
    assert!(!dir.path().join("i.gguf.at_5").exists());
}

#[test]
fn special_tokens_are_read_where_that_is_asked_for() {
    let dir = tiny::directory_of_a_layer();
    let text = "the covenant</s><s>that I will make with them after those days, saith the Lord";
    fs_err::write(dir.path().join("t.txt"), text).unwrap();
    let encoder = &Tiny::new().encoder;
    for (special, name) in [(true, "special.jsonl"), (false, "plain.jsonl")] {
        let ids: Vec<u32> = std::iter::once(0).chain(encoder.encode(text, special)).collect();
        let line = serde_json::json!({ "tokens": ids });
        fs_err::write(dir.path().join(name), line.to_string()).unwrap();
    }
    let run = |prompts: &str, more: &[&str]| {
        let args = ["imatrix", "base.gguf", "--prompts", prompts, "-o", "i.gguf", "--no-sync"];
        gguf_verify(&[&args[..], more].concat(), dir.path()).ok();
        sums(dir.path(), "i.gguf").tensors
    };
    let (special, plain) = (run("special.jsonl", &[]), run("plain.jsonl", &[]));
    assert_ne!(special, plain);
    assert_eq!(run("t.txt", &[]), plain);
    assert_eq!(run("t.txt", &["--parse-special"]), special);
    // Also with a completion; without the option only the prompt may have special tokens.
    let line = serde_json::json!({ "prompt": "the covenant", "completion": &text["the covenant".len()..] });
    fs_err::write(dir.path().join("c.jsonl"), line.to_string()).unwrap();
    assert_eq!(run("c.jsonl", &["--parse-special"]), special);
    assert_eq!(run("c.jsonl", &[]), plain);
}

#[test]
fn the_head_is_collected_for_where_it_has_a_matrix() {
    let dir = tiny::directory();
    let prompts = prompts();
    let args =
        ["imatrix", "base.gguf", "--prompts", &prompts, "--ctx", "256", "--chunks", "2", "-o", "x.gguf"];
    gguf_verify(&[&args[..], &["--process-output"]].concat(), dir.path())
        .says(1, "the model has no `output.weight`: its output is computed with `token_embd.weight`");

    let mut untied = Tiny::new();
    untied.tensors.add_copy("token_embd.weight", "output.weight");
    untied.write(dir.path(), "untied.gguf");
    let json = |name: &str, more: &[&str]| -> (Value, ImatrixSums) {
        let args = ["imatrix", "untied.gguf", "--prompts", &prompts, "--ctx", "256", "--chunks", "2"];
        let args = [&args[..], &["-o", name, "--json", "--no-sync"], more].concat();
        (gguf_verify(&args, dir.path()).ok().json(), sums(dir.path(), name))
    };
    let (plain, mut without) = json("plain.gguf", &[]);
    let (report, mut with) = json("with.gguf", &["--process-output"]);
    assert_eq!(plain["perplexity"], report["perplexity"]);
    let (quick, head_alone) = json("quick.gguf", &["--process-output", "--no-ppl"]);
    assert!(quick["perplexity"].is_null());
    assert_eq!(head_alone, with);
    let head = with.tensors.remove("output.weight").unwrap();
    assert_eq!((head.counts.as_slice(), head.n_cols), (&[512][..], 256));
    // After the last norm, whose rows have a mean square of one times the squared weight.
    let norm = untied.values("output_norm.weight");
    let mean =
        head.sums.iter().zip(&norm).map(|(sum, w)| sum / f64::from(w * w)).sum::<f64>() / 512.0 / 256.0;
    assert!((mean - 1.0).abs() < 1e-3, "{mean}");
    (without.datasets, with.datasets) = Default::default();
    assert_eq!(with, without);
}

#[test]
fn activations_that_overflow_are_no_importance() {
    let dir = tempfile::tempdir().unwrap();
    let mut tiny = Tiny::new();
    let n = tiny.values("blk.0.ffn_down.weight").len();
    tiny.set_values("blk.0.ffn_down.weight", &vec![3e38; n]);
    tiny.write(dir.path(), "base.gguf");
    let prompts = prompts();
    let args =
        ["imatrix", "base.gguf", "--prompts", &prompts, "--ctx", "256", "--chunks", "2", "-o", "x.gguf"];
    gguf_verify(&args, dir.path())
        .says(1, "chunks 0 to 1: what `blk.1.attn_k.weight` is multiplied with is not finite");
    assert!(!dir.path().join("x.gguf").exists());
}

#[test]
fn experts_and_the_tokens_that_they_saw_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = fixture("native/nvfp4_qwen3moe/hf");
    let line = |n: u32| serde_json::json!({ "tokens": (1..=n).map(|at| at * 7 % 31).collect::<Vec<_>>() });
    let run = |n_tokens: u32| -> (Value, String) {
        fs_err::write(dir.path().join("p.jsonl"), line(n_tokens).to_string()).unwrap();
        let checkpoint = checkpoint.to_str().unwrap();
        let args = ["imatrix", checkpoint, "--prompts", "p.jsonl", "-o", "i.gguf", "--json", "--no-sync"];
        let ended = gguf_verify(&args, dir.path()).ok();
        (ended.json(), ended.err)
    };
    // Two of eleven experts for each token: four tokens cannot reach all.
    let (report, err) = run(4);
    let experts = &report["experts"][0];
    let tokens: Vec<u64> =
        experts["tokens"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!((tokens.len(), tokens.iter().sum::<u64>()), (11, 8));
    assert_eq!(experts["tensors"].as_array().unwrap().len(), 3);
    let unseen: Vec<usize> = (0..11).filter(|&expert| tokens[expert] == 0).collect();
    assert_eq!(experts["unseen"], serde_json::json!(unseen));
    assert_eq!((experts["layer"].as_u64(), experts["min"].as_u64()), (Some(0), Some(0)));
    let named: Vec<String> = unseen.iter().map(ToString::to_string).collect();
    let list = format!("{} of 11 experts saw no token", unseen.len());
    assert!(err.contains(&list) && err.contains(&format!(": layer 0: {}\n", named.join(" "))), "{err}");

    let shown = gguf_verify(&["imatrix", "show", "i.gguf", "--json"], dir.path()).says(0, &list).json();
    assert_eq!(shown["experts"], report["experts"]);
    let out = gguf_verify(&["imatrix", "show", "i.gguf", "-v"], dir.path()).out;
    let row = out.lines().find(|line| line.contains("ffn_down_exps, ffn_gate_exps, ffn_up_exps")).unwrap();
    let all: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    assert!(row.ends_with(&all.join(" ")), "{row}");
}

#[test]
fn a_matrix_is_shown_by_tensor_and_layer() {
    let dir = tiny::directory();
    collect(dir.path(), "base.gguf", "i.gguf", &["--chunks", "2"]);
    collect(dir.path(), "base.gguf", "i.dat", &["--chunks", "2", "--legacy"]);
    let show = |args: &[&str]| gguf_verify(&[&["imatrix", "show"], args].concat(), dir.path());
    let out = show(&["i.gguf"]).says_only(0, "").out;
    assert!(out.starts_with("i.gguf: 28 tensors, 2 chunks of 256 of "), "{out}");
    let head = out.lines().nth(2).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(head, "Layer Tensor Σ(Act²) Min Max μ σ % Active N Entropy E (norm) ZD CosSim");
    let parts: Vec<&str> =
        out.lines().skip(3).take(28).map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert!(parts.is_sorted(), "{parts:?}");
    let shown = show(&["i.gguf", "--json"]).json();
    assert_eq!(shown["layers"].as_array().unwrap().len(), 4);
    let down = |shown: &Value| {
        let tensors = shown["tensors"].as_array().unwrap();
        tensors.iter().find(|tensor| tensor["name"] == "blk.2.ffn_down.weight").unwrap().clone()
    };
    let (tensor, sums) = (down(&shown), sums(dir.path(), "i.gguf"));
    let columns = &sums.tensors["blk.2.ffn_down.weight"];
    let total: f64 = columns.sums.iter().sum::<f64>() / 512.0;
    assert!((tensor["sum"].as_f64().unwrap() / total - 1.0).abs() < 1e-5, "{tensor}");
    assert_eq!((tensor["elements"].as_u64(), tensor["matrices"].as_u64()), (Some(768), Some(1)));
    assert!(tensor["cossim"].as_f64().unwrap() > 0.0);
    // The older format gives the same, except for its rounding.
    let old = show(&["i.dat", "--json"]).json();
    assert_eq!((old["format"].as_str(), old["chunk_tokens"].is_null()), (Some("dat"), true));
    for key in ["sum", "max", "entropy", "cossim"] {
        let value = |tensor: Value| tensor[key].as_f64().unwrap();
        assert!((value(down(&old)) / value(down(&shown)) - 1.0).abs() < 1e-5, "{key}");
    }
    show(&["base.gguf"]).says(1, "not an importance matrix");
}

#[test]
fn a_model_may_be_named_like_a_command() {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().write(dir.path(), "merge");
    fs_err::write(dir.path().join("p.jsonl"), "{\"tokens\": [1, 342, 278, 5, 9]}\n").unwrap();
    let run =
        |model: &str| gguf_verify(&["imatrix", model, "--prompts", "p.jsonl", "-o", "i.gguf"], dir.path());
    run("./merge").ok();
    run("merge").says(2, "--prompts");
    gguf_verify(&["imatrix", "./merge"], dir.path()).says(2, "--prompts").says(2, "-o");
    gguf_verify(&["imatrix", "--ctx", "64", "merge", "a", "-o", "b"], dir.path()).exits_with(2);
}

#[test]
fn too_few_chunks_are_said() {
    let dir = tiny::directory();
    let prompts = prompts();
    let args = ["imatrix", "base.gguf", "--prompts", &prompts, "--ctx", "256", "-o", "i.gguf"];
    gguf_verify(&[&args[..], &["--from-chunk", "79"]].concat(), dir.path())
        .says(1, "no chunk is left behind the first 79: the prompts have 79");
}

#[test]
fn a_text_that_fills_no_chunk_declares_its_own_length() {
    let dir = tiny::directory();
    let dir = dir.path();
    let text = fs_err::read_to_string(prompts()).unwrap();
    fs_err::write(dir.join("short.txt"), &text[..text.floor_char_boundary(200)]).unwrap();
    let run = |args: &[&str]| gguf_verify(args, dir).ok().out;
    let out = run(&["imatrix", "base.gguf", "-f", "short.txt", "-o", "s.gguf", "--no-sync"]);
    let n = out.split_once("1 chunk of ").and_then(|(_, rest)| rest.split_once(',')).unwrap().0;
    assert!((4..512).contains(&n.parse::<usize>().unwrap()), "{out}");
    let out = run(&["imatrix", "merge", "s.gguf", "s.gguf", "-o", "m.gguf", "--no-sync"]);
    assert!(out.contains(&format!("2 chunks of {n}, ")), "{out}");
}
