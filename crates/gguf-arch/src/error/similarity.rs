//! Similarity of a checkpoint to the models of a card.

use std::fmt;

use serde::Serialize;

/// Amount of a checkpoint that a card knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Similarity {
    /// `general.architecture` of the card.
    #[serde(rename = "architecture")]
    pub card: String,
    /// Number of kinds of tensors (names without numbers) that the card's entries match.
    #[serde(rename = "kinds")]
    pub n_kinds: usize,
    /// Number of kinds of tensors in the checkpoint.
    pub of_kinds: usize,
    /// Number of keys of `config.json` that the card reads.
    #[serde(rename = "config_keys")]
    pub(crate) n_config_keys: usize,
    /// Number of keys of `config.json` that may matter.
    pub(crate) of_config_keys: usize,
    /// True if the card has defaults for the checkpoint's `model_type`, or is named like it.
    #[serde(skip)]
    pub(crate) is_model_type: bool,
    /// Replacement of the checkpoint's block prefix that makes its names match: `(from, to)`.
    #[serde(skip)]
    pub rename: Option<(String, String)>,
}

impl Similarity {
    /// Returns true if the card knows all tensors of the checkpoint.
    pub(crate) fn is_all(&self) -> bool {
        self.of_kinds > 0 && self.n_kinds == self.of_kinds
    }

    /// Returns true if the card knows any part of the checkpoint.
    pub fn is_any(&self) -> bool {
        self.n_kinds > 0 || (self.of_kinds == 0 && self.n_config_keys > 0)
    }
}

impl fmt::Display for Similarity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { card, n_kinds, of_kinds, n_config_keys, of_config_keys, .. } = self;
        write!(f, "card `{card}`, which knows ")?;
        if *of_kinds > 0 {
            write!(f, "{n_kinds} of its {of_kinds} kinds of tensors and ")?;
        }
        write!(f, "{n_config_keys} of {of_config_keys} keys of config.json")
    }
}
