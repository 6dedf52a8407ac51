//! HellaSwag as text: six lines per task: the context, the index of the right ending from 0, four endings.

use std::path::Path;

use crate::tasks::TaskError;
use crate::tasks::choice::ChoiceQuestion;

const LINES: usize = 6;

pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<ChoiceQuestion>, TaskError> {
    let lines: Vec<&str> = text.lines().collect();
    if !lines.len().is_multiple_of(LINES) {
        return Err(TaskError::Lines { path: path.to_owned(), lines: lines.len() });
    }
    let task = |(number, lines): (usize, &[&str])| {
        let [question, right, endings @ ..] = lines else {
            return Err(TaskError::Lines { path: path.to_owned(), lines: lines.len() });
        };
        let index = right.trim().parse().ok().filter(|&right: &usize| right < endings.len());
        let right = index.ok_or_else(|| TaskError::Line {
            path: path.to_owned(),
            line: number * LINES + 2,
            expected: "the index of the right ending, 0 to 3",
            found: (*right).to_owned(),
        })?;
        Ok(ChoiceQuestion {
            number,
            question: (*question).to_owned(),
            answers: endings.iter().map(|&ending| ending.to_owned()).collect(),
            is_right: (0..endings.len()).map(|at| at == right).collect(),
        })
    };
    lines.chunks(LINES).enumerate().map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_lines_are_a_task() {
        let tasks = parse("C\n2\na\nb\nc\nd\nD\n0\n1\n2\n3\n4\n", Path::new("t")).unwrap();
        assert_eq!(tasks.len(), 2);
        assert_eq!(tasks[0].is_right, [false, false, true, false]);
        assert_eq!((tasks[1].number, tasks[1].answers[3].as_str()), (1, "4"));
    }

    #[test]
    fn what_is_none_is_named() {
        let error = |text: &str| parse(text, Path::new("t")).unwrap_err().to_string();
        assert_eq!(error("C\n2\na\nb\nc\n"), "t: 5 lines, expected six for each task");
        let expected = "expected the index of the right ending, 0 to 3";
        assert_eq!(error("C\n4\na\nb\nc\nd\n"), format!("t: line 2: {expected}, found `4`"));
        assert_eq!(
            error("C\n0\na\nb\nc\nd\nC\nx\na\nb\nc\nd\n"),
            format!("t: line 8: {expected}, found `x`")
        );
    }
}
