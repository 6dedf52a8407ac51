//! Low-rank adapters (LoRA), merged into their weights while these are read.

use std::collections::HashSet;

use crate::adapted::{Change, adapted};
use crate::layer::Weight;
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{DequantError, InnerSource};
use gguf_core::text::escape;
use gguf_core::{Shape, scratch};

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
    pub is_transposed: bool,
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
        let product = LowRank {
            rank: a.meta.shape.n_rows(),
            a: Operand::of(a),
            b: Operand::of(b),
            scale: pair.scale,
            is_transposed: pair.is_transposed,
        };
        weights[pair.base] = Some(adapted(base, product));
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
                let [n_a, k_b] = if pair.is_transposed { [k_a, n_b] } else { [n_b, k_a] };
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

/// The product of two matrices that is added to a weight.
///
/// # Exactness
/// Sums are computed in F64 in the order of the rank and rounded to F32 once.
struct LowRank {
    a: Operand,
    b: Operand,
    rank: u64,
    scale: f32,
    is_transposed: bool,
}

/// Number of elements whose sums are kept at a time.
const STEP_ELEMS: usize = 1 << 15;

impl LowRank {
    /// Adds the product to the values of one step.
    fn add(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<(), DequantError> {
        let (Rectangle { rows, cols }, width) = (part, part.width().max(1));
        // A is read one rank at a time. Of B, all ranks of the step's rows are needed (of its columns if the weight
        // is transposed).
        let (along, across) =
            if self.is_transposed { (rows.clone(), cols.clone()) } else { (cols.clone(), rows.clone()) };
        let (n_along, n_across) = ((along.end - along.start) as usize, (across.end - across.start) as usize);
        let rank = self.rank as usize;
        let mut sums = vec![0.0f64; values.len()];
        scratch::with_floats(n_across * rank, |block| {
            self.b.read(inner, &Rectangle { rows: across, cols: 0..self.rank }, block)?;
            scratch::with_floats(n_along, |line| {
                for k in 0..rank {
                    let row = Rectangle { rows: k as u64..k as u64 + 1, cols: along.clone() };
                    self.a.read(inner, &row, line)?;
                    let column = block.iter().skip(k).step_by(rank);
                    if self.is_transposed {
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
        for (value, sum) in values.iter_mut().zip(&sums) {
            *value = (f64::from(*value) + f64::from(self.scale) * sum) as f32;
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

impl Change for LowRank {
    fn apply(
        &self,
        inner: InnerSource<'_>,
        part: &Rectangle,
        values: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = part.width();
        let n_rows = (STEP_ELEMS / width.max(1)).max(1);
        let mut row = part.rows.start;
        for values in values.chunks_mut((n_rows * width).max(1)) {
            let end = part.rows.end.min(row + n_rows as u64);
            self.add(inner, &Rectangle { rows: row..end, cols: part.cols.clone() }, values)?;
            row = end;
        }
        Ok(())
    }
}
