//! Low-rank adapters (LoRA) that lie beside the weights they belong to, merged as those are read.

use std::collections::HashSet;

use crate::core::simd::SimdLevel;
use crate::core::text::escape;
use crate::core::{ElementType, GgmlType, Packing, Shape, SourceError, WeightMeta, WeightSource};
use crate::quant::decode_elements;

/// A weight and the two matrices that change it: W + scale · B · A. Indices are those of the source.
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
pub enum LoraError {
    /// Shapes that do not multiply.
    #[error("tensor `{}`: shape {base}, but the adapter's matrices are {b} and {a}", escape(name))]
    Shapes {
        /// The weight.
        name: String,
        /// Shape of W.
        base: Shape,
        /// Shape of A.
        a: Shape,
        /// Shape of B.
        b: Shape,
    },
    /// A weight that two adapters change.
    #[error("tensor `{}` is changed twice", escape(name))]
    Twice {
        /// The weight.
        name: String,
    },
}

/// A source with its adapters merged; their matrices are gone, and so is PEFT's `.base_layer` in names.
///
/// # Exactness
/// Sums in F64 in the order of the rank, rounded to F32 once.
pub struct MergedLora {
    inner: Box<dyn WeightSource + Send>,
    metas: Vec<WeightMeta>,
    /// For each weight that is left: its index in the source, and what changes it.
    entries: Vec<(usize, Option<LoraPair>)>,
}

impl MergedLora {
    /// Merges the pairs.
    ///
    /// # Errors
    /// [`LoraError`].
    pub fn new(inner: Box<dyn WeightSource + Send>, pairs: &[LoraPair]) -> Result<Self, LoraError> {
        let weights = inner.weights();
        let mut bases = HashSet::new();
        for pair in pairs {
            let (base, a, b) = (&weights[pair.base], &weights[pair.a].shape, &weights[pair.b].shape);
            let fits = match (base.shape.dims(), a.dims(), b.dims()) {
                (&[n, k], &[r, k_a], &[n_b, r_b]) => n == n_b && k == k_a && r == r_b,
                _ => false,
            };
            if !fits {
                let (name, base) = (base.name.clone(), base.shape.clone());
                return Err(LoraError::Shapes { name, base, a: a.clone(), b: b.clone() });
            }
            if !bases.insert(pair.base) {
                return Err(LoraError::Twice { name: base.name.clone() });
            }
        }
        let (mut metas, mut entries) = (Vec::new(), Vec::new());
        for (weight, meta) in weights.iter().enumerate() {
            if pairs.iter().any(|pair| pair.a == weight || pair.b == weight) {
                continue;
            }
            let pair = pairs.iter().find(|pair| pair.base == weight).cloned();
            let mut meta = meta.clone();
            meta.name = meta.name.replace(".base_layer.", ".");
            if pair.is_some() {
                meta.ty = ElementType::F32;
            }
            metas.push(meta);
            entries.push((weight, pair));
        }
        Ok(Self { inner, metas, entries })
    }

    /// Elements of a weight of the source as F32.
    fn floats(&self, weight: usize, first: u64, out: &mut [f32]) -> Result<(), SourceError> {
        let meta = &self.inner.weights()[weight];
        let elem_bytes = meta.ty.bytes().unwrap_or(1);
        let mut bytes = vec![0; out.len() * elem_bytes];
        self.inner.read_elems(weight, first, &mut bytes)?;
        decode_elements(meta.ty, SimdLevel::Scalar, &bytes, out).map_err(|_| SourceError {
            tensor: meta.name.clone(),
            source: format!("{} elements are not numbers", meta.ty).into(),
        })
    }

    /// Elements `first ..` of one row of the merged weight.
    fn row(&self, pair: &LoraPair, row: u64, first: u64, out: &mut [[u8; 4]]) -> Result<(), SourceError> {
        let weights = self.inner.weights();
        let (cols, rank) = (weights[pair.base].shape.n_cols(), weights[pair.a].shape.n_rows());
        let mut line = vec![0.0f32; out.len()];
        let mut sums = vec![0.0f64; out.len()];
        for k in 0..rank {
            let mut factor = [0.0f32];
            self.floats(pair.b, row * rank + k, &mut factor)?;
            self.floats(pair.a, k * cols + first, &mut line)?;
            for (sum, value) in sums.iter_mut().zip(&line) {
                *sum += f64::from(factor[0]) * f64::from(*value);
            }
        }
        self.floats(pair.base, row * cols + first, &mut line)?;
        for ((out, value), sum) in out.iter_mut().zip(&line).zip(&sums) {
            *out = ((f64::from(*value) + f64::from(pair.scale) * sum) as f32).to_le_bytes();
        }
        Ok(())
    }
}

impl WeightSource for MergedLora {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (inner, pair) = &self.entries[weight];
        let Some(pair) = pair else { return self.inner.read_elems(*inner, first, out) };
        let cols = self.metas[weight].shape.n_cols();
        let mut at = first;
        let mut rest = out.as_chunks_mut::<4>().0;
        while !rest.is_empty() {
            let column = at % cols;
            let n = (cols - column).min(rest.len() as u64);
            let (line, tail) = rest.split_at_mut(n as usize);
            self.row(pair, at / cols, column, line)?;
            at += n;
            rest = tail;
        }
        Ok(())
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        match &self.entries[weight] {
            (inner, None) => self.inner.borrow(*inner),
            (_, Some(_)) => None,
        }
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        match &self.entries[weight] {
            (inner, None) => self.inner.packings(*inner),
            // The sum has no codes.
            (_, Some(_)) => Ok(Vec::new()),
        }
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        let (inner, pair) = &self.entries[weight];
        if pair.is_none() { self.inner.code_type(*inner) } else { None }
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.inner.read_packed(self.entries[weight].0, ty, first, out)
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        self.inner.release_elems(self.entries[weight].0, first, n);
    }
}
