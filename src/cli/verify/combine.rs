//! `gguf-verify combine`: combines the outputs of several runs with `--part`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::verify::limits::{LimitArgs, against_baseline, given};
use crate::cli::verify::report::{Detail, ModelReport, VerifyDocument};
use crate::cli::verify::{imatrix, printout, report};
use crate::cli::{Exit, Session, UsageError};
use crate::core::text::escape;
use crate::verify::{PartError, Verdict, VerificationPart, combine_parts};

#[derive(Debug, Args)]
#[command(
    after_help = "Parts of a verification end in the report, the verdict and the exit code of a single run. Parts of \
    an importance matrix are added up to `-o`, and so are whole matrices, as `imatrix merge` does."
)]
pub(super) struct CombineArgs {
    /// Parts that `--part` wrote on all machines, in any order: of one verification, or of one importance matrix
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Matrix to write
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the matrix in the format before GGUF
    #[arg(long, requires = "output")]
    legacy: bool,
    /// Of whole matrices: tokens of a chunk, by which chunks are counted [default: as the files declare, else 512]
    #[arg(long, value_name = "N", requires = "output", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Of a verification: exit with 0 instead of 4 if not everything could be judged
    #[arg(long)]
    accept_partial: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    Verification,
    Matrix,
}

impl PartKind {
    fn of(path: &Path) -> Result<Self, PartError> {
        Ok(if VerificationPart::is_one(path)? { Self::Verification } else { Self::Matrix })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Verification => "a part of a verification",
            Self::Matrix => "none",
        }
    }
}

impl CombineArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let kinds = self.parts.iter().map(|path| PartKind::of(path)).collect::<Result<Vec<_>, _>>()?;
        let first = kinds.first().copied().unwrap_or(PartKind::Matrix);
        if let Some((at, kind)) = kinds.iter().enumerate().find(|(_, kind)| **kind != first) {
            let shown = |at: usize| {
                let path = self.parts.get(at).map_or(Path::new(""), PathBuf::as_path);
                escape(&path.display().to_string()).into_owned()
            };
            let (one, other) = (shown(0), shown(at));
            let (is_first, kind) = (first.name(), kind.name());
            return Err(
                UsageError(format!("{one} is {is_first}, {other} is {kind}: combine them apart")).into()
            );
        }
        match first {
            PartKind::Verification => self.verdict(session),
            PartKind::Matrix => self.matrix(session),
        }
    }

    /// Reports on all parts of a verification.
    fn verdict(&self, session: &Session) -> anyhow::Result<Exit> {
        if self.output.is_some() {
            let message =
                "`-o` is for importance matrices: the report of a verification goes to standard output";
            return Err(UsageError(message.to_owned()).into());
        }
        let parts =
            self.parts.iter().map(|path| VerificationPart::open(path)).collect::<Result<Vec<_>, _>>()?;
        let has_baseline = parts.iter().any(VerificationPart::has_baseline);
        let limits = self.limits.thresholds();
        if let Some(name) = against_baseline(&limits).filter(|_| !has_baseline) {
            let message =
                format!("`{name}` compares with a baseline: the parts were run without `--baseline`");
            return Err(UsageError(message).into());
        }
        let combined = combine_parts(parts, limits)?;
        let label = combined.label;
        let entries = [ModelReport {
            size_bytes: label.size_bytes,
            file_type: label.file_type,
            ..ModelReport::new(PathBuf::from(label.file), combined.report, Vec::new())
        }];
        if session.common.json {
            session.print_json(&VerifyDocument::new(&entries, &[]))?;
        } else {
            let detail = if session.common.verbose > 0 { Detail::Full } else { Detail::Brief };
            session.print(|out| printout::print(&entries, false, out, detail))?;
        }
        Ok(match report::verdict(&entries, false) {
            Verdict::Pass => Exit::Done,
            Verdict::Partial if self.accept_partial => Exit::Done,
            Verdict::Partial => Exit::Partial,
            Verdict::Fail => Exit::Broken,
        })
    }

    /// Refuses options that need a verdict.
    fn without_limits(&self) -> anyhow::Result<()> {
        let partial = self.accept_partial.then_some("accept-partial");
        if let Some(name) = partial.into_iter().chain(given(&self.limits.thresholds())).next() {
            return Err(UsageError(format!(
                "`--{name}` is about a verdict, and these are no parts of a verification"
            ))
            .into());
        }
        Ok(())
    }

    /// Adds up all parts of an importance matrix, or whole matrices.
    fn matrix(&self, session: &Session) -> anyhow::Result<Exit> {
        self.without_limits()?;
        let Some(output) = &self.output else {
            let message = "importance matrices are added up to a file: give `-o FILE`";
            return Err(UsageError(message.to_owned()).into());
        };
        imatrix::combine(&self.parts, output, self.legacy, self.ctx, session)
    }
}
