//! Content of a page as plain data. Untrusted text is escaped here; numbers stay numbers.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::render::markdown::link;
use crate::cli::render::{error_line, plural};
use crate::cli::verify::details::{Details, DivergenceSpread, Worst};
use crate::cli::verify::names::distinct_names;
use crate::cli::verify::recommend::{FileFigures, recommend};
use crate::cli::verify::report::{self, ModelReport};
use crate::core::text::escape;
use crate::verify::{
    Better, Check, Divergence, EmbeddingDifference, EmbeddingReport, Estimate, Finding, JudgedAspect,
    LimitLine, Perplexity, Quality, Report, Severity, TaskReport, TensorWeights, Thresholds, Verdict,
    WeightOutcome,
};

use super::public::{self, Folders};
use super::run_info::RunInfo;

/// Maximum number of characters of a name in a chart or a heading.
const MAX_LABEL: usize = 28;

/// In place of the verdict on a file that could not be judged.
pub(super) const NOT_JUDGED: &str = "error";

/// Content of the whole page.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PageData {
    /// Model name if all files agree on one.
    pub(super) title: String,
    pub(super) verdict: &'static str,
    /// One sentence about all files.
    pub(super) summary: String,
    /// Name of the baseline, as it was given.
    pub(super) baseline: Option<String>,
    /// Reasons that all files share, if there are several files.
    pub(super) shared: Vec<ReportReason>,
    pub(super) files: Vec<FileData>,
    /// True if a file has a perplexity, or if no file is an encoder.
    pub(super) has_perplexity: bool,
    /// True if the quality of any file is known.
    pub(super) has_quality: bool,
    /// True if any file has a recommendation.
    pub(super) has_recommendations: bool,
    /// True if any file's vectors were compared with the baseline's.
    pub(super) has_cosines: bool,
    /// True if any file's scores were compared with the baseline's.
    pub(super) has_scores: bool,
    pub(super) run: RunInfo,
}

/// Results of one model file.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FileData {
    /// Short name, unique on the page.
    pub(super) label: String,
    /// File name without its directory.
    pub(super) file: String,
    /// `file` as a percent-encoded link, relative to the page.
    pub(super) link: String,
    /// Answers to both questions (intact? how good?) in words.
    pub(super) answer: String,
    /// Name of the quality class.
    pub(super) quality: Option<&'static str>,
    /// Recommendation, if there are several files; else empty.
    pub(super) recommendation: String,
    /// Recipe of its tensor types.
    pub(super) recipe: Option<String>,
    /// `general.name`.
    pub(super) name: Option<String>,
    pub(super) arch: Option<String>,
    #[serde(rename = "type")]
    pub(super) file_type: Option<String>,
    pub(super) size_bytes: Option<u64>,
    pub(super) bits_per_weight: Option<f64>,
    pub(super) verdict: &'static str,
    /// Findings that decide the verdict, worst first.
    pub(super) reasons: Vec<ReportReason>,
    /// Findings that do not change the verdict.
    pub(super) warnings: Vec<ReportReason>,
    pub(super) perplexity: Option<Perplexity>,
    pub(super) bits_per_byte: Option<f64>,
    pub(super) divergence: Option<Divergence>,
    /// Relative change of the perplexity; 0.02 is 2 %.
    pub(super) ppl_increase: Option<Estimate>,
    /// Figures of encoders.
    pub(super) vectors: Option<EmbeddingReport>,
    /// Comparison of vectors with the baseline's. The cosine of a single score is only its sign.
    pub(super) cosine: Option<EmbeddingDifference>,
    /// Comparison of scores with the baseline's, for models that score texts.
    pub(super) score: Option<EmbeddingDifference>,
    /// Mean KLD that these types cost a healthy file.
    pub(super) healthy_kld: Option<f64>,
    /// Limits that were applied, each with its measured figure.
    pub(super) limits: Vec<Limit>,
    pub(super) spread: Option<DivergenceSpread>,
    pub(super) worst: Vec<Worst>,
    /// Error of every tensor against its source weights.
    pub(super) weights: Vec<TensorError>,
    /// Results of task sets.
    pub(super) tasks: Vec<TaskReport>,
    /// Aspects that were judged.
    pub(super) judged: Vec<JudgedAspect>,
    /// Aspects that were not judged, with the reason and the remedy.
    pub(super) not_judged: Vec<OpenQuestions>,
}

/// Finding or open question about a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ReportReason {
    /// Name of the severity.
    pub(super) severity: &'static str,
    pub(super) check: String,
    pub(super) tensor: Option<String>,
    pub(super) message: String,
}

/// Limit with the figure that it bounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Limit {
    pub(super) figure: &'static str,
    pub(super) value: String,
    /// `at most` or `at least`.
    pub(super) bound: &'static str,
    pub(super) at: String,
    /// Origin of the limit: `an option` or `what the types cost`.
    pub(super) set_by: &'static str,
    pub(super) is_kept: bool,
}

/// Questions that were left open for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct OpenQuestions {
    /// Names of the aspects, separated by commas: `weights, divergence`.
    pub(super) aspects: String,
    pub(super) reason: String,
    /// Inputs that would answer them.
    pub(super) remedy: String,
}

/// Error of a tensor against its source weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TensorError {
    pub(super) tensor: String,
    /// Number of the layer; `None` if the tensor belongs to no layer.
    pub(super) layer: Option<u32>,
    /// Tensor name without `blk.N.` and `.weight`.
    pub(super) role: String,
    /// True if the bytes equal those of this project's quantizer.
    pub(super) reproduced: bool,
    /// True if the error is larger than the tensor's type can cause.
    pub(super) is_damaged: bool,
    /// Relative RMS error.
    pub(super) error: Option<f64>,
    /// Error divided by the error of the type on these weights.
    pub(super) ratio: Option<f64>,
}

impl TensorError {
    /// Builds the entry of a tensor from its name in the file.
    pub(super) fn new(tensor: &str, reproduced: bool, error: Option<f64>, ratio: Option<f64>) -> Self {
        let (layer, role) = match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, role)) if layer.parse::<u32>().is_ok() => (layer.parse().ok(), role),
            _ => (None, tensor),
        };
        let role = escape(role.strip_suffix(".weight").unwrap_or(role)).into_owned();
        Self { tensor: escape(tensor).into_owned(), layer, role, reproduced, is_damaged: false, error, ratio }
    }
}

impl PageData {
    /// Builds the page of these reports. `baseline` is as it was given.
    pub(super) fn new(
        entries: &[ModelReport],
        baseline: Option<&Path>,
        inputs: &[(&'static str, PathBuf)],
        run: RunInfo,
    ) -> Self {
        let paths = entries.iter().map(|entry| entry.path.as_path());
        let folders = Folders::of(paths.chain(baseline).chain(inputs.iter().map(|(_, path)| path.as_path())));
        let mut files: Vec<FileData> = entries.iter().map(|entry| FileData::new(entry, &folders)).collect();
        let paths: Vec<&Path> = entries.iter().map(|entry| entry.path.as_path()).collect();
        for (file, name) in files.iter_mut().zip(distinct_names(&paths)) {
            file.file = shown(&name);
        }
        label(&mut files);
        let candidates: Vec<FileFigures> = entries.iter().map(candidate).collect();
        for (file, word) in files.iter_mut().zip(recommend(&candidates)) {
            file.recommendation = word;
        }
        let verdict = report::verdict(entries, false);
        Self {
            title: title(&files),
            verdict: verdict.name(),
            summary: summary(entries, verdict),
            has_recommendations: files.iter().any(|file| !file.recommendation.is_empty()),
            has_quality: files.iter().any(|file| file.quality.is_some()),
            baseline: baseline.map(|path| shown(&public::path(path))),
            shared: shared(&files),
            has_perplexity: files.iter().any(|file| file.perplexity.is_some())
                || files.iter().all(|file| file.vectors.is_none()),
            has_cosines: files.iter().any(|file| file.cosine.is_some()),
            has_scores: files.iter().any(|file| file.score.is_some()),
            files,
            run,
        }
    }
}

impl PageData {
    /// Adds the files that could not be judged, each with its error.
    pub(super) fn add_failed(&mut self, failures: &[(PathBuf, anyhow::Error)]) {
        let folders = Folders::of(failures.iter().map(|(path, _)| path.as_path()));
        let failed = failures.iter().map(|(path, error)| {
            let mut report = Report::new(None, None, Thresholds::default());
            report.add(Finding::error(Check::Header, error_line(error)));
            let entry = ModelReport::new(path.clone(), report, Vec::new());
            let (file, answer) = (shown(&file_name(path)), "It could not be judged.".to_owned());
            let (label, verdict) = (shorten(&file), NOT_JUDGED);
            FileData { label, file, answer, verdict, ..FileData::new(&entry, &folders) }
        });
        self.files.extend(failed);
        if !failures.is_empty() {
            if self.verdict == Verdict::Pass.name() {
                self.verdict = Verdict::Partial.name();
            }
            let others = plural(failures.len() as u64, "other file");
            self.summary += " ";
            self.summary += &others;
            self.summary += " could not be judged.";
        }
    }
}

impl FileData {
    fn new(entry: &ModelReport, folders: &Folders) -> Self {
        let report = &entry.report;
        let public = |text: &str| shown(&folders.without(text));
        let Details { name, spread, worst } = entry.details.clone().unwrap_or_default();
        let against = report.embeddings.as_ref().and_then(|found| found.against.as_ref());
        let warnings = report.findings.iter().filter(|finding| finding.severity == Severity::Warning);
        Self {
            label: String::new(),
            file: String::new(),
            link: link(&file_name(&entry.path)),
            answer: public(&report.answer()),
            quality: report.quality().map(Quality::name),
            recommendation: String::new(),
            recipe: report.label.as_ref().map(|label| public(&label.recipe)),
            name: name.as_deref().map(shown),
            arch: report.arch.as_deref().map(shown),
            file_type: entry.file_type.as_deref().map(shown),
            size_bytes: entry.size_bytes,
            bits_per_weight: report.bits_per_weight,
            verdict: report.verdict.name(),
            reasons: reasons(report, folders),
            warnings: warnings.map(|finding| ReportReason::new(finding, folders)).collect(),
            perplexity: report.perplexity,
            bits_per_byte: report.bits_per_byte,
            divergence: report.divergence.clone(),
            ppl_increase: report.divergence.as_ref().map(Divergence::ppl_increase),
            vectors: report.embeddings.clone(),
            cosine: against.filter(|found| found.score_error.is_none()).cloned(),
            score: against.filter(|found| found.score_error.is_some()).cloned(),
            healthy_kld: report.healthy.map(|healthy| healthy.cost.kld),
            limits: limits(report),
            spread,
            worst,
            weights: weights(report),
            tasks: report.tasks.clone(),
            judged: judged(report),
            not_judged: not_judged(report),
        }
    }
}

impl ReportReason {
    fn new(finding: &Finding, folders: &Folders) -> Self {
        Self {
            severity: finding.severity.name(),
            check: finding.check.name().to_owned(),
            tensor: finding.tensor.as_deref().map(shown),
            message: shown(&folders.without(&finding.message)),
        }
    }
}

/// Returns untrusted text with characters escaped that would be invisible or misleading.
fn shown(text: &str) -> String {
    escape(text).into_owned()
}

fn file_name(path: &Path) -> String {
    let own = || path.display().to_string();
    path.file_name().map_or_else(own, |name| PathBuf::from(name).display().to_string())
}

/// Returns the figures that a recommendation depends on.
fn candidate(entry: &ModelReport) -> FileFigures {
    let report = &entry.report;
    FileFigures {
        verdict: report.verdict,
        size_bytes: entry.size_bytes,
        mean_kld: report.divergence.as_ref().map(|d| d.kld.mean),
        quality: report.quality(),
    }
}

/// Returns the error of every tensor against its source weights.
fn weights(report: &Report) -> Vec<TensorError> {
    let tensors = report.weights.iter().flat_map(|weights| &weights.tensors);
    let error = |tensor: &TensorWeights| {
        let is_judged = tensor.outcome != WeightOutcome::Unjudged;
        let is_reproduced = tensor.outcome == WeightOutcome::Reproduced;
        let figure = |value: f64| is_judged.then_some(value);
        let error = TensorError::new(&tensor.name, is_reproduced, figure(tensor.error), figure(tensor.ratio));
        TensorError { is_damaged: tensor.outcome == WeightOutcome::Damaged, ..error }
    };
    tensors.map(error).collect()
}

/// Returns the reasons why the verdict is not a pass, the most severe first.
fn reasons(report: &Report, folders: &Folders) -> Vec<ReportReason> {
    let of = |severity| report.findings.iter().filter(move |finding| finding.severity == severity);
    let found =
        of(Severity::Error).chain(of(Severity::Unchecked)).map(|finding| ReportReason::new(finding, folders));
    // Open questions are no reasons for a failure: they are listed with the file.
    let open = if report.verdict == Verdict::Partial { not_judged(report) } else { Vec::new() };
    let open = open.into_iter().map(|OpenQuestions { aspects, reason, remedy }| ReportReason {
        severity: "unchecked",
        check: aspects,
        tensor: None,
        message: format!("{reason}; needs {remedy}"),
    });
    open.chain(found).collect()
}

/// Returns the reasons that all of several files share.
fn shared(files: &[FileData]) -> Vec<ReportReason> {
    let [first, others @ ..] = files else { return Vec::new() };
    let is_everywhere = |reason: &&ReportReason| others.iter().all(|file| file.reasons.contains(reason));
    if others.is_empty() { Vec::new() } else { first.reasons.iter().filter(is_everywhere).cloned().collect() }
}

fn limits(report: &Report) -> Vec<Limit> {
    let limit = |line: &LimitLine| Limit {
        figure: line.figure.row().label,
        value: line.figure.show(line.value),
        bound: match line.figure.row().better {
            Better::More => "at least",
            Better::Less => "at most",
        },
        at: line.figure.show(line.limit),
        set_by: if line.is_own { "an option" } else { "what the types cost" },
        is_kept: !line.is_missed,
    };
    report.limits.iter().map(limit).collect()
}

fn judged(report: &Report) -> Vec<JudgedAspect> {
    let answered = report.coverage.answered();
    answered.map(|judged| JudgedAspect { by: shown(&judged.by), ..judged }).collect()
}

/// Returns the open questions, grouped by reason and remedy.
fn not_judged(report: &Report) -> Vec<OpenQuestions> {
    let mut groups: Vec<OpenQuestions> = Vec::new();
    for open in report.coverage.open() {
        let (reason, remedy) = (shown(&open.reason), shown(&open.remedy));
        match groups.iter_mut().find(|group| group.reason == reason && group.remedy == remedy) {
            Some(group) => {
                group.aspects.push_str(", ");
                group.aspects.push_str(open.aspect.name());
            }
            None => groups.push(OpenQuestions { aspects: open.aspect.name().to_owned(), reason, remedy }),
        }
    }
    groups
}

/// Returns the name that all files share, else the file name, else the number of models.
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
        (Verdict::Partial, 1) => "In order as far as it was judged; a pass needs more.".to_owned(),
        (Verdict::Fail, 1) => "This file is broken, or worse than allowed.".to_owned(),
        (Verdict::Pass, all) => format!("All {all} files are in order."),
        (Verdict::Partial, all) => format!("{n} of {all} files were judged only in part; none fails."),
        (Verdict::Fail, all) => {
            format!("{n} of {all} files {} broken or worse than allowed.", if n == 1 { "is" } else { "are" })
        }
    }
}

/// Sets short names: the file types if they are unique, else the file names.
fn label(files: &mut [FileData]) {
    let is_unique = |labels: &[String]| {
        let mut sorted = labels.to_vec();
        sorted.sort();
        sorted.dedup();
        sorted.len() == labels.len()
    };
    let names: Vec<String> =
        files.iter().map(|file| shorten(file.file.strip_suffix(".gguf").unwrap_or(&file.file))).collect();
    let type_or_name =
        |(file, name): (&FileData, &String)| file.file_type.clone().unwrap_or_else(|| name.clone());
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

/// Shortens a long name in the middle, since names differ at their ends.
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
