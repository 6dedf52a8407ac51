//! Formatting of metadata values: as text for people and as JSON for programs.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::json;

use gguf_core::text::{count, escape_bytes, hex};
use gguf_format::{Array, Value};

/// Returns the type of a value as one word: `u32`, `arr[str]`, `arr[arr]`.
pub fn value_type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("arr[{}]", array.element_type()),
        other => other.value_type().to_string(),
    }
}

/// Formats a value as escaped text.
///
/// Shows at most `max_chars` characters of strings and `max_elems` elements of arrays, with a count of the whole;
/// `None` shows all.
pub fn value_text(value: &Value, max_chars: Option<usize>, max_elems: Option<usize>) -> String {
    match value {
        Value::String(bytes) => string_text(bytes, max_chars),
        Value::Array(array) => array_text(array, max_chars, max_elems),
        other => scalar_text(other),
    }
}

/// Formats a value as bytes that programs can read and edits accept.
///
/// Numbers and words are text, a string is unchanged, an array is a JSON list with one element per line.
pub fn value_plain(value: &Value) -> Vec<u8> {
    match value {
        Value::String(bytes) => bytes.clone(),
        Value::Array(array) => {
            let elems: Vec<String> = (0..array.len())
                .filter_map(|index| array.get(index))
                .map(|elem| format!("  {}", json!(ShownValue::whole(&elem))))
                .collect();
            if elems.is_empty() {
                return b"[]".to_vec();
            }
            format!("[\n{}\n]", elems.join(",\n")).into_bytes()
        }
        other => scalar_text(other).into_bytes(),
    }
}

fn scalar_text(value: &Value) -> String {
    match value {
        Value::Bool(v) => v.to_string(),
        // `{:?}` gives the shortest text that parses to the same number.
        Value::F32(v) => format!("{v:?}"),
        Value::F64(v) => format!("{v:?}"),
        other => other.as_i128().map_or_else(String::new, |v| v.to_string()),
    }
}

/// Number of bytes that are escaped at once, so that a long text that is shown in part is never copied whole.
const PIECE_BYTES: usize = 4096;

/// Formats a string as escaped text of at most `max_chars` characters.
fn string_text(bytes: &[u8], max_chars: Option<usize>) -> String {
    let Some(most) = max_chars else { return escape_bytes(bytes) };
    let (mut shown, mut n_chars) = (String::new(), 0usize);
    let mut rest = bytes;
    while !rest.is_empty() {
        // Cut between characters: continuation bytes begin with the bits 10.
        let end =
            (PIECE_BYTES..PIECE_BYTES + 4).find(|&at| rest.get(at).is_none_or(|byte| byte & 0xc0 != 0x80));
        let (piece, later) = rest.split_at(end.unwrap_or(PIECE_BYTES).min(rest.len()));
        let text = escape_bytes(piece);
        shown.extend(text.chars().take(most.saturating_sub(n_chars)));
        n_chars += text.chars().count();
        rest = later;
    }
    if n_chars > most { format!("{shown}… ({n_chars} characters)") } else { shown }
}

fn array_text(array: &Array, max_chars: Option<usize>, max_elems: Option<usize>) -> String {
    let len = array.len();
    let shown = max_elems.unwrap_or(len).min(len);
    let mut parts: Vec<_> = (0..shown)
        .filter_map(|index| array.get(index))
        .map(|elem| match &elem {
            Value::String(bytes) => format!("\"{}\"", string_text(bytes, max_chars)),
            other => value_text(other, max_chars, max_elems),
        })
        .collect();
    if shown < len {
        parts.push("…".to_owned());
    }
    // The count comes first, where a narrow terminal does not cut it off.
    let n = if shown < len { format!("({} elements) ", count(len as u64)) } else { String::new() };
    format!("{n}[{}]", parts.join(", "))
}

/// Metadata value in a report: a number, a boolean, a string or a list of these.
///
/// A string that is not UTF-8 is `{"hex": …}`. A float that JSON cannot represent is `"NaN"`, `"inf"` or `"-inf"`;
/// 32-bit floats have their shortest digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShownValue<'a> {
    /// The value in full.
    pub value: &'a Value,
    /// Maximum number of array elements that are written; `None` for all.
    pub max_elems: Option<usize>,
}

impl<'a> ShownValue<'a> {
    /// Creates a value that is written with all elements.
    pub fn whole(value: &'a Value) -> Self {
        Self { value, max_elems: None }
    }
}

impl Serialize for ShownValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Bool(v) => serializer.serialize_bool(*v),
            Value::F32(v) => serialize_float(f64::from(*v), &format!("{v:?}"), serializer),
            Value::F64(v) => serialize_float(*v, &format!("{v:?}"), serializer),
            Value::U64(v) => serializer.serialize_u64(*v),
            Value::String(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => serializer.serialize_str(text),
                Err(_) => serializer.collect_map([("hex", hex(bytes))]),
            },
            Value::Array(array) => {
                let n_shown = self.max_elems.unwrap_or(array.len()).min(array.len());
                let mut list = serializer.serialize_seq(Some(n_shown))?;
                for elem in (0..n_shown).filter_map(|index| array.get(index)) {
                    list.serialize_element(&ShownValue { value: &elem, max_elems: self.max_elems })?;
                }
                list.end()
            }
            other => other.as_i128().and_then(|v| i64::try_from(v).ok()).serialize(serializer),
        }
    }
}

/// Writes a float with the given digits, which may be fewer than those of the 64-bit value.
fn serialize_float<S: Serializer>(value: f64, digits: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match digits.parse::<f64>() {
        Ok(number) if value.is_finite() => serializer.serialize_f64(number),
        _ => serializer.serialize_str(digits),
    }
}

/// Metadata value with its type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypedValue<'a> {
    /// Type of the value.
    #[serde(rename = "type")]
    pub ty: String,
    /// The value. The description of a file has only the first elements of an array, unless all are wanted.
    pub value: ShownValue<'a>,
}

impl<'a> TypedValue<'a> {
    /// Adds the type to a value.
    pub fn of(value: ShownValue<'a>) -> Self {
        Self { ty: value_type_name(value.value), value }
    }

    /// Adds the type to a value with all elements.
    pub fn whole(value: &'a Value) -> Self {
        Self::of(ShownValue::whole(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_elided_and_escapes_defused() {
        let text = |value: Value| value_text(&value, Some(5), Some(2));
        assert_eq!(text("short".into()), "short");
        assert_eq!(text("longer".into()), "longe… (6 characters)");
        assert_eq!(text(Value::String(b"\x1b[0m\xff".to_vec())), "\\u{1b… (13 characters)");
        assert_eq!(text(vec![1u32, 2, 3].into()), "(3 elements) [1, 2, …]");
        assert!(text(vec![0u32; 49_152].into()).starts_with("(49 152 elements) [0, 0, …"));
        assert_eq!(text(vec!["a", "b"].into()), "[\"a\", \"b\"]");
        assert_eq!(value_text(&0.1f32.into(), None, None), "0.1");
        assert_eq!(value_text(&1e-6f32.into(), None, None), "1e-6");
        assert_eq!(value_text(&10_000f32.into(), None, None), "10000.0");
        assert_eq!(value_type_name(&vec![1u32].into()), "arr[u32]");
    }

    #[test]
    fn json_keeps_what_it_can() {
        let whole = |value: Value| json!(ShownValue::whole(&value));
        assert_eq!(whole(0.1f32.into()), json!(0.1));
        assert_eq!(whole(1e-45f32.into()), json!(1e-45));
        assert_eq!(whole(f32::NEG_INFINITY.into()), json!("-inf"));
        assert_eq!(whole(f64::NAN.into()), json!("NaN"));
        assert_eq!(whole(u64::MAX.into()), json!(u64::MAX));
        assert_eq!(whole(Value::String(b"\xff\x00".to_vec())), json!({ "hex": "ff00" }));
        let first = ShownValue { value: &vec![-1i32, 2, 3].into(), max_elems: Some(2) };
        assert_eq!(json!(first), json!([-1, 2]));
    }
}
