//! `--report`: the verdict as a page to look at, as Markdown for a model card, or as JSON with how it was made.
//!
//! [`data`] is what a page shows, [`details`] what is kept of each model for it, [`run_info`] how the run was made,
//! [`charts`] draws, [`html`] and [`markdown`] fill templates. Everything foreign is escaped twice: control characters
//! when it becomes data, markup when it is written.

mod charts;
mod data;
mod details;
mod html;
mod markdown;
mod render;
mod run_info;

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::verify::refuse_input;
use crate::cli::verify::report::{self, ModelReport};
use crate::cli::{Session, UsageError};
use crate::core::output::{Destination, OutputFile, same_file};
use crate::core::text::escape;

pub(super) use details::Details;

/// What a report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Html,
    Markdown,
    Json,
}

impl Format {
    /// By the suffix of a file's name.
    fn of(path: &Path) -> Result<Self, UsageError> {
        match path.extension().and_then(|suffix| suffix.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("html") => Ok(Self::Html),
            Some("md") => Ok(Self::Markdown),
            Some("json") => Ok(Self::Json),
            _ => {
                let name = path.display().to_string();
                let message = "a report's name ends in `.html`, `.md` or `.json`";
                Err(UsageError(format!("`--report {}`: {message}", escape(&name))))
            }
        }
    }
}

/// The files that `--report` names, checked before any work.
pub(super) struct Reports {
    targets: Vec<(PathBuf, Format)>,
}

impl Reports {
    /// # Errors
    /// Another suffix, one name twice, a place where no file can be.
    pub(super) fn of(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut targets: Vec<(PathBuf, Format)> = Vec::new();
        for path in paths {
            let format = Format::of(path)?;
            if targets.iter().any(|(other, _)| other == path || same_file(other, path)) {
                let name = path.display().to_string();
                return Err(UsageError(format!("`--report {}` is given twice", escape(&name))).into());
            }
            targets.push((path.clone(), format));
        }
        for (path, _) in &targets {
            Destination::of(path)?;
        }
        Ok(Self { targets })
    }

    /// Whether there is anything to keep for a report.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// # Errors
    /// A report that would replace one of these files.
    pub(super) fn refuse_inputs<'p>(
        &self,
        inputs: impl IntoIterator<Item = &'p PathBuf>,
    ) -> anyhow::Result<()> {
        for input in inputs {
            for (path, _) in &self.targets {
                refuse_input(path, [input])?;
                // Whatever lies in a checkpoint may be read.
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                if path.exists() && same_file(input, dir) {
                    let name = path.display().to_string();
                    let message = format!("`{}` lies in an input and cannot be the output", escape(&name));
                    return Err(UsageError(message).into());
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// A report that another output would replace.
    pub(super) fn refuse_outputs<'p>(
        &self,
        outputs: impl IntoIterator<Item = &'p PathBuf>,
    ) -> anyhow::Result<()> {
        for output in outputs {
            if self.targets.iter().any(|(path, _)| path == output || same_file(path, output)) {
                let name = output.display().to_string();
                return Err(UsageError(format!("`{}` is given for two outputs", escape(&name))).into());
            }
        }
        Ok(())
    }

    /// Writes all reports, or none. `inputs` are the files that were read, with the part that each played.
    ///
    /// # Errors
    /// Inputs that cannot be read again for their hashes, outputs that cannot be written.
    pub(super) fn write(
        &self,
        entries: &[ModelReport],
        baseline: Option<&Path>,
        inputs: &[(&'static str, PathBuf)],
        session: &Session,
    ) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        self.refuse_inputs(inputs.iter().map(|(_, path)| path))?;
        let run = run_info::RunInfo::of(session, inputs)?;
        let page = data::PageData::new(entries, baseline, run);
        let mut files = Vec::new();
        for (path, format) in &self.targets {
            let text = match format {
                Format::Html => html::render(&page)?,
                Format::Markdown => markdown::render(&page)?,
                Format::Json => {
                    let mut document = report::to_json(entries);
                    if let Some(map) = document.as_object_mut() {
                        map.insert("run".to_owned(), json!(page.run));
                    }
                    serde_json::to_string_pretty(&document)? + "\n"
                }
            };
            let file = OutputFile::create(path)?;
            file.write_at(0, text.as_bytes())?;
            files.push(file);
        }
        OutputFile::commit_all(files, !session.common.no_sync)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
