//! Low-rank adapters (LoRA), merged into their weights while these are read.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::core::scratch;
use crate::core::simd::SimdLevel;
use crate::core::text::escape;
use crate::core::{ElementType, Shape, WeightMeta, WeightSource};
use crate::dequant::layer::{Origin, Weight};
use crate::dequant::rows::{self, ReplacedRows};
use crate::dequant::{Below, CodedWeight, DequantError, Dequantized};
use crate::quant::decode_elements;

/// A weight and the two matrices that change it: W + scale · B · A, or W + scale · (B · A)ᵀ if W is transposed.
///
/// Indices are those of the layer's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// Index of W, `[n, k]`; `[k, n]` if it is transposed.
    pub base: usize,
    /// Index of A, `[r, k]`.
    pub a: usize,
    /// Index of B, `[n, r]`.
    pub b: usize,
    /// Scale factor, `lora_alpha / r`.
    pub scale: f32,
    /// True if the weight is stored transposed: an embedding, or a layer that multiplies from the other side
    /// (`Conv1D`).
    pub is_turned: bool,
}

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

/// Returns a source that merges an adapter into a model's weights while these are read.
///
/// In `pairs`, A and B are weights of the adapter.
///
/// # Errors
/// [`LoraError`]: matrices that do not fit.
pub fn with_adapter(
    base: Arc<dyn WeightSource + Send>,
    adapter: &Arc<dyn WeightSource + Send>,
    pairs: &[LoraPair],
    replaced: &[Replaced],
    rows: &[ReplacedRows],
    level: SimdLevel,
) -> Result<Arc<dyn WeightSource + Send>, LoraError> {
    let n_base = base.weights().len();
    let mut weights: Vec<Weight> = (0..n_base).map(|index| Weight::plain(&*base, index)).collect();
    for &Replaced { base, by, resizes } in replaced {
        let own = &adapter.weights()[by];
        let weight = &mut weights[base];
        let is_resized = resizes && own.shape.dims().get(1..) == weight.meta.shape.dims().get(1..);
        if own.shape != weight.meta.shape && !is_resized {
            let (name, base) = (weight.meta.name.clone(), weight.meta.shape.clone());
            return Err(LoraError::Replaced { name, base, by: own.shape.clone() });
        }
        weight.meta.ty = own.ty;
        weight.meta.shape = own.shape.clone();
        weight.origin = Origin::Beside(adapter.clone(), by);
    }
    for replaced in rows {
        let weight = std::mem::replace(&mut weights[replaced.base], Weight::plain(&*base, replaced.base));
        weights[replaced.base] = rows::with_rows(weight, adapter, replaced)?;
    }
    let beside = |by: usize| {
        let meta = adapter.weights()[by].clone();
        Weight { meta, origin: Origin::Beside(adapter.clone(), by) }
    };
    let mut moved = Vec::with_capacity(pairs.len());
    for pair in pairs {
        moved.push(LoraPair { a: weights.len(), b: weights.len() + 1, ..pair.clone() });
        weights.extend([beside(pair.a), beside(pair.b)]);
    }
    let merged = merge(weights, &moved)?;
    Ok(Arc::new(Dequantized::over(base, level, merged)))
}

/// Reasons why an adapter cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum LoraError {
    /// Matrices whose shapes cannot be multiplied.
    #[error("tensor `{}`: shape {base}, but the adapter's matrices are {b} and {a}", escape(name))]
    Shapes { name: String, base: Shape, a: Shape, b: Shape },
    /// A replacement of the wrong shape.
    #[error("tensor `{}`: shape {base}, but the adapter has {by}", escape(name))]
    Replaced { name: String, base: Shape, by: Shape },
    /// Replaced rows that a tensor does not have, or whose number differs from the row indices.
    #[error("tensor `{}`: shape {base}, but the adapter has {by} for rows {first} to {last}", escape(name))]
    Rows { name: String, base: Shape, by: Shape, first: u64, last: u64 },
    /// A tensor in two pairs.
    #[error("tensor `{}` is changed twice", escape(name))]
    Twice { name: String },
}

/// Merges pairs into the weights of a layer; removes the matrices, and PEFT's `.base_layer` from names.
///
/// # Errors
/// [`LoraError`].
pub(super) fn merge(weights: Vec<Weight>, pairs: &[LoraPair]) -> Result<Vec<Weight>, LoraError> {
    check(&weights, pairs)?;
    let mut weights: Vec<Option<Weight>> = weights.into_iter().map(Some).collect();
    for pair in pairs {
        let mut take = |index: usize| weights[index].take();
        let (Some(base), Some(a), Some(b)) = (take(pair.base), take(pair.a), take(pair.b)) else { continue };
        let meta = WeightMeta { ty: ElementType::F32, ..base.meta.clone() };
        let merged = Merged {
            rank: a.meta.shape.n_rows(),
            base: Operand::of(base),
            a: Operand::of(a),
            b: Operand::of(b),
            scale: pair.scale,
            is_turned: pair.is_turned,
        };
        weights[pair.base] = Some(Weight { meta, origin: Origin::Coded(Box::new(merged)) });
    }
    let mut merged: Vec<Weight> = weights.into_iter().flatten().collect();
    for weight in &mut merged {
        weight.meta.name = weight.meta.name.replace(".base_layer.", ".");
    }
    Ok(merged)
}

/// Checks that the matrices can be multiplied, and that none is in two pairs.
fn check(weights: &[Weight], pairs: &[LoraPair]) -> Result<(), LoraError> {
    let mut seen = HashSet::new();
    for pair in pairs {
        let [base, a, b] = [pair.base, pair.a, pair.b].map(|index| &weights[index].meta);
        let fits = match (base.shape.dims(), a.shape.dims(), b.shape.dims()) {
            (&[n, k], &[r, k_a], &[n_b, r_b]) => {
                let [n_a, k_b] = if pair.is_turned { [k_a, n_b] } else { [n_b, k_a] };
                n == n_a && k == k_b && r == r_b
            }
            _ => false,
        };
        if !fits {
            let (name, base) = (base.name.clone(), base.shape.clone());
            return Err(LoraError::Shapes { name, base, a: a.shape.clone(), b: b.shape.clone() });
        }
        if let Some(twice) = [pair.base, pair.a, pair.b].into_iter().find(|&index| !seen.insert(index)) {
            return Err(LoraError::Twice { name: weights[twice].meta.name.clone() });
        }
    }
    Ok(())
}

/// A matrix that is read as an operand.
pub(super) struct Operand {
    /// Element type of the weight, for plain weights.
    ty: ElementType,
    n_cols: u64,
    pub(super) origin: Origin,
}

impl Operand {
    pub(super) fn of(weight: Weight) -> Self {
        Self { ty: weight.meta.ty, n_cols: weight.meta.shape.n_cols(), origin: weight.origin }
    }

    /// Reads a rectangle as F32, row after row.
    pub(super) fn read(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let (source, index) = match self.origin.place(below.source) {
            Ok(found) => found,
            Err(coded) => return coded.decode(below, rows, cols, out),
        };
        let below = Below { source, level: below.level };
        let width = (cols.end - cols.start) as usize;
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let first = row * self.n_cols;
            let decoded = below.with_elems(index, first + cols.start..first + cols.end, |bytes| {
                decode_elements(self.ty, below.level, bytes, out)
            })?;
            decoded.map_err(|_| DequantError::DtypeMismatch {
                tensor: below.meta(index).name.clone(),
                found: self.ty,
                expected: "numbers".to_owned(),
            })?;
        }
        Ok(())
    }

    pub(super) fn expect(&self, below: Below<'_>) {
        match self.origin.place(below.source) {
            Ok((source, index)) => source.expect(index),
            Err(coded) => coded.expect(below),
        }
    }

    pub(super) fn release(&self, below: Below<'_>, shape: &Shape, elems: Range<u64>) {
        match self.origin.place(below.source) {
            Ok((source, index)) => source.release_elems(index, elems.start, elems.end - elems.start),
            Err(coded) => coded.release(below, shape, elems),
        }
    }
}

/// A weight with an adapter merged into it.
///
/// # Exactness
/// Sums are computed in F64 in the order of the rank and rounded to F32 once.
struct Merged {
    base: Operand,
    a: Operand,
    b: Operand,
    rank: u64,
    scale: f32,
    is_turned: bool,
}

/// Number of elements whose sums are kept at a time.
const STEP_ELEMS: u64 = 1 << 15;

impl Merged {
    /// Decodes the rows of one step.
    fn decode_step(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = ((cols.end - cols.start) as usize).max(1);
        // A is read one rank at a time. Of B, all ranks of the step's rows are needed (of its columns if the weight
        // is transposed).
        let (along, across) =
            if self.is_turned { (rows.clone(), cols.clone()) } else { (cols.clone(), rows.clone()) };
        let (n_along, n_across) = ((along.end - along.start) as usize, (across.end - across.start) as usize);
        let rank = self.rank as usize;
        let mut sums = vec![0.0f64; out.len()];
        scratch::with_floats(n_across * rank, |block| {
            self.b.read(below, across, 0..self.rank, block)?;
            scratch::with_floats(n_along, |line| {
                for k in 0..rank {
                    self.a.read(below, k as u64..k as u64 + 1, along.clone(), line)?;
                    let column = block.iter().skip(k).step_by(rank);
                    if self.is_turned {
                        for (sums, left) in sums.chunks_exact_mut(width).zip(line.iter()) {
                            add_products(sums, *left, column.clone());
                        }
                    } else {
                        for (sums, left) in sums.chunks_exact_mut(width).zip(column) {
                            add_products(sums, *left, line.iter());
                        }
                    }
                }
                Ok::<_, DequantError>(())
            })
        })?;
        self.base.read(below, rows, cols, out)?;
        for (out, sum) in out.iter_mut().zip(&sums) {
            *out = (f64::from(*out) + f64::from(self.scale) * sum) as f32;
        }
        Ok(())
    }
}

/// Adds `left` times each number of `right` to `sums`.
fn add_products<'a>(sums: &mut [f64], left: f32, right: impl Iterator<Item = &'a f32>) {
    for (sum, right) in sums.iter_mut().zip(right) {
        *sum += f64::from(left) * f64::from(*right);
    }
}

impl CodedWeight for Merged {
    fn decode(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = cols.end - cols.start;
        let n_rows = (STEP_ELEMS / width.max(1)).max(1);
        let mut row = rows.start;
        for out in out.chunks_mut((n_rows * width).max(1) as usize) {
            let end = rows.end.min(row + n_rows);
            self.decode_step(below, row..end, cols.clone(), out)?;
            row = end;
        }
        Ok(())
    }

    /// Returns no members: the sum has no codes.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "merged".to_owned()
    }

    fn expect(&self, below: Below<'_>) {
        self.base.expect(below);
    }

    /// Releases the base weight only: the adapter's matrices are small, and every row needs all of one.
    fn release(&self, below: Below<'_>, shape: &Shape, elems: Range<u64>) {
        self.base.release(below, shape, elems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SourceError;
    use crate::core::little_endian::{f32s, store_f32s};

    /// In-memory F32 tensors.
    struct Numbers(Vec<(WeightMeta, Vec<u8>)>, Vec<WeightMeta>);

    impl Numbers {
        fn new(tensors: &[(&str, &[u64])]) -> Self {
            let tensor = |(at, (name, dims)): (usize, &(&str, &[u64]))| {
                let shape = Shape::new(dims.to_vec()).unwrap();
                let value = |i: u64| ((i * 37 + at as u64 * 11) % 101) as f32 / 50.0 - 1.0;
                let values: Vec<f32> = (0..shape.n_elems()).map(value).collect();
                let mut bytes = vec![0; values.len() * 4];
                store_f32s(&values, &mut bytes);
                (WeightMeta { name: (*name).to_owned(), shape, ty: ElementType::F32 }, bytes)
            };
            let all: Vec<_> = tensors.iter().enumerate().map(tensor).collect();
            let metas = all.iter().map(|row| row.0.clone()).collect();
            Self(all, metas)
        }

        fn values(&self, at: usize) -> Vec<f32> {
            f32s(&self.0[at].1).collect()
        }
    }

    impl WeightSource for Numbers {
        fn weights(&self) -> &[WeightMeta] {
            &self.1
        }

        fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
            let start = first as usize * 4;
            out.copy_from_slice(&self.0[weight].1[start..start + out.len()]);
            Ok(())
        }
    }

    /// Computes W + scale · B · A, or the transposed variant, with a plain triple loop.
    fn sum(
        w: &[f32],
        b: &[f32],
        a: &[f32],
        [n, k, rank]: [usize; 3],
        scale: f32,
        is_turned: bool,
    ) -> Vec<f32> {
        let mut out = Vec::new();
        for row in 0..n {
            for column in 0..k {
                let mut product = 0.0f64;
                for r in 0..rank {
                    let (left, right) = if is_turned {
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
            for is_turned in [false, true] {
                let (a_dims, b_dims) =
                    if is_turned { ([rank, n], [k, rank]) } else { ([rank, k], [n, rank]) };
                let base = Arc::new(Numbers::new(&[("w.base_layer.weight", &[n, k]), ("norm", &[k])]));
                let adapter = Arc::new(Numbers::new(&[("norm", &[k]), ("b", &b_dims), ("a", &a_dims)]));
                let pair = LoraPair { base: 0, a: 2, b: 1, scale: 0.75, is_turned };
                let beside: Arc<dyn WeightSource + Send> = adapter.clone();
                let replaced = [Replaced { base: 1, by: 0, resizes: false }];
                let merged =
                    with_adapter(base.clone(), &beside, &[pair], &replaced, &[], SimdLevel::detect())
                        .unwrap();
                let names: Vec<&str> = merged.weights().iter().map(|meta| meta.name.as_str()).collect();
                assert_eq!(names, ["w.weight", "norm"]);
                let dims = [n, k, rank].map(|dim| dim as usize);
                let want =
                    sum(&base.values(0), &adapter.values(1), &adapter.values(2), dims, 0.75, is_turned);
                let read = |weight: usize, first: usize, n: usize| {
                    let mut out = vec![0; n * 4];
                    merged.read_elems(weight, first as u64, &mut out).unwrap();
                    f32s(&out).collect::<Vec<f32>>()
                };
                assert_eq!(read(0, 0, want.len()), want, "{dims:?} {is_turned}");
                assert_eq!(read(0, 3, 9), want[3..12], "{dims:?} {is_turned}");
                assert_eq!(read(1, 0, k as usize), adapter.values(0));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let base: Arc<dyn WeightSource + Send> = Arc::new(Numbers::new(&[("w", &[4, 6])]));
        let adapter: Arc<dyn WeightSource + Send> =
            Arc::new(Numbers::new(&[("a", &[2, 6]), ("b", &[4, 2]), ("a3", &[3, 6])]));
        let merge = |pairs: &[LoraPair], replaced: &[Replaced]| {
            with_adapter(base.clone(), &adapter, pairs, replaced, &[], SimdLevel::Scalar)
                .map(|_| ())
                .unwrap_err()
        };
        let pair = |a: usize, is_turned: bool| LoraPair { base: 0, a, b: 1, scale: 1.0, is_turned };
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
