//! Rows of cards: the metadata keys that they write, and the values of these keys.

use crate::Result;
use crate::error::ArchError;
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::expr::Expr;
use crate::language::names::Captures;
use crate::read::base;
use crate::read::schema::{Card, MetadataRow};
use gguf_core::numeric::held_by_f32;
use gguf_format::keys::{ANNOTATION_PREFIX, KeyInfo, ValueCount, annotation_info, key_info, key_type};
use gguf_format::{Array, Metadata, Value, ValueType};

/// Returns the full key of a row: with the architecture in front if the table of well-known keys has it so.
pub(crate) fn full_key(key: &str, arch: &str) -> Option<String> {
    let prefixed = format!("{arch}.{key}");
    if key_type(&prefixed, arch).is_some() {
        return Some(prefixed);
    }
    key_type(key, arch).map(|_| key.to_owned())
}

impl Card {
    /// Returns true if a row of the card may write `key`, a full GGUF key.
    pub fn may_write(&self, key: &str) -> bool {
        has_own_row(self, key)
            || (self.metadata.contains(&MetadataRow::Base)
                && base_rows().iter().any(|row| is_of(row, key, &self.gguf)))
    }

    /// Returns the first configuration name in the row that writes `key`, a full GGUF key.
    pub fn name_in_row(&self, key: &str) -> Option<String> {
        let own = self.early.iter().chain(&self.metadata);
        let base = base_rows().iter().filter(|_| self.metadata.contains(&MetadataRow::Base));
        own.chain(base).filter(|row| is_of(row, key, &self.gguf)).find_map(|row| {
            let MetadataRow::Key { value, .. } = row else { return None };
            let mut found = None;
            value.walk(&mut |expr| {
                if let (Expr::Path(path), None) = (expr, &found)
                    && !self.lets.contains_key(&path.root)
                {
                    found = Some(path.to_string());
                }
            });
            found
        })
    }
}

/// As [`Card::may_write`], without the rows of `["include", "base"]`.
pub(crate) fn has_own_row(card: &Card, key: &str) -> bool {
    card.early.iter().chain(&card.metadata).any(|row| is_of(row, key, &card.gguf))
}

/// Returns true if the row writes this key in files of the architecture.
fn is_of(row: &MetadataRow, wanted: &str, arch: &str) -> bool {
    matches!(row, MetadataRow::Key { key, .. } if full_key(key, arch).is_some_and(|full| full == wanted))
}

/// Returns the keys that `["include", "base"]` may write.
pub(crate) fn base_keys() -> impl Iterator<Item = &'static str> {
    base_rows().iter().filter_map(|row| match row {
        MetadataRow::Key { key, .. } => Some(key.as_str()),
        MetadataRow::Base => None,
    })
}

/// Returns the rows of `["include", "base"]`.
pub(crate) fn base_rows() -> &'static [MetadataRow] {
    &base().metadata
}

/// Returns every key that a card may write: its rows, its annotations, the rows around its tokenizer.
pub fn derived_keys(card: &Card) -> Vec<String> {
    let names = |row: &MetadataRow| match row {
        MetadataRow::Base => base_keys().map(str::to_owned).collect(),
        MetadataRow::Key { key, .. } => vec![key.clone()],
    };
    let tokenizer = card.tokenizer.before.iter().chain(&card.tokenizer.after);
    let rows = card.early.iter().chain(&card.metadata).chain(tokenizer).flat_map(names);
    let full = rows.map(|key| full_key(&key, &card.gguf).unwrap_or(key));
    full.chain(card.annotate.iter().flat_map(names).map(|key| format!("{ANNOTATION_PREFIX}{key}"))).collect()
}

/// Evaluates the card's `annotate`: keys under `gguf_foundry.`, in the order of the rows.
pub(crate) fn annotations(card: &Card, scope: &Scope<'_>) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for row in &card.annotate {
        let MetadataRow::Key { key, .. } = row else { continue };
        if let (Some(info), Some(datum)) = (annotation_info(key), row_value(card, "annotate", row, scope)?) {
            let full = format!("{ANNOTATION_PREFIX}{key}");
            if let Some(value) = typed(&full, info, &datum)? {
                metadata.set(full, value);
            }
        }
    }
    Ok(metadata)
}

/// Evaluates rows into `metadata`. Null, an empty text where the key has a text, and an empty list where it may have one
/// write nothing; an existing key is replaced.
pub(crate) fn apply_rows(
    card: &Card,
    section: &str,
    rows: &[MetadataRow],
    scope: &Scope<'_>,
    metadata: &mut Metadata,
) -> Result<()> {
    for row in rows {
        match row {
            MetadataRow::Base => {
                base_rows().iter().try_for_each(|row| apply_row(card, section, row, scope, metadata))?;
            }
            row @ MetadataRow::Key { .. } => apply_row(card, section, row, scope, metadata)?,
        }
    }
    Ok(())
}

/// Returns the keys of a card's rows that can be evaluated, for a model that it does not fit completely.
pub(crate) fn known_keys(card: &Card, scope: &Scope<'_>) -> Metadata {
    let mut keys = Metadata::new();
    let base = |row: &MetadataRow| matches!(row, MetadataRow::Base);
    let base = if card.metadata.iter().any(base) { base_rows() } else { &[] };
    for row in base.iter().chain(&card.metadata) {
        // A row that cannot be evaluated decides nothing.
        let _ = apply_row(card, "metadata", row, scope, &mut keys);
    }
    keys.set("general.architecture", card.gguf.as_str());
    keys
}

fn apply_row(
    card: &Card,
    section: &str,
    row: &MetadataRow,
    scope: &Scope<'_>,
    metadata: &mut Metadata,
) -> Result<()> {
    let MetadataRow::Key { key, .. } = row else { return Ok(()) };
    if let Some(datum) = row_value(card, section, row, scope)?
        && let Some(full) = full_key(key, &card.gguf)
        && let Some(info) = key_info(&full, &card.gguf)
        && let Some(value) = typed(&full, info, &datum)?
    {
        metadata.set(full, value);
    }
    Ok(())
}

/// Returns a row's value; `None` if its condition is false.
fn row_value(card: &Card, section: &str, row: &MetadataRow, scope: &Scope<'_>) -> Result<Option<Datum>> {
    let MetadataRow::Key { key, value, when } = row else { return Ok(None) };
    let failed = |source| ArchError::Eval { card: card.name(), at: format!("{section} `{key}`"), source };
    if !scope.holds(when.as_ref(), Captures::default()).map_err(failed)? {
        return Ok(None);
    }
    scope.eval(value, Captures::default()).map(Some).map_err(failed)
}

/// Returns the GGUF value of a datum under a well-known key; `None` if nothing is written.
///
/// A scalar takes the type of its key. A list takes the type of its first element (integers are I32), as in gguf-py,
/// unless the key's elements have a type of 64 bits.
fn typed(key: &str, info: &KeyInfo, datum: &Datum) -> Result<Option<Value>> {
    let wrong = |datum: &Datum, expected| ArchError::KeyValue {
        key: key.to_owned(),
        value: datum.to_string(),
        expected,
    };
    match datum {
        Datum::Null => Ok(None),
        Datum::Text(text) if text.is_empty() && info.value_type == ValueType::String => Ok(None),
        // A token by its text: whoever writes the vocabulary knows its id.
        Datum::Text(text) if key.starts_with("tokenizer.") && key.ends_with("_token_id") => {
            Ok(Some(Value::from(&**text)))
        }
        Datum::List(items) if items.is_empty() && info.count == ValueCount::One => {
            Err(wrong(datum, info.value_type))
        }
        Datum::List(items) => {
            let element = match (info.value_type, items.first()) {
                (_, None) => return Ok(None),
                (wide @ (ValueType::U64 | ValueType::I64), _) => wide,
                (_, Some(Datum::Bool(_))) => ValueType::Bool,
                (_, Some(Datum::Int(_))) => ValueType::I32,
                (_, Some(Datum::Float(_))) => ValueType::F32,
                (_, Some(Datum::Text(_))) => ValueType::String,
                (_, Some(other)) => return Err(wrong(other, info.value_type)),
            };
            array(items, element).map(Some).ok_or_else(|| wrong(datum, element))
        }
        _ => scalar(datum, info.value_type).map(Some).ok_or_else(|| wrong(datum, info.value_type)),
    }
}

fn scalar(datum: &Datum, ty: ValueType) -> Option<Value> {
    // 512.0 is as whole as 512.
    let whole = |value: &f64| value.fract() == 0.0 && value.abs() < f64::from(u32::MAX);
    let datum = &match datum {
        Datum::Float(value) if !matches!(ty, ValueType::F32 | ValueType::F64) && whole(value) => {
            Datum::Int(*value as i128)
        }
        _ => datum.clone(),
    };
    if matches!(datum, Datum::Bool(_)) && ty != ValueType::Bool {
        return None;
    }
    Some(match ty {
        ValueType::Bool => match datum {
            Datum::Bool(value) => Value::Bool(*value),
            Datum::Int(value @ (0 | 1)) => Value::Bool(*value == 1),
            _ => return None,
        },
        ValueType::String => match datum {
            Datum::Text(text) => Value::from(&**text),
            _ => return None,
        },
        ValueType::F32 => Value::F32(held_by_f32(datum.as_float()?)?),
        ValueType::F64 => Value::F64(datum.as_float()?),
        ValueType::U8 => Value::U8(datum.as_int()?.try_into().ok()?),
        ValueType::I8 => Value::I8(datum.as_int()?.try_into().ok()?),
        ValueType::U16 => Value::U16(datum.as_int()?.try_into().ok()?),
        ValueType::I16 => Value::I16(datum.as_int()?.try_into().ok()?),
        ValueType::U32 => Value::U32(datum.as_int()?.try_into().ok()?),
        ValueType::I32 => Value::I32(datum.as_int()?.try_into().ok()?),
        ValueType::U64 => Value::U64(datum.as_int()?.try_into().ok()?),
        ValueType::I64 => Value::I64(datum.as_int()?.try_into().ok()?),
        ValueType::Array => return None,
    })
}

/// Converts to F32. Unlike a configuration, a card may compute an infinity, which runtimes accept (Gemma 3n: the
/// threshold of a share of 0).
fn held_or_infinite(value: f64) -> Option<f32> {
    if value.is_infinite() { Some(value as f32) } else { held_by_f32(value) }
}

fn array(items: &[Datum], ty: ValueType) -> Option<Value> {
    // All of one kind: gguf-py refuses a mixture of integers and floats.
    let ints = || items.iter().map(|item| matches!(item, Datum::Int(_)).then(|| item.as_int()).flatten());
    Some(Value::Array(match ty {
        ValueType::Bool => Array::Bool(
            items
                .iter()
                .map(|item| if let Datum::Bool(value) = item { Some(*value) } else { None })
                .collect::<Option<_>>()?,
        ),
        ValueType::I32 => Array::I32(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::U64 => Array::U64(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::I64 => Array::I64(ints().map(|int| int?.try_into().ok()).collect::<Option<_>>()?),
        ValueType::F32 => Array::F32(
            items
                .iter()
                .map(|item| if let Datum::Float(value) = item { held_or_infinite(*value) } else { None })
                .collect::<Option<_>>()?,
        ),
        ValueType::String => Array::String(
            items
                .iter()
                .map(|item| if let Datum::Text(text) = item { Some(text.as_bytes().to_vec()) } else { None })
                .collect::<Option<_>>()?,
        ),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_rows_have_known_keys() {
        assert!(base_keys().count() > 20);
        for key in base_keys() {
            assert!(full_key(key, "llama").is_some(), "{key}");
        }
        assert_eq!(full_key("block_count", "llama").as_deref(), Some("llama.block_count"));
        assert_eq!(
            full_key("tokenizer.ggml.add_bos_token", "llama").as_deref(),
            Some("tokenizer.ggml.add_bos_token")
        );
        assert_eq!(full_key("no_such_key", "llama"), None);
    }

    #[test]
    fn values_take_the_type_of_their_key() {
        let value = |key: &str, json: &str| {
            let info = key_info(key, "llama").unwrap();
            typed(key, info, &Datum::from_json(&serde_json::from_str(json).unwrap()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(value("llama.block_count", "7"), Ok(Some(Value::U32(7))));
        assert_eq!(value("llama.rope.freq_base", "10000"), Ok(Some(Value::F32(1e4))));
        assert_eq!(value("llama.block_count", "7.0"), Ok(Some(Value::U32(7))));
        assert_eq!(value("llama.block_count", "null"), Ok(None));
        assert_eq!(value("llama.attention.head_count_kv", "[]"), Ok(None));
        for (key, json) in [
            ("block_count", "[]"),
            ("block_count", "\"\""),
            ("block_count", "true"),
            ("rope.freq_base", "true"),
        ] {
            assert!(value(&format!("llama.{key}"), json).is_err(), "{key} = {json}");
        }
        assert_eq!(value("llama.attention.head_count_kv", "[1, 2]"), Ok(Some(Value::from(vec![1i32, 2]))));
        assert_eq!(value("llama.ple.layer_multipliers", "[1]"), Ok(Some(Value::from(vec![1u64]))));
        assert_eq!(
            value("llama.block_count", "7.5"),
            Err("`llama.block_count`: 7.5 is not a u32".to_owned())
        );
        assert_eq!(value("llama.block_count", "-1"), Err("`llama.block_count`: -1 is not a u32".to_owned()));
        assert_eq!(
            value("llama.block_count", "[1, 2.0]"),
            Err("`llama.block_count`: a list of 2 is not a i32".to_owned())
        );
    }
}
