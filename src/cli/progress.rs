//! Progress on a terminal: a bar with rate and time left; elsewhere one plain line every few seconds.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::render::{duration, message};
use crate::core::progress::Progress;
use crate::core::ranged;
use crate::core::text;

/// Time between two plain lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Where a stage is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Quiet,
    Bar,
    Lines,
}

/// Shows progress on standard error. Says that the run should stop once the user interrupted it.
#[derive(Debug)]
pub struct TerminalProgress {
    mode: Mode,
    done: AtomicU64,
    stage: Mutex<Option<Stage>>,
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

#[derive(Debug)]
struct Stage {
    what: String,
    total_bytes: u64,
    start: Instant,
    printed: Instant,
    /// How the results stand.
    figures: String,
}

impl Stage {
    fn line(&self, done: u64, now: Instant) -> String {
        let seconds = now.duration_since(self.start).as_secs_f64();
        let rate = done as f64 / seconds.max(1e-9);
        let percent =
            if self.total_bytes == 0 { 100.0 } else { done as f64 * 100.0 / self.total_bytes as f64 };
        let left = self.total_bytes.saturating_sub(done) as f64 / rate.max(1.0);
        let figures = if self.figures.is_empty() { String::new() } else { format!("; {}", self.figures) };
        format!(
            "{}: {percent:.0} %, {} of {}, {}/s, {} left{figures}",
            self.what,
            text::bytes(done),
            text::bytes(self.total_bytes),
            text::bytes(rate as u64),
            duration(left)
        )
    }
}

impl TerminalProgress {
    /// Shows a bar if standard error is a terminal, else lines.
    #[must_use]
    pub fn new() -> Self {
        Self::with(if io::stderr().is_terminal() { Mode::Bar } else { Mode::Lines })
    }

    /// Shows nothing, warnings neither.
    #[must_use]
    pub fn quiet() -> Self {
        Self::with(Mode::Quiet)
    }

    fn with(mode: Mode) -> Self {
        Self { mode, done: AtomicU64::new(0), stage: Mutex::new(None), bar: Arc::new(Mutex::new(None)) }
    }

    /// Runs something that prints, with the bar out of the way.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        suspend(&self.bar, print)
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }

    /// A writer to standard error for log lines, which go above the bar.
    pub(crate) fn log_writer(&self) -> impl Write + Send + 'static {
        LogWriter(Arc::clone(&self.bar))
    }
}

impl Default for TerminalProgress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for TerminalProgress {
    fn begin(&self, what: &str, total_bytes: u64) {
        self.done.store(0, Ordering::Relaxed);
        let now = Instant::now();
        let figures = String::new();
        let stage = Stage { what: what.to_owned(), total_bytes, start: now, printed: now, figures };
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Some(stage);
        if self.mode == Mode::Bar {
            let bar = ProgressBar::new(total_bytes).with_style(style(BAR)).with_prefix(what.to_owned());
            if let Some(before) = lock(&self.bar).replace(bar) {
                before.finish_and_clear();
            }
        }
    }

    fn advance(&self, n_bytes: u64) {
        let done = self.done.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        match self.mode {
            Mode::Quiet => {}
            Mode::Bar => {
                if let Some(bar) = lock(&self.bar).as_ref() {
                    bar.set_position(done);
                }
            }
            Mode::Lines => {
                // Somebody else is printing: fine, it is the same line.
                let Ok(mut stage) = self.stage.try_lock() else { return };
                let now = Instant::now();
                if let Some(stage) = stage.as_mut()
                    && now.duration_since(stage.printed) >= INTERVAL
                {
                    stage.printed = now;
                    let _ = writeln!(io::stderr(), "{}", stage.line(done, now));
                }
            }
        }
    }

    fn figures(&self, text: &str) {
        match self.mode {
            Mode::Quiet => {}
            Mode::Bar => {
                if let Some(bar) = lock(&self.bar).as_ref() {
                    bar.set_style(style(BAR_AND_FIGURES));
                    bar.set_message(text.to_owned());
                }
            }
            // Part of the next line.
            Mode::Lines => {
                if let Some(stage) = self.stage.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    text.clone_into(&mut stage.figures);
                }
            }
        }
    }

    fn end(&self) {
        self.finish();
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn warn(&self, text: &str) {
        if self.mode != Mode::Quiet {
            self.suspend(|| message("warning", text));
        }
    }

    fn is_cancelled(&self) -> bool {
        crate::cli::is_interrupted()
    }
}

/// What a bar shows, and what one with figures shows: those have a line of their own, cut at the terminal's width.
const BAR: &str = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const BAR_AND_FIGURES: &str = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}\n{wide_msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn lock(bar: &Mutex<Option<ProgressBar>>) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
    bar.lock().unwrap_or_else(PoisonError::into_inner)
}

fn suspend<T>(bar: &Mutex<Option<ProgressBar>>, print: impl FnOnce() -> T) -> T {
    // Cloned (a handle), so that printing may itself report progress.
    let bar = lock(bar).clone();
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

struct LogWriter(Arc<Mutex<Option<ProgressBar>>>);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One record at a time comes here.
        let text = String::from_utf8_lossy(bytes);
        suspend(&self.0, || io::stderr().write_all(ranged::shown(&text).as_bytes()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_share_rate_and_time_left() {
        let start = Instant::now();
        let figures = String::new();
        let what = "writing".to_owned();
        let mut stage = Stage { what, total_bytes: 400 << 20, start, printed: start, figures };
        assert_eq!(
            stage.line(100 << 20, start + Duration::from_secs(10)),
            "writing: 25 %, 100 MiB of 400 MiB, 10.0 MiB/s, 30 s left"
        );
        stage.figures = "perplexity 7.5".to_owned();
        assert!(
            stage.line(100 << 20, start + Duration::from_secs(10)).ends_with("30 s left; perplexity 7.5")
        );
        stage.figures.clear();
        let empty = Stage { total_bytes: 0, ..stage };
        assert_eq!(empty.line(0, start), "writing: 100 %, 0 B of 0 B, 0 B/s, 0.0 s left");
    }
}
