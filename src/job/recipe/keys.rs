//! Keys of a file and the types of its tensors, compared with those that a run of our own would write.

use crate::core::{GgmlType, TensorMeta, TensorSource};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::inspect::{diff_keys, value_text};
use crate::job::recipe::RecipeSource;
use crate::job::recipe::report::{ImportanceKey, KeyFinding};
use crate::quantize::{FileType, ModelFacts, QuantizeOptions, Recipe, choose_types, written_metadata};

/// Characters of a value and elements of an array that a finding shows.
const SHOWN_CHARS: usize = 120;
const SHOWN_ELEMS: usize = 8;
/// Start of keys about the importance matrix.
const MATRIX: &str = "quantize.imatrix.";

/// Findings about keys and types.
pub(super) struct FoundKeys {
    pub(super) mixture: String,
    pub(super) rules: Vec<String>,
    pub(super) keys: Vec<KeyFinding>,
    pub(super) key_order_differs: bool,
}

impl FoundKeys {
    pub(super) fn of(file: &GgufFile, source: &RecipeSource) -> Self {
        let metadata = file.metadata();
        let id =
            metadata.get("general.file_type").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let claimed = id.and_then(FileType::from_id);
        let tensors = file.tensors();
        let recipe = Recipe::of(source_keys(metadata, source), tensors);
        let found = recipe.file_type(claimed);
        let expected = match (found, id) {
            (Some(found), _) => found.id(),
            (None, Some(id)) => id,
            (None, None) => FileType::guess(types(file)),
        };
        let expected = written_metadata(source.metadata(), expected);
        let written = compared(&expected, metadata);
        // A copy has the keys of the source as they are.
        let copied = compared(source.metadata(), metadata);
        let (keys, key_order_differs) = if copied.0.len() < written.0.len() { copied } else { written };
        Self {
            mixture: recipe.describe(claimed),
            rules: rules(metadata, tensors, found.or(claimed)),
            keys,
            key_order_differs,
        }
    }
}

/// Metadata from which facts about the model are read: parts after the first have none.
fn source_keys<'m>(metadata: &'m Metadata, source: &'m RecipeSource) -> &'m Metadata {
    if metadata.contains("general.architecture") { metadata } else { source.metadata() }
}

/// Returns true for one of several parts of a model.
pub(super) fn is_part(metadata: &Metadata) -> bool {
    metadata.get("split.count").and_then(Value::as_u64).is_some_and(|count| count > 1)
}

/// Returns true if the keys state that an importance matrix was used.
pub(super) fn names_matrix(metadata: &Metadata) -> bool {
    metadata.iter().any(|(key, _)| key.starts_with(MATRIX))
}

/// Keys about the importance matrix, with their values.
pub(super) fn matrix_keys(metadata: &Metadata) -> Vec<ImportanceKey> {
    let keys = metadata.iter().filter(|(key, _)| key.starts_with(MATRIX));
    keys.map(|(key, value)| ImportanceKey { key: key.to_owned(), value: text(value) }).collect()
}

fn text(value: &Value) -> String {
    value_text(value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS))
}

/// Compares keys. Those about importance and about the parts of a model are facts, not differences; parts after the
/// first have no other keys.
fn compared(expected: &Metadata, found: &Metadata) -> (Vec<KeyFinding>, bool) {
    let is_fact = |key: &str| {
        key.starts_with(MATRIX) || key.starts_with("split.") || key.starts_with("gguf_foundry.split.")
    };
    if is_part(found) && !found.contains("general.architecture") {
        return (Vec::new(), false);
    }
    let differences = diff_keys(expected, found).into_iter().filter(|difference| !is_fact(difference.key));
    let keys = differences.map(|difference| {
        let key = difference.key;
        KeyFinding {
            key: key.to_owned(),
            expected: expected.get(key).map(text),
            found: found.get(key).map(text),
            first_element: difference.first_element,
        }
    });
    let common = |one: &Metadata, other: &Metadata| -> Vec<String> {
        one.iter().map(|(key, _)| key.to_owned()).filter(|key| other.contains(key)).collect()
    };
    (keys.collect(), common(expected, found) != common(found, expected))
}

/// Types that the mixture of a file type does not give, as rules for `--tensor-type`.
fn rules(metadata: &Metadata, tensors: &[TensorMeta], file_type: Option<FileType>) -> Vec<String> {
    let Some(file_type) = file_type.filter(|file_type| file_type.base().is_some()) else { return Vec::new() };
    let facts = ModelFacts::new(metadata, &[], tensors);
    let ways = [(false, false), (false, true), (true, false)].map(|(pure, has_imatrix)| {
        let options = QuantizeOptions { pure, ..QuantizeOptions::new(file_type) };
        let choices = choose_types(&facts, tensors, &options, has_imatrix).ok()?;
        let others = tensors
            .iter()
            .zip(choices)
            .filter(|(tensor, choice)| tensor.ty != choice.ty && facts.is_quantized(tensor));
        Some(others.map(|(tensor, _)| format!("{}={}", tensor.name, tensor.ty)).collect::<Vec<_>>())
    });
    ways.into_iter().flatten().min_by_key(Vec::len).unwrap_or_default()
}

/// Returns the types of all tensors of a file.
fn types(file: &GgufFile) -> impl Iterator<Item = GgmlType> {
    file.tensors().iter().map(|tensor| tensor.ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_found() {
        let mut expected = Metadata::new();
        expected.set("general.architecture", "llama");
        expected.set("llama.block_count", 2u32);
        expected.set("gone", 1u32);
        expected.set("tokens", vec![1u32, 2, 3]);
        let mut found = Metadata::new();
        found.set("llama.block_count", 3u32);
        found.set("general.architecture", "llama");
        found.set("tokens", vec![1u32, 9, 3]);
        found.set("own", "x");
        found.set("quantize.imatrix.file", "m.gguf");
        let (keys, is_moved) = compared(&expected, &found);
        let texts: Vec<_> = keys
            .iter()
            .map(|key| (key.key.as_str(), key.expected.as_deref(), key.found.as_deref(), key.first_element))
            .collect();
        assert_eq!(
            texts,
            [
                ("llama.block_count", Some("2"), Some("3"), None),
                ("gone", Some("1"), None, None),
                ("tokens", Some("[1, 2, 3]"), Some("[1, 9, 3]"), Some(1)),
                ("own", None, Some("x"), None),
            ]
        );
        assert!(is_moved && names_matrix(&found) && !names_matrix(&expected));
        assert_eq!(matrix_keys(&found)[0].value, "m.gguf");
    }
}
