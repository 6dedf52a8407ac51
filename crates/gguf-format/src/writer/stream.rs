//! Streaming of planned tensors from a source to output files, in chunks of rows that all threads take in order.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::endian::swap_blocks;
use crate::plan::PlannedFile;
use crate::split_id::FirstRowHashes;
use crate::writer::checksums::{Checksums, HashedRows, WrittenChunk};
use crate::writer::variants::VariantSource;
use crate::writer::watermark::{StreamPosition, Watermark};
use crate::writer::{WriteError, WriteOptions};
use gguf_core::TensorMeta;
use gguf_core::bytes::Endian;
use gguf_core::output::{OutputFile, WriteBack};
use gguf_core::progress::Progress;
use gguf_core::scratch::renew;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::escape;

/// Maximum size of a chunk in bytes, over all variants; a longer row is a chunk of its own.
const MAX_CHUNK_BYTES: u64 = 4 << 20;
/// Minimum size budget of a chunk in bytes.
const MIN_CHUNK_BYTES: u64 = 64 << 10;

/// Place of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placement {
    file: usize,
    /// Variant that the file holds.
    variant: usize,
    /// Offset of the tensor in the file, in bytes.
    offset: u64,
    row_bytes: u64,
}

/// Files of one run, and the place of every tensor in them.
pub(super) struct StreamFiles<'a> {
    files: Vec<&'a PlannedFile>,
    /// Files as they are written, in the same order.
    outputs: &'a [OutputFile],
    /// Places of each tensor of the source; empty for those that belong to other runs.
    placements: Vec<Vec<Placement>>,
    /// Checksums of all files, if they are wanted.
    pub(super) checksums: Option<&'a Checksums>,
    /// Hashes of first rows, by the output that a file belongs to; `None` for a file without an id.
    pub(super) first_rows: Vec<Option<&'a FirstRowHashes>>,
}

impl<'a> StreamFiles<'a> {
    /// Files without tensors yet.
    pub(super) fn new(n_tensors: usize, files: Vec<&'a PlannedFile>, outputs: &'a [OutputFile]) -> Self {
        let first_rows = vec![None; files.len()];
        Self { files, outputs, placements: vec![Vec::new(); n_tensors], checksums: None, first_rows }
    }

    /// Adds the places of a file's tensors. The file holds the given variant of each.
    pub(super) fn place(
        &mut self,
        source: &dyn VariantSource,
        file: usize,
        variant: impl Fn(usize) -> usize,
    ) {
        let planned = self.files[file];
        for (tensor, place) in planned.tensors.clone().zip(&planned.plan.tensors) {
            let variant = variant(tensor);
            let row_bytes = source.variants(tensor)[variant].row_bytes().unwrap_or(0);
            self.placements[tensor].push(Placement { file, variant, offset: place.offset, row_bytes });
        }
    }
}

/// Streams tensors as [`stream`], and records the place that was reached if the run fails.
pub(super) fn stream_resumably(
    source: &dyn VariantSource,
    files: &StreamFiles<'_>,
    watermark: &Watermark<'_>,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let streamed = stream(source, files, Some(watermark), options, progress);
    if streamed.is_err() {
        // If this fails as well, less progress is recorded, and more is written again.
        let _ = watermark.note();
    }
    streamed
}

/// Streams the tensors of planned files into their outputs.
pub(super) fn stream(
    source: &dyn VariantSource,
    files: &StreamFiles<'_>,
    watermark: Option<&Watermark<'_>>,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let outputs = files.outputs;
    let title = title(&files.files);
    let (streamed, synced) = WriteBack::during(outputs, options.sync, |write_back| {
        let stream = TensorStream::new(source, files, write_back, watermark, options, progress);
        progress.begin(&title, stream.bytes_left());
        stream.run()
    });
    progress.end();
    streamed?;
    synced?;
    if progress.is_cancelled() { Err(WriteError::Cancelled) } else { Ok(()) }
}

/// Returns a title with the name of the first file and the number of others.
fn title(files: &[&PlannedFile]) -> String {
    let name = files.first().and_then(|file| file.path.file_name()).unwrap_or_default().to_string_lossy();
    match files.len() {
        0 | 1 => format!("writing {}", escape(&name)),
        n => format!("writing {} and {} more", escape(&name), n - 1),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowChunk {
    tensor: usize,
    first_row: u64,
    n_rows: u64,
}

/// Iterator over the chunks of all tensors, in order.
struct RowChunks<'a> {
    source: &'a dyn VariantSource,
    placements: &'a [Vec<Placement>],
    chunk_bytes: u64,
    next: StreamPosition,
}

impl RowChunks<'_> {
    /// Iterates over the tensors from the next one on.
    fn tensors_left(&self) -> impl Iterator<Item = usize> {
        let is_written = |tensor: &usize| !self.placements[*tensor].is_empty();
        (self.next.tensor..self.placements.len()).filter(is_written)
    }
}

impl Iterator for RowChunks<'_> {
    type Item = RowChunk;

    fn next(&mut self) -> Option<RowChunk> {
        loop {
            let places = self.placements.get(self.next.tensor)?;
            let variants = self.source.variants(self.next.tensor);
            // The plan would have been refused if rows were not whole blocks.
            let row_bytes: u64 = variants.iter().filter_map(TensorMeta::row_bytes).sum();
            let n_rows = variants.first().map_or(0, |meta| meta.shape.n_rows());
            let first_row = self.next.row;
            if places.is_empty() || first_row >= n_rows || row_bytes == 0 {
                self.next = StreamPosition { tensor: self.next.tensor + 1, row: 0 };
                continue;
            }
            let n_rows = (self.chunk_bytes / row_bytes).max(1).min(n_rows - first_row);
            self.next.row += n_rows;
            return Some(RowChunk { tensor: self.next.tensor, first_row, n_rows });
        }
    }
}

/// Guard that stops the other threads when one panics, because the file is lost anyway.
struct StopOnPanic<'a> {
    stop: &'a AtomicBool,
    checksums: Option<&'a Checksums>,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
            if let Some(checksums) = self.checksums {
                checksums.give_up();
            }
        }
    }
}

/// State of a running stream.
struct TensorStream<'a> {
    source: &'a dyn VariantSource,
    files: &'a StreamFiles<'a>,
    endian: Endian,
    write_back: &'a WriteBack<'a>,
    watermark: Option<&'a Watermark<'a>>,
    chunk_bytes: u64,
    progress: &'a dyn Progress,
    /// Indices of the tensors that are written.
    own: Range<usize>,
    n_workers: usize,
    queue: Mutex<std::iter::Enumerate<RowChunks<'a>>>,
    stop: AtomicBool,
    /// Failure of the earliest chunk, so that the message does not depend on the threads.
    failure: Mutex<Option<(usize, WriteError)>>,
}

impl<'a> TensorStream<'a> {
    fn new(
        source: &'a dyn VariantSource,
        files: &'a StreamFiles<'a>,
        write_back: &'a WriteBack<'a>,
        watermark: Option<&'a Watermark<'a>>,
        options: &WriteOptions,
        progress: &'a dyn Progress,
    ) -> Self {
        let n_workers = rayon::current_num_threads().max(1);
        let chunk_bytes =
            (options.memory_bytes / (2 * n_workers as u64)).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let next = watermark.map_or_else(StreamPosition::default, Watermark::start);
        let chunks = RowChunks { source, placements: &files.placements, chunk_bytes, next };
        chunks.tensors_left().for_each(|tensor| source.expect(tensor));
        let is_own = |places: &Vec<Placement>| !places.is_empty();
        let first = files.placements.iter().position(is_own).unwrap_or(0);
        let end = files.placements.iter().rposition(is_own).map_or(first, |last| last + 1);
        Self {
            source,
            files,
            endian: options.layout.endian,
            write_back,
            watermark,
            chunk_bytes,
            progress,
            own: first..end,
            n_workers,
            queue: Mutex::new(chunks.enumerate()),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Returns the bytes that are left to write, in all files.
    fn bytes_left(&self) -> u64 {
        let start = self.watermark.map_or_else(StreamPosition::default, Watermark::start);
        let left = |tensor: usize, place: &Placement| {
            let row_bytes = place.row_bytes;
            let row = if tensor == start.tensor { start.row } else { 0 };
            let n_rows = self.source.variants(tensor)[place.variant].shape.n_rows();
            (n_rows - row.min(n_rows)) * row_bytes
        };
        let tensors = self.files.placements.iter().enumerate().skip(start.tensor);
        tensors.flat_map(|(tensor, places)| places.iter().map(move |place| left(tensor, place))).sum()
    }

    fn run(self) -> Result<(), WriteError> {
        rayon::scope(|scope| {
            for _ in 0..self.n_workers {
                scope.spawn(|_| self.work());
            }
        });
        match self.failure.into_inner().unpoisoned() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn work(&self) {
        let _guard = StopOnPanic { stop: &self.stop, checksums: self.files.checksums };
        let mut buffers = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.queue.lock().unpoisoned().next();
            let Some((index, chunk)) = next else { break };
            let done = if self.progress.is_cancelled() {
                Err(WriteError::Cancelled)
            } else {
                self.write(index, chunk, &mut buffers)
            };
            match done {
                Ok(n_bytes) => self.progress.advance(n_bytes),
                Err(error) => self.fail(index, error),
            }
        }
    }

    fn fail(&self, index: usize, error: WriteError) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(checksums) = self.files.checksums {
            checksums.give_up();
        }
        let mut failure = self.failure.lock().unpoisoned();
        if failure.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
            *failure = Some((index, error));
        }
    }

    /// Writes a chunk into all files that hold it, and returns the number of bytes.
    fn write(&self, index: usize, chunk: RowChunk, buffers: &mut Vec<Vec<u8>>) -> Result<u64, WriteError> {
        let variants = self.source.variants(chunk.tensor);
        let borrowed = match self.endian {
            Endian::Little => self.source.borrow_rows(chunk.tensor, chunk.first_row, chunk.n_rows),
            Endian::Big => None,
        };
        let n_bytes = if let Some(bytes) = borrowed {
            self.begin_tensor(chunk, &[bytes]);
            self.place(chunk, &[bytes])?
        } else {
            buffers.resize_with(variants.len().max(buffers.len()), Vec::new);
            let own = &mut buffers[..variants.len()];
            for (buffer, meta) in own.iter_mut().zip(variants) {
                // A chunk is one row or fits the budget; the source holds at least as much.
                renew(buffer, (meta.row_bytes().unwrap_or(0) * chunk.n_rows) as usize);
            }
            self.source.read_rows(chunk.tensor, chunk.first_row, own)?;
            if self.endian == Endian::Big {
                own.iter_mut().zip(variants).for_each(|(buffer, meta)| swap_blocks(meta.ty, buffer));
            }
            let bytes: Vec<&[u8]> = own.iter().map(Vec::as_slice).collect();
            self.begin_tensor(chunk, &bytes);
            let n_bytes = self.place(chunk, &bytes)?;
            if let Some(checksums) = self.files.checksums {
                let buffers = buffers.drain(..variants.len()).collect();
                checksums.wrote(index, WrittenChunk { buffers, rows: self.hashed_rows(chunk) });
            } else if buffers.iter().map(Vec::capacity).sum::<usize>() as u64 > 2 * self.chunk_bytes {
                buffers.clear();
            }
            n_bytes
        };
        self.source.release_rows(chunk.tensor, chunk.first_row, chunk.n_rows);
        if let Some(watermark) = self.watermark {
            let end = StreamPosition { tensor: chunk.tensor, row: chunk.first_row + chunk.n_rows };
            watermark.wrote(index, end, n_bytes)?;
        }
        Ok(n_bytes)
    }

    fn hashed_rows(&self, chunk: RowChunk) -> Vec<HashedRows> {
        let rows = |place: &Placement| HashedRows {
            file: place.file,
            buffer: place.variant,
            offset: place.offset + chunk.first_row * place.row_bytes,
        };
        self.files.placements[chunk.tensor].iter().map(rows).collect()
    }

    fn place(&self, chunk: RowChunk, bytes: &[&[u8]]) -> Result<u64, WriteError> {
        let mut n_bytes = 0;
        for place in &self.files.placements[chunk.tensor] {
            let bytes = bytes[place.variant];
            let offset = place.offset + chunk.first_row * place.row_bytes;
            self.files.outputs[place.file].write_at(offset, bytes)?;
            self.write_back.wrote(place.file, bytes.len() as u64)?;
            n_bytes += bytes.len() as u64;
        }
        Ok(n_bytes)
    }

    /// Reports the start of a tensor and records its first row. More rows would not be reproducible: the number per
    /// chunk depends on the memory.
    fn begin_tensor(&self, chunk: RowChunk, bytes: &[&[u8]]) {
        if chunk.first_row > 0 {
            return;
        }
        let (number, of) = (chunk.tensor + 1 - self.own.start, self.own.len());
        self.progress.piece("tensor", number as u64, of as u64);
        for place in &self.files.placements[chunk.tensor] {
            if let Some(hashes) = self.files.first_rows[place.file] {
                let row_bytes = usize::try_from(place.row_bytes).unwrap_or(usize::MAX);
                let bytes = bytes[place.variant];
                hashes.note(chunk.tensor, &bytes[..row_bytes.min(bytes.len())]);
            }
        }
    }
}
