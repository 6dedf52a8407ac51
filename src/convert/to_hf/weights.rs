//! The weights of a checkpoint that is made from a GGUF file.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::arch::OutputSpec;
use crate::core::numeric::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::core::simd::SimdLevel;
use crate::core::{ElementType, SourceError, WeightMeta, WeightSource};
use crate::views::decoded::Decoded;
use crate::views::{Recipe, recipe};

use super::ToHfError;

/// Elements decoded at a time by one thread.
const STEP_ELEMS: u64 = 1 << 18;

/// The weights of the checkpoint to be, made from the GGUF's tensors as they are read.
pub(super) struct Weights<'a> {
    source: Decoded<'a>,
    recipes: Vec<Recipe>,
    metas: Vec<WeightMeta>,
    level: SimdLevel,
}

impl WeightSource for Weights<'_> {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.metas[weight];
        let elem_bytes = meta.ty.bytes().unwrap_or(4);
        let mut floats = vec![0.0; out.len() / elem_bytes];
        self.recipes[weight]
            .read_f32(&self.source, self.level, first, &mut floats)
            .map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })?;
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

impl<'a> Weights<'a> {
    /// The weights that an inverse card names, as F32.
    ///
    /// # Errors
    /// An operation that does not fit its tensor.
    pub(super) fn new(
        source: Decoded<'a>,
        outputs: &[OutputSpec],
        level: SimdLevel,
    ) -> Result<Self, ToHfError> {
        let recipes = outputs.iter().map(|output| recipe(output, source.weights()));
        let recipes = recipes.collect::<Result<Vec<_>, _>>()?;
        let meta = |(output, recipe): (&OutputSpec, &Recipe)| WeightMeta {
            name: output.name.clone(),
            shape: recipe.shape().clone(),
            ty: ElementType::F32,
        };
        let metas = outputs.iter().zip(&recipes).map(meta).collect();
        Ok(Self { source, recipes, metas, level })
    }

    /// Gives all weights one type.
    pub(super) fn set_type(&mut self, ty: ElementType) {
        for meta in &mut self.metas {
            meta.ty = ty;
        }
    }

    /// Number of elements of all weights.
    pub(super) fn n_elems(&self) -> u64 {
        self.metas.iter().map(|meta| meta.shape.n_elems()).sum()
    }

    /// True if every value of every tensor is the same after a round trip through the type.
    fn all_exact(&self, ty: ElementType) -> Result<bool, ToHfError> {
        let is_exact = |x: f32| {
            let back = match ty {
                ElementType::Bf16 => bf16_to_f32(f32_to_bf16(x)),
                _ => f16_to_f32(f32_to_f16(x)),
            };
            back.to_bits() == x.to_bits()
        };
        for (weight, recipe) in self.recipes.iter().enumerate() {
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

    /// The narrowest of BF16, F16 and F32 that holds every value exactly; reads all of them.
    ///
    /// # Errors
    /// A tensor could not be decoded.
    pub(super) fn narrowest(&self) -> Result<ElementType, ToHfError> {
        for ty in [ElementType::Bf16, ElementType::F16] {
            if self.all_exact(ty)? {
                return Ok(ty);
            }
        }
        Ok(ElementType::F32)
    }
}
