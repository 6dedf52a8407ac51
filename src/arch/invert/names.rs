//! Names as a checkpoint has them: what can be told of the rewriting that they went through.

use crate::arch::error::ArchError;
use crate::arch::eval::Scope;
use crate::arch::names::{Captures, undo_shared_rewrite};
use crate::arch::schema::{Card, RewriteStep};

/// Blocks that the checkpoint counts apart from the others.
struct Shifted<'a> {
    there: &'a str,
    here: &'a str,
    by: u64,
}

/// Rewriting steps run backwards, as far as a name tells that it went through them: blocks counted on come back to their
/// own count, and biases of routers lose their point. Prefixes that were taken off or put on stay as the card's own names
/// have them.
pub(super) struct SourceNames<'a> {
    shifted: Vec<Shifted<'a>>,
}

impl<'a> SourceNames<'a> {
    /// # Errors
    /// [`ArchError::Eval`]: a condition or a count of the card's rewriting.
    pub(super) fn new(card: &'a Card, scope: &Scope<'_>) -> Result<Self, ArchError> {
        let failed = |source| ArchError::Eval { card: card.name(), at: "rewrite".to_owned(), source };
        let mut shifted = Vec::new();
        for rewrite in card.rewrite.iter().rev() {
            let RewriteStep::Shift(there, here, by) = &rewrite.step else { continue };
            if scope.holds(rewrite.when.as_ref(), Captures::default()).map_err(failed)? {
                let by = scope.count(by, Captures::default(), &[]).map_err(failed)?;
                shifted.push(Shifted { there, here, by });
            }
        }
        Ok(Self { shifted })
    }

    /// The name in the checkpoint of a tensor that the card knows by this one.
    pub(super) fn of(&self, name: String) -> String {
        let apart = |shifted: &Shifted<'_>| {
            let (index, rest) = name.strip_prefix(shifted.here)?.split_once('.')?;
            let index = index.parse::<u64>().ok()?.checked_sub(shifted.by)?;
            Some(format!("{}{index}.{rest}", shifted.there))
        };
        undo_shared_rewrite(self.shifted.iter().find_map(apart).unwrap_or(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_counted_on_come_back_to_their_own_count() {
        let names =
            SourceNames { shifted: vec![Shifted { there: "mtp.layers.", here: "model.layers.", by: 4 }] };
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
