//! Recorded progress of a run that may be resumed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use gguf_core::output::{OutputFile, SharedOutput};
use gguf_core::sync::Unpoisoned;

/// Number of bytes between two records of the progress.
const STEP_BYTES: u64 = 256 << 20;

/// Offset up to which a run has written without gaps, recorded next to the file from time to time. Threads finish their
/// chunks in any order.
pub(super) struct Watermark<'a> {
    shared: &'a SharedOutput,
    output: &'a OutputFile,
    start: u64,
    sync: bool,
    state: Mutex<WatermarkState>,
}

struct WatermarkState {
    /// Index of the first chunk that is not written.
    next: usize,
    /// End offsets of written chunks after it, by index.
    ahead: BTreeMap<usize, u64>,
    /// End offset of the last chunk before it.
    end: u64,
    noted: u64,
}

impl<'a> Watermark<'a> {
    /// Creates the record of a run that starts at offset `start`.
    pub(super) fn new(shared: &'a SharedOutput, output: &'a OutputFile, start: u64, sync: bool) -> Self {
        let state = WatermarkState { next: 0, ahead: BTreeMap::new(), end: start, noted: start };
        Self { shared, output, start, sync, state: Mutex::new(state) }
    }

    /// Byte offset at which the run starts.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Marks a chunk as written that ends at offset `end`.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn wrote(&self, chunk: usize, end: u64) -> io::Result<()> {
        let mut state = self.state.lock().unpoisoned();
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
        // Release the lock: the other threads continue while the disk works.
        drop(state);
        self.shared.note_written_to(self.output, end, self.sync)
    }

    /// Records the progress.
    pub(super) fn note(&self) -> io::Result<()> {
        let end = self.state.lock().unpoisoned().end;
        self.shared.note_written_to(self.output, end, self.sync)
    }
}
