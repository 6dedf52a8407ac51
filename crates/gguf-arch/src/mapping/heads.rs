//! Draft heads: the blocks after those of the model, which predict further tokens (MTP). `--no-mtp` leaves them out,
//! `--mtp` writes them alone.
//!
//! A configuration may count heads that are not stored: transformers drops the tensors on saving and leaves the count
//! unchanged. In this case, and under `--no-mtp`, the card sees a configuration without the count.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::error::ArchError;
use crate::error::warning::ArchWarning;
use crate::language::eval::Scope;
use crate::language::expr::Expr;
use crate::language::names::{self, Captures, block_of};
use crate::mapping::DropReason;
use crate::read::schema::{Card, CardKind};
use crate::read::{is_multimodal, visit};

/// Treatment of the draft heads of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftHeads {
    /// Written with the model, if the card maps them.
    #[default]
    Kept,
    /// Left out.
    Dropped,
    /// Written without the model.
    Alone,
}

impl DraftHeads {
    /// Returns the option that selects this treatment.
    pub fn option(self) -> Option<&'static str> {
        match self {
            Self::Kept => None,
            Self::Dropped => Some("--no-mtp"),
            Self::Alone => Some("--mtp"),
        }
    }
}

/// Keys of `config.json` that count the model's own blocks, regardless of the card. The first present key is used.
const OWN_COUNTS: [&str; 5] =
    ["n_layers", "num_hidden_layers", "n_layer", "num_layers", "num_transformer_layers"];

/// Keys of `config.json` that count draft heads.
const COUNTS: [&str; 8] = [
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "num_mtp_modules",
    "num_nextn_layers",
    "n_mtp_layers",
    "num_mtp_heads",
];

/// Returns the first key that counts heads, and the number of heads.
fn counted(config: &Map<String, Json>) -> Option<(&'static str, u64)> {
    COUNTS.into_iter().find_map(|key| {
        let n = config.get(key).and_then(Json::as_u64).filter(|&n| n > 0)?;
        Some((key, n))
    })
}

/// Returns the number of draft heads that the configuration counts.
pub(crate) fn stated_heads(config: &Map<String, Json>) -> u64 {
    counted(config).map_or(0, |(_, n)| n)
}

/// Returns the number of the model's own blocks and its key, if the configuration declares it.
pub(crate) fn own_blocks_key(config: &Map<String, Json>) -> Option<(&'static str, u64)> {
    OWN_COUNTS.into_iter().find_map(|key| Some((key, config.get(key).and_then(Json::as_u64)?)))
}

fn own_blocks(config: &Map<String, Json>) -> Option<u64> {
    own_blocks_key(config).map(|(_, n)| n)
}

/// Returns true if a checkpoint stores a tensor of a draft head.
fn is_stored(config: &Map<String, Json>, tensors: &mut dyn Iterator<Item = &str>) -> bool {
    let first_block = own_blocks(config).unwrap_or(u64::MAX);
    let mut names = tensors.filter(|name| !is_multimodal(name));
    names.any(|name| is_of_head(&names::shared_rewrite(name), first_block))
}

/// Returns true for the name of a tensor of a head, judged by its prefix or its block.
fn is_of_head(name: &str, first_block: u64) -> bool {
    let own = name.strip_prefix("model.").unwrap_or(name);
    own.starts_with("mtp.")
        || own.starts_with("mtp_")
        || block_of(name).is_some_and(|block| block >= first_block)
}

/// Returns true if a checkpoint stores draft heads that can be written to a file of their own. `config` is that of the
/// checkpoint, and `tensors` are all names of its tensors.
pub fn exports_heads(
    card: &Card,
    config: &Map<String, Json>,
    tensors: &mut dyn Iterator<Item = &str>,
) -> bool {
    let text = config.get("text_config").and_then(Json::as_object).unwrap_or(config);
    card.mtp_export && counted(text).is_some() && is_stored(text, tensors)
}

/// Removes the count of heads from the configuration if the file is to have none, and returns a warning if the user did
/// not ask for that. `tensors` are all names of the checkpoint; it is empty if only the configuration is known.
pub(crate) fn settle(
    card: &Card,
    heads: DraftHeads,
    config: &mut Map<String, Json>,
    tensors: &mut dyn Iterator<Item = &str>,
) -> Option<ArchWarning> {
    let (key, n) = counted(config).filter(|_| card.kind == CardKind::Text)?;
    let mut tensors = tensors.peekable();
    match heads {
        DraftHeads::Alone => return None,
        DraftHeads::Kept if tensors.peek().is_none() || is_stored(config, &mut tensors) => return None,
        DraftHeads::Dropped | DraftHeads::Kept => {}
    }
    let warning = ArchWarning::HeadsNotStored { key, n, first_block: own_blocks(config) };
    let is_told = heads == DraftHeads::Kept && COUNTS.iter().any(|key| visit::mentions(card, key));
    for key in COUNTS {
        config.remove(key);
    }
    is_told.then_some(warning)
}

/// Rule that tells which tensors belong to draft heads.
pub(crate) struct HeadRule<'c> {
    heads: DraftHeads,
    /// Names that heads share with the model, after rewriting.
    shared: &'c [String],
    /// The first block that is not the model's own.
    first_block: u64,
}

impl<'c> HeadRule<'c> {
    /// Returns the rule for a card and a configuration. `config` is that of the checkpoint, with all heads that it
    /// counts.
    ///
    /// # Errors
    /// The model has no heads to leave out, or none to write alone; or the configuration does not declare the number of
    /// blocks.
    pub(crate) fn of(
        card: &'c Card,
        heads: DraftHeads,
        config: &Map<String, Json>,
        scope: &Scope<'_>,
    ) -> Result<Self> {
        let mut rule = Self { heads, shared: &card.mtp_keep, first_block: u64::MAX };
        let Some(option) = heads.option() else { return Ok(rule) };
        let text = config.get("text_config").and_then(Json::as_object);
        let can_lack = || {
            let is_counted = [Some(config), text].into_iter().flatten().any(|part| counted(part).is_some());
            card.kind == CardKind::Text
                && (is_counted || is_stored(&scope.config, &mut scope.tensors.iter().copied()))
        };
        if !card.mtp_export && (heads == DraftHeads::Alone || !can_lack()) {
            let why = "its models are written as a whole";
            return Err(ArchError::Option { option, card: card.name(), why });
        }
        let own = Expr::parse(&format!("first({})", OWN_COUNTS.join(", "))).unwrap_or(Expr::Null);
        let failed = |source| ArchError::Eval { card: card.name(), at: format!("`{option}`"), source };
        rule.first_block = scope.count(&own, Captures::default(), &[]).map_err(failed)?;
        Ok(rule)
    }

    /// Returns the reason to leave a tensor out, by its name after rewriting; `None` if it is kept.
    pub(crate) fn left_out(&self, name: &str) -> Option<DropReason> {
        match self.heads {
            DraftHeads::Kept => None,
            DraftHeads::Dropped => self.is_head(name).then_some(DropReason::DraftHead),
            DraftHeads::Alone => {
                let stays = self.is_head(name) || self.shared.iter().any(|shared| shared == name);
                (!stays).then_some(DropReason::NotDraftHead)
            }
        }
    }

    /// Returns the first block whose tensors are expected.
    pub(crate) fn first_expected_block(&self) -> u64 {
        if self.heads == DraftHeads::Alone { self.first_block } else { 0 }
    }

    /// Returns true if the model's own tensors are expected.
    pub(crate) fn expects_model(&self) -> bool {
        self.heads != DraftHeads::Alone
    }

    /// Returns true for a name of a head, as opposed to one of the model or one that both share.
    pub(crate) fn is_head(&self, name: &str) -> bool {
        is_of_head(name, self.first_block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(json: &Json) -> Map<String, Json> {
        json.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn heads_are_known_by_name_or_block() {
        let config = object(&json!({"num_hidden_layers": 3}));
        let is_stored = |name: &str| is_stored(&config, &mut [name].into_iter());
        for name in [
            "mtp.fc.weight",
            "model.mtp.layers.0.x",
            "model.mtp_block.0.x",
            "model.layers.3.eh_proj.weight",
            "model.language_model.layers.4.x",
        ] {
            assert!(is_stored(name), "{name}");
        }
        for name in ["model.layers.2.x", "visual.blocks.7.x", "model.visual.blocks.7.x", "lm_head.weight"] {
            assert!(!is_stored(name), "{name}");
        }
    }

    #[test]
    fn a_count_without_tensors_is_none() {
        let registry = crate::Registry::embedded().unwrap();
        let card = registry.by_gguf("glm4moe").unwrap();
        let settled = |heads, names: &[&'static str]| {
            let mut config = object(&json!({"num_hidden_layers": 3, "num_nextn_predict_layers": 1}));
            let warning = settle(card, heads, &mut config, &mut names.iter().copied());
            (config.contains_key("num_nextn_predict_layers"), warning.is_some())
        };
        let (model, head) = ("model.layers.0.x", "model.layers.3.x");
        assert_eq!(settled(DraftHeads::Kept, &[model]), (false, true));
        assert_eq!(settled(DraftHeads::Kept, &[model, head]), (true, false));
        assert_eq!(settled(DraftHeads::Kept, &[]), (true, false));
        assert_eq!(settled(DraftHeads::Dropped, &[model, head]), (false, false));
        assert_eq!(settled(DraftHeads::Alone, &[model]), (true, false));
    }
}
