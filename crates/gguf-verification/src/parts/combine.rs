//! Joins all parts into the report of a single run.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::embeddings::stray_limits_of;
use crate::judgement::{healthy_cost, judge_figures};
use crate::parts::facts::{PartChecks, PartFacts, RunFacts, StoredFinding, TwinFacts, findings};
use crate::parts::{PartError, PartLabel, VerificationPart};
use crate::prompts::file_reports;
use crate::reference_twin::TwinRun;
use crate::verification::fill;
use crate::{FileLabel, Finding, Position, PromptFile, Report, Thresholds, WeightReport, quality};
use gguf_core::text::escape;
use gguf_format::{PartsGap, each_once};

/// Joined result of all parts of a verification.
#[derive(Clone, Debug)]
pub struct CombinedVerification {
    /// Report of a single run, without a speed: the parts ran on several machines.
    pub report: Report,
    /// Every position that was measured, in order.
    pub positions: Vec<Position>,
    /// Names of the files on the machine of the first part.
    pub label: PartLabel,
}

/// Joins the parts of a verification, given in any order, and judges the figures by `thresholds`.
///
/// # Exactness
/// Positions are joined in the order of the windows and summed by the code that sums those of a single run: every
/// figure, limit and finding has the same bits. Tokens per second are absent.
///
/// # Errors
/// Parts of different plans; a part that is missing or given twice (whether or not both copies agree); checks that
/// found different things on different machines; facts that contradict one another.
pub fn combine_parts(
    mut parts: Vec<VerificationPart>,
    thresholds: Thresholds,
) -> Result<CombinedVerification, PartError> {
    parts.sort_by_key(|part| part.facts.number);
    let paths: Vec<PathBuf> = parts.iter().map(|part| part.path.clone()).collect();
    belong_together(&parts)?;
    let mut report = checked(&parts, thresholds)?;
    let mut positions = Vec::new();
    let mut twin = Vec::new();
    let mut all: Vec<PartFacts> = Vec::new();
    for part in parts {
        positions.extend(part.positions);
        twin.extend(part.twin);
        all.push(part.facts);
    }
    let Some(first) = all.first() else { return Err(PartError::Nothing) };
    let (label, notes) = (first.label.clone(), first.notes.clone());
    let runs: Vec<RunFacts> = all.into_iter().filter_map(|facts| facts.run).collect();
    judge(&mut report, &runs, &paths, &label, &positions, twin)?;
    report.extend(read(&paths, &notes)?);
    if label.is_own_baseline {
        report.own_baseline();
    }
    quality::judge(&mut report);
    Ok(CombinedVerification { report, positions, label })
}

fn contradiction(path: Option<&PathBuf>, reason: String) -> PartError {
    PartError::Facts { path: path.cloned().unwrap_or_default(), offset: 0, reason }
}

fn read(paths: &[PathBuf], stored: &[StoredFinding]) -> Result<Vec<Finding>, PartError> {
    findings(stored).map_err(|name| contradiction(paths.first(), format!("no check is named `{name}`")))
}

/// Checks that the sorted parts belong to one plan and that each is there once.
fn belong_together(parts: &[VerificationPart]) -> Result<(), PartError> {
    let Some(first) = parts.first() else { return Err(PartError::Nothing) };
    let count = first.facts.count;
    for part in parts {
        let (path, other) = (part.path.clone(), first.path.clone());
        if let Some(what) = part.facts.plan.difference(&first.facts.plan) {
            return Err(PartError::OtherPlan { path, other, what });
        }
        if part.facts.count != count {
            let (count, other_count) = (part.facts.count, count);
            return Err(PartError::OtherCount { path, other, count, other_count });
        }
    }
    let numbers: Vec<usize> = parts.iter().map(|part| part.facts.number).collect();
    match each_once(&numbers, count) {
        Ok(()) => {}
        Err(PartsGap::Twice { first, second, number }) => {
            let (path, other) = (parts[first].path.clone(), parts[second].path.clone());
            return Err(PartError::Twice { path, other, number });
        }
        Err(PartsGap::Missing(numbers)) => return Err(PartError::Missing { numbers, count }),
    }
    let mut next = 0;
    for part in parts {
        let (path, other) = (part.path.clone(), first.path.clone());
        if part.facts.checks != first.facts.checks {
            let what = difference(&part.facts.checks, &first.facts.checks);
            return Err(PartError::OtherFindings { path, other, what });
        }
        let run = part.facts.run.as_ref();
        if run.map(|run| &run.plan) != first.facts.run.as_ref().map(|run| &run.plan) {
            let what = "other windows".to_owned();
            return Err(PartError::OtherFindings { path, other, what });
        }
        let Some(run) = run else { continue };
        let end = if part.facts.number == count { run.plan.n_windows } else { run.end_window };
        if run.first_window != next || run.end_window != end {
            let reason = format!(
                "windows {} to {}, those of the part before end at {next}, all at {}",
                run.first_window, run.end_window, run.plan.n_windows
            );
            return Err(contradiction(Some(&path), reason));
        }
        next = run.end_window;
    }
    Ok(())
}

/// Names a difference between the findings of two parts.
fn difference(own: &PartChecks, other: &PartChecks) -> String {
    let all = |checks: &PartChecks| -> Vec<String> {
        let weights = checks.weights.iter().flatten();
        checks.findings.iter().chain(weights).map(|finding| finding.message.clone()).collect()
    };
    let (own, other) = (all(own), all(other));
    let new = own.iter().find(|message| !other.contains(message));
    let gone = other.iter().find(|message| !own.contains(message));
    match (new, gone) {
        (Some(message), _) => message.clone(),
        (None, Some(message)) => format!("not that {message}"),
        (None, None) => "other numbers of the same".to_owned(),
    }
}

/// Makes the report up to the run: the findings of the checks, and the weights of all parts.
fn checked(parts: &[VerificationPart], thresholds: Thresholds) -> Result<Report, PartError> {
    let paths: Vec<PathBuf> = parts.iter().map(|part| part.path.clone()).collect();
    let Some(facts) = parts.first().map(|part| &part.facts) else { return Err(PartError::Nothing) };
    let checks = &facts.checks;
    let mut report = Report::new(checks.arch.clone(), checks.bits_per_weight, thresholds);
    report.label = checks.label.clone().map(FileLabel::escaped);
    let mut found = read(&paths, &checks.findings)?;
    let late = found.split_off(checks.at_limits.min(found.len()));
    let behind = found.split_off(checks.at_weights.min(found.len()));
    report.extend(found);
    report.coverage = checks.coverage.clone().escaped();
    if let Some(own) = &checks.weights {
        let share = |part: &VerificationPart| {
            let findings = read(&paths, own)?;
            Ok(WeightReport { tensors: part.facts.tensors.clone(), findings })
        };
        let shares = parts.iter().map(share).collect::<Result<Vec<_>, PartError>>()?;
        let weights = WeightReport::joined(shares);
        report.set_weights(weights);
    }
    report.extend(behind);
    if let Some(run) = &facts.run {
        report.extend(stray_limits_of(None, run.plan.judged.is_likelihood, run.plan.has_masks, &thresholds));
    }
    report.extend(late);
    Ok(report)
}

/// Computes the figures of all positions and judges them, if there are runs.
fn judge(
    report: &mut Report,
    runs: &[RunFacts],
    paths: &[PathBuf],
    label: &PartLabel,
    positions: &[Position],
    twin: Vec<Position>,
) -> Result<(), PartError> {
    let Some(first) = runs.first() else { return Ok(()) };
    let plan = &first.plan;
    let mut text_bytes = Some(0u64);
    let mut contexts: HashMap<(usize, usize), &str> = HashMap::new();
    for run in runs {
        text_bytes = text_bytes.zip(run.text_bytes).map(|(sum, n)| sum.saturating_add(n));
        contexts.extend(run.contexts.iter().map(|(prompt, at, text)| ((*prompt, *at), text.as_str())));
    }
    if text_bytes.is_none() && runs.iter().any(|run| run.text_bytes.is_some()) {
        return Err(contradiction(paths.first(), "only some parts have a tokenizer".to_owned()));
    }
    fill(report, plan.prompts.len(), positions, text_bytes);
    let worst = report.divergence.iter_mut().flat_map(|divergence| &mut divergence.worst);
    for token in worst.filter(|_| text_bytes.is_some()) {
        let text = contexts.get(&(token.prompt, token.at)).ok_or_else(|| {
            let reason = format!("no text before token {} of prompt {}", token.at, token.prompt);
            contradiction(paths.first(), reason)
        })?;
        token.context = Some(escape(text).into_owned());
    }
    let files: Vec<PromptFile> = plan
        .files
        .iter()
        .enumerate()
        .map(|(at, file)| PromptFile {
            path: PathBuf::from(label.prompts.get(at).cloned().unwrap_or_default()),
            prompts: file.first_prompt..file.end_prompt,
        })
        .collect();
    let chunks: Vec<usize> = plan.files.iter().map(|file| file.chunks).collect();
    report.prompt_files = file_reports(&files, &chunks, positions);
    if report.divergence.is_some() {
        let failed = runs.iter().find_map(|run| match &run.twin {
            TwinFacts::Failed(why) => Some(TwinRun::Failed(escape(why).into_owned())),
            _ => None,
        });
        let has_run = runs.iter().all(|run| run.twin == TwinFacts::Positions);
        let twin = failed.unwrap_or(if has_run { TwinRun::Positions(twin) } else { TwinRun::None });
        report.healthy = Some(healthy_cost(plan.typical, twin, report));
    }
    judge_figures(report, &plan.judged);
    Ok(())
}
