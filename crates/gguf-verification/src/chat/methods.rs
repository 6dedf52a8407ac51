//! Methods of Python's texts that the interpreter lacks, or has with other arguments.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value as Jinja};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::MAX_OUTPUT_BYTES;

/// Implements methods of Python's types.
pub(super) fn method(state: &mut State, value: &Jinja, name: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let Some(text) = value.as_str() else { return unknown_method_callback(state, value, name, args) };
    match name {
        "split" => unknown_method_callback(state, value, name, &separators(args)?),
        "rsplit" => rsplit(text, &separators(args)?),
        "index" => {
            let at = unknown_method_callback(state, value, "find", args)?;
            if at == Jinja::from(-1) { Err(invalid("substring not found")) } else { Ok(at) }
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let cut = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Ok(cut.unwrap_or(text).into())
        }
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            let is_last = name == "rpartition";
            let cut = if is_last { text.rsplit_once(by) } else { text.split_once(by) };
            let whole = if is_last { ["", "", text] } else { [text, "", ""] };
            Ok(cut.map_or(whole, |(start, end)| [start, by, end]).into_iter().collect())
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            padded(text, name, width, fill).map(Jinja::from)
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Returns the arguments of `split` by place.
fn separators(args: &[Jinja]) -> Result<Vec<Jinja>, Error> {
    let (by, most, named): (Option<Jinja>, Option<Jinja>, Kwargs) = from_args(args)?;
    let (by, most) = (by.or(named.get("sep")?), most.or(named.get("maxsplit")?));
    named.assert_all_used()?;
    Ok(vec![by.unwrap_or_else(|| Jinja::from(())), most.unwrap_or_else(|| Jinja::from(-1))])
}

fn rsplit(text: &str, args: &[Jinja]) -> Result<Jinja, Error> {
    let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most =
        most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match by {
        Some("") => return Err(invalid("empty separator")),
        Some(by) => text.rsplitn(most, by).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let at = rest.rfind(char::is_whitespace).filter(|_| parts.len() + 1 < most);
                let start = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[start..]);
                rest = at.map_or("", |at| rest[..at].trim_end());
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Jinja::from).collect())
}

/// Returns a text of at least `width` characters.
pub(super) fn padded(text: &str, name: &str, width: usize, fill: Option<&str>) -> Result<String, Error> {
    if width > MAX_OUTPUT_BYTES {
        return Err(invalid("too wide"));
    }
    if fill.is_some_and(|fill| fill.chars().nth(1).is_some()) {
        return Err(invalid("the fill must be one character"));
    }
    let n = width.saturating_sub(text.chars().count());
    let before = match name {
        "ljust" => 0,
        // The odd blank is on the left in a field of odd width.
        "center" => n / 2 + (n & width & 1),
        _ => n,
    };
    let fill = if name == "zfill" { "0" } else { fill.unwrap_or(" ") };
    let sign = if name == "zfill" { text.len() - text.trim_start_matches(['+', '-']).len() } else { 0 };
    let (sign, rest) = text.split_at(sign.min(1));
    Ok(format!("{sign}{}{rest}{}", fill.repeat(before), fill.repeat(n - before)))
}
