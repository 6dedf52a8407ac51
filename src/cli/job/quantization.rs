//! Output of a quantization: its plan and its report.

mod calibration;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::calibrate::most_candidates;
use crate::cli::Session;
use crate::cli::render::{Align, Table, count, duration, plural};
use crate::core::text::{bytes, escape};
use crate::job::{PromiseReport, QuantizationPlan, QuantizationReport, QuantizedTensorPlan, TargetReport};
use crate::quantize::{MeasuredKld, Summary, TensorClass};

/// Prints the plan, with the expected cost of types that were chosen for a size, and the resources that calibration
/// would take.
pub(super) fn print_plan(session: &Session, plan: &QuantizationPlan) -> anyhow::Result<()> {
    let table = table(&plan.tensors);
    session.print(|out| {
        table.print(out)?;
        writeln!(out)?;
        print_summary(out, &plan.summary)?;
        if let Some(target) = &plan.target {
            writeln!(out, "\n{}", target_lines(target))?;
        }
        match &plan.calibration {
            Some(forecast) => {
                writeln!(out)?;
                calibration::print_forecast(out, forecast)
            }
            None => Ok(()),
        }
    })
}

fn table(tensors: &[QuantizedTensorPlan]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("size", Align::Right),
        ("why", Align::Left),
    ]);
    for tensor in tensors {
        let imatrix = if tensor.has_importance { ", imatrix" } else { "" };
        let cost = tensor.expected_kld.map_or_else(String::new, |cost| format!(", KLD {cost:.6}"));
        table.row([
            escape(&tensor.name).into_owned(),
            tensor.shape.to_string(),
            tensor.from.to_string(),
            tensor.to.to_string(),
            bytes(tensor.bytes_after.unwrap_or(0)),
            format!("{}{cost}{imatrix}", tensor.reason),
        ]);
    }
    table
}

/// Describes the limit of a divergence, and what was measured.
fn promise_line(target: &TargetReport, promise: &PromiseReport) -> String {
    let most = promise.most_kld;
    let (Some(mean), Some(stderr), Some(bound)) = (promise.mean_kld, promise.stderr, promise.bound) else {
        let n = most_candidates();
        return format!(
            "types for a mean KLD of at most {most}, as estimated before anything is measured: file of {}, expected KLD {:.6}; \
             a run calibrates and measures some 5 to 10 choices of types, at most {n}",
            count(target.file_bytes),
            target.expected_kld,
        );
    };
    format!(
        "types for a mean KLD of at most {most}: file of {} ({:.3} bits per weight with its header), measured on the text held \
         back: {mean:.6} ± {stderr:.6}, with two standard errors {bound:.6}; {} measured",
        count(target.file_bytes),
        target.bits_per_weight,
        plural(promise.tried.len() as u64, "choice"),
    )
}

/// Describes the target size, the size that was reached, and the nearest standard mix.
fn target_lines(target: &TargetReport) -> String {
    let by_size = || {
        format!(
            "types for at most {} bytes: file of {} ({:.3} bits per weight with its header), expected KLD {:.6}",
            count(target.target_bytes),
            count(target.file_bytes),
            target.bits_per_weight,
            target.expected_kld,
        )
    };
    let mut text = target.promise.as_ref().map_or_else(by_size, |promise| promise_line(target, promise));
    if target.n_runs > 0 && target.promise.is_none() {
        text += " by ";
        text += &plural(target.n_runs as u64, "run");
        text += " of the model";
    }
    if let Some(mix) = &target.mix {
        let line = format!(
            "\n{}, the standard mix nearest in size: file of {}, expected KLD {:.6}",
            mix.file_type,
            count(mix.file_bytes),
            mix.expected_kld
        );
        text.push_str(&line);
        if let Some(MeasuredKld { mean_kld, stderr }) = mix.measured {
            let line = format!(
                "; by the importance matrix alone, on the text held back: {mean_kld:.6} ± {stderr:.6}"
            );
            text.push_str(&line);
        }
    }
    text
}

fn print_summary(out: &mut dyn Write, summary: &Summary) -> std::io::Result<()> {
    let mut table = Table::new(&[
        ("class", Align::Left),
        ("tensors", Align::Right),
        ("weights", Align::Right),
        ("before", Align::Right),
        ("after", Align::Right),
        ("bits per weight", Align::Right),
    ]);
    let total = ("total".to_owned(), summary.total);
    let classes = summary.classes.iter().map(|(class, sizes)| {
        let name = if *class == TensorClass::Other { "all others".to_owned() } else { class.to_string() };
        (name, *sizes)
    });
    for (name, sizes) in classes.chain([total]) {
        table.row([
            name,
            sizes.n_tensors.to_string(),
            count(sizes.n_elems),
            bytes(sizes.bytes_before),
            bytes(sizes.bytes_after),
            format!("{:.3}", sizes.bits_per_weight),
        ]);
    }
    table.print(out)
}

/// Prints the report of a finished run.
pub(super) fn print_report(session: &Session, report: &QuantizationReport) -> anyhow::Result<()> {
    if session.common.quiet {
        return Ok(());
    }
    let total = report.summary.total;
    session.print(|out| {
        print_summary(out, &report.summary)?;
        writeln!(out)?;
        writeln!(
            out,
            "{}: {}, {} -> {} ({:.2} -> {:.2} bits per weight), {}, {:.0} MB/s{}",
            shown_paths(&report.files),
            if report.target.is_some() { "chosen types".to_owned() } else { report.file_type.to_string() },
            bytes(total.bytes_before),
            bytes(total.bytes_after),
            total.bits_per_weight_before(),
            total.bits_per_weight,
            duration(report.seconds),
            report.mb_per_second,
            match report.n_fallbacks {
                0 => String::new(),
                n => format!(", {} in another type than asked", plural(n as u64, "tensor")),
            },
        )?;
        if let Some(target) = &report.target {
            writeln!(out, "{}", target_lines(target))?;
        }
        match &report.calibration {
            Some(report) => writeln!(out, "{}", calibration::line(report)),
            None => Ok(()),
        }
    })
}

fn shown_paths(paths: &[PathBuf]) -> String {
    let shown = |path: &Path| escape(&path.display().to_string()).into_owned();
    match paths {
        [] => String::new(),
        [path] => shown(path),
        [first, .., last] => format!("{} to {}", shown(first), shown(last)),
    }
}
