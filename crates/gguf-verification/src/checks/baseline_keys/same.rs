//! Equality of key values, and descriptions of differences.

use gguf_format::{Array, Value};

/// Returns true if two values mean the same: integer and float widths are the writer's choice, and a number equals an
/// array that repeats it.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_i128().map(|n| n as f64).or_else(|| value.as_f64());
    match (a, b) {
        (Value::Array(array), one) | (one, Value::Array(array)) if !matches!(one, Value::Array(_)) => {
            !array.is_empty()
                && (0..array.len()).all(|at| array.get(at).is_some_and(|entry| is_same(&entry, one)))
        }
        (Value::Array(x), Value::Array(y)) => {
            x == y
                || (x.len() == y.len()
                    && !matches!((x, y), (Array::String(_), Array::String(_)))
                    && (0..x.len()).all(|at| match (x.get(at), y.get(at)) {
                        (Some(a), Some(b)) => is_same(&a, &b),
                        _ => false,
                    }))
        }
        _ => match (number(a), number(b)) {
            // A number that passed through f32 in one of the files.
            (Some(x), Some(y)) => x == y || x as f32 == y as f32,
            _ => a == b,
        },
    }
}

/// Kind of a value, for messages about values of different kinds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedKind {
    Number,
    Bool,
    Text,
    Array,
}

impl ComparedKind {
    fn of(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Bool,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::Array,
            _ => Self::Number,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Bool => "a bool",
            Self::Text => "a string",
            Self::Array => "an array",
        }
    }
}

/// Describes two different values: the first, and the second with its owner (`the baseline's is 5`).
pub(super) fn pair(a: &Value, b: &Value, whose: &str) -> String {
    let (own, other) = (ComparedKind::of(a), ComparedKind::of(b));
    match (a, b) {
        (Value::Array(_), Value::Array(_)) => format!("differs from {whose}'s: {}", difference(a, b)),
        // A number for all layers, and an array that does not repeat it.
        (Value::Array(array), one) => match odd_one(array, one) {
            Some((at, entry)) => format!("is {entry} at entry {at}, {whose}'s is {}", show(one)),
            None => format!("is {}, {whose}'s is {}", show(a), show(b)),
        },
        (one, Value::Array(array)) => match odd_one(array, one) {
            Some((at, entry)) => format!("is {}, {whose}'s is {entry} at entry {at}", show(one)),
            None => format!("is {}, {whose}'s is {}", show(a), show(b)),
        },
        _ if own == other => format!("is {}, {whose}'s is {}", show(a), show(b)),
        _ => format!("is {}, {}; {whose}'s is {}, {}", own.name(), show(a), other.name(), show(b)),
    }
}

/// Finds the first entry that differs from the number for all layers.
fn odd_one(array: &Array, one: &Value) -> Option<(usize, String)> {
    let entries = (0..array.len()).filter_map(|at| Some((at, array.get(at)?)));
    entries.into_iter().find(|(_, entry)| !is_same(entry, one)).map(|(at, entry)| (at, show(&entry)))
}

/// Describes where two different values differ.
pub(super) fn difference(a: &Value, b: &Value) -> String {
    match (a, b) {
        (Value::Array(x), Value::Array(y)) if x.len() != y.len() => {
            format!("{} entries, not {}", x.len(), y.len())
        }
        (Value::Array(x), Value::Array(y)) => {
            let differ = |at: &usize| match (x.get(*at), y.get(*at)) {
                (Some(a), Some(b)) => !is_same(&a, &b),
                _ => true,
            };
            let n = (0..x.len()).filter(differ).count();
            let first = (0..x.len()).find(differ).unwrap_or(0);
            let more = if n > 1 { format!(", and {} more", n - 1) } else { String::new() };
            match (x.get(first), y.get(first)) {
                (Some(a), Some(b)) => format!("entry {first} is {}, not {}{more}", show(&a), show(&b)),
                _ => format!("entry {first}"),
            }
        }
        (Value::String(x), Value::String(y)) if x.len().max(y.len()) > 100 => {
            let at = x.iter().zip(y).take_while(|(a, b)| a == b).count();
            let part = |text: &[u8]| {
                let text = String::from_utf8_lossy(text.get(at.saturating_sub(8)..).unwrap_or_default());
                show(&Value::String(text.chars().take(32).collect::<String>().into_bytes()))
            };
            format!("at byte {at}, {}, not {}", part(x), part(y))
        }
        _ if ComparedKind::of(a) == ComparedKind::of(b) => format!("{}, not {}", show(a), show(b)),
        _ => format!(
            "{} {}, not {} {}",
            ComparedKind::of(a).name(),
            show(a),
            ComparedKind::of(b).name(),
            show(b)
        ),
    }
}

/// Formats a value for a message.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::String(bytes) => format!("`{}`", gguf_core::text::escape_bytes(bytes)),
        Value::Array(array) => format!("an array of {}", array.len()),
        Value::Bool(value) => value.to_string(),
        other => match (other.as_i128(), other) {
            (Some(number), _) => number.to_string(),
            (None, Value::F32(number)) => number.to_string(),
            (None, Value::F64(number)) => number.to_string(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_entry_and_kind() {
        let value = |n: u32| Value::U32(n);
        assert_eq!(pair(&value(1), &value(2), "the baseline"), "is 1, the baseline's is 2");
        assert_eq!(
            pair(&Value::from("1"), &value(1), "the baseline"),
            "is a string, `1`; the baseline's is a number, 1"
        );
        assert_eq!(
            pair(&Value::from(vec![2i32, 2, 3]), &value(2), "the baseline"),
            "is 3 at entry 2, the baseline's is 2"
        );
        assert_eq!(
            difference(&Value::from(vec![1i32, 2, 3]), &Value::from(vec![1i32, 0, 0])),
            "entry 1 is 2, not 0, and 1 more"
        );
        let long = "x".repeat(200);
        let other = format!("{}y{}", "x".repeat(50), "x".repeat(149));
        assert!(
            difference(&Value::from(long.as_str()), &Value::from(other.as_str())).starts_with("at byte 50, ")
        );
        assert!(is_same(&Value::F64(1e-5), &Value::F32(1e-5)));
        assert!(!is_same(&Value::Bool(true), &value(1)));
        assert!(!is_same(&Value::from(Vec::<i32>::new()), &value(1)));
    }
}
