//! An adapter that is merged into a model: weights and rows that it replaces, and pairs of matrices that it adds.

use std::sync::Arc;

use crate::adapted::{Change, adapted};
use crate::layer::{Weight, WeightOrigin};
use crate::lengths::with_lengths;
use crate::lora::{LoraError, LoraPair, merge};
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::replaced_rows::{ReplacedRows, with_rows};
use crate::{Dequantized, InnerSource, Result};
use gguf_core::simd::SimdLevel;
use gguf_core::{WeightSource, scratch};

/// A weight that another one replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Index of the weight in the model.
    pub base: usize,
    /// Index of the replacement in the adapter.
    pub by: usize,
    /// True if the number of rows may differ, because tokens were added or removed.
    pub resizes: bool,
}

/// A bias of matrix B, which is added to a bias of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct AddedBias {
    /// Index of the bias in the model.
    pub base: usize,
    /// Index of the bias in the adapter.
    pub by: usize,
    /// Scale factor of the pair.
    pub scale: f32,
}

/// Changes of a model's weights by an adapter. Indices of A, B and replacements are those of the adapter's weights.
#[derive(Clone, Debug, Default)]
pub struct AdapterChanges {
    /// Weights that are stored twice under a second name, before anything changes.
    pub copies: Vec<(usize, String)>,
    /// Pairs of matrices. A base of at least the number of the model's weights is a copy.
    pub pairs: Vec<LoraPair>,
    /// Replaced weights.
    pub replaced: Vec<Replaced>,
    /// Replaced rows.
    pub rows: Vec<ReplacedRows>,
    /// Biases of matrices B.
    pub biases: Vec<AddedBias>,
    /// Weights whose rows, once all else is changed, get the lengths that a weight of the adapter has (DoRA).
    pub lengths: Vec<(usize, usize)>,
}

/// Returns a source that merges an adapter into a model's weights while these are read.
pub fn with_adapter(
    base: Arc<dyn WeightSource + Send>,
    adapter: &Arc<dyn WeightSource + Send>,
    changes: &AdapterChanges,
    level: SimdLevel,
) -> Result<Arc<dyn WeightSource + Send>, LoraError> {
    let n_base = base.weights().len();
    let mut weights: Vec<Weight> = (0..n_base).map(|index| Weight::plain(&*base, index)).collect();
    for (of, name) in &changes.copies {
        let mut weight = Weight::plain(&*base, *of);
        weight.meta.name.clone_from(name);
        weights.push(weight);
    }
    for &Replaced { base, by, resizes } in &changes.replaced {
        let own = &adapter.weights()[by];
        let weight = &mut weights[base];
        let is_resized = resizes && own.shape.dims().get(1..) == weight.meta.shape.dims().get(1..);
        if own.shape != weight.meta.shape && !is_resized {
            let (name, base) = (weight.meta.name.clone(), weight.meta.shape.clone());
            return Err(LoraError::Replaced { name, base, by: own.shape.clone() });
        }
        weight.meta.ty = own.ty;
        weight.meta.shape = own.shape.clone();
        weight.origin = WeightOrigin::Other(adapter.clone(), by);
    }
    for replaced in &changes.rows {
        let weight = std::mem::replace(&mut weights[replaced.base], Weight::plain(&*base, replaced.base));
        weights[replaced.base] = with_rows(weight, adapter, replaced)?;
    }
    let of_adapter = |by: usize| {
        let meta = adapter.weights()[by].clone();
        Weight { meta, origin: WeightOrigin::Other(adapter.clone(), by) }
    };
    for AddedBias { base: at, by, scale } in changes.biases.iter().cloned() {
        let (own, bias) = (&weights[at].meta, of_adapter(by));
        if own.shape != bias.meta.shape {
            let (name, base) = (own.name.clone(), own.shape.clone());
            return Err(LoraError::Replaced { name, base, by: bias.meta.shape });
        }
        let weight = std::mem::replace(&mut weights[at], Weight::plain(&*base, 0));
        weights[at] = adapted(weight, Scaled { by: Operand::of(bias), scale });
    }
    let mut moved = Vec::with_capacity(changes.pairs.len());
    for pair in &changes.pairs {
        moved.push(LoraPair { a: weights.len(), b: weights.len() + 1, ..pair.clone() });
        weights.extend([of_adapter(pair.a), of_adapter(pair.b)]);
    }
    let mut merged = merge(weights, &moved)?;
    // The matrices, which are merged now, were the last ones: the indices of others stay.
    for &(at, by) in &changes.lengths {
        let (own, lengths) = (merged[at].meta.clone(), of_adapter(by));
        if lengths.meta.shape.dims() != [own.shape.n_rows()] {
            return Err(LoraError::Replaced { name: own.name, base: own.shape, by: lengths.meta.shape });
        }
        let weight = std::mem::replace(&mut merged[at], Weight::plain(&*base, 0));
        merged[at] = with_lengths(weight, lengths);
    }
    Ok(Arc::new(Dequantized::over(base, level, merged)))
}

/// Another weight of the same shape, times a number, that is added.
struct Scaled {
    by: Operand,
    scale: f32,
}

impl Change for Scaled {
    fn apply(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<()> {
        scratch::with_floats(values.len(), |added| {
            self.by.read(inner, part, added)?;
            for (value, added) in values.iter_mut().zip(added.iter()) {
                *value = (f64::from(*value) + f64::from(self.scale) * f64::from(*added)) as f32;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lora::LoraPart;
    use gguf_core::little_endian::f32s;
    use gguf_testkit::memory::MemoryWeights;
    use gguf_testkit::noise::Noise;

    fn noise(tensors: &[(&str, &[u64])]) -> MemoryWeights {
        let mut noise = Noise::new(tensors.len() as u64);
        tensors.iter().fold(MemoryWeights::default(), |all, (name, dims)| {
            all.with_f32(name, dims, &noise.floats(dims.iter().product::<u64>() as usize))
        })
    }

    /// Computes W + scale · B · A, or the transposed variant, with a plain triple loop.
    fn sum(
        w: &[f32],
        b: &[f32],
        a: &[f32],
        [n, k, rank]: [usize; 3],
        scale: f32,
        is_transposed: bool,
    ) -> Vec<f32> {
        let mut out = Vec::new();
        for row in 0..n {
            for column in 0..k {
                let mut product = 0.0f64;
                for r in 0..rank {
                    let (left, right) = if is_transposed {
                        (a[r * n + row], b[column * rank + r])
                    } else {
                        (b[row * rank + r], a[r * k + column])
                    };
                    product += f64::from(left) * f64::from(right);
                }
                out.push((f64::from(w[row * k + column]) + f64::from(scale) * product) as f32);
            }
        }
        out
    }

    #[test]
    fn sums_are_those_of_a_triple_loop() {
        // More elements than one step, and rows longer than a step.
        for [n, k, rank] in [[5u64, 7, 3], [700, 130, 4], [3, 40_000, 1]] {
            for is_transposed in [false, true] {
                let (a_dims, b_dims) =
                    if is_transposed { ([rank, n], [k, rank]) } else { ([rank, k], [n, rank]) };
                let base = Arc::new(noise(&[("w.base_layer.weight", &[n, k]), ("norm", &[k])]));
                let adapter = Arc::new(noise(&[("norm", &[k]), ("b", &b_dims), ("a", &a_dims)]));
                let part = LoraPart::default();
                let pair = LoraPair { base: 0, a: 2, b: 1, scale: 0.75, is_transposed, part };
                let source: Arc<dyn WeightSource + Send> = adapter.clone();
                let replaced = vec![Replaced { base: 1, by: 0, resizes: false }];
                let changes = AdapterChanges { pairs: vec![pair], replaced, ..AdapterChanges::default() };
                let merged = with_adapter(base.clone(), &source, &changes, SimdLevel::detect()).unwrap();
                let names: Vec<&str> = merged.weights().iter().map(|meta| meta.name.as_str()).collect();
                assert_eq!(names, ["w.weight", "norm"]);
                let dims = [n, k, rank].map(|dim| dim as usize);
                let want = sum(&base.f32s(0), &adapter.f32s(1), &adapter.f32s(2), dims, 0.75, is_transposed);
                let read = |weight: usize, first: usize, n: usize| {
                    let mut out = vec![0; n * 4];
                    merged.read_elems(weight, first as u64, &mut out).unwrap();
                    f32s(&out).collect::<Vec<f32>>()
                };
                assert_eq!(read(0, 0, want.len()), want, "{dims:?} {is_transposed}");
                assert_eq!(read(0, 3, 9), want[3..12], "{dims:?} {is_transposed}");
                assert_eq!(read(1, 0, k as usize), adapter.f32s(0));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let base: Arc<dyn WeightSource + Send> = Arc::new(noise(&[("w", &[4, 6])]));
        let adapter: Arc<dyn WeightSource + Send> =
            Arc::new(noise(&[("a", &[2, 6]), ("b", &[4, 2]), ("a3", &[3, 6])]));
        let merge = |pairs: &[LoraPair], replaced: &[Replaced]| {
            let (pairs, replaced) = (pairs.to_vec(), replaced.to_vec());
            let changes = AdapterChanges { pairs, replaced, ..AdapterChanges::default() };
            with_adapter(base.clone(), &adapter, &changes, SimdLevel::Scalar).map(|_| ()).unwrap_err()
        };
        let part = LoraPart::default;
        let pair = |a: usize, is_transposed: bool| LoraPair {
            base: 0,
            a,
            b: 1,
            scale: 1.0,
            is_transposed,
            part: part(),
        };
        assert_eq!(
            merge(&[pair(2, false)], &[]).to_string(),
            "tensor `w`: shape [4, 6], but the adapter's matrices are [4, 2] and [3, 6]"
        );
        assert!(matches!(merge(&[pair(0, true)], &[]), LoraError::Shapes { .. }));
        assert!(matches!(merge(&[pair(0, false), pair(0, false)], &[]), LoraError::Twice { .. }));
        assert_eq!(
            merge(&[], &[Replaced { base: 0, by: 0, resizes: false }]).to_string(),
            "tensor `w`: shape [4, 6], but the adapter has [2, 6]"
        );
    }
}
