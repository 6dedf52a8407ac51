//! Codecs of the types: one [`Codec`] row each, and the checks and loops that rows share.

use std::cell::Cell;

use super::{BlockError, BlockFlaw};
use gguf_core::{GgmlType, simd::SimdLevel};

/// Rows to quantize. Lengths are checked: `src` holds whole rows, `imatrix` one weight per column.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    /// Columns of each row, a multiple of the block length.
    pub n_cols: usize,
    /// Elements, `[n_rows, n_cols]`.
    pub src: &'a [f32],
    /// One importance weight per column; never given to types that ignore it.
    pub imatrix: Option<&'a [f32]>,
    /// Index of the first block that the type cannot express; the written bytes are then useless.
    pub refused: &'a Cell<Option<usize>>,
}

impl<'a> SourceRows<'a> {
    /// Iterates over each block with its importance weights, row by row.
    pub(crate) fn blocks<const E: usize>(
        &self,
    ) -> impl Iterator<Item = (&'a [f32; E], Option<&'a [f32; E]>)> + use<'a, E> {
        let weights = self.imatrix.map(|weights| weights.as_chunks::<E>().0);
        let blocks_per_row = self.n_cols / E;
        self.src
            .as_chunks::<E>()
            .0
            .iter()
            .enumerate()
            .map(move |(index, block)| (block, weights.map(|weights| &weights[index % blocks_per_row])))
    }
}

/// Quantizes rows of checked lengths at a level that the machine has.
pub(crate) type QuantizeFn = fn(SimdLevel, &SourceRows<'_>, &mut [u8]);

/// Decodes blocks of checked lengths at a level that the machine has.
pub(crate) type DequantizeFn = fn(SimdLevel, &[u8], &mut [f32]);

/// Finds the first block without finite scales; ignores a partial block at the end.
pub(crate) type ValidateFn = fn(&[u8]) -> Result<(), BlockError>;

/// Functions for the bytes of one type.
pub(crate) struct Codec {
    /// The type.
    pub ty: GgmlType,
    /// Quantizer; `None` for types that only files and decoders use.
    pub quantize: Option<QuantizeFn>,
    /// Decoder from blocks to floats.
    pub dequantize: DequantizeFn,
    /// Check for blocks with finite scales.
    pub(crate) validate: ValidateFn,
}

/// Runs `f` over blocks of `B` bytes and `E` elements.
#[inline(always)]
pub(crate) fn decode_blocks<const B: usize, const E: usize>(
    src: &[u8],
    dst: &mut [f32],
    f: impl Fn(&[u8; B], &mut [f32; E]),
) {
    for (block, out) in src.as_chunks::<B>().0.iter().zip(dst.as_chunks_mut::<E>().0) {
        f(block, out);
    }
}

/// Defines a decoder of blocks, compiled for every level: `decoder!(name = load)` with `load(&[u8; B], &mut [f32; E])`.
macro_rules! decoder {
    ($name:ident = $load:expr) => {
        fn $name(level: gguf_core::simd::SimdLevel, src: &[u8], dst: &mut [f32]) {
            struct Decode<'a>(&'a [u8], &'a mut [f32]);
            impl gguf_core::simd::VectorLoop for Decode<'_> {
                type Output = ();

                #[inline(always)]
                fn run(self) {
                    $crate::codec::decode_blocks(self.0, self.1, $load);
                }
            }
            level.vectorize(Decode(src, dst));
        }
    };
}

pub(crate) use decoder;

/// Returns the little-endian 16-bit number at a byte offset of a block.
#[inline(always)]
pub(crate) fn u16_at<const B: usize>(block: &[u8; B], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Writes a little-endian 16-bit number at a byte offset of a block.
#[inline(always)]
pub(crate) fn put_u16<const B: usize>(block: &mut [u8; B], at: usize, value: u16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Returns the flaw of an F16 scale, if any.
pub(super) fn f16_flaw(h: u16) -> Option<BlockFlaw> {
    match h & 0x7fff {
        0x7c00 => Some(BlockFlaw::ScaleInfinite),
        bits if bits > 0x7c00 => Some(BlockFlaw::ScaleNan),
        _ => None,
    }
}

/// Checks the F16 scale at byte `AT` of each block of `B` bytes.
pub(crate) fn validate_f16<const B: usize, const AT: usize>(bytes: &[u8]) -> Result<(), BlockError> {
    validate_with::<B>(bytes, |block| f16_flaw(u16_at(block, AT)))
}

/// Checks the two F16 scales at bytes `AT` and `AT + 2` of each block of `B` bytes.
pub(crate) fn validate_f16_pair<const B: usize, const AT: usize>(bytes: &[u8]) -> Result<(), BlockError> {
    validate_with::<B>(bytes, |block| f16_flaw(u16_at(block, AT)).or_else(|| f16_flaw(u16_at(block, AT + 2))))
}

/// Accepts every byte.
#[allow(clippy::unnecessary_wraps, reason = "has the type of the other checks")]
pub(crate) fn validate_nothing(_: &[u8]) -> Result<(), BlockError> {
    Ok(())
}

/// Finds the first block of `B` bytes for which `flaw` returns a flaw.
pub(crate) fn validate_with<const B: usize>(
    bytes: &[u8],
    flaw: impl Fn(&[u8; B]) -> Option<BlockFlaw>,
) -> Result<(), BlockError> {
    for (index, block) in bytes.as_chunks::<B>().0.iter().enumerate() {
        if let Some(flaw) = flaw(block) {
            return Err(BlockError { block: index, flaw });
        }
    }
    Ok(())
}
