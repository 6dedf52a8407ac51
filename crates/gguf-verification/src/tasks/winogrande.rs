//! Winogrande as comma-separated lines: index, sentence with `_`, two words, number of the right one.
//! A sentence in quotes may contain commas; doubled quotes in it stay doubled.

use std::path::Path;

use crate::tasks::TaskError;
use crate::tasks::choice::GapSentence;

/// Parses all tasks of a text; blank lines are skipped.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<GapSentence>, TaskError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let task = |(number, (at, line)): (usize, (usize, &str))| {
        pair(number, line).map_err(|expected| TaskError::Line {
            path: path.to_owned(),
            line: at + 1,
            expected,
            found: start_of(line),
        })
    };
    lines.enumerate().map(task).collect()
}

/// Maximum number of characters of a line in a message; long enough to show the number at its end.
const SHOWN_CHARS: usize = 120;

fn start_of(line: &str) -> String {
    let shown: String = line.chars().take(SHOWN_CHARS).collect();
    if shown.len() < line.len() { shown + "…" } else { shown }
}

fn pair(number: usize, line: &str) -> Result<GapSentence, &'static str> {
    let [_, sentence, first, second, answer] =
        fields(line).ok_or("index, sentence, two words and the number of the right one, between commas")?;
    let sentence = match sentence.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
        None => sentence,
    };
    let (before, after) = sentence.split_once('_').ok_or("a sentence with `_` where a word is missing")?;
    let answer = answer.trim_start();
    let digits = answer.find(|c: char| !c.is_ascii_digit()).map_or(answer, |end| &answer[..end]);
    let right = match digits.parse() {
        Ok(1u32) => 0,
        Ok(2) => 1,
        _ => return Err("1 or 2, the number of the right word"),
    };
    let words = [first.to_owned(), second.to_owned()];
    Ok(GapSentence { number, before: before.to_owned(), after: after.to_owned(), words, right })
}

/// Returns the five fields of a line; commas within quotes do not count, and everything after the fourth comma is one
/// field.
fn fields(line: &str) -> Option<[&str; 5]> {
    let mut fields = [""; 5];
    let (mut n, mut start, mut is_quoted) = (0, 0, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => {
                fields[n] = &line[start..at];
                (n, start) = (n + 1, at + 1);
                if n == 4 {
                    fields[4] = &line[start..];
                    return Some(fields);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_task() {
        let text = "0,Ann saw Bea so _ waved.,Ann,Bea,1\n\n1,\"Well, _ said \"\"no\"\".\",he,she,2\r\n";
        let tasks = parse(text, Path::new("t")).unwrap();
        assert_eq!(tasks.len(), 2);
        assert_eq!(
            (tasks[0].before.as_str(), tasks[0].after.as_str(), tasks[0].right),
            ("Ann saw Bea so ", " waved.", 0)
        );
        // ref: doubled quotes stay doubled.
        assert_eq!(
            (tasks[1].before.as_str(), tasks[1].after.as_str(), tasks[1].right),
            ("Well, ", " said \"\"no\"\".", 1)
        );
    }

    #[test]
    fn what_is_none_is_named() {
        let error = |text: &str| parse(text, Path::new("t")).unwrap_err().to_string();
        assert!(error("0,a _,b,c\n").starts_with("t: line 1: expected index, sentence"));
        assert!(error("0,a _ b,b,c,1\n\n1,a b,c,d,1").starts_with("t: line 3: expected a sentence with `_`"));
        for answer in ["0", "3", "x", "", "99999999999"] {
            assert!(
                error(&format!("0,a _ b,c,d,{answer}"))
                    .contains("the number of the right word, found `0,a _")
            );
        }
    }
}
