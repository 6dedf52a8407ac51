//! `gguf-verify imatrix`: collects an importance matrix, merges several, and shows the content of one.

mod collect;
mod contents;
mod coverage;
mod merge_matrices;
mod save;
mod show;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::verify::imatrix::collect::{CollectArgs, ImatrixReport};
use crate::cli::verify::imatrix::contents::MatrixContents;
use crate::cli::verify::imatrix::merge_matrices::MergeMatricesArgs;
use crate::cli::verify::imatrix::save::MatrixOutput;
use crate::cli::verify::imatrix::show::ShowArgs;
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::{Destination, OutputKind};
use crate::gguf::{CombinedImatrix, UnfinishedRun, combine_imatrix_parts};
use crate::job::Guard;
use crate::verify::{Perplexity, expert_coverage};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "A model file that is named like a command is given with its directory: `./merge`."
)]
pub(super) struct ImatrixArgs {
    #[command(subcommand)]
    command: Option<ImatrixCommand>,
    #[command(flatten)]
    collect: CollectArgs,
}

#[derive(Debug, Subcommand)]
enum ImatrixCommand {
    /// Add up several matrices of one model
    Merge(MergeMatricesArgs),
    /// Print statistics of a matrix for each tensor, layer and expert
    Show(ShowArgs),
}

/// Combines parts of a matrix, or whole matrices, into one.
pub(super) fn combine(
    files: &[PathBuf],
    output: &Path,
    legacy: bool,
    ctx: Option<u32>,
    session: &Session,
) -> anyhow::Result<Exit> {
    let parts = files.iter().filter_map(|path| UnfinishedRun::find(path)?.part).count();
    if parts == 0 {
        return MergeMatricesArgs { files: files.to_vec(), output: output.to_owned(), legacy, ctx }
            .run(session);
    }
    if ctx.is_some() {
        let message = "`--ctx` is for whole matrices: parts of one declare the length of their chunks";
        return Err(UsageError(message.to_owned()).into());
    }
    Destination::of(output)?;
    let mut guard = Guard::new(&session.progress, false);
    guard.read_all("a part", files)?;
    guard.write("-o", output, OutputKind::Imatrix)?;
    let CombinedImatrix { sums, nll, identity } = combine_imatrix_parts(files)?;
    let target = MatrixOutput { path: output, legacy, sync: !session.common.no_sync, inputs: files.to_vec() };
    target.warn_of_name(session);
    let report = ImatrixReport {
        file: output,
        file_bytes: target.write(&sums, Some(&identity))?,
        contents: MatrixContents::of(&sums),
        perplexity: Perplexity::of_nll(nll.iter().copied()),
        experts: expert_coverage(&sums),
        part: None,
        n_parts: None,
    };
    report.print(session)?;
    Ok(Exit::Done)
}

impl ImatrixArgs {
    /// Collects the matrix of a folder of quantizations without a report.
    pub(super) fn measure(mut self, session: &Session) -> anyhow::Result<()> {
        self.collect.is_of_folder = true;
        self.collect.write(session).map(drop)
    }

    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        match &self.command {
            Some(ImatrixCommand::Merge(args)) => args.run(session),
            Some(ImatrixCommand::Show(args)) => args.run(session),
            None => self.collect.run(session),
        }
    }
}
