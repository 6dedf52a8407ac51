//! Parser for configuration values that were written with Python's `str()`.

use serde_json::{Map, Number, Value as Json};

/// Maximum nesting depth of lists and dictionaries.
const MAX_DEPTH: usize = 16;

/// Parses a Python literal: a number, `True`, `None`, quoted text, list, tuple or dictionary; JSON spellings are
/// accepted too.
///
/// Returns `None` for anything else, which the caller treats as text.
pub(super) fn parse(text: &str) -> Option<Json> {
    let mut parser = LiteralParser { rest: text.trim() };
    let value = parser.value(0)?;
    parser.rest.is_empty().then_some(value)
}

struct LiteralParser<'a> {
    rest: &'a str,
}

impl LiteralParser<'_> {
    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '[' => self.items(']', depth).map(Json::Array),
            '(' => self.items(')', depth).map(Json::Array),
            '{' => self.members(depth),
            quote @ ('\'' | '"') => self.text(quote).map(Json::String),
            _ => self.word(),
        }
    }

    /// Consumes `c` if it is next, and white space after it; returns whether it was there.
    fn take(&mut self, c: char) -> bool {
        let Some(rest) = self.rest.strip_prefix(c) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn items(&mut self, close: char, depth: usize) -> Option<Vec<Json>> {
        let mut items = Vec::new();
        let open = self.rest.chars().next()?;
        self.take(open);
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take(',') && !self.rest.starts_with(close) {
                return None;
            }
        }
        Some(items)
    }

    fn members(&mut self, depth: usize) -> Option<Json> {
        let mut members = Map::new();
        self.take('{');
        while !self.take('}') {
            let key = match self.value(depth + 1)? {
                Json::String(key) => key,
                Json::Number(key) => key.to_string(),
                _ => return None,
            };
            if !self.take(':') {
                return None;
            }
            members.insert(key, self.value(depth + 1)?);
            if !self.take(',') && !self.rest.starts_with('}') {
                return None;
            }
        }
        Some(Json::Object(members))
    }

    /// Reads quoted text with the escapes that `repr` writes.
    fn text(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = self.rest[at + c.len_utf8()..].trim_start();
                    return Some(text);
                }
                '\\' => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    'x' => text.push(code(&mut chars, 2)?),
                    'u' => text.push(code(&mut chars, 4)?),
                    'U' => text.push(code(&mut chars, 8)?),
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    _ => return None,
                },
                c => text.push(c),
            }
        }
        None
    }

    fn word(&mut self) -> Option<Json> {
        let end = self.rest.find([',', ']', ')', '}', ':']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word.trim_end() {
            "None" | "null" => Json::Null,
            "True" | "true" => Json::Bool(true),
            "False" | "false" => Json::Bool(false),
            word => number(word)?,
        };
        self.rest = rest;
        Some(value)
    }
}

/// Reads a character given by its code point in `n` hexadecimal digits.
fn code(chars: &mut impl Iterator<Item = (usize, char)>, n: usize) -> Option<char> {
    let mut value = 0u32;
    for _ in 0..n {
        value = value.checked_mul(16)? + chars.next()?.1.to_digit(16)?;
    }
    char::from_u32(value)
}

fn number(word: &str) -> Option<Json> {
    if let Ok(number) = word.parse::<i64>() {
        return Some(number.into());
    }
    // `inf` and `nan`, which JSON cannot represent, and version numbers stay text.
    let is_number = word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    let number = word.parse::<f64>().ok().filter(|_| is_number)?;
    Number::from_f64(number).map(Json::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn python_values_become_json() {
        for (text, want) in [
            ("64", json!(64)),
            ("-1", json!(-1)),
            ("1e-05", json!(1e-5)),
            ("10000.0", json!(10000.0)),
            ("True", json!(true)),
            ("None", json!(null)),
            ("[2, 3]", json!([2, 3])),
            ("[]", json!([])),
            ("(1,)", json!([1])),
            ("['LlamaForCausalLM']", json!(["LlamaForCausalLM"])),
            ("{'type': 'linear', 'factor': 2.0}", json!({"type": "linear", "factor": 2.0})),
            (r#"{"a": ["it's", '\x41\n\u4e2d']}"#, json!({"a": ["it's", "A\n中"]})),
            ("{0: None}", json!({"0": null})),
        ] {
            assert_eq!(parse(text), Some(want), "{text}");
        }
    }

    #[test]
    fn everything_else_is_text() {
        let deep = "[".repeat(1000);
        for text in [
            "",
            "silu",
            "4.57.6",
            "inf",
            "nan",
            "[1",
            "[1 2]",
            "'a",
            "{1}",
            "1 2",
            "99999999999999999999x",
            &deep,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
