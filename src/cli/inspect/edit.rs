//! Shared parts of `set`, `remove`, `rename` and `drop`: options, and the output of changes.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::inspect::{SHOWN_CHARS, SHOWN_ELEMS, written};
use crate::cli::render::{Align, Table};
use crate::cli::{Session, UsageError};
use crate::core::output::{OutputKind, check_kind};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::WriteReport;
use crate::inspect::{
    Change, Edit, EditError, EditPlan, Objection, TensorChange, TypedValue, remarks_on, value_text,
};
use crate::job::templates::TemplateFindings;
use crate::job::{Guard, is_digest};

/// How an edit is made.
#[derive(Debug, Args)]
pub(super) struct EditArgs {
    /// Write another file instead
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Show what would change and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Make the change despite all objections
    #[arg(long)]
    force: bool,
}

/// Report of a command that edits a file.
#[derive(Serialize)]
struct EditReport<'a> {
    /// The file that was written, or would be.
    #[serde(flatten)]
    written: WriteReport,
    /// True if nothing was written.
    dry_run: bool,
    /// Keys whose value changes.
    changes: Vec<KeyChange<'a>>,
    /// Tensors that get another name or are left out.
    tensor_changes: &'a [TensorChange],
    /// Objections that `--force` overrode.
    objections: Vec<String>,
}

#[derive(Serialize)]
struct KeyChange<'a> {
    /// The key.
    key: &'a str,
    /// Value in the input; null for a new key.
    before: Option<TypedValue<'a>>,
    /// Value in the output; null for a key that was removed.
    after: Option<TypedValue<'a>>,
}

impl<'a> KeyChange<'a> {
    fn of(Change { key, before, after }: &'a Change) -> Self {
        let typed = |value: &'a Option<_>| value.as_ref().map(TypedValue::whole);
        Self { key, before: typed(before), after: typed(after) }
    }
}

/// Turns errors in arguments into usage errors, in contrast to errors in files.
pub(super) fn usage(error: EditError) -> anyhow::Error {
    if error.is_usage() { UsageError(error.to_string()).into() } else { error.into() }
}

impl EditArgs {
    /// Returns true if any option was given.
    pub(super) fn is_given(&self) -> bool {
        self.output.is_some() || self.dry_run || self.force
    }

    /// Plans, checks and makes the edits. `values` are the files that values come from.
    pub(super) fn run(
        &self,
        file: &Path,
        edits: &[Edit],
        values: &[PathBuf],
        session: &Session,
    ) -> anyhow::Result<()> {
        let mut plan =
            EditPlan::new(file, self.output.as_deref(), edits, &session.progress).map_err(usage)?;
        if self.output.is_none() {
            refuse_read_only(plan.target())?;
        }
        let mut guard = Guard::new(&session.progress, self.dry_run);
        guard.read_all("a value", values)?;
        if let Some(output) = &self.output {
            guard.read_all("the model", plan.inputs())?;
            guard.write("-o", output, plan.kind())?;
        } else {
            // An edit in place keeps the file's own kind, whichever it is.
            let is_imatrix = check_kind(plan.target(), OutputKind::Imatrix).is_ok();
            let kind = if is_imatrix { OutputKind::Imatrix } else { OutputKind::Model };
            guard.write("the output", plan.target(), kind)?;
        }
        let replaced = fs_err::canonicalize(plan.target()).unwrap_or_else(|_| plan.target().to_owned());
        if self.output.is_none() && is_digest(&replaced) {
            session.progress.warn(&format!(
                "{}: it is named by its hash, which its content will not have any more: `-o FILE` writes another",
                escape(&replaced.display().to_string())
            ));
        }
        let templates = new_template_findings(&plan);
        for (name, why) in templates.faults {
            plan.object(Objection::Template { name, why });
        }
        templates.warnings.iter().for_each(|warning| session.progress.warn(warning));
        let keys = plan.changes().iter().map(|change| change.key.as_str());
        for warning in remarks_on(plan.metadata_before(), plan.metadata(), keys) {
            session.progress.warn(&warning);
        }
        if self.force {
            for objection in plan.objections() {
                session.progress.warn(&objection.to_string());
            }
        } else {
            plan = plan.agreed()?;
        }
        let written = if self.dry_run {
            session.destination(plan.target());
            plan.report()
        } else {
            plan.write(&written::write_options(session), &session.progress)?
        };
        let report = EditReport {
            written,
            dry_run: self.dry_run,
            changes: plan.changes().iter().map(KeyChange::of).collect(),
            tensor_changes: plan.tensor_changes(),
            objections: plan.objections().iter().map(ToString::to_string).collect(),
        };
        report.print(session)
    }
}

impl EditReport<'_> {
    fn print(&self, session: &Session) -> anyhow::Result<()> {
        if session.common.json {
            return session.print_json(self);
        }
        if session.common.quiet {
            return Ok(());
        }
        session.print(|out| {
            match (self.changes.as_slice(), self.tensor_changes) {
                ([], []) => writeln!(out, "no key changes")?,
                ([], tensors) => tensor_table(tensors).print(out)?,
                (changes, _) => table(changes).print(out)?,
            }
            writeln!(out)?;
            written::lines(&self.written).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            if self.dry_run { writeln!(out, "nothing was written") } else { Ok(()) }
        })
    }
}

/// Refuses to edit a read-only file. The new file replaces the old one, which needs only permission for the directory,
/// so the system would not object.
fn refuse_read_only(file: &Path) -> anyhow::Result<()> {
    if fs_err::metadata(file).is_ok_and(|metadata| metadata.permissions().readonly()) {
        let name = file.display().to_string();
        let name = escape(&name);
        return Err(anyhow::anyhow!(
            "{name}: the file is read-only; `-o FILE` writes another, `chmod u+w` allows this one"
        ));
    }
    Ok(())
}

/// Returns the findings about the chat templates that an edit makes: about new templates, and about old ones in a
/// vocabulary that changes.
fn new_template_findings(plan: &EditPlan) -> TemplateFindings {
    let changes_key = |start: &str| plan.changes().iter().any(|change| change.key.starts_with(start));
    if !changes_key("tokenizer.") {
        return TemplateFindings::default();
    }
    let mut found = TemplateFindings::of(plan.metadata());
    if !changes_key("tokenizer.chat_template") {
        let before = TemplateFindings::of(plan.metadata_before());
        found.faults.clear();
        found.warnings.retain(|warning| !before.warnings.contains(warning));
    }
    found
}

/// Returns a table of old and new values, a row per key.
fn table(changes: &[KeyChange<'_>]) -> Table {
    let mut table = Table::new(&[
        ("key", Align::Left),
        ("type", Align::Left),
        ("old", Align::Fill),
        ("", Align::Left),
        ("new", Align::Fill),
    ]);
    for change in changes {
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        table.row([
            escape(change.key).into_owned(),
            types(before, after),
            text(before),
            "→".to_owned(),
            text(after),
        ]);
    }
    table
}

/// Returns a table of old and new names, a row per tensor.
fn tensor_table(changes: &[TensorChange]) -> Table {
    let mut table = Table::new(&[("tensor", Align::Fill), ("", Align::Left), ("new name", Align::Fill)]);
    for TensorChange { before, after } in changes {
        let after = after.as_ref().map_or_else(|| "(left out)".to_owned(), |name| escape(name).into_owned());
        table.row([escape(before).into_owned(), "→".to_owned(), after]);
    }
    table
}

fn types(before: Option<&TypedValue<'_>>, after: Option<&TypedValue<'_>>) -> String {
    match (before.map(|value| &value.ty), after.map(|value| &value.ty)) {
        (Some(before), Some(after)) if before != after => format!("{before} → {after}"),
        (before, after) => after.or(before).cloned().unwrap_or_default(),
    }
}

fn text(value: Option<&TypedValue<'_>>) -> String {
    value.map_or_else(
        || "(none)".to_owned(),
        |typed| value_text(typed.value.value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS)),
    )
}
