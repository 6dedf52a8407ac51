//! Reader of logit files: mapped, checked when opened, and read row by row.

use std::io::Read;
use std::path::Path;

use crate::VerifyError;
use crate::logit_file::model_mark::ModelMark;
use crate::logit_file::{Geometry, HEADER_BYTES, LogitFileError, MAGIC, MARK_MAGIC, ROW_HEAD_BYTES};
use gguf_core::mmap::MappedFile;
use gguf_engine::LogProbs;

/// File with the log-probabilities of a baseline.
#[derive(Debug)]
pub struct LogitFile {
    map: MappedFile,
    geometry: Geometry,
    rows_offset: usize,
    /// Facts of its model, if a program of this project wrote the file.
    mark: Option<ModelMark>,
}

/// Returns the facts of a model from what follows the rows.
fn mark(rest: &[u8]) -> Option<ModelMark> {
    let text = rest.strip_prefix(MARK_MAGIC)?;
    let length = usize::try_from(u32::from_le_bytes(word(text, 0)?)).ok()?;
    serde_json::from_slice(text.get(4..).filter(|text| text.len() == length)?).ok()
}

/// Returns the four bytes at an offset.
fn word(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl LogitFile {
    /// Returns true if a file starts with the magic bytes of a logit file, whatever its name.
    pub fn is_one(path: &Path) -> std::io::Result<bool> {
        if !path.is_file() {
            return Ok(false);
        }
        let mut head = Vec::new();
        gguf_core::input::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut head)?;
        Ok(head == MAGIC)
    }

    /// Opens a file. Its lengths and token ids are checked here, its rows when they are used.
    ///
    /// # Errors
    /// I/O errors; a header that does not fit the file; token ids outside the vocabulary.
    pub fn open(path: &Path) -> Result<Self, VerifyError> {
        let map = MappedFile::open(path)?;
        let geometry = geometry(&map, path)?;
        let owned = || path.to_owned();
        let expected = geometry.file_bytes();
        let found = map.len() as u64;
        let rest = usize::try_from(expected).ok().and_then(|end| map.get(end..)).unwrap_or_default();
        let mark = mark(rest);
        if u128::from(found) != expected && mark.is_none() {
            return Err(LogitFileError::Length { path: owned(), expected, found }.into());
        }
        // Inside the file, by the comparison above.
        let rows_offset = usize::try_from(geometry.rows_offset()).unwrap_or(usize::MAX);
        let file = Self { map, geometry, rows_offset, mark };
        let n_vocab = geometry.n_vocab;
        if let Some((at, token)) = file.tokens().enumerate().find(|&(_, token)| token as usize >= n_vocab) {
            let offset = HEADER_BYTES + 4 * at as u64;
            let token = i64::from(token.cast_signed());
            return Err(LogitFileError::Token { path: owned(), offset, token, n_vocab }.into());
        }
        Ok(file)
    }

    pub(crate) fn mark(&self) -> Option<&ModelMark> {
        self.mark.as_ref()
    }

    /// Returns the number of tokens of a chunk.
    pub fn n_ctx(&self) -> usize {
        self.geometry.n_ctx
    }

    /// Returns the size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.geometry.n_vocab
    }

    /// Returns the number of chunks.
    pub fn n_chunks(&self) -> usize {
        self.geometry.n_chunks
    }

    /// Returns the tokens of the text, chunk by chunk.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        let bytes = self.map.get(HEADER_BYTES as usize..self.rows_offset).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
    }

    fn row(&self, row: usize) -> Option<LogitRow<'_>> {
        let row_bytes = self.geometry.row_bytes();
        let start = row.checked_mul(row_bytes)?.checked_add(self.rows_offset)?;
        let bytes = self.map.get(start..start.checked_add(row_bytes)?)?;
        let scale = f32::from_le_bytes(word(bytes, 0)?);
        let least = f32::from_le_bytes(word(bytes, 4)?);
        Some(LogitRow { scale, least, codes: bytes.get(ROW_HEAD_BYTES..)?.as_chunks::<2>().0, offset: start })
    }

    /// Returns the `n_rows` rows from `first` on, to compare a group of predictions with them.
    pub(crate) fn rows(&self, first: usize, n_rows: usize) -> Result<LogitRows<'_>, LogitFileError> {
        for row in (first..first + n_rows).filter_map(|row| self.row(row)) {
            let (scale, least) = (row.scale, row.least);
            // The most likely token has at least its share of the probability, and none has more than all of it.
            let most = scale * 65535.0 + least;
            if !(scale >= 0.0 && least.is_finite() && most.is_finite() && most < 1e-3) {
                let path = self.map.path().to_owned();
                return Err(LogitFileError::Row { path, offset: row.offset as u64, scale, least });
            }
        }
        Ok(LogitRows { file: self, first })
    }

    /// Releases the pages of rows that are no longer needed.
    pub(crate) fn release(&self, rows: std::ops::Range<usize>) {
        let row_bytes = self.geometry.row_bytes();
        let start = self.rows_offset + rows.start * row_bytes;
        self.map.release(start as u64, (rows.len() * row_bytes) as u64);
    }
}

fn geometry(bytes: &[u8], path: &Path) -> Result<Geometry, LogitFileError> {
    let owned = || path.to_owned();
    if !bytes.starts_with(MAGIC) {
        return Err(LogitFileError::Magic { path: owned() });
    }
    let number = |offset: u64, name: &'static str, least: i32, expected: &'static str| {
        let found = word(bytes, offset as usize).map(i32::from_le_bytes).ok_or(LogitFileError::Length {
            path: owned(),
            expected: HEADER_BYTES.into(),
            found: bytes.len() as u64,
        })?;
        match usize::try_from(found) {
            Ok(number) if found >= least => Ok(number),
            _ => {
                Err(LogitFileError::Header { path: owned(), offset, name, found: i64::from(found), expected })
            }
        }
    };
    Ok(Geometry {
        n_ctx: number(8, "n_ctx", 4, "at least 4")?,
        n_vocab: number(12, "n_vocab", 1, "at least 1")?,
        n_chunks: number(16, "n_chunk", 1, "at least 1")?,
    })
}

/// Row as it is stored.
struct LogitRow<'a> {
    scale: f32,
    least: f32,
    codes: &'a [[u8; 2]],
    offset: usize,
}

/// Rows of a file from `first` on.
pub(crate) struct LogitRows<'a> {
    file: &'a LogitFile,
    first: usize,
}

impl LogProbs for LogitRows<'_> {
    fn read(&self, row: usize, first: usize, out: &mut [f32]) {
        // Missing values are NaN: they cannot be mistaken for a likely token.
        out.fill(f32::NAN);
        let Some(LogitRow { scale, least, codes, .. }) = self.file.row(self.first + row) else { return };
        for (out, code) in out.iter_mut().zip(codes.get(first..).unwrap_or_default()) {
            *out = scale * f32::from(u16::from_le_bytes(*code)) + least;
        }
    }
}
