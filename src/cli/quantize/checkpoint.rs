//! The folder of a checkpoint as the input: the conversion does it, in one pass.

use crate::cli::convert::to_gguf::{Quantization, ToGguf};
use crate::cli::quantize::{Job, Quantize};
use crate::cli::{Exit, Session, UsageError};

impl Quantize {
    /// What `gguf-convert hf2gguf` does with the same type and its other options as they are by default.
    pub(super) fn quantize_checkpoint(&self, session: &Session, job: &Job) -> anyhow::Result<Exit> {
        let refused = [
            (self.keep_split, "--keep-split"),
            (self.target.target().is_some(), self.target.option()),
            (self.target.write_types.is_some(), "--write-types"),
        ];
        if let Some((_, option)) = refused.iter().find(|(is_given, _)| *is_given) {
            let text = format!(
                "{option} goes with a GGUF file; `{}` is a folder: convert it first (`gguf-convert hf2gguf`)",
                job.input.display()
            );
            return Err(UsageError(text).into());
        }
        let file_type = job.file_type.map(|file_type| file_type.name().to_owned());
        let conversion = ToGguf::of_quantization(Quantization {
            output: job.has_output.then(|| job.output.clone()),
            file_type: file_type.unwrap_or_default(),
            dry_run: self.dry_run,
            options: self.options.clone(),
            calibrate: self.calibrate.clone(),
        });
        conversion.run_on_folder(session, &job.input)?;
        Ok(Exit::Done)
    }
}
