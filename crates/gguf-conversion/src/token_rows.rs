//! Padding of the token list to the embedding's rows: runtimes load no file in which the two numbers differ.

use gguf_arch::{CardKind, EMBEDDING, Mapping, TensorContent, embeds_all_tokens};
use gguf_core::WeightMeta;
use gguf_core::text::escape;
use gguf_format::{Array, Metadata, Value};

/// Key of the token list; a mapping also lists the origin of its length under this name.
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
/// Token type of a row without a token; `PAD_SCORE` is its score.
const UNUSED: i32 = 5;
const PAD_SCORE: f32 = -10000.0;

/// Returns the number of rows of the embedding, if each row needs a token.
pub(super) fn rows(mapping: &Mapping) -> Option<u64> {
    let is_of_text = mapping.card.kind == CardKind::Text && embeds_all_tokens(&mapping.card.gguf);
    let embedding = mapping.outputs.iter().find(|output| output.name == EMBEDDING).filter(|_| is_of_text)?;
    embedding.shape.dims().first().copied()
}

/// Sets the number of tokens to the embedding's rows, regardless of the configuration. Returns a warning if the
/// configuration contradicts its own weights.
pub(super) fn settle(mapping: &mut Mapping, weights: &[WeightMeta]) -> Option<String> {
    let rows = rows(mapping)?;
    let key = format!("{}.vocab_size", mapping.card.gguf);
    if mapping.metadata.get(&key).and_then(Value::as_u64).is_some_and(|size| size != rows) {
        mapping.metadata.set(key, u32::try_from(rows).ok()?);
    }
    mapping.tokenizer.rows = Some(rows);
    let asked = mapping.tokenizer.size.replace(rows);
    mapping.tokenizer.pad_multiple = None;
    let origin = mapping.origins.get(TOKENS)?.iter().find(|origin| origin.stated.is_some())?;
    let stated = origin.stated.as_ref()?.as_u64()?;
    let source = source(mapping, weights)?;
    // No warning if the card itself cuts or pads rows that agree with the configuration.
    let in_weights = source.shape.dims().first().copied()?;
    (asked != Some(rows) && stated != in_weights).then(|| {
        format!(
            "config.json: `{}` is {stated}, `{}` has {in_weights} rows: the vocabulary has {rows} tokens",
            escape(&origin.key),
            escape(&source.name)
        )
    })
}

/// Returns the weight that the embedding is made of, if there is exactly one.
fn source<'w>(mapping: &Mapping, weights: &'w [WeightMeta]) -> Option<&'w WeightMeta> {
    let embedding = mapping.outputs.iter().find(|output| output.name == EMBEDDING)?;
    match &embedding.content {
        TensorContent::Sources(assembly) => match assembly.sources.as_slice() {
            [one] => weights.get(one.weight),
            _ => None,
        },
        _ => None,
    }
}

/// Adds unused tokens `[PADi]` to a vocabulary with fewer tokens than the embedding has rows.
pub(super) fn fill(keys: &mut Metadata, rows: u64) {
    let Some(Value::Array(Array::String(tokens))) = keys.get(TOKENS) else { return };
    let n = tokens.len();
    let Some(wanted) = usize::try_from(rows).ok().filter(|&wanted| wanted > n) else { return };
    let mut tokens = tokens.clone();
    tokens.extend((n..wanted).map(|id| format!("[PAD{id}]").into_bytes()));
    keys.set(TOKENS, Value::Array(Array::String(tokens)));
    if let Some(Value::Array(Array::F32(scores))) = keys.get(SCORES) {
        let mut scores = scores.clone();
        scores.resize(wanted, PAD_SCORE);
        keys.set(SCORES, scores);
    }
    if let Some(Value::Array(Array::I32(types))) = keys.get(TYPES) {
        let mut types = types.clone();
        types.resize(wanted, UNUSED);
        keys.set(TYPES, types);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_token_get_an_unused_one() {
        let mut keys = Metadata::new();
        keys.set(TOKENS, Value::Array(Array::String(vec![b"a".to_vec()])));
        keys.set(SCORES, vec![0.5f32]);
        keys.set(TYPES, vec![1i32]);
        fill(&mut keys, 3);
        let tokens = keys.get(TOKENS).and_then(Value::as_array).cloned();
        assert_eq!(tokens, Some(Array::String(vec![b"a".to_vec(), b"[PAD1]".to_vec(), b"[PAD2]".to_vec()])));
        assert_eq!(keys.get(SCORES), Some(&Value::from(vec![0.5f32, PAD_SCORE, PAD_SCORE])));
        assert_eq!(keys.get(TYPES), Some(&Value::from(vec![1i32, UNUSED, UNUSED])));
        fill(&mut keys, 2);
        assert_eq!(keys.get(TOKENS).and_then(Value::as_array).map(Array::len), Some(3));
    }
}
