//! Filters of Jinja2 that the interpreter lacks, or has with other arguments.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Error, State, Value as Jinja, filters};

use super::methods::padded;

/// Returns all arguments by name; `names` are those of the arguments by place.
fn by_name(names: &[&str], args: &[Jinja], named: &Kwargs) -> Result<Kwargs, Error> {
    let by_place = names.iter().zip(args).map(|(name, value)| ((*name).to_owned(), value.clone()));
    let mut all: Vec<(String, Jinja)> = by_place.collect();
    for name in named.args() {
        all.push((name.to_owned(), named.get(name)?));
    }
    Ok(all.into_iter().collect())
}

/// Implements the filter `truncate` with its arguments by place or by name.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes them so")]
pub(super) fn truncate(
    state: &mut State,
    value: &Jinja,
    args: Rest<Jinja>,
    named: Kwargs,
) -> Result<Jinja, Error> {
    let all = by_name(&["length", "killwords", "end", "leeway"], &args, &named)?;
    minijinja_contrib::filters::truncate(state, value, all)
}

/// Implements the filter `string`: floats as in Python.
pub(super) fn string(value: Jinja) -> Result<Jinja, Error> {
    if value.is_number() && !value.is_integer() {
        return Ok(Jinja::from(super::python_float(f64::try_from(value)?, ["nan", "inf"])));
    }
    Ok(if value.as_str().is_some() { value } else { Jinja::from(value.to_string()) })
}

/// Implements the filter `urlencode` for a text.
pub(super) fn urlencode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// Implements the filter `int`: what is no number is 0.
pub(super) fn int(
    state: &mut State,
    value: &Jinja,
    default: Option<Jinja>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Jinja, Error> {
    let default = default.or(named.get("default")?).unwrap_or_else(|| Jinja::from(0));
    filters::int(state, value, Some(default), base, named)
}

/// Implements the filter `length`: an undefined value has no items.
pub(super) fn length(value: &Jinja) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// Implements the filter `replace` with its number of places.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes them so")]
pub(super) fn replace(text: String, old: String, new: String, most: Option<usize>) -> String {
    text.replacen(&old, &new, most.unwrap_or(usize::MAX))
}

/// Implements the filter `center`.
pub(super) fn center(text: &str, width: Option<usize>) -> Result<String, Error> {
    padded(text, "center", width.unwrap_or(80), None)
}

/// Implements the filter `wordwrap`: each line as by Python's `textwrap.wrap`.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes them so")]
pub(super) fn wordwrap(text: String, args: Rest<Jinja>, named: Kwargs) -> Result<String, Error> {
    let all = by_name(&["width", "break_long_words", "wrapstring", "break_on_hyphens"], &args, &named)?;
    let width = all.get::<Option<usize>>("width")?.unwrap_or(79).max(1);
    let flag = |name| Ok::<_, Error>(all.get::<Option<bool>>(name)?.unwrap_or(true));
    let (breaks_words, breaks_hyphens) = (flag("break_long_words")?, flag("break_on_hyphens")?);
    let end = all.get::<Option<String>>("wrapstring")?.unwrap_or_else(|| "\n".to_owned());
    all.assert_all_used()?;
    let lines: Vec<String> =
        text.lines().map(|line| wrapped(line, width, breaks_words, breaks_hyphens).join(&end)).collect();
    Ok(lines.join(&end))
}

/// Returns the lines of one line.
fn wrapped(line: &str, width: usize, breaks_words: bool, breaks_hyphens: bool) -> Vec<String> {
    let n_chars = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    let mut own = String::new();
    let mut chunks = chunks(line, breaks_hyphens);
    chunks.reverse();
    while let Some(chunk) = chunks.pop() {
        let left = width - n_chars(&own).min(width);
        if own.is_empty() && !lines.is_empty() && chunk.trim().is_empty() {
            continue;
        }
        if n_chars(&chunk) <= left {
            own.push_str(&chunk);
            continue;
        }
        if n_chars(&chunk) > width && (breaks_words || own.is_empty()) {
            let n = if breaks_words { left.max(usize::from(width == 0)) } else { usize::MAX };
            own.extend(chunk.chars().take(n));
            chunks.push(chunk.chars().skip(n).collect());
        } else {
            chunks.push(chunk);
        }
        lines.push(std::mem::take(&mut own));
    }
    lines.push(own);
    lines.into_iter().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Returns the runs of blanks and of other characters; a hyphen between letters ends a run.
fn chunks(line: &str, breaks_hyphens: bool) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    let mut chunks: Vec<String> = Vec::new();
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let is_hyphen = breaks_hyphens
            && before == Some('-')
            && c.is_alphabetic()
            && at >= 2
            && chars[at - 2].is_alphabetic();
        match chunks.last_mut() {
            Some(chunk) if before.is_some_and(|b| b.is_whitespace() == c.is_whitespace()) && !is_hyphen => {
                chunk.push(c);
            }
            _ => chunks.push(c.to_string()),
        }
    }
    chunks
}
