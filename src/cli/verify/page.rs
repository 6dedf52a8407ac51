//! `--report`: the verdict as an HTML page, as Markdown for a model card, or as JSON with a record of the run.
//!
//! [`data`] holds the content of a page, [`run_info`] the record of the run. [`charts`] draws, [`html`] and
//! [`markdown`] fill templates. Untrusted text is escaped twice: control characters when it becomes data, markup when
//! it is written.

mod charts;
mod data;
mod html;
mod judged;
mod markdown;
mod public;
mod render;
mod run_info;
mod tables;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::render::json_text;
use crate::cli::verify::report::{ModelReport, VerifyDocument};
use crate::cli::{Session, UsageError};
use crate::core::output::{Destination, OutputFile, OutputKind};
use crate::core::text::escape;
use crate::job::Guard;

pub(in crate::cli) use judged::{FileInFolder, JudgedFile, compare};
pub(in crate::cli) use render::environment;
use run_info::RunInfo;
pub(in crate::cli) use run_info::{command_line, digest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportFormat {
    Html,
    Markdown,
    Json,
    Csv,
    Junit,
}

impl ReportFormat {
    fn kind(self) -> OutputKind {
        match self {
            Self::Html => OutputKind::HtmlReport,
            Self::Markdown => OutputKind::MarkdownReport,
            Self::Json => OutputKind::Json,
            Self::Csv => OutputKind::FigureTable,
            Self::Junit => OutputKind::TestCases,
        }
    }

    /// Returns the format by the suffix of a file name.
    fn of(path: &Path) -> Result<Self, UsageError> {
        match path.extension().and_then(|suffix| suffix.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("html") => Ok(Self::Html),
            Some("md") => Ok(Self::Markdown),
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            _ => {
                let name = path.display().to_string();
                let message = "a report's name ends in `.html`, `.md`, `.json` or `.csv`";
                Err(UsageError(format!("`--report {}`: {message}", escape(&name))))
            }
        }
    }
}

/// Document of `--report FILE.json`.
#[derive(Clone, Debug, Serialize)]
struct ReportFile<'a> {
    /// Output of `--json`.
    #[serde(flatten)]
    document: VerifyDocument<'a>,
    /// Record of the run.
    run: &'a RunInfo,
}

/// Files named by `--report`, checked before any work.
pub(super) struct Reports {
    targets: Vec<(PathBuf, ReportFormat)>,
}

impl Reports {
    /// Checks the paths of `--report` and `--junit`.
    ///
    /// # Errors
    /// Another suffix, a path at which no file can be written, a file that is read or of another kind.
    pub(super) fn of(paths: &[PathBuf], junit: Option<&Path>, guard: &mut Guard<'_>) -> anyhow::Result<Self> {
        let mut targets: Vec<(PathBuf, ReportFormat)> = Vec::new();
        for path in paths {
            let format = ReportFormat::of(path)?;
            targets.push((path.clone(), format));
        }
        targets.extend(junit.map(|path| (path.to_owned(), ReportFormat::Junit)));
        for (path, format) in &targets {
            let option = if *format == ReportFormat::Junit { "--junit" } else { "--report" };
            Destination::of(path)?;
            guard.write(option, path, format.kind())?;
        }
        Ok(Self { targets })
    }

    /// Returns true if no report is wanted, so that no details need be kept.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Writes all reports, or none: of the files that were judged, and of those that could not be. `inputs` are the files that
    /// were read, each with its role.
    ///
    /// # Errors
    /// Inputs that cannot be read again for their hashes, outputs that cannot be written.
    pub(super) fn write(
        &self,
        (entries, failures): (&[ModelReport], &[(PathBuf, anyhow::Error)]),
        baseline: Option<&Path>,
        title: Option<&str>,
        inputs: &[(&'static str, PathBuf)],
        session: &Session,
    ) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let run = RunInfo::of(session, inputs)?;
        let mut page = data::PageData::new(entries, baseline, inputs, run);
        page.add_failed(failures);
        if let Some(title) = title {
            page.title = escape(title).into_owned();
        }
        let mut files = Vec::new();
        for (path, format) in &self.targets {
            let text = match format {
                ReportFormat::Html => html::render(&page)?,
                ReportFormat::Markdown => markdown::render(&page)?,
                ReportFormat::Csv => tables::csv(&page),
                ReportFormat::Junit => tables::junit(&page),
                ReportFormat::Json => {
                    let document =
                        ReportFile { document: VerifyDocument::new(entries, failures), run: &page.run };
                    json_text(&document)?
                }
            };
            files.push((path.clone(), Some(text)));
        }
        OutputFile::write_all(&files, !session.common.no_sync)?;
        for (path, _) in self.targets.iter().filter(|_| !session.common.json) {
            session.note(&format!("report written to {}", escape(&path.display().to_string())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
