//! Tuning after `sequential`: what moves, what stays, what is refused.

use std::sync::Mutex;

use gguf_calibration::{
    CalibrateError, CalibrationText, Fidelity, FidelityOptions, Outlook, Solver, TextOptions, TextSource,
    solve,
};
use gguf_core::progress::{Progress, Silent};
use gguf_core::{Hint, TensorSource};
use gguf_engine::EngineOptions;
use gguf_format::Value;
use gguf_quantization::{FileType, Input, QuantizeOptions, TensorTypeRule};
use gguf_testkit::fixture;
use gguf_testkit::tiers::{Tier, deep_test, two_tiers};
use gguf_verification::PromptForm;

use super::text;
use crate::sequential::{blocks, engine, matrices, run};
use crate::testkit::judged::{Judged, model};
use crate::testkit::models::TinyModel;
use crate::testkit::tiny::Tiny;
use gguf_arch::GraphFeatures;

/// Fewer steps than usual.
const TUNED: Solver = Solver::Tuned { n_steps: 12 };

/// Progress that records warnings.
#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Progress for Warnings {
    fn warn(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

fn solver(found: &Fidelity) -> &str {
    let key = found.keys.iter().find(|(key, _)| key == "gguf_foundry.quantize.solver").unwrap();
    Value::as_str(&key.1).unwrap()
}

/// Numbers of scales and codes that differ, in blocks of Q4_0; codes move by at most one.
fn n_moved(old: &[u8], new: &[u8]) -> (usize, usize) {
    let (mut n_scales, mut n_codes) = (0, 0);
    for (old, new) in old.chunks(18).zip(new.chunks(18)) {
        n_scales += usize::from(old[..2] != new[..2]);
        for (a, b) in old[2..].iter().zip(&new[2..]) {
            for (a, b) in [(a & 15, b & 15), (a >> 4, b >> 4)] {
                assert!(a.abs_diff(b) <= 1, "{a} to {b}");
                n_codes += usize::from(a != b);
            }
        }
    }
    (n_scales, n_codes)
}

two_tiers!(blocks_move_and_less_is_lost);
/// Blocks move, and the file diverges less on text that no step has read, for any number of threads.
///
/// Every day of a dense model.
fn blocks_move_and_less_is_lost(tier: Tier) {
    let models = [(TinyModel::dense(), 12), (TinyModel::experts(4), 40)];
    for (model, n_steps) in tier.some(2, models) {
        let tuned = Solver::Tuned { n_steps };
        let start = run(&model, Solver::Sequential, engine(2), &Silent).unwrap();
        let found = run(&model, tuned, engine(2), &Silent).unwrap();
        assert_eq!((solver(&start), solver(&found)), ("sequential", "tuned"));
        let [before, after] = found.trials.as_slice() else { panic!("{:?}", found.trials) };
        assert_eq!(before.figures, start.trials[0].figures);
        assert!(after.figures.mean_kld < 0.99 * before.figures.mean_kld, "{:?}", found.trials);
        let one = run(&model, tuned, engine(1), &Silent).unwrap();
        for meta in matrices(&model) {
            let blocks = [&start, &found, &one].map(|run| blocks(run, meta).unwrap());
            assert!(n_moved(&blocks[0], &blocks[1]).0 > 0, "{}", meta.name);
            assert_eq!(blocks[1], blocks[2], "{}", meta.name);
        }
    }
}

/// The model writes the text of the tuning once for all that are tuned with one calibration text.
#[test]
fn candidates_learn_from_one_text() {
    #[derive(Default)]
    struct Stages(Mutex<Vec<String>>);
    impl Progress for Stages {
        fn begin(&self, title: &str, _: u64) {
            self.0.lock().unwrap().push(title.to_owned());
        }
    }
    let tiny = Tiny::new().with_layers(1);
    let features = GraphFeatures::of("llama").unwrap();
    let model = model(&tiny, &features);
    let options = TextOptions { n_tokens: 512, n_ctx: 64, ..TextOptions::default() };
    let text = CalibrationText::with_self(&model, &[], &options, 1, engine(2), None, &Silent).unwrap();
    let quantize = QuantizeOptions { pure: true, ..QuantizeOptions::new(FileType::Q4_0) };
    let (input, dir) = (Input::new(&tiny.tensors, &tiny.metadata), std::env::temp_dir());
    let options = FidelityOptions {
        solver: Solver::Tuned { n_steps: 1 },
        engine: engine(2),
        quantize: &quantize,
        dir: &dir,
        work: None,
    };
    let stages = Stages::default();
    for _ in 0..2 {
        solve(&model, &input, &text, &options, &stages).unwrap();
    }
    let stages = stages.0.into_inner().unwrap();
    let count = |words: &str| stages.iter().filter(|title| title.contains(words)).count();
    assert_eq!((count("tuning codes"), count("writing text")), (2, 1), "{stages:?}");
}

/// Codes of a trained model move, and the file diverges clearly less.
#[test]
#[ignore = "of the deep tier"]
fn deep() {
    let tiny = Tiny::new();
    let features = GraphFeatures::of("llama").unwrap();
    let model = model(&tiny, &features);
    let source = TextSource::read(&fixture("tiny-llama/corpus.txt"), PromptForm::Detected).unwrap();
    let options = TextOptions { n_tokens: 8192, ..TextOptions::default() };
    let text = CalibrationText::with_self(&model, &[source], &options, 1, engine(2), None, &Silent);
    let quantize = QuantizeOptions { pure: true, ..QuantizeOptions::new(FileType::Q4_0) };
    let (text, input) = (text.unwrap(), Input::new(&tiny.tensors, &tiny.metadata));
    let run = |solver| {
        let dir = std::env::temp_dir();
        let options =
            FidelityOptions { solver, engine: engine(2), quantize: &quantize, dir: &dir, work: None };
        solve(&model, &input, &text, &options, &Silent).unwrap()
    };
    let [start, found] = [Solver::Sequential, Solver::Tuned { n_steps: 70 }].map(run);
    let [before, after] = found.trials.as_slice() else { panic!("{:?}", found.trials) };
    assert!(after.figures.mean_kld < 0.95 * before.figures.mean_kld, "{:?}", found.trials);
    let matrices = tiny.tensors.tensors().iter().filter(|meta| meta.shape.rank() > 1);
    let n_codes: usize =
        matrices.map(|meta| n_moved(&blocks(&start, meta).unwrap(), &blocks(&found, meta).unwrap()).1).sum();
    assert!(n_codes > 1000, "{n_codes} {:?}", found.trials);
}

deep_test!(models_without_a_gradient_keep_what_they_have);
/// A model without a gradient keeps what `sequential` made, with a warning that names the operation.
fn models_without_a_gradient_keep_what_they_have() {
    for (model, what) in [
        (TinyModel::recurrent(), "a layer mixes without attention"),
        (TinyModel::cycled(), "it has several streams or inputs"),
    ] {
        let warnings = Warnings::default();
        let found = run(&model, TUNED, engine(2), &warnings).unwrap();
        let start = run(&model, Solver::Sequential, engine(2), &Silent).unwrap();
        let expected =
            format!("the model has no gradient: {what}: the file is that of `--solver sequential`");
        assert_eq!(warnings.0.into_inner().unwrap(), [expected]);
        assert_eq!(solver(&found), "sequential");
        for meta in matrices(&model) {
            assert_eq!(blocks(&found, meta), blocks(&start, meta), "{}", meta.name);
        }
    }
}

/// A budget that is too small for the tuning is refused before anything runs, and the plan of a run has the same figure.
#[test]
fn memory_is_counted_before_anything_runs() {
    let model = TinyModel::dense();
    let small = EngineOptions { memory_bytes: 1 << 20, ..engine(2) };
    let error = run(&model, TUNED, small, &Silent).unwrap_err();
    let CalibrateError::TuneMemory { needed_bytes, weights, .. } = error else { panic!("{error}") };
    let n_weights: u64 = matrices(&model).map(|meta| meta.shape.n_elems()).sum();
    assert_eq!(weights, n_weights);
    assert!(needed_bytes > 17 * n_weights);
    assert!(error.hints()[0].ends_with("or choose `--solver sequential`"), "{:?}", error.hints());
}

deep_test!(other_types_are_tuned_too);
/// Types with other codes, and with a minimum, are tuned too.
fn other_types_are_tuned_too() {
    let model = TinyModel::dense();
    let rules = ["attn_q=iq4_nl", "attn_k=q5_1"].map(|rule| TensorTypeRule::parse(rule).unwrap());
    let quantize =
        QuantizeOptions { pure: true, tensor_types: rules.to_vec(), ..QuantizeOptions::new(FileType::Q4_0) };
    let options = FidelityOptions {
        solver: TUNED,
        engine: engine(2),
        quantize: &quantize,
        dir: &std::env::temp_dir(),
        work: None,
    };
    let input = Input::new(&model.tensors, &model.metadata);
    let outlook = Outlook::of(&model.model(), &input, &text(&model.model()), &options).unwrap();
    assert_eq!(outlook.notes, [""; 0]);
    assert!(outlook.tuning_bytes.is_some_and(|n| n > 17 * outlook.n_tuned));
    let found = solve(&model.model(), &input, &text(&model.model()), &options, &Silent).unwrap();
    assert_eq!(solver(&found), "tuned");
}

/// Tensors whose elements share codes stay, and are named once before anything runs.
#[test]
fn types_on_code_books_are_named() {
    let sizes = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 256),
        ("feed_forward_length", 256),
        ("attention.head_count", 4),
        ("rope.dimension_count", 64),
    ];
    let mut model = TinyModel::new("llama", &sizes, 1e-5);
    model.add(&[("token_embd.weight", &[64, 256]), ("output_norm.weight", &[256])]);
    for name in ["attn_norm", "ffn_norm"] {
        model.add(&[(&format!("blk.0.{name}.weight"), &[256])]);
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        model.add(&[(&format!("blk.0.{name}.weight"), &[256, 256])]);
    }
    let quantize = QuantizeOptions {
        pure: true,
        tensor_types: vec![TensorTypeRule::parse("ffn_(down|up)=iq3_s").unwrap()],
        ..QuantizeOptions::new(FileType::Q4_0)
    };
    let dir = std::env::temp_dir();
    let options =
        FidelityOptions { solver: TUNED, engine: engine(1), quantize: &quantize, dir: &dir, work: None };
    let input = Input::new(&model.tensors, &model.metadata);
    let outlook = Outlook::of(&model.model(), &input, &text(&model.model()), &options).unwrap();
    let expected = "not tuned, since the type has no code for each element: 2 tensors, `blk.0.ffn_down.weight` (IQ3_S), \
                    for example";
    assert_eq!(outlook.notes, [expected]);
    assert_eq!(outlook.n_tuned, 5 * 256 * 256 + 64 * 256);
}
