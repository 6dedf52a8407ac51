//! Quantization of a checkpoint's folder: the conversion does it in one pass.

use crate::cli::convert::to_gguf::{QuantizeRequest, ToGguf};
use crate::cli::quantize::{Quantize, QuantizeJob};
use crate::cli::{Exit, Session, UsageError};
use crate::quantize::FileType;

impl Quantize {
    /// Runs `gguf-convert hf2gguf` with the same type; its other options have their defaults.
    pub(super) fn quantize_checkpoint(&self, session: &Session, job: &QuantizeJob) -> anyhow::Result<Exit> {
        if self.keep_split {
            let text =
                "--keep-split goes with GGUF files: `gguf-convert hf2gguf --split-max-size` writes parts";
            return Err(UsageError(text.to_owned()).into());
        }
        let conversion = ToGguf::of_quantization(QuantizeRequest {
            output: (job.has_output && self.share.into.is_none()).then(|| job.output.clone()),
            file_type: job.file_type.map(FileType::name),
            dry_run: self.dry_run,
            share: self.share.clone(),
            options: self.options.clone(),
            size: self.target.clone(),
            calibrate: self.calibrate.clone(),
        });
        conversion.run_on_folder(session, &job.input)?;
        Ok(Exit::Done)
    }
}
