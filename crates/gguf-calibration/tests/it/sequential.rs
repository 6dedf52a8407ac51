//! Solver that follows the quantized model, on models of every kind of wiring.

use std::sync::Mutex;

use gguf_calibration::{CalibrateError, Fidelity, FidelityOptions, Solver, solve};
use gguf_core::progress::{CancelFlag, Progress, Silent};
use gguf_core::{Shape, TensorMeta, TensorSource};
use gguf_engine::{EngineError, EngineOptions};
use gguf_quantization::{FileType, Input, QuantizeOptions, SolvedRows, TensorTypeRule};

use super::text;
use crate::testkit::judged::Judged;
use crate::testkit::models::TinyModel;
use gguf_testkit::tiers::{Tier, two_tiers};

pub(crate) fn run(
    model: &TinyModel,
    solver: Solver,
    engine: EngineOptions,
    progress: &dyn Progress,
) -> Result<Fidelity, CalibrateError> {
    let quantize = QuantizeOptions { pure: true, ..QuantizeOptions::new(FileType::Q4_0) };
    let dir = tempfile::tempdir().unwrap();
    let options = FidelityOptions { solver, engine, quantize: &quantize, dir: dir.path(), work: None };
    let input = Input::new(&model.tensors, &model.metadata);
    solve(&model.model(), &input, &text(&model.model()), &options, progress)
}

pub(crate) fn engine(n_threads: usize) -> EngineOptions {
    EngineOptions { n_threads, ..EngineOptions::default() }
}

/// All blocks of a tensor, if all are there.
pub(crate) fn blocks(found: &Fidelity, meta: &TensorMeta) -> Option<Vec<u8>> {
    let blocks = found.blocks.as_ref().unwrap();
    let dims = meta.shape.dims();
    let n_matrices: u64 = dims[..dims.len() - 2].iter().product();
    if !(0..n_matrices).all(|matrix| blocks.has(&meta.name, matrix)) {
        return None;
    }
    let n_bytes = meta.shape.n_elems() / 32 * 18;
    let mut bytes = vec![0; n_bytes as usize];
    blocks.read(&meta.name, 0, &mut bytes).unwrap();
    Some(bytes)
}

pub(crate) fn matrices(model: &TinyModel) -> impl Iterator<Item = &TensorMeta> {
    let is_solved = |meta: &&TensorMeta| {
        let is_multiplied =
            ["conv1d", "ssm_a", "ffn_gate_inp", "norm"].iter().all(|part| !meta.name.contains(part));
        meta.shape.rank() > 1 && meta.shape.n_cols().is_multiple_of(32) && is_multiplied
    };
    model.tensors.tensors().iter().filter(is_solved)
}

two_tiers!(every_matrix_is_solved_and_the_file_diverges_less);
fn every_matrix_is_solved_and_the_file_diverges_less(tier: Tier) {
    let cases = [
        ("dense", TinyModel::dense(), false),
        ("experts", TinyModel::experts(4), false),
        ("parallel", TinyModel::parallel(), false),
        ("mamba", TinyModel::recurrent(), true),
        ("cycled", TinyModel::cycled(), false),
    ];
    for (name, model, has_own_embedding) in tier.some(3, cases) {
        let found = run(&model, Solver::Sequential, engine(2), &Silent).unwrap();
        assert_eq!(found.left, [], "{name}");
        for meta in matrices(&model) {
            let is_looked_up = has_own_embedding && meta.name == "token_embd.weight";
            assert_eq!(blocks(&found, meta).is_some(), !is_looked_up, "{name}: {}", meta.name);
        }
        let plain = run(&model, Solver::Reference, engine(2), &Silent).unwrap();
        assert_eq!(found.plain, plain.plain, "{name}: the importance of the same tokens");
        let ratio = found.ratio().unwrap();
        assert!(ratio < 0.7, "{name}: {ratio}");
    }
}

#[test]
fn the_blocks_do_not_depend_on_threads() {
    let model = TinyModel::experts(4);
    let one = run(&model, Solver::Sequential, engine(1), &Silent).unwrap();
    for n_threads in [2, 7] {
        let other = run(&model, Solver::Sequential, engine(n_threads), &Silent).unwrap();
        assert_eq!(one.trials[0].figures, other.trials[0].figures);
        for meta in matrices(&model) {
            assert_eq!(blocks(&one, meta), blocks(&other, meta), "{n_threads} threads: {}", meta.name);
        }
    }
}

/// An expert that no token is routed to is solved with the moments of the others of its layer.
#[test]
fn experts_without_tokens_are_solved_too() {
    let mut model = TinyModel::experts(4);
    // Opposite rows of two experts: whatever the last two get, one of the first two gets more.
    model.tensors.edit_f32s("blk.1.ffn_gate_inp.weight", |values| {
        for column in 0..64 {
            let x = values[column];
            values[64 + column] = -x;
            values[128 + column] = 0.1 * x;
            values[192 + column] = 0.1 * x;
        }
    });
    let found = run(&model, Solver::Sequential, engine(2), &Silent).unwrap();
    assert_eq!(found.left, []);
    for meta in matrices(&model) {
        assert!(blocks(&found, meta).is_some(), "{}", meta.name);
    }
}

#[test]
fn what_goes_wrong_ends_both_runs() {
    let mut model = TinyModel::dense();
    model.tensors.edit_f32s("blk.1.attn_norm.weight", |values| values[3] = f32::INFINITY);
    let error = run(&model, Solver::Sequential, engine(2), &Silent).unwrap_err();
    assert!(
        matches!(&error, CalibrateError::NonFinite { tensor } if tensor.starts_with("blk.1.attn_")),
        "{error}"
    );

    let cancelled = CancelFlag::default();
    cancelled.cancel();
    let error = run(&TinyModel::dense(), Solver::Sequential, engine(2), &cancelled).unwrap_err();
    assert!(matches!(error, CalibrateError::Engine(EngineError::Cancelled)), "{error}");

    let small = EngineOptions { memory_bytes: 1 << 20, ..engine(2) };
    let error = run(&TinyModel::dense(), Solver::Sequential, small, &Silent).unwrap_err();
    assert!(matches!(error, CalibrateError::Memory { .. }), "{error}");
}

/// The smallest sufficient budget gives the same result as any other: hidden states go to files.
#[test]
fn the_blocks_do_not_depend_on_memory() {
    struct Titles(Mutex<Vec<String>>);
    impl Progress for Titles {
        fn begin(&self, title: &str, _: u64) {
            self.0.lock().unwrap().push(title.to_owned());
        }
    }
    for (name, model) in [("experts", TinyModel::experts(4)), ("mamba", TinyModel::recurrent())] {
        let large = run(&model, Solver::Sequential, engine(2), &Silent).unwrap();
        let with = |memory_bytes, progress: &dyn Progress| {
            run(&model, Solver::Sequential, EngineOptions { memory_bytes, ..engine(2) }, progress)
        };
        let Err(CalibrateError::Memory { needed_bytes, .. }) = with(1, &Silent) else { panic!("{name}") };
        let titles = Titles(Mutex::default());
        let least = with(needed_bytes, &titles).unwrap();
        let titles = titles.0.into_inner().unwrap();
        assert!(titles.iter().any(|title| title.ends_with(", hidden states on disk")), "{titles:?}");
        assert_eq!(large.trials[0].figures, least.trials[0].figures, "{name}");
        for meta in matrices(&model) {
            assert_eq!(blocks(&large, meta), blocks(&least, meta), "{name}: {}", meta.name);
        }
    }
}

/// A run that is cancelled in the middle of a layer.
#[test]
fn cancelling_between_layers_ends_both_runs() {
    struct AfterOneLayer(CancelFlag);
    impl Progress for AfterOneLayer {
        fn figures(&self, text: &str) {
            if text == "layer 1 of 2" {
                self.0.cancel();
            }
        }
        fn is_cancelled(&self) -> bool {
            self.0.is_cancelled()
        }
    }
    let progress = AfterOneLayer(CancelFlag::default());
    let error = run(&TinyModel::experts(4), Solver::Sequential, engine(2), &progress).unwrap_err();
    assert!(matches!(error, CalibrateError::Engine(EngineError::Cancelled)), "{error}");
}

/// Types without a solver are followed too, with the importance of their matrices' inputs.
#[test]
fn types_without_a_solver_are_followed() {
    let model = TinyModel::dense();
    let quantize = QuantizeOptions {
        tensor_types: vec![TensorTypeRule::parse("ffn_down=q8_0").unwrap()],
        ..QuantizeOptions::new(FileType::Q4_0)
    };
    let dir = tempfile::tempdir().unwrap();
    let options = FidelityOptions {
        solver: Solver::Sequential,
        engine: engine(2),
        quantize: &quantize,
        dir: dir.path(),
        work: None,
    };
    let input = Input::new(&model.tensors, &model.metadata);
    let found = solve(&model.model(), &input, &text(&model.model()), &options, &Silent).unwrap();
    let names: Vec<&str> = found.without_solver.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"blk.0.ffn_down.weight"), "{names:?}");
    assert!(found.ratio().unwrap() < 0.8, "{:?}", found.ratio());
    let down = Shape::new(vec![64, 96]).unwrap();
    assert!(model.tensors.tensors().iter().any(|meta| meta.shape == down));
    assert!(!found.blocks.unwrap().has("blk.0.ffn_down.weight", 0));
}
