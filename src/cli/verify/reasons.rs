//! The first lines of a report: the verdict, and in a line each why.

use std::io::{self, Write};

use crate::cli::render::{Style, styled};
use crate::core::text::escape;
use crate::verify::{Finding, NotJudged, Report, Severity, Verdict};

/// The colour of a verdict.
pub(super) fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Pass => Style::Good,
        Verdict::Partial => Style::Doubtful,
        Verdict::Fail => Style::Bad,
    }
}

/// A finding in a line.
fn finding_line(finding: &Finding) -> String {
    let tensor = finding.tensor.as_ref().map(|name| format!(" `{}`", escape(name))).unwrap_or_default();
    format!("{:<9} {}:{tensor} {}", finding.severity.name(), finding.check, finding.message)
}

/// The open questions: those with one reason together, then what would answer them.
fn open_lines(report: &Report) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, NotJudged)> = Vec::new();
    for open in report.coverage.open() {
        let same =
            groups.iter_mut().find(|(_, group)| group.reason == open.reason && group.remedy == open.remedy);
        match same {
            Some((aspects, _)) => aspects.push(open.aspect.name()),
            None => groups.push((vec![open.aspect.name()], open)),
        }
    }
    let lines = |(aspects, open): (Vec<&str>, NotJudged)| {
        let names = aspects.join(", ");
        [format!("{:<9} {names}: {}", "unjudged", open.reason), format!("{:<9} needs {}", "", open.remedy)]
    };
    groups.into_iter().flat_map(lines).collect()
}

/// Why the verdict is not a plain pass, the gravest first.
pub(super) fn reasons(report: &Report) -> Vec<String> {
    let of = |severity| report.findings.iter().filter(move |finding| finding.severity == severity);
    let errors = of(Severity::Error).map(finding_line);
    let unchecked = of(Severity::Unchecked).map(finding_line);
    match report.verdict {
        Verdict::Pass => Vec::new(),
        Verdict::Partial => open_lines(report).into_iter().chain(unchecked).collect(),
        Verdict::Fail => errors.chain(unchecked).collect(),
    }
}

/// What is worth knowing beside the reasons: what was judged, what was not, warnings.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let judged = report.coverage.answered();
    let judged = judged.map(|judged| format!("{:<9} {}: {}", "judged", judged.aspect.name(), judged.by));
    // Of a partial verdict the open questions are the reasons.
    let open = if report.verdict == Verdict::Partial { Vec::new() } else { open_lines(report) };
    let warnings = report.findings.iter().filter(|finding| finding.severity == Severity::Warning);
    judged.chain(open).chain(warnings.map(finding_line)).collect()
}

/// Prints the verdict and its reasons.
pub(super) fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "verdict       {}", styled(style(report.verdict), report.verdict.name()))?;
    for line in reasons(report) {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Prints the reasons of several files: what is said of all of them once, then what is said of each.
pub(super) fn print_all<'r>(
    reports: impl Iterator<Item = (String, &'r Report)> + Clone,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut shared: Vec<String> =
        reports.clone().next().map(|(_, report)| reasons(report)).unwrap_or_default();
    for (_, report) in reports.clone() {
        let own = reasons(report);
        shared.retain(|line| own.contains(line));
    }
    for line in &shared {
        writeln!(out, "all files: {line}")?;
    }
    for (name, report) in reports {
        let warnings = report.findings.iter().filter(|finding| finding.severity == Severity::Warning);
        let own = reasons(report).into_iter().filter(|line| !shared.contains(line));
        for line in own.chain(warnings.map(finding_line)) {
            writeln!(out, "{name}: {line}")?;
        }
    }
    Ok(())
}
