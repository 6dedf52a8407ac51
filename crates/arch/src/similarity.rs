//! Similarity of a checkpoint to the models of a card.

use std::fmt;

/// Amount of a checkpoint that a card knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Similarity {
    /// `general.architecture` of the card.
    pub card: String,
    /// Kinds of tensors (names without numbers): those that the card's entries match, and all.
    pub kinds: [usize; 2],
    /// Configuration keys: those that the card reads, and all that may matter.
    pub config: [usize; 2],
    /// True if the card has defaults for the checkpoint's `model_type`, or is named like it.
    pub is_model_type: bool,
    /// Replacement of the checkpoint's block prefix that makes its names match: `(from, to)`.
    pub rename: Option<(String, String)>,
}

impl Similarity {
    /// Returns true if the card knows any part of the checkpoint.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.kinds[0] > 0 || (self.kinds[1] == 0 && self.config[0] > 0)
    }
}

impl fmt::Display for Similarity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([kinds, of_kinds], [keys, of_keys]) = (self.kinds, self.config);
        write!(f, "card `{}`, which knows ", self.card)?;
        if of_kinds > 0 {
            write!(f, "{kinds} of its {of_kinds} kinds of tensors and ")?;
        }
        write!(f, "{keys} of {of_keys} keys of config.json")
    }
}
