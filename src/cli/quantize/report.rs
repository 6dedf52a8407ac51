//! Output of the programs that quantize: the plan, warnings, the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::Session;
use crate::cli::quantize::about::CalibrationSummary;
use crate::cli::quantize::forecast::Forecast;
use crate::cli::render::{Align, Table, count, duration, named, plural};
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::WriteReport;
use crate::quant::SmallRows;
use crate::quantize::{Allocation, CoveragePolicy, FileType, QuantizePlan, Reason, Sizes, Summary};

/// Explains fallback types: the row widths that are not a multiple of the wanted block size.
fn unfit_rows(plan: &QuantizePlan<'_>) -> String {
    let mut widths: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    for (step, tensor) in plan.steps().iter().zip(plan.tensors()) {
        if let Reason::Fallback { wanted } = step.choice.reason {
            widths.entry(wanted.block_elems()).or_default().insert(tensor.shape.n_cols());
        }
    }
    let row = |(block, widths): (&usize, &BTreeSet<u64>)| {
        let few = widths.iter().take(3).map(u64::to_string).collect::<Vec<_>>().join(", ");
        let more = widths.len().checked_sub(4).map_or_else(String::new, |n| format!(" and {} more", n + 1));
        format!("rows of {few}{more} values hold no whole blocks of {block}")
    };
    widths.iter().rev().map(row).collect::<Vec<_>>().join(", ")
}

/// Warns of tensors that contain only zeros, which a checkpoint hardly has on purpose.
pub(crate) fn warn_all_zero(session: &Session, names: &[String]) {
    if !names.is_empty() {
        let (n, which) = (plural(names.len() as u64, "tensor"), named(names, session.common.verbose > 0));
        session.progress.warn(&format!("{n} with nothing but zeros: {which}"));
    }
}

/// Warns of unexpected decisions. `asked` is the file type, unless a target size decides.
pub(crate) fn warn(
    session: &Session,
    asked: Option<FileType>,
    policy: CoveragePolicy,
    plan: &QuantizePlan<'_>,
) {
    let warn = |text: String| session.progress.warn(&text);
    let list = |names: &mut dyn Iterator<Item = String>, n: usize| {
        let shown = if session.common.verbose > 0 { n } else { n.min(3) };
        let text = names.take(shown).collect::<Vec<_>>().join(", ");
        if shown < n { format!("{text} and {} more (-v lists all)", n - shown) } else { text }
    };
    let fallbacks = plan.steps().iter().zip(plan.tensors()).filter_map(|(step, tensor)| {
        let Reason::Fallback { wanted } = step.choice.reason else { return None };
        Some(format!("`{}` {wanted} -> {}", escape(&tensor.name), tensor.ty))
    });
    let n_fallbacks = plan.n_fallbacks();
    if n_fallbacks > 0 {
        let asked = asked.map_or_else(String::new, |asked| format!("{asked} asked, "));
        warn(format!(
            "{asked}{:.2} bits per weight come out: {}, {} of another type: {}",
            plan.summary().total.bits_per_weight(),
            unfit_rows(plan),
            plural(n_fallbacks as u64, "tensor"),
            list(&mut fallbacks.into_iter(), n_fallbacks)
        ));
    }
    for text in plan.warnings() {
        warn(text.clone());
    }
    let idle = plan.idle_options();
    if !idle.is_empty() {
        let mut shown = idle.iter().map(|idle| format!("`{}` ({})", idle.option, idle.why));
        let n = plural(idle.len() as u64, "option");
        warn(format!("{n} without effect: {}", list(&mut shown, idle.len())));
    }
    let coverage = plan.coverage();
    if policy == CoveragePolicy::Ignore {
        return;
    }
    let names = |names: &[String]| named(names, session.common.verbose > 0);
    if !coverage.missing.is_empty() {
        let n = plural(coverage.missing.len() as u64, "tensor");
        let more = match coverage.elsewhere.first() {
            Some(pair) => format!(
                " (`{}` has the same input as `{}`: --share-importance takes its importance)",
                escape(&pair.entry),
                escape(&pair.tensor)
            ),
            None => String::new(),
        };
        warn(format!("{n} without importance data: {}{more}", names(&coverage.missing)));
    }
    if !coverage.stand_ins.is_empty() {
        let mut pairs = coverage
            .stand_ins
            .iter()
            .map(|pair| format!("`{}` of `{}`", escape(&pair.tensor), escape(&pair.entry)));
        let n = plural(coverage.stand_ins.len() as u64, "tensor");
        warn(format!(
            "{n} with the importance of another that has the same input: {}",
            list(&mut pairs, coverage.stand_ins.len())
        ));
    }
    if !coverage.level.is_empty() {
        let n = plural(coverage.level.len() as u64, "tensor");
        let which = names(&coverage.level);
        warn(format!(
            "{n} whose importance is zero throughout, quantized with equal weights instead: {which}"
        ));
    }
    if !coverage.unseen.is_empty() {
        let mut tensors = coverage
            .unseen
            .iter()
            .map(|unseen| format!("`{}` {} of {}", escape(&unseen.tensor), unseen.experts.len(), unseen.of));
        let n = plural(coverage.unseen.len() as u64, "tensor");
        warn(format!("{n} with experts never seen: {}", list(&mut tensors, coverage.unseen.len())));
    }
    if !coverage.lost.is_empty() {
        let n = plural(coverage.lost.len() as u64, "tensor");
        let which = names(&coverage.lost);
        warn(format!("{n} with groups of columns of no importance at all, which become zeros: {which}"));
    }
    if !coverage.foreign.is_empty() {
        let n = coverage.foreign.len() as u64;
        let which = names(&coverage.foreign);
        warn(format!("importance data for {} that the model does not have: {which}", plural(n, "tensor")));
    }
}

/// Warns, after the run, of rows whose values are too small for their type.
pub(crate) fn warn_small_rows(session: &Session, found: &[(&TensorMeta, SmallRows)]) {
    let Some((tensor, small)) = found.first() else { return };
    let Some(row) = small.first else { return };
    let n_rows = found.iter().map(|(_, small)| small.n_rows).sum();
    session.progress.warn(&format!(
        "{} of {} came out as zeros or nearly, too small for the type: the first is row {} of `{}` (values up to \
         {:e}, {})",
        plural(n_rows, "row"),
        plural(found.len() as u64, "tensor"),
        row.row,
        escape(&tensor.name),
        row.largest,
        tensor.ty,
    ));
}

/// Returns these rows for `--json`, one object per tensor.
pub(crate) fn small_rows_json(found: &[(&TensorMeta, SmallRows)]) -> serde_json::Value {
    let row = |(tensor, small): &(&TensorMeta, SmallRows)| {
        let first = small.first?;
        Some(json!({
            "tensor": tensor.name,
            "type": tensor.ty.name(),
            "rows": small.n_rows,
            "first_row": first.row,
            "largest": first.largest,
        }))
    };
    found.iter().filter_map(row).collect::<Vec<_>>().into()
}

fn reason(reason: Reason) -> String {
    match reason {
        Reason::Kept => "kept".to_owned(),
        Reason::Option => "option".to_owned(),
        Reason::Mixture => "mixture".to_owned(),
        Reason::Fallback { wanted } => format!("instead of {wanted}"),
    }
}

/// Prints the plan, with the expected cost of types that were chosen for a size, and the resources that calibration
/// would take.
pub(crate) fn print_plan(
    session: &Session,
    plan: &QuantizePlan<'_>,
    allocation: Option<&Allocation>,
    forecast: Option<&Forecast>,
) -> anyhow::Result<()> {
    let chosen: BTreeMap<usize, f64> =
        allocation.iter().flat_map(|found| &found.types).map(|chosen| (chosen.place, chosen.cost)).collect();
    let rows = plan.steps().iter().zip(plan.tensors()).enumerate().map(|(place, (step, after))| {
        let before = &plan.source_tensors()[step.source];
        let (why, cost) = match chosen.get(&place) {
            Some(cost) => ("size".to_owned(), Some(*cost)),
            None => (reason(step.choice.reason), None),
        };
        (step, before, after, why, cost)
    });
    let summary = plan.summary();
    if session.common.json {
        let tensors: Vec<_> = rows
            .map(|(step, before, after, why, cost)| {
                let mut row = json!({
                    "name": after.name,
                    "source": before.name,
                    "shape": after.shape.dims(),
                    "class": step.choice.class.name(),
                    "from": before.ty.name(),
                    "to": after.ty.name(),
                    "reason": why,
                    "imatrix": step.weights.is_some(),
                    "bytes_before": before.n_bytes(),
                    "bytes_after": after.n_bytes(),
                });
                if let Some(cost) = cost {
                    row["expected_kld"] = cost.into();
                }
                row
            })
            .collect();
        let obstacles: Vec<_> = plan.obstacles().iter().map(ToString::to_string).collect();
        let mut document = summary_json(&summary);
        document["tensors"] = tensors.into();
        document["obstacles"] = obstacles.into();
        if let Some(allocation) = allocation {
            document["target"] = target_json(allocation);
        }
        if let Some(forecast) = forecast {
            document["calibration"] = forecast.json();
        }
        return session.print_json(&document);
    }
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("shape", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("size", Align::Right),
        ("why", Align::Left),
    ]);
    for (step, before, after, why, cost) in rows {
        let imatrix = if step.weights.is_some() { ", imatrix" } else { "" };
        let cost = cost.map_or_else(String::new, |cost| format!(", KLD {cost:.6}"));
        table.row([
            escape(&after.name).into_owned(),
            after.shape.to_string(),
            before.ty.to_string(),
            after.ty.to_string(),
            bytes(after.n_bytes().unwrap_or(0)),
            why + &cost + imatrix,
        ]);
    }
    session.print(|out| {
        table.print(out)?;
        writeln!(out)?;
        print_summary(out, &summary)?;
        if let Some(allocation) = allocation {
            writeln!(out, "\n{}", target_lines(allocation))?;
        }
        match forecast {
            Some(forecast) => {
                writeln!(out)?;
                forecast.print(out)
            }
            None => Ok(()),
        }
    })
}

/// Describes the target size, the size that was reached, and the nearest standard mix.
fn target_lines(allocation: &Allocation) -> String {
    let mut text = format!(
        "types for at most {} bytes: file of {} ({:.3} bits per weight with its header), expected KLD {:.6}",
        count(allocation.target_bytes),
        count(allocation.file_bytes),
        allocation.bits_per_weight(),
        allocation.expected_kld,
    );
    if allocation.n_runs > 0 {
        text += " by ";
        text += &plural(allocation.n_runs as u64, "run");
        text += " of the model";
    }
    if let Some(mix) = &allocation.mix {
        let line = format!(
            "\n{}, the standard mix nearest in size: file of {}, expected KLD {:.6}",
            mix.file_type,
            count(mix.file_bytes),
            mix.expected_kld
        );
        text.push_str(&line);
        if let Some((kld, stderr)) = mix.measured {
            let line =
                format!("; by the importance matrix alone, on the text held back: {kld:.6} ± {stderr:.6}");
            text.push_str(&line);
        }
    }
    text
}

fn target_json(allocation: &Allocation) -> serde_json::Value {
    let mix = allocation.mix.as_ref().map(|mix| {
        let mut found = json!({
            "type": mix.file_type.name(),
            "file_bytes": mix.file_bytes,
            "expected_kld": mix.expected_kld,
        });
        if let Some((kld, stderr)) = mix.measured {
            found["imatrix"] = json!({ "mean_kld": kld, "stderr": stderr });
        }
        found
    });
    json!({
        "bytes": allocation.target_bytes,
        "file_bytes": allocation.file_bytes,
        "file_bits_per_weight": allocation.bits_per_weight(),
        "expected_kld": allocation.expected_kld,
        "runs": allocation.n_runs,
        "near": allocation.is_near(),
        "standard_mix": mix,
    })
}

fn print_summary(out: &mut dyn Write, summary: &Summary) -> std::io::Result<()> {
    let mut table = Table::new(&[
        ("class", Align::Left),
        ("tensors", Align::Right),
        ("weights", Align::Right),
        ("before", Align::Right),
        ("after", Align::Right),
        ("bits", Align::Right),
    ]);
    let total = ("all".to_owned(), summary.total);
    let classes = summary.classes.iter().map(|(class, sizes)| (class.to_string(), *sizes));
    for (name, sizes) in classes.chain([total]) {
        table.row([
            name,
            sizes.n_tensors.to_string(),
            count(sizes.n_elems),
            bytes(sizes.bytes_before),
            bytes(sizes.bytes_after),
            format!("{:.3}", sizes.bits_per_weight()),
        ]);
    }
    table.print(out)
}

fn sizes_json(sizes: &Sizes) -> serde_json::Value {
    json!({
        "tensors": sizes.n_tensors,
        "weights": sizes.n_elems,
        "bytes_before": sizes.bytes_before,
        "bytes_after": sizes.bytes_after,
        "bits_per_weight": sizes.bits_per_weight(),
    })
}

fn summary_json(summary: &Summary) -> serde_json::Value {
    let classes: serde_json::Map<_, _> =
        summary.classes.iter().map(|(class, sizes)| (class.name().to_owned(), sizes_json(sizes))).collect();
    json!({ "total": sizes_json(&summary.total), "classes": classes })
}

/// Further content of a summary.
#[derive(Clone, Copy, Default)]
pub(crate) struct SummaryExtra<'a> {
    /// Calibration, if there was one.
    pub(crate) calibration: Option<&'a CalibrationSummary<'a>>,
    /// Choice of types, if a size decided.
    pub(crate) allocation: Option<&'a Allocation>,
}

/// Prints the report of a finished run.
pub(crate) fn print_report(
    session: &Session,
    file_type: FileType,
    plan: &QuantizePlan<'_>,
    report: &WriteReport,
    seconds: f64,
    extra: &SummaryExtra<'_>,
) -> anyhow::Result<()> {
    let summary = plan.summary_of(report.tensors.clone());
    let total = summary.total;
    let rate = total.bytes_before as f64 / 1e6 / seconds.max(1e-9);
    let n_fallbacks = plan.n_fallbacks();
    if session.common.json {
        let mut document = summary_json(&summary);
        let paths = report.paths.iter().map(|path| path.display().to_string());
        document["files"] = paths.collect::<Vec<_>>().into();
        document["type"] = file_type.name().into();
        document["file_bytes"] = report.file_bytes.into();
        document["missing_parts"] = json!(report.missing);
        document["fallbacks"] = n_fallbacks.into();
        document["small_rows"] = small_rows_json(&plan.small_rows());
        document["seconds"] = seconds.into();
        document["mb_per_second"] = rate.into();
        if let Some(about) = extra.calibration {
            document["calibration"] = about.json();
        }
        if let Some(allocation) = extra.allocation {
            document["target"] = target_json(allocation);
        }
        return session.print_json(&document);
    }
    if session.common.quiet {
        return Ok(());
    }
    session.print(|out| {
        print_summary(out, &summary)?;
        writeln!(out)?;
        writeln!(
            out,
            "{}: {}, {} -> {} ({:.2} -> {:.2} bits per weight), {}, {rate:.0} MB/s, {}",
            shown_paths(&report.paths),
            if extra.allocation.is_some() { "types for a size".to_owned() } else { file_type.to_string() },
            bytes(total.bytes_before),
            bytes(total.bytes_after),
            total.bits_per_weight_before(),
            total.bits_per_weight(),
            duration(seconds),
            plural(n_fallbacks as u64, "fallback"),
        )?;
        if let Some(allocation) = extra.allocation {
            writeln!(out, "{}", target_lines(allocation))?;
        }
        match extra.calibration {
            Some(about) => writeln!(out, "{}", about.line()),
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
