//! Values of card expressions: those of JSON, with Python's distinction of integers and floats.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use gguf_checkpoint::json::as_f64;
use gguf_core::text::escape;
use gguf_format::Value;

/// Value of an expression.
#[derive(Clone, Debug)]
pub enum Datum {
    /// JSON `null`, or an absent key where the expression allows it.
    Null,
    /// Boolean.
    Bool(bool),
    /// Integer.
    Int(i128),
    /// Float.
    Float(f64),
    /// Text.
    Text(Arc<str>),
    /// List.
    List(Arc<Vec<Datum>>),
    /// JSON object; only paths can read its members.
    Map(Arc<Map<String, Json>>),
}

impl Datum {
    /// Converts a JSON value. A number without fraction and exponent is an integer.
    pub fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), _, _) => Self::Int(value.into()),
                (_, Some(value), _) => Self::Int(value.into()),
                (_, _, Some(value)) => Self::Float(value),
                _ => Self::Null,
            },
            Json::String(text) => Self::Text(text.as_str().into()),
            Json::Array(items) => Self::List(Arc::new(items.iter().map(Self::from_json).collect())),
            Json::Object(map) => Self::Map(Arc::new(map.clone())),
        }
    }

    /// Converts a metadata value. A 32-bit float becomes the shortest decimal that reads back as the same float. Arrays
    /// of more than 65536 elements (vocabularies) and nested arrays become null: no configuration holds them.
    pub fn from_value(value: &Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::F32(value) => Self::Float(value.to_string().parse().unwrap_or_else(|_| f64::from(*value))),
            Value::F64(value) => Self::Float(*value),
            Value::String(_) => value.as_str().map_or(Self::Null, |text| Self::Text(text.into())),
            Value::Array(array) if array.len() > 1 << 16 => Self::Null,
            Value::Array(array) => {
                let items = (0..array.len()).map(|i| match array.get(i) {
                    None | Some(Value::Array(_)) => Self::Null,
                    Some(value) => Self::from_value(&value),
                });
                Self::List(Arc::new(items.collect()))
            }
            other => other.as_i128().map_or(Self::Null, Self::Int),
        }
    }

    /// Converts to JSON; infinities and NaN, which JSON lacks, become null.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Int(value) => i64::try_from(*value)
                .map(Json::from)
                .or_else(|_| u64::try_from(*value).map(Json::from))
                .unwrap_or_else(|_| Json::from(*value as f64)),
            Self::Float(value) => Json::from(*value),
            Self::Text(text) => Json::from(&**text),
            Self::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Self::Map(map) => Json::Object((**map).clone()),
        }
    }

    /// Returns Python's truth value: null, false, zero and empty values are false.
    pub fn truth(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(map) => !map.is_empty(),
        }
    }

    /// Returns true for null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns an integer, or a boolean as 0 or 1.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Bool(value) => Some((*value).into()),
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    /// Compares as Python's `==`.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.equals(b))
            }
            (Self::Map(a), Self::Map(b)) => a == b,
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((self.as_float(), other.as_float()), (Some(a), Some(b)) if a == b),
            },
        }
    }

    /// Returns the kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => write!(f, "null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "'{}'", escape(text)),
            Self::List(items) => write!(f, "a list of {}", items.len()),
            // Number without a JSON literal.
            Self::Map(map) if map.len() == 1 => match as_f64(&Json::Object((**map).clone())) {
                Some(number) => write!(f, "{number}"),
                None => write!(f, "an object"),
            },
            Self::Map(_) => write!(f, "an object"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_numbers_keep_their_kind() {
        let json: Json = serde_json::from_str("[7, 7.0, 1e3, 18446744073709551615, true, null]").unwrap();
        let Datum::List(items) = Datum::from_json(&json) else { panic!("a list") };
        let kinds: Vec<_> = items.iter().map(Datum::kind).collect();
        assert_eq!(kinds, ["an integer", "a float", "a float", "an integer", "a truth value", "null"]);
        assert!(items[0].equals(&items[1]), "7 == 7.0");
        assert_eq!(Datum::List(items).to_json().to_string(), "[7,7.0,1000.0,18446744073709551615,true,null]");
    }
}
