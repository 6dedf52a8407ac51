//! Restores the names of a checkpoint from those after rewriting, as far as possible.

use crate::Result;
use crate::error::ArchError;
use crate::language::eval::Scope;
use crate::language::names::{Captures, undo_shared_rewrite};
use crate::read::schema::{Card, RewriteStep};

/// Blocks that the checkpoint numbers separately from the others.
struct Shifted<'a> {
    checkpoint_prefix: &'a str,
    card_prefix: &'a str,
    offset: u64,
}

/// Inverse rewriting steps, as far as a name shows that they were applied. Shifted blocks get their own numbers back,
/// and biases of routers lose their dot. Removed or added prefixes stay as in the card's names.
pub(super) struct SourceNames<'a> {
    shifted: Vec<Shifted<'a>>,
}

impl<'a> SourceNames<'a> {
    /// Collects the shifts of the card's rewriting.
    pub(super) fn new(card: &'a Card, scope: &Scope<'_>) -> Result<Self> {
        let failed = |source| ArchError::Eval { card: card.name(), at: "rewrite".to_owned(), source };
        let mut shifted = Vec::new();
        for rewrite in card.rewrite.iter().rev() {
            let RewriteStep::Shift(checkpoint_prefix, card_prefix, offset) = &rewrite.step else { continue };
            if scope.holds(rewrite.when.as_ref(), Captures::default()).map_err(failed)? {
                let offset = scope.count(offset, Captures::default(), &[]).map_err(failed)?;
                shifted.push(Shifted { checkpoint_prefix, card_prefix, offset });
            }
        }
        Ok(Self { shifted })
    }

    /// Returns the checkpoint's name of a tensor from the card's name.
    pub(super) fn of(&self, name: String) -> String {
        let apart = |shifted: &Shifted<'_>| {
            let (index, rest) = name.strip_prefix(shifted.card_prefix)?.split_once('.')?;
            let index = index.parse::<u64>().ok()?.checked_sub(shifted.offset)?;
            Some(format!("{}{index}.{rest}", shifted.checkpoint_prefix))
        };
        undo_shared_rewrite(self.shifted.iter().find_map(apart).unwrap_or(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_counted_on_come_back_to_their_own_count() {
        let names = SourceNames {
            shifted: vec![Shifted {
                checkpoint_prefix: "mtp.layers.",
                card_prefix: "model.layers.",
                offset: 4,
            }],
        };
        for (name, want) in [
            ("model.layers.4.input_layernorm.weight", "mtp.layers.0.input_layernorm.weight"),
            ("model.layers.3.input_layernorm.weight", "model.layers.3.input_layernorm.weight"),
            (
                "model.layers.15.mlp.gate.e_score_correction.bias",
                "mtp.layers.11.mlp.gate.e_score_correction_bias",
            ),
            ("model.layers.x.weight", "model.layers.x.weight"),
            ("model.norm.weight", "model.norm.weight"),
        ] {
            assert_eq!(names.of(name.to_owned()), want);
        }
    }
}
