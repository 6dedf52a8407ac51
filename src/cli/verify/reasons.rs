//! Report in words: the answer first, the reasons why the verdict is not a plain pass, and the verdict itself.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use crate::cli::render::{Style, styled};
use crate::cli::verify::report::Detail;
use crate::core::text::escape;
use crate::verify::{Finding, Report, Severity, UnjudgedAspect, Verdict};

pub(super) fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Pass => Style::Good,
        Verdict::Partial => Style::Doubtful,
        Verdict::Fail => Style::Bad,
    }
}

fn finding_line(finding: &Finding) -> String {
    let tensor = finding.tensor.as_ref().map(|name| format!(" `{}`", escape(name))).unwrap_or_default();
    format!("{:<9} {}:{tensor} {}", finding.severity.name(), finding.check, finding.message)
}

/// Returns the open questions grouped by reason, each group followed by its remedy.
fn open_lines(report: &Report) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, UnjudgedAspect)> = Vec::new();
    for open in report.coverage.open() {
        let same =
            groups.iter_mut().find(|(_, group)| group.reason == open.reason && group.remedy == open.remedy);
        match same {
            Some((aspects, _)) => aspects.push(open.aspect.name()),
            None => groups.push((vec![open.aspect.name()], open)),
        }
    }
    let lines = |(aspects, open): (Vec<&str>, UnjudgedAspect)| {
        let names = aspects.join(", ");
        [format!("{:<9} {names}: {}", "unchecked", open.reason), format!("{:<9} needs {}", "", open.remedy)]
    };
    groups.into_iter().flat_map(lines).collect()
}

/// Maximum number of lines of one check in brief output.
const SHOWN: usize = 5;

/// Returns the findings of one severity, a line each; in brief output at most [`SHOWN`] of a check.
fn lines_of(report: &Report, severity: Severity, detail: Detail) -> Vec<String> {
    let own = || report.findings.iter().filter(|finding| finding.severity == severity);
    let mut totals: BTreeMap<&str, usize> = BTreeMap::new();
    own().for_each(|finding| *totals.entry(finding.check.name()).or_default() += 1);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lines = Vec::new();
    for finding in own() {
        let n = counts.entry(finding.check.name()).or_default();
        *n += 1;
        let all = totals.get(finding.check.name()).copied().unwrap_or(0);
        if detail == Detail::Full || *n < SHOWN || all == SHOWN {
            lines.push(finding_line(finding));
        } else if *n == SHOWN {
            let more = all + 1 - SHOWN;
            lines.push(format!("{:<9} {}: {more} more; `-v` lists them", severity.name(), finding.check));
        }
    }
    lines
}

/// Returns the reasons why the verdict is not a plain pass, the most severe first.
pub(super) fn reasons(report: &Report, detail: Detail) -> Vec<String> {
    let unchecked = lines_of(report, Severity::Unchecked, detail);
    match report.verdict {
        Verdict::Pass => Vec::new(),
        Verdict::Partial => [open_lines(report), unchecked].concat(),
        Verdict::Fail => [lines_of(report, Severity::Error, detail), unchecked].concat(),
    }
}

/// Returns what was checked, and by what; for a pass or a fail also what was not.
pub(super) fn checked(report: &Report) -> Vec<String> {
    let checked = report.coverage.answered();
    let checked =
        checked.map(|checked| format!("{:<9} {}: {}", "checked", checked.aspect.name(), checked.by));
    // For a partial verdict the open questions are already the reasons.
    let open = if report.verdict == Verdict::Partial { Vec::new() } else { open_lines(report) };
    checked.chain(open).collect()
}

/// Returns the warnings, which do not change the verdict.
pub(super) fn warnings(report: &Report, detail: Detail) -> Vec<String> {
    lines_of(report, Severity::Warning, detail)
}

/// Prints the answer, each half on a line of its own, and the reasons why the verdict is not a pass.
pub(super) fn print(report: &Report, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let answer = report.answer();
    writeln!(out, "{}", answer.replace(". Quality:", ".\nQuality:"))?;
    for line in reasons(report, detail) {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Prints the verdict as the last line, which stays on the screen.
pub(super) fn print_verdict(verdict: Verdict, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "verdict       {}", styled(style(verdict), verdict.name()))
}

/// Prints the reasons of several files: those of each, then those that all share once.
pub(super) fn print_all<'r>(
    reports: impl Iterator<Item = (String, &'r Report)> + Clone,
    detail: Detail,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut shared: Vec<String> =
        reports.clone().next().map(|(_, report)| reasons(report, detail)).unwrap_or_default();
    for (_, report) in reports.clone() {
        let own: HashSet<String> = reasons(report, detail).into_iter().collect();
        shared.retain(|line| own.contains(line));
    }
    let known: HashSet<&String> = shared.iter().collect();
    for (name, report) in reports {
        let own = reasons(report, detail).into_iter().filter(|line| !known.contains(line));
        for line in own.chain(warnings(report, detail)) {
            writeln!(out, "{name}: {line}")?;
        }
    }
    for line in &shared {
        writeln!(out, "all files: {line}")?;
    }
    Ok(())
}
