//! Formatting of metadata values: as text for people and as JSON for programs.

use gguf_core::text::hex;
use serde_json::{Value as Json, json};

use gguf_core::text::{count, escape_bytes};
use gguf_format::{Array, Value};

/// Returns the type of a value as one word: `u32`, `arr[str]`, `arr[arr]`.
#[must_use]
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
#[must_use]
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
#[must_use]
pub fn value_plain(value: &Value) -> Vec<u8> {
    match value {
        Value::String(bytes) => bytes.clone(),
        Value::Array(array) => {
            let elems: Vec<String> = (0..array.len())
                .filter_map(|index| array.get(index))
                .map(|elem| format!("  {}", value_json(&elem, None)))
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

/// Converts a value to JSON: numbers, booleans, strings, lists.
///
/// A string that is not UTF-8 is `{"hex": …}`. A float that JSON cannot represent is `"NaN"`, `"inf"` or `"-inf"`;
/// 32-bit floats have their shortest digits. At most `max_elems` elements of arrays are included.
#[must_use]
pub fn value_json(value: &Value, max_elems: Option<usize>) -> Json {
    match value {
        Value::Bool(v) => json!(v),
        Value::F32(v) => float_json(f64::from(*v), &format!("{v:?}")),
        Value::F64(v) => float_json(*v, &format!("{v:?}")),
        Value::U64(v) => json!(v),
        Value::String(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "hex": hex(bytes) }),
        },
        Value::Array(array) => {
            let shown = max_elems.unwrap_or(array.len()).min(array.len());
            (0..shown).filter_map(|index| array.get(index)).map(|elem| value_json(&elem, max_elems)).collect()
        }
        other => json!(other.as_i128().and_then(|v| i64::try_from(v).ok())),
    }
}

/// Converts a value to JSON with its type: `{"type": "u32", "value": 7}`.
#[must_use]
pub fn typed_json(value: &Value) -> Json {
    json!({ "type": value_type_name(value), "value": value_json(value, None) })
}

fn float_json(value: f64, digits: &str) -> Json {
    match digits.parse::<f64>() {
        Ok(number) if value.is_finite() => json!(number),
        _ => json!(digits),
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
        assert_eq!(value_json(&0.1f32.into(), None), json!(0.1));
        assert_eq!(value_json(&1e-45f32.into(), None), json!(1e-45));
        assert_eq!(value_json(&f32::NEG_INFINITY.into(), None), json!("-inf"));
        assert_eq!(value_json(&f64::NAN.into(), None), json!("NaN"));
        assert_eq!(value_json(&u64::MAX.into(), None), json!(u64::MAX));
        assert_eq!(value_json(&Value::String(b"\xff\x00".to_vec()), None), json!({ "hex": "ff00" }));
        assert_eq!(value_json(&vec![-1i32, 2, 3].into(), Some(2)), json!([-1, 2]));
    }
}
