//! Jobs of the programs: planned or run, with their events and results on the terminal.

mod args;
mod conversion;
mod integers;
mod quantization;

use std::io;
use std::path::PathBuf;

use crate::cli::quantize::options::usage;
use crate::cli::{Session, UsageError, stored};
use crate::core::progress::Progress;
use crate::gguf::Imatrix;
use crate::job::{Events, Job, JobError, JobPlan, JobReport, Remark};

pub(super) use args::{JobArgs, output_path, with_common};

/// Plans or runs a job, and prints the plan or the report. Returns the files that were written.
pub(super) fn carry_out(session: &Session, job: &Job, dry_run: bool) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = job.importance.path.as_ref().filter(|_| !job.types.is_quantized()) {
        Imatrix::open(path)?;
        session.note("`--imatrix` changes nothing: no weight is quantized with importance");
    }
    if dry_run {
        let plan = job.plan(session).map_err(failure)?;
        print_plan(session, &plan)?;
        return Ok(Vec::new());
    }
    let report = job.run(session).map_err(failure)?;
    match &report {
        _ if session.common.json => session.print_json(&report)?,
        JobReport::Convert(report) => conversion::print_report(session, report)?,
        JobReport::Quantize(report) => quantization::print_report(session, report)?,
    }
    Ok(match report {
        JobReport::Convert(report) => report.files,
        JobReport::Quantize(report) => report.files,
    })
}

fn print_plan(session: &Session, plan: &JobPlan) -> anyhow::Result<()> {
    if session.common.json {
        return session.print_json(plan);
    }
    match plan {
        JobPlan::Convert(plan) => conversion::print_plan(session, plan),
        JobPlan::Quantize(plan) => {
            stored::print(session, plan.stored.as_ref())?;
            quantization::print_plan(session, plan)
        }
    }
}

/// Returns the error of a job as the programs report it.
pub(super) fn failure(error: JobError) -> anyhow::Error {
    match error {
        JobError::Options(error) => UsageError(error.to_string()).into(),
        JobError::Types(error) => usage(error),
        JobError::Convert(error) => error.into(),
        JobError::Gguf(error) => error.into(),
        error @ (JobError::NotAModel { .. }
        | JobError::NotALanguageModel { .. }
        | JobError::Dropped { .. }) => error.into(),
        JobError::Guard(error) => error.into(),
        JobError::NameTaken(error) => error.into(),
        JobError::Folder(error) => error.into(),
        JobError::Output(error) => error.into(),
        JobError::Imatrix(error) => error.into(),
        JobError::Overrides(error) => error.into(),
        JobError::Like(error) => error.into(),
        JobError::NativeFloats(error) => error.into(),
        JobError::Allocate(error) => error.into(),
        JobError::Quantize(error) => error.into(),
        JobError::Calibrate(error) => error.into(),
        JobError::Engine(error) => error.into(),
        JobError::Write(error) => error.into(),
        JobError::Recipe(error) => error.into(),
        JobError::Show(error) => error.into(),
    }
}

impl Events for Session {
    fn progress(&self) -> &dyn Progress {
        &self.progress
    }

    fn oddity(&self, text: &str) {
        if self.progress.is_new(text) {
            log::warn!("{text}");
        }
    }

    fn remark(&self, remark: &Remark) {
        let n = if self.common.verbose > 0 { usize::MAX } else { 3 };
        self.progress.warn(&remark.shortened(n, |left| format!(" and {left} more (-v lists all)")));
    }

    fn note(&self, text: &str) {
        if self.progress.is_new(text) {
            Self::note(self, text);
        }
    }

    fn detail(&self, text: &str) {
        log::info!("{text}");
    }

    /// Prints what is known of a quantized checkpoint, and types that were chosen for a size.
    fn planned(&self, plan: &JobPlan) -> io::Result<()> {
        let JobPlan::Quantize(plan) = plan else { return Ok(()) };
        if self.common.json || self.common.quiet {
            return Ok(());
        }
        let print = || {
            stored::print(self, plan.stored.as_ref())?;
            integers::print(self, &plan.codes)?;
            if plan.target.is_some() { quantization::print_plan(self, plan) } else { Ok(()) }
        };
        print().map_err(|error| error.downcast::<io::Error>().unwrap_or_else(io::Error::other))
    }
}
