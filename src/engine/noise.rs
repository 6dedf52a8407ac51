//! Tiny models with noise for weights, and the arithmetic of their formulas in f64, for tests.

use std::sync::Mutex;

use crate::arch::graph::GraphFeatures;
use crate::core::progress::Silent;
use crate::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use crate::engine::{Engine, EngineError, EngineOptions, GraphPlan, Observer, TokenChunk};
use crate::gguf::Metadata;

/// Model in memory, with f32 tensors.
pub(crate) struct NoiseModel {
    pub(crate) metas: Vec<TensorMeta>,
    pub(crate) metadata: Metadata,
    values: Vec<Vec<f32>>,
}

impl TensorSource for NoiseModel {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let skip = first as usize * self.metas[tensor].shape.n_cols() as usize;
        let bytes = self.values[tensor][skip..].iter().flat_map(|x| x.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

impl NoiseModel {
    /// Returns a model without tensors, of architecture `x`, with these keys and this RMS norm epsilon.
    pub(crate) fn new(keys: &[(&str, usize)], eps: f32) -> Self {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "x");
        for &(key, value) in keys {
            metadata.set(format!("x.{key}"), value as u32);
        }
        metadata.set("x.attention.layer_norm_rms_epsilon", eps);
        Self { metas: Vec::new(), metadata, values: Vec::new() }
    }

    /// Adds f32 tensors of these names and dimensions, filled with noise.
    pub(crate) fn add(&mut self, tensors: &[(&str, &[usize])]) {
        for (name, dims) in tensors {
            let mut state = 77 + self.metas.len() as u32;
            let noise = (0..dims.iter().product::<usize>()).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            });
            self.values.push(noise.collect());
            let shape = Shape::new(dims.iter().map(|&n| n as u64).collect::<Vec<_>>()).unwrap();
            self.metas.push(TensorMeta { name: (*name).to_owned(), shape, ty: GgmlType::F32 });
        }
    }

    /// Replaces a tensor's noise by these values.
    pub(crate) fn set(&mut self, name: &str, values: &[f32]) {
        let at = self.metas.iter().position(|meta| meta.name == name).unwrap();
        assert_eq!(self.values[at].len(), values.len());
        self.values[at] = values.to_vec();
    }

    /// Returns a tensor's values.
    pub(crate) fn get(&self, name: &str) -> Vec<f64> {
        let at = self.metas.iter().position(|meta| meta.name == name).unwrap();
        self.values[at].iter().map(|&x| f64::from(x)).collect()
    }

    /// Resolves the graph from a card's `[graph]` in TOML.
    pub(crate) fn plan(&self, graph: &str) -> Result<GraphPlan, EngineError> {
        let features = GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap();
        GraphPlan::new(&features, &self.metadata, &self.metas)
    }

    /// Returns what an operation of the last layer reports under `name`; asserts that the threads do not change it.
    pub(crate) fn slot(&self, graph: &str, name: &'static str, tokens: &[u32]) -> Vec<f32> {
        let run = |n_threads| {
            let options = EngineOptions { n_threads, ..EngineOptions::default() };
            let engine = Engine::new(self.plan(graph).unwrap(), self, options).unwrap();
            let chunk =
                TokenChunk { tokens: tokens.to_vec(), rows: 0..tokens.len(), ..TokenChunk::default() };
            let kept = SlotRecorder { name, values: Mutex::default() };
            engine.forward(&[chunk], &Silent, Some(&kept)).unwrap();
            kept.values.into_inner().unwrap()
        };
        let found = run(1);
        assert_eq!(found, run(3));
        found
    }
}

/// Observer that keeps the last values reported under one name.
struct SlotRecorder {
    name: &'static str,
    values: Mutex<Vec<f32>>,
}

impl Observer for SlotRecorder {
    fn slot(&self, _: usize, name: &str, x: &[f32], _: usize) {
        if name == self.name {
            *self.values.lock().unwrap() = x.to_vec();
        }
    }
}

/// Returns `W x`.
pub(crate) fn times(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

/// Returns the RMS norm of `x` with weights `w`.
pub(crate) fn normed(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(w).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// Asserts that every element is within `tolerance` of the expected one.
pub(crate) fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*x) - y).abs() < tolerance, "{at}: {x} and {y}");
    }
}
