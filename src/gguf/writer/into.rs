//! A file that outlives the run that writes it: one that several runs share, each writing its tensors where the plan of the whole puts
//! them, and one that is gone on with when the run was stopped.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::core::TensorSource;
use crate::core::output::{Begun, OutputError, OutputFile, OutputKind, SharedOutput};
use crate::core::progress::Progress;
use crate::gguf::split_id::Beginnings;
use crate::gguf::writer::guard;
use crate::gguf::writer::stream::{Beside, stream};
use crate::gguf::{FilePlan, PlannedFile, Share, WriteError, WriteOptions, WriteReport};

/// Bytes that are written before it is noted how far a run has come.
const STEP_BYTES: u64 = 256 << 20;

/// What one run writes of a file.
pub(super) struct Part {
    file: PlannedFile,
    /// Which part, from 1, of how many.
    number: usize,
    count: usize,
}

impl Part {
    /// The whole of a file.
    pub(super) fn alone(file: PlannedFile) -> Self {
        Self { file, number: 1, count: 1 }
    }

    /// Some tensors of a file.
    pub(super) fn of_whole(target: &Path, mut plan: FilePlan, tensors: Range<usize>, share: Share) -> Self {
        plan.tensors = plan.tensors.get(tensors.clone()).unwrap_or_default().to_vec();
        let file = PlannedFile { path: target.to_owned(), tensors, plan, id_offset: None };
        Self { file, number: share.number(), count: share.count() }
    }
}

/// Writes the tensors, and in the first part the header. `id` stands for the plan and the input.
pub(super) fn write(
    part: Part,
    kind: OutputKind,
    id: &str,
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<WriteReport, WriteError> {
    let Part { file, number, count } = part;
    let files = [file];
    let [file] = &files;
    guard(&files, kind, &options.inputs).map_err(OutputError::Guard)?;
    let mut shared = SharedOutput::of(&file.path, id, number, count)?;
    let (was_there, resumed_at, missing) = match shared.begin(file.plan.file_bytes)? {
        Begun::Finished => (true, 0, Vec::new()),
        Begun::Written => (true, 0, shared.finish(None, options.sync)?),
        Begun::At { file: output, start } => {
            if number == 1 {
                output.write_at(0, &file.plan.header)?;
                file.id_offset.map_or(Ok(()), |offset| output.write_at(offset, id.as_bytes()))?;
            }
            let output = [output];
            write_tensors((&files, &output), (&shared, start), source, options, progress)?;
            let [output] = &output;
            (false, start, shared.finish(Some(output), options.sync)?)
        }
    };
    let [file] = files;
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

/// Writes the tensors of a part from `start` on, and notes how far it came.
fn write_tensors(
    (files, output): (&[PlannedFile; 1], &[OutputFile; 1]),
    (shared, start): (&SharedOutput, u64),
    source: &dyn TensorSource,
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<(), WriteError> {
    let watermark = Watermark::new(shared, &output[0], start, options.sync);
    let beside = Beside { beginnings: &Beginnings::of(0), watermark: Some(&watermark) };
    let streamed = stream(source, (files, output), beside, options, progress);
    if streamed.is_err() {
        // Where this fails too, less is noted, and more is written again.
        let _ = watermark.note();
    }
    streamed
}

/// How far a run has come without gaps, noted beside the file from time to time. Threads finish their chunks in any order.
pub(super) struct Watermark<'a> {
    shared: &'a SharedOutput,
    output: &'a OutputFile,
    start: u64,
    sync: bool,
    state: Mutex<State>,
}

struct State {
    /// The first chunk that is not written.
    next: usize,
    /// Where chunks behind it end that are written.
    ahead: BTreeMap<usize, u64>,
    /// Where the last chunk before it ends.
    end: u64,
    noted: u64,
}

impl<'a> Watermark<'a> {
    fn new(shared: &'a SharedOutput, output: &'a OutputFile, start: u64, sync: bool) -> Self {
        let state = State { next: 0, ahead: BTreeMap::new(), end: start, noted: start };
        Self { shared, output, start, sync, state: Mutex::new(state) }
    }

    /// Where the run begins.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// A chunk was written that ends at this offset.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn wrote(&self, chunk: usize, end: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ahead.insert(chunk, end);
        while let Some(end) = {
            let next = state.next;
            state.ahead.remove(&next)
        } {
            state.next += 1;
            state.end = end;
        }
        if state.end - state.noted < STEP_BYTES {
            return Ok(());
        }
        let end = state.end;
        state.noted = end;
        // The others go on while the disk works.
        drop(state);
        self.shared.note_written_to(self.output, end, self.sync)
    }

    /// Notes how far the run has come.
    fn note(&self) -> io::Result<()> {
        let end = self.state.lock().unwrap_or_else(PoisonError::into_inner).end;
        self.shared.note_written_to(self.output, end, self.sync)
    }
}
