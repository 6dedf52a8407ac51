//! Verification of models: from files, a baseline and prompts to verdicts.

mod outputs;
mod part;
mod refused;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};

use outputs::Outputs;

use crate::cli::failure::Failure;
use crate::cli::remote::{ModelDirectory, RemoteArgs};
use crate::cli::verify::against::Earlier;
use crate::cli::verify::details::Details;
use crate::cli::verify::limits::{LimitArgs, OtherLimitArgs};
use crate::cli::verify::model::{ConvertedBaseline, OpenedModel};
use crate::cli::verify::page::Reports;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::verify::report::{Detail, ModelReport, VerifyDocument};
use crate::cli::verify::tasks::TaskArgs;
use crate::cli::verify::trace::Trace;
use crate::cli::verify::{CutArgs, engine_options, pairs, printout, report};
use crate::cli::{Common, Exit, Session, UsageError, is_interrupted, render};
use crate::convert::{ConvertOptions, registry};
use crate::core::Hint;
use crate::core::output::{Destination, OutputKind, same_file};
use crate::core::text::{escape, shell_path, shell_word};
use crate::engine::Observer;
use crate::gguf::{GgufError, Imatrix, Metadata, Share, Value};
use crate::job::Guard;
use crate::verify::{
    Check, Extras, Finding, LogitFile, LogitFileSize, Model, OriginTokenizer, Report, RowSelection,
    SaveLogits, Span, TaskSet, Thresholds, Verdict, Verification, VerifyError, VerifyOptions, verify_with,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Score {
    /// The second half of each chunk, as llama-perplexity
    Half,
    /// Every position
    All,
}

#[derive(Clone, Debug, Args)]
pub(super) struct VerifyArgs {
    /// GGUF files (any part of a split model) or Hugging Face directories; several are compared in a table
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Text (one document), or JSON: an array, or a prompt a line (a text, or text, tokens, prompt + completion,
    /// messages); several files share the chunks
    #[arg(short = 'f', long, alias = "file", value_name = "FILE", num_args = 1..)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long, requires = "prompts")]
    plain_text: bool,
    /// Compare with this GGUF file, Hugging Face directory (here, or with `--cache` on a server), or logit file (whose
    /// text is scored, without `--prompts`)
    #[arg(long, value_name = "REF")]
    baseline: Option<PathBuf>,
    /// Merge this LoRA adapter into the baseline, the directory of its base model: to check a file of `merge-lora`
    #[arg(long, value_name = "DIR", requires = "baseline")]
    adapter: Option<PathBuf>,
    /// Fetch a baseline or a source that is on a server (ORG/NAME, https://HOST/DIR), check its files,
    /// and keep them in this directory, laid out as the hub's own cache
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Keep the log-probabilities of the baseline, or of the model without one, for `--baseline` and llama-perplexity
    #[arg(long, value_name = "FILE", conflicts_with = "structure_only")]
    save_baseline: Option<PathBuf>,
    /// Compare the tokenizer with the one of this Hugging Face directory [default: the baseline, if it is one]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Importance matrix that the models were quantized with: what it makes of the baseline, byte for byte, counts as
    /// identical, and such a file needs no reference copy
    #[arg(long, value_name = "FILE", requires = "baseline", conflicts_with_all = ["structure_only", "part"])]
    imatrix: Option<PathBuf>,
    /// Use an architecture card from a file, or those of a directory: its `[graph]` describes the computation of a new
    /// architecture
    #[arg(long, value_name = "FILE")]
    card: Option<PathBuf>,
    #[command(flatten)]
    cut: CutArgs,
    /// Positions of a chunk that are scored
    #[arg(long, value_enum, default_value = "half", conflicts_with = "stride")]
    score: Score,
    /// Write a JSON line per model and prompt: its tokens, their losses, and the tokens that the models predict
    #[arg(long, value_name = "FILE")]
    per_token: Option<PathBuf>,
    /// Write a report, by suffix: `.html` (a page), `.md` (for a model card), `.json`, `.csv`; may be repeated
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Write the verdicts as test cases of JUnit, for systems that build and test
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Fail a file that is worse than in this report of an earlier run (`--json`, or `--report FILE.json`) by more than the
    /// error of the figure: the mean KLD, or the perplexity without a baseline
    #[arg(long, value_name = "REPORT", conflicts_with_all = ["structure_only", "weights_only", "part"])]
    against: Option<PathBuf>,
    /// Title of the reports [default: the model's name]
    #[arg(long, value_name = "TEXT", requires = "report")]
    title: Option<String>,
    /// Stop before any arithmetic
    #[arg(long, conflicts_with_all = ["prompts", "plain_text", "limits", "other-limits", "per_token", "trace", "score",
        "ctx", "chunks", "stride"])]
    structure_only: bool,
    /// Exit with 0 instead of 4 if not everything could be judged
    #[arg(long)]
    accept_partial: bool,
    /// Compare the weights with the baseline's and stop: needs no prompts and no graph
    #[arg(
        long,
        requires = "baseline",
        conflicts_with_all = ["structure_only", "prompts", "source", "per_token", "save_baseline", "trace",
            "hellaswag", "winogrande", "multiple_choice", "score", "ctx", "chunks", "stride",
            "limits", "other-limits"]
    )]
    weights_only: bool,
    /// Keep the models and the baseline in memory while they are compared (GGUF files only)
    #[arg(long, conflicts_with = "structure_only")]
    mlock: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    other_limits: OtherLimitArgs,
    /// Print each intermediate of this layer, 0 the first, to standard error: its size, mean, rms and first four values
    #[arg(long, value_name = "LAYER")]
    trace: Option<usize>,
    /// Run the I-th of N shares of the chunks and write what it measured, to `-o`; `gguf-verify combine` gives the
    /// verdict of all shares. All runs make the same plan and are independent
    #[arg(long, value_name = "I/N", requires = "output")]
    part: Option<Share>,
    /// With --part: file to write
    #[arg(short, value_name = "FILE", requires = "part")]
    output: Option<PathBuf>,
    #[command(flatten)]
    tasks: TaskArgs,
}

/// Number of layers that a file declares.
fn n_layers(metadata: &Metadata) -> Option<u64> {
    let arch = metadata.get("general.architecture")?.as_str()?;
    metadata.get(&format!("{arch}.block_count"))?.as_u64()
}

/// Opens the baseline. Any failure fails the run: a baseline that cannot be opened is no finding about the model.
fn open_baseline(
    models: &[PathBuf],
    baseline: (&Path, Option<&Path>),
    common: &Common,
    lock: bool,
) -> anyhow::Result<OpenedModel> {
    OpenedModel::open_baseline(models, baseline, common, lock)
        .map_err(|error| render::ErrorOf::new("baseline", &error).into())
}

impl VerifyArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        if let Some(card) = &self.card {
            registry(&ConvertOptions { card: Some(card.clone()), ..ConvertOptions::default() })?.install();
        }
        let remote = RemoteArgs::of_cache(self.cache());
        let baseline = remote.kept(session, "--baseline", self.baseline.as_deref())?;
        let source = remote.kept(session, "--source", self.source.as_deref())?;
        remote.check_use(baseline.iter().chain(&source))?;
        // Temporary directories that represent models on servers are removed when these values are dropped.
        let path = |directory: &Option<ModelDirectory>| directory.as_ref().map(|own| own.path().to_owned());
        let here = Self { baseline: path(&baseline), source: path(&source), ..self.clone() };
        if let (Some(share), Some(output)) = (here.part, &here.output) {
            return here.judge_share(share, output, session);
        }
        here.judge(self.baseline.as_deref(), session, &mut |_, _| Ok(()), |entries, failures| {
            here.show(entries, failures, session)
        })
    }

    /// Measures a share and writes it, once all inputs are on this machine.
    fn judge_share(&self, share: Share, output: &Path, session: &Session) -> anyhow::Result<Exit> {
        let tasks = self.tasks.read()?;
        let logits = self.logit_file()?;
        self.check_use(!tasks.is_empty(), logits.as_ref())?;
        self.check_lock()?;
        let guard = self.guard(session)?;
        self.check_part(!tasks.is_empty(), logits.is_some())?;
        self.run_part(share, output, guard, session)
    }

    #[cfg(feature = "remote")]
    fn cache(&self) -> Option<PathBuf> {
        self.cache.clone()
    }

    #[cfg(not(feature = "remote"))]
    #[expect(clippy::unused_self, reason = "there is none without a network")]
    fn cache(&self) -> Option<PathBuf> {
        None
    }

    /// Verifies once all inputs are on this machine, and hands out the verdicts and the models that could not be
    /// judged. `named` is the baseline as given on the command line; `each` receives every verdict at once, with the
    /// number of the model from 0.
    pub(super) fn judge<T>(
        &self,
        named: Option<&Path>,
        session: &Session,
        each: &mut dyn FnMut(usize, &ModelReport) -> anyhow::Result<()>,
        take: impl FnOnce(&[ModelReport], &[(PathBuf, anyhow::Error)]) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let tasks = self.tasks.read()?;
        let logits = self.logit_file()?;
        self.check_use(!tasks.is_empty(), logits.as_ref())?;
        self.check_lock()?;
        let mut guard = self.guard(session)?;
        let reports = Reports::of(&self.report, self.junit.as_deref(), &mut guard)?;
        let earlier = self.against.as_deref().map(Earlier::open).transpose()?;
        self.check_models()?;
        let baseline = match self.reference() {
            Some(reference) if logits.is_none() => {
                Some(open_baseline(&self.models, reference, &session.common, self.mlock)?)
            }
            _ => None,
        };
        let baseline = baseline.map(|baseline| baseline.with_recall(self.models.len()));
        let mut read = self.inputs(baseline.as_ref());
        read.iter().try_for_each(|(role, path)| guard.read(role, path))?;
        let origin = self.origin()?;
        let imatrix = self.imatrix.as_deref().map(Imatrix::open).transpose()?;
        let prompts = self.text(!tasks.is_empty(), logits.is_some())?;
        let job = JudgeInputs {
            baseline: baseline.as_ref(),
            origin: origin.as_ref(),
            logits: logits.as_ref(),
            imatrix: imatrix.as_ref(),
            prompts: &prompts,
            tasks: &tasks,
            reports: &reports,
            session,
        };
        let mut outputs = Outputs::begin(self)?;
        let mut alike = ConvertedBaseline::default();
        let (mut entries, mut failures) = (Vec::new(), Vec::new());
        for (number, path) in self.models.iter().enumerate() {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            session.progress.restart(&escape(&name), number + 1, self.models.len());
            match self.verify(path, &job, &mut alike, &mut outputs, &mut guard) {
                Ok(mut model) => {
                    read.extend(model.inputs.drain(..).map(|path| ("model", path)));
                    each(number, &model)?;
                    entries.push(model);
                }
                Err(error) => {
                    failures.push((path.clone(), error));
                    if is_interrupted() {
                        break;
                    }
                }
            }
        }
        // Verdicts of other files are shown even if some files failed.
        if let Some(at) = (0..failures.len()).next().filter(|_| entries.is_empty()) {
            return Err(failures.swap_remove(at).1);
        }
        if let Some(earlier) = &earlier {
            let is_alone = entries.len() + failures.len() == 1;
            for entry in &mut entries {
                let findings = earlier.findings(entry, is_alone);
                entry.report.extend(findings);
            }
        }
        outputs.commit(session)?;
        reports.write((&entries, &failures), named, self.title.as_deref(), &read, session)?;
        take(&entries, &failures)
    }

    /// Shows the verdicts, then the files that failed. Returns the exit code.
    fn show(
        &self,
        entries: &[ModelReport],
        failures: &[(PathBuf, anyhow::Error)],
        session: &Session,
    ) -> anyhow::Result<Exit> {
        if session.common.json {
            session.print_json(&VerifyDocument::new(entries, failures))?;
        } else {
            let detail = if session.common.verbose > 0 { Detail::Full } else { Detail::Brief };
            session.print(|out| printout::print(entries, !failures.is_empty(), out, detail))?;
        }
        let n_left = self.models.len() - entries.len() - failures.len();
        if n_left > 0 {
            let (n, all) = (entries.len(), self.models.len());
            session.note(&format!("{n} of {all} files were judged, as shown; give the others again"));
        }
        let failed = failures.iter().filter_map(|(path, error)| {
            let name = path.display().to_string();
            Failure::of(error).map(|failure| failure.about(&escape(&name)).tell(false))
        });
        let exits: Vec<Exit> = failed.collect();
        Ok(exits.into_iter().next().unwrap_or_else(|| self.exit(report::verdict(entries, false))))
    }

    /// Returns the text to run: the built-in one if no prompts, tasks or logit file are given.
    fn text(&self, has_tasks: bool, has_logits: bool) -> Result<PromptFiles, VerifyError> {
        let is_given = !self.prompts.is_empty() || has_tasks || has_logits;
        if is_given || self.structure_only || self.weights_only {
            return PromptFiles::read(&self.prompts, self.plain_text);
        }
        Ok(PromptFiles::builtin())
    }

    /// Opens every model once, so that a mistake in the last name is reported before the first is judged.
    fn check_models(&self) -> anyhow::Result<()> {
        for path in &self.models {
            if fs_err::metadata(path)?.is_file() {
                fs_err::File::open(path)?;
            }
        }
        Ok(())
    }

    /// Checks outputs against inputs as far as the arguments name them; a checkpoint may have files elsewhere.
    fn guard<'s>(&self, session: &'s Session) -> anyhow::Result<Guard<'s>> {
        let mut guard = Guard::new(&session.progress, false);
        self.models.iter().try_for_each(|path| guard.model("a model", path))?;
        self.baseline.iter().try_for_each(|path| guard.model("the baseline", path))?;
        guard.read_all("the prompts", &self.prompts)?;
        guard.read_all("tasks", self.tasks.inputs())?;
        guard.read_all("the source", &self.source)?;
        guard.read_all("the earlier report", &self.against)?;
        guard.read_all("the card", &self.card)?;
        guard.read_all("the importance matrix", &self.imatrix)?;
        guard.read_all("the adapter", &self.adapter)?;
        let tables = [
            ("--per-token", &self.per_token, OutputKind::PerToken),
            ("--save-baseline", &self.save_baseline, OutputKind::LogitFile),
            ("-o", &self.output, OutputKind::VerificationPart),
        ];
        for (option, path, kind) in tables {
            if let Some(path) = path {
                Destination::of(path)?;
                guard.write(option, path, kind)?;
            }
        }
        Ok(guard)
    }

    /// Returns the files that are read in addition to the models, each with its role.
    fn inputs(&self, baseline: Option<&OpenedModel>) -> Vec<(&'static str, PathBuf)> {
        let logits = self.baseline.iter().filter(|_| baseline.is_none()).cloned().collect();
        let baseline = baseline.map_or(logits, OpenedModel::inputs);
        let prompts = self.prompts.iter().map(|path| ("prompts", path.clone()));
        let tasks = self.tasks.inputs().map(|path| ("tasks", path.clone()));
        let imatrix = self.imatrix.iter().map(|path| ("imatrix", path.clone()));
        let names = ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"];
        let source = self.source.iter().flat_map(|dir| names.map(|name| dir.join(name)));
        let source = source.filter(|path| path.is_file()).map(|path| ("source", path));
        let baseline = baseline.into_iter().map(|path| ("baseline", path));
        prompts.chain(tasks).chain(imatrix).chain(baseline).chain(source).collect()
    }

    /// Returns the baseline and the adapter that is merged into it.
    fn reference(&self) -> Option<(&Path, Option<&Path>)> {
        Some((self.baseline.as_deref()?, self.adapter.as_deref()))
    }

    /// Opens the baseline if it is a logit file.
    fn logit_file(&self) -> anyhow::Result<Option<LogitFile>> {
        match &self.baseline {
            Some(path) if LogitFile::is_one(path)? => Ok(Some(LogitFile::open(path).context("baseline")?)),
            _ => Ok(None),
        }
    }

    /// Returns the tokenizer to compare with: the one of the source, else of a baseline that is a checkpoint with a
    /// tokenizer.
    fn origin(&self) -> anyhow::Result<Option<OriginTokenizer>> {
        match (&self.source, &self.baseline) {
            (Some(path), _) => Ok(Some(OriginTokenizer::of_source(path)?)),
            (None, Some(path)) if path.is_dir() => {
                // An adapter's own tokenizer takes the place of its base model's.
                for dir in self.adapter.iter().chain([path]) {
                    match OriginTokenizer::of_baseline(dir) {
                        Err(VerifyError::NoOriginTokenizer { .. }) => {}
                        other => return Ok(Some(other?)),
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn verify(
        &self,
        path: &Path,
        job: &JudgeInputs<'_>,
        alike: &mut ConvertedBaseline,
        outputs: &mut Outputs<'_>,
        guard: &mut Guard<'_>,
    ) -> anyhow::Result<ModelReport> {
        let &JudgeInputs { baseline, origin, logits, imatrix, prompts, tasks, reports, session } = job;
        let opened = match OpenedModel::open_with(path, &session.common, self.mlock) {
            Ok(opened) => opened,
            // A header that cannot be parsed is a broken file. A file that cannot be opened is a failed run.
            Err(error) => match error.downcast_ref::<GgufError>() {
                None => return Err(error),
                Some(refused) if refused.is_unread() => return Err(error),
                Some(refused) => {
                    let line = crate::cli::render::error_line(&error);
                    let line = [vec![line], refused.hints()].concat().join("; ");
                    let report = Report::unreadable(line);
                    let size_bytes = Some(fs_err::metadata(path)?.len());
                    let inputs = vec![path.to_owned()];
                    let path = path.to_owned();
                    return Ok(ModelReport {
                        size_bytes,
                        inputs,
                        ..ModelReport::new(path, report, Vec::new())
                    });
                }
            },
        };
        guard.read_all("a model", opened.inputs())?;
        baseline.map_or(Ok(()), |baseline| opened.must_be_of_the_kind_of(baseline))?;
        let alike = alike.of(self.reference(), &opened, baseline, self.models.len(), session);
        let baseline = alike.or(baseline);
        let options = VerifyOptions { importance: imatrix, ..self.options(prompts, session) };
        let trace = self.trace.map(|layer| Trace::new(layer, session));
        if let (Some(layer), Some(n_layers)) = (self.trace, n_layers(opened.metadata()))
            && layer as u64 >= n_layers
        {
            let name = escape(&path.display().to_string()).into_owned();
            let last = n_layers.saturating_sub(1);
            return Err(UsageError(format!("`--trace {layer}`: {name} has layers 0 to {last}")).into());
        }
        let observer = trace.as_ref().map(|trace| trace as &dyn Observer);
        let announce = |size: &LogitFileSize| outputs.announce(size, session);
        let save =
            outputs.save.map(|path| SaveLogits { path, sync: !session.common.no_sync, announce: &announce });
        let extras = Extras { logits, save, tasks };
        let run = |model: &Model<'_>, baseline: Option<&Model<'_>>| {
            verify_with(model, baseline, prompts.sources(), &options, &extras, &session.progress, observer)
        };
        let verification = opened.with(origin, |model| match baseline {
            None => run(model, None),
            Some(baseline) => baseline.with(None, |baseline| run(model, Some(baseline))),
        })?;
        let details =
            (!reports.is_empty()).then(|| opened.with(None, |model| Details::of(model, &verification)));
        let Verification { mut report, prompts: encoded, positions, unreached, has_saved } = verification;
        let chunks: Vec<usize> = report.prompt_files.iter().map(|file| file.chunks).collect();
        let unread = prompts.unreached(&unreached, &chunks);
        report.extend(unread.into_iter().map(|text| Finding::warning(Check::Prompts, text)));
        report
            .extend(trace.and_then(|trace| trace.missed()).map(|text| Finding::warning(Check::Trace, text)));
        if let Some(other) = &self.baseline
            && same_file(path, other)
        {
            report.own_baseline();
        }
        outputs.take(path, opened.encoder(), &encoded, &positions)?;
        if has_saved {
            outputs.save = None;
        }
        let (size_bytes, file_type) = (opened.size_bytes(), opened.file_type());
        let inputs = opened.inputs();
        let next = self.with_baseline(path, opened.metadata(), &report);
        let losses = if self.models.len() > 1 { pairs::losses(&positions) } else { Vec::new() };
        Ok(ModelReport {
            path: path.to_owned(),
            size_bytes,
            file_type,
            report,
            details,
            inputs,
            next,
            losses,
        })
    }

    /// Returns the command that judges a file which lacks a baseline: against its checkpoint, by the hub name if the file
    /// declares one.
    fn with_baseline(&self, path: &Path, metadata: &Metadata, report: &Report) -> Option<String> {
        let is_wanted = report.coverage.open().any(|open| open.remedy.contains("`--baseline`"));
        if !is_wanted || self.baseline.is_some() || self.structure_only || path.is_dir() {
            return None;
        }
        let hub = ["general.source.repo_url", "general.repo_url"].into_iter().find_map(|key| {
            metadata.get(key).and_then(Value::as_str)?.strip_prefix("https://huggingface.co/")
        });
        let baseline = match hub {
            Some(name) => format!("{} --cache DIR", shell_word(name)),
            None => "DIRECTORY_OF_ITS_CHECKPOINT".to_owned(),
        };
        Some(format!("gguf-verify {} --baseline {baseline}", shell_path(&path.to_string_lossy())))
    }

    fn thresholds(&self) -> Thresholds {
        self.other_limits.thresholds().or(self.limits.thresholds())
    }

    fn options<'p>(&self, prompts: &'p PromptFiles, session: &Session) -> VerifyOptions<'p> {
        let span = match self.score {
            // The built-in text is short: every token counts.
            Score::Half if prompts.is_builtin() => Span::All,
            Score::Half => Span::SecondHalf,
            Score::All => Span::All,
        };
        let rows = if self.per_token.is_some() { RowSelection::All } else { RowSelection::Scored };
        VerifyOptions {
            engine: engine_options(&session.common),
            scoring: self.cut.scoring(span, rows),
            files: prompts.files(),
            thresholds: self.thresholds(),
            structure_only: self.structure_only,
            weights_only: self.weights_only,
            ..VerifyOptions::default()
        }
    }

    fn exit(&self, verdict: Verdict) -> Exit {
        match verdict {
            Verdict::Pass => Exit::Done,
            Verdict::Partial if self.accept_partial => Exit::Done,
            Verdict::Partial => Exit::Partial,
            Verdict::Fail => Exit::Broken,
        }
    }
}

/// Inputs that all models are judged with.
#[derive(Clone, Copy)]
struct JudgeInputs<'a> {
    baseline: Option<&'a OpenedModel>,
    origin: Option<&'a OriginTokenizer>,
    logits: Option<&'a LogitFile>,
    imatrix: Option<&'a Imatrix>,
    prompts: &'a PromptFiles,
    tasks: &'a [TaskSet],
    reports: &'a Reports,
    session: &'a Session,
}
