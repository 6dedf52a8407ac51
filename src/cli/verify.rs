//! `gguf-verify`: may this file be shipped?

mod model;
mod per_token;
mod prompt_files;
mod report;
mod trace;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::json;

use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::verify::report::{ModelReport, PromptRows};
use crate::cli::verify::trace::Trace;
use crate::cli::{Common, Exit, Session, Tool, UsageError};
use crate::core::mmap::address_space_bytes;
use crate::core::output::{Destination, OutputFile, same_file};
use crate::core::progress::Progress;
use crate::core::text;
use crate::engine::{EngineOptions, Observer};
use crate::gguf::{GgufError, WriteOptions};
use crate::verify::{
    Finding, ImportanceOptions, Model, OriginTokenizer, Report, Rows, Scoring, Span, Thresholds, Verdict,
    Verification, VerifyError, VerifyOptions, collect_importance, last_logits, verify,
};

/// Check a model file and say whether it may be shipped.
#[derive(Debug, Parser)]
#[command(
    name = "gguf-verify",
    version = crate::cli::version(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "With `-v` the perplexity of every prompt is shown, however many there are.\n\nExit codes: 0 pass, 3 broken or a threshold missed, 4 passed as far as it could be judged, 1 could not run"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    verify: VerifyArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the logits after each prompt's last token as JSON lines
    Logits(LogitsArgs),
    /// Collect an importance matrix
    Imatrix(ImatrixArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Score {
    /// The second half of each chunk, as llama-perplexity
    Half,
    /// Every position
    All,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// GGUF files (any part of a split model) or Hugging Face directories; several end in a table
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Text (one document) or `*.jsonl` (a prompt a line: text, tokens, prompt + completion, messages)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    prompts: Vec<PathBuf>,
    /// Compare with this GGUF file or Hugging Face directory
    #[arg(long, value_name = "REF")]
    baseline: Option<PathBuf>,
    /// Compare the tokenizer with the one of this Hugging Face directory [default: the baseline, if it is one]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    #[command(flatten)]
    cut: CutArgs,
    /// Which positions of a chunk are scored
    #[arg(long, value_enum, default_value = "half")]
    score: Score,
    /// Write a JSON line per prompt: its tokens and their negative log likelihoods
    #[arg(long, value_name = "FILE")]
    per_token: Option<PathBuf>,
    /// Stop before any arithmetic
    #[arg(long)]
    structure_only: bool,
    /// Highest perplexity that passes
    #[arg(long, value_name = "PPL")]
    max_ppl: Option<f64>,
    /// Highest increase of the perplexity over the baseline's, as a share (0.02 is 2 %)
    #[arg(long, value_name = "SHARE")]
    max_ppl_increase: Option<f64>,
    /// Highest mean divergence [default: by bits per weight]
    #[arg(long, value_name = "KLD")]
    max_kld: Option<f64>,
    /// Highest 99th percentile of the divergence [default: by bits per weight]
    #[arg(long, value_name = "KLD")]
    max_kld_99: Option<f64>,
    /// Lowest share of tokens with the same first choice [default: by bits per weight]
    #[arg(long, value_name = "SHARE")]
    min_top1: Option<f64>,
    /// Print each intermediate of this layer, 0 the first, to standard error: its size, mean, rms and first four values
    #[arg(long, value_name = "LAYER")]
    trace: Option<usize>,
}

#[derive(Clone, Copy, Debug, Args)]
struct CutArgs {
    /// Tokens of a chunk
    #[arg(long, value_name = "N", default_value_t = 512)]
    ctx: usize,
    /// Chunks at most
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Start chunks this many tokens apart and score the last that many of each
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
}

#[derive(Debug, Args)]
struct LogitsArgs {
    /// GGUF file
    model: PathBuf,
    /// Prompts
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Where to write; standard output without it
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ImatrixArgs {
    /// GGUF file
    model: PathBuf,
    /// Text to collect from
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Where to write
    #[arg(short, value_name = "FILE", required = true)]
    output: PathBuf,
    /// The format before GGUF
    #[arg(long)]
    legacy: bool,
    #[command(flatten)]
    cut: CutArgs,
}

/// Entry of `gguf-verify`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    crate::cli::run::<Cli>()
}

/// The parser, for completions and manual pages.
#[cfg(any(feature = "packaging", test))]
pub(crate) fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

impl Tool for Cli {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(Command::Logits(args)) => logits(args, session),
            Some(Command::Imatrix(args)) => imatrix(args, session),
            None => self.verify.run(session),
        }
    }
}

fn engine_options(common: &Common) -> EngineOptions {
    let mut options = EngineOptions { level: common.simd, ..EngineOptions::default() };
    if let Some(n) = common.threads {
        options.n_threads = n.into();
    }
    let free = half_of_free_memory().unwrap_or(options.memory_bytes);
    // Of a limited address space threads and the system's libraries need their part.
    let allowed = address_space_bytes().map_or(u64::MAX, |bytes| bytes / 4);
    options.memory_bytes = common.memory.unwrap_or(free.min(allowed));
    options
}

/// Half of the memory that the system could give without swapping.
fn half_of_free_memory() -> Option<u64> {
    let text = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(512))
}

impl CutArgs {
    fn scoring(self, span: Span, rows: Rows) -> Scoring {
        Scoring { n_ctx: self.ctx, n_chunks: self.chunks, stride: self.stride, span, rows }
    }
}

/// Refuses to write over a file that is read.
fn refuse_input<'p>(output: &Path, inputs: impl IntoIterator<Item = &'p PathBuf>) -> anyhow::Result<()> {
    match inputs.into_iter().find(|input| same_file(output, input)) {
        Some(_) => Err(UsageError(format!("{}: an input cannot be the output", output.display())).into()),
        None => Ok(()),
    }
}

/// A baseline that cannot be opened says nothing about the model: the run fails, whatever is wrong with it.
fn open_baseline(path: &Path, common: &Common) -> anyhow::Result<OpenedModel> {
    OpenedModel::open(path, common)
        .map_err(|error| anyhow::anyhow!("baseline: {}", crate::cli::render::error_line(&error)))
}

impl VerifyArgs {
    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let usage = |message: &str| Err(UsageError(message.to_owned()).into());
        if self.prompts.is_empty() && !self.structure_only {
            return usage("give `--prompts FILE`, or `--structure-only`");
        }
        if self.models.len() > 1 && (self.per_token.is_some() || self.trace.is_some()) {
            return usage("`--per-token` and `--trace` take one model");
        }
        if let Some(out) = &self.per_token {
            Destination::of(out)?;
            refuse_input(out, self.models.iter().chain(&self.prompts).chain(&self.baseline))?;
        }
        let baseline = match &self.baseline {
            Some(path) => Some(open_baseline(path, &session.common)?),
            None => None,
        };
        let origin = self.origin()?;
        let prompts = PromptFiles::read(&self.prompts)?;
        let mut entries = Vec::new();
        for path in &self.models {
            entries.push(self.verify(path, baseline.as_ref(), origin.as_ref(), &prompts, session)?);
        }
        if session.common.json {
            session.print_json(&report::to_json(&entries))?;
        } else {
            let rows = if session.common.verbose > 0 { PromptRows::All } else { PromptRows::Few };
            session.print(|out| report::print(&entries, out, rows))?;
        }
        Ok(exit_of(report::verdict(&entries)))
    }

    /// The tokenizer to compare with: of the source, else of a baseline that is a checkpoint with a tokenizer.
    fn origin(&self) -> anyhow::Result<Option<OriginTokenizer>> {
        match (&self.source, &self.baseline) {
            (Some(path), _) => Ok(Some(OriginTokenizer::open(path)?.with_keys(path))),
            (None, Some(path)) if path.is_dir() => match OriginTokenizer::open(path) {
                Err(VerifyError::NoOriginTokenizer { .. }) => Ok(None),
                other => Ok(Some(other?)),
            },
            _ => Ok(None),
        }
    }

    fn verify(
        &self,
        path: &Path,
        baseline: Option<&OpenedModel>,
        origin: Option<&OriginTokenizer>,
        prompts: &PromptFiles,
        session: &Session,
    ) -> anyhow::Result<ModelReport> {
        let opened = match OpenedModel::open(path, &session.common) {
            Ok(opened) => opened,
            // A header that cannot be read is a broken file; a file that cannot be opened is a failed run.
            Err(error) => match error.downcast_ref::<GgufError>() {
                None | Some(GgufError::Io(_)) => return Err(error),
                Some(_) => {
                    let report = Report::unreadable(crate::cli::render::error_line(&error));
                    let size_bytes = fs_err::metadata(path).ok().map(|file| file.len());
                    return Ok(ModelReport { path: path.to_owned(), size_bytes, file_type: None, report });
                }
            },
        };
        let span = match self.score {
            Score::Half => Span::SecondHalf,
            Score::All => Span::All,
        };
        let rows = if self.per_token.is_some() { Rows::All } else { Rows::Scored };
        let options = VerifyOptions {
            engine: engine_options(&session.common),
            scoring: self.cut.scoring(span, rows),
            thresholds: Thresholds {
                max_ppl: self.max_ppl,
                max_ppl_increase: self.max_ppl_increase,
                max_kld: self.max_kld,
                max_kld_99: self.max_kld_99,
                min_top1: self.min_top1,
            },
            structure_only: self.structure_only,
        };
        let trace = self.trace.map(|layer| Trace::new(layer, session));
        let observer = trace.as_ref().map(|trace| trace as &dyn Observer);
        let run = |model: &Model<'_>, baseline: Option<&Model<'_>>| {
            verify(model, baseline, prompts.sources(), &options, &session.progress, observer)
        };
        let verification = opened.with(origin, |model| match baseline {
            None => run(model, None),
            Some(baseline) => baseline.with(None, |baseline| run(model, Some(baseline))),
        })?;
        let Verification { mut report, prompts: encoded, positions, unreached } = verification;
        report
            .extend(prompts.unreached(&unreached).into_iter().map(|text| Finding::warning("prompts", text)));
        report.extend(trace.and_then(|trace| trace.missed()).map(|text| Finding::warning("trace", text)));
        if let Some(other) = &self.baseline
            && same_file(path, other)
        {
            report.add(Finding::warning("baseline", "the baseline is the model itself"));
        }
        if let Some(out) = &self.per_token {
            per_token::write(out, &encoded, &positions, !session.common.no_sync)?;
        }
        let (size_bytes, file_type) = (opened.size_bytes(), opened.file_type());
        Ok(ModelReport { path: path.to_owned(), size_bytes, file_type, report })
    }
}

fn exit_of(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Pass => Exit::Done,
        Verdict::Partial => Exit::Partial,
        Verdict::Fail => Exit::Broken,
    }
}

fn logits(args: &LogitsArgs, session: &Session) -> anyhow::Result<Exit> {
    // Before the work, not after it.
    args.output.as_deref().map(Destination::of).transpose()?;
    let opened = OpenedModel::open(&args.model, &session.common)?;
    if let Some(path) = &args.output {
        refuse_input(path, args.prompts.iter().chain(&opened.inputs()))?;
    }
    let prompts = PromptFiles::read(&args.prompts)?;
    let mut lines: Vec<u8> = Vec::new();
    let options = engine_options(&session.common);
    opened.with(None, |model| {
        last_logits(model, prompts.sources(), &options, &session.progress, |prompt, logits| {
            let line = json!({ "prompt": prompt, "logits": logits });
            writeln!(lines, "{line}")?;
            Ok(())
        })
    })?;
    match &args.output {
        Some(path) => OutputFile::write(path, &lines, !session.common.no_sync)?,
        None => session.print(|out| out.write_all(&lines))?,
    }
    Ok(Exit::Done)
}

fn imatrix(args: &ImatrixArgs, session: &Session) -> anyhow::Result<Exit> {
    Destination::of(&args.output)?;
    let opened = OpenedModel::open(&args.model, &session.common)?;
    refuse_input(&args.output, args.prompts.iter().chain(&opened.inputs()))?;
    let prompts = PromptFiles::read(&args.prompts)?;
    let options = ImportanceOptions {
        engine: engine_options(&session.common),
        scoring: args.cut.scoring(Span::SecondHalf, Rows::Scored),
    };
    let importance = opened
        .with(None, |model| collect_importance(model, prompts.sources(), &options, &session.progress))?;
    for warning in importance.warnings.iter().chain(&prompts.unreached(&importance.unreached)) {
        session.progress.warn(warning);
    }
    let dataset = prompts.first().map(|path| path.display().to_string()).unwrap_or_default();
    let sync = !session.common.no_sync;
    let write = WriteOptions { sync, inputs: opened.inputs(), ..WriteOptions::default() };
    let sums = &importance.sums;
    if args.legacy {
        sums.write_legacy(&args.output, &dataset, &write)?;
    } else {
        sums.write(&args.output, &dataset, &write, &session.progress)?;
    }
    let size = fs_err::metadata(&args.output)?.len();
    if session.common.json {
        let perplexity = importance
            .perplexity
            .as_ref()
            .map(|p| json!({ "value": p.value, "stderr": p.stderr, "tokens": p.tokens }));
        session.print_json(&json!({
            "file": args.output.display().to_string(), "file_bytes": size, "tensors": sums.tensors.len(),
            "chunks": sums.n_chunks, "chunk_tokens": sums.chunk_size, "perplexity": perplexity,
        }))?;
    } else if !session.common.quiet {
        session.print(|out| {
            writeln!(
                out,
                "{}: {} tensors, {} chunks of {}, {}",
                args.output.display(),
                sums.tensors.len(),
                sums.n_chunks,
                sums.chunk_size,
                text::bytes(size)
            )?;
            match &importance.perplexity {
                Some(p) => writeln!(out, "perplexity {:.4} ± {:.4}", p.value, p.stderr),
                None => Ok(()),
            }
        })?;
    }
    Ok(Exit::Done)
}
