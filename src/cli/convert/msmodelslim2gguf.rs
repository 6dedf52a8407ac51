//! `gguf-convert msmodelslim2gguf`: converts a checkpoint of Ascend's msModelSlim.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::convert::to_gguf::ToGguf;
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session};
use crate::convert::{ConvertOptions, OffsetSign};
use crate::job::{JobInput, JobTypes};

/// How offsets are meant.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OffsetSignArg {
    /// As the description file declares it: subtracted, for every known version of the tool
    Auto,
    /// Subtracted from the codes
    File,
    /// Added to the codes, as the NPU's kernels do
    Npu,
}

/// Arguments of `msmodelslim2gguf`.
#[derive(Debug, Args)]
pub(super) struct Msmodelslim2gguf {
    /// Directory of the checkpoint: config.json, quant_model_description*.json, weights, tokenizer files; or a model on
    /// a server, as with hf2gguf
    dir: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Sign of the offsets in the file; a warning is printed if the other one fits the weights better
    #[arg(long, value_enum, ignore_case = true, value_name = "SIGN", default_value = "auto")]
    offset_sign: OffsetSignArg,
    #[command(flatten)]
    pub(super) to_gguf: ToGguf,
}

impl Msmodelslim2gguf {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let adjust = |_: &JobTypes, options: &mut ConvertOptions| {
            options.offset_sign = match self.offset_sign {
                OffsetSignArg::Auto => OffsetSign::Auto,
                OffsetSignArg::File => OffsetSign::File,
                OffsetSignArg::Npu => OffsetSign::Npu,
            };
            Ok(())
        };
        let model = self.remote.directory(session, &self.dir)?;
        self.remote.check_use([&model])?;
        let input = JobInput::MsModelSlim(model.path().to_owned());
        self.to_gguf.run(session, input, model.output(), adjust)?;
        Ok(Exit::Done)
    }
}
