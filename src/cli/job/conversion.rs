//! Output of a conversion without quantization: its plan and its report.

use crate::cli::job::integers;
use crate::cli::render::{Align, Table, count, duration, plural};
use crate::cli::{Session, stored};
use crate::core::text::{bytes, escape};
use crate::job::{ConversionPlan, ConversionReport, ConvertedTensorPlan};

pub(super) fn print_plan(session: &Session, plan: &ConversionPlan) -> anyhow::Result<()> {
    stored::print(session, plan.stored.as_ref())?;
    integers::print(session, &plan.codes)?;
    let table = table(&plan.tensors);
    session.print(|out| {
        table.print(out)?;
        writeln!(out)?;
        for path in &plan.files {
            writeln!(out, "{}", path.display())?;
        }
        let (tensors, keys) =
            (plural(plan.tensors.len() as u64, "tensor"), plural(plan.n_keys as u64, "key"));
        writeln!(out, "{tensors}, {keys}, {}", bytes(plan.file_bytes))?;
        match plan.free_bytes {
            Some(free) => writeln!(out, "{} free on the disk", bytes(free)),
            None => Ok(()),
        }
    })
}

fn table(tensors: &[ConvertedTensorPlan]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("type", Align::Left),
        ("size", Align::Right),
        ("source", Align::Fill),
    ]);
    for tensor in tensors {
        let source = match tensor.sources.as_slice() {
            [] => "computed".to_owned(),
            [one] => escape(one).into_owned(),
            [first, .., last] => {
                format!("{} … {} ({})", escape(first), escape(last), tensor.sources.len())
            }
        };
        table.row([
            escape(&tensor.name).into_owned(),
            tensor.shape.to_string(),
            tensor.ty.to_string(),
            tensor.n_bytes.map_or_else(String::new, bytes),
            source,
        ]);
    }
    table
}

/// Prints the report of a finished run.
pub(super) fn print_report(session: &Session, report: &ConversionReport) -> anyhow::Result<()> {
    stored::print(session, report.stored.as_ref())?;
    integers::print(session, &report.codes)?;
    if session.common.quiet {
        return Ok(());
    }
    let rate = report.file_bytes as f64 / 1e6 / report.seconds.max(1e-9);
    session.print(|out| {
        for path in &report.files {
            writeln!(out, "{}", path.display())?;
        }
        writeln!(
            out,
            "{}, {} parameters, {}, {:.2} bits per weight as {}, {} ({rate:.0} MB/s)",
            plural(report.n_tensors as u64, "tensor"),
            count(report.n_elems),
            bytes(report.file_bytes),
            report.bits_per_weight,
            report.encoding,
            duration(report.seconds),
        )
    })
}
