//! `--part`: one share of a run, for `gguf-verify combine`.

use std::path::Path;

use serde::Serialize;

use crate::cli::render::plural;
use crate::cli::verify::judge::{VerifyArgs, open_baseline};
use crate::cli::verify::limits::given;
use crate::cli::verify::model::{ConvertedBaseline, OpenedModel};
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::same_file;
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::core::written::as_path;
use crate::gguf::Share;
use crate::job::Guard;
use crate::verify::{Check, Finding, Model, PartLabel, Thresholds, VerificationPart, verify_part};

impl VerifyArgs {
    /// Refuses options that a share of a run cannot serve, and names the alternative.
    pub(super) fn check_part(&self, has_tasks: bool, has_logits: bool) -> Result<(), UsageError> {
        const WHOLE: &str = "is written of a whole run: leave `--part` out";
        const TASKS: &str = "is run whole: on one machine, without `--part`";
        const NONE: &str = "is a limit of models of which there are no parts: leave `--part` out";
        const LIMIT: &str = "is a limit of the whole: give it to `gguf-verify combine`";
        let is_given = [
            (
                self.models.len() > 1,
                "a second model",
                "has parts of its own: run `--part` once for each model",
            ),
            (!self.report.is_empty(), "--report", WHOLE),
            (self.junit.is_some(), "--junit", WHOLE),
            (self.per_token.is_some(), "--per-token", WHOLE),
            (self.save_baseline.is_some(), "--save-baseline", WHOLE),
            (has_tasks, "--hellaswag, --winogrande or --multiple-choice", TASKS),
            (
                has_logits,
                "a logit file",
                "belongs to the rows of a whole run: give the baseline's model, or leave `--part` out",
            ),
            (
                self.structure_only,
                "--structure-only",
                "runs nothing that could be shared: leave `--part` out",
            ),
            (self.weights_only, "--weights-only", "runs on one machine: leave `--part` out"),
            (self.trace.is_some(), "--trace", "shows one machine's run: leave `--part` out"),
            (
                self.accept_partial,
                "--accept-partial",
                "is about the verdict: give it to `gguf-verify combine`",
            ),
        ];
        let of =
            |limits: &Thresholds, why| given(limits).into_iter().map(move |name| (format!("--{name}"), why));
        let limits = of(&self.limits.thresholds(), LIMIT).chain(of(&self.other_limits.thresholds(), NONE));
        let is_given = is_given
            .into_iter()
            .filter(|(is_given, ..)| *is_given)
            .map(|(_, name, why)| (name.to_owned(), why));
        match is_given.chain(limits).next() {
            Some((name, why)) => {
                let name = if name.starts_with("--") { format!("`{name}`") } else { name };
                Err(UsageError(format!("{name} {why}")))
            }
            None => Ok(()),
        }
    }

    /// Runs a share and writes its measurements.
    pub(super) fn run_part(
        &self,
        share: Share,
        output: &Path,
        mut guard: Guard<'_>,
        session: &Session,
    ) -> anyhow::Result<Exit> {
        // There is exactly one: see `check_part`.
        let Some(path) = self.models.first() else {
            return Err(UsageError("give a model".to_owned()).into());
        };
        let common = &session.common;
        let open = |reference| open_baseline(&self.models, reference, common, self.mlock);
        let baseline = self.reference().map(open).transpose()?;
        let inputs = self.inputs(baseline.as_ref());
        inputs.iter().try_for_each(|(role, path)| guard.read(role, path))?;
        let origin = self.origin()?;
        let prompts = self.text(false, false)?;
        let opened = OpenedModel::open_with(path, common, self.mlock)?;
        guard.read_all("a model", opened.inputs())?;
        baseline.as_ref().map_or(Ok(()), |baseline| opened.must_be_of_the_kind_of(baseline))?;
        let mut alike = ConvertedBaseline::default();
        let alike = alike.of(self.reference(), &opened, baseline.as_ref(), 1, session);
        let baseline = alike.or(baseline.as_ref());
        let options = self.options(&prompts, session);
        let run = |model: &Model<'_>, baseline: Option<&Model<'_>>| {
            verify_part(model, baseline, prompts.sources(), &options, share, &session.progress)
        };
        let part = opened.with(origin.as_ref(), |model| match baseline {
            None => run(model, None),
            Some(baseline) => baseline.with(None, |baseline| run(model, Some(baseline))),
        })?;
        let (unreached, chunks) = part.unreached();
        let notes: Vec<Finding> = prompts
            .unreached(unreached, &chunks)
            .into_iter()
            .map(|text| Finding::warning(Check::Prompts, text))
            .collect();
        let label = PartLabel {
            file: path.display().to_string(),
            size_bytes: opened.size_bytes(),
            file_type: opened.file_type(),
            prompts: prompts.paths().map(|path| path.display().to_string()).collect(),
            is_own_baseline: self.baseline.as_ref().is_some_and(|other| same_file(path, other)),
        };
        let part = part.labelled(label, &notes);
        part.write(output, !common.no_sync)?;
        WrittenPart::of(&part, share, output)?.tell(session)
    }
}

/// Part that was written.
#[derive(Clone, Copy, Debug, Serialize)]
struct WrittenPart<'a> {
    /// Path of the written file.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Size of the file in bytes.
    file_bytes: u64,
    /// Number of the part, from 1.
    #[serde(rename = "part")]
    number: usize,
    /// Number of parts.
    #[serde(rename = "parts")]
    n_parts: usize,
    /// Number of its first chunk; null if nothing could be run.
    first_chunk: Option<usize>,
    /// Number of its chunks.
    #[serde(rename = "chunks")]
    n_chunks: usize,
    /// Number of chunks of all parts.
    #[serde(rename = "all_chunks")]
    n_all_chunks: usize,
    /// Number of tokens that were run, baseline included.
    #[serde(rename = "tokens")]
    n_tokens: u64,
}

impl<'a> WrittenPart<'a> {
    fn of(part: &VerificationPart, share: Share, output: &'a Path) -> anyhow::Result<Self> {
        let windows = part.windows();
        let (_, n_chunks, n_all_chunks) = windows.unwrap_or_default();
        Ok(Self {
            file: output,
            file_bytes: fs_err::metadata(output)?.len(),
            number: share.number(),
            n_parts: share.count(),
            first_chunk: windows.map(|(first, ..)| first),
            n_chunks,
            n_all_chunks,
            n_tokens: part.n_tokens(),
        })
    }

    fn tell(&self, session: &Session) -> anyhow::Result<Exit> {
        if self.first_chunk.is_none() {
            session.progress.warn("nothing was run: `gguf-verify combine` shows why");
        }
        if session.common.json {
            session.print_json(self)?;
        } else if !session.common.quiet {
            let name = self.file.display().to_string();
            let (tokens, chunks) = (plural(self.n_tokens, "token"), plural(self.n_chunks as u64, "chunk"));
            let part = format!("part {}/{}", self.number, self.n_parts);
            let size = bytes(self.file_bytes);
            let line =
                format!("{}: {part}, {chunks} of {}, {tokens}, {size}", escape(&name), self.n_all_chunks);
            session.print(|out| writeln!(out, "{line}"))?;
        }
        Ok(Exit::Done)
    }
}
