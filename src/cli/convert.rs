//! `gguf-convert`: converts checkpoints to GGUF and back.

mod archs;
mod draft;
mod endian;
mod flm2gguf;
mod gguf2hf;
mod hf2gguf;
mod lora2gguf;
mod merge_lora;
mod msmodelslim2gguf;
pub(in crate::cli) mod to_gguf;

use std::ffi::OsString;
use std::path::Path;

use clap::{Parser, Subcommand};

use crate::cli::completions::Completions;
use crate::cli::{Common, Exit, Session, Tool};
use archs::Archs;
use draft::DraftArgs;
use endian::EndianArgs;
use flm2gguf::Flm2gguf;
use gguf2hf::Gguf2hf;
use hf2gguf::Hf2gguf;
use lora2gguf::Lora2gguf;
use merge_lora::MergeLora;
use msmodelslim2gguf::Msmodelslim2gguf;

/// Entry point of `gguf-convert`.
pub fn main() -> std::process::ExitCode {
    crate::cli::run::<Convert>()
}

/// Returns the parser, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Convert as clap::CommandFactory>::command()
}

/// Returns the parser of `hf2gguf`, which makes the files that other programs read.
pub(super) fn hf2gguf() -> clap::Command {
    <Hf2gguf as clap::Args>::augment_args(clap::Command::new("gguf-convert"))
}

/// Turn checkpoints into GGUF files, and back
#[derive(Debug, Parser)]
#[command(name = "gguf-convert", version = crate::cli::version(), long_version = crate::cli::build())]
struct Convert {
    #[command(subcommand)]
    command: ConvertCommand,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum ConvertCommand {
    /// Convert a Hugging Face checkpoint to GGUF
    Hf2gguf(Box<Hf2gguf>),
    /// Convert a checkpoint quantized by Ascend's msModelSlim to GGUF
    Msmodelslim2gguf(Box<Msmodelslim2gguf>),
    /// Convert a FastLLM file (.flm) to GGUF
    Flm2gguf(Box<Flm2gguf>),
    /// Convert a LoRA adapter of PEFT or MLX to a GGUF adapter
    Lora2gguf(Lora2gguf),
    /// Merge a LoRA adapter of PEFT or MLX into its base model and convert the result to GGUF, in one pass
    MergeLora(Box<MergeLora>),
    /// Convert a GGUF file back to a Hugging Face checkpoint
    Gguf2hf(Gguf2hf),
    /// List the architectures and model classes that can be converted, or show what a card reads and writes
    Archs(Archs),
    /// Write a first architecture card for a checkpoint that none fits
    Draft(DraftArgs),
    /// Write a GGUF file in the other byte order
    ///
    /// For machines such as IBM Z. Swaps the bytes of the numbers of the header, of floats, and of all numbers in
    /// blocks that are wider than a byte. Converting twice restores the file.
    Endian(EndianArgs),
    /// Print a script with which a shell completes the arguments of this program
    ///
    /// For bash: `source <(gguf-convert completions bash)`, in ~/.bashrc to keep.
    Completions(Completions),
}

/// Returns the command for an input that is given without one; `None` if it looks like no input.
fn meant(input: &Path) -> Option<&'static str> {
    let has = |name: &str| input.join(name).is_file();
    let is_suffix = |suffix: &str| input.extension().is_some_and(|own| own.eq_ignore_ascii_case(suffix));
    let is_address = || !is_suffix("gguf") && input.to_str().is_some_and(|text| text.contains('/'));
    if input.is_dir() {
        let is_quantized = fs_err::read_dir(input)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("quant_model_description"));
        return Some(match () {
            () if is_quantized => "msmodelslim2gguf",
            () if has("adapter_config.json") && !has("config.json") => "lora2gguf",
            () => "hf2gguf",
        });
    }
    match () {
        () if is_suffix("flm") => Some("flm2gguf"),
        () if is_suffix("gguf") && input.is_file() => Some("gguf2hf"),
        // Whatever else is there, `hf2gguf` reads or names.
        () => (input.is_file() || is_address()).then_some("hf2gguf"),
    }
}

impl Tool for Convert {
    fn common(&self) -> &Common {
        &self.common
    }

    /// Inserts the command that fits the input, for `gguf-convert DIR` alone.
    fn arguments(mut arguments: Vec<OsString>) -> Vec<OsString> {
        let Some(first) = arguments.get(1) else { return arguments };
        let is_command = |name: &str| command().get_subcommands().any(|sub| sub.get_name() == name);
        let is_known =
            first.to_str().is_some_and(|text| text.starts_with('-') || text == "help" || is_command(text));
        if !is_known && let Some(name) = meant(Path::new(first)) {
            arguments.insert(1, name.into());
        }
        arguments
    }

    fn after_interrupt(&self) -> Option<String> {
        let to_gguf = match &self.command {
            ConvertCommand::Hf2gguf(args) => &args.to_gguf,
            ConvertCommand::Msmodelslim2gguf(args) => &args.to_gguf,
            ConvertCommand::Flm2gguf(args) => &args.to_gguf,
            ConvertCommand::MergeLora(args) => &args.to_gguf,
            _ => return None,
        };
        to_gguf.after_interrupt()
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            ConvertCommand::Hf2gguf(args) => args.run(session),
            ConvertCommand::Msmodelslim2gguf(args) => args.run(session),
            ConvertCommand::Flm2gguf(args) => args.run(session),
            ConvertCommand::Lora2gguf(args) => args.run(session),
            ConvertCommand::MergeLora(args) => args.run(session),
            ConvertCommand::Gguf2hf(args) => args.run(session),
            ConvertCommand::Archs(args) => args.run(session),
            ConvertCommand::Draft(args) => args.run(session),
            ConvertCommand::Endian(args) => args.run(session),
            ConvertCommand::Completions(args) => args.run(command(), session),
        }
    }
}
