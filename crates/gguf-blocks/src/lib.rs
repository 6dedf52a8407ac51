//! Block quantizers and dequantizers of GGML's types: float rows to block bytes and back. Knows no files, names or
//! metadata.
//!
//! The bytes are those of llama.cpp, at every level of vector instructions and on every machine:
//!
//! Types whose columns differ in importance take an importance matrix ([`gguf_core::ImatrixNeed`]). [`pack`] stores
//! already quantized integers in blocks unchanged. [`states`] splits blocks into scales, minima and codes, and joins
//! them again; [`grid_states`] does the same for types on code books.
//!
//! # Inside
//! Every type has one row in `CODECS`. The functions here check lengths once and call that row. The scalar functions in
//! the family files are the specification; vector levels (`lanes`) give the same bytes.
//!
//! | file | types |
//! |---|---|
//! | `float` | F32 F16 BF16 F64 I8 I16 I32 I64 |
//! | `legacy` | Q4_0 Q4_1 Q5_0 Q5_1 |
//! | `bytes8` | Q8_0 Q8_1 Q8_K |
//! | `lowbit` | Q1_0 Q2_0 |
//! | `ternary` | TQ1_0 TQ2_0 |
//! | `fp4` | MXFP4 NVFP4 |
//! | `q2_k` `q3_k` `q45_k` `q6_k` | the K types |
//! | `iq1` `iq2` `iq3` | the IQ types on code books (`grids`, `codebook`, `grid_search`, `iq1_search`) |
//! | `iq4` | IQ4_NL IQ4_XS |
//!
//! `importance` checks the weights that come in, `magnitude` the result of rows that are unusually large or small.

#![allow(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]
#![cfg_attr(
    not(any(test, target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "other machines run the scalar form alone")
)]
#![allow(clippy::needless_range_loop, reason = "block formulas index several arrays alike")]

use std::cell::Cell;

use gguf_core::{GgmlType, ImatrixNeed, simd::SimdLevel};

mod batch;
mod bytes8;
mod codebook;
mod codec;
mod elements;
mod error;
mod finite;
mod float;
mod fp4;
mod grid_lanes;
mod grid_lines;
mod grid_neighbours;
mod grid_rows;
mod grid_runs;
mod grid_search;
pub mod grid_states;
mod grid_steps;
mod grid_trials;
mod grids;
mod importance;
mod iq1;
mod iq1_lanes;
mod iq1_search;
mod iq2;
mod iq3;
mod iq4;
mod kernel;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
mod legacy;
mod lowbit;
mod magnitude;
pub mod pack;
mod q2_k;
mod q3_k;
mod q45_k;
mod q6_k;
mod refine_lanes;
mod search;
mod search_lanes;
pub mod states;
mod superblock;
mod superblock_lanes;
#[cfg(test)]
mod sweep;
mod ternary;
#[cfg(test)]
mod twins;

#[cfg(test)]
use gguf_testkit::noise;

pub use elements::{NotANumber, decode_elements};
pub use error::{BlockError, BlockFlaw, QuantError};
pub use finite::{first_non_finite, first_non_finite_bits, first_unfit};
pub use importance::has_lost_groups;
pub use magnitude::{Extent, SmallRow, SmallRows, are_ordinary_rows, check_rows, is_ordinary_importance};

use codec::{Codec, SourceRows};

/// Codecs of all types, one row each. A family adds its rows only here.
#[rustfmt::skip]
static CODECS: &[&Codec] = &[
    &float::F32,
    &float::F16,
    &float::BF16,
    &float::F64,
    &float::I8,
    &float::I16,
    &float::I32,
    &float::I64,
    &legacy::Q4_0,
    &legacy::Q4_1,
    &legacy::Q5_0,
    &legacy::Q5_1,
    &bytes8::Q8_0,
    &bytes8::Q8_1,
    &bytes8::Q8_K,
    &lowbit::Q1_0,
    &lowbit::Q2_0,
    &ternary::TQ1_0,
    &ternary::TQ2_0,
    &fp4::MXFP4,
    &fp4::NVFP4,
    &q2_k::Q2_K,
    &q3_k::Q3_K,
    &q45_k::Q4_K,
    &q45_k::Q5_K,
    &q6_k::Q6_K,
    &iq1::IQ1_S,
    &iq1::IQ1_M,
    &iq2::IQ2_XXS,
    &iq2::IQ2_XS,
    &iq2::IQ2_S,
    &iq3::IQ3_XXS,
    &iq3::IQ3_S,
    &iq4::IQ4_NL,
    &iq4::IQ4_XS,
];

fn codec(ty: GgmlType) -> Option<&'static Codec> {
    CODECS.iter().find(|codec| codec.ty == ty).copied()
}

/// Returns true if a file may be quantized to the type.
///
/// [`quantize_rows`] also writes Q8_1 and Q8_K, which hold activations and are not used in files.
pub fn can_quantize(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::Q8_1 | GgmlType::Q8K) && codec(ty).is_some_and(|codec| codec.quantize.is_some())
}

/// Quantizes whole rows; the bytes are those of ggml's `ggml_quantize_chunk`, at every level.
///
/// `imatrix` holds one importance weight per column, the same for every row; types that ignore it accept it too. Most
/// types write a group of columns without any importance as zeros ([`has_lost_groups`]).
///
/// Rows that are far too large or too small for the type become zeros or are clipped: [`check_rows`] detects them.
///
/// # Shapes
/// `src` is `[n_rows, n_cols]`, `dst` is `n_rows * ty.row_bytes(n_cols)` bytes.
///
/// # Exactness
/// Equals llama.cpp 0.5.0 built for x86-64 without floating-point contraction, also for NaN and infinite input where C
/// defines the result; callers refuse such input beforehand ([`first_non_finite`]).
///
/// # Errors
/// [`QuantError`]: no quantizer for the type, a required importance matrix is missing or holds weights that are
/// negative or not finite, lengths that do not fit together, a level this machine lacks, values without a code (where
/// ggml stops the program).
pub fn quantize_rows(
    ty: GgmlType,
    level: SimdLevel,
    n_cols: usize,
    src: &[f32],
    imatrix: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), QuantError> {
    let quantize = codec(ty).and_then(|codec| codec.quantize).ok_or(QuantError::NotATarget { ty })?;
    check_level(level)?;
    if n_cols == 0 || !n_cols.is_multiple_of(ty.block_elems()) {
        return Err(QuantError::Columns { ty, n_cols });
    }
    if !src.len().is_multiple_of(n_cols) {
        return Err(QuantError::Rows { n_elems: src.len(), n_cols });
    }
    let expected = bytes_of(ty, src.len() / ty.block_elems())?;
    if dst.len() != expected {
        return Err(QuantError::Length { ty, expected, found: dst.len() });
    }
    match imatrix {
        None if ty.info().imatrix == ImatrixNeed::Required => return Err(QuantError::ImatrixRequired { ty }),
        Some(weights) if weights.len() != n_cols => {
            return Err(QuantError::ImatrixLength { expected: n_cols, found: weights.len() });
        }
        _ => {}
    }
    imatrix.map(importance::check).transpose()?;
    let imatrix = imatrix.filter(|_| ty.info().imatrix != ImatrixNeed::Ignored);
    let refused = Cell::new(None);
    quantize(level, &SourceRows { n_cols, src, imatrix, refused: &refused }, dst);
    match refused.get().map(|block: usize| block * ty.block_elems()) {
        Some(at) => Err(off_grid(ty, n_cols, src, at)),
        None => Ok(()),
    }
}

/// Decodes blocks to floats; supports every type a file may hold, including integers.
///
/// # Shapes
/// `src` holds whole blocks, `dst` one float per element.
///
/// # Exactness
/// Equals ggml's `to_float` bit for bit; F64 and integers round to the nearest float.
///
/// # Errors
/// [`QuantError`]: no decoder for the type, lengths that do not fit together, a level this machine lacks.
pub fn dequantize(ty: GgmlType, level: SimdLevel, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let codec = codec(ty).ok_or(QuantError::NotASource { ty })?;
    check_level(level)?;
    if !dst.len().is_multiple_of(ty.block_elems()) {
        return Err(QuantError::Columns { ty, n_cols: dst.len() });
    }
    let expected = bytes_of(ty, dst.len() / ty.block_elems())?;
    if src.len() != expected {
        return Err(QuantError::Length { ty, expected, found: src.len() });
    }
    (codec.dequantize)(level, src, dst);
    Ok(())
}

/// Checks blocks for scales and values that are not finite.
///
/// # Exactness
/// Accepts and refuses what ggml's `ggml_validate_row_data` accepts and refuses; types that it does not know
/// (Q8_1) are checked in the same way.
///
/// # Errors
/// [`BlockError`] with the first bad block, or with an incomplete block.
pub fn validate_blocks(ty: GgmlType, bytes: &[u8]) -> Result<(), BlockError> {
    if let Some(codec) = codec(ty) {
        (codec.validate)(bytes)?;
    }
    let block_bytes = ty.block_bytes();
    if bytes.len().is_multiple_of(block_bytes) {
        Ok(())
    } else {
        Err(BlockError { block: bytes.len() / block_bytes, flaw: BlockFlaw::Truncated })
    }
}

/// Returns the error for the block at element `at` without a code: `Magnitude` if its values are too large, else
/// `OffGrid`.
fn off_grid(ty: GgmlType, n_cols: usize, src: &[f32], at: usize) -> QuantError {
    let (row, column) = (at / n_cols, at % n_cols);
    let block = src.get(at..at + ty.block_elems()).unwrap_or_default();
    let extent = Extent::of(block, block.len());
    if extent.is_finite() && !extent.is_ordinary(ty) {
        return QuantError::Magnitude { ty, row, column, largest: extent.largest };
    }
    QuantError::OffGrid { ty, row, column }
}

fn check_level(level: SimdLevel) -> Result<(), QuantError> {
    if level.is_available() { Ok(()) } else { Err(QuantError::Level { level }) }
}

fn bytes_of(ty: GgmlType, n_blocks: usize) -> Result<usize, QuantError> {
    n_blocks.checked_mul(ty.block_bytes()).ok_or(QuantError::TooLarge { ty, n_blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_one_codec() {
        for (index, codec) in CODECS.iter().enumerate() {
            assert!(CODECS[..index].iter().all(|other| other.ty != codec.ty), "{}", codec.ty);
        }
    }

    #[test]
    fn lengths_are_checked_before_any_work() {
        let quantize = |n_cols, n_elems: usize, imatrix: Option<&[f32]>, n_bytes: usize| {
            let src = vec![0.0; n_elems];
            quantize_rows(GgmlType::F16, SimdLevel::Scalar, n_cols, &src, imatrix, &mut vec![0; n_bytes])
        };
        assert_eq!(quantize(4, 8, None, 16), Ok(()));
        assert_eq!(quantize(0, 8, None, 16), Err(QuantError::Columns { ty: GgmlType::F16, n_cols: 0 }));
        assert_eq!(quantize(3, 8, None, 16), Err(QuantError::Rows { n_elems: 8, n_cols: 3 }));
        let short = QuantError::Length { ty: GgmlType::F16, expected: 16, found: 15 };
        assert_eq!(quantize(4, 8, None, 15), Err(short));
        let missing = QuantError::ImatrixLength { expected: 4, found: 3 };
        assert_eq!(quantize(4, 8, Some(&[1.0; 3]), 16), Err(missing));
    }
}
