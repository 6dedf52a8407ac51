//! Calibration text, and its importance compared with sums in f64 from a separate observer of the same text.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod sequential;
#[path = "../../../../tests/testkit/mod.rs"]
mod testkit;
mod tuned;
mod work;
mod written;

use std::collections::BTreeMap;
use std::sync::Mutex;

use gguf_calibration::{CalibrateError, CalibrationText, Solver, TextOptions, TextSource};
use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineOptions, GraphPlan, Matrix, Observer, TokenChunk};
use gguf_format::Imatrix;
use gguf_verification::{Model, PromptForm, PromptSource};

use crate::sequential::{engine, run};
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use crate::testkit::tiny::Tiny;

/// Two kinds of text in sequences of 16; the second also has shorter ones.
fn sources() -> Vec<TextSource> {
    let tokens = |seed: u32, n: u32| (1..=n).map(|at| (at * 7 + seed * at * at) % 61).collect::<Vec<_>>();
    let lines = |seeds: std::ops::Range<u32>, lengths: [u32; 3]| {
        let line = |seed: u32| PromptSource::Tokens(tokens(seed, lengths[seed as usize % 3]));
        seeds.map(line).collect::<Vec<_>>()
    };
    vec![
        TextSource { name: "first".to_owned(), prompts: lines(0..90, [40, 40, 40]) },
        TextSource { name: "second".to_owned(), prompts: lines(90..200, [16, 11, 20]) },
    ]
}

fn text(model: &Model<'_>) -> CalibrationText {
    CalibrationText::new(model, &sources(), &TextOptions { n_ctx: 16, n_tokens: 1600, holds_out: true })
        .unwrap()
}

fn importance(model: &TinyModel, options: EngineOptions) -> Result<Imatrix, CalibrateError> {
    Ok(run(model, Solver::Reference, options, &Silent)?.imatrix)
}

/// Number of rows, and the sum of squares of each column in f64.
type Squares = (i64, Vec<f64>);

/// Observer that sums squares by tensor and matrix.
#[derive(Default)]
struct Twin(Mutex<BTreeMap<(String, usize), Squares>>);

impl Observer for Twin {
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let key = (source.tensors()[matrix.tensor].name.clone(), matrix.expert.unwrap_or(0));
        let mut sums = self.0.lock().unwrap();
        let (n_rows, own) = sums.entry(key).or_insert_with(|| (0, vec![0.0; matrix.n_cols]));
        for row in x.chunks(matrix.n_cols) {
            *n_rows += 1;
            own.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        }
    }
}

/// The importance covers the matrices that llama-imatrix covers, of every wiring: experts by their own tokens, layers
/// that run several times.
#[test]
fn importance_equals_sums_in_f64() {
    for (n_tensors, model) in [
        (14, TinyModel::dense()),
        (16, TinyModel::experts(7)),
        (8, TinyModel::recurrent()),
        (14, TinyModel::cycled()),
    ] {
        let found = importance(&model, engine(2)).unwrap();
        let own = model.model();
        let plan = GraphPlan::new(&model.features, own.metadata, own.source.tensors()).unwrap();
        let twin = Twin::default();
        let text = text(&own);
        let windows = text.kinds.iter().flat_map(|kind| &kind.windows);
        let chunks: Vec<TokenChunk> = windows.map(|window| window.chunk.clone()).collect();
        let all = Engine::new(plan, own.source, EngineOptions::default()).unwrap();
        all.forward(&chunks, &Silent, Some(&twin)).unwrap();
        assert_eq!(found.entries().count(), n_tensors);
        let mut n_seen = 0;
        for ((name, at), (n_rows, sums)) in twin.0.into_inner().unwrap() {
            let Some(entry) = found.get(&name) else {
                assert!(!name.starts_with("blk."), "{name}");
                continue;
            };
            assert_eq!(entry.counts[at], n_rows, "{name} {at}");
            for (weight, sum) in entry.weights[at * sums.len()..].iter().zip(&sums) {
                let mean = sum / n_rows as f64;
                assert!((f64::from(*weight) - mean).abs() <= 2e-6 * mean + 1e-12, "{name} {at}");
            }
            n_seen += 1;
        }
        assert!(n_seen >= n_tensors);
    }
}

#[test]
fn threads_and_memory_change_no_bit_of_the_importance() {
    for model in [TinyModel::dense(), TinyModel::experts(7), TinyModel::recurrent()] {
        let entries = |options| {
            let found = importance(&model, options).unwrap();
            found.entries().map(|(name, entry)| (name.to_owned(), entry.clone())).collect::<Vec<_>>()
        };
        let expected = entries(engine(1));
        let with = |memory_bytes| EngineOptions { memory_bytes, ..engine(1) };
        let Err(CalibrateError::Memory { needed_bytes, .. }) = importance(&model, with(1)) else {
            panic!("one byte is not enough")
        };
        // The check takes a little more than the run.
        for options in [engine(2), engine(7), with(needed_bytes + (64 << 10))] {
            assert!(entries(options) == expected);
        }
    }
}

#[test]
fn text_is_read_as_gguf_verify_reads_it() {
    let tiny = Tiny::new();
    let features = gguf_arch::GraphFeatures::of("llama").unwrap();
    let model = crate::testkit::judged::model(&tiny, &features);
    let dir = tempfile::tempdir().unwrap();
    let corpus = fs_err::read_to_string(gguf_testkit::fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.path().join("corpus.txt"), &corpus).unwrap();
    let line = |text: &str| serde_json::json!({ "text": text }).to_string();
    let lines: Vec<String> = corpus.split("\n\n").map(line).collect();
    fs_err::write(dir.path().join("lines.jsonl"), lines.join("\n")).unwrap();
    let read = |name: &str| TextSource::read(&dir.path().join(name), PromptForm::Detected).unwrap();
    let sources = [read("corpus.txt"), read("lines.jsonl")];
    let text =
        CalibrationText::new(&model, &sources, &TextOptions { n_ctx: 128, n_tokens: 8192, holds_out: true })
            .unwrap();
    let names: Vec<&str> = text.kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["corpus.txt", "lines.jsonl"]);
    for kind in &text.kinds {
        // Every sequence begins with the vocabulary's start token.
        let windows = kind.windows.iter().chain(&kind.held_out);
        assert!(windows.clone().all(|window| window.chunk.tokens[0] == 0));
        assert!(windows.clone().all(|window| (2..=128).contains(&window.chunk.tokens.len())));
        assert!((3900..=4096).contains(&kind.n_tokens()), "{}", kind.n_tokens());
    }
    assert!(text.kinds[0].windows.iter().all(|window| window.chunk.tokens.len() == 128));
    // Without a tokenizer there is no text.
    let blind = Model { encoder: Err("no vocabulary"), ..model };
    let error = CalibrationText::new(&blind, &sources, &TextOptions::default()).unwrap_err().to_string();
    assert!(error.contains("text cannot be encoded: no vocabulary"), "{error}");
}

#[test]
fn activations_that_are_no_numbers_are_named() {
    let mut model = TinyModel::dense();
    model.tensors.edit_f32s("blk.1.ffn_up.weight", |values| values[0] = f32::INFINITY);
    let error = importance(&model, engine(1)).unwrap_err();
    assert!(
        error.to_string().contains("`blk.1.ffn_down.weight` is multiplied with is not finite"),
        "{error}"
    );
}

#[test]
fn text_is_held_out_and_the_kinds_share_the_tokens() {
    let model = TinyModel::dense();
    let model = model.model();
    let text = text(&model);
    assert!(text.notes.is_empty(), "{:?}", text.notes);
    for kind in &text.kinds {
        assert!((780..=800).contains(&kind.n_tokens()), "{}", kind.n_tokens());
        assert!((95..=116).contains(&kind.n_held_out_tokens()), "{}", kind.n_held_out_tokens());
        let place = |window: &gguf_verification::Window| (window.prompt, window.start);
        assert!(!kind.held_out.iter().any(|held| kind.windows.iter().any(|w| place(w) == place(held))));
        assert!(kind.windows.iter().all(|window| window.chunk.tokens.len() <= 16));
    }
    let too_few = TextOptions { n_ctx: 16, n_tokens: 60, holds_out: true };
    let error = CalibrationText::new(&model, &sources(), &too_few).unwrap_err().to_string();
    assert!(error.contains("60 tokens in sequences of 16, shared by 2 texts"), "{error}");
    let none = CalibrationText::new(&model, &[], &TextOptions::default()).unwrap_err().to_string();
    assert_eq!(none, "no calibration text");
}
