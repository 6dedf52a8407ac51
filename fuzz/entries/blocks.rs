//! Block types: decoders and quantizers of every vector level compared with scalar code.

use gguf_foundry::core::GgmlType;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::quant;

/// Type that the first byte selects, and the remaining bytes.
fn typed(data: &[u8]) -> Option<(GgmlType, &[u8])> {
    let (&first, rest) = data.split_first()?;
    let ty = GgmlType::all().nth(usize::from(first) % GgmlType::all().count())?;
    Some((ty, rest))
}

/// Decodes any bytes as blocks: they must give the same floats at every level, at once or block by block, even if the
/// check of blocks fails.
pub(super) fn blocks(data: &[u8]) -> bool {
    let Some((ty, rest)) = typed(data) else { return false };
    let (elems, bytes) = (ty.block_elems(), ty.block_bytes());
    let n_blocks = (rest.len() / bytes).min(16);
    let src = &rest[..n_blocks * bytes];
    let is_valid = quant::validate_blocks(ty, src).is_ok();
    let decode = |level, src: &[u8]| {
        let mut floats = vec![0f32; src.len() / bytes * elems];
        quant::dequantize(ty, level, src, &mut floats).ok()?;
        Some(floats.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let scalar = decode(SimdLevel::Scalar, src);
    for level in SimdLevel::available() {
        assert_eq!(decode(level, src), scalar, "{ty} {}", level.name());
    }
    if let Some(whole) = &scalar {
        for (block, whole) in src.chunks_exact(bytes).zip(whole.chunks_exact(elems)) {
            assert_eq!(decode(SimdLevel::detect(), block).as_deref(), Some(whole), "{ty}");
        }
    }
    is_valid && n_blocks > 0
}

/// Quantizes one row of any floats: every level must give the same blocks, or the same error. Blocks whose scale is NaN
/// count as equal if the check of blocks rejects both: Rust does not define the sign of a computed NaN.
pub(super) fn quantize(data: &[u8]) -> bool {
    let Some((ty, rest)) = typed(data) else { return false };
    // Only one NaN: Rust does not define which payload an operation on two of them keeps, and some codes show it.
    let float =
        |&bytes: &[u8; 4]| Some(f32::from_le_bytes(bytes)).filter(|x| !x.is_nan()).unwrap_or(f32::NAN);
    let floats: Vec<f32> = rest.as_chunks().0.iter().map(float).collect();
    let n_cols = ty.block_elems();
    let (Some(row), weights) = (floats.get(..n_cols), floats.get(n_cols..2 * n_cols)) else { return false };
    let pack = |level| {
        let mut out = vec![0; ty.block_bytes()];
        let done = quant::quantize_rows(ty, level, n_cols, row, weights, &mut out);
        done.map(|()| out).map_err(|error| error.to_string())
    };
    let scalar = pack(SimdLevel::Scalar);
    let flaw = |blocks: &Result<Vec<u8>, String>| quant::validate_blocks(ty, blocks.as_ref().ok()?).err();
    for level in SimdLevel::available() {
        let found = pack(level);
        let is_no_number = flaw(&found).is_some() && flaw(&found) == flaw(&scalar);
        assert!(is_no_number || found == scalar, "{ty} {}: {found:x?}, {scalar:x?}", level.name());
    }
    scalar.is_ok()
}
