//! Reading of prompt files: by suffix, otherwise by content.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value as Json;

use crate::prompts::form;
use crate::prompts::shape::{TextShape, shape_of};
use crate::{PromptError, PromptSource, VerifyError};
use gguf_core::unique_keys::UniqueKeys;

/// Number of bytes that are examined before the whole file is read.
const HEAD_BYTES: u64 = 64 << 10;

/// Form in which a file of prompts is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PromptForm {
    /// Detected by suffix, otherwise by content. Content that looks like data but is no form of prompts is an error.
    #[default]
    Detected,
    /// One document, whatever the content looks like.
    PlainText,
}

/// Place of an error in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPlace {
    /// Line, from 1.
    Line(usize),
    /// Entry of the file's array, from 1.
    Entry(usize),
    /// The only value of the file.
    Value,
}

impl fmt::Display for PromptPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(at) => write!(f, "line {at}"),
            Self::Entry(at) => write!(f, "entry {at}"),
            Self::Value => f.write_str("JSON"),
        }
    }
}

/// Form that the suffix of a file name declares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suffix {
    Lines,
    Json,
    Table(&'static str),
    Other,
}

impl Suffix {
    fn of(path: &Path) -> Self {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            Some("jsonl" | "ndjson") => Self::Lines,
            Some("json") => Self::Json,
            Some("csv") => Self::Table("CSV"),
            Some("tsv") => Self::Table("TSV"),
            _ => Self::Other,
        }
    }
}

/// Reads a file of prompts.
///
/// # Errors
/// I/O errors; a binary file; text that is not UTF-8; JSON of no known form, by line or entry; a table; a file without
/// prompts.
pub fn read_prompts(path: &Path, form: PromptForm) -> Result<Vec<PromptSource>, VerifyError> {
    let bytes = read_text(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|&byte| byte == b'\n').count();
        let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        PromptError::Utf8 { path: path.to_owned(), line, column: before.len() - start }
    })?;
    let prompts = match form {
        PromptForm::PlainText if text.is_empty() => Vec::new(),
        PromptForm::PlainText => vec![PromptSource::Text(text.to_owned())],
        PromptForm::Detected => detected(path, text)?,
    };
    if prompts.is_empty() {
        return Err(PromptError::Empty { path: path.to_owned() }.into());
    }
    Ok(prompts)
}

fn detected(path: &Path, text: &str) -> Result<Vec<PromptSource>, PromptError> {
    // A byte order mark belongs to the encoding; in prose it stays, as in llama.cpp.
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let owned = || path.to_owned();
    match Suffix::of(path) {
        Suffix::Table(form) => Err(PromptError::Table { path: owned(), form }),
        Suffix::Lines => match lines(path, body) {
            // An array over several lines, misnamed `.jsonl`.
            Err(error) => match parsed(body) {
                Ok(value @ Json::Array(_)) => whole(path, value),
                _ => Err(error),
            },
            read => read,
        },
        Suffix::Json if body.trim().is_empty() => Ok(Vec::new()),
        Suffix::Json => match parsed(body) {
            Ok(value) => whole(path, value),
            // JSON lines, misnamed `.json`: the first line is a complete value.
            Err(_) if starts_with_value(body) => lines(path, body),
            Err(source) => Err(PromptError::NotJson { path: owned(), reason: source.to_string() }),
        },
        Suffix::Other => match shape_of(body) {
            TextShape::Prose if text.is_empty() => Ok(Vec::new()),
            TextShape::Prose => Ok(vec![PromptSource::Text(text.to_owned())]),
            TextShape::Whole(value) => whole(path, value),
            TextShape::Lines => lines(path, body),
            TextShape::Broken(reason) => Err(PromptError::NotJson { path: owned(), reason }),
            TextShape::Table(form) => Err(PromptError::Table { path: owned(), form }),
        },
    }
}

/// Reads JSON in which no object has a key twice.
fn parsed(text: &str) -> serde_json::Result<Json> {
    serde_json::from_str::<UniqueKeys>(text)?;
    serde_json::from_str(text)
}

/// Returns true if the first line that is not blank is a complete JSON value.
fn starts_with_value(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.is_some_and(|line| serde_json::from_str::<Json>(line).is_ok())
}

/// Returns the prompts of one JSON value: the entries of an array, unless they are the messages of one chat.
fn whole(path: &Path, value: Json) -> Result<Vec<PromptSource>, PromptError> {
    match value {
        Json::Array(entries) if !form::is_chat(&entries) => entries
            .into_iter()
            .enumerate()
            .map(|(at, entry)| prompt(path, PromptPlace::Entry(at + 1), entry))
            .collect(),
        value => prompt(path, PromptPlace::Value, value).map(|prompt| vec![prompt]),
    }
}

/// Reads one prompt per line; empty lines are skipped.
fn lines(path: &Path, text: &str) -> Result<Vec<PromptSource>, PromptError> {
    let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(at, line): (usize, &str)| {
        let place = PromptPlace::Line(at + 1);
        match parsed(line) {
            Ok(value) => prompt(path, place, value),
            Err(source) => Err(PromptError::Json { path: path.to_owned(), place, source }),
        }
    };
    filled.map(read).collect()
}

fn prompt(path: &Path, place: PromptPlace, value: Json) -> Result<PromptSource, PromptError> {
    form::prompt(value).map_err(|found| PromptError::Form {
        path: path.to_owned(),
        place,
        found,
        expected: form::EXPECTED,
    })
}

/// Reads a text file. A binary file is rejected with its kind before it is read completely.
fn read_text(path: &Path) -> Result<Vec<u8>, VerifyError> {
    let mut file = gguf_core::input::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes)?;
    let refuse = |what| VerifyError::Prompts(PromptError::Binary { path: path.to_owned(), what });
    if let Some(what) = binary(&bytes) {
        return Err(refuse(what));
    }
    file.read_to_end(&mut bytes)?;
    if bytes.contains(&0) { Err(refuse("binary data")) } else { Ok(bytes) }
}

const MAGIC: [(&[u8], &str); 15] = [
    (b"GGUF", "a GGUF file"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"BZh", "compressed by bzip2"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"%PDF-", "a PDF file"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89PNG", "a PNG image"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
];

/// Names the kind of a file that is not text: its first bytes contain a zero, or are not UTF-8 and match a known
/// format.
fn binary(head: &[u8]) -> Option<&'static str> {
    let known = || MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    if head.contains(&0) {
        return Some(known().unwrap_or("binary data"));
    }
    // The last character may be truncated.
    let is_text = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
    if is_text { None } else { known() }
}
