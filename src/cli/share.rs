//! `--part`, `--into`, `--resume`: a run that writes its share of an output and leaves the rest to other or later runs.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::Session;
use crate::cli::render::plural;
use crate::core::text::{bytes, escape};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::split::part_path;
use crate::gguf::{Metadata, Share, WriteOptions, WriteReport, plan_files};

/// Arguments of commands that may write a share.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ShareArgs {
    /// Write the I-th of N files that together are the output, divided so that all take about the same time. All runs
    /// make the same plan and are independent; `gguf-inspect merge` joins the files into what a single run writes
    #[arg(long, value_name = "I/N", conflicts_with = "calibration")]
    pub(super) part: Option<Share>,
    /// With --part: write into this file, which all runs share (on one file system); the last run gives it its name. A
    /// part that exists already is not written again
    #[arg(long, value_name = "FILE", requires = "part")]
    pub(super) into: Option<PathBuf>,
    /// Keep the written data when the run is stopped; the same command resumes from it. Without this option a stopped
    /// run leaves nothing. (--into always keeps it)
    #[arg(long, conflicts_with = "calibration")]
    pub(super) resume: bool,
}

impl ShareArgs {
    /// Returns the file that this run writes, if it writes a share of `target`.
    pub(super) fn file(&self, target: &Path) -> Option<PathBuf> {
        let share = self.part?;
        let is_own = self.into.is_none() && share.count() > 1;
        Some(if is_own { part_path(target, share.number(), share.count()) } else { target.to_owned() })
    }

    /// Returns a sentence about what is kept of a run that was stopped while it wrote.
    pub(super) fn after_interrupt(&self) -> String {
        let text = if self.resume || self.into.is_some() {
            "what was written is kept: the same command resumes from it"
        } else {
            "nothing was kept: with `--resume` a run that is stopped can be resumed"
        };
        text.to_owned()
    }

    /// Notes which tensors belong to the share, if only a share is written.
    pub(super) fn note(
        &self,
        session: &Session,
        metadata: &Metadata,
        source: &dyn TensorSource,
        options: &WriteOptions,
    ) -> anyhow::Result<()> {
        let Some(share) = self.part else { return Ok(()) };
        let split = options.split.as_ref();
        let files = plan_files(Path::new("part"), metadata, source.tensors(), &options.layout, split)?;
        let own = files.into_iter().next().map_or(0..0, |file| file.tensors);
        let tensors = source.tensors().get(own).unwrap_or_default();
        if let (Some(first), Some(last)) = (tensors.first(), tensors.last()) {
            let n_bytes = tensors.iter().filter_map(TensorMeta::n_bytes).sum();
            session.note(&format!(
                "part {share}: {} of {}, `{}` to `{}`, {}",
                tensors.len(),
                plural(source.tensors().len() as u64, "tensor"),
                escape(&first.name),
                escape(&last.name),
                bytes(n_bytes),
            ));
        }
        Ok(())
    }

    /// Notes where a run resumed, and which parts of a shared file are missing.
    pub(super) fn note_rest(&self, session: &Session, report: &WriteReport) {
        if report.resumed_at > 0 {
            let (at, of) = (bytes(report.resumed_at), bytes(report.file_bytes));
            session.note(&format!("resumed at {at} of {of}, where the last run stopped"));
        }
        let (Some(share), Some(_), [path]) = (self.part, &self.into, report.paths.as_slice()) else { return };
        let path = path.display().to_string();
        let path = escape(&path);
        if report.was_there {
            session.note(&format!("{path}: part {share} was there already, and was not written again"));
        }
        if report.missing.is_empty() {
            return session.note(&format!("{path}: all parts are there"));
        }
        let missing: Vec<_> =
            report.missing.iter().map(|number| format!("{number}/{}", share.count())).collect();
        session.note(&format!("{path} gets its name when these parts are written: {}", missing.join(", ")));
    }
}
