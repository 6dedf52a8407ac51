//! Gradients of a model's divergence from another, for `lab/peers/gradients.py`:
//! `cargo run --release -p gguf-verification --example gradients MODEL.gguf REFERENCE.gguf TOKENS OUT_DIR`.
//!
//! TOKENS are ids with commas. Every tensor with a gradient is a file of F32 numbers of its name in OUT_DIR; the mean
//! divergence is printed.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;

use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineOptions, Gradients, Matrix, Reference, TokenChunk, Vector};
use gguf_format::GgufFile;
use gguf_verification::ModelParts;

/// Sums of gradients by tensor.
#[derive(Default)]
struct Sums(BTreeMap<usize, Vec<f32>>);

impl Sums {
    fn add(&mut self, tensor: usize, first: usize, values: &[f32]) {
        let sums = self.0.entry(tensor).or_default();
        sums.resize(sums.len().max(first + values.len()), 0.0);
        sums[first..].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
}

impl Gradients for Sums {
    fn rows(&mut self, matrix: &Matrix, first: usize, gradient: &[f32]) {
        self.add(matrix.tensor, (matrix.first_row + first) * matrix.n_cols, gradient);
    }

    fn vector(&mut self, vector: &Vector, gradient: &[f32]) {
        self.add(vector.tensor, vector.first, gradient);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, reference, tokens, out] = arguments.as_slice() else {
        return Err("arguments: MODEL.gguf REFERENCE.gguf TOKENS OUT_DIR".into());
    };
    let tokens: Vec<u32> = tokens.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let chunks = [TokenChunk { rows: 0..tokens.len(), tokens, n_source: 0 }];
    let [model, reference] = [GgufFile::open(model.as_ref())?, GgufFile::open(reference.as_ref())?];
    let engine = |file| -> Result<Engine<'_>, Box<dyn Error>> {
        let file: &GgufFile = file;
        let parts = ModelParts::of(file.metadata());
        let plan =
            parts.with(file, file.metadata(), Some(file), |model| Ok::<_, Box<dyn Error>>(model.plan()?))?;
        Ok(Engine::new(plan, file, EngineOptions::default())?)
    };
    let (own, other) = (engine(&model)?, engine(&reference)?);
    let hidden = other.hidden(&chunks)?;
    let mut sums = Sums::default();
    let divergence =
        own.gradients(&chunks, Reference { engine: &other, hidden: &hidden }, &mut sums, &Silent)?;
    for (tensor, values) in sums.0 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        fs_err::write(Path::new(out).join(&model.tensors()[tensor].name), bytes)?;
    }
    Ok(writeln!(std::io::stdout(), "{divergence:e}")?)
}
