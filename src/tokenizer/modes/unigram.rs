//! SentencePiece models of the unigram kind (T5): `tokenizer.model` or `spiece.model`.

use crate::gguf::{Array, Value};

use super::super::TokenizerError;
use super::super::emit::TokenList;
use super::super::sentencepiece::{BPE, ModelProto, UNIGRAM, first_of};
use super::super::special::SpecialTokens;
use super::{Attempt, Context, spm};

/// Writes the keys of a unigram vocabulary. A model file of the BPE kind goes the way of `spm`.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt, TokenizerError> {
    let own: Vec<&str> = context.mode.files.iter().map(String::as_str).collect();
    let names = if own.is_empty() { vec!["tokenizer.model", "spiece.model"] } else { own };
    let Some((name, model)) = first_of(&context.directory, &names)? else {
        return Ok(Attempt::Absent(format!("{} is missing", names.join(" or "))));
    };
    let path = context.directory.join(name);
    match model.model_type() {
        UNIGRAM => {}
        BPE => return spm::write(context, &path, &model).map(|()| Attempt::Done),
        found => return Err(TokenizerError::ModelType { path, found, expected: "1 (unigram) or 2 (BPE)" }),
    }
    let mut tokens = spm::pieces(context, &path, &model)?;
    spm::set_added_tokens(context, &mut tokens)?;
    tokens.retype(context.request);
    let special = context.special(&tokens)?;
    write(context, tokens, &model, &special);
    Ok(Attempt::Done)
}

/// Writes the keys of a unigram model whose tokens are settled.
pub(super) fn write(
    context: &mut Context<'_>,
    tokens: TokenList,
    model: &ModelProto,
    special: &SpecialTokens,
) {
    tokens.write("t5", "default", context.out);
    let normalizer = model.normalizer();
    context.out.set("tokenizer.ggml.add_space_prefix", normalizer.add_dummy_prefix());
    context.out.set("tokenizer.ggml.remove_extra_whitespaces", normalizer.remove_extra_whitespaces());
    if let Some(charsmap) = normalizer.precompiled_charsmap.filter(|map| !map.is_empty()) {
        context.out.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(charsmap)));
    }
    special.write(context.out);
}
