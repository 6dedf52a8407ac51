//! `gguf-verify imatrix MODEL`: runs a text and collects an importance matrix.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::verify::imatrix::contents::MatrixContents;
use crate::cli::verify::imatrix::coverage;
use crate::cli::verify::imatrix::save::{CollectRun, MatrixOutput, SaveFrequency};
use crate::cli::verify::model::OpenedModel;
use crate::cli::verify::prompt_files::PromptFiles;
use crate::cli::verify::{CutArgs, engine_options};
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::{Destination, OutputKind};
use crate::core::progress::Progress;
use crate::core::text;
use crate::core::text::{escape, plural};
use crate::core::written::as_path;
use crate::gguf::{ImatrixSums, Share, StoredImatrix, merge_imatrices};
use crate::job::Guard;
use crate::verify::{
    Collected, ExpertCoverage, ImportanceOptions, ImportanceRun, Model, Perplexity, RowSelection, Span,
    expert_coverage,
};

#[derive(Debug, Args)]
pub(super) struct CollectArgs {
    /// GGUF file or Hugging Face directory
    #[arg(required = true)]
    model: Option<PathBuf>,
    /// Text to collect from; several files share the chunks
    #[arg(short = 'f', long, alias = "file", value_name = "FILE", num_args = 1.., required = true)]
    prompts: Vec<PathBuf>,
    /// Read each prompt file as one text, whatever it looks like
    #[arg(long)]
    plain_text: bool,
    /// File to write
    #[arg(short, value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    /// The format before GGUF
    #[arg(long)]
    legacy: bool,
    #[command(flatten)]
    cut: CutArgs,
    /// Leave out the first N chunks of each file; `--chunks` counts from there
    #[arg(long, visible_alias = "chunk", value_name = "N", default_value_t = 0)]
    from_chunk: usize,
    /// Add to the sums of this file; may be repeated
    #[arg(long, value_name = "FILE")]
    in_file: Vec<PathBuf>,
    /// Encode special tokens that are written out in the text as tokens
    #[arg(long)]
    parse_special: bool,
    /// Collect for `output.weight` too
    #[arg(long)]
    process_output: bool,
    /// Do not compute the perplexity
    #[arg(long)]
    no_ppl: bool,
    /// Save what is collected every N chunks; 0: only at the end
    #[arg(long, value_name = "N", default_value_t = 10)]
    output_frequency: usize,
    /// Keep a copy, with `.at_` and the number of chunks after its name, every N chunks; 0: none
    #[arg(long, value_name = "N", default_value_t = 0)]
    save_frequency: usize,
    /// Resume a run that was stopped: the output is its file, all other options are as before
    #[arg(long, conflicts_with = "legacy")]
    resume: bool,
    /// Collect from the I-th of N shares of the chunks; `gguf-verify combine` combines all shares into what a
    /// single run writes. All runs make the same plan and are independent
    #[arg(long, value_name = "I/N")]
    part: Option<Share>,
    /// True for the matrix of a folder of quantizations. Texts are named without their directories.
    #[arg(skip)]
    pub(super) is_of_folder: bool,
}

impl CollectArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        self.write(session)?.print(session)?;
        Ok(Exit::Done)
    }

    /// Collects the matrix and writes it, unless it is there already.
    pub(super) fn write(&self, session: &Session) -> anyhow::Result<ImatrixReport<'_>> {
        // Without a subcommand clap requires both.
        let (Some(model), Some(output)) = (&self.model, &self.output) else {
            return Err(UsageError("give a model and `-o FILE`".to_owned()).into());
        };
        self.check_part()?;
        Destination::of(output)?;
        let mut guard = Guard::new(&session.progress, false);
        guard.read_all("the prompts", &self.prompts)?;
        guard.read_all("a matrix to add to", &self.in_file)?;
        guard.model("the model", model)?;
        guard.write("-o", output, OutputKind::Imatrix)?;
        let opened = OpenedModel::open(model, &session.common)?;
        opened.must_be_language_model(model)?;
        guard.read_all("the model", opened.inputs())?;
        let inputs: Vec<PathBuf> =
            self.prompts.iter().chain(&self.in_file).cloned().chain(opened.inputs()).collect();
        let prompts = PromptFiles::read(&self.prompts, self.plain_text)?;
        let target =
            MatrixOutput { path: output, legacy: self.legacy, sync: !session.common.no_sync, inputs };
        target.warn_of_name(session);
        let work = |model: &Model<'_>| self.collect(model, &prompts, target, guard, session);
        let (collected, file_bytes) = opened.with(None, work)?;
        Ok(ImatrixReport {
            file: output,
            file_bytes,
            contents: MatrixContents::of(&collected.sums),
            perplexity: collected.perplexity(),
            experts: expert_coverage(&collected.sums),
            part: self.part.map(Share::number),
            n_parts: self.part.map(Share::count),
        })
    }

    /// Refuses options that a share of the chunks cannot serve.
    fn check_part(&self) -> Result<(), UsageError> {
        let is_given = [
            (
                self.legacy,
                "--legacy",
                "cannot hold the data that combines parts: give it to `gguf-verify combine`",
            ),
            (
                !self.in_file.is_empty(),
                "--in-file",
                "is added once: combine the parts, then `gguf-verify combine` with those files",
            ),
            (self.save_frequency > 0, "--save-frequency", "keeps copies of a whole run: leave it out"),
        ];
        match is_given.into_iter().find(|(is_given, ..)| self.part.is_some() && *is_given) {
            Some((_, name, why)) => Err(UsageError(format!("`{name}` with `--part`: it {why}"))),
            None => Ok(()),
        }
    }

    fn collect(
        &self,
        model: &Model<'_>,
        prompts: &PromptFiles,
        target: MatrixOutput<'_>,
        mut guard: Guard<'_>,
        session: &Session,
    ) -> anyhow::Result<(Collected, u64)> {
        let options = ImportanceOptions {
            engine: engine_options(&session.common),
            files: prompts.files().to_vec(),
            scoring: self.cut.scoring(Span::SecondHalf, RowSelection::Scored),
            from_chunk: self.from_chunk,
            parse_special: self.parse_special,
            process_output: self.process_output,
            perplexity: !self.no_ppl,
            every: vec![self.output_frequency, self.save_frequency],
        };
        let run = ImportanceRun::new(model, prompts.sources(), options, &session.progress)?;
        let run = match self.part {
            Some(share) => run.share(share)?,
            None => run,
        };
        for warning in run.warnings.iter().chain(&prompts.unreached(&run.unreached, &run.chunks)) {
            session.progress.warn(warning);
        }
        let before = self.before(&run, session)?;
        let frequency = SaveFrequency { output: self.output_frequency, copies: self.save_frequency };
        for n_chunks in frequency.copies_of(before.n_chunks, run.n_chunks()) {
            guard.write("a copy of `--save-frequency`", &target.copy_path(n_chunks), OutputKind::Imatrix)?;
        }
        let identity = run.identity(&before);
        let work = CollectRun { session, target, run, before, frequency, identity };
        if self.resume && work.is_complete(self.is_of_folder)? {
            return work.finished();
        }
        let mut collected = if self.resume { work.resume()? } else { work.begin() };
        // The file of an unfinished run may list fewer of them.
        let name = |path: &Path| match path.file_name().filter(|_| self.is_of_folder) {
            Some(name) => name.to_string_lossy().into_owned().into_bytes(),
            None => path.display().to_string().into_bytes(),
        };
        let texts = prompts.paths().map(name);
        collected.sums.datasets = work.before.datasets.iter().cloned().chain(texts).collect();
        let mut n_saved = collected.n_done;
        let done = work.run.run(&mut collected, &session.progress, &mut |collected: &Collected| {
            work.save(collected, &mut n_saved)
        });
        if let Err(error) = done {
            work.rescue(&collected, n_saved, self.from_chunk);
            return Err(error);
        }
        let size = work.write(&collected)?;
        Ok((collected, size))
    }

    /// Returns the sums of earlier files that the run starts with.
    fn before(&self, run: &ImportanceRun<'_>, session: &Session) -> anyhow::Result<ImatrixSums> {
        let files =
            self.in_file.iter().map(|path| StoredImatrix::open(path)).collect::<Result<Vec<_>, _>>()?;
        let given = self.cut.scoring(Span::SecondHalf, RowSelection::Scored).n_ctx;
        let chunk_size = if files.is_empty() { run.chunk_size() } else { given };
        let before = merge_imatrices(&files, chunk_size)?;
        let unknown = run.check(&before, &files)?;
        if let Some(example) = unknown.first() {
            let n = plural(unknown.len() as u64, "entry");
            session.progress.warn(&format!(
                "the model has no tensor for {n} of `--in-file`, which are kept: `{}`, for example",
                escape(example)
            ));
        }
        Ok(before)
    }
}

/// Report of a matrix that was collected.
#[derive(Serialize)]
pub(super) struct ImatrixReport<'a> {
    /// Written file.
    #[serde(serialize_with = "as_path")]
    pub(super) file: &'a Path,
    /// Size of the file in bytes.
    pub(super) file_bytes: u64,
    #[serde(flatten)]
    pub(super) contents: MatrixContents,
    /// Perplexity of the text; null with `--no-ppl`, and for a matrix that was there.
    pub(super) perplexity: Option<Perplexity>,
    /// Coverage of experts by layer; empty for models without experts.
    pub(super) experts: Vec<ExpertCoverage>,
    /// With `--part`: number of the part, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<usize>,
    /// With `--part`: number of parts.
    #[serde(rename = "parts", skip_serializing_if = "Option::is_none")]
    pub(super) n_parts: Option<usize>,
}

impl ImatrixReport<'_> {
    pub(super) fn print(&self, session: &Session) -> anyhow::Result<()> {
        if let Some(text) = coverage::warning(&self.experts) {
            session.progress.warn(&text);
        }
        if session.common.json {
            return session.print_json(self);
        }
        if session.common.quiet {
            return Ok(());
        }
        session.print(|out| {
            let name = self.file.display().to_string();
            let MatrixContents { n_tensors, n_chunks, chunk_tokens, .. } = self.contents;
            let (tensors, chunks) = (plural(n_tensors as u64, "tensor"), plural(n_chunks as u64, "chunk"));
            let size = text::bytes(self.file_bytes);
            let name = escape(&name);
            let part = self.part.zip(self.n_parts);
            let part = part.map(|(number, count)| format!("part {number}/{count}, ")).unwrap_or_default();
            writeln!(out, "{name}: {part}{tensors}, {chunks} of {chunk_tokens}, {size}")?;
            if let Some(p) = &self.perplexity {
                writeln!(out, "perplexity {:.4} ± {:.4}", p.value, p.stderr)?;
            }
            match coverage::summary(&self.experts) {
                Some(line) => writeln!(out, "{line}"),
                None => Ok(()),
            }
        })
    }
}
