//! Facts about rank vocabularies that only their Python code contains.

use super::RankCode;

/// Facts from the code of a rank vocabulary.
#[derive(Debug)]
pub(super) struct CodeFacts {
    /// Name of the pre-tokenizer in llama.cpp.
    pub(super) pre: &'static str,
    pub(super) file: &'static str,
    /// Token that starts and ends a text if the files name no token of any role; also the unknown token.
    pub(super) end_of_text: Option<&'static str>,
    /// True if a token that no merge of lower ranks makes has no merge, instead of being an error.
    pub(super) skips_unreachable: bool,
    /// True if `added_tokens_decoder` of the tokenizer's configuration names special tokens.
    pub(super) reads_config: bool,
    /// End token if the configuration names none; it overrides the id in `config.json`.
    pub(super) own_end: Option<&'static str>,
    /// Number of ids that are skipped between the ranks and the special tokens.
    gap: u64,
    /// Special tokens, in the order of their ids after the ranks.
    named: &'static [&'static str],
    /// Further special tokens without a meaning.
    extras: ExtraTokens,
}

/// Special tokens without a meaning, after those that have one.
#[derive(Clone, Copy, Debug)]
enum ExtraTokens {
    /// `<|extra_i|>`, counted from 0.
    Counted(u64),
    /// `<|reserved_token_i|>`, where `i` is the id.
    Reserved(u64),
}

const QWEN: CodeFacts = CodeFacts {
    pre: "qwen2",
    file: "qwen.tiktoken",
    end_of_text: Some("<|endoftext|>"),
    skips_unreachable: false,
    reads_config: true,
    own_end: None,
    gap: 0,
    named: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    extras: ExtraTokens::Counted(205),
};

/// Facts about GLM-4, which lists its special tokens in tokenizer_config.json.
const GLM4: CodeFacts = CodeFacts {
    pre: "chatglm-bpe",
    file: "tokenizer.model",
    end_of_text: None,
    named: &[],
    extras: ExtraTokens::Counted(0),
    ..QWEN
};

/// Facts about StableLM 2. Id 100256, after the ranks, has no token.
const STABLE_LM: CodeFacts = CodeFacts {
    pre: "stablelm2",
    file: "arcade100k.tiktoken",
    reads_config: false,
    gap: 1,
    named: &[
        "<|endoftext|>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_pad|>",
        "<gh_stars>",
        "<filename>",
        "<issue_start>",
        "<issue_comment>",
        "<issue_closed>",
        "<jupyter_start>",
        "<jupyter_text>",
        "<jupyter_code>",
        "<jupyter_output>",
        "<empty_output>",
        "<commit_before>",
        "<commit_msg>",
        "<commit_after>",
        "<reponame>",
        "<|endofprompt|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|pause|>",
        "<|reg0|>",
        "<|reg1|>",
        "<|reg2|>",
        "<|reg3|>",
        "<|reg4|>",
        "<|reg5|>",
        "<|reg6|>",
        "<|reg7|>",
        "<|extra0|>",
    ],
    extras: ExtraTokens::Counted(0),
    ..QWEN
};

/// Facts about Hunyuan. Some releases have 204 extra tokens, and a vocabulary that is smaller by one.
const HUNYUAN: CodeFacts = CodeFacts {
    pre: "hunyuan",
    file: "hy.tiktoken",
    end_of_text: None,
    skips_unreachable: true,
    reads_config: false,
    named: &["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"],
    ..QWEN
};

const KIMI_K2: CodeFacts = CodeFacts {
    pre: "kimi-k2",
    file: "tiktoken.model",
    end_of_text: None,
    skips_unreachable: true,
    named: &[],
    extras: ExtraTokens::Reserved(256),
    ..QWEN
};

const KIMI_LINEAR: CodeFacts = CodeFacts { own_end: Some("[EOS]"), ..KIMI_K2 };

impl CodeFacts {
    pub(super) fn of(code: RankCode) -> &'static Self {
        match code {
            RankCode::Qwen => &QWEN,
            RankCode::Glm4 => &GLM4,
            RankCode::StableLm => &STABLE_LM,
            RankCode::Hunyuan => &HUNYUAN,
            RankCode::KimiK2 => &KIMI_K2,
            RankCode::KimiLinear => &KIMI_LINEAR,
        }
    }

    /// Returns the special tokens with their ids, after `n_ranks` tokens of text. Tokens without a meaning are limited
    /// to a vocabulary of `size`.
    pub(super) fn special(&self, n_ranks: u64, size: Option<u64>) -> Vec<(u64, String)> {
        let first = n_ranks + self.gap;
        let mut tokens: Vec<(u64, String)> =
            (first..).zip(self.named.iter().map(|&token| token.to_owned())).collect();
        let next = first + tokens.len() as u64;
        let (ExtraTokens::Counted(n) | ExtraTokens::Reserved(n)) = self.extras;
        let fits = size.map_or(n, |size| size.saturating_sub(next).min(n));
        tokens.extend((next..).zip(0..fits).map(|(id, at)| match self.extras {
            ExtraTokens::Counted(_) => (id, format!("<|extra_{at}|>")),
            ExtraTokens::Reserved(_) => (id, format!("<|reserved_token_{id}|>")),
        }));
        tokens
    }
}
