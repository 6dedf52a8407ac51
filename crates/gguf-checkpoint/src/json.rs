//! A bounded JSON reader for untrusted files.
//!
//! It keeps key order, reports positions, refuses duplicate keys, and accepts the literals `NaN`, `Infinity` and
//! `-Infinity` that Python writes.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use gguf_core::text::escape;

/// Key of the object that represents a float without a JSON literal; `transformers` uses the same form.
pub(crate) const FLOAT_TAG: &str = "__float__";

/// Depth of nested values up to which [`check_keys`] looks: that of `serde_json`.
const MAX_CHECKED_DEPTH: usize = 128;

/// An error in a JSON text, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column} (offset {offset}): {problem}")]
pub struct JsonError {
    /// Absolute byte offset.
    pub offset: u64,
    /// Line, from 1.
    pub line: u64,
    /// Column in bytes, from 1.
    pub column: u64,
    /// The broken rule.
    pub problem: JsonProblem,
}

/// Rules of JSON that a text can break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum JsonProblem {
    #[error("the text ends where {expected} is expected")]
    End { expected: &'static str },
    #[error("expected {expected}, found `{}`", found.escape_ascii())]
    Unexpected { expected: &'static str, found: u8 },
    #[error("invalid escape in a string")]
    Escape,
    #[error("lone surrogate `\\u{0:04x}` in a string")]
    LoneSurrogate(u16),
    #[error("unescaped control character 0x{0:02x} in a string")]
    Control(u8),
    #[error("string is not valid UTF-8")]
    Utf8,
    #[error("invalid number")]
    Number,
    #[error("number `{0}` is nearer to zero than any 64-bit float but zero")]
    TooSmall(String),
    #[error("expected an unsigned 64-bit integer, found `{}`", escape(.0))]
    NotUnsigned(String),
    #[error("nested deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("duplicate key `{}`", escape(.0))]
    DuplicateKey(String),
    #[error("more text after the value")]
    Trailing,
}

/// Reads a JSON text value by value.
///
/// Allocations are bounded by the length of the text.
#[derive(Debug)]
pub(crate) struct JsonReader<'a> {
    bytes: &'a [u8],
    pos: usize,
    depth: usize,
    max_depth: usize,
}

type Result<T, E = JsonError> = std::result::Result<T, E>;

impl<'a> JsonReader<'a> {
    /// Creates a reader at the first byte; a UTF-8 byte order mark is skipped.
    pub(crate) fn new(bytes: &'a [u8], max_depth: usize) -> Self {
        let pos = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Self { bytes, pos, depth: 0, max_depth }
    }

    /// Moves the start to `offset`, at most the end.
    ///
    /// Offsets in errors still count from the first byte.
    pub(crate) fn starting_at(mut self, offset: usize) -> Self {
        self.pos = offset.min(self.bytes.len());
        self
    }

    pub(crate) fn error_at(&self, offset: usize, problem: JsonProblem) -> JsonError {
        let before = self.bytes.get(..offset).unwrap_or(self.bytes);
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        JsonError {
            offset: offset as u64,
            line: before.split(|&b| b == b'\n').count() as u64,
            column: (before.len() - line_start) as u64 + 1,
            problem,
        }
    }

    fn fail<T>(&self, problem: JsonProblem) -> Result<T> {
        Err(self.error_at(self.pos, problem))
    }

    fn unexpected<T>(&self, expected: &'static str) -> Result<T> {
        match self.bytes.get(self.pos) {
            None => self.fail(JsonProblem::End { expected }),
            Some(&found) => self.fail(JsonProblem::Unexpected { expected, found }),
        }
    }

    /// Skips white space and returns the first byte of the next token; `None` at the end.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.bytes.get(self.pos) {
            self.pos += 1;
        }
        self.bytes.get(self.pos).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.pos += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<()> {
        if self.eat(byte) { Ok(()) } else { self.unexpected(expected) }
    }

    fn descend(&mut self) -> Result<()> {
        if self.depth == self.max_depth {
            return self.fail(JsonProblem::TooDeep { limit: self.max_depth });
        }
        self.depth += 1;
        Ok(())
    }

    /// Reads an object; `entry` gets each key, with its offset, and reads the value.
    ///
    /// # Errors
    /// [`JsonError`] through `E`, and whatever `entry` returns. Duplicate keys are the caller's to detect.
    pub(crate) fn object<E: From<JsonError>>(
        &mut self,
        mut entry: impl FnMut(&mut Self, String, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        self.descend()?;
        self.expect(b'{', "`{`")?;
        if !self.eat(b'}') {
            loop {
                self.peek();
                let offset = self.pos;
                let key = self.string()?;
                self.expect(b':', "`:`")?;
                entry(self, key, offset)?;
                if !self.eat(b',') {
                    self.expect(b'}', "`,` or `}`")?;
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    pub(crate) fn array<E: From<JsonError>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.descend()?;
        self.expect(b'[', "`[`")?;
        if !self.eat(b']') {
            loop {
                element(self)?;
                if !self.eat(b',') {
                    self.expect(b']', "`,` or `]`")?;
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    pub(crate) fn string(&mut self) -> Result<String> {
        self.expect(b'"', "a string")?;
        let mut text = String::new();
        loop {
            let start = self.pos;
            let rest = &self.bytes[start..];
            let Some(len) = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20) else {
                self.pos = self.bytes.len();
                return self.unexpected("the end of a string");
            };
            match std::str::from_utf8(&rest[..len]) {
                Ok(plain) => text.push_str(plain),
                Err(error) => return Err(self.error_at(start + error.valid_up_to(), JsonProblem::Utf8)),
            }
            self.pos = start + len;
            match rest[len] {
                b'"' => {
                    self.pos += 1;
                    return Ok(text);
                }
                b'\\' => text.push(self.escape()?),
                control => return self.fail(JsonProblem::Control(control)),
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let Some(&letter) = self.bytes.get(self.pos + 1) else { return self.fail(JsonProblem::Escape) };
        let plain = match letter {
            b'"' | b'\\' | b'/' => letter as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return self.fail(JsonProblem::Escape),
        };
        self.pos += 2;
        Ok(plain)
    }

    /// Returns the code unit of `\uXXXX` at an offset.
    fn code_unit(&self, at: usize) -> Option<u16> {
        let raw = self.bytes.get(at..at.checked_add(6)?)?;
        let digits = raw.strip_prefix(b"\\u").filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let Some(first) = self.code_unit(self.pos) else { return self.fail(JsonProblem::Escape) };
        let second = self.code_unit(self.pos + 6).filter(|unit| (0xdc00..0xe000).contains(unit));
        let (code, len) = match (first, second) {
            (0xd800..0xdc00, Some(low)) => {
                (0x10000 + ((u32::from(first) - 0xd800) << 10) + (u32::from(low) - 0xdc00), 12)
            }
            _ => (u32::from(first), 6),
        };
        let Some(c) = char::from_u32(code) else { return self.fail(JsonProblem::LoneSurrogate(first)) };
        self.pos += len;
        Ok(c)
    }

    /// Consumes a number by JSON's grammar; returns its text and whether it is an integer.
    fn number_text(&mut self) -> Result<(&'a str, bool)> {
        self.peek();
        let rest = &self.bytes[self.pos..];
        let digits = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut len = usize::from(rest.first() == Some(&b'-'));
        let n_int = digits(len);
        let mut well_formed = n_int == 1 || (n_int > 1 && rest[len] != b'0');
        len += n_int;
        let mut is_int = true;
        if rest.get(len) == Some(&b'.') {
            is_int = false;
            let n = digits(len + 1);
            well_formed &= n > 0;
            len += 1 + n;
        }
        if let Some(b'e' | b'E') = rest.get(len) {
            is_int = false;
            let sign = usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
            let n = digits(len + 1 + sign);
            well_formed &= n > 0;
            len += 1 + sign + n;
        }
        match std::str::from_utf8(&rest[..len]) {
            Ok(text) if well_formed => {
                self.pos += len;
                Ok((text, is_int))
            }
            _ => self.fail(JsonProblem::Number),
        }
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`JsonError`] for anything else, also for a number with a sign, a fraction or too many digits.
    pub(crate) fn unsigned(&mut self) -> Result<u64> {
        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            return self.unexpected("an unsigned integer");
        }
        let offset = self.pos;
        let (text, _) = self.number_text()?;
        text.parse().map_err(|_| {
            let shown = text.get(..40).unwrap_or(text);
            self.error_at(offset, JsonProblem::NotUnsigned(shown.to_owned()))
        })
    }

    fn number(&mut self) -> Result<Value> {
        let (text, is_int) = self.number_text()?;
        if is_int {
            if let Ok(n) = text.parse::<u64>() {
                return Ok(n.into());
            }
            if let Ok(n) = text.parse::<i64>() {
                return Ok(n.into());
            }
        }
        // Integers beyond 64 bits (a "no limit" of 10^30) become floats, as in `serde_json`.
        let Ok(n) = text.parse::<f64>() else { return self.fail(JsonProblem::Number) };
        let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
        if n == 0.0 && mantissa.contains(|c: char| ('1'..='9').contains(&c)) {
            return self.fail(JsonProblem::TooSmall(text.to_owned()));
        }
        Ok(float(n))
    }

    fn literal(&mut self, text: &str, value: Value) -> Result<Value> {
        if self.bytes[self.pos..].starts_with(text.as_bytes()) {
            self.pos += text.len();
            Ok(value)
        } else {
            self.unexpected("a value")
        }
    }

    /// Reads any value.
    ///
    /// A float without a JSON literal becomes `{"__float__": "NaN"}`; see [`as_f64`].
    ///
    /// # Errors
    /// [`JsonError`] for a broken text, a duplicate key, or nesting beyond the limit.
    pub(crate) fn value(&mut self) -> Result<Value> {
        match self.peek() {
            Some(b'{') => Ok(Value::Object(self.map()?)),
            Some(b'[') => {
                let mut elements = Vec::new();
                self.array(|reader| {
                    elements.push(reader.value()?);
                    Ok::<_, JsonError>(())
                })?;
                Ok(Value::Array(elements))
            }
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b't') => self.literal("true", Value::Bool(true)),
            Some(b'f') => self.literal("false", Value::Bool(false)),
            Some(b'n') => self.literal("null", Value::Null),
            Some(b'N') => self.literal("NaN", float(f64::NAN)),
            Some(b'I') => self.literal("Infinity", float(f64::INFINITY)),
            Some(b'-') if self.bytes.get(self.pos + 1) == Some(&b'I') => {
                self.literal("-Infinity", float(f64::NEG_INFINITY))
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.unexpected("a value"),
        }
    }

    /// Reads an object as an ordered map.
    pub(crate) fn map(&mut self) -> Result<Map<String, Value>> {
        let mut map = Map::new();
        self.object(|reader, key, offset| {
            if map.contains_key(&key) {
                return Err(reader.error_at(offset, JsonProblem::DuplicateKey(key)));
            }
            let value = reader.value()?;
            map.insert(key, value);
            Ok(())
        })?;
        Ok(map)
    }

    /// Reads any value and drops it.
    fn skip(&mut self) -> Result<()> {
        match self.peek() {
            Some(b'{') => {
                let mut keys = HashSet::new();
                self.object(|reader, key, offset| {
                    if let Some(twice) = keys.replace(key) {
                        return Err(reader.error_at(offset, JsonProblem::DuplicateKey(twice)));
                    }
                    reader.skip()
                })
            }
            Some(b'[') => self.array(Self::skip),
            _ => self.value().map(drop),
        }
    }

    /// Checks that only white space is left.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.peek().is_some() { self.fail(JsonProblem::Trailing) } else { Ok(()) }
    }
}

/// Checks that no object of a text has a key twice: programs disagree on which of the values counts. Other faults are the
/// caller's to detect.
pub fn check_keys(bytes: &[u8]) -> Result<()> {
    match JsonReader::new(bytes, MAX_CHECKED_DEPTH).skip() {
        Err(error) if matches!(error.problem, JsonProblem::DuplicateKey(_)) => Err(error),
        _ => Ok(()),
    }
}

fn float(x: f64) -> Value {
    if let Some(number) = Number::from_f64(x) {
        return Value::Number(number);
    }
    let name = match x {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    };
    Value::Object(Map::from_iter([(FLOAT_TAG.to_owned(), Value::from(name))]))
}

/// Returns the value of any number, including one without a JSON literal.
pub fn as_f64(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Object(map) if map.len() == 1 => match map.get(FLOAT_TAG)?.as_str()? {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// Parses a whole JSON text.
///
/// # Errors
/// A text that is no value; anything but white space after the value.
pub fn parse(bytes: &[u8], max_depth: usize) -> Result<Value> {
    let mut reader = JsonReader::new(bytes, max_depth);
    let value = reader.value()?;
    reader.finish()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value> {
        parse(text.as_bytes(), 8)
    }

    fn message(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn agrees_with_serde_json_on_plain_json() {
        let texts = [
            r#"{"b": 1, "a": [1.5, -2, 3e2, true, false, null, "x"], "c": {}, "d": []}"#,
            r#""\u00e9\ud83d\ude00\n\t\"\\\/\b\f\r""#,
            "0.1",
            "1e-05",
            "18446744073709551615",
            "-9223372036854775808",
            "1.7976931348623157e308",
            "5e-324",
            " [ ] ",
        ];
        for text in texts {
            let ours = read(text).unwrap();
            let theirs: Value = serde_json::from_str(text).unwrap();
            assert_eq!(ours, theirs, "{text}");
            // Equality of maps ignores order; the printed form does not.
            assert_eq!(ours.to_string(), theirs.to_string());
        }
    }

    #[test]
    fn integers_stay_integers_and_huge_ones_become_floats() {
        assert!(read("3").unwrap().is_u64() && read("-3").unwrap().is_i64() && read("3.0").unwrap().is_f64());
        assert_eq!(as_f64(&read("1000000000000000019884624838656").unwrap()), Some(1e30));
    }

    #[test]
    fn pythons_literals() {
        assert_eq!(as_f64(&read("0.000e-999").unwrap()), Some(0.0));
        assert!(matches!(read("1e-999").unwrap_err().problem, JsonProblem::TooSmall(_)));
        let value = read("[NaN, Infinity, -Infinity, 1e999]").unwrap();
        let floats: Vec<f64> = value.as_array().unwrap().iter().filter_map(as_f64).collect();
        assert!(floats[0].is_nan());
        assert_eq!(floats[1..], [f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(as_f64(&read(r#"{"__float__": "Infinity"}"#).unwrap()), Some(f64::INFINITY));
        assert_eq!(as_f64(&read(r#""Infinity""#).unwrap()), None);
    }

    #[test]
    fn every_broken_rule_has_a_place_and_a_name() {
        assert_eq!(message("{\n  \"a\": 1,\n  \"a\": 2}"), "line 3, column 3 (offset 14): duplicate key `a`");
        assert_eq!(message(""), "line 1, column 1 (offset 0): the text ends where a value is expected");
        assert_eq!(message("[1 2]"), "line 1, column 4 (offset 3): expected `,` or `]`, found `2`");
        assert_eq!(message("{\"a\" 1}"), "line 1, column 6 (offset 5): expected `:`, found `1`");
        assert_eq!(message("[1] x"), "line 1, column 5 (offset 4): more text after the value");
        assert_eq!(
            message("\"\\ud800\""),
            "line 1, column 2 (offset 1): lone surrogate `\\ud800` in a string"
        );
        assert_eq!(message("\"\\x\""), "line 1, column 2 (offset 1): invalid escape in a string");
        assert_eq!(
            message("\"a\n\""),
            "line 1, column 3 (offset 2): unescaped control character 0x0a in a string"
        );
        assert_eq!(message("01"), "line 1, column 1 (offset 0): invalid number");
        assert_eq!(
            message("\"abc"),
            "line 1, column 5 (offset 4): the text ends where the end of a string is expected"
        );
        assert_eq!(message(&"[".repeat(9)), "line 1, column 9 (offset 8): nested deeper than 8 levels");
        let utf8 = parse(b"\"a\xff\"", 8).unwrap_err();
        assert_eq!(utf8.to_string(), "line 1, column 3 (offset 2): string is not valid UTF-8");
        for bad in
            ["-", "1.", "1e", "1e+", "--1", "tru", "nul", "[1,]", "{,}", "{\"a\":1,}", "\"\\u12g4\"", "\u{1}"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unsigned_integers_only() {
        let unsigned = |text: &str| JsonReader::new(text.as_bytes(), 1).unsigned().map_err(|e| e.problem);
        assert_eq!(unsigned(" 7"), Ok(7));
        for text in ["-1", "1.0", "18446744073709551616"] {
            assert_eq!(unsigned(text), Err(JsonProblem::NotUnsigned(text.into())));
        }
        assert!(matches!(unsigned("x"), Err(JsonProblem::Unexpected { found: b'x', .. })));
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth_and_nothing_else_is() {
        for (text, expected) in [
            (r#"{"a": 1, "b": {"a": [{"c": NaN, "c": 2}]}}"#, Some((1, 33, "c"))),
            ("{\"a\": 1,\n \"\\u0061\": 1}", Some((2, 2, "a"))),
            (r#"{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}"#, None),
            (r#"{"a": 1, "#, None),
            (r#"{"a": "\ud800", "b": 1, "b": 2}"#, None),
            ("", None),
        ] {
            let found = check_keys(text.as_bytes()).err();
            let found = found.map(|error| (error.line, error.column, error.problem));
            let expected =
                expected.map(|(line, column, key)| (line, column, JsonProblem::DuplicateKey(key.to_owned())));
            assert_eq!(found, expected, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(check_keys(deep.as_bytes()), Ok(()));
    }
}
