//! Errors and warnings about tokenizer files.

use std::fmt;
use std::path::PathBuf;

use gguf_checkpoint::json::JsonError;
use gguf_core::Hint;
use gguf_core::text::escape;

use super::Mode;
use super::files::CONFIG;
use super::hf_json::FILE;

pub(crate) type Result<T, E = TokenizerError> = std::result::Result<T, E>;

/// Reasons why no vocabulary could be built.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum TokenizerError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{}: {found} bytes, at most {limit} are read", path.display())]
    FileTooLarge { path: PathBuf, found: u64, limit: u64 },
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", path.display())]
    KeyTwice { path: PathBuf, source: JsonError },
    #[error("{}: byte {offset}: not UTF-8", path.display())]
    NotUtf8 { path: PathBuf, offset: usize },
    #[error("{}: not a SentencePiece model: {source}", path.display())]
    SentencePiece { path: PathBuf, source: prost::DecodeError },
    #[error("{}: SentencePiece model without pieces", path.display())]
    NoPieces { path: PathBuf },
    #[error("{}: piece {index}: not UTF-8 at byte {offset} of the piece", path.display())]
    PieceNotUtf8 { path: PathBuf, index: usize, offset: usize },
    #[error("{}: `trainer_spec.model_type` is {found}, expected {expected}", path.display())]
    ModelType { path: PathBuf, found: i32, expected: &'static str },
    #[error("{}: `model.type` is `{}`, expected `{expected}`", path.display(), escape(found))]
    JsonModel { path: PathBuf, found: String, expected: &'static str },
    #[error("{}: token id {id} belongs to `{}` and to `{}`", path.display(), escape(first), escape(second))]
    DuplicateId { path: PathBuf, id: u64, first: String, second: String },
    #[error("{}: `model.vocab`: token `{}` appears twice", path.display(), escape(token))]
    DuplicateToken { path: PathBuf, token: String },
    #[error("{}: `{key}`: id {id} of token `{}` is beyond the vocabulary of {size} tokens", path.display(), escape(token))]
    IdBeyondVocabulary { path: PathBuf, key: &'static str, token: String, id: u64, size: u64 },
    #[error("{}: {moved}: that is beyond the vocabulary of {size} tokens", path.display())]
    MovedBeyondVocabulary { path: PathBuf, moved: Moved, size: u64 },
    #[error("{}: another model's than {taken} beside it: the tokens of {n} ids differ", path.display())]
    FilesOfTwoModels { path: PathBuf, taken: &'static str, n: usize },
    #[error("{}: ranks of tokens (tiktoken), not a SentencePiece model", path.display())]
    RanksAsPieces { path: PathBuf },
    #[error("{}: `model.merges` is empty, and {n} tokens such as `{}` need merges: llama.cpp loads no such vocabulary", path.display(), escape(token))]
    MergesMissing { path: PathBuf, n: usize, token: String },
    #[error(
        "{}: the tokens are those of byte-level BPE (`Ġ` is a blank), but the steps are SentencePiece's, `{}`: no blank of a text is kept",
        path.display(),
        escape(found)
    )]
    StepsOfPieces { path: PathBuf, found: String },
    #[error("{}: id {id} has no token, the vocabulary has {size}", path.display())]
    MissingId { path: PathBuf, id: u64, size: u64 },
    #[error("{}: `{key}`: `{}` is no token id", path.display(), escape(found))]
    BadId { path: PathBuf, key: &'static str, found: String },
    #[error("{}: `model.merges[{rank}]`: `{}` is not in the vocabulary", path.display(), escape(token))]
    UnknownMerge { path: PathBuf, rank: usize, token: String },
    #[error("{}: `model.merges[{rank}]`: `{}` is not two tokens with a blank between", path.display(), escape(merge))]
    MalformedMerge { path: PathBuf, rank: usize, merge: String },
    #[error("{}: `{role}` is `{}` in models of this architecture, which is not in the vocabulary", path.display(), escape(token))]
    UnknownSpecial { path: PathBuf, role: String, token: String },
    #[error("{}: unknown pre-tokenizer\n  found:   {}\n  nearest: `{nearest}`: {}", path.display(), escape(found), escape(nearest_steps))]
    UnknownPreTokenizer { path: PathBuf, found: String, nearest: &'static str, nearest_steps: String },
    #[error("{}: the vocabulary is byte-level BPE, and its pre-tokenizer is not declared", path.display())]
    PreNotSaid { path: PathBuf },
    #[error(
        "`--pre {}`: not a pre-tokenizer that llama.cpp knows{}",
        escape(found),
        crate::pretokenizer::offer(*nearest)
    )]
    UnknownPreName { found: String, nearest: Option<&'static str> },
    #[error("{}: a vocabulary of {size} tokens is asked for, at most {limit} are written", path.display())]
    TooManyTokens { path: PathBuf, size: u64, limit: u64 },
    #[error("{}: `decoder`: unknown or incomplete step `{}`", path.display(), escape(found))]
    Decoder { path: PathBuf, found: String },
    #[error("{}: `{}`: unknown {}, by which texts may get other tokens", path.display(), member, match member.as_str() {
        "model" => format!("type `{}`", escape(found)),
        FILE => format!("member `{}`", escape(found)),
        _ => format!("step `{}`", escape(found)),
    })]
    UnknownStep { path: PathBuf, member: String, found: String },
    #[error("{}: line {line}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: &'static str },
    #[error("{}: `{list}[{at}]`: {problem}", path.display())]
    TekkenToken { path: PathBuf, list: &'static str, at: usize, problem: &'static str },
    #[error("{}: `{member}`: {problem}", path.display())]
    Member { path: PathBuf, member: &'static str, problem: &'static str },
    #[error("{}: `{key}` is `{}`, which is not in the vocabulary", path.display(), escape(token))]
    NotAToken { path: PathBuf, key: &'static str, token: String },
    #[error("{}: no tokenizer files, and models of this kind use those of another", path.display())]
    BuiltinVocabulary { path: PathBuf },
    #[error("{}: rank {rank}: no merge makes `{}`", path.display(), escape(token))]
    RankUnreachable { path: PathBuf, rank: u32, token: String },
    #[error("{}: a vocabulary of ranks, and the code of its special tokens is not declared", path.display())]
    RankCodeNotSaid { path: PathBuf },
    #[error("{}: tokens {first} and {second} are both `{}`, and llama.cpp loads no such vocabulary", path.display(), escape(token))]
    TextTwice { path: PathBuf, token: String, first: usize, second: usize },
    #[error("`{}` is missing or is not {expected}", escape(key))]
    GgufKey { key: String, expected: &'static str },
    #[error("`{}` has {found} elements, the vocabulary has {expected} tokens", escape(key))]
    GgufLength { key: String, found: usize, expected: usize },
    #[error("`{}[{index}]` is not UTF-8, which tokenizer.json cannot hold", escape(key))]
    GgufNotUtf8 { key: String, index: usize },
    #[error("`tokenizer.ggml.tokens`: `{}` is token {first} and token {second}", escape(token))]
    GgufDuplicateToken { token: String, first: usize, second: usize },
    #[error(
        "`tokenizer.ggml.model` is `{}`, tokenizer files are made for `gpt2`, `llama`, `t5`, `bert`, `gemma4` and `rwkv`",
        escape(found)
    )]
    NoInverse { found: String },
    #[error("`tokenizer.ggml.pre` is `{}`, whose steps are not known", escape(found))]
    NoInversePre { found: String },
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
            Self::UnknownStep { .. } => vec![
                "transformers does not load the file either: fetch it again, or that of the model that this one was made of"
                    .to_owned(),
                no_tokenizer,
            ],
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
            Self::MovedBeyondVocabulary { moved: Moved { token, holder, .. }, .. } => vec![
                match holder {
                    Some(holder) => format!(
                        "if `{0}` takes the place of `{1}`, rename `{1}` to `{0}` in `model.vocab` of the file, too",
                        escape(token),
                        escape(holder)
                    ),
                    None => "compare `vocab_size` in config.json with the rows of the embedding".to_owned(),
                },
                no_tokenizer,
            ],
            Self::FilesOfTwoModels { taken, .. } => vec![
                format!("remove tokenizer.json or {taken}, whichever does not belong to these weights"),
                no_tokenizer,
            ],
            Self::MergesMissing { .. } | Self::StepsOfPieces { .. } => vec![
                "take tokenizer.json of the model that this one was made of; transformers 5 writes such a file for a \
                 `tokenizer_class` that is not the vocabulary's"
                    .to_owned(),
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
            Self::NothingFits { path, .. } if path.join("merges.txt").is_file() => vec![
                "vocab.json and merges.txt are the older form: `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of \
                 transformers writes tokenizer.json of them"
                    .to_owned(),
                no_tokenizer,
            ],
            Self::NothingFits { .. } => vec![
                "put tokenizer.json or tokenizer.model of the original model next to config.json".to_owned(),
                no_tokenizer,
            ],
            Self::ModelType { .. } | Self::JsonModel { .. } => vec![
                "llama.cpp has no algorithm for this kind of vocabulary".to_owned(),
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

/// An added token whose declared id transformers does not give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Text of the token.
    pub token: String,
    /// Id in the file.
    pub stated: u64,
    /// Id that the token has.
    pub used: u64,
    /// Token of the model that has the declared id.
    pub holder: Option<String>,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, stated, used, holder } = self;
        write!(
            f,
            "added token `{}` has the id {used}, not {stated}, which the file declares",
            escape(token)
        )?;
        match holder {
            Some(holder) => write!(f, " and which is `{}` in `model.vocab`", escape(holder)),
            None => Ok(()),
        }
    }
}

/// Oddities that did not stop the work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum TokenizerWarning {
    #[error("pre-tokenizer `{chosen}` by structure, but the check text's hash is that of `{hashed}`")]
    HashContradicts { chosen: String, hashed: String },
    #[error("pre-tokenizer `{chosen}` by the check text's hash, its structure is not in the table")]
    HashOnly { chosen: String },
    #[error(
        "pre-tokenizer `{chosen}` by structure alone, the check text could not be encoded: {}",
        escape(reason)
    )]
    HashUnavailable { chosen: String, reason: String },
    #[error("special token `{role}`: id {id} is beyond the vocabulary of {size} tokens, left out")]
    SpecialOutOfRange { role: String, id: u64, size: u64 },
    #[error("{values}: {outcome}")]
    RoleWithoutToken { values: String, outcome: String },
    #[error("files disagree about special tokens; written are: {}", roles.join("; "))]
    RolesDiffer { roles: Vec<String> },
    #[error(
        "no end token: `eos_token` of tokenizer_config.json and `eos_token_id` of config.json and generation_config.json \
         name none, so {consequence}; `--set tokenizer.ggml.eos_token_id=u32:ID` sets one"
    )]
    NoEndToken { consequence: String },
    #[error(
        "{file}: `eos_token_id` also has {tokens}, where transformers ends a text and llama.cpp does not; \
         `--set tokenizer.ggml.eot_token_id=u32:ID` adds one"
    )]
    FurtherEnds { file: &'static str, tokens: String },
    #[error(
        "`{flag}` would be true, and no file names a token for `{key}`{}: written as false",
        default.as_ref().map(|token| format!(" (llama.cpp would take {token})")).unwrap_or_default()
    )]
    AddsNoToken { flag: String, key: &'static str, default: Option<String> },
    #[error(
        "{file}: `{name}` is {}, but by the kind of vocabulary or model `{flag}` is {written}, as llama.cpp's converter writes it; \
         `--set {flag}=bool:{}` follows {file}, as transformers 5 does",
        !written,
        !written
    )]
    FlagsDiffer { file: &'static str, name: String, flag: String, written: bool },
    #[error(
        "{file}: `{name}` is {declared}, but tokenizer.json {}, and transformers 5 follows tokenizer.json: `{flag}` is {written}, as \
         llama.cpp's converter writes it; `--set {flag}=bool:{}` follows {}",
        if *declared { "adds no such token" } else { "adds the token" },
        !written,
        if declared == written { "tokenizer.json" } else { *file }
    )]
    FlagIgnored { file: &'static str, name: String, flag: String, declared: bool, written: bool },
    #[error(
        "{taken} ({n_taken} bytes) and {other} ({n_other} bytes) hold different chat templates: that of {taken} is written, as \
         transformers takes it"
    )]
    ChatTemplatesDiffer { taken: &'static str, n_taken: usize, other: &'static str, n_other: usize },
    #[error(
        "{file}: the chat template is the plain text `{}`, in which no message has a place; `--chat-template FILE` takes one",
        escape(text)
    )]
    PlainChatTemplate { file: &'static str, text: String },
    #[error("{file} is empty, left out")]
    EmptyChatTemplate { file: &'static str },
    #[error("{file}: the chat template is not written, `--chat-template FILE` takes one")]
    ChatTemplateNotWritten { file: &'static str },
    #[error(
        "{file}: no chat template is named `default`, so llama.cpp takes ChatML; `--chat-template FILE` takes one"
    )]
    NoDefaultTemplate { file: &'static str },
    #[error(
        "no chat template in chat_template.jinja, tokenizer_config.json or chat_template.json, though `{}` is a model for \
         conversations by its name: llama.cpp takes ChatML; `--chat-template FILE` takes one",
        escape(name)
    )]
    NoChatTemplate { name: String },
    #[error(
        "{file}: {}{}: transformers appends {} to the vocabulary of {size} tokens, which has no further row: left out",
        listed(tokens),
        match (file == key, *file == FILE, tokens.len()) {
            (true, _, 1) => " is not in tokenizer.json".to_owned(),
            (true, ..) => " are not in tokenizer.json".to_owned(),
            (_, true, _) => format!(" of `{}`", escape(key)),
            (.., 1) => format!(" of `{}` is not in tokenizer.json", escape(key)),
            _ => format!(" of `{}` are not in tokenizer.json", escape(key)),
        },
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    AddedTokensWithoutRow { file: &'static str, key: String, tokens: Vec<String>, size: u64 },
    #[error(
        "{file}: token `{}` with id {id} is beyond the vocabulary of {size} tokens, left out",
        escape(token)
    )]
    TokenOutOfRange { file: &'static str, token: String, id: u64, size: u64 },
    #[error(
        "{file}: {}, as transformers reads {}{}",
        moved.first().map(ToString::to_string).unwrap_or_default(),
        if moved.len() == 1 { "it" } else { "them" },
        if moved.len() == 1 { String::new() } else { format!(", and {} more added tokens move likewise", moved.len() - 1) }
    )]
    AddedTokensMoved { file: &'static str, moved: Vec<Moved> },
    #[error(
        "tokenizer.json: `added_tokens` has `{}` with ids {used} and {stated}: only {used} is written; remove the other",
        escape(token)
    )]
    AddedTokenTwice { token: String, stated: u64, used: u64 },
    #[error("{file}: `decoder`: {effect}; transformers may show other text for the same ids")]
    Decoded { file: &'static str, effect: String },
    #[error(
        "{file}: `{member}`: {effect}; some texts get other tokens than in transformers, `gguf-verify --source DIR` compares them"
    )]
    ReadOtherwise { file: &'static str, member: String, effect: String },
    #[error(
        "tokenizer.json, tokenizer_config.json: added tokens: {effect} {}, contrary to `{flag}`; some texts get other tokens than in \
         transformers",
        listed(tokens)
    )]
    AddedFlag { flag: &'static str, effect: &'static str, tokens: Vec<String> },
    #[error(
        "tokenizer.json: `added_tokens`: llama.cpp does not look for {} in texts, since another file has {} as plain text or not at \
         all; remove the file that is not this model's",
        listed(tokens),
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    AddedAsText { tokens: Vec<String> },
    #[error(
        "tokenizer.json: `added_tokens`: transformers finds `{}` inside `{}`, since only the latter is `normalized`; llama.cpp finds \
         the longer one",
        escape(first),
        escape(second)
    )]
    AddedInside { first: String, second: String },
    #[error(
        "tokenizer.json: `added_tokens` lacks {}, which the tokenizer's configuration names: written as special, as transformers \
         reads it",
        listed(tokens)
    )]
    SpecialNotAdded { tokens: Vec<String> },
    #[error(
        "{file}: {} that no rule knows: {}; if the tokenizer reads {}, some texts get other tokens than in transformers",
        if keys.len() == 1 { "a key" } else { "keys" },
        listed(keys),
        if keys.len() == 1 { "it" } else { "them" }
    )]
    UnknownKeys { file: &'static str, keys: Vec<String> },
    #[error(
        "tokenizer_config.json: `{key}` is {value}, and what is written from tokenizer.json is the opposite; make the two agree"
    )]
    ConfigContradicts { key: &'static str, value: bool },
    #[error(
        "{lacks} and tokenizer_config.json lack {}, which tokenizer.json adds: written as tokenizer.json has {}",
        listed(tokens),
        if tokens.len() == 1 { "it" } else { "them" }
    )]
    TokensOfJson { lacks: &'static str, tokens: Vec<String> },
    #[error(
        "{taken} and tokenizer.json have different tokens under {n} ids, first {id}: `{}` and `{}`; written are those of {taken}; \
         remove the file that is not this model's",
        escape(own),
        escape(other)
    )]
    FilesDiffer { taken: &'static str, n: usize, id: u64, own: String, other: String },
    #[error(
        "tokenizer_config.json: {n} token{} of `added_tokens_decoder` {} written in place of a piece of the SentencePiece model, first \
         {id}: `{}` in place of `{}`",
        if *n == 1 { "" } else { "s" },
        if *n == 1 { "is" } else { "are" },
        escape(token),
        escape(piece)
    )]
    PiecesReplaced { n: usize, id: u64, piece: String, token: String },
    #[error("{file}: `chat_template` is neither text nor a list or table of templates, left out")]
    BadChatTemplate { file: &'static str },
    #[error(
        "the vocabulary lacks {n} of the 256 byte tokens, the first `{first}`: llama.cpp fails at texts with such a byte"
    )]
    BytesMissing { first: String, n: usize },
    #[error("tokenizer mode `{mode}` passed over: {}", escape(reason))]
    ModePassedOver { mode: Mode, reason: String },
    #[error("token id {id} is `{}` and `{}`, the later counts", escape(first), escape(second))]
    IdTwice { id: u64, first: String, second: String },
    #[error("token id {id} is not UTF-8, what is not is replaced")]
    TokenNotUtf8 { id: u64 },
    #[error(
        "the vocabulary has no ranks of merges: they are rebuilt in the order of the ids; check some texts against the \
         original tokenizer"
    )]
    RanksFromIds,
    #[error("{n} tokens are no merge of two others, text will not reach them")]
    TokensWithoutMerge { n: usize },
    #[error(
        "no chat template is written: the converter of llama.cpp brings its own for version `{}` of Mistral's tokenizers, \
         `--chat-template FILE` takes one",
        escape(version)
    )]
    NoMistralTemplate { version: String },
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
            Self::AddedTokensWithoutRow { file, key, .. } if file != key => (*file, key.as_str()),
            Self::ConfigContradicts { key, .. } => (CONFIG, *key),
            Self::FlagsDiffer { file, name, .. } | Self::FlagIgnored { file, name, .. } => {
                (*file, name.as_str())
            }
            Self::NoDefaultTemplate { file }
            | Self::ChatTemplateNotWritten { file }
            | Self::BadChatTemplate { file }
            | Self::PlainChatTemplate { file, .. }
                if *file == CONFIG =>
            {
                (*file, "chat_template")
            }
            _ => return None,
        };
        Some((file, key.to_owned()))
    }
}
