//! Low-rank adapters (LoRA) that lie beside the weights they belong to, merged as those are read.

use std::collections::HashSet;
use std::ops::Range;

use crate::core::text::escape;
use crate::core::{ElementType, Shape, WeightMeta};
use crate::dequant::layer::{Origin, Weight};
use crate::dequant::{Below, CodedWeight, DequantError};
use crate::quant::decode_elements;

/// A weight and the two matrices that change it: W + scale · B · A. Indices are those of the layer's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// W, `[n, k]`.
    pub base: usize,
    /// A, `[r, k]`.
    pub a: usize,
    /// B, `[n, r]`.
    pub b: usize,
    /// The factor, `lora_alpha / r`.
    pub scale: f32,
}

/// Why an adapter cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum LoraError {
    /// Shapes that do not multiply.
    #[error("tensor `{}`: shape {base}, but the adapter's matrices are {b} and {a}", escape(name))]
    Shapes { name: String, base: Shape, a: Shape, b: Shape },
    /// A tensor that two pairs have.
    #[error("tensor `{}` is changed twice", escape(name))]
    Twice { name: String },
}

/// Merges pairs into the weights of a layer: the matrices are gone, and so is PEFT's `.base_layer` in names.
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
        };
        weights[pair.base] = Some(Weight { meta, origin: Origin::Coded(Box::new(merged)) });
    }
    let mut merged: Vec<Weight> = weights.into_iter().flatten().collect();
    for weight in &mut merged {
        weight.meta.name = weight.meta.name.replace(".base_layer.", ".");
    }
    Ok(merged)
}

/// Checks that matrices multiply, and that none is in two pairs.
fn check(weights: &[Weight], pairs: &[LoraPair]) -> Result<(), LoraError> {
    let mut seen = HashSet::new();
    for pair in pairs {
        let [base, a, b] = [pair.base, pair.a, pair.b].map(|index| &weights[index].meta);
        let fits = match (base.shape.dims(), a.shape.dims(), b.shape.dims()) {
            (&[n, k], &[r, k_a], &[n_b, r_b]) => n == n_b && k == k_a && r == r_b,
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

/// A matrix of the sum.
struct Operand {
    /// Its element type, if it is plain.
    ty: ElementType,
    n_cols: u64,
    origin: Origin,
}

impl Operand {
    fn of(weight: Weight) -> Self {
        Self { ty: weight.meta.ty, n_cols: weight.meta.shape.n_cols(), origin: weight.origin }
    }

    /// Some columns of a row as F32.
    fn read(
        &self,
        below: Below<'_>,
        row: u64,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        match &self.origin {
            Origin::Coded(coded) => coded.decode(below, row..row + 1, cols, out),
            Origin::Plain(index) => {
                let first = row * self.n_cols;
                let decoded = below.with_elems(*index, first + cols.start..first + cols.end, |bytes| {
                    decode_elements(self.ty, below.level, bytes, out)
                })?;
                decoded.map_err(|_| DequantError::DtypeMismatch {
                    tensor: below.meta(*index).name.clone(),
                    found: self.ty,
                    expected: "numbers".to_owned(),
                })
            }
        }
    }
}

/// A weight with its adapter merged.
///
/// # Exactness
/// Sums in F64 in the order of the rank, rounded to F32 once.
struct Merged {
    base: Operand,
    a: Operand,
    b: Operand,
    rank: u64,
    scale: f32,
}

impl CodedWeight for Merged {
    fn decode(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        let mut line = vec![0.0f32; width];
        let mut sums = vec![0.0f64; width];
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            sums.fill(0.0);
            for k in 0..self.rank {
                let mut factor = [0.0f32];
                self.b.read(below, row, k..k + 1, &mut factor)?;
                self.a.read(below, k, cols.clone(), &mut line)?;
                for (sum, value) in sums.iter_mut().zip(&line) {
                    *sum += f64::from(factor[0]) * f64::from(*value);
                }
            }
            self.base.read(below, row, cols.clone(), &mut line)?;
            for ((out, value), sum) in out.iter_mut().zip(&line).zip(&sums) {
                *out = (f64::from(*value) + f64::from(self.scale) * sum) as f32;
            }
        }
        Ok(())
    }

    /// None: the sum has no codes.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "merged".to_owned()
    }

    /// The matrices of the adapter are small, and every row needs all of the first.
    fn release(&self, below: Below<'_>, shape: &Shape, elems: Range<u64>) {
        match &self.base.origin {
            Origin::Coded(coded) => coded.release(below, shape, elems),
            Origin::Plain(index) => below.source.release_elems(*index, elems.start, elems.end - elems.start),
        }
    }
}
