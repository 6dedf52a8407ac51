//! What the content of a file looks like, whatever its name: prose, JSON, a table. The rules are narrow on purpose: prose
//! with brackets and commas in it is prose.

use serde_json::Value as Json;

/// Records of a table that are looked at.
const MAX_RECORDS: usize = 500;
/// Records that make a table: a head and two rows.
const MIN_RECORDS: usize = 3;
/// Characters and words of a column's name.
const MAX_NAME: usize = 40;
const MAX_WORDS: usize = 4;

/// What a text looks like.
#[derive(Debug, PartialEq)]
pub(super) enum Shape {
    Prose,
    /// One JSON array or object.
    Whole(Json),
    /// JSON arrays or objects, one a line.
    Lines,
    /// JSON that does not parse: why.
    Broken(String),
    /// A table, by the name of its form.
    Table(&'static str),
}

/// The shape of a text that is no JSON by its name.
pub(super) fn shape_of(text: &str) -> Shape {
    let body = text.trim();
    if body.starts_with(['{', '[']) {
        return json_shape(body);
    }
    table(body).map_or(Shape::Prose, Shape::Table)
}

fn json_shape(body: &str) -> Shape {
    let error = match serde_json::from_str::<Json>(body) {
        Ok(value) => return Shape::Whole(value),
        Err(error) => error,
    };
    // Most lines JSON: lines of JSON, whole or with a broken one. A line that parses by chance (`[1]`, a footnote) has
    // nothing in it that a prompt could be.
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
        return Shape::Lines;
    }
    if n_lines > 1 && n_json * 2 > n_lines {
        return Shape::Broken(first_broken.unwrap_or_else(|| error.to_string()));
    }
    if begins_as_json(body, error.is_eof()) { Shape::Broken(error.to_string()) } else { Shape::Prose }
}

/// An object with keys, or an array in which a text or an object is.
fn has_text(value: &Json) -> bool {
    match value {
        Json::Object(map) => !map.is_empty(),
        Json::Array(entries) => entries.iter().any(|entry| entry.is_string() || has_text(entry)),
        _ => false,
    }
}

/// True for a text that goes on as JSON does: a key and a colon, or texts with commas between them up to the bracket that
/// ends it all.
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

/// What comes behind the quote that ends a text, blanks left out.
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

/// The form of a table that a text is.
fn table(body: &str) -> Option<&'static str> {
    let forms = [(',', "CSV"), ('\t', "TSV"), (';', "CSV")];
    forms.into_iter().find(|(separator, _)| is_table(body, *separator)).map(|(_, name)| name)
}

/// A head of column names, and records of as many cells; or, with a column name that data sets have, of at least so many:
/// texts with separators in them are not always quoted.
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

/// Names of columns that data sets of texts have.
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

/// Cells that name columns: short, different, without blanks around them or a sentence's end.
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

/// The first records, cells with quotes taken off. A quote counts at the start of a cell; one that nothing ends makes one
/// record of the rest.
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
