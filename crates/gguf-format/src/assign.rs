//! Assignments from a command line: `KEY=VALUE` and `KEY=TYPE:VALUE`.

use std::fmt;

use serde_json::Value as Json;

use crate::{Array, Value, ValueType};
use gguf_core::text::escape;

/// Maximum number of characters of a refused value in a message.
const SHOWN_CHARS: usize = 60;

/// Reasons why an assignment is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum AssignError {
    #[error("`{}`: `KEY=TYPE:VALUE` expected", escape(text))]
    Form { text: String },
    #[error("`{}`: `KEY=VALUE` or `KEY=TYPE:VALUE` expected", escape(text))]
    NoKey { text: String },
    #[error("key `{}`: unknown type `{}`, expected {TYPES}", escape(key), escape(found))]
    Type { key: String, found: String },
    #[error(
        "key `{}`: not in the file, so a type is needed: `{}=TYPE:VALUE` with {TYPES}",
        escape(key),
        escape(key)
    )]
    Untyped { key: String },
    #[error("key `{}`: `{}` is not {expected}", escape(key), shown(found))]
    Value { key: String, expected: String, found: String },
}

/// Types that an assignment can name.
const TYPES: &str = "u8, i8, u16, i16, u32, i32, f32, bool, str, u64, i64, f64, arr or arr[TYPE]";

/// Formats a value for a message, truncated.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    escape(&shown).into_owned()
}

/// Type that a value is parsed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignType {
    /// A single value; never [`ValueType::Array`].
    One(ValueType),
    /// A list with elements of this type. `None` takes the type of the first element, like llama.cpp's converter (bool,
    /// i32, f32, str).
    List(Option<ValueType>),
}

impl AssignType {
    /// Returns the type with this name: `u32`, `arr`, `arr[str]`, and the long names in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(element) = name.strip_prefix("arr[").and_then(|rest| rest.strip_suffix(']')) {
            let element = ValueType::from_name(element).filter(|ty| *ty != ValueType::Array)?;
            return Some(Self::List(Some(element)));
        }
        Some(match ValueType::from_name(name)? {
            ValueType::Array => Self::List(None),
            ty => Self::One(ty),
        })
    }

    /// Returns the type of a value; `None` for an array of arrays, which no assignment can express.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Array(_)) => None,
            Value::Array(array) => Some(Self::List(Some(array.element_type()))),
            other => Some(Self::One(other.value_type())),
        }
    }

    /// Parses a value of this type from its text: a number, a word, a verbatim string, or a JSON list.
    fn read(self, text: &[u8]) -> Option<Value> {
        match self {
            Self::One(ValueType::String) => Some(Value::String(text.to_vec())),
            Self::One(ty) => scalar(ty, std::str::from_utf8(text).ok()?),
            Self::List(element) => array(std::str::from_utf8(text).ok()?, element).map(Value::Array),
        }
    }

    /// Describes a valid value of this type for a message.
    fn expected(self) -> String {
        match self {
            Self::One(ty) => format!("a value of type {ty}"),
            Self::List(Some(ty)) => format!("a JSON list of {ty}"),
            Self::List(None) => "a JSON list of values of one type".to_owned(),
        }
    }
}

impl fmt::Display for AssignType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(ty) => write!(f, "{ty}"),
            Self::List(Some(ty)) => write!(f, "arr[{ty}]"),
            Self::List(None) => f.write_str("arr"),
        }
    }
}

/// Parts of `KEY=VALUE` or `KEY=TYPE:VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Key.
    pub key: String,
    /// Type, if one is named.
    pub ty: Option<AssignType>,
    /// Text of the value.
    pub text: Vec<u8>,
}

impl Assignment {
    /// Splits `KEY=VALUE` or `KEY=TYPE:VALUE` into its parts.
    ///
    /// The text before the first colon is a type if it is the name of one; otherwise it belongs to the value. So
    /// `general.url=https://a.b` needs no type, but a string that starts like `bool:` does: `KEY=str:bool:`.
    pub fn parse(text: &str) -> Result<Self, AssignError> {
        let (key, rest) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| AssignError::NoKey { text: text.to_owned() })?;
        let typed = rest.split_once(':').and_then(|(ty, value)| Some((AssignType::from_name(ty)?, value)));
        let (ty, value) = match typed {
            Some((ty, value)) => (Some(ty), value),
            None => (None, rest),
        };
        Ok(Self { key: key.to_owned(), ty, text: value.as_bytes().to_vec() })
    }

    /// Parses the value as the named type, or else as type `own`.
    ///
    /// # Errors
    /// No type, or a text that does not have the type.
    pub fn value(&self, own: Option<AssignType>) -> Result<Value, AssignError> {
        let ty = self.ty.or(own).ok_or_else(|| AssignError::Untyped { key: self.key.clone() })?;
        ty.read(&self.text).ok_or_else(|| AssignError::Value {
            key: self.key.clone(),
            expected: ty.expected(),
            found: String::from_utf8_lossy(&self.text).into_owned(),
        })
    }
}

/// Parses `KEY=TYPE:VALUE`.
///
/// The types are those of [`ValueType::name`]; a string is everything after the colon. Arrays are JSON lists:
/// `arr[u32]:[1, 2]` names the element type, `arr:[1, 2]` takes that of the first element as the converter of
/// llama.cpp does (bool, i32, f32, str).
pub fn parse_assignment(text: &str) -> Result<(String, Value), AssignError> {
    let form = || AssignError::Form { text: text.to_owned() };
    let assignment = Assignment::parse(text).map_err(|_| form())?;
    if assignment.ty.is_none() {
        let rest = String::from_utf8_lossy(&assignment.text).into_owned();
        let (found, _) = rest.split_once(':').ok_or_else(form)?;
        return Err(AssignError::Type { key: assignment.key, found: found.to_owned() });
    }
    let value = assignment.value(None)?;
    Ok((assignment.key, value))
}

fn scalar(ty: ValueType, text: &str) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(text.parse().ok()?),
        ValueType::I8 => Value::I8(text.parse().ok()?),
        ValueType::U16 => Value::U16(text.parse().ok()?),
        ValueType::I16 => Value::I16(text.parse().ok()?),
        ValueType::U32 => Value::U32(text.parse().ok()?),
        ValueType::I32 => Value::I32(text.parse().ok()?),
        // NaN and infinity have no meaning for any key.
        ValueType::F32 => Value::F32(text.parse().ok().filter(|number: &f32| number.is_finite())?),
        ValueType::Bool => Value::Bool(match text {
            "true" | "1" => true,
            "false" | "0" => false,
            _ => return None,
        }),
        ValueType::String => Value::String(text.as_bytes().to_vec()),
        ValueType::Array => return None,
        ValueType::U64 => Value::U64(text.parse().ok()?),
        ValueType::I64 => Value::I64(text.parse().ok()?),
        ValueType::F64 => Value::F64(text.parse().ok()?),
    })
}

fn array(text: &str, element: Option<ValueType>) -> Option<Array> {
    let Json::Array(list) = serde_json::from_str(text).ok()? else { return None };
    let element = match (element, list.first()) {
        (Some(ty), _) => ty,
        (None, Some(Json::Bool(_))) => ValueType::Bool,
        (None, Some(Json::String(_))) => ValueType::String,
        (None, Some(Json::Number(number))) if number.is_f64() => ValueType::F32,
        (None, Some(Json::Number(_))) => ValueType::I32,
        _ => return None,
    };
    macro_rules! collect {
        ($variant:ident, $get:expr) => {
            Array::$variant(list.iter().map($get).collect::<Option<_>>()?)
        };
    }
    macro_rules! integer {
        ($variant:ident, $held:ty) => {
            collect!($variant, |item| {
                let wide = item.as_i64().map(i128::from).or_else(|| item.as_u64().map(i128::from))?;
                <$held>::try_from(wide).ok()
            })
        };
    }
    Some(match element {
        ValueType::U8 => integer!(U8, u8),
        ValueType::I8 => integer!(I8, i8),
        ValueType::U16 => integer!(U16, u16),
        ValueType::I16 => integer!(I16, i16),
        ValueType::U32 => integer!(U32, u32),
        ValueType::I32 => integer!(I32, i32),
        ValueType::F32 => {
            // Parse the decimal text, so that the value is rounded once.
            collect!(F32, |item| decimal(item)?.parse().ok())
        }
        ValueType::Bool => collect!(Bool, Json::as_bool),
        ValueType::String => collect!(String, string),
        ValueType::Array => return None,
        ValueType::U64 => integer!(U64, u64),
        ValueType::I64 => integer!(I64, i64),
        ValueType::F64 => collect!(F64, |item| decimal(item)?.parse().ok()),
    })
}

/// Returns the text of a float: a number, or the string for a value that JSON cannot express.
fn decimal(item: &Json) -> Option<String> {
    match item {
        Json::Number(number) => Some(number.to_string()),
        Json::String(text) if matches!(text.as_str(), "NaN" | "inf" | "-inf") => Some(text.clone()),
        _ => None,
    }
}

/// Returns the bytes of a string; `{"hex": …}` denotes bytes that are not UTF-8, as printed by `gguf-inspect`.
fn string(item: &Json) -> Option<Vec<u8>> {
    let Json::Object(object) = item else { return Some(item.as_str()?.as_bytes().to_vec()) };
    let hex = object.get("hex").filter(|_| object.len() == 1)?.as_str()?;
    let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).map(|n| n as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        parse_assignment(&format!("k={text}")).unwrap().1
    }

    fn error(text: &str) -> String {
        parse_assignment(text).unwrap_err().to_string()
    }

    #[test]
    fn every_type() {
        assert_eq!(value("u8:200"), Value::U8(200));
        assert_eq!(value("int8:-1"), Value::I8(-1));
        assert_eq!(value("u64:18446744073709551615"), Value::U64(u64::MAX));
        assert_eq!(value("f32:1e-6"), Value::F32(1e-6));
        assert_eq!(value("bool:true"), Value::Bool(true));
        assert_eq!(value("str:"), Value::String(vec![]));
        assert_eq!(value("str:x=y:z"), Value::from("x=y:z"));
        assert_eq!(value("arr:[true, false]"), Value::from(vec![true, false]));
        assert_eq!(value("arr:[1, -2]"), Value::from(vec![1i32, -2]));
        assert_eq!(value("arr:[1.5, 2]"), Value::from(vec![1.5f32, 2.0]));
        assert_eq!(value("arr:[\"a\"]"), Value::from(vec!["a"]));
        assert_eq!(value("arr[u64]:[18446744073709551615]"), Value::from(vec![u64::MAX]));
        assert_eq!(value("arr[f32]:[]"), Value::Array(Array::F32(vec![])));
        assert_eq!(value("arr[f32]:[0.1]"), Value::from(vec![0.1f32]));
    }

    #[test]
    fn what_is_wrong_is_reported() {
        assert_eq!(error("k"), "`k`: `KEY=TYPE:VALUE` expected");
        assert_eq!(error("=u8:1"), "`=u8:1`: `KEY=TYPE:VALUE` expected");
        assert_eq!(error("k=u8:256"), "key `k`: `256` is not a value of type u8");
        assert_eq!(error("k=bool:yes"), "key `k`: `yes` is not a value of type bool");
        assert_eq!(error("k=arr[u8]:[1, 256]"), "key `k`: `[1, 256]` is not a JSON list of u8");
        assert_eq!(
            error("k=arr:[1, \"a\"]"),
            "key `k`: `[1, \"a\"]` is not a JSON list of values of one type"
        );
        assert!(error("k=text:a").starts_with("key `k`: unknown type `text`, expected u8"));
        assert!(error("k=arr[arr]:[]").starts_with("key `k`: unknown type `arr[arr]`, expected u8"));
        assert!(error(&format!("k=u8:{}", "9".repeat(900))).len() < 120);
    }

    #[test]
    fn a_type_may_be_left_out_where_there_is_one_to_take_over() {
        let value = |text: &str, own: &Value| Assignment::parse(text)?.value(AssignType::of(own));
        assert_eq!(value("k=7", &Value::U16(1)), Ok(Value::U16(7)));
        assert_eq!(value("k=https://a.b/c=d", &"x".into()), Ok("https://a.b/c=d".into()));
        assert_eq!(value("k=str:bool:x", &"x".into()), Ok("bool:x".into()));
        assert_eq!(value("k=[3, 4]", &vec![1i64].into()), Ok(vec![3i64, 4].into()));
        assert_eq!(value("k=i32:-7", &Value::U16(1)), Ok(Value::I32(-7)));
        let message = |found: Result<Value, AssignError>| found.unwrap_err().to_string();
        assert_eq!(message(value("k=-7", &Value::U16(1))), "key `k`: `-7` is not a value of type u16");
        assert_eq!(message(value("k", &Value::U16(1))), "`k`: `KEY=VALUE` or `KEY=TYPE:VALUE` expected");
        let untyped = Assignment::parse("k=1").unwrap().value(None).unwrap_err().to_string();
        assert!(untyped.starts_with("key `k`: not in the file, so a type is needed"), "{untyped}");
    }

    #[test]
    fn lists_are_read_as_they_are_printed() {
        assert_eq!(value("arr[f64]:[\"inf\", 0.5]"), vec![f64::INFINITY, 0.5].into());
        let strings = Value::Array(Array::String(vec![b"a".to_vec(), vec![0xff, 0x00]]));
        assert_eq!(value(r#"arr[str]:["a", {"hex": "ff00"}]"#), strings);
        assert!(error(r#"k=arr[str]:[{"hex": "f"}]"#).contains("is not a JSON list of str"));
    }
}
