//! Checkpoints of msModelSlim: values and blocks compared with the corpus, and refused checkpoints.

mod corpus;
mod hostile;
mod smoothed;

use std::path::Path;

use gguf_conversion::{ConvertOptions, ModelSource, OffsetSign};
use gguf_core::WeightSource;
use gguf_testkit::memory::{decoded, weight_bytes};

/// Opens a directory; errors are returned as the user sees them.
fn open(dir: &Path) -> Result<ModelSource, String> {
    open_signed(dir, OffsetSign::Auto)
}

fn open_signed(dir: &Path, offset_sign: OffsetSign) -> Result<ModelSource, String> {
    let options = ConvertOptions { offset_sign, ..ConvertOptions::default() };
    ModelSource::open(dir, &options).map_err(|error| error.to_string())
}

fn weights(source: &ModelSource) -> &dyn WeightSource {
    source.weights.as_deref().unwrap()
}

fn index(source: &dyn WeightSource, name: &str) -> Option<usize> {
    source.weights().iter().position(|weight| weight.name == name)
}

/// All elements of a weight as F32. They are read at once, and again in pieces that cut rows and blocks anywhere.
fn floats(source: &dyn WeightSource, at: usize) -> Vec<f32> {
    let meta = &source.weights()[at];
    let elem_bytes = meta.ty.bytes().unwrap();
    let n = meta.shape.n_elems() as usize;
    let whole = weight_bytes(source, at);
    for piece in [1, 37, 101] {
        let mut pieces = vec![0; n * elem_bytes];
        // Single elements are slow, so a few rows of them are enough.
        let until = if piece == 1 { n.min(300) } else { n };
        for first in (0..until).step_by(piece) {
            let end = (first + piece).min(until);
            source.read_elems(at, first as u64, &mut pieces[first * elem_bytes..end * elem_bytes]).unwrap();
        }
        assert_eq!(pieces[..until * elem_bytes], whole[..until * elem_bytes], "{} by {piece}", meta.name);
    }
    decoded(meta.ty, &whole)
}

fn named(source: &ModelSource, name: &str) -> Vec<f32> {
    let source = weights(source);
    floats(source, index(source, name).unwrap_or_else(|| panic!("{name} is missing")))
}
