//! Distance of a file's tensor from the source, where no way reproduces it.
//!
//! A block follows the source if its deviation is at most a small multiple of that of our own block, and clearly below
//! the deviation of unrelated values, which is at least that of zeros. A tensor follows the source if half of its blocks
//! do: single edits, also of a scale, do not make it another tensor.

use std::ops::Range;

use rayon::prelude::*;

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::gguf::{GgufFile, WriteError};
use crate::job::recipe::RecipeSource;
use crate::job::recipe::trial::chunks;
use crate::quant::dequantize;
use crate::quantize::MadeTensor;

/// Deviation of a block that follows the source, as a multiple of the deviation of our own block.
const OWN_DEVIATIONS: f64 = 4.0;
/// Deviation that is always accepted, as a share of the block's magnitude: types that hold the values exactly.
const ROUNDING: f64 = 0.01;
/// Largest deviation of a block that follows the source, as a share of the block's magnitude.
const LARGEST: f64 = 0.8;
/// Bytes of a file's tensor that are decoded at a time.
const CHUNK_BYTES: u64 = 128 << 10;

/// Root mean squares of a block: the source's values, the deviation of the file, and that of our own block.
#[derive(Clone, Copy, Debug)]
struct BlockDeviation {
    magnitude: f64,
    file: f64,
    own: Option<f64>,
}

impl BlockDeviation {
    fn follows(self) -> bool {
        // Values that are not finite follow nothing.
        let own = self.own.map_or(f64::INFINITY, |own| OWN_DEVIATIONS * own + ROUNDING * self.magnitude);
        self.file <= own.min(LARGEST * self.magnitude)
    }
}

/// Returns true if rows of a file follow a tensor of the source. `made` is our own tensor, if there is one.
pub(super) fn follows(
    source: &RecipeSource,
    origin: usize,
    made: Option<&MadeTensor<'_>>,
    file: &GgufFile,
    tensor: usize,
    rows: &[Range<u64>],
    progress: &dyn Progress,
) -> Result<bool, WriteError> {
    let meta = &file.tensors()[tensor];
    let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(usize::MAX);
    let of_chunk = |rows: &Range<u64>| -> Result<(u64, u64), WriteError> {
        if progress.is_cancelled() {
            return Err(WriteError::Cancelled);
        }
        let n_elems = usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX).saturating_mul(n_cols);
        let decoded = |from: &dyn TensorSource, at: usize| decoded(source, from, at, rows, n_elems);
        let (Some(theirs), Some(original)) = (decoded(file, tensor)?, decoded(source.rows(), origin)?) else {
            return Ok((0, 1));
        };
        let own = made.map(|made| own_values(source, made, rows, n_elems)).transpose()?.flatten();
        let block = meta.ty.block_elems().max(1);
        let mut n_following = 0;
        let n_blocks = original.chunks(block).len();
        for at in 0..n_blocks {
            let original = &original[at * block..][..block.min(original.len() - at * block)];
            let deviation = |values: &[f32]| {
                let values = &values[at * block..][..original.len()];
                rms(values.iter().zip(original).map(|(a, b)| f64::from(*a) - f64::from(*b)), original.len())
            };
            let found = BlockDeviation {
                magnitude: rms(original.iter().map(|value| f64::from(*value)), original.len()),
                file: deviation(&theirs),
                own: own.as_deref().map(deviation),
            };
            n_following += u64::from(found.follows());
        }
        Ok((n_following, n_blocks as u64))
    };
    let counts: Result<Vec<_>, WriteError> =
        chunks(meta, rows, CHUNK_BYTES).par_iter().map(of_chunk).collect();
    let (n_following, n_blocks) = counts?.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Ok(2 * n_following >= n_blocks)
}

fn rms(values: impl Iterator<Item = f64>, n: usize) -> f64 {
    (values.map(|value| value * value).sum::<f64>() / n.max(1) as f64).sqrt()
}

/// Decodes rows; `None` for a type without a decoder.
pub(super) fn decoded(
    source: &RecipeSource,
    from: &dyn TensorSource,
    tensor: usize,
    rows: &Range<u64>,
    n_elems: usize,
) -> Result<Option<Vec<f32>>, WriteError> {
    let meta = &from.tensors()[tensor];
    let mut bytes = vec![0; meta.ty.block_bytes() * (n_elems / meta.ty.block_elems().max(1))];
    from.read_rows(tensor, rows.start, &mut bytes)?;
    let mut floats = vec![0.0; n_elems];
    Ok(dequantize(meta.ty, source.simd, &bytes, &mut floats).is_ok().then_some(floats))
}

fn own_values(
    source: &RecipeSource,
    made: &MadeTensor<'_>,
    rows: &Range<u64>,
    n_elems: usize,
) -> Result<Option<Vec<f32>>, WriteError> {
    let ty = made.meta().ty;
    let mut bytes = vec![0; ty.block_bytes() * (n_elems / ty.block_elems().max(1))];
    match made.read_rows(rows.start, &mut bytes) {
        Ok(()) => {}
        Err(error) if MadeTensor::is_refused(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut floats = vec![0.0; n_elems];
    Ok(dequantize(ty, source.simd, &bytes, &mut floats).is_ok().then_some(floats))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrelated_values_follow_nothing() {
        let follows = |magnitude, file, own| BlockDeviation { magnitude, file, own }.follows();
        assert!(
            follows(1.0, 0.1, Some(0.05)) && follows(1.0, 0.7, Some(0.4)) && follows(1.0, 0.005, Some(0.0))
        );
        assert!(follows(0.0, 0.0, Some(0.0)) && follows(1.0, 0.5, None));
        // Zeros deviate by the magnitude, unrelated values by more.
        assert!(!follows(1.0, 1.0, Some(0.5)) && !follows(1.0, 1.41, Some(0.6)));
        assert!(!follows(1.0, 0.3, Some(0.05)) && !follows(1.0, 0.02, Some(0.0)) && !follows(1.0, 0.9, None));
        assert!(!follows(1.0, f64::NAN, Some(0.1)));
    }
}
