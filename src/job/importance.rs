//! Importance matrix of a job, with the entries to use.

use std::path::PathBuf;

use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::{Imatrix, ImatrixError, UnfinishedRun};

/// Importance matrix of a job.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    /// File of the importance matrix, GGUF or the older `.dat`.
    pub path: Option<PathBuf>,
    /// Parts of tensor names; if there are any, entries of other tensors are not used.
    pub include: Vec<String>,
    /// Parts of tensor names whose entries are not used.
    pub exclude: Vec<String>,
    /// True to leave the folders of the matrix and of its text out of the keys of the output.
    pub names_only: bool,
}

impl Importance {
    /// Opens the importance matrix, if there is one. Warns of names without effect.
    pub(super) fn open(&self, progress: &dyn Progress) -> Result<Option<Imatrix>, ImatrixError> {
        let warn = |option: &str, names: &[String], why: &str| {
            if !names.is_empty() {
                let names: Vec<_> = names.iter().map(|name| format!("`{option} {}`", escape(name))).collect();
                progress.warn(&format!("without effect, {why}: {}", names.join(", ")));
            }
        };
        let Some(path) = &self.path else {
            let why = "there is no --imatrix";
            warn("--include-weights", &self.include, why);
            warn("--exclude-weights", &self.exclude, why);
            return Ok(None);
        };
        let mut imatrix = Imatrix::open(path)?;
        if let Some(run) = UnfinishedRun::find(path).filter(|run| run.n_done < run.n_total) {
            progress.warn(&format!(
                "{}: {} of {} chunks of a run that was stopped; `gguf-verify imatrix` with `--resume` completes it",
                escape(&path.to_string_lossy()),
                run.n_done,
                run.n_total
            ));
        }
        if self.names_only {
            imatrix.leave_folders_out();
        }
        let why = "no entry of the importance matrix has such a name";
        if !self.include.is_empty() {
            warn("--include-weights", &imatrix.include(&self.include), why);
        }
        warn("--exclude-weights", &imatrix.exclude(&self.exclude), why);
        if imatrix.is_empty() {
            progress.warn("no entry of the importance matrix is left: quantizing goes without importance");
        }
        Ok(Some(imatrix))
    }
}
