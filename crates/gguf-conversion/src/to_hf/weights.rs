//! Weights of a checkpoint that is made from a GGUF file.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use gguf_arch::OutputSpec;
use gguf_core::numeric::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, SourceError, WeightMeta, WeightSource};
use gguf_views::decoded::Decoded;
use gguf_views::{ReadPolicy, Recipe, ViewError, recipe};

use super::ToHfError;

/// Number of elements that one thread decodes at a time.
const STEP_ELEMS: u64 = 1 << 18;

/// Weights of the checkpoint, made from the GGUF's tensors as they are read.
pub(super) struct HfWeights<'a> {
    source: Decoded<'a>,
    recipes: Vec<Recipe>,
    metas: Vec<WeightMeta>,
    /// Integer type of each weight; `None` for floats.
    integers: Vec<Option<GgmlType>>,
    level: SimdLevel,
}

impl WeightSource for HfWeights<'_> {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.metas[weight];
        let elem_bytes = meta.ty.bytes().unwrap_or(4);
        let failed = |error: ViewError| SourceError { tensor: meta.name.clone(), source: error.into() };
        if let Some(ty) = self.integers[weight] {
            return self.read_integers(weight, ty, first, out).map_err(failed);
        }
        let mut floats = vec![0.0; out.len() / elem_bytes];
        self.recipes[weight].read_f32(&self.source, self.level, first, &mut floats).map_err(failed)?;
        match meta.ty {
            ElementType::Bf16 => encode(&floats, out, |x| f32_to_bf16(x).to_le_bytes()),
            ElementType::F16 => encode(&floats, out, |x| f32_to_f16(x).to_le_bytes()),
            _ => encode(&floats, out, f32::to_le_bytes),
        }
        Ok(())
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let n_cols = self.metas[weight].shape.n_cols().max(1);
        self.recipes[weight].release_rows(&self.source, first / n_cols, n / n_cols);
    }
}

fn encode<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (raw, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *raw = bytes(value);
    }
}

/// Returns the type of a tensor made of integers of one type. No float type is sure to hold them, and readers of the
/// checkpoint take them for indices.
fn integers(recipe: &Recipe, weights: &[WeightMeta]) -> Option<GgmlType> {
    let mut types = recipe.weights().into_iter().map(|index| weights[index].ty);
    let first = types.next()?;
    let ty = match first {
        ElementType::I64 => GgmlType::I64,
        ElementType::I32 => GgmlType::I32,
        _ => return None,
    };
    types.all(|ty| ty == first).then_some(ty)
}

impl<'a> HfWeights<'a> {
    /// Reads elements of an integer tensor.
    fn read_integers(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let elem_bytes = ty.block_bytes() as u64;
        let recipe = &self.recipes[weight];
        let n_cols = recipe.shape().n_cols().max(1);
        let too_large = |_| ViewError::TooLarge { n_cols };
        // Read whole rows; the range may start or end within a row.
        let (row, skip) = (first / n_cols, first % n_cols * elem_bytes);
        let row_bytes = n_cols.saturating_mul(elem_bytes);
        let n_rows = skip.saturating_add(out.len() as u64).div_ceil(row_bytes);
        let mut rows = vec![0; usize::try_from(n_rows.saturating_mul(row_bytes)).map_err(too_large)?];
        let policy = ReadPolicy { level: self.level, allow_nonfinite: true };
        recipe.read_rows(&self.source, ty, policy, row, &mut rows)?;
        let skip = usize::try_from(skip).map_err(too_large)?;
        out.copy_from_slice(&rows[skip..skip + out.len()]);
        Ok(())
    }

    /// Creates the weights that an inverse card names: F32, or integers if made of integers.
    pub(super) fn new(
        source: Decoded<'a>,
        outputs: &[OutputSpec],
        level: SimdLevel,
    ) -> Result<Self, ToHfError> {
        let recipes = outputs.iter().map(|output| recipe(output, source.weights()));
        let recipes = recipes.collect::<Result<Vec<_>, _>>()?;
        let integers = recipes.iter().map(|recipe| integers(recipe, source.weights())).collect();
        let meta = |(output, recipe): (&OutputSpec, &Recipe)| WeightMeta {
            name: output.name.clone(),
            shape: recipe.shape().clone(),
            ty: ElementType::F32,
        };
        let metas = outputs.iter().zip(&recipes).map(meta).collect();
        let mut weights = Self { source, recipes, metas, integers, level };
        weights.set_type(ElementType::F32);
        Ok(weights)
    }

    /// Sets the type of all weights except integers.
    pub(super) fn set_type(&mut self, ty: ElementType) {
        for (meta, integers) in self.metas.iter_mut().zip(&self.integers) {
            meta.ty = match integers {
                Some(GgmlType::I64) => ElementType::I64,
                Some(_) => ElementType::I32,
                None => ty,
            };
        }
    }

    pub(super) fn n_bytes(&self) -> u64 {
        let bytes = |meta: &WeightMeta| {
            let elem_bytes = meta.ty.bytes().unwrap_or(4) as u64;
            meta.shape.n_elems().saturating_mul(elem_bytes)
        };
        self.metas.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Returns true if a round trip through the type preserves every value.
    fn all_exact(&self, ty: ElementType) -> Result<bool, ToHfError> {
        let is_exact = |x: f32| {
            let back = match ty {
                ElementType::Bf16 => bf16_to_f32(f32_to_bf16(x)),
                _ => f16_to_f32(f32_to_f16(x)),
            };
            back.to_bits() == x.to_bits()
        };
        let recipes = self.recipes.iter().enumerate().filter(|row| self.integers[row.0].is_none());
        for (weight, recipe) in recipes {
            let n = recipe.shape().n_elems();
            let inexact = AtomicBool::new(false);
            (0..n.div_ceil(STEP_ELEMS)).into_par_iter().try_for_each(|step| {
                if inexact.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let first = step * STEP_ELEMS;
                let mut values = vec![0.0; STEP_ELEMS.min(n - first) as usize];
                recipe
                    .read_f32(&self.source, self.level, first, &mut values)
                    .map_err(|source| ToHfError::Read { tensor: self.metas[weight].name.clone(), source })?;
                if !values.iter().all(|&x| is_exact(x)) {
                    inexact.store(true, Ordering::Relaxed);
                }
                Ok::<(), ToHfError>(())
            })?;
            if inexact.into_inner() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the narrowest of BF16, F16 and F32 that holds every value exactly; reads all values.
    pub(super) fn narrowest(&self) -> Result<ElementType, ToHfError> {
        for ty in [ElementType::Bf16, ElementType::F16] {
            if self.all_exact(ty)? {
                return Ok(ty);
            }
        }
        Ok(ElementType::F32)
    }
}
