//! Progress on a terminal: a bar with rate and time left; otherwise a plain line every few seconds.

mod pace;

use std::collections::HashSet;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pace::{Pace, rough};
use serde::Serialize;

use crate::cli::render::{count, message, plural};
use crate::core::progress::Progress;
use crate::core::ranged;
use crate::core::sync::Unpoisoned;
use crate::core::text::{self, escape};

/// Time between two plain lines.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two lines of JSON.
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two updates of a bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Form in which progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Neither progress nor warnings.
    Quiet,
    Warnings,
    Bar,
    Lines,
    /// A JSON object a line.
    Json,
}

/// Form that `--progress` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ProgressForm {
    /// A bar on a terminal, otherwise lines
    #[default]
    Auto,
    /// A JSON object a line, for programs
    Json,
}

/// What all stages are about: one of several pieces of work.
#[derive(Clone, Debug, Default)]
struct Subject {
    /// Name of the piece, with its number if there are several; empty if it is clear.
    name: String,
    number: usize,
    of: usize,
    /// Begin of the first piece.
    begin: Option<Instant>,
}

impl Subject {
    /// Maximum length of a name: the line has room for what is done to it.
    const MAX_CHARS: usize = 36;

    /// Returns the name as it is shown, with its end, by which names differ, and a colon.
    fn shown(&self) -> String {
        let n_left = self.name.chars().count().saturating_sub(Self::MAX_CHARS);
        let tail: String = self.name.chars().skip(n_left).collect();
        match (tail.is_empty(), n_left) {
            (true, _) => tail,
            (_, 0) => tail + ": ",
            _ => format!("…{tail}: "),
        }
    }

    /// Returns the seconds left for all pieces, of which `share` of the current one is done.
    fn left(&self, share: f64, now: Instant) -> Option<f64> {
        let spent = now.duration_since(self.begin?).as_secs_f64();
        let done = (self.number as f64 - 1.0 + share) / self.of as f64;
        (self.of > 1 && done > 0.0 && spent > 3.0).then(|| spent * (1.0 - done) / done)
    }
}

/// State of a stage as programs read it.
#[derive(Serialize)]
struct ProgressRecord<'a> {
    progress: &'a str,
    subject: &'a str,
    step: usize,
    steps: usize,
    done_bytes: u64,
    total_bytes: u64,
    seconds_left: Option<f64>,
}

/// Shows progress on standard error. Reports a cancellation once the user has interrupted the run.
#[derive(Debug)]
pub struct TerminalProgress {
    mode: Mode,
    done: AtomicU64,
    /// Number of stages of the run that are known so far. `step` is the number of stages that have begun.
    n_steps: AtomicUsize,
    step: AtomicUsize,
    subject: Mutex<Subject>,
    stage: Mutex<Option<ProgressStage>>,
    bar: Arc<Mutex<Option<ProgressBar>>>,
    /// Warnings that were shown, if each is shown once.
    told: Mutex<Option<HashSet<String>>>,
}

#[derive(Debug)]
struct ProgressStage {
    what: String,
    subject: Subject,
    /// Number of the stage, from 1.
    step: usize,
    total_bytes: u64,
    start: Instant,
    /// Time of the last output.
    shown: Instant,
    /// Noun and total number of the units that are processed.
    units: Option<(&'static str, u64)>,
    /// Noun, number and total of the current piece.
    piece: Option<(&'static str, u64, u64)>,
    /// Intermediate results.
    figures: String,
    pace: Pace,
}

impl ProgressStage {
    fn new(what: &str, step: usize, total_bytes: u64, now: Instant) -> Self {
        Self {
            what: what.to_owned(),
            subject: Subject::default(),
            step,
            total_bytes,
            start: now,
            shown: now,
            units: None,
            piece: None,
            figures: String::new(),
            pace: Pace::default(),
        }
    }

    /// Description of the stage, with its number if there are several.
    fn title(&self, n_steps: usize) -> String {
        let step = self.step;
        match n_steps {
            0 | 1 if step <= 1 => self.what.clone(),
            _ => format!("[{step}/{}] {}", n_steps.max(step), self.what),
        }
    }

    fn share(&self, done: u64) -> f64 {
        if self.total_bytes == 0 { 1.0 } else { (done as f64 / self.total_bytes as f64).min(1.0) }
    }

    /// Returns the amounts done so far: the current piece, if any; then units if they are known, else bytes.
    fn amounts(&self, done: u64) -> Vec<String> {
        let piece = self.piece.map(|(noun, number, of)| format!("{noun} {} of {}", count(number), count(of)));
        let amount = match self.units {
            Some((noun, n)) => {
                let so_far = (self.share(done) * n as f64) as u64;
                format!("{} of {}", count(so_far), plural(n, noun))
            }
            None => format!("{} of {}", text::bytes(done), text::bytes(self.total_bytes)),
        };
        piece.into_iter().chain([amount]).collect()
    }

    /// Returns the rate, once it is known.
    fn rate(&mut self, done: u64, now: Instant) -> Option<String> {
        self.pace.look(now.duration_since(self.start).as_secs_f64(), done, self.total_bytes);
        self.pace.rate().and_then(|rate| match self.units {
            Some((noun, n)) => {
                let rate = rate * n as f64 / self.total_bytes.max(1) as f64;
                (rate >= 1.0).then(|| format!("{}/s", plural(rate as u64, noun)))
            }
            None => (rate >= 1.0).then(|| format!("{}/s", text::bytes(rate as u64))),
        })
    }

    /// Returns the time left, once it is known: of the stage, and of all pieces.
    fn left(&self, done: u64, n_steps: usize, now: Instant) -> Vec<String> {
        let steps = n_steps.max(self.step).max(1) as f64;
        let share = (self.step as f64 - 1.0 + self.share(done)) / steps;
        let all = self.subject.left(share, now).map(|left| format!("{} for all", rough(left)));
        let left = self.pace.left().map(|left| {
            let of = if self.step < n_steps && all.is_none() { " for this step" } else { "" };
            format!("{} left{of}", rough(left))
        });
        left.into_iter().chain(all).collect()
    }

    fn percent(&self, done: u64) -> String {
        format!("{:.0} %", (self.share(done) * 100.0).floor())
    }

    fn line(&mut self, done: u64, n_steps: usize, now: Instant) -> String {
        let rate = self.rate(done, now).into_iter().collect();
        let parts = [vec![self.percent(done)], self.amounts(done), rate, self.left(done, n_steps, now)];
        let figures = if self.figures.is_empty() { String::new() } else { format!("; {}", self.figures) };
        format!("{}{}: {}{figures}", self.subject.shown(), self.title(n_steps), parts.concat().join(", "))
    }

    /// Returns the two texts of a bar: the line above it, whose end a narrow terminal cuts off, and the text behind it.
    fn lines(&mut self, done: u64, n_steps: usize, now: Instant) -> [String; 2] {
        let rate = self.rate(done, now);
        let amounts = self.amounts(done).into_iter().chain(rate).collect::<Vec<_>>().join(", ");
        let figures = if self.figures.is_empty() { String::new() } else { format!("; {}", self.figures) };
        let behind = [vec![self.percent(done)], self.left(done, n_steps, now)].concat().join(", ");
        [format!("{}{}, {amounts}{figures}", self.subject.shown(), self.title(n_steps)), behind]
    }

    /// Returns the state as a line of JSON.
    fn record(&mut self, done: u64, n_steps: usize, now: Instant) -> String {
        self.pace.look(now.duration_since(self.start).as_secs_f64(), done, self.total_bytes);
        let record = ProgressRecord {
            progress: &self.what,
            subject: &self.subject.name,
            step: self.step,
            steps: n_steps.max(self.step),
            done_bytes: done,
            total_bytes: self.total_bytes,
            seconds_left: self.pace.left(),
        };
        serde_json::to_string(&record).unwrap_or_default()
    }
}

impl TerminalProgress {
    /// Shows a bar if standard error is a terminal, else lines.
    pub fn new() -> Self {
        Self::with(if io::stderr().is_terminal() { Mode::Bar } else { Mode::Lines })
    }

    /// Writes lines of JSON.
    pub fn json() -> Self {
        Self::with(Mode::Json)
    }

    /// Shows nothing, not even warnings.
    pub fn quiet() -> Self {
        Self::with(Mode::Quiet)
    }

    /// Shows only warnings.
    pub fn warnings_only() -> Self {
        Self::with(Mode::Warnings)
    }

    fn with(mode: Mode) -> Self {
        Self {
            mode,
            done: AtomicU64::new(0),
            n_steps: AtomicUsize::new(0),
            step: AtomicUsize::new(0),
            subject: Mutex::default(),
            stage: Mutex::new(None),
            bar: Arc::new(Mutex::new(None)),
            told: Mutex::new(None),
        }
    }

    /// From now on, each warning is shown once: for a command that opens the same model several times.
    pub(crate) fn warn_once(&self) {
        self.told.lock().unpoisoned().get_or_insert_default();
    }

    /// Returns true for a text that has to be shown: always, unless [`Self::warn_once`] was called before and the text was
    /// shown since.
    pub(crate) fn is_new(&self, text: &str) -> bool {
        self.told.lock().unpoisoned().as_mut().is_none_or(|told| told.insert(text.to_owned()))
    }

    /// Runs something that prints, with the bar hidden.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        suspend(&self.bar, print)
    }

    /// Restarts the step count for another piece of work: `name`, the `number`-th `of` all.
    pub(crate) fn restart(&self, name: &str, number: usize, of: usize) {
        let mut subject = self.subject.lock().unpoisoned();
        let begin = subject.begin.or_else(|| Some(Instant::now()));
        let name = if of > 1 { format!("{name} ({number} of {of})") } else { name.to_owned() };
        *subject = Subject { name, number, of, begin };
        drop(subject);
        self.n_steps.store(0, Ordering::Relaxed);
        self.step.store(0, Ordering::Relaxed);
    }

    fn tell(&self, change: impl FnOnce(&mut ProgressStage)) {
        if let Some(stage) = self.stage.lock().unpoisoned().as_mut() {
            change(stage);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }

    /// Returns a writer to standard error for log lines, which go above the bar.
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
    fn steps(&self, n: usize) {
        self.n_steps.fetch_add(n, Ordering::Relaxed);
    }

    fn begin(&self, what: &str, total_bytes: u64) {
        self.done.store(0, Ordering::Relaxed);
        let step = self.step.fetch_add(1, Ordering::Relaxed) + 1;
        let subject = self.subject.lock().unpoisoned().clone();
        let mut stage =
            ProgressStage { subject, ..ProgressStage::new(what, step, total_bytes, Instant::now()) };
        let n_steps = self.n_steps.load(Ordering::Relaxed);
        let title = stage.title(n_steps);
        if self.mode == Mode::Json {
            let _ = writeln!(io::stderr(), "{}", stage.record(0, n_steps, Instant::now()));
        }
        *self.stage.lock().unpoisoned() = Some(stage);
        if self.mode == Mode::Bar {
            let bar = ProgressBar::new(total_bytes)
                .with_style(style(BAR))
                .with_message(escape(&ranged::shown(&title)).into_owned());
            if let Some(before) = lock(&self.bar).replace(bar) {
                before.finish_and_clear();
            }
        }
    }

    fn units(&self, noun: &'static str, n: u64) {
        self.tell(|stage| stage.units = Some((noun, n)));
    }

    fn piece(&self, noun: &'static str, number: u64, of: u64) {
        self.tell(|stage| stage.piece = Some((noun, number, of)));
    }

    fn advance(&self, n_bytes: u64) {
        let done = self.done.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        let interval = match self.mode {
            Mode::Quiet | Mode::Warnings => return,
            Mode::Bar => BAR_INTERVAL,
            Mode::Lines => INTERVAL,
            Mode::Json => JSON_INTERVAL,
        };
        // Another thread is printing the same line.
        let Ok(mut stage) = self.stage.try_lock() else { return };
        let now = Instant::now();
        let Some(stage) = stage.as_mut().filter(|stage| now.duration_since(stage.shown) >= interval) else {
            return;
        };
        stage.shown = now;
        let n_steps = self.n_steps.load(Ordering::Relaxed);
        if self.mode == Mode::Json {
            let _ = writeln!(io::stderr(), "{}", stage.record(done, n_steps, now));
        } else if self.mode == Mode::Lines {
            let line = stage.line(done, n_steps, now);
            let _ = writeln!(io::stderr(), "{}", escape(&ranged::shown(&line)));
        } else if let Some(bar) = lock(&self.bar).as_ref() {
            let [above, behind] = stage.lines(done, n_steps, now);
            bar.set_message(escape(&ranged::shown(&above)).into_owned());
            bar.set_prefix(behind);
            bar.set_position(done);
        }
    }

    /// Sets results that the next output includes.
    fn figures(&self, text: &str) {
        self.tell(|stage| text.clone_into(&mut stage.figures));
    }

    fn end(&self) {
        self.finish();
        *self.stage.lock().unpoisoned() = None;
    }

    fn warn(&self, text: &str) {
        if self.mode != Mode::Quiet && self.is_new(text) {
            self.suspend(|| message("warning", text));
        }
    }

    fn is_cancelled(&self) -> bool {
        crate::cli::is_interrupted()
    }
}

/// Template of a bar: a line that is cut at the terminal's width, then the bar with its text behind it. The bar leaves
/// a few columns free for the `^C` that a terminal adds.
const BAR: &str = "{wide_msg}\n{bar:24} {prefix}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn lock(bar: &Mutex<Option<ProgressBar>>) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
    bar.lock().unpoisoned()
}

fn suspend<T>(bar: &Mutex<Option<ProgressBar>>, print: impl FnOnce() -> T) -> T {
    // A clone is a handle. Without the lock, printing may itself report progress.
    let bar = lock(bar).clone();
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

struct LogWriter(Arc<Mutex<Option<ProgressBar>>>);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One record is written at a time.
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

    /// Line of a stage of 400 MiB, of which a quarter is done after ten seconds.
    fn line(change: impl FnOnce(&mut ProgressStage), n_steps: usize) -> String {
        let start = Instant::now();
        let mut stage = ProgressStage::new("writing a.gguf", n_steps.clamp(1, 2), 400 << 20, start);
        change(&mut stage);
        stage.line(100 << 20, n_steps, start + Duration::from_secs(10))
    }

    #[test]
    fn a_line_has_share_rate_and_time_left() {
        let shown = line(|_| (), 1);
        assert_eq!(shown, "writing a.gguf: 25 %, 100 MiB of 400 MiB, 10.0 MiB/s, about 30 s left");
        let shown = line(|stage| "perplexity 7.5".clone_into(&mut stage.figures), 1);
        assert!(shown.ends_with("about 30 s left; perplexity 7.5"), "{shown}");
        let shown = line(|stage| stage.piece = Some(("tensor", 12, 291)), 2);
        assert!(shown.starts_with("[2/2] writing a.gguf: 25 %, tensor 12 of 291, 100 MiB"), "{shown}");
        let shown = line(|stage| stage.units = Some(("token", 4096)), 3);
        assert_eq!(
            shown,
            "[2/3] writing a.gguf: 25 %, 1 024 of 4 096 tokens, 102 tokens/s, about 30 s left for this step"
        );
    }

    #[test]
    fn the_file_its_number_and_the_time_for_all_come_first_and_last() {
        let start = Instant::now();
        let name = "a-model-with-a-name-that-fills-the-line-Q4_K_M.gguf (2 of 6)".to_owned();
        let mut stage = ProgressStage::new("weights", 1, 400 << 20, start + Duration::from_secs(10));
        stage.subject = Subject { name, number: 2, of: 6, begin: Some(start) };
        // One and a quarter of six pieces took 20 seconds.
        let now = start + Duration::from_secs(20);
        let [above, behind] = stage.lines(100 << 20, 1, now);
        assert_eq!(above, "…-fills-the-line-Q4_K_M.gguf (2 of 6): weights, 100 MiB of 400 MiB, 10.0 MiB/s");
        assert_eq!(behind, "25 %, about 30 s left, about 2 min for all");
        // With the bar, the longest text leaves a terminal of 80 columns room for `^C`.
        let longest = format!("100 %, {} left, {} for all", rough(0.0), rough(4_300.0));
        assert!("{bar:24} ".len() - 3 + 24 - 2 + longest.len() <= 80, "{longest}");
        let record: serde_json::Value = serde_json::from_str(&stage.record(100 << 20, 1, now)).unwrap();
        assert_eq!((record["progress"].as_str(), record["steps"].as_u64()), (Some("weights"), Some(1)));
        assert_eq!(record["done_bytes"], 100 << 20);
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let start = Instant::now();
        let mut stage = ProgressStage::new("writing", 1, 0, start);
        assert_eq!(stage.line(0, 0, start), "writing: 100 %, 0 B of 0 B");
        let mut stage = ProgressStage::new("writing", 3, 100, start);
        assert_eq!(stage.line(0, 2, start + Duration::from_secs(9)), "[3/3] writing: 0 %, 0 B of 100 B");
    }
}
