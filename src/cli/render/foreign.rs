//! Output of untrusted text from files: control sequences never reach a terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use crate::core::text::{escape_lines, is_unsafe};

/// Maximum number of characters of a quotation in a message, and of any line of a message.
const MAX_QUOTED: usize = 200;
const MAX_LINE: usize = 4000;

/// Escapes what a terminal would obey, and shortens quotations and lines.
pub(crate) fn message_text(text: &str) -> String {
    let text = escape_lines(text);
    let quoted =
        |(at, part): (usize, &str)| if at % 2 == 1 { cut(part, MAX_QUOTED) } else { part.to_owned() };
    let text = text.split('`').enumerate().map(quoted).collect::<Vec<_>>().join("`");
    text.split('\n').map(|line| cut(line, MAX_LINE)).collect::<Vec<_>>().join("\n")
}

/// Keeps the beginning and the end of a text that is longer than `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let n_chars = text.chars().count();
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    match n_chars.checked_sub(most) {
        None | Some(0) => text.to_owned(),
        Some(n) => format!("{}[… {n} more …]{}", &text[..at(most * 3 / 4)], &text[at(n_chars - most / 4)..]),
    }
}

/// Prints a report as a JSON document. Characters that a terminal would obey are written as JSON escapes: `\u202e`.
///
/// 32-bit floats are printed with the digits of their 64-bit values.
pub(crate) fn write_json(out: &mut dyn Write, report: &impl Serialize) -> io::Result<()> {
    let document = serde_json::to_value(report)?;
    let out = Replacing { out, replace: push_json };
    serde_json::to_writer_pretty(out, &document).map_err(io::Error::from)
}

/// Returns a report as the text of a JSON document, in the form of [`write_json`].
pub(crate) fn json_text(report: &impl Serialize) -> io::Result<String> {
    let mut bytes = Vec::new();
    write_json(&mut bytes, report)?;
    bytes.push(b'\n');
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Returns a writer that makes text safe for a terminal. This program's colours and line breaks pass.
pub(crate) fn to_terminal(out: &mut dyn Write) -> impl Write {
    Replacing { out, replace: push_visible }
}

fn push_visible(c: char, text: &mut String) {
    match c {
        '\n' | '\r' | '\t' | '\u{1b}' => text.push(c),
        c => text.extend(c.escape_unicode()),
    }
}

/// Writes characters that JSON's own escapes leave unchanged (DEL and beyond ASCII) as `\u` escapes.
fn push_json(c: char, text: &mut String) {
    if c < '\u{7f}' {
        return text.push(c);
    }
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
}

/// Writer that replaces unsafe characters. A character is never split over two writes, because text is written whole.
struct Replacing<'a> {
    out: &'a mut dyn Write,
    replace: fn(char, &mut String),
}

impl Write for Replacing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_plain = |bytes: &[u8]| bytes.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte == b'\n');
        if is_plain(bytes) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        for chunk in bytes.utf8_chunks() {
            let mut text = String::with_capacity(chunk.valid().len());
            for c in chunk.valid().chars() {
                if is_unsafe(c) { (self.replace)(c, &mut text) } else { text.push(c) }
            }
            self.out.write_all(text.as_bytes())?;
            self.out.write_all(chunk.invalid())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_says_in_ascii_what_terminals_would_obey() {
        let document = json!({ "a\u{202e}b\u{9b}31m\u{7f}": "\u{1b}[31m\n ünï\u{e0041} \u{2066}" });
        let text = json_text(&document).unwrap();
        assert_eq!(
            text,
            "{\n  \"a\\u202eb\\u009b31m\\u007f\": \"\\u001b[31m\\n ünï\\udb40\\udc41 \\u2066\"\n}\n"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), document);
    }

    #[test]
    fn messages_are_short_and_plain() {
        assert_eq!(message_text("a\u{1b}[2Jb\nc\u{202e}"), "a\\u{1b}[2Jb\nc\\u{202e}");
        let long = message_text(&format!("tokenizer.json: `{}`: no token", "ü".repeat(2_000_000)));
        assert!(long.chars().count() < 80 + MAX_QUOTED, "{}", long.len());
        assert!(long.starts_with("tokenizer.json: `ü") && long.ends_with("ü`: no token"), "{long}");
        let line = message_text(&format!("x\n{}", "y".repeat(2_000_000)));
        assert!(line.len() < MAX_LINE + 50 && line.starts_with("x\ny"), "{}", line.len());
        let names = format!("known are `{}`", vec!["q4_k_m"; 300].join("`, `"));
        assert_eq!(message_text(&names), names);
    }

    #[test]
    fn colours_pass_and_directions_do_not() {
        let mut out = Vec::new();
        writeln!(to_terminal(&mut out), "\u{1b}[1mname\u{1b}[0m\ta\u{202e}b\u{9b}").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{1b}[1mname\u{1b}[0m\ta\\u{202e}b\\u{9b}\n");
    }
}
