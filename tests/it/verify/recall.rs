//! Results of a baseline that are kept for several models.

use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{SourceError, TensorMeta, TensorSource};
use gguf_foundry::engine::{EngineOptions, TokenChunk};
use gguf_foundry::verify::{Model, Recall, Window, divergence_on};

use crate::testkit::judged::{Judged, bare_model};
use crate::testkit::models::TinyModel;

/// Source that counts its reads.
struct Counted<'a>(&'a TinyModel, AtomicUsize);

impl TensorSource for Counted<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        self.0.tensors.tensors()
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.tensors.read_rows(tensor, first_row, out)
    }
}

fn window(prompt: usize) -> Window {
    let tokens: Vec<u32> = (0..24).map(|at| (at * at + 5 * prompt as u32) % 61).collect();
    let (targets, rows) = (tokens[7..].to_vec(), 6..23);
    Window {
        prompt,
        start: 0,
        chunk: TokenChunk { tokens, rows: rows.clone(), n_source: 0 },
        targets,
        scored: rows,
    }
}

#[test]
fn a_baseline_is_read_once_for_several_models() {
    let (base, mut models) = (TinyModel::dense(), [TinyModel::dense(), TinyModel::dense()]);
    for (at, model) in models.iter_mut().enumerate() {
        let change = |values: &mut [f32]| values.iter_mut().step_by(at + 2).for_each(|value| *value *= 1.1);
        model.tensors.edit_f32s("blk.1.ffn_down.weight", change);
    }
    let source = Counted(&base, AtomicUsize::new(0));
    let windows: Vec<Window> = (0..5).map(window).collect();
    let alone = bare_model(&source, &base.metadata, &base.features);
    let on = |model: &TinyModel, baseline: &Model<'_>, windows: &[Window]| {
        let found = divergence_on(&model.model(), baseline, windows, EngineOptions::default(), &Silent);
        let n_reads = source.1.swap(0, Ordering::Relaxed);
        (found.unwrap().unwrap(), n_reads)
    };
    let recall = Recall::of_many();
    let kept = Model { recall: Some(&recall), ..alone };
    let (first, n_reads) = on(&models[0], &kept, &windows);
    assert!(n_reads > 0 && first.kld.mean > 0.0);
    assert_eq!(on(&models[0], &alone, &windows).0, first);
    // The second model needs neither the baseline's layers nor its head; nor does a part of the text in other groups.
    for own in [&windows[..], &windows[1..3], &windows[4..]] {
        let (found, n_reads) = on(&models[1], &kept, own);
        assert_eq!(n_reads, 0);
        assert_eq!(on(&models[1], &alone, own).0, found);
    }
    // For a single model only its hidden states are kept.
    let recall = Recall::default();
    let kept = Model { recall: Some(&recall), ..alone };
    on(&models[0], &kept, &windows);
    let (found, n_reads) = on(&models[1], &kept, &windows);
    assert!(n_reads > 0);
    assert_eq!(on(&models[1], &alone, &windows).0, found);
}
