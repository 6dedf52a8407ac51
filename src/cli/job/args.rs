//! Options that a conversion to GGUF and a quantization have in common.

use std::path::Path;

use clap::Args;

use crate::cli::Common;
use crate::cli::quantize::calibrate::CalibrateArgs;
use crate::cli::quantize::options::QuantizeArgs;
use crate::cli::quantize::target::TargetArgs;
use crate::cli::share::ShareArgs;
use crate::job::{Job, OutputPath};

/// Options of the quantization and of its output. Flatten it.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct JobArgs {
    #[command(flatten)]
    pub(in crate::cli) share: ShareArgs,
    #[command(flatten)]
    pub(in crate::cli) quantize: QuantizeArgs,
    #[command(flatten)]
    pub(in crate::cli) size: TargetArgs,
    #[command(flatten)]
    pub(in crate::cli) calibrate: CalibrateArgs,
}

impl JobArgs {
    /// Returns true if an option was given that requires a quantization.
    pub(in crate::cli) fn asks_for_quantization(&self) -> bool {
        self.quantize.is_any_given() || self.calibrate.is_given() || self.size.write_types.is_some()
    }

    /// Fills in the options of a job, except those of its input.
    pub(in crate::cli) fn fill(&self, job: Job, common: &Common) -> anyhow::Result<Job> {
        Ok(Job {
            calibration: self.calibrate.calibration(common)?,
            quantize: self.quantize.to_options(common.simd)?,
            importance: self.quantize.importance(),
            rule_files: self.quantize.tensor_types.files().cloned().collect(),
            write_types: self.size.write_types.clone(),
            ..with_common(job, common)
        })
    }

    /// Returns a sentence about what is kept of a stopped run. `is_set` is true if it writes several files.
    pub(in crate::cli) fn after_interrupt(&self, is_set: bool) -> Option<String> {
        if self.calibrate.is_given() {
            return self.calibrate.after_interrupt();
        }
        // A run that writes several files cannot be resumed.
        Some(if is_set { "nothing was kept".to_owned() } else { self.share.after_interrupt() })
    }
}

/// Fills in the common options of a job.
pub(in crate::cli) fn with_common(job: Job, common: &Common) -> Job {
    Job { sync: !common.no_sync, memory_bytes: common.memory_bytes(), ..job }
}

/// Returns the path of a conversion's output: a file, or the directory that is given or `dir`.
pub(in crate::cli) fn output_path(output: Option<&Path>, dir: &Path) -> OutputPath {
    match output {
        Some(path) if !path.is_dir() => OutputPath::File(path.to_owned()),
        Some(path) => OutputPath::Directory(path.to_owned()),
        None => OutputPath::Directory(dir.to_owned()),
    }
}
