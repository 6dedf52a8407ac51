//! Tasks that cannot be scored: they are excluded from the figure and reported.

use std::path::Path;

use serde::Serialize;

use crate::tasks::choice::{ChoiceQuestion, GapSentence};
use crate::{Check, Finding};
use gguf_core::text::escape;

/// Maximum number of characters of a question in a message.
const SHOWN_CHARS: usize = 60;
/// Maximum number of tasks that one message names.
const NAMED: usize = 3;

/// Task that is excluded from the figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Index of the task in its file.
    pub task: usize,
    /// Question, or the start of it.
    pub question: String,
    /// Reason why it cannot be scored.
    pub reason: String,
    /// True if the model's scores are not numbers, false if the task is at fault.
    #[serde(skip)]
    pub(crate) is_of_model: bool,
}

impl LeftOut {
    pub(super) fn new(task: usize, question: &str, reason: String) -> Self {
        let mut shown: String = question.chars().take(SHOWN_CHARS).collect();
        if shown.len() < question.len() {
            shown.push('…');
        }
        Self { task, question: shown, reason, is_of_model: false }
    }

    fn sentence(&self) -> String {
        format!("task {} (`{}`): {}", self.task, escape(&self.question), escape(&self.reason))
    }
}

impl ChoiceQuestion {
    /// Returns the reason why the task cannot be scored, if there is one.
    pub(super) fn flaw(&self) -> Option<String> {
        let n_right = self.is_right.iter().filter(|&&right| right).count();
        if self.answers.len() < 2 {
            return Some("it has fewer than two answers".to_owned());
        }
        if n_right == 0 {
            return Some("no answer is marked as right".to_owned());
        }
        if n_right == self.answers.len() {
            return Some("every answer is marked as right".to_owned());
        }
        if let Some(at) = self.answers.iter().position(|answer| answer.trim().is_empty()) {
            return Some(format!("answer {at} is empty"));
        }
        let labelled = || self.answers.iter().zip(&self.is_right).enumerate();
        labelled().find_map(|(at, (answer, right))| {
            let same = |(_, (other, other_right)): &(usize, (&String, &bool))| {
                *other == answer && *other_right != right
            };
            let (other, _) = labelled().skip(at + 1).find(same)?;
            Some(format!("answers {at} and {other} are the same text, and only one is marked as right"))
        })
    }
}

impl GapSentence {
    /// Returns the reason why the task cannot be scored, if there is one.
    pub(super) fn flaw(&self) -> Option<String> {
        let [first, second] = &self.words;
        if let Some(at) = self.words.iter().position(|word| word.trim().is_empty()) {
            return Some(format!("word {} is empty", at + 1));
        }
        (first == second).then(|| "both words are the same".to_owned())
    }

    pub(super) fn question(&self) -> String {
        format!("{}_{}", self.before, self.after)
    }
}

/// Returns one finding for the tasks of a file that are at fault, and one for those without scores from the model.
pub(super) fn findings(path: &Path, left_out: &[LeftOut], n_scored: usize) -> Vec<Finding> {
    let about = |is_of_model: bool| {
        let tasks: Vec<&LeftOut> = left_out.iter().filter(|left| left.is_of_model == is_of_model).collect();
        if tasks.is_empty() {
            return None;
        }
        let named: Vec<String> = tasks.iter().take(NAMED).map(|task| task.sentence()).collect();
        let more = match tasks.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!("; and {n} more"),
        };
        let message = format!(
            "{}: {} of {} tasks cannot be scored and are not in the figure: {}{more}",
            escape(&path.to_string_lossy()),
            tasks.len(),
            left_out.len() + n_scored,
            named.join("; ")
        );
        let is_error = is_of_model || n_scored == 0;
        Some(if is_error {
            Finding::error(Check::Tasks, message)
        } else {
            Finding::warning(Check::Tasks, message)
        })
    };
    [about(false), about(true)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(answers: &[(&str, bool)]) -> ChoiceQuestion {
        ChoiceQuestion {
            number: 4,
            question: "Q".to_owned(),
            answers: answers.iter().map(|(text, _)| (*text).to_owned()).collect(),
            is_right: answers.iter().map(|(_, right)| *right).collect(),
        }
    }

    #[test]
    fn answers_have_texts_and_one_of_them_is_right() {
        let flaw = |answers: &[(&str, bool)]| choice(answers).flaw().unwrap_or_default();
        assert_eq!(flaw(&[("a", true), ("b", false)]), "");
        assert_eq!(flaw(&[("a", true), ("b", true), ("c", false)]), "");
        assert_eq!(flaw(&[("a", true)]), "it has fewer than two answers");
        assert_eq!(flaw(&[("a", false), ("b", false)]), "no answer is marked as right");
        assert_eq!(flaw(&[("a", true), ("b", true)]), "every answer is marked as right");
        assert_eq!(flaw(&[("a", true), (" ", false)]), "answer 1 is empty");
        assert_eq!(
            flaw(&[("x", false), ("a", true), ("a", false)]),
            "answers 1 and 2 are the same text, and only one is marked as right"
        );
        // Wrong answers may be equal: whichever is chosen is wrong.
        assert_eq!(flaw(&[("x", false), ("a", true), ("x", false)]), "");
    }

    #[test]
    fn words_differ() {
        let pair = |words: [&str; 2]| GapSentence {
            number: 0,
            before: "A ".to_owned(),
            after: " b.".to_owned(),
            words: words.map(str::to_owned),
            right: 0,
        };
        assert_eq!(pair(["x", "y"]).flaw(), None);
        assert_eq!(pair(["x", ""]).flaw().unwrap(), "word 2 is empty");
        assert_eq!(pair(["x", "x"]).flaw().unwrap(), "both words are the same");
        assert_eq!(pair(["x", "y"]).question(), "A _ b.");
    }

    #[test]
    fn tasks_are_counted_and_three_are_named() {
        let left: Vec<LeftOut> =
            (0..5).map(|task| LeftOut::new(task, "Which?", "no answer is marked as right".into())).collect();
        let found = findings(Path::new("t"), &left, 2);
        let message = &found[0].message;
        assert!(message.starts_with(
            "t: 5 of 7 tasks cannot be scored and are not in the figure: task 0 (`Which?`): no"
        ));
        assert!(
            message.ends_with("task 2 (`Which?`): no answer is marked as right; and 2 more"),
            "{message}"
        );
        assert_eq!(found[0].severity.name(), "warning");
        let broken = LeftOut { is_of_model: true, ..left[0].clone() };
        assert_eq!(findings(Path::new("t"), &[broken], 2)[0].severity.name(), "error");
        assert!(findings(Path::new("t"), &[], 2).is_empty());
    }
}
