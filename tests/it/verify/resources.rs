//! Resource use of a run: chunks longer than a tile of keys, one run of a baseline for several models, locked files.

use std::sync::Mutex;

use gguf_foundry::core::progress::{Progress, Silent};
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::verify::{Model, Position, Recall, Verification, verify};

use super::{corpus, gguf_verify, llama, model, options};
use crate::support::tiers::deep_test;
use crate::support::{fixture, programs};
use crate::testkit::tiny::{self, Tiny};

deep_test!(a_long_chunk_gives_the_logits_of_a_short_one_whatever_the_threads);
fn a_long_chunk_gives_the_logits_of_a_short_one_whatever_the_threads() {
    let base = Tiny::new().with_layers(2);
    let tokens: Vec<u32> = (0..2200).map(|at| (at * at * 31 + at * 7) % 1024).collect();
    let run = |len: usize, n_threads| {
        let plan = GraphPlan::new(&llama(), &base.metadata, base.tensors.tensors()).unwrap();
        let options = EngineOptions { n_threads, ..EngineOptions::default() };
        let engine = Engine::new(plan, &base.tensors, options).unwrap();
        let chunk = TokenChunk { tokens: tokens[..len].to_vec(), rows: 2010..2040, n_source: 0 };
        engine.logits(&engine.hidden(&[chunk]).unwrap(), &Silent).unwrap()
    };
    // A token does not see later ones: up to 2048 tokens, the keys of a chunk are processed together.
    let whole = run(2048, 2);
    let online = run(2200, 2);
    let worst = whole.iter().zip(&online).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    assert!(worst < 1e-5 * 20.0 && worst > 0.0, "logits up to 20 apart by {worst:e}");
    assert_eq!(run(2200, 1), online);
    assert_eq!(run(2200, 5), online);
}

/// Progress that records the amount of work each time a model is run, including the baseline.
#[derive(Default)]
struct Work {
    bytes: Mutex<Vec<u64>>,
}

impl Progress for Work {
    fn begin(&self, what: &str, total_bytes: u64) {
        if what.starts_with("running the model") {
            self.bytes.lock().unwrap().push(total_bytes);
        }
    }
}

deep_test!(a_baseline_is_run_once_for_several_models_and_the_figures_are_the_same);

fn a_baseline_is_run_once_for_several_models_and_the_figures_are_the_same() {
    let (n_ctx, n_chunks, little) = (256, 24, 40 << 20);
    let engine = |memory_bytes| EngineOptions { memory_bytes, ..EngineOptions::default() };
    let base = Tiny::new().with_layers(2);
    let features = llama();
    let models = [base.quantized(GgmlType::Q8_0), base.quantized(GgmlType::Q4_0)];
    let figures = |recall: Option<&Recall>, memory_bytes| {
        let baseline = Model { recall, ..model(&base, &features) };
        let mut options = options(Some(n_chunks));
        options.scoring.n_ctx = n_ctx;
        options.engine = engine(memory_bytes);
        let work = Work::default();
        let run = |tiny: &Tiny| {
            let Verification { positions, .. } =
                verify(&model(tiny, &features), Some(&baseline), &corpus(), &options, &work, None).unwrap();
            let figures = |p: &Position| {
                let reference = p.reference.unwrap();
                [p.score.nll, reference.score.nll, reference.kld]
            };
            positions.iter().map(figures).collect::<Vec<_>>()
        };
        let figures = [run(&models[0]), run(&models[1])].concat();
        (figures, work.bytes.into_inner().unwrap())
    };
    // All chunks together, and in groups.
    for (memory_bytes, is_one) in [(1 << 30, true), (little, false)] {
        let plan = GraphPlan::new(&features, &base.metadata, base.tensors.tensors()).unwrap();
        let engine = Engine::new(plan, &base.tensors, engine(memory_bytes)).unwrap();
        let both = engine.group_tokens(n_ctx).unwrap() / 2;
        assert_eq!(both >= n_chunks * n_ctx, is_one, "{both} tokens");

        let (expected, without) = figures(None, memory_bytes);
        let (found, with) = figures(Some(&Recall::default()), memory_bytes);
        // The baseline is F32, seven times as large as the second model.
        assert!(with[0] >= without[0] && 3 * with[1] < without[1], "{with:?} and {without:?} bytes");
        for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
    }
}

#[test]
fn locked_files_give_the_same_figures_and_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q8_0).write(dir.path(), "q8_0.gguf");
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let args = ["q8_0.gguf", "--baseline", "base.gguf", "--ctx", "64", "--chunks", "2", "--json"];
    let args = [&args[..], &["--prompts", prompts.to_str().unwrap()]].concat();
    let figures = |args: &[&str]| {
        let report = gguf_verify(args, dir.path()).model();
        (report["perplexity"].clone(), report["kld"].clone())
    };
    assert_eq!(figures(&[&args[..], &["--mlock"]].concat()), figures(&args));

    let checkpoint = fixture("tiny-llama");
    let checkpoint = checkpoint.to_str().unwrap();
    for args in [["--baseline", checkpoint, "q8_0.gguf"].as_slice(), &[checkpoint]] {
        let args = [args, &["--mlock", "--prompts", prompts.to_str().unwrap()]].concat();
        gguf_verify(&args, dir.path()).says(2, "is a directory");
    }
    gguf_verify(&["q8_0.gguf", "--mlock", "--structure-only"], dir.path()).exits_with(2);
}

/// A process that may not lock without limit gets a message with the limit, and how to raise it.
#[cfg(target_os = "linux")]
#[test]
fn a_file_beyond_the_limit_of_locked_memory_is_a_failed_run() {
    let dir = tiny::directory();
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let run = |before: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -l 64; exec {before} \"$0\" \"$@\"")).current_dir(dir.path());
        shell.arg(programs::path("gguf-verify")).args(["base.gguf", "--mlock", "--ctx", "256"]);
        shell.arg("--prompts").arg(&prompts).args(["--chunks", "1"]).output().unwrap()
    };
    // The administrator may lock without limit; other users may not.
    let output = match run("") {
        output if output.status.code() == Some(4) => {
            run("setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock")
        }
        output => output,
    };
    let err = String::from_utf8_lossy(&output.stderr);
    if err.contains("setpriv") && err.contains("not found") {
        println!("not run: the administrator has no limit, and there is no `setpriv`");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{err}");
    for part in ["base.gguf", "cannot be locked in memory", "64.0 KiB in all", "ulimit -l unlimited"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}
