//! What the folder of a checkpoint does not have and a conversion needs.

use serde_json::{Map, Value as Json};

use crate::arch::attributes::{AttributeDefault, Attributes};
use crate::arch::error::first_few_names;
use crate::arch::eval::EvalError;
use crate::core::Hint;
use crate::core::text::escape;

/// A file, a key or tensors that are not there.
#[derive(Debug, thiserror::Error)]
pub enum Lack {
    /// A key that the conversion needs, in one of the files next to the weights.
    #[error("{file}: `{}` is missing", escape(key))]
    KeyMissing {
        /// The file.
        file: &'static str,
        /// The key; points lead into objects.
        key: String,
        /// What transformers takes where it is absent.
        class_value: Option<Json>,
    },
    /// A file that the conversion needs.
    #[error("{file} is missing: the tower's file needs its `{}`", escape(key))]
    FileMissing {
        /// The file.
        file: &'static str,
        /// A key of it.
        key: String,
    },
    /// Values of the configuration of which nothing can be computed.
    #[error("{file}: no value for `{}` can be computed: {source}", escape(key))]
    NoValue {
        /// The file.
        file: &'static str,
        /// What is computed.
        key: String,
        /// What is wrong.
        source: EvalError,
    },
    /// A text model, of which towers were wanted.
    #[error("config.json describes no vision or audio tower: `{}` is a text model", escape(class))]
    TextOnly {
        /// The class.
        class: String,
    },
    /// No tensor of a tower.
    #[error(
        "the checkpoint has no vision or audio tower: no tensor's name starts with {}",
        first_few_names(parts)
    )]
    NoTower {
        /// How the names of the towers' tensors start.
        parts: Vec<String>,
        /// A tensor of the checkpoint with a similar name.
        nearest: Option<String>,
    },
    /// A tower without tensors that it needs.
    #[error("the vision or audio tower is incomplete: the checkpoint lacks {}{}", first_few_names(names), if *more { " and more" } else { "" })]
    TowerIncomplete {
        /// Their names in the checkpoint, or in GGUF where the former is not known.
        names: Vec<String>,
        /// True if the list is cut.
        more: bool,
        /// A tensor of the checkpoint that is not the tower's by its name, and has a similar one.
        nearest: Option<String>,
    },
}

impl Lack {
    /// A key that one of the files lacks.
    pub(super) fn of_file(file: &'static str, key: String) -> Self {
        Self::KeyMissing { file, key, class_value: None }
    }

    /// A key that `config.json`, or what stands for it, lacks.
    pub(crate) fn of_config(file: &'static str, key: String, config: &Map<String, Json>) -> Self {
        let class_value = Attributes::of_text(config).and_then(|attributes| attributes.default_of(&key));
        let class_value = match class_value {
            Some(AttributeDefault::Value(value)) if !value.is_null() => Some(value),
            _ => None,
        };
        Self::KeyMissing { file, key, class_value }
    }
}

impl Hint for Lack {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::KeyMissing { file, key, class_value: Some(value) } => vec![format!(
                "add `\"{}\": {}` to {file}: transformers takes it where the key is absent",
                escape(key),
                escape(&value.to_string())
            )],
            Self::KeyMissing { file, .. } => {
                vec![format!("add it to {file}, or take the file from the model that this one was made of")]
            }
            Self::FileMissing { file, .. } => vec![format!(
                "copy {file} (or processor_config.json) from the model that this one was made of: training programs leave it out"
            )],
            Self::NoValue { .. } => Vec::new(),
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
