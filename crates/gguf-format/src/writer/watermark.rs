//! Recorded progress of a run that may be resumed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use crate::plan::PlannedFile;
use gguf_core::TensorMeta;
use gguf_core::output::{OutputFile, SharedOutput};
use gguf_core::sync::Unpoisoned;

/// Number of bytes of a file between two records of the progress.
const STEP_BYTES: u64 = 256 << 20;

/// Place in the stream: all rows before this one are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamPosition {
    pub(super) tensor: usize,
    pub(super) row: u64,
}

/// File of a run that may be resumed.
pub(super) struct ResumableFile<'a> {
    shared: &'a SharedOutput,
    output: &'a OutputFile,
    planned: &'a PlannedFile,
    /// Bytes of a row of each tensor of the file.
    row_bytes: Vec<u64>,
}

impl<'a> ResumableFile<'a> {
    pub(super) fn new<'t>(
        shared: &'a SharedOutput,
        output: &'a OutputFile,
        planned: &'a PlannedFile,
        tensors: impl Iterator<Item = &'t TensorMeta>,
    ) -> Self {
        let row_bytes = tensors.map(|meta| meta.row_bytes().unwrap_or(0)).collect();
        Self { shared, output, planned, row_bytes }
    }

    /// Returns the place in the stream that belongs to an offset of the file. All rows before it end before the offset.
    pub(super) fn position(&self, offset: u64) -> StreamPosition {
        let places = &self.planned.plan.tensors;
        let is_done = |at: &usize| places[*at].offset.saturating_add(places[*at].n_bytes) <= offset;
        let n_done = if offset == 0 { 0 } else { (0..places.len()).take_while(is_done).count() };
        let begun = places.get(n_done).map_or(0, |place| offset.saturating_sub(place.offset));
        let row_bytes = self.row_bytes.get(n_done).copied().unwrap_or(0);
        let row = begun.checked_div(row_bytes).unwrap_or(0);
        StreamPosition { tensor: self.planned.tensors.start + n_done, row }
    }

    /// Returns the offset in the file up to which it is written at a place in the stream.
    fn offset(&self, position: StreamPosition) -> u64 {
        let Some(at) = position.tensor.checked_sub(self.planned.tensors.start) else { return 0 };
        match (self.planned.plan.tensors.get(at), self.planned.plan.tensors.last()) {
            (Some(place), _) => place.offset + position.row * self.row_bytes[at],
            (None, Some(last)) => last.offset + last.n_bytes,
            (None, None) => 0,
        }
    }
}

/// Place up to which a run has written without gaps, recorded next to each file from time to time. Threads finish their
/// chunks in any order.
pub(super) struct Watermark<'a> {
    files: Vec<ResumableFile<'a>>,
    start: StreamPosition,
    sync: bool,
    state: Mutex<WatermarkState>,
}

struct WatermarkState {
    /// Index of the first chunk that is not written.
    next: usize,
    /// Ends and bytes of written chunks after it, by index.
    ahead: BTreeMap<usize, (StreamPosition, u64)>,
    /// End of the last chunk before it.
    end: StreamPosition,
    /// Bytes up to there since the last record.
    n_bytes: u64,
}

impl<'a> Watermark<'a> {
    /// Creates the record of a run that starts at a place.
    pub(super) fn new(files: Vec<ResumableFile<'a>>, start: StreamPosition, sync: bool) -> Self {
        let state = WatermarkState { next: 0, ahead: BTreeMap::new(), end: start, n_bytes: 0 };
        Self { files, start, sync, state: Mutex::new(state) }
    }

    /// Place at which the run starts.
    pub(super) fn start(&self) -> StreamPosition {
        self.start
    }

    /// Marks a chunk as written that ends at a place and has `n_bytes` bytes in all files.
    pub(super) fn wrote(&self, chunk: usize, end: StreamPosition, n_bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock().unpoisoned();
        state.ahead.insert(chunk, (end, n_bytes));
        while let Some((end, n_bytes)) = {
            let next = state.next;
            state.ahead.remove(&next)
        } {
            state.next += 1;
            state.end = end;
            state.n_bytes += n_bytes;
        }
        if state.n_bytes < STEP_BYTES * self.files.len() as u64 {
            return Ok(());
        }
        let end = state.end;
        state.n_bytes = 0;
        // Release the lock: the other threads continue while the disk works.
        drop(state);
        self.note_at(end)
    }

    /// Records the progress.
    pub(super) fn note(&self) -> io::Result<()> {
        let end = self.state.lock().unpoisoned().end;
        self.note_at(end)
    }

    fn note_at(&self, end: StreamPosition) -> io::Result<()> {
        let note =
            |file: &ResumableFile<'_>| file.shared.note_written_to(file.output, file.offset(end), self.sync);
        self.files.iter().try_for_each(note)
    }
}
