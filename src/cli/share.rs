//! `--part`, `--into`, `--resume`: a run that writes its share of an output and leaves the rest to other or later runs.

use std::path::PathBuf;

use clap::Args;

use crate::gguf::Share;
use crate::job::OutputFiles;

/// Arguments of commands that may write a share.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ShareArgs {
    /// Write the I-th of N files that together are the output, divided so that all take about the same time. All runs
    /// make the same plan and are independent; `gguf-inspect merge` joins the files into what a single run writes
    #[arg(long, value_name = "I/N", conflicts_with = "calibrate")]
    pub(super) part: Option<Share>,
    /// With --part: write into this file, which all runs share (on one file system); the last run gives it its name. A
    /// part that exists already is not written again
    #[arg(long, value_name = "FILE", requires = "part")]
    pub(super) into: Option<PathBuf>,
    /// Keep the written data when the run is stopped; the same command resumes from it. Without this option a stopped
    /// run leaves nothing. (--into always keeps it)
    #[arg(long, conflicts_with = "calibrate")]
    pub(super) resume: bool,
}

impl ShareArgs {
    /// Returns the files that this run writes, unless other options divide the output.
    pub(super) fn files(&self) -> OutputFiles {
        match self.part {
            Some(share) if self.into.is_some() => OutputFiles::Into { share },
            Some(share) => OutputFiles::Share { share, resume: self.resume },
            None => OutputFiles::File { resume: self.resume },
        }
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
}
