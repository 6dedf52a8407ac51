//! Writing of a recipe. Its parts are compressed into an unnamed file first, because their sizes come before them.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use crate::core::TensorSource;
use crate::core::output::OutputFile;
use crate::core::platform::{read_exact_at, write_all_at};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::{FilePlan, GgufFile, WriteError};
use crate::job::Result;
use crate::job::recipe::compression::compress;
use crate::job::recipe::examine::Examined;
use crate::job::recipe::file::{GAPS, HEADER, RecipeKeys, digest_of, tensor_part};
use crate::job::recipe::layout::{bytes_of, gaps};
use crate::job::recipe::report::{FileRecipe, WrittenRecipe};
use crate::job::recipe::trial::{chunks, make, raw_rows, whole};
use crate::job::recipe::{RecipeSource, delta};
use crate::quantize::MadeTensor;

/// Bytes that become one frame.
const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Compressed parts of a recipe.
pub(super) struct Packed {
    spool: File,
    /// Name, offset in the spool and size of each part.
    parts: Vec<(String, u64, u64)>,
    plan: FilePlan,
    written: WrittenRecipe,
}

/// Unnamed file that parts are appended to.
struct Spool {
    file: File,
    n_bytes: u64,
    parts: Vec<(String, u64, u64)>,
}

impl Spool {
    fn add<I>(&mut self, name: String, frames: I) -> Result<u64, WriteError>
    where
        I: IntoIterator<Item = Result<Vec<u8>, WriteError>>,
    {
        let start = self.n_bytes;
        for frame in frames {
            let frame = frame?;
            write_all_at(&self.file, &frame, self.n_bytes)?;
            self.n_bytes += frame.len() as u64;
        }
        self.parts.push((name, start, self.n_bytes - start));
        Ok(self.n_bytes - start)
    }
}

/// Chunks that are compressed at once.
fn windows<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    all.chunks(2 * rayon::current_num_threads().max(1))
}

impl Packed {
    /// Compresses what the source does not explain. `target` names the recipe in messages; the unnamed file is beside it.
    pub(super) fn new(
        file: &GgufFile,
        source: &RecipeSource,
        examined: &Examined<'_>,
        report: &FileRecipe,
        target: &Path,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let source_sha256 = source.digest(progress)?.to_owned();
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let named = |error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
        };
        let spool = tempfile::tempfile_in(folder).map_err(|error| WriteError::Io(named(error)))?;
        let mut spool = Spool { file: spool, n_bytes: 0, parts: Vec::new() };
        let title = format!("compressing what differs in {}", escape(&name_of(&report.file)));
        progress.begin(&title, file.tensor_bytes());
        let Some(part) = file.parts().first() else { return Err(WriteError::Cancelled.into()) };
        let header = bytes_of(file, &(0..part.header().data_offset));
        let base = source.header();
        let frames = match base {
            Some(base) => compress(&delta::encode(header, base)),
            None => compress(header),
        };
        let header_bytes = spool.add(HEADER.to_owned(), [Ok(frames)])?;
        add_gaps(&mut spool, file)?;
        let (mut patch_bytes, mut stored_bytes) = (0, 0);
        for (tensor, found) in examined.tensors.iter().enumerate() {
            let n_bytes = file.place(tensor).n_bytes;
            match found.origin {
                Some(origin) if origin.is_exact => {}
                Some(origin) => {
                    let made = source.made(origin.source, file.tensors()[tensor].ty, origin.way);
                    if let Some(made) = made {
                        patch_bytes += add_patch(&mut spool, file, tensor, &made, progress)?;
                    }
                }
                None if n_bytes == 0 => {}
                None => stored_bytes += add_stored(&mut spool, file, tensor, progress)?,
            }
            file.release_rows(tensor, 0, file.tensors()[tensor].shape.n_rows());
            progress.advance(n_bytes);
        }
        progress.end();
        let matrix_sha256 = source.matrix_sha256().filter(|_| examined.needs_matrix());
        let base_sha256 = base.map(digest_of);
        let keys = RecipeKeys {
            name: &name_of(&report.file),
            file_bytes: file.file_bytes(),
            sha256: &report.sha256,
            source_sha256: &source_sha256,
            matrix_sha256,
            header_bytes: header.len() as u64,
            base_sha256: base_sha256.as_deref(),
            origins: examined.tensors.iter().map(|tensor| tensor.origin).collect(),
        };
        let sizes: Vec<_> = spool.parts.iter().map(|(name, _, n_bytes)| (name.clone(), *n_bytes)).collect();
        let plan = keys.plan(target, &sizes)?;
        let written = WrittenRecipe {
            file: target.to_owned(),
            file_bytes: plan.file_bytes,
            header_bytes,
            patch_bytes,
            stored_bytes,
            imatrix_sha256: matrix_sha256.map(str::to_owned),
            source_sha256,
        };
        Ok(Self { spool: spool.file, parts: spool.parts, plan, written })
    }

    pub(super) fn write(&self, output: &OutputFile, target: &Path) -> Result<WrittenRecipe> {
        output.reserve(self.plan.file_bytes).map_err(WriteError::Io)?;
        output.write_at(0, &self.plan.header).map_err(WriteError::Io)?;
        let mut buffer = vec![0; COPY_BYTES];
        for ((_, start, n_bytes), place) in self.parts.iter().zip(&self.plan.tensors) {
            let mut done = 0;
            while done < *n_bytes {
                let n = usize::try_from(n_bytes - done).unwrap_or(usize::MAX).min(buffer.len());
                let part = &mut buffer[..n];
                read_exact_at(&self.spool, part, start + done).map_err(WriteError::Io)?;
                output.write_at(place.offset + done, part).map_err(WriteError::Io)?;
                done += n as u64;
            }
        }
        Ok(WrittenRecipe { file: target.to_owned(), ..self.written.clone() })
    }
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Adds the bytes that belong to no tensor, if one of them is not zero.
fn add_gaps(spool: &mut Spool, file: &GgufFile) -> Result<(), WriteError> {
    let Some(part) = file.parts().first() else { return Ok(()) };
    let gaps = gaps(part.header(), part.file_bytes()).unwrap_or_default();
    if gaps.iter().all(|gap| bytes_of(file, gap).iter().all(|&byte| byte == 0)) {
        return Ok(());
    }
    let chunks = gaps.iter().flat_map(|gap| bytes_of(file, gap).chunks(CHUNK_BYTES as usize));
    // Most gaps are a few bytes: they share a frame.
    let (mut frames, mut open) = (Vec::new(), Vec::new());
    for chunk in chunks {
        open.extend_from_slice(chunk);
        if open.len() >= CHUNK_BYTES as usize {
            frames.push(Ok(compress(&std::mem::take(&mut open))));
        }
    }
    if !open.is_empty() {
        frames.push(Ok(compress(&open)));
    }
    spool.add(GAPS.to_owned(), frames)?;
    Ok(())
}

/// Adds the exclusive or of a tensor of the file and the tensor that is made.
fn add_patch(
    spool: &mut Spool,
    file: &GgufFile,
    tensor: usize,
    made: &MadeTensor<'_>,
    progress: &dyn Progress,
) -> Result<u64, WriteError> {
    let frame = |buffer: &mut Vec<u8>, rows: &Range<u64>| -> Result<Vec<u8>, WriteError> {
        if progress.is_cancelled() {
            return Err(WriteError::Cancelled);
        }
        make(made, file.endian(), rows, buffer)?;
        let found = raw_rows(file, tensor, rows).unwrap_or_default();
        buffer.iter_mut().zip(found).for_each(|(own, found)| *own ^= found);
        Ok(compress(buffer))
    };
    let chunks = chunks(made.meta(), &whole(made.meta()), CHUNK_BYTES);
    let frames =
        windows(&chunks).flat_map(|window| window.par_iter().map_init(Vec::new, frame).collect::<Vec<_>>());
    spool.add(tensor_part(tensor), frames)
}

/// Adds the bytes of a tensor of the file.
fn add_stored(
    spool: &mut Spool,
    file: &GgufFile,
    tensor: usize,
    progress: &dyn Progress,
) -> Result<u64, WriteError> {
    let place = file.place(tensor);
    let bytes = bytes_of(file, &(place.offset..place.offset + place.n_bytes));
    let chunks: Vec<&[u8]> = bytes.chunks(CHUNK_BYTES as usize).collect();
    let frame = |chunk: &&[u8]| {
        if progress.is_cancelled() { Err(WriteError::Cancelled) } else { Ok(compress(chunk)) }
    };
    let frames = windows(&chunks).flat_map(|window| window.par_iter().map(frame).collect::<Vec<_>>());
    spool.add(tensor_part(tensor), frames)
}
