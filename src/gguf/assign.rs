//! Assignments from a command line: `KEY=TYPE:VALUE`.

use serde_json::Value as Json;

use crate::gguf::{Array, Value, ValueType};

/// Why an assignment was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum AssignError {
    /// Not of the form `KEY=TYPE:VALUE`.
    #[error("`{text}`: `KEY=TYPE:VALUE` expected")]
    Form { text: String },
    /// Not the name of a type.
    #[error(
        "key `{key}`: unknown type `{found}`, expected u8, i8, u16, i16, u32, i32, f32, bool, str, u64, i64, f64, arr or arr[TYPE]"
    )]
    Type { key: String, found: String },
    /// A value that is not of the type.
    #[error("key `{key}`: `{found}` is not {expected}")]
    Value { key: String, expected: String, found: String },
}

/// Parses `KEY=TYPE:VALUE`.
///
/// The types are those of [`ValueType::name`]; a string is everything after the colon. Arrays are JSON lists:
/// `arr[u32]:[1, 2]` names the element type, `arr:[1, 2]` takes that of the first element as the converter of
/// llama.cpp does (bool, i32, f32, str).
///
/// # Errors
/// [`AssignError`].
///
/// # Examples
/// ```
/// use gguf_foundry::gguf::{Value, parse_assignment};
/// assert_eq!(parse_assignment("general.name=str:a:b"), Ok(("general.name".into(), Value::from("a:b"))));
/// assert_eq!(parse_assignment("k=arr[u16]:[1, 2]"), Ok(("k".into(), Value::from(vec![1u16, 2]))));
/// assert!(parse_assignment("k=u8:256").is_err());
/// ```
pub fn parse_assignment(text: &str) -> Result<(String, Value), AssignError> {
    let form = || AssignError::Form { text: text.to_owned() };
    let (key, rest) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(form)?;
    let (ty, value) = rest.split_once(':').ok_or_else(form)?;
    let wrong_type = || AssignError::Type { key: key.to_owned(), found: ty.to_owned() };
    let element = ty.strip_prefix("arr[").and_then(|rest| rest.strip_suffix(']'));
    let parsed = match (element, ValueType::from_name(ty)) {
        (Some(element), _) => {
            let ty = ValueType::from_name(element).filter(|ty| *ty != ValueType::Array);
            array(value, Some(ty.ok_or_else(wrong_type)?)).map(Value::Array)
        }
        (None, Some(ValueType::Array)) => array(value, None).map(Value::Array),
        (None, Some(ty)) => scalar(ty, value),
        (None, None) => return Err(wrong_type()),
    };
    parsed.map(|value| (key.to_owned(), value)).ok_or_else(|| AssignError::Value {
        key: key.to_owned(),
        expected: match element.or(Some(ty)) {
            Some(ty) if element.is_some() => format!("a JSON list of {ty}"),
            Some("arr" | "array") => "a JSON list of values of one type".to_owned(),
            _ => format!("a value of type {ty}"),
        },
        found: value.to_owned(),
    })
}

fn scalar(ty: ValueType, text: &str) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(text.parse().ok()?),
        ValueType::I8 => Value::I8(text.parse().ok()?),
        ValueType::U16 => Value::U16(text.parse().ok()?),
        ValueType::I16 => Value::I16(text.parse().ok()?),
        ValueType::U32 => Value::U32(text.parse().ok()?),
        ValueType::I32 => Value::I32(text.parse().ok()?),
        ValueType::F32 => Value::F32(text.parse().ok()?),
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
        ($variant:ident) => {
            collect!($variant, |item| {
                let wide = item.as_i64().map(i128::from).or_else(|| item.as_u64().map(i128::from))?;
                wide.try_into().ok()
            })
        };
    }
    Some(match element {
        ValueType::U8 => integer!(U8),
        ValueType::I8 => integer!(I8),
        ValueType::U16 => integer!(U16),
        ValueType::I16 => integer!(I16),
        ValueType::U32 => integer!(U32),
        ValueType::I32 => integer!(I32),
        ValueType::F32 => {
            // From the decimal text, so that it is rounded once.
            collect!(F32, |item| item.as_number()?.to_string().parse().ok())
        }
        ValueType::Bool => collect!(Bool, Json::as_bool),
        ValueType::String => collect!(String, |item| Some(item.as_str()?.as_bytes().to_vec())),
        ValueType::Array => return None,
        ValueType::U64 => integer!(U64),
        ValueType::I64 => integer!(I64),
        ValueType::F64 => collect!(F64, Json::as_f64),
    })
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
    fn what_is_wrong_is_said() {
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
    }
}
