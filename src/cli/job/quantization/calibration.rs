//! Output of a calibration: the resources that it would take, and its figures.

use std::io::Write;

use crate::calibrate::Forecast;
use crate::cli::render::{count, duration, plural};
use crate::core::text::{bytes, escape};
use crate::job::{CalibrationPlan, CalibrationReport, KindFacts};

/// Prints the forecast below a plan: what would be solved, the text, memory and disk.
pub(super) fn print_forecast(out: &mut dyn Write, plan: &CalibrationPlan) -> std::io::Result<()> {
    writeln!(
        out,
        "calibration by `{}`: {} of {} to calibrate",
        plan.solver.name(),
        plural(plan.n_matrices, "matrix"),
        plural(plan.n_tensors as u64, "tensor"),
    )?;
    if let Some((tensor, ty)) = plan.without_solver.first() {
        let n = plural(plan.without_solver.len() as u64, "tensor");
        writeln!(
            out,
            "rounded as usual, since their type cannot be calibrated: {n}: `{}` ({ty}), for example",
            escape(tensor)
        )?;
    }
    let kind = |kind: &KindFacts| {
        let to_come = if kind.seed.is_some() { ", to be written by the model" } else { "" };
        format!("{} ({} tokens{to_come})", escape(&kind.name), count(kind.n_tokens as u64))
    };
    let kinds: Vec<String> = plan.text.kinds.iter().map(kind).collect();
    let n_held_out = count(plan.text.n_held_out_tokens as u64);
    writeln!(out, "text: {}; {n_held_out} other tokens to judge the result by", kinds.join(", "))?;
    let phase = |(n_bytes, what): (Option<u64>, &str)| n_bytes.map(|n| format!(", {} {what}", bytes(n)));
    let phases = [(plan.self_bytes, "to write the text"), (plan.tuning_bytes, "to tune")];
    let mut phases: Vec<String> = phases.into_iter().filter_map(phase).collect();
    if !phases.is_empty() {
        phases.push(",".to_owned());
    }
    writeln!(
        out,
        "memory in addition to the weights: {}{} of {} allowed{}; {} of disk until the output is written",
        bytes(if plan.is_spilling { plan.needs.least_bytes } else { plan.needs.all_bytes }),
        phases.concat(),
        bytes(plan.budget_bytes),
        if plan.is_spilling {
            format!(", hidden states on disk ({} would hold them)", bytes(plan.needs.all_bytes))
        } else {
            String::new()
        },
        bytes(plan.disk_bytes),
    )?;
    let Some(Forecast { text, activations, moments, solving, check, tuning }) = plan.forecast else {
        return Ok(());
    };
    let phases = [
        ("writing text", text),
        ("running the model", activations),
        ("moments", moments),
        ("solving", solving),
        ("judging", check),
        ("tuning", tuning),
    ];
    let phases: Vec<String> = phases
        .into_iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(what, seconds)| format!("{what} {}", duration(seconds)))
        .collect();
    let total = plan.forecast.as_ref().map_or(0.0, Forecast::total);
    writeln!(
        out,
        "forecast for this machine if it does nothing else: {} ({})",
        duration(total),
        phases.join(", ")
    )
}

/// Returns the line below a report: text, and the figures of the check.
pub(super) fn line(report: &CalibrationReport) -> String {
    let kinds = plural(report.text.kinds.len() as u64, "kind");
    let (n_tokens, n_held_out) = (report.text.n_tokens, report.text.n_held_out_tokens);
    let plain = &report.plain;
    let last = report.trials.last().zip(report.ratio);
    let found = last.map_or_else(String::new, |(trial, ratio)| {
        let solved = &trial.figures;
        let what = if report.is_used { "calibrated" } else { "calibrated (not used)" };
        format!(", {what} {:.6} ± {:.6}, ratio {ratio:.3}", solved.mean_kld, solved.stderr)
    });
    format!(
        "calibrated on {n_tokens} tokens of {kinds} of text; mean KLD on {n_held_out} others: with the importance matrix alone \
         {:.6} ± {:.6}{found}",
        plain.mean_kld, plain.stderr
    )
}
