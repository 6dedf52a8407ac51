//! `gguf-verify`: may this file be shipped?

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::json;

use crate::arch::FileType;
use crate::arch::graph::GraphFeatures;
use crate::cli::render::{Align, Table};
use crate::cli::{Common, Exit, Session, Tool, UsageError};
use crate::convert::{Conversion, ConvertOptions};
use crate::core::TensorSource;
use crate::core::mmap::address_space_bytes;
use crate::core::progress::Progress;
use crate::core::text;
use crate::core::text::escape;
use crate::engine::{EngineOptions, Observer};
use crate::gguf::{GgufError, GgufFile, OpenOptions, Value, WriteOptions};
use crate::verify::{
    ImportanceOptions, Model, Position, Prompt, PromptSource, Report, Scoring, Severity, Span, Thresholds,
    Verdict, VerifyOptions, collect_importance, last_logits, read_prompts, verify,
};

/// Check a model file and say whether it may be shipped.
#[derive(Debug, Parser)]
#[command(
    name = "gguf-verify",
    version = crate::cli::version(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit codes: 0 pass, 3 broken or a threshold missed, 4 passed as far as it could be judged, 1 could not run"
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
    /// GGUF file (any part of a split model) or Hugging Face directory
    #[arg(required = true, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Text (one document) or `*.jsonl` (a prompt a line: text, tokens, prompt + completion, messages)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    prompts: Vec<PathBuf>,
    /// Compare with this GGUF file or Hugging Face directory
    #[arg(long, value_name = "REF")]
    baseline: Option<PathBuf>,
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
    /// Print mean, rms and first values of every intermediate of this layer
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

/// Where a model comes from.
enum Origin {
    Gguf(Box<GgufFile>),
    /// A checkpoint, converted as it is read.
    Checkpoint(Box<Conversion>),
}

/// A model with what belongs to it.
struct Opened {
    origin: Origin,
    features: Result<GraphFeatures, String>,
}

impl Opened {
    fn open(path: &Path, common: &Common) -> anyhow::Result<Self> {
        let origin = if path.is_dir() {
            // F32 holds the weights of any checkpoint exactly, and nothing is written.
            let file_type = Some(FileType::F32);
            let options = ConvertOptions { file_type, level: common.simd, ..ConvertOptions::default() };
            Origin::Checkpoint(Box::new(Conversion::plan(path, &options)?))
        } else {
            let options = OpenOptions { may_read: true, ..OpenOptions::default() };
            Origin::Gguf(Box::new(GgufFile::open_with(path, &options)?))
        };
        let metadata = match &origin {
            Origin::Gguf(file) => file.metadata(),
            Origin::Checkpoint(conversion) => conversion.metadata(),
        };
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let features =
            GraphFeatures::of(arch).ok_or_else(|| format!("architecture `{}` has no card", escape(arch)));
        Ok(Self { origin, features })
    }

    fn with<R>(&self, work: impl FnOnce(&Model<'_>) -> R) -> R {
        let template = |_: &serde_json::Value| Err("chat templates are not rendered yet".to_owned());
        let (source, metadata, file): (&dyn TensorSource, _, _) = match &self.origin {
            Origin::Gguf(file) => (&**file, file.metadata(), Some(&**file)),
            Origin::Checkpoint(conversion) => (&**conversion, conversion.metadata(), None),
        };
        work(&Model {
            source,
            metadata,
            file,
            features: self.features.as_ref().map_err(String::as_str),
            encoder: Err("text encoding is not built yet"),
            template: &template,
        })
    }

    /// Files that are read; an output must not replace them.
    fn inputs(&self) -> Vec<PathBuf> {
        match &self.origin {
            Origin::Gguf(file) => file.paths(),
            Origin::Checkpoint(conversion) => conversion.input_paths(),
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

fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<PromptSource>> {
    let mut prompts = Vec::new();
    for path in paths {
        prompts.extend(read_prompts(path)?);
    }
    Ok(prompts)
}

impl CutArgs {
    fn scoring(self, span: Span, every_row: bool) -> Scoring {
        Scoring { n_ctx: self.ctx, n_chunks: self.chunks, stride: self.stride, span, every_row }
    }
}

/// Prints the intermediates of one layer to standard error.
struct Trace<'a> {
    layer: usize,
    session: &'a Session,
}

impl Observer for Trace<'_> {
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        if layer != self.layer || x.is_empty() {
            return;
        }
        let n = x.len() as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let rms = (x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n).sqrt();
        let first: Vec<String> = x.iter().take(4).map(|v| format!("{v:.6}")).collect();
        self.session.progress.warn(&format!(
            "layer {layer} {name}: {} x {n_cols}, mean {mean:.6e}, rms {rms:.6e}, first {}",
            x.len() / n_cols.max(1),
            first.join(" ")
        ));
    }
}

impl VerifyArgs {
    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let path = self.model.as_deref().ok_or_else(|| UsageError("a model is required".to_owned()))?;
        if self.prompts.is_empty() && !self.structure_only {
            let message = "give `--prompts FILE`, or `--structure-only`".to_owned();
            return Err(UsageError(message).into());
        }
        let opened = match Opened::open(path, &session.common) {
            Ok(opened) => opened,
            // A header that cannot be read is a broken file; a file that cannot be opened is a failed run.
            Err(error) => match error.downcast_ref::<GgufError>() {
                None | Some(GgufError::Io(_)) => return Err(error),
                Some(_) => return broken(&error, session),
            },
        };
        let baseline = match &self.baseline {
            Some(path) => Some(Opened::open(path, &session.common).context("baseline")?),
            None => None,
        };
        let prompts = read_all(&self.prompts)?;
        let span = if self.score == Score::All { Span::All } else { Span::SecondHalf };
        let options = VerifyOptions {
            engine: engine_options(&session.common),
            scoring: self.cut.scoring(span, self.per_token.is_some()),
            thresholds: Thresholds {
                max_ppl: self.max_ppl,
                max_ppl_increase: self.max_ppl_increase,
                max_kld: self.max_kld,
                max_kld_99: self.max_kld_99,
                min_top1: self.min_top1,
            },
            structure_only: self.structure_only,
        };
        let trace = self.trace.map(|layer| Trace { layer, session });
        let observer = trace.as_ref().map(|trace| trace as &dyn Observer);
        let run = |model: &Model<'_>, baseline: Option<&Model<'_>>| {
            verify(model, baseline, &prompts, &options, &session.progress, observer)
        };
        let (report, encoded, positions) = opened.with(|model| match &baseline {
            None => run(model, None),
            Some(baseline) => baseline.with(|baseline| run(model, Some(baseline))),
        })?;
        if let Some(path) = &self.per_token {
            write_per_token(path, &encoded, &positions)?;
        }
        if session.common.json {
            session.print_json(&report.to_json())?;
        } else {
            session.print(|out| print(&report, out))?;
        }
        Ok(exit_of(report.verdict))
    }
}

fn exit_of(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Pass => Exit::Done,
        Verdict::Partial => Exit::Partial,
        Verdict::Fail => Exit::Broken,
    }
}

/// Reports a file whose header cannot be read.
fn broken(error: &anyhow::Error, session: &Session) -> anyhow::Result<Exit> {
    let message = crate::cli::render::error_line(error);
    if session.common.json {
        let finding = json!({ "check": "header", "severity": "error", "tensor": null, "message": message });
        session.print_json(&json!({ "verdict": "fail", "findings": [finding] }))?;
    } else {
        session.print(|out| writeln!(out, "error    header: {message}\nverdict  fail"))?;
    }
    Ok(Exit::Broken)
}

fn print(report: &Report, out: &mut dyn Write) -> std::io::Result<()> {
    for finding in &report.findings {
        let tensor = finding.tensor.as_ref().map(|name| format!(" `{}`", escape(name))).unwrap_or_default();
        writeln!(out, "{:<9} {}:{tensor} {}", finding.severity.name(), finding.check, finding.message)?;
    }
    if let Some(p) = &report.perplexity {
        writeln!(out, "perplexity    {:.4} ± {:.4} over {} tokens", p.value, p.stderr, p.tokens)?;
    }
    if let Some(bits) = report.bits_per_byte {
        writeln!(out, "bits per byte {bits:.4}")?;
    }
    if report.prompts.len() > 1 {
        let mut table = Table::new(&[
            ("prompt", Align::Right),
            ("perplexity", Align::Right),
            ("±", Align::Right),
            ("tokens", Align::Right),
        ]);
        for prompt in &report.prompts {
            let Some(p) = &prompt.perplexity else { continue };
            table.row([
                prompt.prompt.to_string(),
                format!("{:.4}", p.value),
                format!("{:.4}", p.stderr),
                p.tokens.to_string(),
            ]);
        }
        table.print(out)?;
    }
    if let Some(d) = &report.divergence {
        writeln!(
            out,
            "divergence    mean {:.6} ± {:.6}, median {:.6}",
            d.mean.value, d.mean.stderr, d.median
        )?;
        writeln!(out, "              99 % {:.6}, 99.9 % {:.6}, max {:.6}", d.p99, d.p999, d.max)?;
        writeln!(out, "same choice   {:.3} %", 100.0 * d.top1_agreement)?;
        writeln!(out, "rms Δp        {:.3} %", 100.0 * d.rms_dp)?;
        writeln!(
            out,
            "Δ ln(PPL)     {:.6} ± {:.6} (baseline {:.4})",
            d.delta_ln_ppl.value, d.delta_ln_ppl.stderr, d.baseline_ppl
        )?;
        for (worst, context) in d.worst.iter().zip(report.contexts.iter()) {
            writeln!(out, "  {:.4} prompt {} token {}: …{context}", worst.kld, worst.prompt, worst.at)?;
        }
    }
    if let Some(speed) = report.tokens_per_second {
        writeln!(out, "speed         {speed:.0} tokens/s")?;
    }
    let unchecked = report.findings.iter().filter(|f| f.severity == Severity::Unchecked).count();
    let rest = if unchecked > 0 { format!(" ({unchecked} not judged)") } else { String::new() };
    writeln!(out, "verdict       {}{rest}", report.verdict.name())
}

/// One line per prompt; positions that were not computed are `null`.
fn write_per_token(path: &Path, prompts: &[Prompt], positions: &[Position]) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(fs_err::File::create(path)?);
    for (at, prompt) in prompts.iter().enumerate() {
        let mut nll = vec![serde_json::Value::Null; prompt.tokens.len().saturating_sub(1)];
        for position in positions.iter().filter(|p| p.prompt == at) {
            if let Some(slot) = position.at.checked_sub(1).and_then(|at| nll.get_mut(at)) {
                *slot = json!(position.score.nll);
            }
        }
        serde_json::to_writer(&mut out, &json!({ "prompt": at, "tokens": prompt.tokens, "nll": nll }))?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

fn logits(args: &LogitsArgs, session: &Session) -> anyhow::Result<Exit> {
    let opened = Opened::open(&args.model, &session.common)?;
    let prompts = read_all(&args.prompts)?;
    let mut lines: Vec<u8> = Vec::new();
    let options = engine_options(&session.common);
    opened.with(|model| {
        last_logits(model, &prompts, &options, &session.progress, |prompt, logits| {
            let line = json!({ "prompt": prompt, "logits": logits });
            writeln!(lines, "{line}")?;
            Ok(())
        })
    })?;
    match &args.output {
        Some(path) => fs_err::write(path, &lines)?,
        None => session.print(|out| out.write_all(&lines))?,
    }
    Ok(Exit::Done)
}

fn imatrix(args: &ImatrixArgs, session: &Session) -> anyhow::Result<Exit> {
    let opened = Opened::open(&args.model, &session.common)?;
    let prompts = read_all(&args.prompts)?;
    let options = ImportanceOptions {
        engine: engine_options(&session.common),
        scoring: args.cut.scoring(Span::SecondHalf, false),
    };
    let importance = opened.with(|model| collect_importance(model, &prompts, &options, &session.progress))?;
    let dataset = args.prompts.first().map(|path| path.display().to_string()).unwrap_or_default();
    let sync = !session.common.no_sync;
    if args.legacy {
        importance.write_legacy(&args.output, &dataset, sync)?;
    } else {
        let write = WriteOptions { sync, inputs: opened.inputs(), ..WriteOptions::default() };
        importance.write(&args.output, &dataset, &write, &session.progress)?;
    }
    if !session.common.quiet {
        let size = fs_err::metadata(&args.output)?.len();
        session.print(|out| {
            writeln!(
                out,
                "{}: {} tensors, {} chunks of {}, {}",
                args.output.display(),
                importance.tensors.len(),
                importance.n_chunks,
                importance.chunk_size,
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
