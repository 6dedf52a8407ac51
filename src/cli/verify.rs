//! `gguf-verify`: checks whether a model file may be shipped.

mod against;
mod combine;
mod details;
mod file_rows;
pub(super) mod imatrix;
mod judge;
mod limits;
mod logits;
pub(crate) mod model;
mod names;
mod overview;
pub(super) mod page;
mod pairs;
mod per_token;
mod printout;
mod prompt_files;
mod reasons;
mod recommend;
mod report;
mod statistics;
mod tasks;
mod trace;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

use crate::cli::completions::Completions;
use crate::cli::verify::combine::CombineArgs;
use crate::cli::verify::imatrix::ImatrixArgs;
use crate::cli::verify::judge::VerifyArgs;
use crate::cli::verify::logits::LogitsArgs;
use crate::cli::verify::page::JudgedFile;
use crate::cli::verify::report::ModelReport;
use crate::cli::{Common, Exit, Session, Tool};
use crate::core::mmap::address_space_bytes;
use crate::core::platform::held_bytes;
use crate::engine::EngineOptions;
use crate::gguf::UnfinishedRun;
use crate::verify::{RowSelection, Scoring, Span};

/// Check whether a model file is intact, and how good it is
#[derive(Debug, Parser)]
#[command(
    name = "gguf-verify",
    version = crate::cli::version(), long_version = crate::cli::build(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "With `-v` the perplexity of every prompt is shown, however many there are.\n\n`pass` means that all of these were checked: structure, tokenizer, 1000 tokens of text, and a baseline (or `--max-ppl`) to compare with.\n\nExit codes: 0 pass, 1 could not run, 2 usage, 3 broken or worse than allowed, 4 partial: not everything could be checked, 130 interrupted"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<VerifyCommand>,
    #[command(flatten)]
    verify: VerifyArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum VerifyCommand {
    /// Print the logits after each prompt's last token as JSON lines
    Logits(LogitsArgs),
    /// Collect an importance matrix
    Imatrix(ImatrixArgs),
    /// Combine the parts that `--part` wrote: into the verdict of a single run, an importance matrix, or statistics
    Combine(CombineArgs),
    /// Print a script with which a shell completes the arguments of this program
    ///
    /// For bash: `source <(gguf-verify completions bash)`, in ~/.bashrc to keep.
    Completions(Completions),
}

/// Tokens of a chunk without `--ctx`, as in llama-perplexity.
const DEFAULT_CTX: usize = 512;

#[derive(Clone, Copy, Debug, Args)]
struct CutArgs {
    /// Tokens of a chunk [default: 512]
    #[arg(short, long, alias = "ctx-size", value_name = "N")]
    ctx: Option<usize>,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    chunks: Option<usize>,
    /// Start chunks this many tokens apart and score the last that many of each
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
}

/// Judges models against one baseline on a text, as `gguf-verify MODELS --baseline REF --prompts TEXT`. `take` receives
/// the figures of each model when it is judged, with its number from 0.
pub(super) fn judge_all(
    session: &Session,
    models: &[PathBuf],
    baseline: &Path,
    imatrix: Option<&Path>,
    text: &Path,
    take: &mut dyn FnMut(usize, JudgedFile) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let words = ["gguf-verify".as_ref()].into_iter().chain(models.iter().map(|path| path.as_os_str()));
    let options = ["--baseline".as_ref(), baseline.as_os_str(), "--prompts".as_ref(), text.as_os_str()];
    let imatrix = imatrix.iter().flat_map(|matrix| ["--imatrix".as_ref(), matrix.as_os_str()]);
    let args = Cli::try_parse_from(words.chain(options).chain(imatrix))?.verify;
    let mut each = |at: usize, entry: &ModelReport| take(at, JudgedFile::of(entry));
    args.judge(Some(baseline), session, &mut each, |_, failures| match failures.first() {
        None => Ok(()),
        Some((path, error)) => {
            let error = crate::cli::render::error_line(error);
            anyhow::bail!("{}: {error}", path.display())
        }
    })
}

/// Measures an importance matrix on a text, as `gguf-verify imatrix MODEL --prompts TEXT -o OUTPUT`. A matrix that is
/// there is taken if it is of the same text and model, unless `replace` is given. While it is measured it is hidden; with
/// `resume`, what a stopped run has measured is continued.
pub(super) fn measure_importance(
    session: &Session,
    model: &Path,
    text: &Path,
    output: &Path,
    resume: bool,
    replace: bool,
) -> anyhow::Result<()> {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(output.file_name().unwrap_or_default());
    let hidden = output.with_file_name(hidden);
    if output.is_file() && UnfinishedRun::find(output).is_some() {
        fs_err::rename(output, &hidden)?;
    }
    if !resume && hidden.is_file() {
        fs_err::remove_file(&hidden)?;
    }
    let is_there = output.is_file() && !replace;
    let target = if is_there { output } else { hidden.as_path() };
    let words = ["gguf-verify".as_ref(), "imatrix".as_ref(), model.as_os_str(), "--prompts".as_ref()];
    let options = [text.as_os_str(), "--no-ppl".as_ref(), "-o".as_ref(), target.as_os_str()];
    let resume = target.is_file().then_some("--resume".as_ref());
    let words = words.into_iter().chain(options).chain(resume);
    if let Some(VerifyCommand::Imatrix(args)) = Cli::try_parse_from(words)?.command {
        args.measure(session)?;
        if !is_there {
            fs_err::rename(&hidden, output)?;
        }
    }
    Ok(())
}

/// Entry point of `gguf-verify`.
pub fn main() -> std::process::ExitCode {
    crate::cli::run::<Cli>()
}

/// Returns the parser, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Moves every `-m FILE` as a model in front of the options.
pub(super) fn models_first(arguments: Vec<OsString>) -> Vec<OsString> {
    let (mut models, mut rest) = (Vec::new(), Vec::new());
    let mut given = arguments.into_iter();
    while let Some(argument) = given.next() {
        let text = argument.to_str().unwrap_or_default();
        if text == "--" {
            rest.push(argument);
            rest.extend(given);
            break;
        } else if text == "-m" || text == "--model" {
            match given.next() {
                Some(model) => models.push(model),
                None => rest.push(argument),
            }
        } else if let Some(model) = text.strip_prefix("--model=") {
            models.push(model.into());
        } else {
            rest.push(argument);
        }
    }
    let is_command = rest.get(1).is_some_and(|word| ["imatrix", "logits"].iter().any(|name| word == name));
    let at = if is_command { 2 } else { 1 }.min(rest.len());
    rest.splice(at..at, models);
    rest
}

impl Tool for Cli {
    fn common(&self) -> &Common {
        &self.common
    }

    /// Moves models named by `-m`, as in llama.cpp's tools, to the front: here they are positional.
    fn arguments(arguments: Vec<OsString>) -> Vec<OsString> {
        models_first(arguments)
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(VerifyCommand::Logits(args)) => args.run(session),
            Some(VerifyCommand::Imatrix(args)) => args.run(session),
            Some(VerifyCommand::Combine(args)) => args.run(session),
            Some(VerifyCommand::Completions(args)) => args.run(command(), session),
            None => self.verify.run(session),
        }
    }
}

pub(crate) fn engine_options(common: &Common) -> EngineOptions {
    let mut options = EngineOptions { level: common.simd, ..EngineOptions::default() };
    // The number that was started, which is lower than requested if the system refused some.
    options.n_threads = rayon::current_num_threads();
    let free = half_of_free_memory().unwrap_or(options.memory_bytes);
    // In a limited address space, threads and system libraries need their share.
    let allowed = address_space_bytes().map_or(u64::MAX, |bytes| bytes / 4);
    options.memory_bytes = common.memory.unwrap_or(free.min(allowed));
    options.held_bytes = held_bytes();
    options
}

/// Half of the memory that the system, and the control group of the process, can provide without swapping.
fn half_of_free_memory() -> Option<u64> {
    let text = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let groups = fs_err::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = left_in_groups(&groups, Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX);
    Some(kib.saturating_mul(1024).min(left) / 2)
}

/// Returns the memory that the control groups of a process leave it, of which each in the path may have a limit.
/// `groups` is its `/proc/self/cgroup`, of version 2 (`0::/PATH`) or 1 (`4:memory:/PATH`).
fn left_in_groups(groups: &str, root: &Path) -> Option<u64> {
    let number = |path: PathBuf| fs_err::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let (root, limit, used) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current"),
            _ if controllers.split(',').any(|own| own == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return None,
        };
        // In a container the path of the host is not there: its own group is the root.
        let folder = root.join(group);
        let folders = folder.ancestors().take_while(|folder| folder.starts_with(&root));
        let left = folders.filter_map(|folder| {
            // Pages of files that were read count as used, and are given back when memory is needed.
            let stat = fs_err::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let cached =
                stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
            let used = number(folder.join(used))?.saturating_sub(cached.unwrap_or_default());
            Some(number(folder.join(limit))?.saturating_sub(used))
        });
        left.min()
    };
    groups.lines().filter_map(left).min()
}

impl CutArgs {
    fn scoring(self, span: Span, rows: RowSelection) -> Scoring {
        Scoring {
            n_ctx: self.ctx.unwrap_or(DEFAULT_CTX),
            n_chunks: self.chunks,
            stride: self.stride,
            span,
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_control_group_bounds_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        let left = |groups: &str| left_in_groups(groups, dir.path());
        assert_eq!(left("0::/a/b\n"), None);
        write("a/memory.max", "1000\n");
        write("a/memory.current", "400\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "300\n");
        assert_eq!(left("0::/a/b\n"), Some(600));
        write("a/b/memory.max", "500\n");
        write("a/b/memory.stat", "anon 7\ninactive_file 100\n");
        assert_eq!(left("0::/a/b\n"), Some(300));
        write("memory/c/memory.limit_in_bytes", "50\n");
        write("memory/c/memory.usage_in_bytes", "60\n");
        assert_eq!(left("3:cpu:/\n4:cpuset,memory:/c\n0::/\n"), Some(0));
    }

    #[test]
    fn models_by_option_come_first() {
        let first = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let moved: Vec<String> =
                models_first(words).into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
            moved.join(" ")
        };
        assert_eq!(first("verify -f a.txt -m b.gguf -c 512"), "verify b.gguf -f a.txt -c 512");
        assert_eq!(first("verify imatrix -f a.txt --model b.gguf"), "verify imatrix b.gguf -f a.txt");
        assert_eq!(first("verify --model=b.gguf c.gguf"), "verify b.gguf c.gguf");
        assert_eq!(first("verify x -- -m y"), "verify x -- -m y");
        assert_eq!(first("verify -m"), "verify -m");
    }
}
