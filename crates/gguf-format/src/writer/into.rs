//! Output files that outlive a single run. Several runs may share one file, each writing its tensors at their positions
//! in the plan of the whole, and a stopped run may be resumed.

use std::ops::Range;
use std::path::Path;
use std::slice;

use crate::writer::guard;
use crate::writer::stream::{StreamFiles, stream_resumably};
use crate::writer::variants::SingleVariant;
use crate::writer::watermark::{ResumableFile, Watermark};
use crate::{FilePlan, PlannedFile, Share, WriteError, WriteOptions, WriteReport};
use gguf_core::TensorSource;
use gguf_core::output::{Begun, OutputError, OutputFile, OutputKind, SharedOutput};
use gguf_core::progress::Progress;

/// Part of a file that one run writes.
pub(super) struct FilePart {
    file: PlannedFile,
    /// Number of the part, from 1; `count` is the number of parts.
    number: usize,
    count: usize,
}

impl FilePart {
    /// Creates a part with all tensors of a file.
    pub(super) fn alone(file: PlannedFile) -> Self {
        Self { file, number: 1, count: 1 }
    }

    pub(super) fn of_whole(target: &Path, mut plan: FilePlan, tensors: Range<usize>, share: Share) -> Self {
        plan.tensors = plan.tensors.get(tensors.clone()).unwrap_or_default().to_vec();
        let file = PlannedFile { path: target.to_owned(), tensors, plan, id_offset: None };
        Self { file, number: share.number(), count: share.count() }
    }
}

/// Writes the tensors, and in the first part the header. `id` identifies the plan and the input.
pub(super) fn write(
    part: FilePart,
    kind: OutputKind,
    id: &str,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    let FilePart { file, number, count } = part;
    guard(slice::from_ref(&file), kind, &options.inputs).map_err(OutputError::Guard)?;
    let mut shared = SharedOutput::of(&file.path, id, number, count)?;
    if !options.into_one_file {
        shared = shared.hidden();
    }
    let (was_there, resumed_at, missing) = match shared.begin(file.plan.file_bytes)? {
        Begun::Finished => (true, 0, Vec::new()),
        Begun::Written => (true, 0, shared.finish(None, options.sync)?),
        Begun::At { file: output, start } => {
            if number == 1 {
                output.write_at(0, &file.plan.header)?;
                file.id_offset.map_or(Ok(()), |offset| output.write_at(offset, id.as_bytes()))?;
            }
            write_tensors(&file, &shared, &output, start, source, options, progress)?;
            (false, start, shared.finish(Some(&output), options.sync)?)
        }
    };
    Ok(WriteReport {
        paths: vec![file.path],
        tensors: file.tensors,
        tensor_bytes: file.plan.tensors.iter().map(|tensor| tensor.n_bytes).sum(),
        file_bytes: file.plan.file_bytes,
        missing,
        resumed_at,
        was_there,
    })
}

/// Writes the tensors of a part from an offset on, and records the progress.
fn write_tensors(
    file: &PlannedFile,
    shared: &SharedOutput,
    output: &OutputFile,
    start: u64,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let tensors = source.tensors();
    let own = ResumableFile::new(shared, output, file, tensors[file.tensors.clone()].iter());
    let start = own.position(start);
    let watermark = Watermark::new(vec![own], start, options.sync);
    let source = SingleVariant(source);
    let files = StreamFiles::single(&source, file, output);
    stream_resumably(&source, &files, &watermark, options, progress)
}
