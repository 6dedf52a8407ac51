//! `gguf-verify imatrix`: collects an importance matrix, adds several up, and shows what one says.

mod collect;
mod coverage;
mod merge;
mod save;
mod show;

use clap::{Args, Subcommand};

use crate::cli::verify::imatrix::collect::CollectArgs;
use crate::cli::verify::imatrix::merge::MergeArgs;
use crate::cli::verify::imatrix::show::ShowArgs;
use crate::cli::{Exit, Session};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "A model file that is named like a command is given with its directory: `./merge`."
)]
pub(super) struct ImatrixArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    collect: CollectArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add up several matrices of one model
    Merge(MergeArgs),
    /// Print what a matrix says about each tensor, layer and expert
    Show(ShowArgs),
}

impl ImatrixArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(Command::Merge(args)) => args.run(session),
            Some(Command::Show(args)) => args.run(session),
            None => self.collect.run(session),
        }
    }
}
