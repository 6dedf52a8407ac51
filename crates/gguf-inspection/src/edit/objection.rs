//! Objections to a change: no reader could load the file any more, or it would describe another model.

use crate::edit::Change;
use gguf_arch::graph::GraphFeatures;
use gguf_arch::{Registry, WrongShape, check_shapes, missing_tensors};
use gguf_core::TensorMeta;
use gguf_core::similar::{distance, nearest};
use gguf_core::text::escape;
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::key_faults::key_faults;
use gguf_format::keys::{KEYS, annotation_row, key_info};
use gguf_format::number_faults::{NumberFault, number_faults};
use gguf_format::split_keys::{SPLIT_COUNT, SPLIT_ID, SPLIT_NO, SPLIT_TENSORS};
use gguf_format::{FileType, KeyFault, Metadata, Value};
use gguf_tokenizer::Encoder;

/// Keys that every reader requires, after the prefix of the architecture's name and a dot.
const NEEDED_OF_ARCH: [&str; 3] = ["context_length", "embedding_length", "block_count"];
/// Keys that every reader requires.
const NEEDED: [&str; 3] = ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"];

const FILE_TYPE: &str = "general.file_type";
const ALIGNMENT: &str = "general.alignment";
/// Smallest accepted alignment: llama.cpp stops at data that does not begin at a multiple of it.
const LEAST_ALIGNED: i128 = 32;
/// Largest accepted alignment, that of the largest memory pages.
///
/// Every tensor is padded to the alignment, so with a larger one a file is mostly padding.
const MOST_ALIGNED: i128 = 64 << 10;
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Lists with an element for each token.
const PER_TOKEN: [&str; 2] = ["tokenizer.ggml.token_type", "tokenizer.ggml.scores"];

/// Objections to a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum Objection {
    #[error(transparent)]
    Key(KeyFault),
    #[error(transparent)]
    Number(NumberFault),
    #[error("key `{}`: token {id} is beyond the vocabulary of {n_tokens}", escape(key))]
    Token { key: String, id: i128, n_tokens: usize },
    #[error("key `{key}` has {found} entries for {n_tokens} tokens")]
    PerToken { key: &'static str, found: usize, n_tokens: usize },
    #[error("key `{}` is needed by every reader", escape(key))]
    Needed { key: String },
    #[error("key `{}` is needed by architecture `{}`: {why}", escape(key), escape(arch))]
    NeededByArch { key: String, arch: String, why: String },
    #[error("key `{key}` holds the parts of the model together")]
    Split { key: String },
    #[error(
        "key `general.alignment`: {found} is no alignment of weights: a power of two from {least} to {most} expected"
    )]
    Alignment { found: i128, least: i128, most: i128 },
    #[error("the model could not be run any more: {why}")]
    Model { why: String },
    #[error("the tokenizer could not be read any more: {why}")]
    Tokenizer { why: String },
    #[error("no tensor would be left")]
    NoTensors,
    #[error("chat template `{}`: {why}", escape(name))]
    Template { name: String, why: String },
}

/// A model before and after a change.
pub(super) struct ChangedModel<'a> {
    pub(super) before: &'a Metadata,
    pub(super) after: &'a Metadata,
    /// The tensors of all parts; `None` if parts are missing.
    pub(super) tensors: Option<&'a [TensorMeta]>,
    /// The tensors after the change.
    pub(super) tensors_after: Option<&'a [TensorMeta]>,
    pub(super) changes: &'a [Change],
}

impl ChangedModel<'_> {
    /// Returns all objections to the change.
    ///
    /// Faults that existed before are not objections.
    pub(super) fn objections(&self) -> Vec<Objection> {
        let mut found = Vec::new();
        for change in self.changes {
            found.extend(self.against(change));
        }
        found.extend(self.new_faults().map(Objection::Key));
        let numbers = number_faults(self.before);
        let new = number_faults(self.after).into_iter().filter(|fault| !numbers.contains(fault));
        found.extend(new.map(Objection::Number));
        found.extend(self.tokens_beyond());
        found.extend(self.lists_of_other_length());
        if self.tensors.is_some_and(|tensors| !tensors.is_empty())
            && self.tensors_after.is_some_and(<[_]>::is_empty)
        {
            found.push(Objection::NoTensors);
        }
        // The reason is reported once: a required key is named above.
        if found.is_empty() {
            found.extend(self.graph_lost().or_else(|| self.shape_lost()));
        }
        if found.is_empty() && self.changes.iter().any(|change| change.key.starts_with("tokenizer.")) {
            found.extend(self.tokenizer_lost());
        }
        found
    }

    fn against(&self, change: &Change) -> Option<Objection> {
        let key = change.key.clone();
        if [SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS, SPLIT_ID].contains(&key.as_str()) {
            return Some(Objection::Split { key });
        }
        if key == ALIGNMENT
            && let Some(found) = change.after.as_ref().and_then(Value::as_i128)
            && !((LEAST_ALIGNED..=MOST_ALIGNED).contains(&found) && found.count_ones() == 1)
        {
            return Some(Objection::Alignment { found, least: LEAST_ALIGNED, most: MOST_ALIGNED });
        }
        match (&change.before, &change.after) {
            (Some(_), None) => self.needed(key),
            _ => None,
        }
    }

    /// Returns new type and length faults, of changed keys or of keys that depend on them.
    fn new_faults(&self) -> impl Iterator<Item = KeyFault> {
        let before = key_faults(self.before);
        key_faults(self.after).into_iter().filter(move |fault| !before.contains(fault))
    }

    /// Returns the objection to removing a key, if it is needed.
    fn needed(&self, key: String) -> Option<Objection> {
        let arch = architecture(self.before);
        let of_arch = key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.'));
        if NEEDED.contains(&key.as_str()) || of_arch.is_some_and(|name| NEEDED_OF_ARCH.contains(&name)) {
            return Some(Objection::Needed { key });
        }
        let mut without = self.before.clone();
        without.remove(&key);
        let why = match (graph(self.before, self.tensors)?.ok()?, graph(&without, self.tensors)?) {
            (_, Err(error)) => error,
            (before, Ok(after)) if before != after => {
                "without it the model computes something else".to_owned()
            }
            (_, Ok(_)) => return None,
        };
        Some(Objection::NeededByArch { key, arch: arch.to_owned(), why })
    }

    /// Returns the token ids that are beyond the vocabulary only after the change.
    fn tokens_beyond(&self) -> Vec<Objection> {
        let Some(n_tokens) = n_tokens(self.after) else { return Vec::new() };
        let beyond =
            |value: &Value, n_tokens: usize| value.as_i128().filter(|&id| id < 0 || id >= n_tokens as i128);
        let was_beyond = |key: &str| match (self.before.get(key), self::n_tokens(self.before)) {
            (Some(value), Some(n_tokens)) => beyond(value, n_tokens),
            _ => None,
        };
        self.after
            .iter()
            .filter(|(key, _)| key.ends_with("_token_id"))
            .filter_map(|(key, value)| Some((key, beyond(value, n_tokens)?)))
            .filter(|(key, id)| was_beyond(key) != Some(*id))
            .map(|(key, id)| Objection::Token { key: key.to_owned(), id, n_tokens })
            .collect()
    }

    /// Returns the lists that have an element for each token before the change, and not after it.
    fn lists_of_other_length(&self) -> impl Iterator<Item = Objection> {
        let length = |metadata: &Metadata, key: &str| Some(metadata.get(key)?.as_array()?.len());
        let contradiction = move |metadata: &Metadata, key: &str| {
            let n_tokens = n_tokens(metadata)?;
            length(metadata, key).filter(|&found| found != n_tokens).map(|found| (found, n_tokens))
        };
        PER_TOKEN.into_iter().filter_map(move |key| {
            let (found, n_tokens) = contradiction(self.after, key)?;
            contradiction(self.before, key).is_none().then_some(Objection::PerToken { key, found, n_tokens })
        })
    }

    /// Returns a tensor whose shape contradicts the keys only after the change.
    fn shape_lost(&self) -> Option<Objection> {
        let before = check_shapes(self.before, self.tensors?).wrong;
        let is_new = |wrong: &WrongShape| before.iter().all(|before| before.name != wrong.name);
        let wrong = check_shapes(self.after, self.tensors_after?).wrong.into_iter().find(is_new)?;
        Some(Objection::Model { why: format!("tensor `{}`: shape {wrong}", escape(&wrong.name)) })
    }

    fn graph_lost(&self) -> Option<Objection> {
        if missing_tensors(self.before, self.tensors?).is_none()
            && let Some(missing) = missing_tensors(self.after, self.tensors_after?)
        {
            return Some(Objection::Model { why: missing.to_string() });
        }
        graph(self.before, self.tensors)?.ok()?;
        graph(self.after, self.tensors_after)?.err().map(|why| Objection::Model { why })
    }

    fn tokenizer_lost(&self) -> Option<Objection> {
        Encoder::from_metadata(self.before).ok()?;
        Encoder::from_metadata(self.after).err().map(|error| Objection::Tokenizer { why: error.to_string() })
    }
}

/// Returns warnings about keys that are set: new ones that no runtime reads, of another architecture or with a slip in
/// their name, and a file type that does not exist.
pub fn remarks_on<'k>(
    before: &Metadata,
    after: &Metadata,
    keys: impl IntoIterator<Item = &'k str>,
) -> Vec<String> {
    let remark = |key: &'k str| match after.get(key) {
        Some(value) if key == FILE_TYPE => {
            let id = u32::try_from(value.as_u64()?).ok()?;
            FileType::from_id(id).is_none().then(|| format!("key `{key}`: no file type has the number {id}"))
        }
        Some(_) if !before.contains(key) => unread(after, key),
        _ => None,
    };
    keys.into_iter().filter_map(remark).collect()
}

fn unread(metadata: &Metadata, key: &str) -> Option<String> {
    let arch = architecture(metadata);
    if arch.is_empty() || key_info(key, arch).is_some() || annotation_row(key).is_some() {
        return None;
    }
    let (prefix, name) = key.split_once('.')?;
    let (shown, own) = (escape(key), format!("{arch}.{name}"));
    if prefix != arch && Registry::knows(prefix) {
        let instead =
            key_info(&own, arch).map_or_else(String::new, |_| format!("; its key is `{}`", escape(&own)));
        return Some(format!(
            "key `{shown}`: the file is of architecture `{}`, whose runtime does not read it{instead}",
            escape(arch)
        ));
    }
    match similar_key(key, arch) {
        Some(known) => {
            Some(format!("key `{shown}`: no runtime reads it; did you mean `{}`?", escape(&known)))
        }
        None => (prefix == arch).then(|| format!("key `{shown}`: llama.cpp does not read it")),
    }
}

/// Returns the well-known key, of a file of architecture `arch`, whose name is most similar; `None` if none is.
fn similar_key(key: &str, arch: &str) -> Option<String> {
    // One character in four may be wrong: other keys are somebody's own.
    let is_near = |known: &String| distance(key, known) * 4 <= key.len().max(known.len());
    let own: Vec<String> = KEYS.iter().map(|row| row.pattern.replace("{arch}", arch)).collect();
    let known = own.iter().map(String::as_str).filter(|known| !known.contains('{'));
    nearest(key, known).map(str::to_owned).filter(is_near)
}

/// Returns the engine's plan of the model, or its error; `None` if the tensors are not known.
fn graph(metadata: &Metadata, tensors: Option<&[TensorMeta]>) -> Option<Result<GraphPlan, String>> {
    let tensors = tensors?;
    let arch = architecture(metadata);
    let Some(features) = GraphFeatures::of(arch) else {
        return Some(Err(format!("architecture `{}` has no card", escape(arch))));
    };
    let plan = GraphPlan::new(&features, metadata, tensors);
    Some(plan.map_err(|error: EngineError| error.to_string()))
}

fn architecture(metadata: &Metadata) -> &str {
    metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default()
}

fn n_tokens(metadata: &Metadata) -> Option<usize> {
    Some(metadata.get(TOKENS)?.as_array()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nothing_reads_are_told() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        let found = |key: &str| unread(&metadata, key).unwrap_or_default();
        for read in
            ["llama.block_count", "general.name", "general.base_model.0.name", "tokenizer.chat_template.rag"]
        {
            assert_eq!(found(read), "");
        }
        for own in ["mine.note", "general.our_internal_note", "note", "gguf_foundry.attention.scale"] {
            assert_eq!(found(own), "");
        }
        assert!(
            found("qwen3.block_count").contains("architecture `llama`")
                && found("qwen3.block_count").contains("its key is `llama.block_count`")
        );
        assert!(found("gemma3.foo").ends_with("does not read it"));
        assert!(found("lama.block_count").ends_with("did you mean `llama.block_count`?"));
        assert!(found("tokenizer.ggml.eos_tokenid").contains("`tokenizer.ggml.eos_token_id`"));
        assert!(found("llama.zebra").contains("llama.cpp does not read it"));
    }

    #[test]
    fn values_that_no_loader_takes_are_objections() {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "qwen3");
        metadata.set("qwen3.rope.freq_base", 1e6f32);
        metadata.set("general.file_type", 7u32);
        let found = |key: &str, value: Value| {
            let change = Change {
                key: key.to_owned(),
                before: metadata.get(key).cloned(),
                after: Some(value.clone()),
            };
            let mut after = metadata.clone();
            after.set(key, value);
            let (changes, tensors) = ([change], None);
            let case = ChangedModel {
                before: &metadata,
                after: &after,
                tensors,
                tensors_after: None,
                changes: &changes,
            };
            case.objections().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert!(
            found("qwen3.rope.freq_base", 0f32.into()).contains("is 0, not a finite number of more than 0")
        );
        let mut after = metadata.clone();
        for (id, is_known) in [(15u32, true), (999, false)] {
            after.set(FILE_TYPE, id);
            let remarks = remarks_on(&metadata, &after, [FILE_TYPE, "qwen3.rope.freq_base"]);
            assert_eq!(remarks.is_empty(), is_known, "{remarks:?}");
        }
        assert_eq!(found("qwen3.rope.freq_base", 10000f32.into()), "");
    }
}
