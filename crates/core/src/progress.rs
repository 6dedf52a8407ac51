//! How the library tells how far it is, without knowing a terminal, and how it is told to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Receives progress of a long run. All methods may be called from several threads.
pub trait Progress: Sync {
    /// `n` more stages belong to the run than those that were announced before.
    fn steps(&self, n: usize) {
        let _ = n;
    }

    /// A stage begins: what it does, and how many bytes it will go through.
    fn begin(&self, what: &str, total_bytes: u64) {
        let _ = (what, total_bytes);
    }

    /// The stage that has begun goes through `n` of something, all alike, of which people know more than of its bytes:
    /// tokens.
    fn units(&self, noun: &'static str, n: u64) {
        let _ = (noun, n);
    }

    /// The stage is at piece `number` of `of`, from 1: a tensor.
    fn piece(&self, noun: &'static str, number: u64, of: u64) {
        let _ = (noun, number, of);
    }

    /// `n_bytes` more are done.
    fn advance(&self, n_bytes: u64) {
        let _ = n_bytes;
    }

    /// How the results of the stage stand so far, in a few words; the last say replaces those before.
    fn figures(&self, text: &str) {
        let _ = text;
    }

    /// The stage is over.
    fn end(&self) {}

    /// Something the user should know that does not stop the run.
    fn warn(&self, message: &str) {
        let _ = message;
    }

    /// True once the run should stop; work units check it between chunks.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Tells a stage of something larger by what it is for. Its figures are not the run's.
pub struct Titled<'a> {
    /// What the stage is called.
    pub title: &'a str,
    /// Who is told.
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
