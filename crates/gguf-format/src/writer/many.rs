//! Planned outputs, written: one, or several with the same tensors in different types from one reading of the source.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::Metadata;
use crate::plan::PlannedFile;
use crate::share;
use crate::split::SplitSpec;
use crate::split_id::FirstRowHashes;
use crate::writer::checksums::Checksums;
use crate::writer::stream::{StreamFiles, stream, stream_resumably};
use crate::writer::variants::VariantSource;
use crate::writer::watermark::{ResumableFile, StreamPosition, Watermark};
use crate::writer::{
    PlannedOutput, WriteError, WriteOptions, WriteReport, begin, guard, output_kind, plan_all,
};
use gguf_core::TensorMeta;
use gguf_core::output::{Begun, Destination, OutputError, OutputFile, SharedOutput};
use gguf_core::progress::Progress;

/// Output with all tensors of a source, each in one of its variants.
#[derive(Clone, Copy, Debug)]
pub struct VariantOutput<'a> {
    /// Path of the file, or the path that its parts are named after.
    pub target: &'a Path,
    /// Metadata of the output.
    pub metadata: &'a Metadata,
    /// Variant of each tensor.
    pub variants: &'a [usize],
    /// Division into parts.
    pub split: Option<&'a SplitSpec>,
}

/// Written output.
#[derive(Clone, Debug)]
pub struct VariantReport {
    /// Summary of the files.
    pub written: WriteReport,
    /// SHA-256 of each file in lower-case hexadecimal; empty if they were not computed on the way: of a set, and of a
    /// run that was resumed.
    pub sha256: Vec<String>,
}

/// Planned output of a run.
pub(super) struct RunOutput<'a> {
    pub(super) planned: PlannedOutput<'a>,
    /// Variant of each tensor; the only one, if none is given.
    pub(super) variants: &'a [usize],
    /// The file, if it outlives the run.
    pub(super) lasting: Option<LastingFile>,
}

/// Single file that outlives a run: several runs write their tensors into it, or a stopped run is resumed.
pub(super) struct LastingFile {
    pub(super) shared: SharedOutput,
    /// True if this run writes the header.
    pub(super) has_header: bool,
}

/// Output that is planned and begun.
struct BegunOutput<'a> {
    planned: Vec<PlannedFile>,
    variants: &'a [usize],
    /// Its files among those that are written; empty if an earlier run wrote it.
    own: Range<usize>,
    resumable: Option<Resumable>,
    /// Of a set whose id is computed from them.
    first_rows: Option<FirstRowHashes>,
}

/// File that outlives the run, begun.
struct Resumable {
    shared: SharedOutput,
    /// Offset up to which earlier runs wrote it.
    start: u64,
    /// True if an earlier run gave it its name.
    is_finished: bool,
}

/// Writes several outputs. The source is read once; rows go into all outputs before the next rows are read. Each file
/// has the bytes that [`write_gguf`](crate::write_gguf) gives it alone.
///
/// With `options.resume`, the next run with the same outputs continues an interrupted one; outputs in parts are begun
/// anew. A file that is complete has a note next to it, until [`forget_notes`] removes it, so that it is not written
/// again. `options.split` is ignored.
///
/// # Errors
/// See [`WriteError`]. Outputs that already have their final names are complete.
pub fn write_variants(
    outputs: &[VariantOutput<'_>],
    source: &dyn VariantSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<Vec<VariantReport>, WriteError> {
    let mut planned = Vec::with_capacity(outputs.len());
    for &VariantOutput { target, metadata, variants, split } in outputs {
        let of = |tensor: usize| source.variants(tensor)[variants[tensor]].clone();
        let tensors: Vec<TensorMeta> = (0..source.n_tensors()).map(of).collect();
        let files = plan_all(target, metadata, &tensors, options.layout, split)?;
        let lasting = match files.as_slice() {
            [file] if options.resume => {
                let id = share::output_id(&files, &options.inputs, &options.identity)?;
                let shared = SharedOutput::of(&file.path, &id, 1, 1)?.with_note().hidden();
                Some(LastingFile { shared, has_header: true })
            }
            _ => None,
        };
        let output = PlannedOutput { target, files, kind: output_kind(metadata), id: None };
        planned.push(RunOutput { planned: output, variants, lasting });
    }
    write_planned(planned, true, source, options, progress)
}

/// Writes planned outputs, with checksums if they are wanted.
pub(super) fn write_planned(
    outputs: Vec<RunOutput<'_>>,
    has_sums: bool,
    source: &dyn VariantSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<Vec<VariantReport>, WriteError> {
    for PlannedOutput { files, kind, .. } in outputs.iter().map(|output| &output.planned) {
        if !options.in_place {
            guard(files, *kind, &options.inputs).map_err(OutputError::Guard)?;
        }
    }
    let first = outputs.first().map(|output| output.planned.target);
    let mut files: Vec<OutputFile> = Vec::new();
    let mut begun: Vec<BegunOutput<'_>> = Vec::with_capacity(outputs.len());
    for output in outputs {
        begun.push(begin_output(output, source.n_tensors(), options, &mut files)?);
    }
    // The blocks of files that may be resumed are not reserved; those of several runs are written in any order.
    let needed = begun.iter().map(|output| output.needed(&files)).fold(0, u64::saturating_add);
    if let Some(path) = first.filter(|_| needed > 0 && !options.into_one_file)
        && let Some(free) = Destination::of_part(path)?.free_bytes().filter(|&free| free < needed)
    {
        return Err(WriteError::NoSpace { path: path.to_owned(), needed, free });
    }
    // A set gets its id in the end, and a run that was resumed has not seen the beginning.
    let is_whole = |output: &BegunOutput<'_>| {
        output.first_rows.is_none() && output.resumable.as_ref().is_none_or(|own| own.start == 0)
    };
    let planned = || begun.iter().flat_map(|output| output.planned.iter().take(output.own.len()));
    let checksums = (has_sums && begun.iter().all(is_whole)).then(|| Checksums::new(planned()));
    write_rows(&begun, &files, checksums.as_ref(), source, options, progress)?;
    let sizes: Vec<u64> = planned().map(|file| file.plan.file_bytes).collect();
    let mut sums = checksums.map(|checksums| checksums.finish(sizes.into_iter()).into_iter());
    let mut reports = Vec::with_capacity(begun.len());
    let mut files = files.into_iter();
    for output in begun {
        let n_files = output.own.len();
        let own = files.by_ref().take(n_files).collect();
        let sha256 = sums.as_mut().map_or_else(Vec::new, |sums| sums.by_ref().take(n_files).collect());
        reports.push(VariantReport { written: output.finish(own, options.sync)?, sha256 });
    }
    Ok(reports)
}

/// Removes the notes that [`write_variants`] left next to complete files.
pub fn forget_notes(target: &Path) -> io::Result<()> {
    SharedOutput::forget_notes(target)
}

/// Writes an id that is known into a file whose header is written.
fn write_id(file: &PlannedFile, output: &OutputFile, id: Option<&str>) -> io::Result<()> {
    let Some((offset, id)) = file.id_offset.zip(id) else { return Ok(()) };
    output.write_at(offset, id.as_bytes())
}

/// Begins the files of an output, and adds them to those of the others.
fn begin_output<'a>(
    output: RunOutput<'a>,
    n_tensors: usize,
    options: &WriteOptions,
    files: &mut Vec<OutputFile>,
) -> Result<BegunOutput<'a>, WriteError> {
    let RunOutput { planned: PlannedOutput { target, files: planned, id, .. }, variants, lasting } = output;
    let first = files.len();
    let mut resumable = None;
    match (lasting, planned.as_slice()) {
        (Some(LastingFile { mut shared, has_header }), [file]) => {
            let (start, is_finished) = match shared.begin(file.plan.file_bytes)? {
                Begun::Finished => (file.plan.file_bytes, true),
                Begun::Written => (file.plan.file_bytes, false),
                Begun::At { file: opened, start } => {
                    if has_header {
                        opened.write_at(0, &file.plan.header)?;
                        write_id(file, &opened, id.as_deref())?;
                    }
                    files.push(opened);
                    (start, false)
                }
            };
            resumable = Some(Resumable { shared, start, is_finished });
        }
        _ => {
            let file_bytes = planned.iter().map(|file| file.plan.file_bytes).fold(0, u64::saturating_add);
            for (file, begun) in planned.iter().zip(begin(target, &planned, file_bytes, options)?) {
                write_id(file, &begun, id.as_deref())?;
                files.push(begun);
            }
        }
    }
    let is_open = id.is_none() && planned.iter().any(|file| file.id_offset.is_some());
    let first_rows = is_open.then(|| FirstRowHashes::of(n_tensors));
    Ok(BegunOutput { planned, variants, own: first..files.len(), resumable, first_rows })
}

/// Writes the rows that are missing in any file.
fn write_rows(
    begun: &[BegunOutput<'_>],
    files: &[OutputFile],
    checksums: Option<&Checksums>,
    source: &dyn VariantSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    if files.is_empty() {
        return Ok(());
    }
    let planned = begun.iter().flat_map(|begun| begun.planned.iter().take(begun.own.len())).collect();
    let mut streamed = StreamFiles::new(source.n_tensors(), planned, files);
    streamed.checksums = checksums;
    let mut resumable = Vec::new();
    let mut start: Option<StreamPosition> = None;
    for begun in begun {
        let variant = |tensor: usize| begun.variants.get(tensor).copied().unwrap_or(0);
        for (at, file) in begun.own.clone().zip(&begun.planned) {
            streamed.place(source, at, variant);
            streamed.first_rows[at] = begun.first_rows.as_ref();
            let mut own_start = StreamPosition::default();
            if let Some(own) = &begun.resumable {
                let tensors = file.tensors.clone();
                let tensors = tensors.map(|tensor| &source.variants(tensor)[variant(tensor)]);
                let file = ResumableFile::new(&own.shared, &files[at], file, tensors);
                own_start = file.position(own.start);
                resumable.push(file);
            }
            start = Some(start.map_or(own_start, |start| start.min(own_start)));
        }
    }
    if resumable.is_empty() {
        return stream(source, &streamed, None, options, progress);
    }
    let watermark = Watermark::new(resumable, start.unwrap_or_default(), options.sync);
    stream_resumably(source, &streamed, &watermark, options, progress)
}

impl BegunOutput<'_> {
    /// Returns the bytes that a file which may be resumed lacks on the disk. An interrupted run has written more than it
    /// recorded.
    fn needed(&self, files: &[OutputFile]) -> u64 {
        let (Some(own), Some(file)) = (&self.resumable, self.planned.first()) else { return 0 };
        let allocated = files[self.own.clone()].first().map_or(0, OutputFile::allocated_bytes);
        file.plan.file_bytes.saturating_sub(own.start.max(allocated))
    }

    /// Gives the files their names.
    fn finish(self, files: Vec<OutputFile>, sync: bool) -> Result<WriteReport, WriteError> {
        if let Some(first_rows) = &self.first_rows {
            let id = first_rows.id(&self.planned);
            for (file, output) in self.planned.iter().zip(&files) {
                write_id(file, output, Some(&id))?;
            }
        }
        let was_there = files.is_empty() && self.resumable.is_some();
        let resumed_at = self.resumable.as_ref().filter(|_| !was_there).map_or(0, |own| own.start);
        let mut missing = Vec::new();
        match &self.resumable {
            None => OutputFile::commit_all(files, sync)?,
            Some(own) if own.is_finished => {}
            Some(own) => missing = own.shared.finish(files.first(), sync)?,
        }
        let plans = || self.planned.iter().map(|file| &file.plan);
        let (first, last) = (self.planned.first(), self.planned.last());
        Ok(WriteReport {
            tensors: first.map_or(0, |file| file.tensors.start)..last.map_or(0, |file| file.tensors.end),
            tensor_bytes: plans().flat_map(|plan| &plan.tensors).map(|tensor| tensor.n_bytes).sum(),
            file_bytes: plans().map(|plan| plan.file_bytes).fold(0, u64::saturating_add),
            paths: self.planned.into_iter().map(|file| file.path).collect(),
            missing,
            resumed_at,
            was_there,
        })
    }
}
