//! The one way a GGUF file gets written: planned as a whole, then streamed in chunks of rows from any
//! [`TensorSource`], by all threads at once, into files that appear whole or not at all.

mod into;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::core::bytes::Endian;
use crate::core::output::{
    self, Destination, GuardError, OutputError, OutputFile, OutputGuard, OutputKind, OutputSet, WriteBack,
};
use crate::core::progress::Progress;
use crate::core::{Hint, SourceError, TensorMeta, TensorSource, text};
use crate::gguf::endian::swap_blocks;
use crate::gguf::plan::{FilePlan, LayoutOptions, PlanError, PlannedTensor};
use crate::gguf::share;
use crate::gguf::split::{self, SplitSpec};
use crate::gguf::split_id::{Beginnings, placeholder};
use crate::gguf::{Metadata, Value};
use into::Watermark;

/// Bytes of the largest chunk; rows that are longer are a chunk each.
const MAX_CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of the smallest budget for a chunk.
const MIN_CHUNK_BYTES: u64 = 64 << 10;

/// How to write.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Version, byte order, padding.
    pub layout: LayoutOptions,
    /// Where to cut the output, if at all.
    pub split: Option<SplitSpec>,
    /// Sync the output to the disk before it gets its name.
    pub sync: bool,
    /// Memory for chunks in flight, over all threads.
    pub memory_bytes: u64,
    /// Files that the output must not replace: those that are being read.
    pub inputs: Vec<PathBuf>,
    /// The output takes the place of the file that it was made from, whatever kind either is.
    pub in_place: bool,
    /// With a share: write its tensors into one file that all runs have in common, in place of a part of its own.
    pub into_one_file: bool,
    /// Leave what is written where a run stops, and go on from there when it is started again. Parts of a set are not resumed.
    pub resume: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            layout: LayoutOptions::default(),
            split: None,
            sync: true,
            memory_bytes: 128 << 20,
            inputs: Vec::new(),
            in_place: false,
            into_one_file: false,
            resume: false,
        }
    }
}

/// One planned output file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its final name.
    pub path: PathBuf,
    /// The tensors in it, as indices into the list of all.
    pub tensors: Range<usize>,
    /// Its header and where each tensor goes.
    pub plan: FilePlan,
    /// Offset of the set's id, which is written last; the header has zeros there. `None` for a file without.
    pub id_offset: Option<u64>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// The files, in the order of their parts.
    pub paths: Vec<PathBuf>,
    /// Which tensors of the source they hold: all, or those of a share.
    pub tensors: Range<usize>,
    /// Bytes of all tensors, without padding.
    pub tensor_bytes: u64,
    /// Size of all files.
    pub file_bytes: u64,
    /// Numbers of the runs that have yet to write their shares of one file, which does not have its name before.
    pub missing: Vec<usize>,
    /// Offset at which the run went on with what one before had left; else 0.
    pub resumed_at: u64,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum WriteError {
    /// The format cannot hold the content.
    #[error("{}: {error}", path.display())]
    Plan { path: PathBuf, error: PlanError },
    /// Not enough room for the output.
    #[error("{}: {} needed, {} free", path.display(), text::bytes(*needed), text::bytes(*free))]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    /// The output cannot go where it was to go.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The source could not deliver.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The run was told to stop.
    #[error("interrupted; nothing was written")]
    Cancelled,
}

impl Hint for WriteError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Output(error) => error.hints(),
            Self::Io(error) => output::io_hints(error),
            Self::NoSpace { .. } => vec!["give an output on another disk, or a smaller type".to_owned()],
            _ => Vec::new(),
        }
    }
}

/// Plans the files of an output: one called `target`, or its parts, or the part that is a share.
///
/// # Errors
/// Content that the format cannot hold.
pub fn plan_files(
    target: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    layout: &LayoutOptions,
    split: Option<&SplitSpec>,
) -> Result<Vec<PlannedFile>, WriteError> {
    let files = plan_all(target, metadata, tensors, *layout, split)?;
    Ok(match split.and_then(|spec| spec.share) {
        Some(share) => share.of(files),
        None => files,
    })
}

/// Plans the files of an output, those of all shares.
fn plan_all(
    target: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    layout: LayoutOptions,
    split: Option<&SplitSpec>,
) -> Result<Vec<PlannedFile>, WriteError> {
    let failed = |error| WriteError::Plan { path: target.to_owned(), error };
    // The plan of the whole finds what no part can see, such as a name in two parts.
    let whole = FilePlan::new(metadata, tensors, &layout).map_err(failed)?;
    if let Some(share) = split.and_then(|spec| spec.share).filter(|share| share.count() > tensors.len()) {
        return Err(failed(PlanError::Shares { found: share.count(), n_tensors: tensors.len() }));
    }
    let cuts = split.map(|spec| (spec, spec.cut(tensors)));
    let Some((spec, ranges)) = cuts.filter(|(spec, ranges)| spec.is_split(ranges.len())) else {
        let (path, tensors) = (target.to_owned(), 0..tensors.len());
        return Ok(vec![PlannedFile { path, tensors, plan: whole, id_offset: None }]);
    };
    plan_parts(target, metadata, tensors, layout, spec, ranges)
}

/// Plans the parts of a set, with the tensors of one range in each.
///
/// # Errors
/// Content that the format cannot hold.
pub(crate) fn plan_parts(
    target: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    layout: LayoutOptions,
    spec: &SplitSpec,
    ranges: Vec<Range<usize>>,
) -> Result<Vec<PlannedFile>, WriteError> {
    let failed = |error| WriteError::Plan { path: target.to_owned(), error };
    let n_parts = ranges.len();
    let most = usize::from(u16::MAX);
    if n_parts > most {
        return Err(failed(PlanError::Parts { found: n_parts, most }));
    }
    ranges
        .into_iter()
        .enumerate()
        .map(|(part, range)| {
            let keys = spec.part_metadata(metadata, part, n_parts, tensors.len());
            let plan = FilePlan::new(&keys, &tensors[range.clone()], &layout).map_err(failed)?;
            // It is the last key, so that its text ends where the keys do.
            let id_offset = (!spec.without_id).then(|| plan.keys_end - placeholder().len() as u64);
            let path = split::part_path(target, part + 1, n_parts);
            Ok(PlannedFile { path, tensors: range, plan, id_offset })
        })
        .collect()
}

/// Writes a GGUF file, or the parts of one.
///
/// Tensors are read in chunks of rows by all threads of the current rayon pool and written where the plan puts
/// them, so memory does not grow with the model and the bytes do not depend on the number of threads.
///
/// # Errors
/// See [`WriteError`]. Then, and when a thread panics, no file has appeared under a final name.
pub fn write_gguf(
    target: &Path,
    metadata: &Metadata,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    let split = options.split.as_ref();
    let mut files = plan_all(target, metadata, source.tensors(), options.layout, split)?;
    let share = split.and_then(|spec| spec.share);
    let kind = output_kind(metadata);
    if share.is_none() && !options.resume {
        return write_files(target, files, (kind, None), source, options, progress);
    }
    let id = share::id(&files, &options.inputs)?;
    if let Some(share) = share {
        files = share.of(files);
    }
    let Some(file) = files.first() else {
        return write_files(target, files, (kind, None), source, options, progress);
    };
    if let Some(share) = share.filter(|_| options.into_one_file) {
        let whole = FilePlan::new(metadata, source.tensors(), &options.layout);
        let whole = whole.map_err(|error| WriteError::Plan { path: target.to_owned(), error })?;
        let part = into::Part::of_whole(target, whole, file.tensors.clone(), share);
        return into::write(part, kind, &id, source, options, progress);
    }
    if options.resume && files.len() == 1 {
        return into::write(into::Part::alone(files.swap_remove(0)), kind, &id, source, options, progress);
    }
    write_files(target, files, (kind, Some(id)), source, options, progress)
}

/// Writes files that are planned: one, or the parts of a set called after `target`. The set's id is made of what is written, unless
/// it is known beforehand.
///
/// # Errors
/// As [`write_gguf`].
pub(crate) fn write_files(
    target: &Path,
    files: Vec<PlannedFile>,
    (kind, id): (OutputKind, Option<String>),
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    if !options.in_place {
        guard(&files, kind, &options.inputs).map_err(OutputError::Guard)?;
    }
    let file_bytes = files.iter().map(|file| file.plan.file_bytes).fold(0, u64::saturating_add);
    let outputs = begin(target, &files, file_bytes, options.sync)?;
    let tensor_bytes = files.iter().flat_map(|file| &file.plan.tensors).map(|tensor| tensor.n_bytes).sum();
    let has_id = files.iter().any(|file| file.id_offset.is_some());
    let beginnings = Beginnings::of(if has_id { source.tensors().len() } else { 0 });
    stream(
        source,
        (&files, &outputs),
        Beside { beginnings: &beginnings, watermark: None },
        options,
        progress,
    )?;
    if has_id {
        let id = id.unwrap_or_else(|| beginnings.id(&files));
        for (file, output) in files.iter().zip(&outputs) {
            file.id_offset.map_or(Ok(()), |offset| output.write_at(offset, id.as_bytes()))?;
        }
    }
    OutputFile::commit_all(outputs, options.sync)?;
    let (first, last) = (files.first(), files.last());
    let tensors = first.map_or(0, |file| file.tensors.start)..last.map_or(0, |file| file.tensors.end);
    let paths = files.into_iter().map(|file| file.path).collect();
    Ok(WriteReport { paths, tensors, tensor_bytes, file_bytes, missing: Vec::new(), resumed_at: 0 })
}

/// What takes note of chunks as they are written.
#[derive(Clone, Copy)]
struct Beside<'a> {
    beginnings: &'a Beginnings,
    /// Where the run is to go on if it is stopped, and where it begins.
    watermark: Option<&'a Watermark<'a>>,
}

/// Streams the tensors of planned files into their outputs.
fn stream(
    source: &dyn TensorSource,
    (files, outputs): (&[PlannedFile], &[OutputFile]),
    beside: Beside<'_>,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let start = beside.watermark.map_or(0, Watermark::start);
    let left = files.iter().flat_map(|file| &file.plan.tensors);
    let left =
        left.map(|tensor| tensor.n_bytes.min((tensor.offset + tensor.n_bytes).saturating_sub(start))).sum();
    progress.begin("writing", left);
    let (streamed, synced) = WriteBack::beside(outputs, options.sync, |write_back| {
        Stream::new(source, files, outputs, write_back, beside, options, progress).run()
    });
    progress.end();
    streamed?;
    synced?;
    if progress.is_cancelled() { Err(WriteError::Cancelled) } else { Ok(()) }
}

/// What a file of these keys is.
pub(crate) fn output_kind(metadata: &Metadata) -> OutputKind {
    match metadata.get("general.type").and_then(Value::as_str) {
        Some("imatrix") => OutputKind::Imatrix,
        _ => OutputKind::Model,
    }
}

/// Refuses to replace what is read, or what is no file of the same kind.
fn guard(files: &[PlannedFile], kind: OutputKind, inputs: &[PathBuf]) -> Result<(), GuardError> {
    let mut guard = OutputGuard::default();
    inputs.iter().try_for_each(|input| guard.read("", input))?;
    files.iter().try_for_each(|file| guard.write("a part", &file.path, kind))
}

/// Begins all files of an output, with their headers, where there is room for them.
fn begin(
    target: &Path,
    files: &[PlannedFile],
    file_bytes: u64,
    sync: bool,
) -> Result<Vec<OutputFile>, WriteError> {
    let mut destinations = match files {
        [file] if file.path == target => vec![Destination::of(target)?],
        parts => {
            output::check_name(target)?;
            if !target.is_dir() {
                // Not where the parts go, but what their name says: parts of a device would be files beside it.
                Destination::of_part(target)?;
            }
            parts.iter().map(|part| Destination::of_part(&part.path)).collect::<Result<Vec<_>, _>>()?
        }
    };
    // What a dead run left takes room, too.
    Destination::clear_all(&mut destinations)?;
    let free = destinations.first().and_then(Destination::free_bytes);
    if let Some(free) = free.filter(|&free| free < file_bytes) {
        return Err(WriteError::NoSpace { path: target.to_owned(), needed: file_bytes, free });
    }
    let set = OutputSet::of(files.len(), sync);
    let mut outputs = Vec::with_capacity(files.len());
    for (file, destination) in files.iter().zip(destinations) {
        let output = set.create(destination)?;
        output.reserve(file.plan.file_bytes)?;
        output.write_at(0, &file.plan.header)?;
        outputs.push(output);
    }
    Ok(outputs)
}

/// Rows of one tensor and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    file: usize,
    tensor: usize,
    first_row: u64,
    n_rows: u64,
    offset: u64,
    n_bytes: u64,
}

/// Cuts all tensors into chunks, in file order.
struct Chunks<'a> {
    tensors: &'a [TensorMeta],
    files: &'a [PlannedFile],
    chunk_bytes: u64,
    file: usize,
    tensor: usize,
    row: u64,
}

impl<'a> Chunks<'a> {
    /// From an offset on, in the first of the files.
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

    /// The tensors to come, in order.
    fn tensors_left(&self) -> impl Iterator<Item = usize> {
        let all = self.files.iter().flat_map(|file| file.tensors.clone());
        all.skip_while(|&tensor| tensor < self.tensor)
    }
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        loop {
            let file = self.files.get(self.file)?;
            if self.tensor >= file.tensors.end {
                self.file += 1;
                continue;
            }
            let meta = &self.tensors[self.tensor];
            let n_rows = meta.shape.n_rows();
            // The plan was refused if rows were not whole blocks.
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
            return Some(Chunk {
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

/// Stops the other threads when one panics, instead of letting them write a file that is lost.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The running of a plan.
struct Stream<'a> {
    source: &'a dyn TensorSource,
    outputs: &'a [OutputFile],
    beside: Beside<'a>,
    endian: Endian,
    write_back: &'a WriteBack<'a>,
    chunk_bytes: u64,
    progress: &'a dyn Progress,
    n_workers: usize,
    queue: Mutex<std::iter::Enumerate<Chunks<'a>>>,
    stop: AtomicBool,
    /// The failure of the earliest chunk, so that the message does not depend on the threads.
    failure: Mutex<Option<(usize, WriteError)>>,
}

impl<'a> Stream<'a> {
    fn new(
        source: &'a dyn TensorSource,
        files: &'a [PlannedFile],
        outputs: &'a [OutputFile],
        write_back: &'a WriteBack<'a>,
        beside: Beside<'a>,
        options: &WriteOptions,
        progress: &'a dyn Progress,
    ) -> Self {
        let n_workers = rayon::current_num_threads().max(1);
        let chunk_bytes =
            (options.memory_bytes / (2 * n_workers as u64)).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let start = beside.watermark.map_or(0, Watermark::start);
        let chunks = Chunks::new(source.tensors(), files, chunk_bytes, start);
        chunks.tensors_left().for_each(|tensor| source.expect(tensor));
        Self {
            source,
            outputs,
            beside,
            endian: options.layout.endian,
            write_back,
            chunk_bytes,
            progress,
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
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn work(&self) {
        let _guard = StopOnPanic(&self.stop);
        let mut buffer = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).next();
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
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
            *failure = Some((index, error));
        }
    }

    fn write(&self, index: usize, chunk: Chunk, buffer: &mut Vec<u8>) -> Result<(), WriteError> {
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
        if let Some(watermark) = self.beside.watermark {
            watermark.wrote(index, chunk.offset + chunk.n_bytes)?;
        }
        Ok(())
    }

    /// The first row alone counts: how many a chunk has depends on the memory.
    fn begin_tensor(&self, chunk: Chunk, bytes: &[u8]) {
        if chunk.first_row == 0 {
            let row_bytes = bytes.len() / usize::try_from(chunk.n_rows).unwrap_or(usize::MAX).max(1);
            self.beside.beginnings.note(chunk.tensor, &bytes[..row_bytes]);
        }
    }
}
