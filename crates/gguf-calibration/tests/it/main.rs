//! Moments and importance sums compared with sums in f64 from a separate observer of the same text.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod sequential;
mod store;
#[path = "../../../../tests/testkit/mod.rs"]
mod testkit;
mod tuned;
mod work;
mod written;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use gguf_calibration::{
    CalibrateError, CalibrateOptions, CalibrationRun, CalibrationText, LayerMoments, SharedInput,
    TextOptions, TextSource, total_importance,
};
use gguf_core::progress::Silent;
use gguf_core::{TensorMeta, TensorSource};
use gguf_engine::{Engine, EngineError, EngineOptions, GraphPlan, Matrix, Observer, TokenChunk};
use gguf_format::ImatrixSums;
use gguf_verification::{Model, PromptForm, PromptSource};

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

fn all(meta: &TensorMeta) -> bool {
    meta.shape.rank() > 1
}

fn options(n_threads: usize) -> CalibrateOptions<'static> {
    let engine = EngineOptions { n_threads, ..EngineOptions::default() };
    CalibrateOptions { engine, wants: &all, dir: Path::new(env!("CARGO_TARGET_TMPDIR")) }
}

fn collect(model: &Model<'_>, n_threads: usize) -> (Vec<LayerMoments>, Vec<ImatrixSums>) {
    let text = text(model);
    let run = CalibrationRun::new(model, &text, options(n_threads)).unwrap();
    let mut layers = Vec::new();
    let sums = run.run(&Silent, &mut |layer: LayerMoments| {
        layers.push(layer);
        Ok::<_, CalibrateError>(())
    });
    (layers, sums.unwrap())
}

/// Number of rows and full square of sums, by tensor and expert.
type Squares = BTreeMap<(String, Option<usize>), (u64, Vec<f64>)>;

/// Observer that sums one kind of text in f64.
#[derive(Default)]
struct Twin {
    sums: Mutex<Squares>,
}

impl Twin {
    fn add(&self, name: &str, matrix: &Matrix, x: &[f32]) {
        let n = matrix.n_cols;
        let mut sums = self.sums.lock().unwrap();
        let key = (name.to_owned(), matrix.expert);
        let (n_rows, own) = sums.entry(key).or_insert_with(|| (0, vec![0.0; n * n]));
        for row in x.chunks(n) {
            *n_rows += 1;
            for (i, a) in row.iter().enumerate() {
                let products = row.iter().map(|b| f64::from(*a) * f64::from(*b));
                own[i * n..][..n].iter_mut().zip(products).for_each(|(sum, x)| *sum += x);
            }
        }
    }
}

impl Observer for Twin {
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        self.add(&source.tensors()[matrix.tensor].name, matrix, x);
    }
}

/// Sums of one kind, from a separate run.
fn twin(model: &Model<'_>, features: &gguf_arch::GraphFeatures, kind: usize) -> Twin {
    let text = text(model);
    let plan = GraphPlan::new(features, model.metadata, model.source.tensors()).unwrap();
    let engine = Engine::new(plan, model.source, EngineOptions::default()).unwrap();
    let whole = |chunk: &TokenChunk| TokenChunk { rows: 0..chunk.tokens.len(), ..chunk.clone() };
    let chunks: Vec<TokenChunk> =
        text.kinds[kind].windows.iter().map(|window| whole(&window.chunk)).collect();
    let twin = Twin::default();
    let hidden = engine.forward(&chunks, &Silent, Some(&twin)).unwrap();
    let head = &engine.plan().head;
    twin.add(&model.source.tensors()[head.tensor].name, head, hidden.states());
    twin
}

/// Compares all moments with the observers' sums, and the diagonals with the importance sums.
fn check(model: &TinyModel) -> Vec<LayerMoments> {
    let (layers, sums) = collect(&model.model(), 2);
    for (kind, sums) in sums.iter().enumerate() {
        let expected = twin(&model.model(), &model.features, kind).sums.into_inner().unwrap();
        let mut n_seen = 0;
        for layer in &layers {
            for input in &layer.inputs {
                let Some(moments) = layer.moments(input, kind) else { continue };
                for matrix in &input.matrices {
                    let (n_rows, squares) = &expected[&(matrix.tensor.clone(), matrix.expert)];
                    assert_eq!(moments.n_rows(), *n_rows, "{matrix:?}");
                    let n = input.n_cols;
                    for row in 0..n {
                        for (column, found) in (row..n).zip(moments.sums().row(row)) {
                            let scale = (squares[row * n + row] * squares[column * n + column]).sqrt();
                            let error = (f64::from(*found) - squares[row * n + column]).abs();
                            assert!(error <= 2e-6 * scale + 1e-12, "{matrix:?} {row} {column}: {found}");
                        }
                    }
                    n_seen += 1;
                    let Some(columns) = sums.tensors.get(&matrix.tensor) else { continue };
                    let at = matrix.expert.unwrap_or(0);
                    assert_eq!(columns.counts[at] as u64, *n_rows);
                    for (found, sum) in moments.sums().diagonal().iter().zip(&columns.sums[at * n..]) {
                        assert!((f64::from(*found) - sum).abs() <= 2e-6 * sum + 1e-12, "{matrix:?}");
                    }
                }
            }
        }
        assert_eq!(n_seen, expected.len(), "every matrix that is multiplied with anything");
    }
    layers
}

/// Local name of a tensor: `attn_q` for `blk.0.attn_q.weight`.
fn local(name: &str) -> &str {
    let stem = name.strip_suffix(".weight").unwrap();
    stem.rsplit_once('.').map_or(stem, |(_, local)| local)
}

/// Tensors of the inputs of a layer, without experts.
fn shared(layer: &LayerMoments) -> Vec<Vec<&str>> {
    let is_whole = |input: &&SharedInput| input.matrices.iter().all(|matrix| matrix.expert.is_none());
    let inputs = layer.inputs.iter().filter(is_whole);
    inputs.map(|input| input.matrices.iter().map(|matrix| local(&matrix.tensor)).collect()).collect()
}

#[test]
fn moments_of_a_dense_model_equal_sums_in_f64() {
    let model = TinyModel::dense();
    let layers = check(&model);
    assert_eq!(layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [Some(0), Some(1), None]);
    let expected = [
        vec!["attn_k", "attn_q", "attn_v"],
        vec!["attn_output"],
        vec!["ffn_down"],
        vec!["ffn_gate", "ffn_up"],
    ];
    assert_eq!(shared(&layers[0]), expected);
    assert_eq!(shared(&layers[2]), [["token_embd"]]);
    // The importance sums cover the tensors that llama-imatrix covers.
    let (_, sums) = collect(&model.model(), 1);
    assert_eq!(sums[0].tensors.len(), 14);
    let total = total_importance(&sums);
    assert_eq!(total.n_chunks, sums[0].n_chunks + sums[1].n_chunks);
    assert_eq!(total.datasets, [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn experts_have_moments_of_their_own_and_their_stack_adds_them_up() {
    let model = TinyModel::experts(7);
    let layers = check(&model);
    let text = text(&model.model());
    let layer = &layers[1];
    let name = |local: &str| format!("blk.1.{local}.weight");
    // The router reads every token, each expert only its own.
    assert_eq!(layer.input(&name("ffn_gate_inp"), None).unwrap().matrices.len(), 1);
    for expert in 0..7 {
        let (Some(up), gate) = (
            layer.input(&name("ffn_up_exps"), Some(expert)),
            layer.input(&name("ffn_gate_exps"), Some(expert)),
        ) else {
            continue;
        };
        assert_eq!(Some(up), gate);
    }
    for (kind, own) in text.kinds.iter().enumerate() {
        let mut weights = [0.0; 2];
        weights[kind] = 1.0;
        for local in ["ffn_up_exps", "ffn_down_exps"] {
            let mean = layer.mean_of_stack(&name(local), &weights).unwrap();
            assert_eq!(mean.n_rows, 2 * own.n_tokens() as u64, "two experts a token");
        }
        // Over all experts, the rows of up are those of the router, each of them twice.
        let stack = layer.mean_of_stack(&name("ffn_up_exps"), &weights).unwrap();
        let router = layer.mean(layer.input(&name("ffn_gate_inp"), None).unwrap(), &weights).unwrap();
        assert!(stack.h.iter().zip(&router.h).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

#[test]
fn moments_of_a_mixer_equal_sums_in_f64() {
    let layers = check(&TinyModel::recurrent());
    let expected = [vec!["ssm_dt"], vec!["ssm_in"], vec!["ssm_out"], vec!["ssm_x"]];
    assert_eq!(shared(&layers[0]), expected);
    assert_eq!(shared(&layers[2]), [["output"]]);
}

#[test]
fn branches_that_read_the_same_rows_share_their_moments() {
    let layers = check(&TinyModel::parallel());
    let expected =
        [vec!["attn_k", "attn_q", "attn_v", "ffn_gate", "ffn_up"], vec!["attn_output"], vec!["ffn_down"]];
    assert_eq!(shared(&layers[0]), expected);
}

#[test]
fn layers_that_come_again_are_handed_out_when_they_do_not() {
    let model = TinyModel::cycled();
    let layers = check(&model);
    // The low stack runs as layers 0, 1, 3 and 4, the high one as 2 and 5.
    assert_eq!(layers.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [Some(4), Some(5), None]);
    let n_tokens = text(&model.model()).kinds[0].n_tokens() as u64;
    let n_rows = |layer: &LayerMoments| layer.moments(&layer.inputs[0], 0).unwrap().n_rows();
    assert_eq!((n_rows(&layers[0]), n_rows(&layers[1])), (4 * n_tokens, 2 * n_tokens));
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
fn threads_and_memory_change_no_bit() {
    for model in [TinyModel::dense(), TinyModel::experts(7), TinyModel::recurrent()] {
        let expected = collect(&model.model(), 1);
        for n_threads in [2, 7] {
            assert!(collect(&model.model(), n_threads) == expected, "{n_threads}");
        }
        let model = model.model();
        let text = text(&model);
        let needs = CalibrationRun::new(&model, &text, options(1)).unwrap().needs();
        assert!(needs.least_bytes + needs.spilled_bytes == needs.all_bytes && needs.spilled_bytes > 1 << 20);
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent");
        let with = |memory_bytes, dir| {
            let mut options = options(1);
            options.engine.memory_bytes = memory_bytes;
            CalibrationRun::new(&model, &text, CalibrateOptions { dir, ..options })
        };
        // Files are made only if memory does not hold the hidden states.
        for (budget, dir) in [(needs.all_bytes, &*absent), (needs.least_bytes, dir.path())] {
            let mut layers = Vec::new();
            let mut keep = |layer: LayerMoments| {
                layers.push(layer);
                Ok::<_, CalibrateError>(())
            };
            assert!(with(budget, dir).unwrap().run(&Silent, &mut keep).unwrap() == expected.1);
            assert!(layers == expected.0);
        }
        let error =
            with(needs.all_bytes - 1, &absent).unwrap().run::<CalibrateError>(&Silent, &mut |_| Ok(()));
        let Err(CalibrateError::Engine(error @ EngineError::Spill(_))) = error else {
            panic!("no such folder")
        };
        assert!(error.to_string().contains("absent"), "{error}");
        let Err(error) = with(needs.least_bytes - 1, dir.path()) else {
            panic!("one byte less is not enough")
        };
        assert!(error.to_string().contains(&format!("need {}", needs.least_bytes)), "{error}");
    }
}

/// Error type of a consumer.
#[derive(Debug)]
enum Own {
    Enough,
    Other(CalibrateError),
}

impl From<CalibrateError> for Own {
    fn from(error: CalibrateError) -> Self {
        Self::Other(error)
    }
}

#[test]
fn what_is_not_wanted_is_not_collected_and_a_consumer_stops_the_run() {
    let model = TinyModel::dense();
    let model = model.model();
    let text = text(&model);
    let wants = |meta: &TensorMeta| meta.name.contains("ffn_down");
    let run = CalibrationRun::new(&model, &text, CalibrateOptions { wants: &wants, ..options(1) }).unwrap();
    let mut inputs = Vec::new();
    let mut keep = |layer: LayerMoments| {
        inputs.push(layer.inputs.len());
        Ok::<_, CalibrateError>(())
    };
    run.run(&Silent, &mut keep).unwrap();
    assert_eq!(inputs, [1, 1]);
    let mut n = 0;
    let stopped = run.run(&Silent, &mut |_| {
        n += 1;
        Err(Own::Enough)
    });
    match stopped {
        Err(Own::Enough) => assert_eq!(n, 1),
        Err(Own::Other(error)) => panic!("{error}"),
        Ok(_) => panic!("the run went on"),
    }
}

#[test]
fn activations_that_are_no_numbers_are_named() {
    let mut model = TinyModel::dense();
    model.tensors.edit_f32s("blk.1.ffn_up.weight", |values| values[0] = f32::INFINITY);
    let model = model.model();
    let text = text(&model);
    let run = CalibrationRun::new(&model, &text, options(1)).unwrap();
    let error = run.run(&Silent, &mut |_| Ok::<_, CalibrateError>(())).unwrap_err();
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
