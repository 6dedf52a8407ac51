//! `gguf-verify combine`: what several runs with `--part` wrote, as one.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::verify::judge::FigureLimits;
use crate::cli::verify::report::{ModelReport, PromptRows};
use crate::cli::verify::{imatrix, report};
use crate::cli::{Exit, Session, UsageError};
use crate::core::text::escape;
use crate::verify::{Verdict, VerificationPart, combine_parts};

#[derive(Debug, Args)]
#[command(
    after_help = "Parts of a verification end in the report, the verdict and the exit code of a single run. Parts of \
    an importance matrix are added up to `-o`, and so are whole matrices, as `imatrix merge` does."
)]
pub(super) struct CombineArgs {
    /// What `--part` wrote on all machines, in any order: parts of one verification, or parts of one importance matrix
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Where to write the matrix
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the matrix in the format before GGUF
    #[arg(long, requires = "output")]
    legacy: bool,
    /// Of whole matrices: tokens of a chunk, by which chunks are counted [default: what the files say, else 512]
    #[arg(long, value_name = "N", requires = "output", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Of a verification: exit with 0 instead of 4 where not all could be judged
    #[arg(long)]
    accept_partial: bool,
    #[command(flatten)]
    limits: FigureLimits,
}

impl CombineArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let is_verification =
            self.parts.iter().map(|path| VerificationPart::is_one(path)).collect::<Result<Vec<_>, _>>()?;
        match (is_verification.iter().position(|is| *is), is_verification.iter().position(|is| !is)) {
            (Some(one), Some(other)) => {
                let shown = |at: usize| {
                    let path = self.parts.get(at).map_or(Path::new(""), PathBuf::as_path);
                    escape(&path.display().to_string()).into_owned()
                };
                let (one, other) = (shown(one), shown(other));
                Err(UsageError(format!(
                    "{one} is a part of a verification, {other} is not: combine them apart"
                ))
                .into())
            }
            (Some(_), None) => self.verdict(session),
            (None, _) => self.matrix(session),
        }
    }

    /// The report of all parts of a verification.
    fn verdict(&self, session: &Session) -> anyhow::Result<Exit> {
        if self.output.is_some() {
            let message =
                "`-o` is for importance matrices: the report of a verification goes to standard output";
            return Err(UsageError(message.to_owned()).into());
        }
        let parts =
            self.parts.iter().map(|path| VerificationPart::open(path)).collect::<Result<Vec<_>, _>>()?;
        let has_baseline = parts.iter().any(VerificationPart::has_baseline);
        let against = [
            ("--max-ppl-increase", self.limits.max_ppl_increase),
            ("--max-kld", self.limits.max_kld),
            ("--max-kld-99", self.limits.max_kld_99),
            ("--min-top1", self.limits.min_top1),
        ];
        if let Some((name, _)) = against.iter().find(|(_, limit)| limit.is_some() && !has_baseline) {
            let message =
                format!("`{name}` compares with a baseline: the parts were run without `--baseline`");
            return Err(UsageError(message).into());
        }
        let combined = combine_parts(parts, self.limits.thresholds())?;
        let label = combined.label;
        let entries = [ModelReport {
            path: PathBuf::from(label.file),
            size_bytes: label.size_bytes,
            file_type: label.file_type,
            report: combined.report,
            details: None,
            inputs: Vec::new(),
        }];
        if session.common.json {
            session.print_json(&report::to_json(&entries))?;
        } else {
            let rows = if session.common.verbose > 0 { PromptRows::All } else { PromptRows::Few };
            session.print(|out| report::print(&entries, out, rows))?;
        }
        Ok(match report::verdict(&entries) {
            Verdict::Pass => Exit::Done,
            Verdict::Partial if self.accept_partial => Exit::Done,
            Verdict::Partial => Exit::Partial,
            Verdict::Fail => Exit::Broken,
        })
    }

    /// The sum of all parts of an importance matrix, or of whole ones.
    fn matrix(&self, session: &Session) -> anyhow::Result<Exit> {
        let limits = self.limits;
        let is_given = [
            ("--accept-partial", self.accept_partial),
            ("--max-ppl", limits.max_ppl.is_some()),
            ("--max-ppl-increase", limits.max_ppl_increase.is_some()),
            ("--max-kld", limits.max_kld.is_some()),
            ("--max-kld-99", limits.max_kld_99.is_some()),
            ("--min-top1", limits.min_top1.is_some()),
        ];
        if let Some((name, _)) = is_given.into_iter().find(|(_, is_given)| *is_given) {
            return Err(UsageError(format!(
                "`{name}` is about a verdict, and these are no parts of a verification"
            ))
            .into());
        }
        let Some(output) = &self.output else {
            let message = "importance matrices are added up to a file: give `-o FILE`";
            return Err(UsageError(message.to_owned()).into());
        };
        imatrix::combine(&self.parts, output, self.legacy, self.ctx, session)
    }
}
