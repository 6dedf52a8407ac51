//! Errors and warnings about tokenizer files.

use std::path::PathBuf;

use gguf_checkpoint::json::JsonError;
use gguf_core::Hint;
use gguf_core::text::escape;

use super::Mode;
use super::files::CONFIG;
use super::hf_json::FILE;

/// Reasons why no vocabulary could be built.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum TokenizerError {
    /// A file could not be read. The I/O error names the path.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A text file exceeds [`gguf_core::limits::Limits::text_file_bytes`].
    #[error("{}: {found} bytes, at most {limit} are read", path.display())]
    FileTooLarge { path: PathBuf, found: u64, limit: u64 },
    /// A JSON file does not parse, or a member has the wrong type.
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// An object of a JSON file has a key twice.
    #[error("{}: {source}", path.display())]
    KeyTwice { path: PathBuf, source: JsonError },
    /// A text file is not UTF-8.
    #[error("{}: byte {offset}: not UTF-8", path.display())]
    NotUtf8 { path: PathBuf, offset: usize },
    /// A SentencePiece model does not parse.
    #[error("{}: not a SentencePiece model: {source}", path.display())]
    SentencePiece { path: PathBuf, source: prost::DecodeError },
    /// A SentencePiece model has no pieces.
    #[error("{}: SentencePiece model without pieces", path.display())]
    NoPieces { path: PathBuf },
    /// A piece is not UTF-8.
    #[error("{}: piece {index}: not UTF-8 at byte {offset} of the piece", path.display())]
    PieceNotUtf8 { path: PathBuf, index: usize, offset: usize },
    /// A SentencePiece model is of a kind that llama.cpp cannot run.
    #[error("{}: `trainer_spec.model_type` is {found}, expected {expected}", path.display())]
    ModelType { path: PathBuf, found: i32, expected: &'static str },
    /// `tokenizer.json` has another model than the mode needs.
    #[error("{}: `model.type` is `{}`, expected `{expected}`", path.display(), escape(found))]
    JsonModel { path: PathBuf, found: String, expected: &'static str },
    /// Two tokens share an id.
    #[error("{}: token id {id} belongs to `{}` and to `{}`", path.display(), escape(first), escape(second))]
    DuplicateId { path: PathBuf, id: u64, first: String, second: String },
    /// The vocabulary names a token twice.
    #[error("{}: `model.vocab`: token `{}` appears twice", path.display(), escape(token))]
    DuplicateToken { path: PathBuf, token: String },
    /// An id exceeds the vocabulary.
    #[error("{}: `{key}`: id {id} of token `{}` is beyond the vocabulary of {size} tokens", path.display(), escape(token))]
    IdBeyondVocabulary { path: PathBuf, key: &'static str, token: String, id: u64, size: u64 },
    /// An id has no token, although every id needs one.
    #[error("{}: id {id} has no token, the vocabulary has {size}", path.display())]
    MissingId { path: PathBuf, id: u64, size: u64 },
    /// A token id is not a number.
    #[error("{}: `{key}`: `{}` is no token id", path.display(), escape(found))]
    BadId { path: PathBuf, key: &'static str, found: String },
    /// A merge names a token that the vocabulary lacks.
    #[error("{}: `model.merges[{rank}]`: `{}` is not in the vocabulary", path.display(), escape(token))]
    UnknownMerge { path: PathBuf, rank: usize, token: String },
    /// A merge does not consist of two tokens.
    #[error("{}: `model.merges[{rank}]`: `{}` is not two tokens with a blank between", path.display(), escape(merge))]
    MalformedMerge { path: PathBuf, rank: usize, merge: String },
    /// A special token required by the architecture is not in the vocabulary.
    #[error("{}: `{role}` is `{}` in models of this architecture, which is not in the vocabulary", path.display(), escape(token))]
    UnknownSpecial { path: PathBuf, role: String, token: String },
    /// The pre-tokenizer has no name in llama.cpp.
    #[error("{}: unknown pre-tokenizer\n  found:   {}\n  nearest: `{nearest}`: {}", path.display(), escape(found), escape(nearest_steps))]
    UnknownPreTokenizer { path: PathBuf, found: String, nearest: &'static str, nearest_steps: String },
    /// A byte-level vocabulary does not declare its pre-tokenizer.
    #[error("{}: the vocabulary is byte-level BPE, and its pre-tokenizer is not declared", path.display())]
    PreNotSaid { path: PathBuf },
    /// A name given by `--pre` is unknown to all runtimes.
    #[error(
        "`--pre {}`: not a pre-tokenizer that llama.cpp knows{}",
        escape(found),
        crate::pretokenizer::offer(*nearest)
    )]
    UnknownPreName { found: String, nearest: Option<&'static str> },
    /// A vocabulary has more tokens than any model.
    #[error("{}: a vocabulary of {size} tokens is asked for, at most {limit} are written", path.display())]
    TooManyTokens { path: PathBuf, size: u64, limit: u64 },
    /// A decoder is unknown or incomplete.
    #[error("{}: `decoder`: unknown or incomplete step `{}`", path.display(), escape(found))]
    Decoder { path: PathBuf, found: String },
    /// A line is invalid in a vocabulary with one token per line.
    #[error("{}: line {line}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: &'static str },
    /// A token of a `tekken.json` is invalid.
    #[error("{}: `{list}[{at}]`: {problem}", path.display())]
    TekkenToken { path: PathBuf, list: &'static str, at: usize, problem: &'static str },
    /// A member of a tokenizer file is invalid.
    #[error("{}: `{member}`: {problem}", path.display())]
    Member { path: PathBuf, member: &'static str, problem: &'static str },
    /// A special token is not in the vocabulary.
    #[error("{}: `{key}` is `{}`, which is not in the vocabulary", path.display(), escape(token))]
    NotAToken { path: PathBuf, key: &'static str, token: String },
    /// A vocabulary is built into llama.cpp's converter but not into this one.
    #[error("{}: no tokenizer files, and models of this kind use those of another", path.display())]
    BuiltinVocabulary { path: PathBuf },
    /// A token of a rank file is not the merge of two tokens of lower ranks.
    #[error("{}: rank {rank}: no merge makes `{}`", path.display(), escape(token))]
    RankUnreachable { path: PathBuf, rank: u32, token: String },
    /// A card names no list of special tokens, or one that is not built in.
    #[error("{}: a vocabulary of ranks, and the code of its special tokens is not declared", path.display())]
    RankCodeNotSaid { path: PathBuf },
    /// Two tokens have one text.
    #[error("{}: tokens {first} and {second} are both `{}`, and llama.cpp loads no such vocabulary", path.display(), escape(token))]
    TextTwice { path: PathBuf, token: String, first: usize, second: usize },
    /// A key of a GGUF file is missing or has another type.
    #[error("`{}` is missing or is not {expected}", escape(key))]
    GgufKey { key: String, expected: &'static str },
    /// An array of a GGUF file has another length than the tokens.
    #[error("`{}` has {found} elements, the vocabulary has {expected} tokens", escape(key))]
    GgufLength { key: String, found: usize, expected: usize },
    /// A text of a GGUF file is not UTF-8.
    #[error("`{}[{index}]` is not UTF-8, which tokenizer.json cannot hold", escape(key))]
    GgufNotUtf8 { key: String, index: usize },
    /// A text appears twice in a GGUF file.
    #[error("`tokenizer.ggml.tokens`: `{}` is token {first} and token {second}", escape(token))]
    GgufDuplicateToken { token: String, first: usize, second: usize },
    /// Tokenizer files cannot be made for a kind of vocabulary.
    #[error(
        "`tokenizer.ggml.model` is `{}`, tokenizer files are made for `gpt2`, `llama`, `t5`, `bert`, `gemma4` and `rwkv`",
        escape(found)
    )]
    NoInverse { found: String },
    /// The steps of a pre-tokenizer are unknown.
    #[error("`tokenizer.ggml.pre` is `{}`, whose steps are not known", escape(found))]
    NoInversePre { found: String },
    /// No mode of the card found its files.
    #[error("{}: no tokenizer found{}", path.display(), reasons(tried))]
    NothingFits { path: PathBuf, tried: Vec<(Mode, String)> },
}

/// Formats one line for each mode that did not fit.
fn reasons(tried: &[(Mode, String)]) -> String {
    tried.iter().fold(String::new(), |lines, (mode, why)| lines + &format!("\n  {mode}: {}", escape(why)))
}

/// Formats the texts of up to three tokens, with their number if there are more.
fn listed(tokens: &[String]) -> String {
    let names: Vec<String> = tokens.iter().take(3).map(|token| format!("`{}`", escape(token))).collect();
    match tokens.len() {
        n @ 4.. => format!("{n} tokens ({}, …)", names.join(", ")),
        _ => names.join(", "),
    }
}

impl TokenizerError {
    /// Returns true if the vocabulary of a GGUF file may be sound, but has texts that `tokenizer.json` cannot hold.
    #[must_use]
    pub fn is_beyond_json(&self) -> bool {
        matches!(self, Self::GgufNotUtf8 { .. } | Self::GgufDuplicateToken { .. })
    }
}

impl Hint for TokenizerError {
    fn hints(&self) -> Vec<String> {
        let no_tokenizer = "`--no-tokenizer` writes the file without a vocabulary".to_owned();
        match self {
            Self::UnknownPreTokenizer { nearest, .. } => vec![
                format!(
                    "`--pre NAME` sets the name by hand, `--pre {nearest}` if the patterns mean the same"
                ),
                no_tokenizer,
            ],
            Self::UnknownPreName { .. } => {
                let mut names: Vec<&str> = super::pretokenizer::names().collect();
                names.sort_unstable();
                vec![format!("the names are {}", names.join(", "))]
            }
            Self::PreNotSaid { .. } => vec![
                "`--pre NAME` says it: `llama-bpe` for Llama 3, `gpt-2` where there is no other; see the original \
                 model's tokenizer.json"
                    .to_owned(),
                no_tokenizer,
            ],
            Self::IdBeyondVocabulary { .. } | Self::TooManyTokens { .. } => vec![
                "compare `vocab_size` in config.json with the rows of the embedding".to_owned(),
                no_tokenizer,
            ],
            Self::TextTwice { .. } => vec![
                "leave one of them out of added_tokens in tokenizer.json, added_tokens.json and added_tokens_decoder in \
                 tokenizer_config.json"
                    .to_owned(),
                no_tokenizer,
            ],
            Self::BuiltinVocabulary { .. } => vec![
                "put the files beside config.json: tokenizer.json of EleutherAI/gpt-neox-20b for Mamba, tokenizer.model \
                 of Llama 2 for OpenELM"
                    .to_owned(),
                no_tokenizer,
            ],
            Self::NothingFits { tried, .. }
                if !tried.is_empty() && tried.iter().all(|(mode, _)| *mode == Mode::Mistral) => vec![
                "put tekken.json or tokenizer.model.v* of the original model next to params.json".to_owned(),
                no_tokenizer,
            ],
            Self::NothingFits { .. } => vec![
                "put tokenizer.json or tokenizer.model of the original model next to config.json".to_owned(),
                no_tokenizer,
            ],
            Self::KeyTwice { .. } => vec!["leave one of the two out; transformers reads the last".to_owned(), no_tokenizer],
            Self::Json { .. }
            | Self::SentencePiece { .. }
            | Self::NoPieces { .. }
            | Self::Line { .. }
            | Self::TekkenToken { .. }
            | Self::RankUnreachable { .. }
            | Self::UnknownMerge { .. }
            | Self::MalformedMerge { .. } => {
                vec!["the file is damaged or incomplete: fetch it again".to_owned(), no_tokenizer]
            }
            _ => Vec::new(),
        }
    }
}

/// Oddities that did not stop the work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum TokenizerWarning {
    /// Structure and check-text hash name different pre-tokenizers.
    #[error("pre-tokenizer `{chosen}` by structure, but the check text's hash is that of `{hashed}`")]
    HashContradicts { chosen: String, hashed: String },
    /// Only the check-text hash identified the pre-tokenizer.
    #[error("pre-tokenizer `{chosen}` by the check text's hash, its structure is not in the table")]
    HashOnly { chosen: String },
    /// The check text could not be encoded, so the structure is not confirmed.
    #[error(
        "pre-tokenizer `{chosen}` by structure alone, the check text could not be encoded: {}",
        escape(reason)
    )]
    HashUnavailable { chosen: String, reason: String },
    /// A special id is out of range and left out.
    #[error("special token `{role}`: id {id} is beyond the vocabulary of {size} tokens, left out")]
    SpecialOutOfRange { role: String, id: u64, size: u64 },
    /// The values for a role are not tokens of the vocabulary.
    #[error("{values}: {outcome}")]
    RoleWithoutToken { values: String, outcome: String },
    /// Files give a role to different tokens.
    #[error("files disagree about special tokens; written are: {}", roles.join("; "))]
    RolesDiffer { roles: Vec<String> },
    /// No file names an end token.
    #[error(
        "no end token: `eos_token` of tokenizer_config.json and `eos_token_id` of config.json and generation_config.json \
         name none, so {consequence}; `--set tokenizer.ggml.eos_token_id=u32:ID` sets one"
    )]
    NoEndToken { consequence: String },
    /// The original also ends a text at further tokens, the runtime does not.
    #[error(
        "{file}: `eos_token_id` also has {tokens}, where transformers ends a text and llama.cpp does not; \
         `--set tokenizer.ggml.eot_token_id=u32:ID` adds one"
    )]
    FurtherEnds { file: &'static str, tokens: String },
    /// A token that does not exist should be added to texts.
    #[error(
        "`{flag}` would be true, and no file names a token for `{key}`{}: written as false",
        default.as_ref().map(|token| format!(" (llama.cpp would take {token})")).unwrap_or_default()
    )]
    AddsNoToken { flag: String, key: &'static str, default: Option<String> },
    /// The tokenizer's configuration contradicts the flag for adding a token.
    #[error(
        "{file}: `{name}` is {}, but by tokenizer.json or the kind of vocabulary `{flag}` is {written}, as llama.cpp's converter \
         writes it; `--set {flag}=bool:{}` follows {file}, as transformers 5 does",
        !written,
        !written
    )]
    FlagsDiffer { file: &'static str, name: String, flag: String, written: bool },
    /// Two files hold different chat templates.
    #[error(
        "{taken} ({n_taken} bytes) and {other} ({n_other} bytes) hold different chat templates: that of {taken} is written, as \
         transformers takes it"
    )]
    ChatTemplatesDiffer { taken: &'static str, n_taken: usize, other: &'static str, n_other: usize },
    /// A template file is empty.
    #[error("{file} is empty, left out")]
    EmptyChatTemplate { file: &'static str },
    /// A chat template is not written for this kind of vocabulary.
    #[error("{file}: the chat template is not written, `--chat-template FILE` takes one")]
    ChatTemplateNotWritten { file: &'static str },
    /// No template has the default name.
    #[error(
        "{file}: no chat template is named `default`, so llama.cpp takes ChatML; `--chat-template FILE` takes one"
    )]
    NoDefaultTemplate { file: &'static str },
    /// A model whose name indicates conversations has no template.
    #[error(
        "no chat template in chat_template.jinja, tokenizer_config.json or chat_template.json, though `{}` is a model for \
         conversations by its name: llama.cpp takes ChatML; `--chat-template FILE` takes one",
        escape(name)
    )]
    NoChatTemplate { name: String },
    /// Tokens added by the tokenizer's configuration have no rows in the embedding.
    #[error(
        "tokenizer_config.json: {} of `added_tokens_decoder` {} not in tokenizer.json, and the vocabulary of {size} tokens has no \
         row for {}: left out",
        listed(tokens),
        if tokens.len() == 1 { "is" } else { "are" },
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    AddedTokensWithoutRow { tokens: Vec<String>, size: u64 },
    /// A token id is out of range and left out.
    #[error(
        "{file}: token `{}` with id {id} is beyond the vocabulary of {size} tokens, left out",
        escape(token)
    )]
    TokenOutOfRange { file: &'static str, token: String, id: u64, size: u64 },
    /// An added token's id in the file differs from the assigned one.
    #[error("added token `{}`: the file declares id {stated}, the tokenizer gives it {used}", escape(token))]
    AddedTokenMoved { token: String, stated: u64, used: u64 },
    /// An added token is listed with two ids.
    #[error(
        "tokenizer.json: `added_tokens` has `{}` with ids {used} and {stated}: only {used} is written; remove the other",
        escape(token)
    )]
    AddedTokenTwice { token: String, stated: u64, used: u64 },
    /// llama.cpp reads texts otherwise than a member of the file declares.
    #[error(
        "{file}: `{member}`: {effect}; some texts get other tokens than in transformers, `gguf-verify --source DIR` compares them"
    )]
    ReadOtherwise { file: &'static str, member: String, effect: String },
    /// A flag of added tokens has no counterpart.
    #[error(
        "tokenizer.json, tokenizer_config.json: added tokens: {effect} {}, contrary to `{flag}`; some texts get other tokens than in \
         transformers",
        listed(tokens)
    )]
    AddedFlag { flag: &'static str, effect: &'static str, tokens: Vec<String> },
    /// Added tokens are plain text in the keys.
    #[error(
        "tokenizer.json: `added_tokens`: llama.cpp does not look for {} in texts, since another file has {} as plain text or not at \
         all; remove the file that is not this model's",
        listed(tokens),
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    AddedAsText { tokens: Vec<String> },
    /// A token is found inside another one.
    #[error(
        "tokenizer.json: `added_tokens`: transformers finds `{}` inside `{}`, since only the latter is `normalized`; llama.cpp finds \
         the longer one",
        escape(first),
        escape(second)
    )]
    AddedInside { first: String, second: String },
    /// Special tokens of the configuration are not among the added tokens.
    #[error(
        "tokenizer.json: `added_tokens` lacks {}, which the tokenizer's configuration names: written as special, as transformers \
         reads it",
        listed(tokens)
    )]
    SpecialNotAdded { tokens: Vec<String> },
    /// No rule knows some keys.
    #[error(
        "{file}: {} that no rule knows: {}; if the tokenizer reads {}, some texts get other tokens than in transformers",
        if keys.len() == 1 { "a key" } else { "keys" },
        listed(keys),
        if keys.len() == 1 { "it" } else { "them" }
    )]
    UnknownKeys { file: &'static str, keys: Vec<String> },
    /// The configuration contradicts a step.
    #[error(
        "tokenizer_config.json: `{key}` is {value}, and what is written from tokenizer.json is the opposite; make the two agree"
    )]
    ConfigContradicts { key: &'static str, value: bool },
    /// Tokens are in tokenizer.json but not in the SentencePiece model.
    #[error(
        "{lacks} and tokenizer_config.json lack {}, which tokenizer.json adds: written as tokenizer.json has {}",
        listed(tokens),
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    TokensOfJson { lacks: &'static str, tokens: Vec<String> },
    /// Two files have different tokens under one id.
    #[error(
        "{taken} and tokenizer.json have different tokens under {n} ids, first {id}: `{}` and `{}`; written are those of {taken}; \
         remove the file that is not this model's",
        escape(own),
        escape(other)
    )]
    FilesDiffer { taken: &'static str, n: usize, id: u64, own: String, other: String },
    /// A chat template is neither a text nor a list of named texts.
    #[error("{file}: `chat_template` is neither text nor a list of templates, left out")]
    BadChatTemplate { file: &'static str },
    /// A byte-level tokenizer has no merges.
    #[error("{file}: no merges, text will fall apart into single bytes")]
    NoMerges { file: &'static str },
    /// A mode of the card was skipped because its file is damaged.
    #[error("tokenizer mode `{mode}` passed over: {}", escape(reason))]
    ModePassedOver { mode: Mode, reason: String },
    /// Two tokens of a container share an id.
    #[error("token id {id} is `{}` and `{}`, the later counts", escape(first), escape(second))]
    IdTwice { id: u64, first: String, second: String },
    /// A byte-level token is not UTF-8.
    #[error("token id {id} is not UTF-8, what is not is replaced")]
    TokenNotUtf8 { id: u64 },
    /// A byte-level vocabulary has no merge ranks.
    #[error(
        "the vocabulary has no ranks of merges: they are rebuilt in the order of the ids; check some texts against the \
         original tokenizer"
    )]
    RanksFromIds,
    /// Tokens cannot be split into two others.
    #[error("{n} tokens are no merge of two others, text will not reach them")]
    TokensWithoutMerge { n: usize },
    /// Mistral's newer templates are part of llama.cpp's converter.
    #[error(
        "no chat template is written: the converter of llama.cpp brings its own for version `{}` of Mistral's tokenizers, \
         `--chat-template FILE` takes one",
        escape(version)
    )]
    NoMistralTemplate { version: String },
    /// A line of merges.txt does not consist of two tokens.
    #[error("merges.txt: line {line} is not two tokens, left out")]
    MalformedMergeLine { line: usize },
}

impl TokenizerWarning {
    /// Returns the file and the key that runtimes read otherwise or not at all, if the warning is about one.
    pub(super) fn about(&self) -> Option<(&'static str, String)> {
        let (file, key) = match self {
            Self::ReadOtherwise { file, member, .. } => (*file, member.as_str()),
            Self::AddedFlag { flag, .. } => return Some((FILE, format!("added_tokens.{flag}"))),
            Self::AddedAsText { .. } | Self::AddedInside { .. } => (FILE, "added_tokens"),
            Self::AddedTokensWithoutRow { .. } => (CONFIG, "added_tokens_decoder"),
            Self::ConfigContradicts { key, .. } => (CONFIG, *key),
            Self::FlagsDiffer { file, name, .. } => (*file, name.as_str()),
            Self::NoDefaultTemplate { file }
            | Self::ChatTemplateNotWritten { file }
            | Self::BadChatTemplate { file }
                if *file == CONFIG =>
            {
                (*file, "chat_template")
            }
            _ => return None,
        };
        Some((file, key.to_owned()))
    }
}
