//! Check of every block of every tensor: values must be finite, and not all zero.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::checks::input::CheckedFile;
use crate::{Check, Finding, VerifyError};
use gguf_arch::is_bound;
use gguf_blocks::{dequantize, first_non_finite, validate_blocks};
use gguf_core::progress::Progress;
use gguf_core::scratch::renew;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_engine::EngineError;

/// Bytes of a tensor that are checked at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Result of the checks of a tensor's pieces.
#[derive(Clone, Debug, Default)]
struct TensorCheck {
    /// First flaw: first row of the piece, and the description.
    flaw: Option<(u64, String)>,
    has_value: bool,
}

/// Reports tensors with a value that is not finite, and those with none but zeros.
pub(super) fn check(file: &CheckedFile<'_>) -> Result<Vec<Finding>, VerifyError> {
    let CheckedFile { source: Some(source), level, progress, .. } = *file else { return Ok(Vec::new()) };
    let total: u64 = source.tensors().iter().filter_map(TensorMeta::n_bytes).sum();
    progress.begin("checking blocks", total);
    let checked = check_tensors(source, level, progress);
    progress.end();
    checked
}

fn check_tensors(
    source: &dyn TensorSource,
    level: SimdLevel,
    progress: &dyn Progress,
) -> Result<Vec<Finding>, VerifyError> {
    let mut findings = Vec::new();
    for (at, meta) in source.tensors().iter().enumerate() {
        let seen = Mutex::new(TensorCheck::default());
        let row_bytes = meta.row_bytes().unwrap_or(0).max(1);
        let step = (PIECE_BYTES / row_bytes).max(1);
        let n_rows = meta.shape.n_rows();
        let pieces = n_rows.div_ceil(step);
        (0..pieces).into_par_iter().try_for_each_init(
            || (Vec::new(), Vec::new()),
            |(bytes, floats), piece| {
                if progress.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                let first = piece * step;
                let n = step.min(n_rows - first);
                let (flaw, has_value) = check_piece(source, at, first, n, level, bytes, floats)?;
                progress.advance(n * row_bytes);
                if let Ok(mut seen) = seen.lock() {
                    seen.has_value |= has_value;
                    if let Some(flaw) = flaw
                        && seen.flaw.as_ref().is_none_or(|(row, _)| first < *row)
                    {
                        seen.flaw = Some((first, flaw));
                    }
                }
                Ok(())
            },
        )?;
        source.release_rows(at, 0, n_rows);
        let seen = seen.into_inner().unwrap_or_default();
        if let Some((row, flaw)) = seen.flaw.filter(|_| !is_bound(&meta.name)) {
            findings.push(Finding::error(Check::NonFinite, format!("from row {row}: {flaw}")).of(&meta.name));
        } else if !seen.has_value && meta.shape.n_elems() > 0 {
            let message = "all values are zero";
            // Zero biases are common; a zero matrix is a lost one.
            let finding = if meta.shape.rank() > 1 {
                Finding::error(Check::AllZero, message)
            } else {
                Finding::warning(Check::AllZero, message)
            };
            findings.push(finding.of(&meta.name));
        }
    }
    Ok(findings)
}

/// Returns the first flaw of a piece, and whether any of its values is not zero.
fn check_piece(
    source: &dyn TensorSource,
    tensor: usize,
    first: u64,
    n_rows: u64,
    level: SimdLevel,
    bytes: &mut Vec<u8>,
    floats: &mut Vec<f32>,
) -> Result<(Option<String>, bool), EngineError> {
    let meta = &source.tensors()[tensor];
    let blocks = || EngineError::Blocks { tensor: meta.name.clone(), ty: meta.ty };
    let encoded = match source.borrow_rows(tensor, first, n_rows) {
        Some(borrowed) => borrowed,
        None => {
            let len = meta.row_bytes().and_then(|row| row.checked_mul(n_rows));
            renew(bytes, len.and_then(|len| usize::try_from(len).ok()).ok_or_else(blocks)?);
            source.read_rows(tensor, first, bytes)?;
            bytes
        }
    };
    if let Err(error) = validate_blocks(meta.ty, encoded) {
        return Ok((Some(error.to_string()), true));
    }
    if matches!(meta.ty, GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64) {
        return Ok((None, encoded.iter().any(|&byte| byte != 0)));
    }
    // Each number of a plain type was validated above; it remains to check if one is not a zero of either sign.
    match meta.ty {
        GgmlType::F16 | GgmlType::Bf16 => {
            let mut numbers = encoded.as_chunks().0.iter();
            return Ok((None, numbers.any(|raw| u16::from_le_bytes(*raw) << 1 != 0)));
        }
        GgmlType::F32 => {
            let mut numbers = encoded.as_chunks().0.iter();
            return Ok((None, numbers.any(|raw| u32::from_le_bytes(*raw) << 1 != 0)));
        }
        _ => {}
    }
    let n_elems = meta.shape.n_cols().checked_mul(n_rows).and_then(|n| usize::try_from(n).ok());
    renew(floats, n_elems.ok_or_else(blocks)?);
    dequantize(meta.ty, level, encoded, floats)
        .map_err(|source| EngineError::Decode { tensor: meta.name.clone(), source })?;
    let flaw = first_non_finite(floats).map(|at| format!("element {at} decodes to {}", floats[at]));
    Ok((flaw, floats.iter().any(|&x| x != 0.0)))
}
