//! Questions with answers to choose from: HellaSwag, Winogrande, and any other in llama-perplexity's binary form.
//!
//! The score of an answer is the mean log-probability of its tokens; the model's answer is the one with the highest
//! score. File formats, choice of tasks, scored tokens and figures are those of llama-perplexity.

mod choice;
mod hellaswag;
mod multiple_choice;
mod random;
mod task_run;
mod unscorable;
mod winogrande;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::tasks::choice::{ChoiceQuestion, GapSentence};
use crate::{Finding, VerifyError};
use gguf_core::Hint;
use gguf_core::text::escape;
use gguf_core::written::as_path;
pub(super) use task_run::run;
pub use unscorable::LeftOut;

/// Error in a file of tasks.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum TaskError {
    #[error("{}: offset {offset}: invalid UTF-8", path.display())]
    Utf8 { path: PathBuf, offset: usize },
    #[error("{}: line {line}: expected {expected}, found `{}`", path.display(), escape(found))]
    Line { path: PathBuf, line: usize, expected: &'static str, found: String },
    #[error("{}: {lines} lines, expected six for each task", path.display())]
    Lines { path: PathBuf, lines: usize },
    #[error("{}: offset {offset}: {name} is {found}, expected {expected}", path.display())]
    Number { path: PathBuf, offset: usize, name: &'static str, found: u32, expected: String },
    #[error("{}: offset {offset}: the file ends within {name}", path.display())]
    End { path: PathBuf, offset: usize, name: &'static str },
    #[error("{}: no tasks", path.display())]
    Empty { path: PathBuf },
    #[error("task {task}: {reason}")]
    Encode { task: usize, reason: String },
    #[error(
        "{}: none of the tasks can be scored: task {} (`{}`): {}",
        path.display(),
        first.task,
        escape(&first.question),
        escape(&first.reason)
    )]
    NothingToScore { path: PathBuf, first: LeftOut },
}

impl Hint for TaskError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Lines { .. } => vec![
                "a task is its context, the index of the right ending, and four endings, a line each"
                    .to_owned(),
            ],
            Self::Number { .. } | Self::End { .. } => {
                vec![
                    "`--multiple-choice` takes the binary form, `--hellaswag` and `--winogrande` text"
                        .to_owned(),
                ]
            }
            _ => Vec::new(),
        }
    }
}

/// Kind of tasks, by the format of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// Six lines per task: context, index of the right ending, four endings.
    #[serde(rename = "hellaswag")]
    HellaSwag,
    /// One line per task: index, sentence with `_`, two words for it, number of the right one.
    Winogrande,
    /// Binary: question, answers, and flags for the right ones.
    MultipleChoice,
}

impl TaskKind {
    /// Returns the name in reports, and of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::HellaSwag => "hellaswag",
            Self::Winogrande => "winogrande",
            Self::MultipleChoice => "multiple-choice",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tasks {
    Choices(Vec<ChoiceQuestion>),
    Pairs(Vec<GapSentence>),
}

/// Chosen tasks of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSet {
    kind: TaskKind,
    path: PathBuf,
    n_in_file: usize,
    tasks: Tasks,
}

impl TaskSet {
    /// Reads a file and chooses `limit` of its tasks, the same as llama-perplexity built with GNU's C++ library.
    ///
    /// # Errors
    /// I/O errors; a file that is not of this kind, by line or offset.
    pub fn read(kind: TaskKind, path: &Path, limit: Option<usize>) -> Result<Self, VerifyError> {
        let bytes = gguf_core::input::read(path)?;
        let (n_in_file, tasks) = match kind {
            TaskKind::HellaSwag => {
                let all = hellaswag::parse(text(&bytes, path)?, path)?;
                let chosen = random::by_distribution(all.len(), limit.unwrap_or(all.len()));
                (all.len(), Tasks::Choices(pick(&all, &chosen)))
            }
            TaskKind::Winogrande => {
                let all = winogrande::parse(text(&bytes, path)?, path)?;
                let chosen = random::by_scaling(all.len(), limit.unwrap_or(all.len()));
                (all.len(), Tasks::Pairs(pick(&all, &chosen)))
            }
            TaskKind::MultipleChoice => {
                let (n, chosen) = multiple_choice::parse(&bytes, path, limit)?;
                (n, Tasks::Choices(chosen))
            }
        };
        if n_in_file == 0 {
            return Err(TaskError::Empty { path: path.to_owned() }.into());
        }
        Ok(Self { kind, path: path.to_owned(), n_in_file, tasks })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn text<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a str, TaskError> {
    std::str::from_utf8(bytes)
        .map_err(|error| TaskError::Utf8 { path: path.to_owned(), offset: error.valid_up_to() })
}

fn pick<T: Clone>(all: &[T], chosen: &[usize]) -> Vec<T> {
    chosen.iter().filter_map(|&at| all.get(at)).cloned().collect()
}

/// Answer of a model to one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskOutcome {
    /// Index of the task in its file.
    pub task: usize,
    /// Index of the answer with the highest score.
    pub answer: usize,
    /// True if that answer is right.
    pub is_right: bool,
    /// Mean log-probability of each answer's tokens.
    pub scores: Vec<f64>,
}

/// Answers of a model to the tasks of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskReport {
    /// Kind of the tasks.
    pub kind: TaskKind,
    /// Path of the file, as it was given.
    #[serde(rename = "file", serialize_with = "as_path")]
    pub path: PathBuf,
    /// Number of tasks that were scored.
    #[serde(rename = "tasks")]
    pub n_tasks: usize,
    /// Number of tasks in the file, of which those in `outcomes` and `left_out` were chosen.
    #[serde(rename = "tasks_in_file")]
    pub n_in_file: usize,
    /// Share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Standard error of the share; 0 for a single task.
    pub stderr: f64,
    /// Lower end of Wilson's interval of the share, at 95 %.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Expected share of right answers of random guesses.
    pub chance: f64,
    /// Outcome of each task, in the order in which they were chosen.
    pub outcomes: Vec<TaskOutcome>,
    /// Chosen tasks that cannot be scored.
    pub left_out: Vec<LeftOut>,
    /// Number of tokens of the longest sequence that was run.
    #[serde(skip)]
    pub longest: usize,
}

impl TaskReport {
    /// Computes the figures of the tasks of a file.
    pub fn new(
        kind: TaskKind,
        path: PathBuf,
        n_in_file: usize,
        outcomes: Vec<TaskOutcome>,
        left_out: Vec<LeftOut>,
    ) -> Self {
        let (n_tasks, n) = (outcomes.len(), outcomes.len() as f64);
        let n_answers = outcomes.iter().map(|outcome| outcome.scores.len() as f64).sum::<f64>();
        let accuracy = outcomes.iter().filter(|outcome| outcome.is_right).count() as f64 / n;
        let (low, high) = interval(accuracy, n);
        Self {
            kind,
            path,
            n_tasks,
            n_in_file,
            accuracy,
            stderr: if n_tasks < 2 { 0.0 } else { (accuracy * (1.0 - accuracy) / (n - 1.0)).sqrt() },
            low,
            high,
            chance: n / n_answers,
            outcomes,
            left_out,
            longest: 0,
        }
    }

    /// Returns findings about the tasks that cannot be scored.
    pub(super) fn findings(&self) -> Vec<Finding> {
        unscorable::findings(&self.path, &self.left_out, self.outcomes.len())
    }
}

/// Returns Wilson's interval of a share `p` of `n` answers, at 95 %.
fn interval(p: f64, n: f64) -> (f64, f64) {
    const QUANTILE: f64 = 1.959_963_984_54;
    let z = QUANTILE * QUANTILE / n;
    let half = z * (n * (4.0 * p * (1.0 - p) + z)).sqrt() / (2.0 * QUANTILE);
    ((p + z / 2.0 - half) / (1.0 + z), (p + z / 2.0 + half) / (1.0 + z))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_share() {
        let outcome = |is_right| TaskOutcome { task: 0, answer: 0, is_right, scores: vec![0.0; 4] };
        let outcomes = [true, true, false, true, false, false, false, false].map(outcome).to_vec();
        let report = TaskReport::new(TaskKind::HellaSwag, PathBuf::new(), 9, outcomes, Vec::new());
        assert_eq!((report.accuracy, report.chance), (0.375, 0.25));
        assert!((report.stderr - (0.375f64 * 0.625 / 7.0).sqrt()).abs() < 1e-15);
        // Values that llama-perplexity prints for three of eight.
        let TaskReport { low, high, .. } = report;
        assert!((low - 0.136_844).abs() < 1e-6 && (high - 0.694_258).abs() < 1e-6, "{low} {high}");
    }
}
