//! Roles of special tokens, checked after the keys of a vocabulary are written. Roles without a key are filled in from
//! the next file that has them, and contradictions between files and keys are reported.
//!
//! All modes pass through this module, so that no contradiction between files is resolved silently.

mod claims;

use crate::Result;
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};

use super::account::Around;
use super::emit::TokenType;
use super::encode::{Vocab, ends_generation};
use super::files::{CONFIG, Directory};
use super::hf_json::HfJson;
use super::special::id_key;
use super::{TokenizerRequest, TokenizerWarning};

use claims::{Claim, GENERATION_CONFIG, MODEL_CONFIG, Rejection, RoleFiles};

const ROLES: [&str; 6] = ["bos", "eos", "unk", "sep", "pad", "mask"];
/// Roles without which the model runs differently from its training.
const NEEDED: [&str; 2] = ["bos", "eos"];
/// Keys of tokens at which the runtime ends a text, in addition to `eos`.
const MORE_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Fills in roles without a key, and reports contradictions between files and keys.
pub(super) fn settle(
    directory: &Directory<'_>,
    hf: Option<&HfJson>,
    request: &TokenizerRequest,
    rows: &mut Metadata,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<()> {
    // No tokens, or a kind of vocabulary without roles.
    let Ok(vocab) = Vocab::from_metadata(rows) else { return Ok(()) };
    let sources = RoleFiles::read(directory)?;
    let is_by_hand = |key: &str| request.by_hand.iter().any(|own| own == key);
    let is_prescribed = |role: &str| request.force.iter().chain(&request.last).any(|own| own.0 == role);
    let mut differing = Vec::new();
    for role in ROLES {
        let claims = sources.claims(role, &vocab, hf);
        let is_read = request.types.as_ref().is_none_or(|types| types.iter().any(|own| own == role));
        let Some(key) = id_key(role).filter(|key| is_read && !is_by_hand(key)) else { continue };
        if !rows.contains(key) {
            let found = next_source(role, &claims, &vocab, hf.is_some());
            if let Some(id) = found.or_else(|| unknown_piece(role, &vocab)) {
                rows.set(key, id);
            }
        }
        let roles = DeclaredRole { name: role, claims: &claims, vocab: &vocab, rows };
        warnings.extend(roles.rejected(key));
        if !is_prescribed(role) {
            differing.extend(roles.differing(key));
        }
        if role == "eos" {
            warnings.extend(roles.no_end(key));
            if !MORE_ENDS.iter().any(|key| is_by_hand(key)) {
                warnings.extend(roles.further_ends(key));
            }
        }
    }
    if !differing.is_empty() {
        warnings.push(TokenizerWarning::RolesDiffer { roles: differing });
    }
    // A step that is not known is reported with the other steps.
    let around = hf.and_then(|hf| Around::of(&hf.post_processor).ok());
    flags(&sources, around.as_ref(), &is_by_hand, rows, warnings);
    Ok(())
}

/// Returns the token for a role without a key. The generation configuration takes precedence over the model's, and that
/// over the tokenizer's. `None` if the runtime takes the token by default.
fn next_source(role: &str, claims: &[Claim], vocab: &Vocab, has_hf: bool) -> Option<u32> {
    let of = |file: Option<&str>| {
        let claim = claims.iter().find(|claim| match file {
            Some(file) => claim.file == file,
            None => ![GENERATION_CONFIG, MODEL_CONFIG].contains(&claim.file),
        })?;
        claim.ids.iter().copied().find(|&id| vocab.kind(id) != TokenType::Unused)
    };
    if !NEEDED.contains(&role) {
        // ref: vocabularies other than those of `tokenizer.json` have these roles only from `config.json`, and a token
        // of tokenizer_config.json that the reference did not find gets no key.
        let first = claims.iter().find(|claim| ![GENERATION_CONFIG, MODEL_CONFIG].contains(&claim.file));
        let is_fillable = has_hf && first.is_some_and(|claim| claim.file != CONFIG);
        return of(Some(MODEL_CONFIG)).or_else(|| of(None).filter(|_| is_fillable));
    }
    let default = if role == "bos" { vocab.bos } else { vocab.eos };
    let is_default = |id: u32| default == Some(id) && is_meant(id, vocab);
    let found = of(Some(GENERATION_CONFIG)).or_else(|| of(Some(MODEL_CONFIG))).or_else(|| of(None));
    found.filter(|&id| !is_default(id))
}

/// Returns the token for unknown text by its type, if the runtime takes another one by default.
///
/// # Exactness
/// llama.cpp 0.5.0's converter writes no such key.
fn unknown_piece(role: &str, vocab: &Vocab) -> Option<u32> {
    let is_unknown = |id: &u32| vocab.kind(*id) == TokenType::Unknown;
    let default = vocab.unk.filter(|_| role == "unk").filter(|id| !is_unknown(id))?;
    (0..=u32::MAX).take(vocab.len()).find(is_unknown).filter(|id| *id != default)
}

/// Returns true if a default token of the runtime is meant for this kind of vocabulary.
fn is_meant(default: u32, vocab: &Vocab) -> bool {
    !vocab.has_arbitrary_defaults() && vocab.kind(default) == TokenType::Control
}

/// One role, as declared by the files and the keys.
struct DeclaredRole<'a> {
    name: &'a str,
    claims: &'a [Claim],
    vocab: &'a Vocab,
    rows: &'a Metadata,
}

impl DeclaredRole<'_> {
    fn written(&self, key: &str) -> Option<u32> {
        self.rows.get(key).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
    }

    /// Formats a token for messages: its id and its text.
    fn token(&self, id: u32) -> String {
        shown(self.vocab, id)
    }

    /// Returns a warning about values of the files that are not tokens.
    fn rejected(&self, key: &str) -> Option<TokenizerWarning> {
        let mut found: Vec<(String, Rejection, &str, Vec<&str>)> = Vec::new();
        for claim in self.claims {
            for (value, why) in &claim.rejected {
                let same = |row: &&mut (String, Rejection, &str, Vec<&str>)| {
                    (&row.0, row.1, row.2) == (value, *why, claim.key.as_str())
                };
                match found.iter_mut().find(same) {
                    Some(row) => row.3.push(claim.file),
                    None => found.push((value.clone(), *why, &claim.key, vec![claim.file])),
                }
            }
        }
        if found.is_empty() {
            return None;
        }
        let values = found.iter().map(|(value, why, key, files)| {
            let files = files.join(" and ");
            let why = match why {
                Rejection::NoSuchText => "which no token of the vocabulary is".to_owned(),
                Rejection::Negative => "which is no token id".to_owned(),
                Rejection::Beyond => format!("beyond the vocabulary of {} tokens", self.vocab.len()),
                Rejection::Kind => "which is neither a token id nor a list of them".to_owned(),
            };
            format!("{files}: `{key}` is {value}, {why}")
        });
        let values = values.collect::<Vec<_>>().join("; ");
        let outcome = match self.written(key) {
            Some(id) => format!("`{key}` is {}", self.token(id)),
            None => format!("left out, `{key}` is not written"),
        };
        Some(TokenizerWarning::RoleWithoutToken { values, outcome })
    }

    /// Describes a role for which files declare different tokens.
    fn differing(&self, key: &str) -> Option<String> {
        let written = self.written(key)?;
        let source = match self.claims.iter().find(|claim| claim.ids.contains(&written)) {
            Some(claim) => format!("in {} (`{}`)", claim.file, claim.key),
            None => "by tokenizer.json or the kind of vocabulary".to_owned(),
        };
        let is_written = |id: &u32| *id == written || self.is_further_end(*id);
        let others: Vec<String> = self
            .claims
            .iter()
            .filter(|claim| !claim.ids.is_empty() && !claim.ids.iter().any(is_written))
            .map(|claim| format!("{} in {} (`{}`)", self.tokens(&claim.ids), claim.file, claim.key))
            .collect();
        if others.is_empty() {
            return None;
        }
        let token = self.token(written);
        Some(format!("`{}` is {token} {source}, not {}", self.name, others.join(", not ")))
    }

    fn tokens(&self, ids: &[u32]) -> String {
        ids.iter().map(|&id| self.token(id)).collect::<Vec<_>>().join(" or ")
    }

    /// Returns true if a key other than that of `eos` makes the runtime end at a token.
    fn is_further_end(&self, id: u32) -> bool {
        self.name == "eos" && MORE_ENDS.iter().any(|key| self.written(key) == Some(id))
    }

    /// Returns a warning about a model without an end token.
    fn no_end(&self, key: &str) -> Option<TokenizerWarning> {
        if self.rows.contains(key) || self.vocab.is_of_encoder() {
            return None;
        }
        let consequence = match self.vocab.eos {
            // The runtime's default is right for the vocabularies that it was made for.
            Some(id) if is_meant(id, self.vocab) => return None,
            Some(id) => format!("llama.cpp takes token {}", self.token(id)),
            None => "llama.cpp ends only at tokens that it knows by their text".to_owned(),
        };
        Some(TokenizerWarning::NoEndToken { consequence })
    }

    /// Returns a warning about tokens at which transformers ends a text but the runtime does not.
    fn further_ends(&self, key: &str) -> Option<TokenizerWarning> {
        let default = || self.vocab.eos.filter(|&id| is_meant(id, self.vocab));
        let end = self.written(key).or_else(default)?;
        let claim = [GENERATION_CONFIG, MODEL_CONFIG]
            .iter()
            .find_map(|file| self.claims.iter().find(|claim| claim.file == *file && !claim.ids.is_empty()))?;
        if !claim.ids.contains(&end) {
            return None;
        }
        let is_unknown = |id: &&u32| {
            **id != end
                && !self.is_further_end(**id)
                && self.vocab.kind(**id) != TokenType::Unused
                && !self.vocab.token(**id).is_some_and(ends_generation)
        };
        let ids: Vec<u32> = claim.ids.iter().filter(is_unknown).copied().collect();
        let tokens = self.tokens(&ids);
        (!ids.is_empty()).then_some(TokenizerWarning::FurtherEnds { file: claim.file, tokens })
    }
}

/// Formats a token for messages: its id and its text.
fn shown(vocab: &Vocab, id: u32) -> String {
    let text = String::from_utf8_lossy(vocab.token(id).unwrap_or_default()).into_owned();
    format!("{id} `{}`", escape(&text))
}

/// Checks the flags that add a token to texts. `around` are the tokens of `tokenizer.json`, by which alone transformers 5
/// adds some: it reads no flag of the configuration then. A missing token cannot be added, and contradictions are reported.
fn flags(
    sources: &RoleFiles,
    around: Option<&Around>,
    is_by_hand: &dyn Fn(&str) -> bool,
    rows: &mut Metadata,
    warnings: &mut Vec<TokenizerWarning>,
) {
    let Ok(vocab) = Vocab::from_metadata(rows) else { return };
    for (role, token, adds) in [("bos", vocab.bos, vocab.add_bos), ("eos", vocab.eos, vocab.add_eos)] {
        let Some(key) = id_key(role) else { continue };
        let flag = format!("tokenizer.ggml.add_{role}_token");
        if is_by_hand(&flag) || is_by_hand(key) {
            continue;
        }
        let name = format!("add_{role}_token");
        let declared = sources.tokenizer.get(&name).and_then(serde_json::Value::as_bool);
        let of_json = around
            .map(|around| if role == "bos" { &around.before } else { &around.after })
            .map(|ids| !ids.is_empty());
        if adds
            && of_json == Some(false)
            && declared.is_none()
            && vocab.is_of_pieces()
            && !rows.contains(&flag)
        {
            rows.set(flag, false);
            continue;
        }
        // A default token that has another role is not that of a model without one.
        let has_other_role = |id: u32| {
            let keys = ["bos", "eos", "unk"].into_iter().filter_map(id_key);
            keys.filter_map(|key| rows.get(key)?.as_u64()).any(|own| own == u64::from(id))
        };
        let is_absent = token.is_none_or(|id| vocab.has_arbitrary_defaults() || has_other_role(id));
        if adds && !rows.contains(key) && is_absent {
            let default = token.map(|id| shown(&vocab, id));
            warnings.push(TokenizerWarning::AddsNoToken { flag: flag.clone(), key, default });
            rows.set(flag, false);
            continue;
        }
        let Some(declared) = declared.filter(|_| !vocab.is_bare()) else { continue };
        if of_json.is_some_and(|of_json| of_json != declared) {
            warnings.push(TokenizerWarning::FlagIgnored {
                file: CONFIG,
                name,
                flag,
                declared,
                written: adds,
            });
        } else if declared != adds {
            warnings.push(TokenizerWarning::FlagsDiffer { file: CONFIG, name, flag, written: adds });
        }
    }
}
