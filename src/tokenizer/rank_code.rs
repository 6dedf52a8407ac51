//! What the Python code of vocabularies of ranks says and no file does.

use super::RankCode;

/// What the code of a vocabulary of ranks says.
#[derive(Debug)]
pub(super) struct CodeFacts {
    /// Name of the pre-tokenizer in llama.cpp.
    pub(super) pre: &'static str,
    /// Begins and ends a text where the files name no token of any role, and is the unknown token.
    pub(super) end_of_text: Option<&'static str>,
    /// Special tokens, in the order of their ids behind the ranks.
    named: &'static [&'static str],
    /// Further ones without a meaning, `<|extra_i|>`.
    n_extras: u64,
}

const QWEN: CodeFacts = CodeFacts {
    pre: "qwen2",
    end_of_text: Some("<|endoftext|>"),
    named: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    n_extras: 205,
};

/// GLM-4 lists its special tokens in tokenizer_config.json.
const GLM4: CodeFacts = CodeFacts { pre: "chatglm-bpe", end_of_text: None, named: &[], n_extras: 0 };

impl CodeFacts {
    pub(super) fn of(code: RankCode) -> &'static Self {
        match code {
            RankCode::Qwen => &QWEN,
            RankCode::Glm4 => &GLM4,
        }
    }

    /// The special tokens with their ids, behind `n_tokens` of text.
    pub(super) fn special(&self, n_tokens: u64) -> Vec<(u64, String)> {
        let named = self.named.iter().map(|&token| token.to_owned());
        let extras = (0..self.n_extras).map(|n| format!("<|extra_{n}|>"));
        (n_tokens..).zip(named.chain(extras)).collect()
    }
}
