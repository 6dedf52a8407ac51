//! What a ladder prints: its plan, and the table of a finished folder.

use crate::cli::Session;
use crate::cli::quantize::ladder::document::{LadderDocument, LadderEntry, recommended};
use crate::cli::render::{Align, Screen, Table, duration, plural};
use crate::core::progress::Progress as _;
use crate::core::text::{bytes, escape};
use crate::job::ladder::{LadderFilePlan, LadderPlan, LadderReport};

/// Table of files without figures.
pub(super) fn table<'f>(files: impl Iterator<Item = &'f LadderFilePlan>) -> Table {
    let mut table = Table::new(&[
        ("file", Align::Left),
        ("type", Align::Left),
        ("bits per weight", Align::Right),
        ("size", Align::Right),
        ("notes", Align::Left),
    ]);
    for file in files {
        let name = file.paths.first().and_then(|path| path.file_name()).unwrap_or_default();
        table.row([
            escape(&name.to_string_lossy()).into_owned(),
            file.name.clone(),
            format!("{:.2}", file.bits_per_weight),
            bytes(file.file_bytes),
            notes(file).join(", "),
        ]);
    }
    table
}

fn notes(file: &LadderFilePlan) -> Vec<String> {
    let mut notes = Vec::new();
    if file.paths.len() > 1 {
        notes.push(plural(file.paths.len() as u64, "part"));
    }
    if file.n_fallbacks > 0 {
        notes.push(format!("{} in another type", plural(file.n_fallbacks as u64, "tensor")));
    }
    if let Some(kld) = file.most_kld {
        notes.push(format!("types for a mean KLD of at most {kld}"));
    }
    if file.is_calibrated {
        notes.push("calibrated".to_owned());
    } else if file.is_alone {
        notes.push("made separately".to_owned());
    }
    notes
}

/// Prints the plan of a run.
pub(super) fn plan(session: &Session, plan: &LadderPlan) -> anyhow::Result<()> {
    for obstacle in &plan.obstacles {
        session.progress.warn(&format!("a run would stop here: {obstacle}"));
    }
    if session.common.json {
        return session.print_json(plan);
    }
    session.print(|out| {
        table(plan.files.iter()).print(out)?;
        let is_open = plan.files.iter().any(|file| file.most_kld.is_some());
        writeln!(
            out,
            "\n{}, {}{}; {} to quantize, since tensors that several files share are quantized once{}",
            plural(plan.files.len() as u64, "file"),
            if is_open { "at most " } else { "" },
            bytes(plan.file_bytes),
            bytes(plan.made_bytes),
            plan.free_bytes.map_or_else(String::new, |free| format!("; {} free", bytes(free))),
        )
    })
}

/// Columns of a screen below which the table with figures leaves out the names of the files, which end in their types.
const NARROW: usize = 100;

/// Table of the files with their figures.
fn with_figures(report: &LadderReport, document: &LadderDocument, screen: Screen) -> Table {
    let n_left_out = usize::from(screen.width.is_some_and(|width| width < NARROW));
    let left = ["file", "type"].map(|name| (name, Align::Left));
    let right = ["bits", "size", "mean KLD", "same"].map(|name| (name, Align::Right));
    let words = ["quality", "verdict", "notes"].map(|name| (name, Align::Left));
    let mut table = Table::new(&[&left[n_left_out..], &right, &words].concat());
    let entries = document.files.iter().chain(&document.projector).chain(&document.draft_heads);
    for (entry, file) in entries.zip(report.all()) {
        let figures = entry.figures.as_ref().map(|found| &found.figures);
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut notes = notes(&file.plan);
        notes.extend(figures.map(|own| own.recommendation.clone()).filter(|word| !word.is_empty()));
        let cells = [
            escape(&entry.file.parts.first().map_or_else(String::new, |part| part.name.clone())).into_owned(),
            entry.file.name.clone(),
            format!("{:.2}", entry.file.bits_per_weight),
            bytes(entry.file.file_bytes),
            shown(entry.mean_kld().map(|kld| format!("{kld:.6}"))),
            shown(figures.and_then(|own| own.same_top).map(|same| format!("{:.2} %", 100.0 * same))),
            shown(figures.and_then(|own| own.quality.clone())),
            shown(figures.map(|own| own.verdict.clone())),
            notes.join("; "),
        ];
        table.row(cells.into_iter().skip(n_left_out));
    }
    table
}

/// Prints the files of a finished folder, and how to publish them.
pub(super) fn report(
    session: &Session,
    report: &LadderReport,
    document: &LadderDocument,
    upload: &str,
) -> anyhow::Result<()> {
    if session.common.json {
        return session.print_json(document);
    }
    if session.common.quiet {
        return Ok(());
    }
    let has_figures = document.files.iter().any(|entry| entry.figures.is_some());
    let n_bytes = report.all().map(|file| file.plan.file_bytes).sum();
    let is_there = report.all().all(|file| file.was_there);
    let made = format!("of which {} were made", bytes(report.made_bytes));
    session.print(|out| {
        if has_figures {
            with_figures(report, document, Screen::stdout()).print(out)?;
        } else {
            table(report.all().map(|file| &file.plan)).print(out)?;
        }
        let files = plural(report.all().count() as u64, "file");
        let made = if is_there { "all of which were there" } else { &made };
        writeln!(out, "\n{files}, {}, {made}, in {}", bytes(n_bytes), duration(report.seconds))?;
        let best = recommended(document.files.iter()).filter(|_| has_figures);
        if let Some(part) = best.and_then(|best: &LadderEntry| best.file.parts.first()) {
            writeln!(out, "recommended: {}", escape(&part.name))?;
        }
        match document.files.iter().filter(|entry| entry.fails()).count() {
            0 => writeln!(out, "publish: {upload}"),
            n => {
                writeln!(out, "not to be published: {} of the folder did not pass", plural(n as u64, "file"))
            }
        }
    })
}
