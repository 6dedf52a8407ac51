//! Draft heads: the blocks behind those of the model, which predict further tokens. `--no-mtp` leaves them out,
//! `--mtp` writes them alone.

use crate::arch::error::ArchError;
use crate::arch::eval::Scope;
use crate::arch::expr::Expr;
use crate::arch::mapping::DropReason;
use crate::arch::names::{Captures, block_of};
use crate::arch::schema::Card;

/// What becomes of the draft heads of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heads {
    /// Written with the model, where the card knows them.
    #[default]
    Kept,
    /// Left out.
    Dropped,
    /// Written without the model.
    Alone,
}

impl Heads {
    /// The option that asks for it.
    #[must_use]
    pub fn option(self) -> Option<&'static str> {
        match self {
            Self::Kept => None,
            Self::Dropped => Some("--no-mtp"),
            Self::Alone => Some("--mtp"),
        }
    }
}

/// What heads tensors keep besides their own, where a card does not say it.
pub(super) const SHARED_WITH_HEADS: [&str; 3] =
    ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"];

/// The blocks of the model itself, whatever a card counts.
const OWN_BLOCKS: &str = "first(n_layers, num_hidden_layers, n_layer, num_layers)";

/// Which tensors belong to draft heads.
pub(super) struct HeadRule<'c> {
    heads: Heads,
    /// Names that heads share with the model, after rewriting.
    shared: &'c [String],
    /// The first block that is not the model's own.
    first_block: u64,
}

impl<'c> HeadRule<'c> {
    /// The rule for a card and a configuration.
    ///
    /// # Errors
    /// The card takes neither `--mtp` nor `--no-mtp`; the configuration does not say how many blocks there are.
    pub(super) fn of(card: &'c Card, heads: Heads, scope: &Scope<'_>) -> Result<Self, ArchError> {
        let mut rule = Self { heads, shared: &card.mtp_keep, first_block: u64::MAX };
        let Some(option) = heads.option() else { return Ok(rule) };
        if !card.mtp_export {
            let why = "its models are written as a whole";
            return Err(ArchError::Option { option, card: card.name(), why });
        }
        let own = Expr::parse(OWN_BLOCKS).unwrap_or(Expr::Null);
        let failed = |source| ArchError::Eval { card: card.name(), at: format!("`{option}`"), source };
        rule.first_block = scope.count(&own, Captures::default(), &[]).map_err(failed)?;
        Ok(rule)
    }

    /// Why a tensor is left out, by its name after rewriting; `None` if it is not.
    pub(super) fn left_out(&self, name: &str) -> Option<DropReason> {
        match self.heads {
            Heads::Kept => None,
            Heads::Dropped => self.is_head(name).then_some(DropReason::DraftHead),
            Heads::Alone => {
                let stays = self.is_head(name) || self.shared.iter().any(|shared| shared == name);
                (!stays).then_some(DropReason::NotDraftHead)
            }
        }
    }

    /// The first block of which tensors are expected.
    pub(super) fn first_expected_block(&self) -> u64 {
        if self.heads == Heads::Alone { self.first_block } else { 0 }
    }

    /// Whether the model itself is expected.
    pub(super) fn expects_model(&self) -> bool {
        self.heads != Heads::Alone
    }

    /// Whether a name is one of a head, and not of the model or of what both share.
    pub(super) fn is_head(&self, name: &str) -> bool {
        name.starts_with("mtp.")
            || name.starts_with("model.mtp.")
            || block_of(name).is_some_and(|block| block >= self.first_block)
    }
}
