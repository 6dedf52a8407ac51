//! Files, keys and tensors that a conversion needs and the checkpoint's directory lacks.

use serde_json::{Map, Value as Json};

use crate::attributes::{AttributeDefault, Attributes};
use crate::error::listing::first_few_names;
use crate::language::eval::error::EvalError;
use gguf_core::Hint;
use gguf_core::text::escape;

/// Missing file, key or tensors.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum MissingInput {
    #[error("{file}: `{}` is missing", escape(key))]
    KeyMissing { file: &'static str, key: String, class_value: Option<Json> },
    #[error("{file}: `{key}` is {}, expected {expected}", escape(value))]
    FileValue { file: &'static str, key: &'static str, value: String, expected: &'static str },
    #[error("{file} is missing: the tower's file needs its `{}`", escape(key))]
    FileMissing { file: &'static str, key: String },
    #[error("{file}: no value for `{}` can be computed: {source}", escape(key))]
    NoValue { file: &'static str, key: String, source: EvalError },
    #[error("config.json describes no vision or audio tower: `{}` is a text model", escape(class))]
    TextOnly { class: String },
    #[error(
        "the checkpoint has no vision or audio tower: no tensor's name starts with {}",
        first_few_names(parts)
    )]
    NoTower { parts: Vec<String>, nearest: Option<String> },
    #[error("the vision or audio tower is incomplete: the checkpoint lacks {}{}", first_few_names(names), if *more { " and more" } else { "" })]
    TowerIncomplete { names: Vec<String>, more: bool, nearest: Option<String> },
}

impl MissingInput {
    pub(crate) fn of_file(file: &'static str, key: String) -> Self {
        Self::KeyMissing { file, key, class_value: None }
    }

    pub(crate) fn file_value(
        file: &'static str,
        key: &'static str,
        value: &Json,
        expected: &'static str,
    ) -> Self {
        Self::FileValue { file, key, value: value.to_string(), expected }
    }

    /// Returns the error for a missing key of `config.json` or of the file in its place.
    pub fn of_config(file: &'static str, key: String, config: &Map<String, Json>) -> Self {
        let class_value = Attributes::of_text(config).and_then(|attributes| attributes.default_of(&key));
        let class_value = match class_value {
            Some(AttributeDefault::Value(value)) if !value.is_null() => Some(value),
            _ => None,
        };
        Self::KeyMissing { file, key, class_value }
    }
}

/// Name of the configuration's file.
pub(crate) const CONFIG: &str = "config.json";

/// Name of the file that says how images become numbers.
pub(crate) const PREPROCESSOR: &str = "preprocessor_config.json";

/// Name of the file that transformers saves what concerns images in with what concerns sounds.
pub(crate) const PROCESSOR: &str = "processor_config.json";

/// Returns the way out where a file lacks a key.
pub(crate) fn add_to(file: &str) -> String {
    let of_flm = if file == CONFIG { " (for a FastLLM file: `--config FILE`)" } else { "" };
    format!("add it to {file}, or take the file from the model that this one was made of{of_flm}")
}

/// Returns the way out where a file has a value that its class does not take.
pub(crate) fn of_weights(file: &str) -> String {
    format!(
        "a value in {file} is not of the kind that this class takes: take the file that was saved with these weights"
    )
}

impl Hint for MissingInput {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::KeyMissing { file, key, class_value: Some(value) } => vec![format!(
                "add `\"{}\": {}` to {file}: transformers takes it where the key is absent",
                escape(key),
                escape(&value.to_string())
            )],
            Self::KeyMissing { file, .. } => {
                vec![add_to(file)]
            }
            Self::FileMissing { file, .. } => vec![format!(
                "copy {file} (or processor_config.json) from the model that this one was made of: training programs leave it out"
            )],
            Self::NoValue { file, source: EvalError::NotInTable { found, .. }, .. } => vec![format!(
                "if one of the known values computes the same, write it in place of {found} in {file}"
            )],
            Self::NoValue { file, .. } | Self::FileValue { file, .. } => vec![of_weights(file)],
            Self::TextOnly { .. } => vec!["without `--mmproj` the text model is converted".to_owned()],
            Self::NoTower { nearest, .. } | Self::TowerIncomplete { nearest, .. } => vec![match nearest {
                Some(found) => {
                    format!("the checkpoint has `{}`, a name that is not known here", escape(found))
                }
                None => "take the tensors of the tower from the model that this one was made of".to_owned(),
            }],
        }
    }
}
