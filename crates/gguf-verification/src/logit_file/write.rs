//! Writer of logit files, some rows at a time.

use std::path::Path;

use crate::logit_file::model_mark::ModelMark;
use crate::logit_file::{Geometry, HEADER_BYTES, LogitFileError, LogitFileSize, MAGIC, MARK_MAGIC};
use crate::{Prompt, VerifyError, Window};
use gguf_core::numeric::nearest_int;
use gguf_core::output::{Destination, OutputError, OutputFile, OutputKind, check_kind};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, Hidden};

/// Log-probabilities further than this below the largest get the same code.
const DEPTH: f32 = 16.0;

/// Logit file that is being written; it appears when it is complete.
#[derive(Debug)]
pub struct LogitWriter {
    file: OutputFile,
    size: LogitFileSize,
    geometry: Geometry,
    next_row: usize,
}

impl LogitWriter {
    /// Begins a file for windows, which must be full chunks of `n_ctx` tokens, scored in their second half.
    ///
    /// # Errors
    /// A window that is not such a chunk; a full disk; an invalid path.
    pub(crate) fn create(
        path: &Path,
        windows: &[Window],
        prompts: &[Prompt],
        n_ctx: usize,
        n_vocab: usize,
        mark: &ModelMark,
    ) -> Result<Self, VerifyError> {
        let mut tokens = Vec::new();
        for window in windows {
            let (prompt, n) = (window.prompt, window.chunk.tokens.len());
            if n != n_ctx || window.scored != (n_ctx / 2..n_ctx - 1) {
                return Err(LogitFileError::Chunk { prompt, n_ctx, tokens: n }.into());
            }
            // The first token is that of the text: the reader replaces it by BOS.
            let own =
                prompts.get(prompt).and_then(|prompt| prompt.tokens.get(window.start..window.start + n));
            tokens.extend(own.unwrap_or(&window.chunk.tokens).iter().flat_map(|token| token.to_le_bytes()));
        }
        let geometry = Geometry { n_ctx, n_vocab, n_chunks: windows.len() };
        let too_many = || LogitFileError::TooMany { chunks: windows.len(), n_ctx };
        let number = |n: usize| i32::try_from(n).map(i32::to_le_bytes).map_err(|_| too_many());
        let mut head = MAGIC.to_vec();
        for n in [n_ctx, n_vocab, windows.len()] {
            head.extend(number(n)?);
        }
        let mark = serde_json::to_vec(mark).map_err(std::io::Error::from)?;
        let mark = [&MARK_MAGIC[..], &number(mark.len())?, &mark].concat();
        let rows_end = u64::try_from(geometry.file_bytes()).map_err(|_| too_many())?;
        let file_bytes = rows_end.saturating_add(mark.len() as u64);
        let refused = |error| LogitFileError::Output(OutputError::Guard(error));
        check_kind(path, OutputKind::LogitFile).map_err(refused)?;
        let mut destination = Destination::of(path).map_err(LogitFileError::Output)?;
        Destination::clear_all(std::slice::from_mut(&mut destination)).map_err(LogitFileError::Output)?;
        let rows = windows.len() * geometry.chunk_rows();
        let size = LogitFileSize { file_bytes, free_bytes: destination.free_bytes(), rows, n_vocab };
        let file = destination.create().map_err(LogitFileError::Output)?;
        file.write_at(0, &head)?;
        file.write_at(HEADER_BYTES, &tokens)?;
        file.write_at(rows_end, &mark)?;
        Ok(Self { file, size, geometry, next_row: 0 })
    }

    /// Returns the size that the file will have.
    pub fn size(&self) -> LogitFileSize {
        self.size
    }

    /// Reserves the file's blocks, so that a full disk is detected before the model runs.
    pub(crate) fn reserve(&self) -> std::io::Result<()> {
        self.file.reserve(self.size.file_bytes)
    }

    /// Writes the predictions of a group of windows. `hidden` has a row for each wanted prediction; only scored ones
    /// are written.
    pub(crate) fn write(
        &mut self,
        engine: &Engine<'_>,
        hidden: &Hidden,
        group: &[Window],
        progress: &dyn Progress,
    ) -> Result<(), VerifyError> {
        let mut before = 0;
        let ranges = group.iter().map(|window| {
            let wanted = &window.chunk.rows;
            let own = before..before + wanted.len();
            before = own.end;
            own.start + (window.scored.start - wanted.start)..own.end - (wanted.end - window.scored.end)
        });
        let scored = hidden.select(ranges.collect::<Vec<_>>());
        let n_vocab = self.geometry.n_vocab;
        let row_bytes = self.geometry.row_bytes();
        let offset = u64::try_from(self.geometry.rows_offset()).unwrap_or(u64::MAX);
        let mut bytes = Vec::new();
        engine.each_logits(&scored, progress, |_, logits| -> Result<(), VerifyError> {
            bytes.clear();
            for (at, row) in logits.chunks_exact(n_vocab).enumerate() {
                encode(row, &mut bytes).ok_or(LogitFileError::NotFinite { row: self.next_row + at })?;
                bytes.resize((at + 1) * row_bytes, 0);
            }
            self.file.write_at(offset + (self.next_row * row_bytes) as u64, &bytes)?;
            self.next_row += logits.len() / n_vocab;
            Ok(())
        })
    }

    /// Gives the file its name. Missing rows are an error of the program, not of the user.
    pub(crate) fn commit(self, sync: bool) -> std::io::Result<()> {
        assert_eq!(self.next_row, self.size.rows, "rows of a logit file");
        self.file.commit(sync)
    }
}

/// Appends a row; `None` if a logit is not finite.
///
/// # Exactness
/// llama-perplexity's `log_softmax` with codes of 16 bits, step for step.
fn encode(logits: &[f32], out: &mut Vec<u8>) -> Option<()> {
    if !logits.iter().all(|z| z.is_finite()) {
        return None;
    }
    let (mut max, mut min) = (f32::NEG_INFINITY, f32::INFINITY);
    for &z in logits {
        max = if z > max { z } else { max };
        min = if z < min { z } else { min };
    }
    let min = if min > max - DEPTH { min } else { max - DEPTH };
    let sum: f64 = logits.iter().map(|&z| f64::from((z - max).exp())).sum();
    let log_sum = sum.ln() as f32;
    let scale = (max - min) / 65535.0;
    out.extend(scale.to_le_bytes());
    out.extend((min - max - log_sum).to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let code = |&z: &f32| if z > min { nearest_int(inverse * (z - min)) as u16 } else { 0 };
    out.extend(logits.iter().map(code).flat_map(u16::to_le_bytes));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_log_probabilities_to_a_16_bit_step() {
        let logits = [1.0f32, -2.5, 3.0, 0.25, -40.0];
        let mut bytes = Vec::new();
        encode(&logits, &mut bytes).unwrap();
        let float = |at: usize| f32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let (scale, least) = (float(0), float(4));
        let log_sum = logits.iter().map(|z| f64::from(*z).exp()).sum::<f64>().ln();
        let codes = bytes[8..].as_chunks::<2>().0;
        for (z, code) in logits.iter().zip(codes) {
            let found = f64::from(scale * f32::from(u16::from_le_bytes(*code)) + least);
            let expected = (f64::from(*z) - log_sum).max(3.0 - 16.0 - log_sum);
            assert!((found - expected).abs() < 16.0 / 65535.0, "{z}: {found} {expected}");
        }
        // The largest has the largest code; one more than 16 below it has the smallest.
        assert_eq!((u16::from_le_bytes(codes[2]), u16::from_le_bytes(codes[4])), (65535, 0));
        assert!(encode(&[0.0, f32::NAN], &mut bytes).is_none());
        assert!(encode(&[0.0, f32::INFINITY], &mut bytes).is_none());
    }

    #[test]
    fn equal_logits_have_no_scale() {
        let mut bytes = Vec::new();
        encode(&[2.0; 4], &mut bytes).unwrap();
        assert_eq!(bytes[..4], 0f32.to_le_bytes());
        assert_eq!(bytes[4..8], (-(4f64.ln() as f32)).to_le_bytes());
        assert_eq!(bytes[8..], [0; 8]);
    }
}
