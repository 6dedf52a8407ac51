//! Well-known keys with a value whose type or length their readers do not accept, and any key with a value that they
//! cannot read.
//!
//! llama.cpp requires one type for each key and refuses a file with another, regardless of the number. Integer arrays
//! may be signed or unsigned, and an array with a value per block may be of `bool`. An array of another length is
//! refused, or, if it is too short for its blocks, read as if the rest were zeros.

use crate::keys::{KeyInfo, ValueCount, annotation_row, key_info};
use crate::{Array, AssignType, Metadata, Value, ValueType};
use gguf_core::text::escape;

/// A key with a value that its readers do not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum KeyFault {
    #[error("key `{}` must be of type {expected}, not {found}", escape(key))]
    Type { key: String, expected: String, found: String },
    #[error("key `{}` has {found} {}, not {expected}{why}", escape(key), entries(*found))]
    Length { key: String, expected: String, found: usize, why: String },
}

fn entries(n: usize) -> &'static str {
    if n == 1 { "entry" } else { "entries" }
}

impl KeyFault {
    /// Key at fault.
    pub fn key(&self) -> &str {
        match self {
            Self::Type { key, .. } | Self::Length { key, .. } => key,
        }
    }

    /// Returns true if an integer only has another width or sign than expected, so that its number can still be read.
    pub fn is_of_width(&self) -> bool {
        let is_integer = |name: &str| {
            use ValueType::{I8, I16, I32, I64, U8, U16, U32, U64};
            ValueType::from_name(name).is_some_and(|ty| [U8, I8, U16, I16, U32, I32, U64, I64].contains(&ty))
        };
        matches!(self, Self::Type { expected, found, .. } if is_integer(expected) && is_integer(found))
    }

    /// Returns true if programs that run the model read the key and would refuse the file. Notes about a file's origin
    /// are only displayed.
    pub fn is_fatal(&self) -> bool {
        const NOTES: [&str; 3] = ["general.", "quantize.", "imatrix."];
        const READ: [&str; 6] = [
            "general.architecture",
            "general.type",
            "general.name",
            "general.alignment",
            "general.file_type",
            "general.tensor_extra.",
        ];
        let key = self.key();
        // llama.cpp's reader stops at it, whatever the key.
        let is_nested = matches!(self, Self::Type { found, .. } if found == NESTED);
        is_nested
            || READ.iter().any(|read| key.starts_with(read))
            || !NOTES.iter().any(|note| key.starts_with(note))
    }
}

/// Name of the type of an array of arrays.
const NESTED: &str = "arr[arr]";

/// Finds all wrong types and lengths of well-known keys, and all arrays of arrays, in the order of the keys.
pub fn key_faults(metadata: &Metadata) -> Vec<KeyFault> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let fault = |(key, value): (&str, &Value)| {
        let of_type = |expected: String| {
            Some(KeyFault::Type { key: key.to_owned(), expected, found: type_name(value) })
        };
        let Some(info) = key_info(key, arch).or_else(|| annotation_row(key)) else {
            let is_nested = matches!(value, Value::Array(Array::Array(_)));
            return of_type("arr of numbers, bools or strings".to_owned()).filter(|_| is_nested);
        };
        if !takes(info, value) {
            return of_type(expected(info));
        }
        let found = value.as_array()?.len();
        let (expected, why) = other_length(info, found, arch, metadata)?;
        Some(KeyFault::Length { key: key.to_owned(), expected, found, why })
    };
    metadata.iter().filter_map(fault).collect()
}

/// Returns the type of a well-known key; for a key that accepts one number for all layers, the number's type.
pub fn own_type(info: &KeyInfo) -> AssignType {
    if info.is_array { AssignType::List(Some(info.value_type)) } else { AssignType::One(info.value_type) }
}

/// Returns true if a well-known key may have a value of this type.
fn takes(info: &KeyInfo, value: &Value) -> bool {
    use ValueType::{Bool, F32, I8, I32, U8, U32};
    let is_per_block = matches!(info.count, ValueCount::PerBlock | ValueCount::PerOwnBlock);
    match AssignType::of(value) {
        Some(AssignType::List(Some(found))) => {
            let alike = match info.value_type {
                // Token types and `adapter.*` ids are read without conversion.
                I32 | U32
                    if !info.pattern.starts_with("tokenizer.") && !info.pattern.starts_with("adapter.") =>
                {
                    found == I32 || found == U32 || (is_per_block && found == Bool)
                }
                Bool if is_per_block => found == I32 || found == U32,
                F32 if info.pattern == "tokenizer.ggml.scores" => found == I32,
                U8 => found == I8,
                _ => false,
            };
            info.count != ValueCount::One && (alike || found == info.value_type)
        }
        Some(AssignType::One(found)) => match info.value_type {
            _ if !info.is_array => found == info.value_type,
            // One value for all blocks.
            Bool | I32 => is_per_block && found == U32,
            own => is_per_block && found == own,
        },
        _ => false,
    }
}

/// Formats the expected type of a key for a message.
fn expected(info: &KeyInfo) -> String {
    let own = own_type(info);
    match info.count {
        ValueCount::PerBlock | ValueCount::PerOwnBlock if !info.is_array => {
            format!("{own} or arr[{}]", info.value_type)
        }
        _ => own.to_string(),
    }
}

/// Formats the type of a value for a message.
fn type_name(value: &Value) -> String {
    AssignType::of(value).map_or_else(|| NESTED.to_owned(), |ty| ty.to_string())
}

/// Returns the expected length of an array and the reason, if the actual length differs. A length that depends on a key
/// that is missing, or not a number, is not checked.
fn other_length(info: &KeyInfo, found: usize, arch: &str, metadata: &Metadata) -> Option<(String, String)> {
    let number = |pattern: &str| {
        let key = pattern.replace("{arch}", arch);
        let value = metadata.get(&key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())?;
        Some((key, value))
    };
    let as_in = |pattern: &str| {
        let (key, n) = number(pattern)?;
        (n != found).then(|| (n.to_string(), format!(": `{}` is {n}", escape(&key))))
    };
    match info.count {
        ValueCount::One | ValueCount::Any => None,
        ValueCount::Exactly(n) => (n != found).then(|| (n.to_string(), String::new())),
        ValueCount::AtLeast(n) => (n > found).then(|| (format!("{n} or more"), String::new())),
        ValueCount::PerBlock => as_in(BLOCKS),
        ValueCount::PerOwnBlock => {
            let drafts = number(DRAFT_BLOCKS).map_or(0, |(_, n)| n);
            let is_own = number(BLOCKS).is_some_and(|(_, n)| n.checked_sub(drafts) == Some(found));
            if is_own { None } else { as_in(BLOCKS) }
        }
        ValueCount::AsIn(pattern) => as_in(pattern),
    }
}

const BLOCKS: &str = "{arch}.block_count";
const DRAFT_BLOCKS: &str = "{arch}.nextn_predict_layers";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Assignment;
    use crate::keys::{ANNOTATIONS, KEYS};

    const BLOCKS: usize = 3;

    fn model() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.block_count", BLOCKS as u32);
        metadata.set("llama.adapters.count", 2u32);
        metadata.set("clip.vision.block_count", 5u32);
        metadata
    }

    /// Makes a value of a type, with `n` elements if it is an array.
    fn value(ty: AssignType, n: usize) -> Value {
        let one = |ty| match ty {
            ValueType::Bool => "true",
            ValueType::String => "\"x\"",
            _ => "1",
        };
        let text = match ty {
            AssignType::One(ty) => one(ty).to_owned(),
            AssignType::List(ty) => format!("[{}]", vec![one(ty.unwrap()); n].join(",")),
        };
        Assignment { key: "k".to_owned(), ty: Some(ty), text: text.into_bytes() }.value(None).unwrap()
    }

    /// Returns the message of the first fault.
    fn fault(key: &str, value: Value) -> Option<String> {
        let mut metadata = model();
        metadata.set(key.to_owned(), value);
        let faults = key_faults(&metadata);
        faults.first().map(ToString::to_string)
    }

    /// Returns the length that a row requires in [`model`].
    fn length(info: &KeyInfo) -> usize {
        match info.count {
            ValueCount::Exactly(n) | ValueCount::AtLeast(n) => n,
            ValueCount::AsIn("{arch}.adapters.count") => 2,
            ValueCount::AsIn(_) => 5,
            _ => BLOCKS,
        }
    }

    /// Iterates over all well-known keys, with their placeholders filled in.
    fn rows() -> impl Iterator<Item = (String, &'static KeyInfo)> {
        let named = KEYS.iter().map(|row| {
            (row.pattern.replace("{arch}", "llama").replace("{id}", "0").replace(['{', '}'], ""), row)
        });
        named.chain(ANNOTATIONS.iter().map(|row| (format!("gguf_foundry.{}", row.pattern), row)))
    }

    #[test]
    fn every_key_keeps_its_type_and_no_other() {
        const TYPES: [ValueType; 12] = {
            use ValueType::{Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
            [U8, I8, U16, I16, U32, I32, U64, I64, F32, F64, Bool, String]
        };
        let (mut kept, mut refused) = (0, 0);
        for (key, info) in rows().filter(|(key, _)| key != "general.architecture") {
            let n = length(info);
            assert_eq!(fault(&key, value(own_type(info), n)), None, "{key}");
            let types = TYPES.iter().flat_map(|&ty| [AssignType::One(ty), AssignType::List(Some(ty))]);
            for ty in types {
                match fault(&key, value(ty, n)) {
                    None => kept += 1,
                    Some(message) => {
                        assert!(message.starts_with(&format!("key `{key}` must be of type ")), "{message}");
                        assert!(message.ends_with(&format!(", not {ty}")), "{message}");
                        refused += 1;
                    }
                }
            }
        }
        // Most keys accept one type; a few more if integers may be signed or given per block.
        let n_keys = rows().count() - 1;
        assert_eq!(kept + refused, 24 * n_keys);
        assert!((n_keys..n_keys + 90).contains(&kept), "{kept} of {n_keys}");
    }

    #[test]
    fn arrays_have_the_length_of_what_they_are_about() {
        let mut n_found = 0;
        for (key, info) in rows() {
            let n = length(info);
            let ty = AssignType::List(Some(info.value_type));
            let length_of = |n: usize| fault(&key, value(ty, n));
            match info.count {
                ValueCount::One => {
                    if !info.is_array {
                        assert!(length_of(n).is_some(), "{key}: no array");
                    }
                }
                ValueCount::Any => assert_eq!(length_of(7), None, "{key}"),
                _ => {
                    assert_eq!(length_of(n), None, "{key}");
                    let short = length_of(n - 1).unwrap();
                    assert!(short.starts_with(&format!("key `{key}` has {} entr", n - 1)), "{short}");
                    let long = length_of(n + 1);
                    assert_eq!(
                        long.is_none(),
                        matches!(info.count, ValueCount::AtLeast(_)),
                        "{key}: {long:?}"
                    );
                    n_found += 1;
                }
            }
        }
        assert!(n_found > 20, "{n_found}");
        assert_eq!(
            fault("llama.attention.head_count_kv", vec![2u32; 5].into()).unwrap(),
            "key `llama.attention.head_count_kv` has 5 entries, not 3: `llama.block_count` is 3"
        );
        assert_eq!(
            fault("llama.rope.dimension_sections", vec![1i32; 3].into()).unwrap(),
            "key `llama.rope.dimension_sections` has 3 entries, not 4"
        );
    }

    #[test]
    fn blocks_of_draft_heads_may_be_left_out_where_runtimes_do() {
        let mut metadata = model();
        metadata.set("llama.nextn_predict_layers", 1u32);
        metadata.set("llama.attention.indexer.types", vec![true; BLOCKS - 1]);
        assert!(key_faults(&metadata).is_empty());
        metadata.set("llama.attention.head_count", vec![4u32; BLOCKS - 1]);
        assert_eq!(key_faults(&metadata).len(), 1);
    }

    #[test]
    fn notes_of_another_type_are_no_reason_to_refuse_a_file() {
        let mut metadata = model();
        metadata.set("general.author", Value::U8(5));
        metadata.set("general.file_type", 1u64);
        metadata.set("llama.block_count", 3u64);
        metadata.set("of_mine.block_count", 3u64);
        metadata.set("general.tags", Value::Array(Array::U8(vec![1])));
        metadata.set("general.languages", Value::Array(Array::Array(Vec::new())));
        metadata.set("of_mine.nested", Value::Array(Array::Array(vec![Array::U8(vec![1])])));
        let faults = key_faults(&metadata);
        let fatal: Vec<(&str, bool)> = faults.iter().map(|fault| (fault.key(), fault.is_fatal())).collect();
        let expected = [
            ("llama.block_count", true),
            ("general.author", false),
            ("general.file_type", true),
            ("general.tags", false),
            ("general.languages", true),
            ("of_mine.nested", true),
        ];
        assert_eq!(fatal, expected);
        assert_eq!(faults[0].to_string(), "key `llama.block_count` must be of type u32, not u64");
        let widths: Vec<bool> = faults.iter().map(KeyFault::is_of_width).collect();
        assert_eq!(widths, [true, false, true, false, false, false]);
        assert_eq!(
            faults[5].to_string(),
            "key `of_mine.nested` must be of type arr of numbers, bools or strings, not arr[arr]"
        );
    }
}
