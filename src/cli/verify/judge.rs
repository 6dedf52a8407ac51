//! The verification itself: files, a baseline and prompts to verdicts.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::verify::report::{ModelReport, PromptRows};
use crate::cli::verify::trace::Trace;
use crate::cli::verify::{CutArgs, engine_options, per_token, refuse_input, report};
use crate::cli::{Common, Exit, Session, UsageError};
use crate::core::output::{Destination, same_file};
use crate::engine::Observer;
use crate::gguf::GgufError;
use crate::verify::{
    Finding, Model, OriginTokenizer, Report, Rows, Span, Thresholds, Verdict, Verification, VerifyError,
    VerifyOptions, verify,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Score {
    /// The second half of each chunk, as llama-perplexity
    Half,
    /// Every position
    All,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// GGUF files (any part of a split model) or Hugging Face directories; several end in a table
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Text (one document), or JSON: an array, or a prompt a line (a text, or text, tokens, prompt + completion, messages); several files share the chunks
    #[arg(long, value_name = "FILE", num_args = 1..)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long, requires = "prompts")]
    plain_text: bool,
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

/// A baseline that cannot be opened says nothing about the model: the run fails, whatever is wrong with it.
fn open_baseline(path: &Path, common: &Common) -> anyhow::Result<OpenedModel> {
    OpenedModel::open(path, common)
        .map_err(|error| anyhow::anyhow!("baseline: {}", crate::cli::render::error_line(&error)))
}

impl VerifyArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
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
        let prompts = PromptFiles::read(&self.prompts, self.plain_text)?;
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
            files: prompts.files(),
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
        let chunks: Vec<usize> = report.prompt_files.iter().map(|file| file.chunks).collect();
        let unread = prompts.unreached(&unreached, &chunks);
        report.extend(unread.into_iter().map(|text| Finding::warning("prompts", text)));
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
