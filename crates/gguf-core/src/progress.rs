//! Progress reports of the library, independent of a terminal, and cancellation.

use std::sync::atomic::{AtomicBool, Ordering};

/// Receives progress of a long run. All methods may be called from several threads.
pub trait Progress: Sync {
    /// Adds `n` stages to those announced before.
    fn steps(&self, n: usize) {
        let _ = n;
    }

    /// Begins a stage: its description, and the bytes that it will process.
    fn begin(&self, what: &str, total_bytes: u64) {
        let _ = (what, total_bytes);
    }

    /// Announces that the stage processes `n` units of equal size that users know better than bytes: tokens.
    fn units(&self, noun: &'static str, n: u64) {
        let _ = (noun, n);
    }

    /// Reports that the stage is at piece `number` of `of`, counted from 1: a tensor.
    fn piece(&self, noun: &'static str, number: u64, of: u64) {
        let _ = (noun, number, of);
    }

    /// Reports `n_bytes` more as done.
    fn advance(&self, n_bytes: u64) {
        let _ = n_bytes;
    }

    /// Reports the stage's results so far, in a few words; they replace those reported before.
    fn figures(&self, text: &str) {
        let _ = text;
    }

    /// Ends the stage.
    fn end(&self) {}

    /// Reports something the user should know that does not stop the run.
    fn warn(&self, message: &str) {
        let _ = message;
    }

    /// Returns true once the run should stop; work units check it between chunks.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Reports a stage under a title that names its purpose. Its figures are not reported as the run's.
pub struct Titled<'a> {
    /// Title of the stage.
    pub title: &'a str,
    /// Receiver of the reports.
    pub progress: &'a dyn Progress,
}

impl Progress for Titled<'_> {
    fn begin(&self, _: &str, total_bytes: u64) {
        self.progress.begin(self.title, total_bytes);
    }

    fn units(&self, noun: &'static str, n: u64) {
        self.progress.units(noun, n);
    }

    fn advance(&self, n_bytes: u64) {
        self.progress.advance(n_bytes);
    }

    fn end(&self) {
        self.progress.end();
    }

    fn warn(&self, message: &str) {
        self.progress.warn(message);
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

/// Reports nothing and never cancels.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {}

/// Reports nothing; cancels when the flag is set. For tests and embedders.
#[derive(Debug, Default)]
pub struct CancelFlag(AtomicBool);

impl CancelFlag {
    /// Asks the run to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Progress for CancelFlag {
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
