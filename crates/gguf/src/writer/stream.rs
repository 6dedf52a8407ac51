//! Streaming of planned tensors from a source to output files, in chunks of rows that all threads take in order.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::endian::swap_blocks;
use crate::plan::{PlannedFile, PlannedTensor};
use crate::split_id::FirstRowHashes;
use crate::writer::watermark::Watermark;
use crate::writer::{WriteError, WriteOptions};
use gguf_core::bytes::Endian;
use gguf_core::output::{OutputFile, WriteBack};
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::escape;
use gguf_core::{TensorMeta, TensorSource};

/// Maximum size of a chunk in bytes; a longer row is a chunk of its own.
const MAX_CHUNK_BYTES: u64 = 4 << 20;
/// Minimum size budget of a chunk in bytes.
const MIN_CHUNK_BYTES: u64 = 64 << 10;

/// Observers of written chunks.
#[derive(Clone, Copy)]
pub(super) struct ChunkObservers<'a> {
    pub(super) first_rows: &'a FirstRowHashes,
    /// Recorded progress of a run that may be resumed, and its start.
    pub(super) watermark: Option<&'a Watermark<'a>>,
}

/// Streams the tensors of planned files into their outputs.
pub(super) fn stream(
    source: &dyn TensorSource,
    files: &[PlannedFile],
    outputs: &[OutputFile],
    observers: ChunkObservers<'_>,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let start = observers.watermark.map_or(0, Watermark::start);
    let left = files.iter().flat_map(|file| &file.plan.tensors);
    let left =
        left.map(|tensor| tensor.n_bytes.min((tensor.offset + tensor.n_bytes).saturating_sub(start))).sum();
    progress.begin(&title(files), left);
    let (streamed, synced) = WriteBack::during(outputs, options.sync, |write_back| {
        TensorStream::new(source, files, outputs, write_back, observers, options, progress).run()
    });
    progress.end();
    streamed?;
    synced?;
    if progress.is_cancelled() { Err(WriteError::Cancelled) } else { Ok(()) }
}

/// Returns a title with the name of the first file and the number of others.
fn title(files: &[PlannedFile]) -> String {
    let name = files.first().and_then(|file| file.path.file_name()).unwrap_or_default().to_string_lossy();
    match files.len() {
        0 | 1 => format!("writing {}", escape(&name)),
        n => format!("writing {} and {} more", escape(&name), n - 1),
    }
}

/// Rows of one tensor and their position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowChunk {
    file: usize,
    tensor: usize,
    first_row: u64,
    n_rows: u64,
    offset: u64,
    n_bytes: u64,
}

/// Iterator over the chunks of all tensors, in file order.
struct RowChunks<'a> {
    tensors: &'a [TensorMeta],
    files: &'a [PlannedFile],
    chunk_bytes: u64,
    file: usize,
    tensor: usize,
    row: u64,
}

impl<'a> RowChunks<'a> {
    /// Starts at an offset of the first file.
    fn new(tensors: &'a [TensorMeta], files: &'a [PlannedFile], chunk_bytes: u64, start: u64) -> Self {
        let mut this = Self { tensors, files, chunk_bytes, file: 0, tensor: 0, row: 0 };
        if let Some(file) = files.first() {
            let is_done = |tensor: &&PlannedTensor| tensor.offset.saturating_add(tensor.n_bytes) <= start;
            let n_done = if start == 0 { 0 } else { file.plan.tensors.iter().take_while(is_done).count() };
            this.tensor = file.tensors.start + n_done;
            let begun = file.plan.tensors.get(n_done).map_or(0, |tensor| start.saturating_sub(tensor.offset));
            let row_bytes = tensors.get(this.tensor).and_then(TensorMeta::row_bytes).unwrap_or(0);
            this.row = begun.checked_div(row_bytes).unwrap_or(0);
        }
        this
    }

    /// Iterates over the remaining tensors, in order.
    fn tensors_left(&self) -> impl Iterator<Item = usize> {
        let all = self.files.iter().flat_map(|file| file.tensors.clone());
        all.skip_while(|&tensor| tensor < self.tensor)
    }
}

impl Iterator for RowChunks<'_> {
    type Item = RowChunk;

    fn next(&mut self) -> Option<RowChunk> {
        loop {
            let file = self.files.get(self.file)?;
            if self.tensor >= file.tensors.end {
                self.file += 1;
                continue;
            }
            let meta = &self.tensors[self.tensor];
            let n_rows = meta.shape.n_rows();
            // The plan would have been refused if rows were not whole blocks.
            let row_bytes = meta.row_bytes().unwrap_or(0);
            if self.row >= n_rows || row_bytes == 0 {
                self.tensor += 1;
                self.row = 0;
                continue;
            }
            let first_row = self.row;
            let n_rows = (self.chunk_bytes / row_bytes).max(1).min(n_rows - first_row);
            self.row += n_rows;
            let planned = file.plan.tensors[self.tensor - file.tensors.start];
            return Some(RowChunk {
                file: self.file,
                tensor: self.tensor,
                first_row,
                n_rows,
                offset: planned.offset + first_row * row_bytes,
                n_bytes: n_rows * row_bytes,
            });
        }
    }
}

/// Guard that stops the other threads when one panics, because the file is lost anyway.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// State of a running stream.
struct TensorStream<'a> {
    source: &'a dyn TensorSource,
    outputs: &'a [OutputFile],
    observers: ChunkObservers<'a>,
    endian: Endian,
    write_back: &'a WriteBack<'a>,
    chunk_bytes: u64,
    progress: &'a dyn Progress,
    /// Indices of the files' tensors.
    own: Range<usize>,
    n_workers: usize,
    queue: Mutex<std::iter::Enumerate<RowChunks<'a>>>,
    stop: AtomicBool,
    /// Failure of the earliest chunk, so that the message does not depend on the threads.
    failure: Mutex<Option<(usize, WriteError)>>,
}

impl<'a> TensorStream<'a> {
    fn new(
        source: &'a dyn TensorSource,
        files: &'a [PlannedFile],
        outputs: &'a [OutputFile],
        write_back: &'a WriteBack<'a>,
        observers: ChunkObservers<'a>,
        options: &WriteOptions,
        progress: &'a dyn Progress,
    ) -> Self {
        let n_workers = rayon::current_num_threads().max(1);
        let chunk_bytes =
            (options.memory_bytes / (2 * n_workers as u64)).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let start = observers.watermark.map_or(0, Watermark::start);
        let chunks = RowChunks::new(source.tensors(), files, chunk_bytes, start);
        chunks.tensors_left().for_each(|tensor| source.expect(tensor));
        Self {
            source,
            outputs,
            observers,
            endian: options.layout.endian,
            write_back,
            chunk_bytes,
            progress,
            own: files.first().map_or(0, |file| file.tensors.start)
                ..files.last().map_or(0, |file| file.tensors.end),
            n_workers,
            queue: Mutex::new(chunks.enumerate()),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
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
        let _guard = StopOnPanic(&self.stop);
        let mut buffer = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.queue.lock().unpoisoned().next();
            let Some((index, chunk)) = next else { break };
            let done = if self.progress.is_cancelled() {
                Err(WriteError::Cancelled)
            } else {
                self.write(index, chunk, &mut buffer)
            };
            match done {
                Ok(()) => self.progress.advance(chunk.n_bytes),
                Err(error) => self.fail(index, error),
            }
        }
    }

    fn fail(&self, index: usize, error: WriteError) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failure = self.failure.lock().unpoisoned();
        if failure.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
            *failure = Some((index, error));
        }
    }

    fn write(&self, index: usize, chunk: RowChunk, buffer: &mut Vec<u8>) -> Result<(), WriteError> {
        let output = &self.outputs[chunk.file];
        let borrowed = match self.endian {
            Endian::Little => self.source.borrow_rows(chunk.tensor, chunk.first_row, chunk.n_rows),
            Endian::Big => None,
        };
        if let Some(bytes) = borrowed {
            self.begin_tensor(chunk, bytes);
            output.write_at(chunk.offset, bytes)?;
        } else {
            // A chunk is one row or fits the budget; the source holds at least as much.
            buffer.resize(chunk.n_bytes as usize, 0);
            self.source.read_rows(chunk.tensor, chunk.first_row, buffer)?;
            if self.endian == Endian::Big {
                swap_blocks(self.source.tensors()[chunk.tensor].ty, buffer);
            }
            self.begin_tensor(chunk, buffer);
            output.write_at(chunk.offset, buffer)?;
            if buffer.capacity() as u64 > 2 * self.chunk_bytes {
                *buffer = Vec::new();
            }
        }
        self.source.release_rows(chunk.tensor, chunk.first_row, chunk.n_rows);
        self.write_back.wrote(chunk.file, chunk.n_bytes)?;
        if let Some(watermark) = self.observers.watermark {
            watermark.wrote(index, chunk.offset + chunk.n_bytes)?;
        }
        Ok(())
    }

    /// Reports the start of a tensor and records its first row. More rows would not be reproducible: the number per
    /// chunk depends on the memory.
    fn begin_tensor(&self, chunk: RowChunk, bytes: &[u8]) {
        if chunk.first_row == 0 {
            let (number, of) = (chunk.tensor + 1 - self.own.start, self.own.len());
            self.progress.piece("tensor", number as u64, of as u64);
            let row_bytes = bytes.len() / usize::try_from(chunk.n_rows).unwrap_or(usize::MAX).max(1);
            self.observers.first_rows.note(chunk.tensor, &bytes[..row_bytes]);
        }
    }
}
