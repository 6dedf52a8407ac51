//! Questions with answers to choose from: HellaSwag, Winogrande, and any other in llama-perplexity's binary form.
//!
//! An answer's score is the mean log-probability of its tokens; the model's answer is the one with the highest. Files,
//! choice of tasks, tokens that count and figures are llama-perplexity's.

mod choice;
mod hellaswag;
mod multiple_choice;
mod random;
mod run;
mod unscorable;
mod winogrande;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::core::Hint;
use crate::core::text::escape;
use crate::verify::Finding;
use crate::verify::VerifyError;
use crate::verify::tasks::choice::{Choice, Pair};
pub(super) use run::run;
pub use unscorable::LeftOut;

/// What is wrong with a file of tasks.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum TaskError {
    /// Text that is not UTF-8.
    #[error("{}: offset {offset}: invalid UTF-8", path.display())]
    Utf8 { path: PathBuf, offset: usize },
    /// A line that is not what its place asks for.
    #[error("{}: line {line}: expected {expected}, found `{}`", path.display(), escape(found))]
    Line { path: PathBuf, line: usize, expected: &'static str, found: String },
    /// Lines that are no whole tasks.
    #[error("{}: {lines} lines, expected six for each task", path.display())]
    Lines { path: PathBuf, lines: usize },
    /// A number of a binary file that makes no sense.
    #[error("{}: offset {offset}: {name} is {found}, expected {expected}", path.display())]
    Number { path: PathBuf, offset: usize, name: &'static str, found: u32, expected: String },
    /// A binary file that ends too early.
    #[error("{}: offset {offset}: the file ends within {name}", path.display())]
    End { path: PathBuf, offset: usize, name: &'static str },
    /// No task at all.
    #[error("{}: no tasks", path.display())]
    Empty { path: PathBuf },
    /// Text that the vocabulary has no ids for.
    #[error("task {task}: {reason}")]
    Encode { task: usize, reason: String },
    /// Not one task that can be scored.
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

/// A kind of tasks, by the form of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Six lines a task: context, index of the right ending, four endings.
    HellaSwag,
    /// A line a task: index, sentence with `_`, two words for it, number of the right one.
    Winogrande,
    /// Binary: question, answers, which are right.
    MultipleChoice,
}

impl TaskKind {
    /// Name in reports, and of the option.
    #[must_use]
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
    Choices(Vec<Choice>),
    Pairs(Vec<Pair>),
}

/// Tasks of one file, those that were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSet {
    kind: TaskKind,
    path: PathBuf,
    n_in_file: usize,
    tasks: Tasks,
}

impl TaskSet {
    /// Reads a file and chooses `limit` of its tasks, those that llama-perplexity built with GNU's C++ library chooses.
    ///
    /// # Errors
    /// I/O errors; a file that is not of this kind, by line or offset.
    pub fn read(kind: TaskKind, path: &Path, limit: Option<usize>) -> Result<Self, VerifyError> {
        let bytes = crate::core::input::read(path)?;
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

    /// The file.
    #[must_use]
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

/// How a model answered one task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskOutcome {
    /// Index of the task in its file.
    pub task: usize,
    /// Mean log-probability of each answer's tokens.
    pub scores: Vec<f64>,
    /// Index of the highest.
    pub answer: usize,
    /// Whether that is a right one.
    pub is_right: bool,
}

/// How a model answered the tasks of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// Their kind.
    pub kind: TaskKind,
    /// The file.
    pub path: PathBuf,
    /// Tasks in the file, of which those in `outcomes` were chosen.
    pub n_in_file: usize,
    /// Task by task, in the order in which they were chosen.
    pub outcomes: Vec<TaskOutcome>,
    /// Chosen tasks that cannot be scored.
    pub left_out: Vec<LeftOut>,
}

impl TaskReport {
    fn n(&self) -> f64 {
        self.outcomes.len() as f64
    }

    /// Share of right answers, 0 to 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.outcomes.iter().filter(|outcome| outcome.is_right).count() as f64 / self.n()
    }

    /// Standard error of the share; 0 for a single task.
    #[must_use]
    pub fn stderr(&self) -> f64 {
        let p = self.accuracy();
        if self.outcomes.len() < 2 { 0.0 } else { (p * (1.0 - p) / (self.n() - 1.0)).sqrt() }
    }

    /// Wilson's interval of the share, at 95 %.
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        const QUANTILE: f64 = 1.959_963_984_54;
        let (p, n) = (self.accuracy(), self.n());
        let z = QUANTILE * QUANTILE / n;
        let half = z * (n * (4.0 * p * (1.0 - p) + z)).sqrt() / (2.0 * QUANTILE);
        ((p + z / 2.0 - half) / (1.0 + z), (p + z / 2.0 + half) / (1.0 + z))
    }

    /// The share that guessing would have.
    #[must_use]
    pub fn chance(&self) -> f64 {
        self.n() / self.outcomes.iter().map(|outcome| outcome.scores.len() as f64).sum::<f64>()
    }

    /// What is said of the tasks that cannot be scored.
    pub(super) fn findings(&self) -> Vec<Finding> {
        unscorable::findings(&self.path, &self.left_out, self.outcomes.len())
    }

    pub(super) fn to_json(&self) -> Value {
        let (low, high) = self.interval();
        let outcomes = self.outcomes.iter().map(|outcome| {
            json!({
                "task": outcome.task, "answer": outcome.answer, "is_right": outcome.is_right,
                "scores": outcome.scores,
            })
        });
        let left_out = self
            .left_out
            .iter()
            .map(|left| json!({ "task": left.task, "question": left.question, "reason": left.reason }));
        json!({
            "kind": self.kind.name(), "file": self.path.display().to_string(), "tasks": self.outcomes.len(),
            "tasks_in_file": self.n_in_file, "accuracy": self.accuracy(), "stderr": self.stderr(),
            "low": low, "high": high, "chance": self.chance(), "outcomes": outcomes.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_share() {
        let outcome = |is_right| TaskOutcome { task: 0, scores: vec![0.0; 4], answer: 0, is_right };
        let outcomes = [true, true, false, true, false, false, false, false].map(outcome).to_vec();
        let report = TaskReport {
            kind: TaskKind::HellaSwag,
            path: PathBuf::new(),
            n_in_file: 9,
            outcomes,
            left_out: Vec::new(),
        };
        assert_eq!((report.accuracy(), report.chance()), (0.375, 0.25));
        assert!((report.stderr() - (0.375f64 * 0.625 / 7.0).sqrt()).abs() < 1e-15);
        // What llama-perplexity prints for three of eight.
        let (low, high) = report.interval();
        assert!((low - 0.136_844).abs() < 1e-6 && (high - 0.694_258).abs() < 1e-6, "{low} {high}");
    }
}
