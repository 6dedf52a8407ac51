//! Vocabularies of ranks by name: what their tokenizers' Python code says and no file does.

use super::TokenizerError;

/// What the code of a vocabulary of ranks says.
#[derive(Debug)]
pub(super) struct RankCode {
    name: &'static str,
    /// Name of the pre-tokenizer in llama.cpp.
    pub(super) pre: &'static str,
    /// Begins and ends a text where the files name no token of any role, and is the unknown token.
    pub(super) end_of_text: Option<&'static str>,
    /// Special tokens, in the order of their ids behind the ranks.
    named: &'static [&'static str],
    /// Further ones without a meaning, `<|extra_i|>`.
    n_extras: u64,
}

const CODES: [RankCode; 2] = [
    RankCode {
        name: "qwen",
        pre: "qwen2",
        end_of_text: Some("<|endoftext|>"),
        named: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        n_extras: 205,
    },
    // GLM-4 lists its special tokens in tokenizer_config.json.
    RankCode { name: "glm4", pre: "chatglm-bpe", end_of_text: None, named: &[], n_extras: 0 },
];

impl RankCode {
    /// The code of this name, which a card's `specials_list` gives.
    ///
    /// # Errors
    /// No name, or one that is not known.
    pub(super) fn of(name: Option<&str>) -> Result<&'static Self, TokenizerError> {
        let found = CODES.iter().find(|code| Some(code.name) == name);
        found.ok_or_else(|| TokenizerError::UnknownSpecials { name: name.unwrap_or_default().to_owned() })
    }

    /// The special tokens with their ids, behind `n_tokens` of text.
    pub(super) fn special(&self, n_tokens: u64) -> Vec<(u64, String)> {
        let named = self.named.iter().map(|&token| token.to_owned());
        let extras = (0..self.n_extras).map(|n| format!("<|extra_{n}|>"));
        (n_tokens..).zip(named.chain(extras)).collect()
    }
}
