//! `gguf-convert draft`: drafts an architecture card.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::arch::Draft;
use crate::cli::render::{self, plural};
use crate::cli::{Exit, Session};
use crate::convert::{ConvertOptions, draft};
use crate::core::Hint;
use crate::core::output::{Destination, OutputError, OutputFile, OutputKind};
use crate::core::text::{escape, shell_path};
use crate::job::Guard;

/// Maximum number of names that a report lists.
const MAX_LISTED: usize = 12;

/// Arguments of `draft`.
#[derive(Debug, Args)]
pub(super) struct DraftArgs {
    /// Directory of the checkpoint; only its headers are read
    dir: PathBuf,
    /// File to write the card to [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct DraftReport<'a> {
    /// The card, and what of the checkpoint it covers.
    #[serde(flatten)]
    draft: &'a Draft,
    /// Reason why a conversion with this card stops.
    problem: Option<String>,
    /// Suggestions for the user.
    hints: Vec<String>,
}

impl<'a> From<&'a Draft> for DraftReport<'a> {
    fn from(draft: &'a Draft) -> Self {
        let problem = draft.problem.as_ref();
        let hints = problem.map(Hint::hints).unwrap_or_default();
        Self { draft, problem: problem.map(ToString::to_string), hints }
    }
}

impl DraftArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let mut guard = Guard::new(&session.progress, false);
        guard.read("the checkpoint", &self.dir)?;
        if let Some(path) = &self.output {
            Destination::of(path)?;
            guard.write("-o", path, OutputKind::CardDraft)?;
        }
        let mut warnings = Vec::new();
        let drafted = draft(&self.dir, &ConvertOptions::default(), &mut warnings)?;
        for warning in &warnings {
            log::warn!("{}", escape(warning));
        }
        if let Some(path) = &self.output {
            refuse_other_content(path, &drafted.text)?;
            let file = OutputFile::create(path)?;
            file.write_at(0, drafted.text.as_bytes()).map_err(OutputError::from)?;
            file.commit(!session.common.no_sync).map_err(OutputError::from)?;
        }
        if session.common.json {
            session.print_json(&DraftReport::from(&drafted))?;
        } else if self.output.is_none() {
            session.print(|out| out.write_all(drafted.text.as_bytes()))?;
        }
        self.report(session, &drafted);
        Ok(Exit::Done)
    }

    /// Reports matched and unmatched tensors, and the next steps.
    fn report(&self, session: &Session, drafted: &Draft) {
        let card = self
            .output
            .as_ref()
            .map_or_else(|| "my.toml".to_owned(), |path| shell_path(&path.to_string_lossy()));
        match (&drafted.parent, drafted.similar.first()) {
            (Some(parent), Some(best)) if *parent == best.card => {
                session.note(&format!("the checkpoint is most like {best}; the draft extends it"));
            }
            (Some(parent), Some(best)) => session.note(&format!(
                "the checkpoint is most like {best}; the draft extends its parent `{parent}`"
            )),
            _ => session.note("no known card is like this checkpoint: the draft extends none"),
        }
        session.note(&format!(
            "{} of {} have a place in the card",
            render::count(drafted.n_matched),
            plural(drafted.n_tensors, "tensor")
        ));
        let guessed = drafted.added.iter().filter(|entry| !entry.is_exact);
        for entry in guessed.take(MAX_LISTED) {
            let text =
                format!("to check: `{}` became {} as in `{}`", escape(&entry.key), entry.entry, entry.card);
            session.note(&text);
        }
        for row in drafted.unmatched.iter().take(MAX_LISTED) {
            let n = plural(row.n_tensors, "tensor");
            session.note(&format!("no place: `{}`, {n} {:?}", escape(&row.name), row.dims));
        }
        if let Some(more) = drafted.unmatched.len().checked_sub(MAX_LISTED).filter(|&more| more > 0) {
            session.note(&format!("no place: {more} more kinds of tensors"));
        }
        if !drafted.missing.is_empty() {
            let listed: Vec<_> =
                drafted.missing.iter().take(MAX_LISTED).map(|name| format!("`{}`", escape(name))).collect();
            let more = drafted.missing.len().saturating_sub(MAX_LISTED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            session.note(&format!("required by the runtime, and nothing fills: {}{more}", listed.join(", ")));
        }
        match &drafted.problem {
            None => session
                .note(&format!("next: fill in its TODOs, then `gguf-convert hf2gguf DIR --card {card}`")),
            Some(problem) if drafted.unmatched.is_empty() => {
                session.note(&format!("next: {problem}"));
            }
            Some(_) => session.note(&format!(
                "next: give the names marked TODO a target or leave them out in [ignore], then try \
                 `gguf-convert hf2gguf DIR --card {card} --dry-run`"
            )),
        }
    }
}

/// Refuses to replace a card that a person has worked on, or the draft of another checkpoint.
fn refuse_other_content(path: &Path, text: &str) -> anyhow::Result<()> {
    let found = if path.is_file() { fs_err::read(path)? } else { Vec::new() };
    if found.is_empty() || found == text.as_bytes() {
        return Ok(());
    }
    anyhow::bail!(
        "{}: it is there and has other content than this draft: give another name, or remove it",
        escape(&path.display().to_string())
    )
}
