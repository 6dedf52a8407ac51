//! Files beside the models of a ladder: checksums, the list for programs, the chart and the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Value as Jinja, context};
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::quantize::ladder::document::{LadderDocument, LadderEntry};
use crate::cli::render::json_text;
use crate::cli::render::markdown::{escape, link};
use crate::cli::verify::page::environment;
use crate::cli::{Session, UsageError, is_interrupted};
use crate::core::output::{EditLock, GuardError, LADDER_PAGE, OutputFile, OutputKind, check_kind};
use crate::core::text::{self, shell_path};
use crate::job::Guard;

const PAGE: &str = "README.md";
const LIST: &str = "ladder.json";
const SUMS: &str = "SHA256SUMS";
const CHART: &str = "size-against-kld.svg";
const MODELFILE: &str = "Modelfile";

/// Kinds of the files, of which no others are replaced.
const KINDS: [(&str, OutputKind); 4] = [
    (PAGE, OutputKind::LadderPage),
    (LIST, OutputKind::LadderJson),
    (SUMS, OutputKind::Checksums),
    (CHART, OutputKind::Chart),
];

/// Sizes of memory for which the page names a file, in GiB.
const MEMORY: [u64; 10] = [2, 4, 6, 8, 12, 16, 24, 32, 48, 80];

/// Files beside the models.
pub(super) struct FolderFiles {
    directory: PathBuf,
    /// True if a Modelfile is asked for, or there from an earlier run: it may name files that this run replaces.
    pub(super) has_modelfile: bool,
    /// Template of the page, and its name in messages.
    template: String,
    template_name: String,
}

/// A folder that one run after the other works in: each reads the list that the one before has written.
pub(super) struct FolderLock {
    directory: PathBuf,
    is_new: bool,
    /// Held until the end.
    _lock: Option<EditLock>,
}

impl FolderLock {
    /// Waits until no other run holds the folder. It is created if it does not exist.
    pub(super) fn of(directory: &Path, session: &Session) -> anyhow::Result<Self> {
        let is_new = !directory.exists();
        let name = text::escape(&directory.display().to_string()).to_string();
        if is_new && directory.is_symlink() {
            return Err(UsageError(format!("{name}: a link to nothing: name another folder")).into());
        }
        fs_err::create_dir_all(directory)?;
        let mut is_told = false;
        let mut waiting = |waited: Duration| {
            if !is_told && waited > Duration::from_secs(1) {
                session.note(&format!("{name}: another ladder works in this folder: waiting for it"));
                is_told = true;
            }
            !is_interrupted()
        };
        // Only there can a folder be opened.
        let lock = cfg!(unix).then(|| EditLock::of(directory, Duration::MAX, &mut waiting)).transpose()?;
        Ok(Self { directory: directory.to_owned(), is_new, _lock: lock })
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.is_new {
            // Only an empty folder is removed.
            let _ = fs_err::remove_dir(&self.directory);
        }
    }
}

/// Recommended file for a size of memory.
#[derive(Serialize)]
struct Choice<'a> {
    memory: String,
    #[serde(rename = "type")]
    name: &'a str,
    file_bytes: u64,
}

impl FolderFiles {
    /// Checks the files before any work. `template` is the user's own template of the page.
    ///
    /// # Errors
    /// A file that the program has not written would be replaced; a template that cannot be read or parsed.
    pub(super) fn of(
        directory: &Path,
        template: Option<&Path>,
        is_modelfile_wanted: bool,
        guard: &mut Guard<'_>,
    ) -> anyhow::Result<Self> {
        let text = template.map(crate::core::input::read_to_string).transpose()?;
        let name = template.map(|path| path.display().to_string());
        let path = directory.join(MODELFILE);
        let is_own = path.metadata().is_ok_and(|found| found.len() > 0)
            && check_kind(&path, OutputKind::Modelfile).is_ok();
        let has_modelfile = is_modelfile_wanted || is_own;
        let modelfile = has_modelfile.then_some((MODELFILE, OutputKind::Modelfile));
        for (name, kind) in KINDS.into_iter().chain(modelfile) {
            guard.write("a file of the folder", &directory.join(name), kind)?;
        }
        let this = Self {
            directory: directory.to_owned(),
            has_modelfile,
            template: text.unwrap_or_else(|| include_str!("page.md").to_owned()),
            template_name: name.unwrap_or_else(|| PAGE.to_owned()),
        };
        this.check_template()?;
        Ok(this)
    }

    /// Refuses a template that is none, or names what the page's data do not have. What is null or in a list is known only
    /// when the files are made.
    fn check_template(&self) -> anyhow::Result<()> {
        let mut templates = environment();
        templates.add_template(&self.template_name, &self.template)?;
        let mut data = serde_json::to_value(LadderDocument::default())?;
        let others = templates.globals().map(|(name, _)| name);
        for name in others.chain(["mark", "has_chart", "chart", "choices"]) {
            data[name] = Json::Null;
        }
        let is_known = |path: &String| {
            let mut keys = path.split('.');
            let found =
                keys.try_fold(&data, |of, key| of.get(key).or((!of.is_object()).then_some(&Json::Null)));
            found.is_some()
        };
        // The template may ask whether there is one, or have a filter for its absence.
        let is_asked = |path: &String| {
            [" is ", "|", " |"].iter().any(|rest| self.template.contains(&format!("{path}{rest}")))
        };
        let used: BTreeSet<_> =
            templates.get_template(&self.template_name)?.undeclared_variables(true).into_iter().collect();
        match used.iter().find(|path| !is_known(path) && !is_asked(path)) {
            None => Ok(()),
            Some(path) => {
                let (name, path) = (text::escape(&self.template_name), text::escape(path));
                let problem =
                    format!("{name}: the data of the page, which `ladder.json` shows, have no `{path}`");
                Err(UsageError(problem).into())
            }
        }
    }

    /// Writes all files, or none. A chart and a Modelfile of an earlier run are removed if there is none now.
    ///
    /// # Errors
    /// A template that cannot be rendered; outputs that cannot be written, or that somebody else has written since the run
    /// began.
    pub(super) fn write(
        &self,
        document: &LadderDocument,
        chart: Option<&str>,
        modelfile: Option<String>,
        session: &Session,
    ) -> anyhow::Result<()> {
        let page = self.rendered(document, chart.is_some()).context(
            "the models are written, the page is not: mend the template and repeat the command, which keeps them",
        )?;
        let files = [
            (SUMS, Some(sums(document))),
            (LIST, Some(json_text(document)?)),
            (PAGE, Some(page)),
            (CHART, chart.map(str::to_owned)),
        ];
        check_names(&self.directory)?;
        let files = files.into_iter().chain(self.has_modelfile.then_some((MODELFILE, modelfile)));
        let files: Vec<_> = files.map(|(name, text)| (self.directory.join(name), text)).collect();
        OutputFile::write_all(&files, !session.common.no_sync)?;
        Ok(())
    }

    fn rendered(&self, document: &LadderDocument, has_chart: bool) -> anyhow::Result<String> {
        let mut templates = environment();
        templates.set_formatter(|out, _, value| {
            let text = match value.kind() {
                ValueKind::String if !value.is_safe() => escape(value.as_str().unwrap_or_default()),
                _ => value.to_string(),
            };
            Ok(out.write_str(&text)?)
        });
        templates.add_filter("yaml", |text: String| {
            Jinja::from_safe_string(serde_json::Value::from(text).to_string())
        });
        templates.add_filter("link", |name: String| link(&name));
        templates.add_filter("shell", |path: String| shell_path(&path));
        templates.add_template(&self.template_name, &self.template)?;
        let data = context! {
            mark => Jinja::from_safe_string(LADDER_PAGE.to_owned()),
            has_chart, chart => CHART,
            choices => Jinja::from(Serde(choices(&document.files))),
            ..Jinja::from(Serde(document))
        };
        let mut text = templates.get_template(&self.template_name)?.render(data)?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}

/// Looks again whether the names of the files are free, or taken by files of an earlier run.
fn check_names(directory: &Path) -> Result<(), GuardError> {
    KINDS.into_iter().try_for_each(|(name, kind)| check_kind(&directory.join(name), kind))
}

/// Checksums as `sha256sum --check` reads them.
fn sums(document: &LadderDocument) -> String {
    let mut text = String::new();
    let files = document.files.iter().chain(&document.projector).chain(&document.draft_heads);
    for part in files.flat_map(|file| &file.file.parts) {
        let _ = writeln!(text, "{}  {}", part.sha256, part.name);
    }
    text
}

/// Returns the best file for each size of memory: of those that leave a tenth free with the shorter context, or a fifth
/// if the memory of a context is not known, the one that diverges least, or the
/// largest if nothing was measured. A size of memory that changes nothing is left out.
fn choices(files: &[LadderEntry]) -> Vec<Choice<'_>> {
    let kld = |file: &LadderEntry| file.mean_kld();
    let is_measured = files.iter().any(|file| kld(file).is_some());
    let mut found: Vec<Choice<'_>> = Vec::new();
    for gib in MEMORY {
        let fits = |file: &&LadderEntry| match file.memory.first() {
            Some(at) => at.total_bytes <= (gib << 30) / 10 * 9,
            None => file.file.file_bytes <= (gib << 30) / 5 * 4,
        };
        let fitting = files.iter().filter(fits);
        let best = if is_measured {
            fitting.min_by(|a, b| kld(a).unwrap_or(f64::MAX).total_cmp(&kld(b).unwrap_or(f64::MAX)))
        } else {
            fitting.max_by_key(|file| file.file.file_bytes)
        };
        if let Some(best) = best.filter(|best| found.last().is_none_or(|last| last.name != best.file.name)) {
            let memory = format!("{gib} GiB");
            found.push(Choice { memory, name: &best.file.name, file_bytes: best.file.file_bytes });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_somebody_writes_during_the_run_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        check_names(dir.path()).unwrap();
        for (name, _) in KINDS {
            let path = dir.path().join(name);
            fs_err::write(&path, "# Mine\n").unwrap();
            let error = check_names(dir.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("this is a text file"), "{error}");
            fs_err::remove_file(path).unwrap();
        }
    }
}
