//! Writer of all GGUF files. Output is planned as a whole, then streamed in chunks of rows from any [`TensorSource`] by
//! all threads at once, into files that appear whole or not at all.

mod checksums;
mod many;
mod stream;
mod variants;
mod watermark;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::plan::{FilePlan, LayoutOptions, PlanError, PlannedFile};
use crate::split::{self, SplitSpec, SplitStyle};
use crate::split_id::placeholder;
use crate::{Metadata, TensorLimits, Value, share};
use gguf_core::output::{
    self, Destination, GuardError, OutputError, OutputFile, OutputGuard, OutputKind, OutputSet, SharedOutput,
};
use gguf_core::progress::Progress;
use gguf_core::written::as_paths;
use gguf_core::{Hint, SourceError, TensorMeta, TensorSource, text};
use many::{LastingFile, RunOutput, write_planned};
use serde::{Serialize, Serializer};
use variants::SingleVariant;

pub use many::{VariantOutput, VariantReport, forget_notes, write_variants};
pub use variants::VariantSource;

/// Options for writing.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Version, byte order, padding.
    pub layout: LayoutOptions,
    /// Division of the output into parts, if any.
    pub split: Option<SplitSpec>,
    /// True to sync the output to disk before it gets its final name.
    pub sync: bool,
    /// Memory for chunks in flight in bytes, over all threads.
    pub memory_bytes: u64,
    /// Files that are being read, which the output must not replace.
    pub inputs: Vec<PathBuf>,
    /// True if the output replaces the file that it was made from, whatever kind either is.
    pub in_place: bool,
    /// True to write the tensors of a share into one file that all runs have in common, instead of a separate part.
    pub into_one_file: bool,
    /// True to keep the output of an interrupted run, and to continue it on the next start. Parts of a set are not
    /// resumed.
    pub resume: bool,
    /// Options that decide the bytes and are not in the header. Runs with other ones share no output.
    pub identity: String,
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
            identity: String::new(),
        }
    }
}

/// Summary of the written files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WriteReport {
    /// Paths of the files, in the order of their parts.
    #[serde(rename = "files", serialize_with = "as_paths")]
    pub paths: Vec<PathBuf>,
    /// Tensors that they hold: all of the source, or those of a share. JSON has their number.
    #[serde(serialize_with = "as_count")]
    pub tensors: Range<usize>,
    /// Size of all tensors in bytes, without padding.
    pub tensor_bytes: u64,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Numbers of the runs that have not yet written their shares of a common file; it gets its final name after them.
    #[serde(skip)]
    pub missing: Vec<usize>,
    /// Byte offset at which the run resumed an earlier one; else 0.
    #[serde(skip)]
    pub resumed_at: u64,
    /// True if an earlier run had written the whole share, so that this run wrote nothing.
    #[serde(skip)]
    pub was_there: bool,
}

fn as_count<S: Serializer>(indices: &Range<usize>, serializer: S) -> Result<S::Ok, S::Error> {
    indices.len().serialize(serializer)
}

/// Reasons why nothing was written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum WriteError {
    #[error("{}: {error}", path.display())]
    Plan { path: PathBuf, error: PlanError },
    #[error("{}: {} needed, {} free", path.display(), text::bytes(*needed), text::bytes(*free))]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Source(#[from] SourceError),
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

/// Plans the files of an output: one called `target`, its parts, or the part of a share.
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

/// Plans the files of an output, including all shares.
fn plan_all(
    target: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    layout: LayoutOptions,
    split: Option<&SplitSpec>,
) -> Result<Vec<PlannedFile>, WriteError> {
    let failed = |error| WriteError::Plan { path: target.to_owned(), error };
    // The plan of the whole finds faults across parts, such as a name in two parts.
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

/// Plans the parts of a set, each with the tensors of one range.
///
/// # Errors
/// Content that the format cannot hold.
pub fn plan_parts(
    target: &Path,
    metadata: &Metadata,
    tensors: &[TensorMeta],
    layout: LayoutOptions,
    spec: &SplitSpec,
    ranges: Vec<Range<usize>>,
) -> Result<Vec<PlannedFile>, WriteError> {
    let failed = |error| WriteError::Plan { path: target.to_owned(), error };
    // Later parts lack the keys that the limits follow from.
    let limits = TensorLimits::of(metadata);
    let n_parts = ranges.len();
    let most = usize::from(u16::MAX);
    if n_parts > most {
        return Err(failed(PlanError::Parts { found: n_parts, most }));
    }
    // ref: llama-gguf-split takes the tensors from ggml.
    let is_of_ggml =
        spec.style == SplitStyle::GgufSplit && spec.without_id && limits == TensorLimits::LLAMA_CPP;
    let listed = |tensor: &TensorMeta| {
        let shape = if is_of_ggml { tensor.shape.of_ggml() } else { tensor.shape.clone() };
        TensorMeta { shape, ..tensor.clone() }
    };
    let listed: Vec<TensorMeta> = tensors.iter().map(listed).collect();
    ranges
        .into_iter()
        .enumerate()
        .map(|(part, range)| {
            let keys = spec.part_metadata(metadata, part, n_parts, tensors.len());
            let plan = FilePlan::within(&keys, &listed[range.clone()], layout, limits).map_err(failed)?;
            // The id is the last key, so its text ends at the end of the keys.
            let id_offset = (!spec.without_id).then(|| plan.keys_end - placeholder().len() as u64);
            let path = split::part_path(target, part + 1, n_parts);
            Ok(PlannedFile { path, tensors: range, plan, id_offset })
        })
        .collect()
}

/// Writes a GGUF file, or its parts.
///
/// All threads of the current rayon pool read tensors in chunks of rows and write them at their planned positions. So
/// memory does not grow with the model, and the bytes do not depend on the number of threads.
///
/// # Errors
/// See [`WriteError`]. On an error, or if a thread panics, no file has appeared under a final name.
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
        return write_files(PlannedOutput { target, files, kind, id: None }, source, options, progress);
    }
    let id = share::output_id(&files, &options.inputs, &options.identity)?;
    if let Some(share) = share {
        files = share.of(files);
    }
    let lasting = match (share.filter(|_| options.into_one_file), files.as_slice()) {
        (Some(share), [file, ..]) => {
            // The tensors of the share, at their positions in the whole.
            let mut plan = FilePlan::new(metadata, source.tensors(), &options.layout)
                .map_err(|error| WriteError::Plan { path: target.to_owned(), error })?;
            plan.tensors = plan.tensors.get(file.tensors.clone()).unwrap_or_default().to_vec();
            let tensors = file.tensors.clone();
            files = vec![PlannedFile { path: target.to_owned(), tensors, plan, id_offset: None }];
            let shared = SharedOutput::of(target, &id, share.number(), share.count())?;
            Some(LastingFile { shared, has_header: share.number() == 1 })
        }
        (None, [file]) if options.resume => {
            let shared = SharedOutput::of(&file.path, &id, 1, 1)?.hidden();
            Some(LastingFile { shared, has_header: true })
        }
        _ => None,
    };
    write_one(PlannedOutput { target, files, kind, id: Some(id) }, lasting, source, options, progress)
}

/// Planned files of one output: a single file, or the parts of a set.
pub struct PlannedOutput<'a> {
    /// Path of the file, or the path that the parts are named after.
    pub target: &'a Path,
    /// Planned files, in order.
    pub files: Vec<PlannedFile>,
    /// Kind of the target.
    pub kind: OutputKind,
    /// Id of the set; `None` if it is computed from the written data.
    pub id: Option<String>,
}

/// Writes planned files.
pub fn write_files(
    output: PlannedOutput<'_>,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    write_one(output, None, source, options, progress)
}

fn write_one(
    planned: PlannedOutput<'_>,
    lasting: Option<LastingFile>,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    let output = RunOutput { planned, variants: &[], lasting };
    let mut reports = write_planned(vec![output], false, &SingleVariant(source), options, progress)?;
    Ok(reports.pop().expect("there is a report for each output").written)
}

/// Returns the kind of a file with these keys.
pub fn output_kind(metadata: &Metadata) -> OutputKind {
    match metadata.get("general.type").and_then(Value::as_str) {
        Some("imatrix") => OutputKind::Imatrix,
        Some("recipe") => OutputKind::Recipe,
        _ => OutputKind::Model,
    }
}

/// Refuses to replace input files, or files of another kind.
fn guard(files: &[PlannedFile], kind: OutputKind, inputs: &[PathBuf]) -> Result<(), GuardError> {
    let mut guard = OutputGuard::default();
    inputs.iter().try_for_each(|input| guard.read("", input))?;
    files.iter().try_for_each(|file| guard.write("a part", &file.path, kind))
}

/// Creates all files of an output with their headers, if there is disk space for them.
fn begin(
    target: &Path,
    files: &[PlannedFile],
    file_bytes: u64,
    options: &WriteOptions,
) -> Result<Vec<OutputFile>, WriteError> {
    let mut destinations = match files {
        [file] if file.path == target && options.in_place => vec![Destination::of(target)?.for_edit()],
        [file] if file.path == target => vec![Destination::of(target)?],
        parts => {
            output::check_name(target)?;
            if !target.is_dir() {
                // Check only the name: the parts of a device would be files next to it.
                Destination::of_part(target)?;
            }
            parts.iter().map(|part| Destination::of_part(&part.path)).collect::<Result<Vec<_>, _>>()?
        }
    };
    // Remains of a crashed run take up space as well.
    Destination::clear_all(&mut destinations)?;
    let free = destinations.first().and_then(Destination::free_bytes);
    if let Some(free) = free.filter(|&free| free < file_bytes) {
        return Err(WriteError::NoSpace { path: target.to_owned(), needed: file_bytes, free });
    }
    let set = OutputSet::of(files.len(), options.sync);
    let mut outputs = Vec::with_capacity(files.len());
    for (file, destination) in files.iter().zip(destinations) {
        let output = set.create(destination)?;
        output.reserve(file.plan.file_bytes)?;
        output.write_at(0, &file.plan.header)?;
        outputs.push(output);
    }
    Ok(outputs)
}
