//! Tasks in llama-perplexity's binary form.
//!
//! # Layout
//! Little-endian numbers of four bytes. The number of tasks; for each task its offset; then the tasks: a string, the
//! question; answers of which one is right; answers of which several are right (read, but not used). Answers are their
//! number (100 at most), one string each, and one number each: 1 if it is right. A string is its length and its bytes.

use std::path::Path;

use crate::tasks::choice::ChoiceQuestion;
use crate::tasks::{TaskError, random};

/// Maximum number of answers of a task.
const MAX_ANSWERS: u32 = 100;

/// Returns the number of tasks in the file, and the chosen ones: all in the order of the file, or `limit` of them by
/// their offsets.
pub(super) fn parse(
    bytes: &[u8],
    path: &Path,
    limit: Option<usize>,
) -> Result<(usize, Vec<ChoiceQuestion>), TaskError> {
    let mut reader = TaskReader { bytes, at: 0, path };
    let n_tasks = reader.number("the number of tasks")?;
    let n = n_tasks as usize;
    // Each task has at least an offset, the length of a question and two numbers of answers.
    let most = bytes.len().saturating_sub(4) / 16;
    if n > most {
        return Err(reader.wrong(
            0,
            "the number of tasks",
            n_tasks,
            format!("at most {most} in a file of this size"),
        ));
    }
    let offsets = (0..n).map(|_| reader.number("the offsets of tasks")).collect::<Result<Vec<_>, _>>()?;
    let tasks = match limit.filter(|&limit| limit < n) {
        None => (0..n).map(|number| reader.task(number)).collect::<Result<_, _>>()?,
        Some(limit) => {
            let chosen = random::by_scaling(n, limit);
            let task = |number: usize| {
                reader.at = offsets[number] as usize;
                reader.task(number)
            };
            chosen.into_iter().map(task).collect::<Result<_, _>>()?
        }
    };
    Ok((n, tasks))
}

struct TaskReader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl TaskReader<'_> {
    fn wrong(&self, offset: usize, name: &'static str, found: u32, expected: String) -> TaskError {
        TaskError::Number { path: self.path.to_owned(), offset, name, found, expected }
    }

    fn take(&mut self, n: usize, name: &'static str) -> Result<&[u8], TaskError> {
        let (bytes, offset) = (self.bytes, self.at);
        let taken = self.at.checked_add(n).and_then(|end| bytes.get(offset..end));
        let taken = taken.ok_or_else(|| TaskError::End { path: self.path.to_owned(), offset, name })?;
        self.at += n;
        Ok(taken)
    }

    fn number(&mut self, name: &'static str) -> Result<u32, TaskError> {
        let bytes = self.take(4, name)?;
        Ok(bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word)))
    }

    fn string(&mut self, name: &'static str) -> Result<String, TaskError> {
        let offset = self.at;
        let n = self.number(name)?;
        if n == 0 {
            return Err(self.wrong(offset, name, 0, "at least one byte".to_owned()));
        }
        let start = self.at;
        let bytes = self.take(n as usize, name)?.to_vec();
        String::from_utf8(bytes).map_err(|error| TaskError::Utf8 {
            path: self.path.to_owned(),
            offset: start + error.utf8_error().valid_up_to(),
        })
    }

    /// Reads answers, with flags for the right ones.
    fn answers(&mut self, at_least: u32) -> Result<(Vec<String>, Vec<bool>), TaskError> {
        let offset = self.at;
        let n = self.number("the number of answers")?;
        if !(at_least..=MAX_ANSWERS).contains(&n) {
            let expected = format!("{at_least} to {MAX_ANSWERS}");
            return Err(self.wrong(offset, "the number of answers", n, expected));
        }
        let answers = (0..n).map(|_| self.string("an answer")).collect::<Result<_, _>>()?;
        let labels =
            (0..n).map(|_| Ok(self.number("the answers' labels")? == 1)).collect::<Result<_, _>>()?;
        Ok((answers, labels))
    }

    fn task(&mut self, number: usize) -> Result<ChoiceQuestion, TaskError> {
        let question = self.string("a question")?;
        let (answers, is_right) = self.answers(1)?;
        self.answers(0)?;
        Ok(ChoiceQuestion { number, question, answers, is_right })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tasks: &[(&str, &[(&str, u32)])]) -> Vec<u8> {
        let string = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let mut bodies = Vec::new();
        for (question, answers) in tasks {
            let mut body = string(question);
            body.extend((answers.len() as u32).to_le_bytes());
            for (answer, _) in *answers {
                body.extend(string(answer));
            }
            for (_, label) in *answers {
                body.extend(label.to_le_bytes());
            }
            body.extend(0u32.to_le_bytes());
            bodies.push(body);
        }
        let mut offset = 4 + 4 * bodies.len();
        let mut out = (bodies.len() as u32).to_le_bytes().to_vec();
        for body in &bodies {
            out.extend((offset as u32).to_le_bytes());
            offset += body.len();
        }
        out.extend(bodies.concat());
        out
    }

    fn sample() -> Vec<u8> {
        file(&[
            ("Q", &[("a", 0), ("bc", 1)]),
            ("R?", &[("x", 1), ("y", 0), ("z", 0)]),
            ("S", &[("u", 1), ("v", 0)]),
        ])
    }

    #[test]
    fn tasks_are_read_in_order_and_by_offset() {
        let (n, tasks) = parse(&sample(), Path::new("t"), None).unwrap();
        assert_eq!((n, tasks.len()), (3, 3));
        assert_eq!((tasks[1].question.as_str(), tasks[1].answers.len()), ("R?", 3));
        assert_eq!(tasks[0].is_right, [false, true]);
        let (n, chosen) = parse(&sample(), Path::new("t"), Some(2)).unwrap();
        assert_eq!((n, chosen.len()), (3, 2));
        assert!(chosen.iter().all(|task| *task == tasks[task.number]), "{chosen:?}");
    }

    #[test]
    fn every_cut_and_every_large_number_is_an_error() {
        let whole = sample();
        for end in 0..whole.len() {
            assert!(parse(&whole[..end], Path::new("t"), None).is_err(), "{end}");
        }
        for at in 0..whole.len() - 3 {
            let mut damaged = whole.clone();
            damaged[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            // A label may be any number; nothing else may be.
            let _ = parse(&damaged, Path::new("t"), None);
            let _ = parse(&damaged, Path::new("t"), Some(2));
        }
        let error = |bytes: &[u8]| parse(bytes, Path::new("t"), None).unwrap_err().to_string();
        assert_eq!(
            error(&u32::MAX.to_le_bytes()),
            "t: offset 0: the number of tasks is 4294967295, expected at most 0 in a file of this size"
        );
        let mut many = whole.clone();
        many[21..25].copy_from_slice(&101u32.to_le_bytes());
        assert_eq!(error(&many), "t: offset 21: the number of answers is 101, expected 1 to 100");
        assert!(error(&file(&[("", &[("a", 1)])])).contains("a question is 0, expected at least one byte"));
    }
}
