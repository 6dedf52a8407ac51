//! `gguf-convert merge-lora`: merges an adapter into its base model.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::arch::CardKind;
use crate::cli::convert::to_gguf::{ToGguf, check_tower_types};
use crate::cli::modelfile::PromptForm;
use crate::cli::remote::RemoteArgs;
use crate::cli::{Exit, Session, UsageError};
use crate::convert::ConvertOptions;
use crate::core::output::{OutputFile, OutputKind};
use crate::core::text::escape;
use crate::gguf::GgufFile;
use crate::job::{Guard, JobInput, JobTypes};

/// Help of `--output`, whose default differs from that of the other commands.
const OUTPUT: &str =
    "File or directory to write [default: in the current directory, named after the adapter]";

/// Arguments of `merge-lora`.
#[derive(Debug, Args)]
#[command(mut_arg("output", |arg| arg.help(OUTPUT)), mut_arg("vocab_only", |arg| arg.hide(true)))]
pub(super) struct MergeLora {
    /// Directory of the base model: config.json, weights, tokenizer files; or a model on a server, as with hf2gguf
    base: PathBuf,
    /// Directory of the adapter: adapter_config.json, and adapter_model.safetensors or adapter_model.bin; or one on a server
    adapter: PathBuf,
    /// Write the vision and audio towers with the adapter's changes, instead of the text model [default name:
    /// mmproj-NAME-TYPE.gguf]
    #[arg(long, conflicts_with_all = ["annotate", "pre", "chat_template", "vocab_only", "target"])]
    mmproj: bool,
    /// Write a Modelfile beside the output, for `ollama create`
    #[arg(long, conflicts_with_all = ["mmproj", "vocab_only", "dry_run"])]
    modelfile: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    pub(super) to_gguf: ToGguf,
}

impl MergeLora {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let base = self.remote.directory(session, &self.base)?;
        let adapter = self.remote.directory(session, &self.adapter)?;
        self.remote.check_use([&base, &adapter])?;
        let adjust = |types: &JobTypes, options: &mut ConvertOptions| {
            if options.vocab_only {
                let text = "`--vocab-only` writes no tensors: there is nothing to merge into";
                return Err(UsageError(text.to_owned()).into());
            }
            if self.mmproj {
                check_tower_types(types)?;
                options.kind = CardKind::Mmproj;
            }
            Ok(())
        };
        let input = JobInput::Merged { base: base.path().to_owned(), adapter: adapter.path().to_owned() };
        // The result belongs neither to the base model's directory, which may contain its own conversion, nor to the
        // adapter's.
        let files = self.to_gguf.run(session, input, Path::new("."), adjust)?;
        if let Some(file) = files.first().filter(|_| self.modelfile) {
            write_modelfile(session, file)?;
        }
        Ok(Exit::Done)
    }
}

/// Writes the Modelfile of a merged model next to it.
fn write_modelfile(session: &Session, model: &Path) -> anyhow::Result<()> {
    let path = model.with_file_name("Modelfile");
    Guard::new(&session.progress, false).write("--modelfile", &path, OutputKind::Modelfile)?;
    let file = GgufFile::open(model)?;
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = PromptForm::of(file.metadata()).modelfile("NAME", &[name]);
    OutputFile::write(&path, text.as_bytes(), !session.common.no_sync)?;
    session.note(&format!("written: {}", escape(&path.display().to_string())));
    Ok(())
}
