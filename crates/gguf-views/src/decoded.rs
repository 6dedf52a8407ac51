//! Tensors of a GGUF as a checkpoint: block types are decoded to F32 when they are read, plain types are kept. Factors
//! stored next to blocks are multiplied in.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::recipe::plain;
use gguf_blocks::{self, QuantError};
use gguf_core::little_endian::f32s;
use gguf_core::simd::SimdLevel;
use gguf_core::{
    ElementType, GgmlType, Shape, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource,
};

/// Adapter from a [`TensorSource`] to a [`WeightSource`] with the same tensors in the same order.
///
/// Plain types keep their type; every block type reads as F32. `x.scale` of one number, or of one for each matrix of a
/// stack, belongs to `x.weight`, which then also reads as F32. It is multiplied in, and neither it nor `x.input_scale`
/// is a weight.
pub struct Decoded<'a> {
    source: &'a dyn TensorSource,
    weights: Vec<WeightMeta>,
    /// Tensor index of each weight, and its factors: one, or one for each matrix of a stack.
    places: Vec<(usize, Vec<f32>)>,
    level: SimdLevel,
}

impl std::fmt::Debug for Decoded<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoded").field("weights", &self.weights.len()).field("level", &self.level).finish()
    }
}

/// Number of factors of a tensor: one for each matrix of a stack.
fn n_factors(shape: &Shape) -> u64 {
    if shape.rank() == 3 { shape.dims()[0] } else { 1 }
}

/// Returns the element type that a tensor type reads as.
pub(crate) fn decoded_type(ty: GgmlType) -> ElementType {
    plain(ty).unwrap_or(ElementType::F32)
}

impl<'a> Decoded<'a> {
    /// Wraps a source. Names and shapes are kept.
    #[cfg(test)]
    pub(crate) fn new(source: &'a dyn TensorSource, level: SimdLevel) -> Result<Self, SourceError> {
        Self::with_own(source, level, &|_| false)
    }

    /// Wraps a source in which some tensors only look like factors: `is_own` recognizes them by name, and they remain
    /// weights.
    pub fn with_own(
        source: &'a dyn TensorSource,
        level: SimdLevel,
        is_own: &dyn Fn(&str) -> bool,
    ) -> Result<Self, SourceError> {
        let tensors = source.tensors();
        let by_name: HashMap<&str, usize> =
            tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        let factor_of = |weight: &TensorMeta, suffix: &str| {
            let base = weight.name.strip_suffix(".weight")?;
            let at = *by_name.get(format!("{base}{suffix}").as_str())?;
            let fits =
                tensors[at].ty == GgmlType::F32 && n_factors(&weight.shape) == tensors[at].shape.n_elems();
            (fits && !is_own(&tensors[at].name)).then_some(at)
        };
        let mut is_factor = vec![false; tensors.len()];
        let mut factors = vec![Vec::new(); tensors.len()];
        for (tensor, factors) in tensors.iter().zip(&mut factors) {
            if let Some(at) = factor_of(tensor, ".input_scale") {
                is_factor[at] = true;
            }
            let Some(at) = factor_of(tensor, ".scale") else { continue };
            is_factor[at] = true;
            let mut bytes = vec![0; tensors[at].shape.n_elems() as usize * size_of::<f32>()];
            source.read_rows(at, 0, &mut bytes)?;
            *factors = f32s(&bytes).collect();
        }
        let (mut weights, mut places) = (Vec::new(), Vec::new());
        for (at, (tensor, factors)) in tensors.iter().zip(factors).enumerate().filter(|row| !is_factor[row.0])
        {
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            let ty = if factors.is_empty() { decoded_type(tensor.ty) } else { ElementType::F32 };
            weights.push(WeightMeta { name, shape, ty });
            places.push((at, factors));
        }
        Ok(Self { source, weights, places, level })
    }

    /// Gives the weights other shapes of the same elements, by their names.
    #[must_use]
    pub fn reshaped(mut self, shape: impl Fn(&str, &Shape) -> Shape) -> Self {
        for weight in &mut self.weights {
            weight.shape = shape(&weight.name, &weight.shape);
        }
        self
    }
}

thread_local! {
    /// One encoded row and its floats; kept, because readers request thousands of rows.
    static SCRATCH: RefCell<(Vec<u8>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Reason why a row could not be decoded.
#[derive(Debug, thiserror::Error)]
enum DecodeError {
    #[error("rows of {n_cols} {ty} elements do not fit in memory")]
    TooLarge { ty: GgmlType, n_cols: u64 },
    #[error(transparent)]
    Quant(#[from] QuantError),
}

impl WeightSource for Decoded<'_> {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (index, factors) = &self.places[weight];
        let tensor = &self.source.tensors()[*index];
        let failed = |error: DecodeError| SourceError { tensor: tensor.name.clone(), source: error.into() };
        let n_cols = tensor.shape.n_cols();
        let too_large = || failed(DecodeError::TooLarge { ty: tensor.ty, n_cols });
        let cols = usize::try_from(n_cols).map_err(|_| too_large())?;
        let row_bytes =
            tensor.row_bytes().and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_large)?;
        let elem_bytes = self.weights[weight].ty.bytes().unwrap_or(4);
        SCRATCH.with_borrow_mut(|(encoded, floats)| {
            let mut done = 0;
            let mut at = first;
            while done < out.len() {
                let row = at / n_cols;
                let skip = (at % n_cols) as usize;
                let take = (cols - skip).min((out.len() - done) / elem_bytes);
                let target = &mut out[done..done + take * elem_bytes];
                let encoded: &[u8] = match self.source.borrow_rows(*index, row, 1) {
                    Some(borrowed) => borrowed,
                    None => {
                        encoded.resize(row_bytes, 0);
                        self.source.read_rows(*index, row, encoded)?;
                        &*encoded
                    }
                };
                if tensor.ty.is_quantized() || !factors.is_empty() {
                    // Only the requested blocks of a row: a transposed matrix takes one element of each.
                    let (elems, bytes) = (tensor.ty.block_elems(), tensor.ty.block_bytes());
                    let blocks = skip / elems..(skip + take).div_ceil(elems);
                    floats.resize(blocks.len() * elems, 0.0);
                    let encoded = &encoded[blocks.start * bytes..blocks.end * bytes];
                    gguf_blocks::dequantize(tensor.ty, self.level, encoded, floats)
                        .map_err(|e| failed(e.into()))?;
                    // Each factor has the same number of rows.
                    let slab = row / (tensor.shape.n_rows() / factors.len().max(1) as u64).max(1);
                    if let Some(&factor) = factors.get(slab as usize) {
                        for value in floats.iter_mut() {
                            *value *= factor;
                        }
                    }
                    let first = skip - blocks.start * elems;
                    for (bytes, value) in target.chunks_exact_mut(4).zip(&floats[first..]) {
                        bytes.copy_from_slice(&value.to_le_bytes());
                    }
                } else {
                    target.copy_from_slice(&encoded[skip * elem_bytes..][..take * elem_bytes]);
                }
                done += take * elem_bytes;
                at += take as u64;
            }
            Ok(())
        })
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        let (index, factors) = &self.places[weight];
        let tensor = &self.source.tensors()[*index];
        if tensor.ty.is_quantized() || !factors.is_empty() {
            return None;
        }
        self.source.borrow_rows(*index, 0, tensor.shape.n_rows())
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let index = self.places[weight].0;
        let n_cols = self.weights[weight].shape.n_cols().max(1);
        // Rows wholly inside the range: a neighbour may still need the others.
        let first_row = first.div_ceil(n_cols);
        let last_row = first.saturating_add(n) / n_cols;
        if first_row < last_row {
            self.source.release_rows(index, first_row, last_row - first_row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_testkit::memory::MemoryTensors;

    /// Two stacked matrices of one row in blocks, a plain matrix of one row, factors, and tensors that only look like
    /// factors.
    fn stacks_with_factors() -> MemoryTensors {
        // Scale 1.0, codes 1.
        let block = [&[0, 0x3c][..], &[1; 32]].concat();
        let factors = [0.5, 3.0];
        MemoryTensors::default()
            .with("x.weight", &[2, 1, 32], GgmlType::Q8_0, block.repeat(2))
            .with_f32("x.scale", &[2], &factors)
            .with_f32("x.input_scale", &[2], &factors)
            .with_f32("y.scale", &[2], &factors)
            .with_f32("z.weight", &[1, 2], &factors)
            .with_f32("z.scale", &[1], &factors[..1])
    }

    #[test]
    fn factors_beside_blocks_are_multiplied_in() {
        let stack = stacks_with_factors();
        let decoded = Decoded::new(&stack, SimdLevel::Scalar).unwrap();
        let names: Vec<_> = decoded.weights().iter().map(|weight| weight.name.as_str()).collect();
        assert_eq!(names, ["x.weight", "y.scale", "z.weight"], "what belongs to no weight stays");
        let mut bytes = vec![0; 64 * 4];
        decoded.read_elems(0, 0, &mut bytes).unwrap();
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert!(values[..32].iter().all(|&x| x == 0.5) && values[32..].iter().all(|&x| x == 3.0));
        let mut other = vec![0; 8];
        decoded.read_elems(1, 0, &mut other).unwrap();
        assert_eq!(other, [0.5f32.to_le_bytes(), 3f32.to_le_bytes()].concat());
        assert!(decoded.borrow(2).is_none());
        decoded.read_elems(2, 0, &mut other).unwrap();
        assert_eq!(other, [0.25f32.to_le_bytes(), 1.5f32.to_le_bytes()].concat());
    }

    /// Checks that any range of elements, also across rows and inside them, equals the same part of the whole.
    fn ranges_agree(decoded: &Decoded<'_>, elem_bytes: usize) {
        let n = decoded.weights()[0].shape.n_elems() as usize;
        let mut whole = vec![0; n * elem_bytes];
        decoded.read_elems(0, 0, &mut whole).unwrap();
        for (first, last) in [(0, 1), (1, n), (n / 2 - 1, n / 2 + 1), (n - 1, n), (7, 7)] {
            let mut part = vec![0; (last - first) * elem_bytes];
            decoded.read_elems(0, first as u64, &mut part).unwrap();
            assert_eq!(part, &whole[first * elem_bytes..last * elem_bytes], "{first}..{last}");
        }
    }

    #[test]
    fn plain_types_keep_their_bytes() {
        let bytes: Vec<u8> = (0..48).collect();
        let rows = MemoryTensors::default().with("t", &[4, 6], GgmlType::F16, bytes.clone());
        let decoded = Decoded::new(&rows, SimdLevel::Scalar).unwrap();
        assert_eq!(decoded.weights()[0].ty, ElementType::F16);
        let mut whole = vec![0; 48];
        decoded.read_elems(0, 0, &mut whole).unwrap();
        assert_eq!(whole, bytes);
        ranges_agree(&decoded, 2);
    }

    #[test]
    fn block_types_read_as_floats() {
        let mut bytes = Vec::new();
        for row in 0..3u8 {
            for block in 0..2u8 {
                bytes.extend_from_slice(&0x3800u16.to_le_bytes()); // scale 0.5
                bytes.extend((0..32u8).map(|i| i.wrapping_mul(7).wrapping_add(row * 31 + block)));
            }
        }
        let rows = MemoryTensors::default().with("t", &[3, 64], GgmlType::Q8_0, bytes);
        let decoded = Decoded::new(&rows, SimdLevel::Scalar).unwrap();
        assert_eq!(decoded.weights()[0].ty, ElementType::F32);
        let mut one = [0; 4];
        decoded.read_elems(0, 64 + 33, &mut one).unwrap();
        let code = 7u8.wrapping_add(32) as i8;
        assert_eq!(f32::from_le_bytes(one), 0.5 * f32::from(code));
        ranges_agree(&decoded, 4);
    }
}
