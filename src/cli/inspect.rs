//! `gguf-inspect`: describes, compares, hashes, edits, splits and joins GGUF files.

mod about;
mod checkpoint;
mod describe;
mod diff;
mod drop;
mod dump;
mod edit;
mod get;
mod hash;
mod memory;
mod merge_parts;
mod remove;
mod rename;
mod set;
mod split;
mod template;
pub(in crate::cli) mod written;

use std::path::PathBuf;

use anyhow::bail;
use clap::{Parser, Subcommand};

#[cfg(feature = "remote")]
pub(in crate::cli) use memory::is_first;

use crate::cli::completions::Completions;
use crate::cli::{Common, Exit, Session, Tool, UsageError};

/// Maximum number of characters shown of a string, and of elements of an array.
const SHOWN_CHARS: usize = 120;
const SHOWN_ELEMS: usize = 6;

/// Entry point of `gguf-inspect`.
pub fn main() -> std::process::ExitCode {
    crate::cli::run::<Inspect>()
}

/// Returns the parser, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    <Inspect as clap::CommandFactory>::command()
}

/// Look into GGUF files, compare, hash, edit, split and merge them
///
/// A split model is given by any of its parts. A file that has the name of a command is given as ./NAME. Of a file on a
/// server (ORG/NAME/FILE.gguf, https://) only the header is read.
#[derive(Debug, Parser)]
#[command(name = "gguf-inspect", version = crate::cli::version(), long_version = crate::cli::build(), subcommand_negates_reqs = true)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed (diff: the files differ; checkpoint: not a checkpoint), 2 usage (diff: \
    also failed), \
    3 the file is broken, 130 interrupted."
)]
struct Inspect {
    #[command(subcommand)]
    command: Option<InspectCommand>,
    /// File to describe: metadata, then tensors
    #[arg(required = true)]
    file: Option<PathBuf>,
    #[command(flatten)]
    describe: describe::Describe,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum InspectCommand {
    /// Print the value of a metadata key
    ///
    /// A string is printed as it is, an array as a JSON list with one element per line. `set KEY=@FILE` reads both.
    Get(get::GetArgs),
    /// Set metadata keys; the file is replaced when the new one is complete
    ///
    /// KEY=VALUE keeps the type of an existing key; a new key gets the type that GGUF specifies for it.
    /// KEY=TYPE:VALUE names the type: u8, i8, u16, i16, u32, i32, f32, bool, str, u64, i64, f64, arr or arr[TYPE]. The
    /// text before the first colon is the type if it is one of these names; otherwise it belongs to the value. A string
    /// that begins like a type is written KEY=str:VALUE. Arrays are JSON lists: a.b=arr[u32]:[1,2].
    ///
    /// KEY=@FILE and KEY=TYPE:@FILE take the value from a file, without a line feed at its end. A value that begins
    /// with @ is written with two.
    ///
    /// Waits up to half a minute for another program that edits the file, so that no change is lost.
    ///
    /// Refused without --force: another type for a well-known key, a token id outside the vocabulary, a value with
    /// which the model could no longer be run or the tokenizer no longer be read.
    Set(set::SetArgs),
    /// Remove metadata keys; the file is replaced when the new one is complete
    ///
    /// Waits up to half a minute for another program that edits the file, so that no change is lost.
    ///
    /// Refused without --force: keys that every reader needs, and keys without which the model could not be run or
    /// would compute something else.
    Remove(remove::RemoveArgs),
    /// Give tensors other names; the file is replaced when the new one is complete
    ///
    /// Refused without --force: names with which the model could no longer be run.
    Rename(rename::RenameArgs),
    /// Leave tensors out; the file is replaced when the new one is complete
    ///
    /// For files that hold more than one model, such as the bundles of Ollama, whose text model and vision tower are
    /// one file: `gguf-inspect drop FILE '^(v|mm)\.' -o text.gguf`.
    ///
    /// Refused without --force: tensors without which the model could no longer be run.
    Drop(drop::DropArgs),
    /// Print the chat template, or set it
    ///
    /// The text is printed as it is, without an additional line feed, so that --set can read it.
    Template(template::TemplateArgs),
    /// Compare two models: metadata, tensors, decoded values; exit code 1 if they differ
    Diff(diff::DiffArgs),
    /// Print a file as Markdown, or as the JSON of llama.cpp's gguf_dump.py
    ///
    /// `gguf-inspect FILE` is easier to read, and its --json has more details. This command has the formats that web
    /// pages and scripts for gguf_dump.py read: keys and tensors by name, with their offsets in the header.
    Dump(dump::DumpArgs),
    /// Print SHA-256 of each tensor, of all tensor data, and of the file
    Hash(hash::HashArgs),
    /// Print how much memory a model takes when it runs: weights, keys and values of a context, states, compute
    ///
    /// Read off the header: no weights are read. Keys and values have the bytes that llama.cpp reports, for windows,
    /// latent attention (MLA), shared layers and recurrent states, too.
    Memory(memory::MemoryArgs),
    /// Split a model into parts, as llama-gguf-split does
    Split(split::SplitArgs),
    /// Merge the parts of a split model, given any of them
    Merge(merge_parts::MergePartsArgs),
    /// Describe a checkpoint: what it is, how it is quantized, and what gguf-convert would make of it
    ///
    /// Architecture, weights, quantization, tokenizer, and what `--type auto` and `--type native` would write. A part
    /// that cannot be converted is listed with the reason, and the rest is described. The exit code is 0 unless there
    /// is no configuration. Weights are not read, except for the scales of one quantized weight of each kind.
    Checkpoint(checkpoint::CheckpointArgs),
    /// Print a script with which a shell completes the arguments of this program
    ///
    /// For bash: `source <(gguf-inspect completions bash)`, in ~/.bashrc to keep.
    Completions(Completions),
}

impl Tool for Inspect {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match (&self.command, &self.file) {
            (Some(command), None) => command.run(session),
            (Some(_), Some(file)) => {
                bail!(UsageError(format!("`{}` and a command: give one of them", file.display())))
            }
            (None, Some(file)) => self.describe.run(file, session),
            (None, None) => bail!(UsageError("a file expected".to_owned())),
        }
    }
}

impl InspectCommand {
    fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match self {
            Self::Get(args) => args.run(session)?,
            Self::Set(args) => args.run(session)?,
            Self::Remove(args) => args.run(session)?,
            Self::Rename(args) => args.run(session)?,
            Self::Drop(args) => args.run(session)?,
            Self::Template(args) => args.run(session)?,
            Self::Diff(args) => return args.run(session),
            Self::Dump(args) => args.run(session)?,
            Self::Hash(args) => args.run(session)?,
            Self::Memory(args) => args.run(session)?,
            Self::Split(args) => args.run(session)?,
            Self::Merge(args) => args.run(session)?,
            Self::Checkpoint(args) => args.run(session)?,
            Self::Completions(args) => return args.run(command(), session),
        }
        Ok(Exit::Done)
    }
}
