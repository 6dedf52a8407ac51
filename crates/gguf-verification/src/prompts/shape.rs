//! Detection of a file's form (prose, JSON, table) by content. The rules are narrow on purpose: prose with brackets and
//! commas is prose.

use gguf_core::unique_keys::UniqueKeys;
use serde_json::Value as Json;

/// Maximum number of records of a table that are examined.
const MAX_RECORDS: usize = 500;
/// Minimum number of records of a table: a header and two rows.
const MIN_RECORDS: usize = 3;
/// Maximum number of characters, and of words, of a column's name.
const MAX_NAME: usize = 40;
const MAX_WORDS: usize = 4;

/// Detected form of a text.
#[derive(Debug, PartialEq)]
pub(super) enum TextShape {
    Prose,
    /// One JSON array or object.
    Whole(Json),
    /// JSON arrays or objects, one per line.
    Lines,
    /// JSON that does not parse, with the reason.
    Broken(String),
    /// Table, with the name of its format.
    Table(&'static str),
}

/// Detects the form of a text whose file name does not declare one.
pub(super) fn shape_of(text: &str) -> TextShape {
    let body = text.trim();
    if body.starts_with(['{', '[']) {
        return json_shape(body);
    }
    table(body).map_or(TextShape::Prose, TextShape::Table)
}

fn json_shape(body: &str) -> TextShape {
    let error = match serde_json::from_str::<Json>(body) {
        Ok(value) => {
            let keys = serde_json::from_str::<UniqueKeys>(body);
            return keys
                .map_or_else(|error| TextShape::Broken(error.to_string()), |_| TextShape::Whole(value));
        }
        Err(error) => error,
    };
    // If most lines are JSON, the text is JSON lines, possibly with a broken one. A line that parses by chance (`[1]`,
    // a footnote) contains nothing that could be a prompt.
    let (mut n_lines, mut n_json) = (0usize, 0usize);
    let mut first_broken = None;
    for (at, line) in body.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        n_lines += 1;
        match serde_json::from_str::<Json>(line) {
            Ok(value) if has_text(&value) => n_json += 1,
            Ok(_) => {}
            Err(error) => {
                first_broken.get_or_insert_with(|| format!("line {}: {error}", at + 1));
            }
        }
    }
    if n_lines > 1 && n_json == n_lines {
        return TextShape::Lines;
    }
    if n_lines > 1 && n_json * 2 > n_lines {
        return TextShape::Broken(first_broken.unwrap_or_else(|| error.to_string()));
    }
    if begins_as_json(body, error.is_eof()) { TextShape::Broken(error.to_string()) } else { TextShape::Prose }
}

/// Returns true for an object with keys, or an array that contains a text or an object.
fn has_text(value: &Json) -> bool {
    match value {
        Json::Object(map) => !map.is_empty(),
        Json::Array(entries) => entries.iter().any(|entry| entry.is_string() || has_text(entry)),
        _ => false,
    }
}

/// Returns true for a text that continues as JSON: a key and a colon, or texts separated by commas up to a bracket at
/// the end.
fn begins_as_json(body: &str, ends_early: bool) -> bool {
    let mut rest = body;
    let mut is_array = false;
    while let Some(inner) = rest.strip_prefix('[') {
        is_array = true;
        rest = inner.trim_start();
    }
    let (is_object, rest) = match rest.strip_prefix('{') {
        Some(inner) => (true, inner.trim_start()),
        None => (false, rest),
    };
    let Some(quote) = rest.chars().next().filter(|first| matches!(first, '"' | '\'')) else { return false };
    let Some(behind) = behind_quoted(&rest[1..], quote) else { return false };
    if is_object {
        return behind.starts_with(':');
    }
    let is_entry = is_array && (behind.starts_with(',') || behind.starts_with(']'));
    is_entry && (body.ends_with(']') || (ends_early && quote == '"'))
}

/// Returns what follows the quote that ends a text, without leading blanks.
fn behind_quoted(text: &str, quote: char) -> Option<&str> {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            letter if letter == quote => return Some(text[at + 1..].trim_start()),
            _ => {}
        }
    }
    None
}

/// Returns the format name if a text is a table.
fn table(body: &str) -> Option<&'static str> {
    let forms = [(',', "CSV"), ('\t', "TSV"), (';', "CSV")];
    forms.into_iter().find(|(separator, _)| is_table(body, *separator)).map(|(_, name)| name)
}

/// Returns true for a header with column names and records with as many cells. If a column name is typical of data
/// sets, records may have more cells: texts with separators are not always quoted.
fn is_table(body: &str, separator: char) -> bool {
    let first = body.lines().next().unwrap_or_default();
    if !first.contains(separator) {
        return false;
    }
    let records = records(body, separator);
    let Some((head, rows)) = records.split_first() else { return false };
    if records.len() < MIN_RECORDS || head.len() < 2 || !is_head(head, separator) {
        return false;
    }
    let is_known = head.iter().any(|name| COLUMNS.contains(&name.to_ascii_lowercase().as_str()));
    let is_named = head.iter().all(|name| is_word(name));
    let n_full = rows.iter().filter(|row| row.len() >= head.len()).count();
    rows.iter().all(|row| row.len() == head.len()) && (is_named || head.len() > 2)
        || is_known && is_named && n_full * 10 >= rows.len() * 8
}

/// Column names that are typical of text data sets.
const COLUMNS: [&str; 22] = [
    "id",
    "idx",
    "index",
    "text",
    "texts",
    "content",
    "prompt",
    "prompts",
    "completion",
    "response",
    "instruction",
    "input",
    "output",
    "question",
    "answer",
    "title",
    "url",
    "label",
    "context",
    "sentence",
    "source",
    "target",
];

fn is_word(name: &str) -> bool {
    name.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.'))
}

/// Returns true if cells are column names: short, distinct, without surrounding blanks or final punctuation.
fn is_head(cells: &[String], separator: char) -> bool {
    let is_name = |cell: &String| {
        let is_tidy = separator == '\t' || cell.trim() == cell;
        is_tidy
            && cell.chars().count() <= MAX_NAME
            && cell.split_whitespace().count() <= MAX_WORDS
            && cell.chars().any(char::is_alphabetic)
            && !cell.trim_end().ends_with(['.', '!', '?', ':', '{', '}', '(', ')'])
    };
    let is_new = |at: usize| !cells[..at].iter().any(|before| before.eq_ignore_ascii_case(&cells[at]));
    cells.iter().all(is_name) && (0..cells.len()).all(is_new)
}

/// Splits the first records into cells and removes quotes. A quote counts only at the start of a cell; an unterminated
/// one makes one record of the rest.
fn records(body: &str, separator: char) -> Vec<Vec<String>> {
    let mut records = Vec::new();
    let mut cells = Vec::new();
    let mut cell = String::new();
    let mut quoted = false;
    let mut letters = body.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.is_empty() => quoted = true,
            '\r' if !quoted => {}
            '\n' if !quoted => {
                cells.push(std::mem::take(&mut cell));
                let record = std::mem::take(&mut cells);
                if record.iter().any(|cell| !cell.is_empty()) {
                    records.push(record);
                }
                if records.len() >= MAX_RECORDS {
                    return records;
                }
            }
            letter if letter == separator && !quoted => cells.push(std::mem::take(&mut cell)),
            letter => cell.push(letter),
        }
    }
    cells.push(cell);
    records.push(cells);
    records
}
