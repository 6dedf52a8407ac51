//! Several outputs of the same tensors in different types, written from one reading of the source.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::plan::PlannedFile;
use crate::split::SplitSpec;
use crate::split_id::FirstRowHashes;
use crate::writer::checksums::Checksums;
use crate::writer::stream::{StreamFiles, stream, stream_resumably};
use crate::writer::variants::VariantSource;
use crate::writer::watermark::{ResumableFile, StreamPosition, Watermark};
use crate::writer::{WriteError, WriteOptions, WriteReport, begin, guard, output_kind, plan_all};
use crate::{Metadata, share};
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

/// Output that is planned and begun.
struct BegunOutput {
    planned: Vec<PlannedFile>,
    /// Its files among those that are written; empty if an earlier run wrote it.
    own: Range<usize>,
    /// Of a single file that may be resumed.
    resumable: Option<Resumable>,
    /// Of a set: its id is computed from them.
    first_rows: Option<FirstRowHashes>,
}

/// Single file that may be resumed.
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
    for output in outputs {
        let of = |tensor: usize| source.variants(tensor)[output.variants[tensor]].clone();
        let tensors: Vec<TensorMeta> = (0..source.n_tensors()).map(of).collect();
        let files = plan_all(output.target, output.metadata, &tensors, options.layout, output.split)?;
        guard(&files, output_kind(output.metadata), &options.inputs).map_err(OutputError::Guard)?;
        planned.push(files);
    }
    let mut files: Vec<OutputFile> = Vec::new();
    let mut begun: Vec<BegunOutput> = Vec::with_capacity(outputs.len());
    let mut needed = 0_u64;
    for (output, planned) in outputs.iter().zip(planned) {
        let output = begin_output(output.target, planned, options, &mut files)?;
        let n_bytes: u64 = output.planned.iter().map(|file| file.plan.file_bytes).sum();
        let there = output.resumable.as_ref().map_or(n_bytes, |resumable| {
            // An interrupted run has written more than it recorded.
            let allocated = files.get(output.own.start).map_or(0, OutputFile::allocated_bytes);
            resumable.start.max(allocated)
        });
        needed = needed.saturating_add(n_bytes - there.min(n_bytes));
        begun.push(output);
    }
    if let Some(first) = outputs.first() {
        // The blocks of files that may be resumed are not reserved.
        let free = Destination::of_part(first.target)?.free_bytes();
        if let Some(free) = free.filter(|&free| free < needed) {
            return Err(WriteError::NoSpace { path: first.target.to_owned(), needed, free });
        }
    }
    // A set gets its id in the end, and a run that was resumed has not seen the beginning.
    let is_whole = |output: &BegunOutput| {
        output.first_rows.is_none() && output.resumable.as_ref().is_none_or(|own| own.start == 0)
    };
    let planned = || begun.iter().flat_map(|output| output.planned.iter().take(output.own.len()));
    let checksums = begun.iter().all(is_whole).then(|| Checksums::new(planned()));
    write_rows(outputs, &begun, &files, checksums.as_ref(), source, options, progress)?;
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

/// Begins the files of an output, and adds them to those of the others.
fn begin_output(
    target: &Path,
    planned: Vec<PlannedFile>,
    options: &WriteOptions,
    files: &mut Vec<OutputFile>,
) -> Result<BegunOutput, WriteError> {
    let first = files.len();
    let mut resumable = None;
    match planned.as_slice() {
        [file] if options.resume => {
            let id = share::output_id(&planned, &options.inputs, &options.identity)?;
            let mut shared = SharedOutput::of(&file.path, &id, 1, 1)?.with_note().hidden();
            let (start, is_finished) = match shared.begin(file.plan.file_bytes)? {
                Begun::Finished => (file.plan.file_bytes, true),
                Begun::Written => (file.plan.file_bytes, false),
                Begun::At { file: opened, start } => {
                    opened.write_at(0, &file.plan.header)?;
                    files.push(opened);
                    (start, false)
                }
            };
            resumable = Some(Resumable { shared, start, is_finished });
        }
        _ => {
            let file_bytes = planned.iter().map(|file| file.plan.file_bytes).fold(0, u64::saturating_add);
            files.extend(begin(target, &planned, file_bytes, options)?);
        }
    }
    let has_id = planned.iter().any(|file| file.id_offset.is_some());
    let n_tensors = planned.last().map_or(0, |file| file.tensors.end);
    let first_rows = has_id.then(|| FirstRowHashes::of(n_tensors));
    Ok(BegunOutput { planned, own: first..files.len(), resumable, first_rows })
}

/// Writes the rows that are missing in any file.
fn write_rows(
    outputs: &[VariantOutput<'_>],
    begun: &[BegunOutput],
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
    for (output, begun) in outputs.iter().zip(begun) {
        for (at, file) in begun.own.clone().zip(&begun.planned) {
            streamed.place(source, at, |tensor| output.variants[tensor]);
            streamed.first_rows[at] = begun.first_rows.as_ref();
            let mut own_start = StreamPosition::default();
            if let Some(own) = &begun.resumable {
                let tensors = file.tensors.clone();
                let tensors = tensors.map(|tensor| &source.variants(tensor)[output.variants[tensor]]);
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

impl BegunOutput {
    /// Gives the files their names.
    fn finish(self, files: Vec<OutputFile>, sync: bool) -> Result<WriteReport, WriteError> {
        if let Some(first_rows) = &self.first_rows {
            let id = first_rows.id(&self.planned);
            for (file, output) in self.planned.iter().zip(&files) {
                file.id_offset.map_or(Ok(()), |offset| output.write_at(offset, id.as_bytes()))?;
            }
        }
        let was_there = files.is_empty() && self.resumable.is_some();
        let resumed_at = self.resumable.as_ref().map_or(0, |own| own.start);
        match &self.resumable {
            None => OutputFile::commit_all(files, sync)?,
            Some(own) if own.is_finished => {}
            Some(own) => drop(own.shared.finish(files.first(), sync)?),
        }
        let plans = || self.planned.iter().map(|file| &file.plan);
        let (first, last) = (self.planned.first(), self.planned.last());
        Ok(WriteReport {
            tensors: first.map_or(0, |file| file.tensors.start)..last.map_or(0, |file| file.tensors.end),
            tensor_bytes: plans().flat_map(|plan| &plan.tensors).map(|tensor| tensor.n_bytes).sum(),
            file_bytes: plans().map(|plan| plan.file_bytes).fold(0, u64::saturating_add),
            paths: self.planned.into_iter().map(|file| file.path).collect(),
            missing: Vec::new(),
            resumed_at: if was_there { 0 } else { resumed_at },
            was_there,
        })
    }
}
