//! A file made again from its recipe, from front to back. Pieces are made by all threads; one follows them, adds what
//! differs, computes the digest and writes.

use std::ops::Range;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::core::output::OutputFile;
use crate::core::progress::Progress;
use crate::core::text::{escape, hex};
use crate::gguf::{Header, Strictness, WriteError, parse_head};
use crate::job::recipe::compression::{Frames, decompress};
use crate::job::recipe::file::{GAPS, HEADER, RecipeFile, digest_of, tensor_part};
use crate::job::recipe::layout::gaps;
use crate::job::recipe::trial::{chunks, has_rows_of, make, whole};
use crate::job::recipe::{RecipeError, RecipeOutput, RecipeSource, bounds, delta};
use crate::job::{JobError, Result};
use crate::quantize::MadeTensor;

/// Bounds of a piece in bytes. A longer row is a piece of its own.
const PIECE_BYTES: Range<u64> = (64 << 10)..(4 << 20);

/// Checked recipe and its source.
pub(super) struct Rebuild<'a> {
    recipe: &'a RecipeFile,
    header_bytes: Vec<u8>,
    header: Header,
    gaps: Vec<Range<u64>>,
    made: Vec<Option<MadeTensor<'a>>>,
}

enum Piece {
    /// Bytes that belong to no tensor.
    Gap(u64),
    Stored {
        tensor: usize,
        n_bytes: u64,
    },
    Rows {
        tensor: usize,
        rows: Range<u64>,
    },
}

impl<'a> Rebuild<'a> {
    /// Checks a recipe and its source. All tensors of the source are read, once for any number of recipes.
    pub(super) fn new(
        recipe: &'a RecipeFile,
        source: &'a RecipeSource,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let path = || recipe.path().to_owned();
        let expected = recipe.source_sha256.clone();
        let found = source.digest(progress)?;
        if found != expected {
            return Err(RecipeError::OtherSource { path: path(), expected, found: found.to_owned() }.into());
        }
        match (&recipe.matrix_sha256, source.matrix_sha256()) {
            (Some(expected), None) => {
                return Err(RecipeError::NoMatrix { path: path(), expected: expected.clone() }.into());
            }
            (Some(expected), Some(found)) if expected != found => {
                let (expected, found) = (expected.clone(), found.to_owned());
                return Err(RecipeError::OtherMatrix { path: path(), expected, found }.into());
            }
            _ => {}
        }
        let header_bytes = header_of(recipe, source)?;
        let damaged = |what: String| JobError::from(recipe.damaged(what));
        let beyond = recipe.file_bytes.checked_sub(header_bytes.len() as u64);
        let beyond = beyond.ok_or_else(|| damaged("the header is longer than the file".to_owned()))?;
        let header =
            parse_head(&header_bytes, beyond, &crate::core::limits::Limits::default(), Strictness::LlamaCpp)
                .map_err(|error| damaged(format!("header of the file: {error}")))?;
        if header.data_offset != header_bytes.len() as u64 || header.tensors.len() != recipe.origins.len() {
            return Err(damaged("the header of the file does not fit the list of tensors".to_owned()));
        }
        let gaps = gaps(&header, recipe.file_bytes);
        let gaps = gaps.ok_or_else(|| damaged("the tensors of the file overlap".to_owned()))?;
        bounds::check(recipe, &header, &gaps, source)?;
        let mut made = Vec::with_capacity(header.tensors.len());
        for (tensor, origin) in header.tensors.iter().zip(&recipe.origins) {
            let Some((at, way)) = *origin else {
                made.push(None);
                continue;
            };
            let own = source.tensors().get(at).filter(|own| has_rows_of(own, tensor));
            let own = own.and_then(|_| source.made(at, tensor.ty, way));
            let name = escape(&tensor.name);
            made.push(Some(
                own.ok_or_else(|| damaged(format!("tensor `{name}` cannot be made of the source")))?,
            ));
        }
        Ok(Self { recipe, header_bytes, header, gaps, made })
    }

    /// Writes the file. On an error, the output must not be committed.
    pub(super) fn write(
        &self,
        output: &OutputFile,
        options: &RecipeOutput,
        progress: &dyn Progress,
    ) -> Result<()> {
        progress.begin(&format!("writing {}", escape(&self.recipe.name)), self.recipe.file_bytes);
        let done = self.stream(output, options, progress);
        progress.end();
        done
    }

    fn stream(&self, output: &OutputFile, options: &RecipeOutput, progress: &dyn Progress) -> Result<()> {
        output.reserve(self.recipe.file_bytes).map_err(WriteError::Io)?;
        let n_threads = rayon::current_num_threads().max(1) as u64;
        let piece_bytes = options.memory_bytes / (4 * n_threads);
        let piece_bytes = piece_bytes.clamp(PIECE_BYTES.start, PIECE_BYTES.end);
        let mut writing = Writing::new(self, output, progress);
        writing.put(&self.header_bytes)?;
        let mut pieces = self.pieces(piece_bytes);
        let mut next =
            |n: u64| -> Vec<Piece> { pieces.by_ref().take(usize::try_from(n).unwrap_or(1)).collect() };
        let make = |window: &[Piece]| -> Result<Vec<Vec<u8>>, WriteError> {
            window.par_iter().map(|piece| self.make(piece, progress)).collect()
        };
        let mut window = next(n_threads);
        let mut buffers = make(&window)?;
        while !window.is_empty() {
            let following = next(n_threads);
            let (made, written) = rayon::join(|| make(&following), || writing.pieces(&window, buffers));
            written?;
            buffers = made?;
            window = following;
        }
        writing.finish()
    }

    /// Cuts the file behind its header into pieces, in order.
    fn pieces(&self, piece_bytes: u64) -> impl Iterator<Item = Piece> {
        let cut = move |n_bytes: u64| {
            let starts = (0..n_bytes).step_by(usize::try_from(piece_bytes).unwrap_or(usize::MAX));
            starts.map(move |start| piece_bytes.min(n_bytes - start))
        };
        (0..self.gaps.len()).flat_map(move |at| {
            let gap = self.gaps[at].end - self.gaps[at].start;
            let meta = self.header.tensors.get(at);
            let n_bytes = meta.and_then(crate::core::TensorMeta::n_bytes).unwrap_or(0);
            let is_made = self.made.get(at).is_some_and(Option::is_some);
            let rows = meta.filter(|_| is_made && n_bytes > 0);
            let rows = rows.map(|meta| chunks(meta, &whole(meta), piece_bytes)).unwrap_or_default();
            let stored = if is_made { 0 } else { n_bytes };
            cut(gap)
                .map(Piece::Gap)
                .chain(cut(stored).map(move |n_bytes| Piece::Stored { tensor: at, n_bytes }))
                .chain(rows.into_iter().map(move |rows| Piece::Rows { tensor: at, rows }))
        })
    }

    /// Makes the bytes of a piece that come from the source; zeros for the others.
    fn make(&self, piece: &Piece, progress: &dyn Progress) -> Result<Vec<u8>, WriteError> {
        if progress.is_cancelled() {
            return Err(WriteError::Cancelled);
        }
        let mut out = Vec::new();
        match piece {
            Piece::Gap(n_bytes) | Piece::Stored { n_bytes, .. } => {
                out.resize(usize::try_from(*n_bytes).unwrap_or(0), 0);
            }
            Piece::Rows { tensor, rows } => {
                if let Some(made) = &self.made[*tensor] {
                    make(made, self.header.endian, rows, &mut out)?;
                }
            }
        }
        Ok(out)
    }
}

fn header_of(recipe: &RecipeFile, source: &RecipeSource) -> Result<Vec<u8>> {
    let damaged = || JobError::from(recipe.damaged("the header of the file cannot be restored"));
    let part = recipe.part(HEADER).ok_or_else(damaged)?;
    let Some(expected) = &recipe.base_sha256 else {
        let n_bytes = bounds::header_bytes(recipe, part, &[])?;
        let header = decompress(part, n_bytes).map_err(|_| damaged())?;
        return if header.len() == n_bytes { Ok(header) } else { Err(damaged()) };
    };
    let base = source.header().unwrap_or_default();
    let found = digest_of(base);
    if found != *expected {
        let (path, expected) = (recipe.path().to_owned(), expected.clone());
        return Err(RecipeError::OtherHeader { path, expected, found }.into());
    }
    let n_bytes = bounds::header_bytes(recipe, part, base)?;
    // Differences are at most a few bytes longer than all bytes.
    let delta = decompress(part, n_bytes.saturating_add(64)).map_err(|_| damaged())?;
    delta::decode(&delta, base, n_bytes).map_err(|_| damaged())
}

/// Position in the file that is written.
struct Writing<'a> {
    rebuild: &'a Rebuild<'a>,
    output: &'a OutputFile,
    progress: &'a dyn Progress,
    state: Sha256,
    offset: u64,
    gaps: Option<Frames<'a>>,
    /// Part of a tensor that is being read, with the index of the tensor.
    part: Option<(usize, Option<Frames<'a>>)>,
    /// Buffer of what differs.
    patch: Vec<u8>,
}

impl<'a> Writing<'a> {
    fn new(rebuild: &'a Rebuild<'a>, output: &'a OutputFile, progress: &'a dyn Progress) -> Self {
        let gaps = rebuild.recipe.part(GAPS).map(Frames::new);
        let (state, offset, patch) = (Sha256::new(), 0, Vec::new());
        Self { rebuild, output, progress, state, offset, gaps, part: None, patch }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.state.update(bytes);
        self.output.write_at(self.offset, bytes).map_err(WriteError::Io)?;
        self.offset += bytes.len() as u64;
        self.progress.advance(bytes.len() as u64);
        Ok(())
    }

    /// Completes pieces by what the recipe has, and writes them.
    fn pieces(&mut self, pieces: &[Piece], buffers: Vec<Vec<u8>>) -> Result<()> {
        for (piece, mut bytes) in pieces.iter().zip(buffers) {
            let recipe = self.rebuild.recipe;
            match piece {
                Piece::Gap(_) => {
                    if let Some(gaps) = &mut self.gaps {
                        let read = gaps.read_exact(&mut bytes);
                        read.map_err(|error| recipe.damaged(format!("part `{GAPS}`: {error}")))?;
                    }
                }
                Piece::Stored { tensor, .. } => self.read(*tensor, true, &mut bytes)?,
                Piece::Rows { tensor, .. } => {
                    let mut patch = std::mem::take(&mut self.patch);
                    patch.clear();
                    patch.resize(bytes.len(), 0);
                    self.read(*tensor, false, &mut patch)?;
                    bytes.iter_mut().zip(&patch).for_each(|(own, patch)| *own ^= patch);
                    self.patch = patch;
                }
            }
            self.put(&bytes)?;
        }
        Ok(())
    }

    /// Reads the next bytes of a tensor's part. Without a part, `out` stays as it is, unless one is needed.
    fn read(&mut self, tensor: usize, is_needed: bool, out: &mut [u8]) -> Result<()> {
        let recipe = self.rebuild.recipe;
        if self.part.as_ref().is_none_or(|(open, _)| *open != tensor) {
            self.close_part()?;
            self.part = Some((tensor, recipe.part(&tensor_part(tensor)).map(Frames::new)));
        }
        let damaged = |what: String| recipe.damaged(format!("part `{}`: {what}", tensor_part(tensor)));
        match &mut self.part {
            Some((_, Some(frames))) => {
                Ok(frames.read_exact(out).map_err(|error| damaged(error.to_string()))?)
            }
            _ if is_needed => Err(damaged("missing".to_owned()).into()),
            _ => Ok(()),
        }
    }

    /// Checks that nothing is left of the part that was read.
    fn close_part(&mut self) -> Result<()> {
        let Some((tensor, Some(frames))) = &mut self.part else { return Ok(()) };
        if frames.is_at_end() {
            return Ok(());
        }
        let what = format!("part `{}` is longer than its tensor", tensor_part(*tensor));
        Err(self.rebuild.recipe.damaged(what).into())
    }

    /// Compares the digest with that of the original.
    fn finish(mut self) -> Result<()> {
        self.close_part()?;
        let recipe = self.rebuild.recipe;
        let found = hex(&self.state.finalize());
        if found != recipe.sha256 || self.offset != recipe.file_bytes {
            let (path, expected) = (self.output.target().to_owned(), recipe.sha256.clone());
            return Err(RecipeError::Mismatch { path, expected, found }.into());
        }
        Ok(())
    }
}
