//! Figures of the files of a ladder: measured once for each text, and compared with one another.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::Session;
use crate::cli::job::failure;
use crate::cli::verify::judge_all;
use crate::cli::verify::page::{FileInFolder, JudgedFile, compare as compare_files, digest};
use crate::core::text::escape;
use crate::job::ladder::{Ladder, LadderFile, LadderReport};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DigestedFile {
    /// Name of the file, without its folder.
    pub(super) name: String,
    /// SHA-256 in lower-case hexadecimal.
    pub(super) sha256: String,
}

/// Figures of a file with the text that they were measured on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MeasuredFigures {
    /// Text that they were measured on.
    pub(super) text: DigestedFile,
    /// The figures.
    #[serde(flatten)]
    pub(super) figures: JudgedFile,
}

/// Returns the name of a file without its folder.
fn file_name(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| path.to_owned(), PathBuf::from);
    escape(&name.display().to_string()).into_owned()
}

pub(super) fn digested(session: &Session, path: &Path) -> anyhow::Result<DigestedFile> {
    Ok(DigestedFile { name: file_name(path), sha256: digest(path, &session.progress)? })
}

/// Compares the files with the model on a text, except those that have figures of it. Each is recorded at once.
pub(super) fn measure(
    session: &Session,
    ladder: &Ladder,
    report: &mut LadderReport,
    model: &Path,
    text: &Path,
) -> anyhow::Result<()> {
    let digested = digested(session, text)?;
    let id = format!("{}-{}-{}", digested.sha256, report.source, crate::cli::version());
    let files = report.files.iter_mut().chain(&mut report.others);
    let mut open: Vec<&mut LadderFile> =
        files.filter(|file| file.figures_id.as_deref() != Some(&id) || file.figures.is_none()).collect();
    let paths: Vec<_> = open.iter().filter_map(|file| file.plan.paths.first().cloned()).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let matrix = ladder.importance.path.as_deref();
    judge_all(session, &paths, model, matrix, text, &mut |at, figures| {
        let Some(file) = open.get_mut(at) else { return Ok(()) };
        let stored = serde_json::to_value(MeasuredFigures { text: digested.clone(), figures })?;
        ladder.keep_figures(file, &id, &stored).map_err(failure)?;
        file.figures = Some(stored);
        file.figures_id = Some(id.clone());
        Ok(())
    })
}

/// Recommends some of the files, and draws the chart if two have figures.
pub(super) fn compare(report: &mut LadderReport) -> anyhow::Result<Option<String>> {
    let mut files: Vec<&mut LadderFile> = report.files.iter_mut().chain(&mut report.others).collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.plan.file_bytes));
    let mut stored: Vec<MeasuredFigures> = Vec::new();
    files.retain_mut(|file| {
        // Those of an older version may lack something.
        let figures = file.figures.take().and_then(|found| serde_json::from_value(found).ok());
        let has_some = figures.is_some();
        stored.extend(figures);
        has_some
    });
    let mut all: Vec<FileInFolder<'_>> = files
        .iter()
        .zip(&mut stored)
        .map(|(file, stored)| FileInFolder {
            label: &file.plan.name,
            size_bytes: file.plan.file_bytes,
            figures: &mut stored.figures,
        })
        .collect();
    let chart = compare_files(&mut all);
    for (file, stored) in files.into_iter().zip(stored) {
        file.figures = Some(serde_json::to_value(stored)?);
    }
    Ok(chart)
}
