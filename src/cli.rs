//! Command lines of the four programs: parse arguments, call the library, print.
//!
//! A program is a clap parser that implements [`Tool`]; its `main` is one call of [`run`], which parses, sets up
//! threads, logging, progress and the interrupt, and turns the result into an exit code and a message.

mod completions;
pub mod convert;
#[cfg(test)]
mod effects_table;
mod failure;
mod forms;
mod help;
pub mod inspect;
mod isolated;
mod job;
mod limits;
mod memory;
mod modelfile;
#[cfg(test)]
mod number_options;
#[cfg(test)]
mod option_table;
#[cfg(any(feature = "packaging", test))]
pub mod packaging;
#[cfg(test)]
mod path_table;
pub(crate) mod progress;
pub mod quantize;
pub(crate) mod remote;
pub(crate) mod render;
mod share;
mod signals;
mod stored;
mod threads;
mod type_names;
pub mod verify;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::core::mmap::faults;
use crate::core::output::Destination;
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::core::text::{bytes, parse_bytes};
use failure::Failure;
use progress::{ProgressForm, TerminalProgress};

#[cfg(any(not(unix), target_vendor = "apple"))]
pub use isolated::CountedMemory;
pub use isolated::limit_memory_by;

/// Version of the programs, with the commit that the builder passed in `GGUF_FOUNDRY_COMMIT`, if any.
static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("GGUF_FOUNDRY_COMMIT") {
    Some(commit) if !commit.is_empty() => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    _ => env!("CARGO_PKG_VERSION").to_owned(),
});

/// Returns the version of the programs, for files that they write.
pub fn version() -> &'static str {
    VERSION.as_str()
}

/// [`VERSION`] with what else distinguishes programs: features, and the vector instructions of this machine.
static BUILD: LazyLock<String> = LazyLock::new(|| {
    let features = if cfg!(feature = "remote") { "cli, remote" } else { "cli" };
    format!("{}\nfeatures: {features}\nvector instructions: {}", version(), SimdLevel::detect())
});

/// Returns the text that `--version` prints after the name: `#[command(version = cli::build())]`.
pub fn build() -> &'static str {
    BUILD.as_str()
}

/// Outcome of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done,
    /// The run failed, or `gguf-inspect diff` or `gguf-quantize recipe` found a difference.
    Failed,
    /// The arguments are invalid or contradict one another.
    Usage,
    /// A limit was missed, or the file is broken.
    Broken,
    /// The verdict is partial: passed as far as it could be judged.
    Partial,
    /// A signal stopped the run.
    Interrupted,
}

impl Exit {
    /// Returns the exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Broken => 3,
            Self::Partial => 4,
            Self::Interrupted => 130,
        }
    }
}

/// Writes the exit code.
impl Serialize for Exit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.code())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Arguments that contradict one another or the files they name: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Options of every command. Flatten it: `#[command(flatten)] common: Common`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Number of threads [default: all cores]
    #[arg(short, long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Memory budget, with K, M or G (powers of 1024) [default: 128M; verify: half of what is free, in a container of what its limit leaves]
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Vector instructions: auto, scalar, avx2, avx512 or neon; the output is the same
    #[arg(long, global = true, value_name = "LEVEL", default_value = "auto")]
    pub simd: SimdLevel,
    /// Print one JSON document to standard output, also if the run fails
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress, no warnings
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// No progress; warnings stay
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Form of the progress on standard error: auto (a bar on a terminal, otherwise lines) or json (an object a line)
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORM",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub progress: ProgressForm,
    /// Print more details, and what the run took
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Finish without waiting for the disk: faster, but a power failure may lose the output
    #[arg(long, global = true)]
    pub no_sync: bool,
}

impl Common {
    /// Returns the memory budget of convert, quantize and inspect.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or(128 << 20)
    }
}

/// Parses a size option: `128M`. For `value_parser = cli::size`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "a size such as `4096`, `128M` or `1.5G` expected".to_owned())
}

/// Parses a size that is not 0. For `value_parser = cli::size_above_0`.
pub fn size_above_0(text: &str) -> Result<u64, String> {
    size(text).and_then(|n| if n > 0 { Ok(n) } else { Err("a size above 0 expected".to_owned()) })
}

/// Parses a name that is not blank. For `value_parser = cli::name`.
pub fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("a name expected".to_owned()) } else { Ok(text.to_owned()) }
}

/// Parses `--split-max-size` as llama.cpp does, and in either case: `300M`, `2g`, powers of 1000. For `value_parser = cli::split_size`.
pub fn split_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    let n_bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    n_bytes.filter(|&n| n > 0).ok_or_else(|| "a size such as `300M` or `2G` expected".to_owned())
}

/// Parses a number that is finite and not negative. For `value_parser = cli::amount`.
pub fn amount(text: &str) -> Result<f64, String> {
    finite(text).ok().filter(|&n| n >= 0.0).ok_or_else(|| "a finite number from 0 up expected".to_owned())
}

/// Parses a share, 0 to 1. For `value_parser = cli::share`.
pub fn share(text: &str) -> Result<f64, String> {
    let in_range = |n: &f64| (0.0..=1.0).contains(n);
    finite(text).ok().filter(in_range).ok_or_else(|| "a share from 0 to 1 expected (0.99 is 99 %)".to_owned())
}

/// Parses a number of either sign. NaN and infinity are refused, because no comparison could ever miss them. Every
/// option that takes a number with a fraction is parsed by this or by one of the two above.
pub fn finite(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(|| "a finite number expected".to_owned())
}

/// Command-line program.
pub trait Tool: clap::Parser {
    /// Returns the common options.
    fn common(&self) -> &Common;

    /// Completes the arguments (the program's name first) before they are parsed.
    fn arguments(arguments: Vec<OsString>) -> Vec<OsString> {
        arguments
    }

    /// Does the work.
    fn run(&self, session: &Session) -> anyhow::Result<Exit>;

    /// Returns a sentence about what is kept of an interrupted run, and how to continue.
    fn after_interrupt(&self) -> Option<String> {
        None
    }
}

/// Environment of a running program.
#[derive(Debug)]
pub struct Session {
    /// The common options.
    pub common: Common,
    /// Progress on the terminal; also reports whether the user wants to stop.
    pub progress: TerminalProgress,
}

impl Session {
    /// Prints to standard output through a buffer, with the progress bar out of the way. A reader that has closed the pipe
    /// changes neither what else is written nor the exit code.
    pub fn print(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> anyhow::Result<()> {
        self.print_part(write).or_else(|error| if error.is::<ClosedPipe>() { Ok(()) } else { Err(error) })
    }

    /// Prints a part of a long output.
    ///
    /// # Errors
    /// I/O errors, and [`ClosedPipe`]: nobody reads the other parts.
    pub(crate) fn print_part(
        &self,
        write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut write = Some(write);
        self.print_once(&mut |out| write.take().map_or(Ok(()), |write| write(out)))
    }

    fn print_once(&self, write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>) -> anyhow::Result<()> {
        self.progress
            .suspend(|| {
                let out = std::io::stdout().lock();
                let is_terminal = out.is_terminal();
                let mut out = std::io::BufWriter::new(out);
                if is_terminal {
                    write(&mut render::to_terminal(&mut out))?;
                } else {
                    write(&mut out)?;
                }
                out.flush()
            })
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::BrokenPipe => ClosedPipe.into(),
                _ => anyhow::Error::new(error).context("standard output"),
            })
    }

    /// Prints a note, which is no warning. Prints nothing with `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.common.quiet {
            self.progress.suspend(|| render::message("note", text));
        }
    }

    /// Returns the destination of an output, for plans that write nothing. If nothing can be written there, this warns:
    /// the plan is valid nevertheless.
    pub fn destination(&self, target: &Path) -> Option<Destination> {
        match Destination::of(target) {
            Ok(destination) => Some(destination),
            Err(error) => {
                self.progress.warn(&format!("a run would stop here: {error}"));
                None
            }
        }
    }

    /// Prints a report as a JSON document to standard output.
    pub fn print_json(&self, report: &impl Serialize) -> anyhow::Result<()> {
        self.print(|out| {
            render::write_json(out, report)?;
            writeln!(out)
        })
    }
}

/// The reader of standard output has closed it: an end of the run, not a failure.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct ClosedPipe;

/// Returns true once the user or the system has asked the program to stop.
pub fn is_interrupted() -> bool {
    signals::is_interrupted()
}

/// Runs a program, from its arguments to its exit code.
pub fn run<T: Tool>() -> ExitCode {
    if let Some(exit) = isolated::play_child() {
        return exit.into();
    }
    isolated::install();
    if std::env::args_os().skip(1).eq(["help", "machines"]) {
        // A closed pipe is ignored, as with other help.
        let _ = std::io::stdout().write_all(help::machines(&T::command()).as_bytes());
        return Exit::Done.into();
    }
    let offer = || forms::offer(&T::command(), &command_first(std::env::args_os().collect()));
    let (tool, name) = match parse::<T>() {
        Ok(parsed) => parsed,
        Err(error) => return failure::refuse(&error, offer).into(),
    };
    let common = tool.common().clone();
    let progress = match (common.quiet, common.no_progress) {
        (true, _) => TerminalProgress::quiet(),
        (false, true) => TerminalProgress::warnings_only(),
        (false, false) if common.progress == ProgressForm::Json => TerminalProgress::json(),
        (false, false) => TerminalProgress::new(),
    };
    let session = Session { common, progress };
    let begin = Instant::now();
    set_up(&session);
    // A panic is a defect. The panic hook has printed its location, and unwinding has removed the temporary files.
    let work = || {
        if let Some(note) = threads::start(session.common.threads)? {
            session.note(&note);
        }
        tool.run(&session)
    };
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    session.progress.finish();
    if session.common.verbose > 0 {
        session.note(&resources(begin.elapsed().as_secs_f64(), session.common.simd));
    }
    let failure = match done {
        Ok(Ok(exit)) => return exit.into(),
        Ok(Err(error)) => Failure::of(&error),
        Err(_) => Some(Failure::defect()),
    };
    let failure = failure.map(|failure| {
        let failure = failure.with_hints_for(&called::<T>(name.as_deref()), &others::<T>());
        failure.with_rest(|| tool.after_interrupt()).with_offer(offer)
    });
    failure.map_or(Exit::Done, |failure| failure.tell(session.common.json)).into()
}

/// Describes what a run took. The peak of the memory includes the mapped parts of files.
fn resources(seconds: f64, level: SimdLevel) -> String {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak = peak.and_then(|kib| kib.trim().parse::<u64>().ok());
    let memory = peak.map_or_else(String::new, |kib| format!(", {} of memory at most", bytes(kib << 10)));
    let threads = render::plural(rayon::current_num_threads() as u64, "thread");
    format!("{}{memory}, {threads}, vector instructions: {}", render::duration(seconds), level)
}

/// Returns the command with this name, or the program without one; with the common options.
fn called<T: Tool>(name: Option<&str>) -> clap::Command {
    let all = T::command();
    let Some(own) = name.and_then(|name| all.find_subcommand(name)) else { return all };
    own.clone().args(all.get_arguments().filter(|arg| arg.is_global_set()).cloned())
}

/// Returns the commands that hints may be about, each with its words: those of this program, then those that make files.
fn others<T: Tool>() -> Vec<(String, clap::Command)> {
    let program = T::command();
    let own =
        |command: &clap::Command| (format!("{} {}", program.get_name(), command.get_name()), command.clone());
    let commands: Vec<_> = program.get_subcommands().map(own).collect();
    let makers = [("gguf-convert", convert::hf2gguf()), ("gguf-quantize", quantize::command())];
    let makers = makers.map(|(words, command)| (words.to_owned(), command));
    [(program.get_name().to_owned(), program.clone())].into_iter().chain(commands).chain(makers).collect()
}

/// Parses the arguments of the process: the program, and the name of its command.
fn parse<T: Tool>() -> Result<(T, Option<String>), clap::Error> {
    let arguments = T::arguments(command_first(std::env::args_os().collect()));
    let mut command = help::with_pages(T::command(), arguments.iter().any(|word| word == "-h"));
    let matches = command.try_get_matches_from_mut(arguments)?;
    let tool = T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok((tool, matches.subcommand_name().map(str::to_owned)))
}

/// Moves common options that stand in front of everything else to the end: `--json ladder m.gguf` is `ladder m.gguf --json`.
fn command_first(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let common = <Common as clap::Args>::augment_args(clap::Command::new("common"));
    let option = |word: &str| {
        let named = |arg: &&clap::Arg| match word.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long.split('=').next().unwrap_or(long)),
            None => word
                .strip_prefix('-')
                .is_some_and(|own| arg.get_short().is_some_and(|short| own == short.to_string())),
        };
        common.get_arguments().find(named).map(|arg| arg.get_action().takes_values() && !word.contains('='))
    };
    let mut n_moved = 0;
    while let Some(has_value) = arguments.get(1 + n_moved).and_then(|word| option(word.to_str()?)) {
        n_moved += 1 + usize::from(has_value);
    }
    let n_rest = arguments.len().saturating_sub(1 + n_moved);
    if n_moved > 0 && n_rest > 0 {
        let moved: Vec<OsString> = arguments.drain(1..=n_moved).collect();
        let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
        arguments.splice(end..end, moved);
    }
    arguments
}

fn set_up(session: &Session) {
    let common = &session.common;
    let level = match (common.quiet, common.verbose) {
        (true, _) => log::LevelFilter::Error,
        (_, 0) => log::LevelFilter::Warn,
        _ => log::LevelFilter::Debug,
    };
    let mut logger = env_logger::Builder::new();
    // Only this project's records: those of other crates may contain signed addresses. `RUST_LOG` overrides this.
    match std::env::var("RUST_LOG").ok().filter(|filters| !filters.is_empty()) {
        Some(filters) => logger.parse_filters(&filters),
        None => logger.filter_module("gguf", level),
    };
    let _ = logger
        .format(|out, record| {
            let label = match record.level() {
                log::Level::Error => "error",
                log::Level::Warn => "warning",
                log::Level::Info => "info",
                log::Level::Debug | log::Level::Trace => "debug",
            };
            writeln!(out, "{}", render::labelled(label, &record.args().to_string()))
        })
        .target(env_logger::Target::Pipe(Box::new(session.progress.log_writer())))
        .try_init();
    signals::install();
    limits::raise();
    faults::install(common.json);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct CommonProbe {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn common_options_have_defaults_and_bounds() {
        let parse = |args: &[&str]| {
            CommonProbe::try_parse_from([&["probe"], args].concat()).map(|probe| probe.common)
        };
        let common = parse(&[]).unwrap();
        assert_eq!(common.memory_bytes(), 128 << 20);
        assert_eq!(common.simd, SimdLevel::detect());
        let common = parse(&["--memory", "1G", "--simd", "scalar", "--threads", "3", "-vv"]).unwrap();
        assert_eq!((common.memory_bytes(), common.verbose, common.threads), (1 << 30, 2, Some(3)));
        assert_eq!(common.simd, SimdLevel::Scalar);
        for bad in [["--threads", "0"], ["--memory", "lots"], ["--simd", "mmx"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn split_sizes_are_decimal() {
        assert_eq!(split_size("2G"), Ok(2_000_000_000));
        assert_eq!(split_size("300M"), Ok(300_000_000));
        assert_eq!(split_size("500k"), Ok(500_000));
        assert!(size_above_0("0").is_err() && size_above_0("0G").is_err());
        assert_eq!(size_above_0("1K"), size("1k"));
        assert!(name("").is_err() && name(" \t").is_err() && name("a b").is_ok());
        assert_eq!(split_size("4096"), Ok(4096));
        for bad in ["", "G", "0", "-1M", "1.5G", "2T", "99999999999999G"] {
            assert!(split_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn common_options_in_front_of_a_command_go_behind_it() {
        let moved = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words: Vec<_> =
                command_first(words).into_iter().map(|word| word.into_string().unwrap()).collect();
            words.join(" ")
        };
        for (typed, meant) in [
            ("p --json ladder m.gguf", "p ladder m.gguf --json"),
            ("p -q -t 2 DIR", "p DIR -q -t 2"),
            ("p --threads=2 --quiet DIR -- -x", "p DIR --threads=2 --quiet -- -x"),
            ("p --json", "p --json"),
            ("p m.gguf --json", "p m.gguf --json"),
            ("p --type q4_0 --json", "p --type q4_0 --json"),
            ("p --threads", "p --threads"),
            ("p -- --json", "p -- --json"),
        ] {
            assert_eq!(moved(typed), meant);
        }
    }
}
