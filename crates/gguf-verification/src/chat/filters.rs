//! Filters of Jinja2 that the interpreter lacks, or has with other arguments.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Error, State, Value as Jinja};

/// Implements the filter `truncate` with its arguments by place or by name.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes them so")]
pub(super) fn truncate(
    state: &mut State,
    value: &Jinja,
    args: Rest<Jinja>,
    named: Kwargs,
) -> Result<Jinja, Error> {
    let by_place = ["length", "killwords", "end", "leeway"].into_iter().zip(args.iter().cloned());
    let mut all: Vec<(String, Jinja)> = by_place.map(|(name, value)| (name.to_owned(), value)).collect();
    for name in named.args() {
        all.push((name.to_owned(), named.get(name)?));
    }
    minijinja_contrib::filters::truncate(state, value, all.into_iter().collect())
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
