//! What a page shows, as plain data: foreign text is escaped here, numbers stay numbers.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::verify::report::{self, ModelReport};
use crate::core::text::escape;
use crate::verify::{Finding, Report, Severity, Verdict};

use super::details::{Details, Spread, Worst};
use super::run_info::RunInfo;

/// Characters of a name in a chart or a heading.
const MAX_LABEL: usize = 28;

/// The whole page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PageData {
    /// The model's name, where all files agree on one.
    pub(super) title: String,
    pub(super) verdict: &'static str,
    /// One sentence about all files.
    pub(super) summary: String,
    /// What the files were compared with, as it was given.
    pub(super) baseline: Option<String>,
    pub(super) files: Vec<FileData>,
    pub(super) run: RunInfo,
}

/// One model file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FileData {
    /// A short name that no other file of the page has.
    pub(super) label: String,
    /// File name without its folders.
    pub(super) file: String,
    /// `general.name`.
    pub(super) name: Option<String>,
    pub(super) arch: Option<String>,
    #[serde(rename = "type")]
    pub(super) file_type: Option<String>,
    pub(super) size_bytes: Option<u64>,
    pub(super) bits_per_weight: Option<f64>,
    pub(super) verdict: &'static str,
    /// Findings that decide the verdict, worst first.
    pub(super) reasons: Vec<Reason>,
    /// Warnings.
    pub(super) warnings: Vec<Reason>,
    pub(super) perplexity: Option<Figure>,
    pub(super) bits_per_byte: Option<f64>,
    pub(super) divergence: Option<DivergenceData>,
    /// What this type costs a healthy file, in mean KLD.
    pub(super) healthy_kld: Option<f64>,
    /// Limits that were applied, each with the figure beside it.
    pub(super) limits: Vec<Limit>,
    pub(super) spread: Option<Spread>,
    pub(super) worst: Vec<Worst>,
    /// Every tensor against what it was made from.
    pub(super) weights: Vec<TensorError>,
    /// What was judged.
    pub(super) judged: Vec<String>,
    /// What was not, and why or what would judge it.
    pub(super) not_judged: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Reason {
    pub(super) severity: &'static str,
    pub(super) check: &'static str,
    pub(super) tensor: Option<String>,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) stderr: f64,
    /// Scored tokens.
    pub(super) tokens: usize,
}

/// Figures against the baseline.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DivergenceData {
    pub(super) mean: f64,
    pub(super) stderr: f64,
    pub(super) p99: f64,
    /// 0 to 1.
    pub(super) same_top: f64,
    /// Root mean square of the difference of the true token's probability, 0 to 1.
    pub(super) rms_dp: f64,
    /// Relative change of the perplexity; 0.02 is 2 %.
    pub(super) delta_ppl: f64,
    pub(super) delta_ppl_stderr: f64,
    pub(super) baseline_ppl: f64,
}

/// A limit and the figure that it bounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Limit {
    pub(super) figure: &'static str,
    pub(super) value: f64,
    /// `at most` or `at least`.
    pub(super) bound: &'static str,
    pub(super) limit: f64,
    /// Shown in per cent.
    pub(super) is_share: bool,
    pub(super) is_kept: bool,
}

/// How far a tensor is from what it was made from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TensorError {
    pub(super) tensor: String,
    /// The layer's number; none for what belongs to no layer.
    pub(super) layer: Option<u32>,
    /// Its name without `blk.N.` and `.weight`.
    pub(super) role: String,
    /// The same bytes as our own quantizer's.
    pub(super) reproduced: bool,
    /// Relative rms error.
    pub(super) error: Option<f64>,
    /// The error over that of the type on these weights.
    pub(super) ratio: Option<f64>,
}

impl TensorError {
    /// A tensor by its name in the file.
    #[cfg_attr(not(test), expect(dead_code, reason = "waits for the comparison of weights"))]
    pub(super) fn new(tensor: &str, reproduced: bool, error: Option<f64>, ratio: Option<f64>) -> Self {
        let (layer, role) = match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, role)) if layer.parse::<u32>().is_ok() => (layer.parse().ok(), role),
            _ => (None, tensor),
        };
        let role = escape(role.strip_suffix(".weight").unwrap_or(role)).into_owned();
        Self { tensor: escape(tensor).into_owned(), layer, role, reproduced, error, ratio }
    }
}

impl PageData {
    /// The page of these verdicts. `baseline` is as it was given.
    pub(super) fn new(entries: &[ModelReport], baseline: Option<&Path>, run: RunInfo) -> Self {
        let mut files: Vec<FileData> = entries.iter().map(FileData::new).collect();
        label(&mut files);
        let verdict = report::verdict(entries);
        Self {
            title: title(&files),
            verdict: verdict.name(),
            summary: summary(entries, verdict),
            baseline: baseline.map(|path| shown(&path.display().to_string())),
            files,
            run,
        }
    }
}

impl FileData {
    fn new(entry: &ModelReport) -> Self {
        let report = &entry.report;
        let Details { name, spread, worst } = entry.details.clone().unwrap_or_default();
        let mut reasons: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Warning).collect();
        reasons.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let warnings = report.findings.iter().filter(|finding| finding.severity == Severity::Warning);
        Self {
            label: String::new(),
            file: shown(&file_name(&entry.path)),
            name: name.as_deref().map(shown),
            arch: report.arch.as_deref().map(shown),
            file_type: entry.file_type.as_deref().map(shown),
            size_bytes: entry.size_bytes,
            bits_per_weight: report.bits_per_weight,
            verdict: report.verdict.name(),
            reasons: reasons.into_iter().map(Reason::new).collect(),
            warnings: warnings.map(Reason::new).collect(),
            perplexity: report.perplexity.map(|p| Figure {
                value: p.value,
                stderr: p.stderr,
                tokens: p.tokens,
            }),
            bits_per_byte: report.bits_per_byte,
            divergence: report.divergence.as_ref().map(|d| DivergenceData {
                mean: d.mean.value,
                stderr: d.mean.stderr,
                p99: d.p99,
                same_top: d.top1_agreement,
                rms_dp: d.rms_dp,
                delta_ppl: d.delta_ln_ppl.value.exp_m1(),
                // The error of the logarithm, carried through the exponential.
                delta_ppl_stderr: d.delta_ln_ppl.stderr * d.delta_ln_ppl.value.exp(),
                baseline_ppl: d.baseline_ppl,
            }),
            healthy_kld: healthy_kld(report),
            limits: limits(report),
            spread,
            worst,
            weights: weights(report),
            judged: judged(report),
            not_judged: not_judged(report),
        }
    }
}

impl Reason {
    fn new(finding: &Finding) -> Self {
        Self {
            severity: finding.severity.name(),
            check: finding.check,
            tensor: finding.tensor.as_deref().map(shown),
            message: shown(&finding.message),
        }
    }
}

/// Foreign text without anything that a reader would not see as it is.
fn shown(text: &str) -> String {
    escape(text).into_owned()
}

fn file_name(path: &Path) -> String {
    let own = || path.display().to_string();
    path.file_name().map_or_else(own, |name| PathBuf::from(name).display().to_string())
}

/// What a healthy file of this type costs; nothing is known yet.
fn healthy_kld(_report: &Report) -> Option<f64> {
    None
}

/// Every tensor against what it was made from; nothing compares them yet.
fn weights(_report: &Report) -> Vec<TensorError> {
    Vec::new()
}

fn limits(report: &Report) -> Vec<Limit> {
    let set = &report.thresholds;
    let mut limits = Vec::new();
    let mut most = |figure, value: Option<f64>, limit: Option<f64>, is_share| {
        if let (Some(value), Some(limit)) = (value, limit) {
            limits.push(Limit { figure, value, bound: "at most", limit, is_share, is_kept: value <= limit });
        }
    };
    let d = report.divergence.as_ref();
    most("perplexity", report.perplexity.map(|p| p.value), set.max_ppl, false);
    most("increase of the perplexity", d.map(|d| d.delta_ln_ppl.value.exp_m1()), set.max_ppl_increase, true);
    most("mean KLD", d.map(|d| d.mean.value), set.max_kld, false);
    most("99 % KLD", d.map(|d| d.p99), set.max_kld_99, false);
    if let (Some(d), Some(limit)) = (d, set.min_top1) {
        let (value, is_kept) = (d.top1_agreement, d.top1_agreement >= limit);
        limits.push(Limit { figure: "same top", value, bound: "at least", limit, is_share: true, is_kept });
    }
    limits
}

/// What the report's figures and checks rest on.
fn judged(report: &Report) -> Vec<String> {
    let mut judged = Vec::new();
    let failed =
        |check: &str| report.findings.iter().any(|f| f.check == check && f.severity == Severity::Error);
    if !failed("header") {
        judged.push("structure: header, blocks of every tensor, vocabulary, graph".to_owned());
    }
    if let Some(p) = &report.perplexity {
        judged.push(format!("perplexity over {} tokens", p.tokens));
    }
    if report.divergence.is_some() {
        judged.push("divergence from the baseline".to_owned());
    }
    judged
}

fn not_judged(report: &Report) -> Vec<String> {
    let unchecked = report.findings.iter().filter(|finding| finding.severity == Severity::Unchecked);
    let mut rest: Vec<String> =
        unchecked.map(|finding| shown(&format!("{}: {}", finding.check, finding.message))).collect();
    if report.perplexity.is_none() {
        rest.push("perplexity: nothing was computed".to_owned());
    }
    if report.divergence.is_none() {
        rest.push("divergence: needs a baseline that can be run".to_owned());
    }
    rest
}

/// The name that all files have, else what they are.
fn title(files: &[FileData]) -> String {
    let first = files.first().and_then(|file| file.name.clone());
    match (first, files) {
        (Some(name), _) if files.iter().all(|file| file.name.as_ref().is_none_or(|own| *own == name)) => name,
        (_, [one]) => one.file.clone(),
        _ => format!("{} models", files.len()),
    }
}

fn summary(entries: &[ModelReport], verdict: Verdict) -> String {
    let n = entries.iter().filter(|entry| entry.report.verdict == verdict).count();
    match (verdict, entries.len()) {
        (Verdict::Pass, 1) => "Everything that was judged is in order.".to_owned(),
        (Verdict::Partial, 1) => "In order as far as it could be judged.".to_owned(),
        (Verdict::Fail, 1) => "This file is broken, or misses a limit.".to_owned(),
        (Verdict::Pass, all) => format!("All {all} files are in order."),
        (Verdict::Partial, all) => format!("{n} of {all} files could be judged only in part; none fails."),
        (Verdict::Fail, all) => {
            format!("{n} of {all} files {} broken or miss a limit.", if n == 1 { "is" } else { "are" })
        }
    }
}

/// Short names: the types where they tell the files apart, else the file names.
fn label(files: &mut [FileData]) {
    let is_unique = |labels: &[String]| {
        let mut sorted = labels.to_vec();
        sorted.sort();
        sorted.dedup();
        sorted.len() == labels.len()
    };
    let names: Vec<String> =
        files.iter().map(|file| shorten(file.file.strip_suffix(".gguf").unwrap_or(&file.file))).collect();
    let type_or_name = |(file, name): (&FileData, &String)| file.file_type.clone().unwrap_or(name.clone());
    let types: Vec<String> = files.iter().zip(&names).map(type_or_name).collect();
    let labels = if is_unique(&types) {
        types
    } else if is_unique(&names) {
        names
    } else {
        (1..=files.len()).zip(names).map(|(at, name)| format!("{at}: {name}")).collect()
    };
    for (file, label) in files.iter_mut().zip(labels) {
        file.label = label;
    }
}

/// A name with its middle left out where it is long: what tells files apart is at the ends.
fn shorten(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= MAX_LABEL {
        return name.to_owned();
    }
    let half = (MAX_LABEL - 1) / 2;
    let (Some(head), Some(tail)) = (chars.get(..half), chars.get(chars.len() - half..)) else {
        return name.to_owned();
    };
    head.iter().chain(['…'].iter()).chain(tail).collect()
}
