//! A GGUF's tensors as a checkpoint's: block types decoded to F32 as they are read, plain types as they are.

use std::cell::RefCell;

use crate::core::simd::SimdLevel;
use crate::core::{ElementType, GgmlType, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource};
use crate::quant::{self, QuantError};

/// A [`TensorSource`] seen as a [`WeightSource`] with the same tensors in the same order.
///
/// Plain types keep their type; every block type reads as F32.
pub struct Decoded<'a> {
    source: &'a dyn TensorSource,
    weights: Vec<WeightMeta>,
    level: SimdLevel,
}

impl std::fmt::Debug for Decoded<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoded").field("weights", &self.weights.len()).field("level", &self.level).finish()
    }
}

/// The element type that a tensor type reads as.
#[must_use]
pub fn decoded_type(ty: GgmlType) -> ElementType {
    match ty {
        GgmlType::F64 => ElementType::F64,
        GgmlType::F16 => ElementType::F16,
        GgmlType::Bf16 => ElementType::Bf16,
        GgmlType::I64 => ElementType::I64,
        GgmlType::I32 => ElementType::I32,
        GgmlType::I16 => ElementType::I16,
        GgmlType::I8 => ElementType::I8,
        _ => ElementType::F32,
    }
}

impl<'a> Decoded<'a> {
    /// Wraps a source. Names and shapes stay.
    #[must_use]
    pub fn new(source: &'a dyn TensorSource, level: SimdLevel) -> Self {
        let weight = |tensor: &TensorMeta| WeightMeta {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            ty: decoded_type(tensor.ty),
        };
        Self { source, weights: source.tensors().iter().map(weight).collect(), level }
    }
}

thread_local! {
    /// One encoded row and its floats; kept because readers come back for thousands of rows.
    static SCRATCH: RefCell<(Vec<u8>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Why a row could not be decoded.
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
        let tensor = &self.source.tensors()[weight];
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
                let encoded: &[u8] = match self.source.borrow_rows(weight, row, 1) {
                    Some(borrowed) => borrowed,
                    None => {
                        encoded.resize(row_bytes, 0);
                        self.source.read_rows(weight, row, encoded)?;
                        &*encoded
                    }
                };
                if tensor.ty.is_quantized() {
                    // Of a row the blocks that are asked for: a transposed matrix takes one element of each.
                    let (elems, bytes) = (tensor.ty.block_elems(), tensor.ty.block_bytes());
                    let blocks = skip / elems..(skip + take).div_ceil(elems);
                    floats.resize(blocks.len() * elems, 0.0);
                    let encoded = &encoded[blocks.start * bytes..blocks.end * bytes];
                    quant::dequantize(tensor.ty, self.level, encoded, floats)
                        .map_err(|e| failed(e.into()))?;
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
        let tensor = &self.source.tensors()[weight];
        if tensor.ty.is_quantized() {
            return None;
        }
        self.source.borrow_rows(weight, 0, tensor.shape.n_rows())
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let n_cols = self.source.tensors()[weight].shape.n_cols().max(1);
        // Rows that lie wholly inside the range: a neighbour may still need the others.
        let first_row = first.div_ceil(n_cols);
        let last_row = first.saturating_add(n) / n_cols;
        if first_row < last_row {
            self.source.release_rows(weight, first_row, last_row - first_row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Shape;

    struct Rows {
        tensors: Vec<TensorMeta>,
        bytes: Vec<u8>,
    }

    impl TensorSource for Rows {
        fn tensors(&self) -> &[TensorMeta] {
            &self.tensors
        }

        fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
            let row_bytes = self.tensors[tensor].row_bytes().unwrap() as usize;
            out.copy_from_slice(&self.bytes[first_row as usize * row_bytes..][..out.len()]);
            Ok(())
        }
    }

    fn source(ty: GgmlType, dims: &[u64], bytes: Vec<u8>) -> Rows {
        let shape = Shape::new(dims.to_vec()).unwrap();
        Rows { tensors: vec![TensorMeta { name: "t".into(), shape, ty }], bytes }
    }

    /// Any range of elements, also across rows and inside them, is the same part of the whole.
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
        let rows = source(GgmlType::F16, &[4, 6], (0..48).collect());
        let decoded = Decoded::new(&rows, SimdLevel::Scalar);
        assert_eq!(decoded.weights()[0].ty, ElementType::F16);
        let mut whole = vec![0; 48];
        decoded.read_elems(0, 0, &mut whole).unwrap();
        assert_eq!(whole, rows.bytes);
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
        let rows = source(GgmlType::Q8_0, &[3, 64], bytes);
        let decoded = Decoded::new(&rows, SimdLevel::Scalar);
        assert_eq!(decoded.weights()[0].ty, ElementType::F32);
        let mut one = [0; 4];
        decoded.read_elems(0, 64 + 33, &mut one).unwrap();
        let code = 7u8.wrapping_add(32) as i8;
        assert_eq!(f32::from_le_bytes(one), 0.5 * f32::from(code));
        ranges_agree(&decoded, 4);
    }
}
