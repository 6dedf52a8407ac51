//! Mistral's own files: `tekken.json`, or a SentencePiece model whose name contains its version.

use crate::Result;
use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use gguf_format::{Array, Metadata, Template, Value};

use super::super::byte_alphabet::written;
use super::super::emit::{TokenList, TokenType, check_size};
use super::super::sentencepiece::{ModelProto, PieceKind, first_of};
use super::super::{TokenizerError, TokenizerWarning};
use super::spm::token_type;
use super::tiktoken::{MAX_TOKEN_BYTES, base64};
use super::{Attempt, Context};

const TEKKEN: &str = "tekken.json";
/// Names of model files, in order of precedence.
const MODELS: [&str; 15] = [
    "tokenizer.model.v7m1",
    "tokenizer.model.v7",
    "tokenizer.model.v3m1",
    "tokenizer.model.v3",
    "tokenizer.model.v2m1",
    "tokenizer.model.v2",
    "tokenizer.model.v1m1",
    "tokenizer.model.v15m1",
    "tokenizer.model.v15",
    "tokenizer.model.v13m1",
    "tokenizer.model.v13",
    "tokenizer.model.v11m1",
    "tokenizer.model.v11",
    "tokenizer.model.v1",
    "tokenizer.model",
];
const VERSIONS: [&str; 7] = ["v1", "v2", "v3", "v7", "v11", "v13", "v15"];
/// Special tokens of files up to version 7, which do not list them.
const OLD_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct TekkenFile {
    config: TekkenConfig,
    vocab: Vec<TekkenEntry>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    default_vocab_size: u64,
    default_num_special_tokens: u64,
    version: String,
}

#[derive(Deserialize)]
struct TekkenEntry {
    rank: u64,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u64,
    token_str: String,
}

/// A vocabulary of either kind.
struct MistralVocabulary {
    is_tekken: bool,
    version: String,
    tokens: TokenList,
    merges: Vec<Vec<u8>>,
    bos: u32,
    eos: u32,
    unk: u32,
    pad: u32,
}

/// Writes the keys.
///
/// # Exactness
/// Equals `_set_vocab_mistral` of llama.cpp 0.5.0's converter with mistral-common 1.13, except for the chat templates
/// that are files of the converter (versions 11 and 13): none is written instead.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let vocabulary = match context.directory.json::<TekkenFile>(TEKKEN)? {
        Some(file) => of_tekken(&context.directory.join(TEKKEN), file)?,
        None => match first_of(&context.directory, &MODELS)? {
            Some((name, model)) => of_model(&context.directory.join(name), name, &model)?,
            None => return Ok(Attempt::Absent(format!("{TEKKEN} and tokenizer.model are missing"))),
        },
    };
    let template = template(context, &vocabulary)?;
    let size_key = format!("{}.vocab_size", context.request.architecture);
    write(vocabulary, size_key, template, context.out);
    Ok(Attempt::Done)
}

fn write(vocabulary: MistralVocabulary, size_key: String, template: Option<String>, out: &mut Metadata) {
    let MistralVocabulary { is_tekken, tokens, merges, bos, eos, unk, pad, .. } = vocabulary;
    out.set("tokenizer.ggml.model", if is_tekken { "gpt2" } else { "llama" });
    if is_tekken {
        out.set("tokenizer.ggml.pre", "tekken");
        if !merges.is_empty() {
            out.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
        }
    }
    out.set("tokenizer.ggml.bos_token_id", bos);
    out.set("tokenizer.ggml.eos_token_id", eos);
    out.set("tokenizer.ggml.unknown_token_id", unk);
    out.set("tokenizer.ggml.padding_token_id", pad);
    let size = tokens.len() as u32;
    if is_tekken {
        // ref: zeros without a decimal point make an array of integers
        let zeros = vec![0i32; tokens.tokens.len()];
        tokens.write_scored(Some(zeros.into()), out);
    } else {
        tokens.write_tokens(out);
    }
    if !size_key.starts_with('.') {
        out.set(size_key, size);
    }
    out.set("tokenizer.ggml.add_bos_token", true);
    out.set("tokenizer.ggml.add_eos_token", false);
    if let Some(template) = template {
        out.set("tokenizer.chat_template", template);
    }
}

/// Returns the template: the checkpoint's own if it is in Mistral's format, else llama.cpp's name of the version's
/// template.
fn template(context: &mut Context<'_>, vocabulary: &MistralVocabulary) -> Result<Option<String>> {
    match &context.request.template {
        Template::None => return Ok(None),
        Template::Given(text) => return Ok(Some(text.clone())),
        Template::Files => {}
    }
    if context.request.mistral_format
        && let Some(text) = context.directory.text("chat_template.jinja")?
    {
        return Ok(Some(text));
    }
    let name = match (vocabulary.version.as_str(), vocabulary.is_tekken) {
        ("v1", _) => "mistral-v1",
        ("v3", false) => "mistral-v3",
        ("v3", true) => "mistral-v3-tekken",
        ("v7", false) => "mistral-v7",
        ("v7", true) => "mistral-v7-tekken",
        (version, _) => {
            let version = version.to_owned();
            context.warnings.push(TokenizerWarning::NoMistralTemplate { version });
            return Ok(None);
        }
    };
    Ok(Some(name.to_owned()))
}

fn of_tekken(path: &Path, file: TekkenFile) -> Result<MistralVocabulary> {
    let member = |member, problem| TokenizerError::Member { path: path.to_owned(), member, problem };
    let TekkenConfig { default_vocab_size: size, default_num_special_tokens: n_special, version } =
        file.config;
    if !VERSIONS.contains(&version.as_str()) {
        return Err(member(
            "config.version",
            "not a version of tekken: `v1`, `v2`, `v3`, `v7`, `v11`, `v13`, `v15`",
        ));
    }
    check_size(path, size)?;
    let n_text = size.checked_sub(n_special).filter(|n| *n <= file.vocab.len() as u64).ok_or_else(|| {
        member("config.default_vocab_size", "not the number of special tokens and some or all of `vocab`")
    })?;
    let special = special_tokens(path, file.special_tokens, &version, n_special)?;
    let ranks = TekkenRanks::read(path, file.vocab, n_text as usize)?;
    let id = |text: &str| {
        let at = special.iter().position(|token| token == text);
        at.map(|at| at as u32)
            .ok_or_else(|| member("special_tokens", "lacks one of `<unk>`, `<s>`, `</s>` and `<pad>`"))
    };
    let (bos, eos, unk, pad) = (id("<s>")?, id("</s>")?, id("<unk>")?, id("<pad>")?);
    let merges = ranks.merges(path)?;
    let mut tokens = TokenList::default();
    for token in special {
        tokens.push(token, 0.0, TokenType::Control);
    }
    for token in &ranks.tokens {
        tokens.push(written(token), 0.0, TokenType::Normal);
    }
    Ok(MistralVocabulary { is_tekken: true, version, tokens, merges, bos, eos, unk, pad })
}

/// Returns the special tokens by id; missing names are filled in.
fn special_tokens(
    path: &Path,
    listed: Option<Vec<TekkenSpecial>>,
    version: &str,
    n: u64,
) -> Result<Vec<String>> {
    let mut special: Vec<String> = Vec::new();
    let bad = |at, problem| TokenizerError::TekkenToken {
        path: path.to_owned(),
        list: "special_tokens",
        at,
        problem,
    };
    match listed {
        Some(listed) => {
            for (at, token) in listed.into_iter().enumerate() {
                if token.rank != at as u64 {
                    return Err(bad(at, "the ranks are not in order"));
                }
                if special.contains(&token.token_str) {
                    return Err(bad(at, "the token is listed twice"));
                }
                if at as u64 >= n {
                    return Err(bad(at, "more tokens than `config.default_num_special_tokens`"));
                }
                special.push(token.token_str);
            }
        }
        None if matches!(version, "v1" | "v2" | "v3" | "v7") => {
            special.extend(OLD_SPECIAL.iter().map(|&token| token.to_owned()));
            if special.len() as u64 > n {
                return Err(bad(special.len() - 1, "more tokens than `config.default_num_special_tokens`"));
            }
        }
        None => {
            let problem = "missing, which only files up to version 7 may lack";
            return Err(TokenizerError::Member { path: path.to_owned(), member: "special_tokens", problem });
        }
    }
    // `n` is at most a vocabulary's size.
    special.extend((special.len() as u64..n).map(|at| format!("<SPECIAL_{at}>")));
    Ok(special)
}

struct TekkenRanks {
    tokens: Vec<Vec<u8>>,
    by_bytes: HashMap<Vec<u8>, usize>,
}

impl TekkenRanks {
    fn read(path: &Path, vocab: Vec<TekkenEntry>, n: usize) -> Result<Self> {
        let mut tokens = Vec::with_capacity(n.min(vocab.len()));
        let mut by_bytes = HashMap::with_capacity(n.min(vocab.len()));
        for (at, token) in vocab.into_iter().take(n).enumerate() {
            let bad =
                |problem| TokenizerError::TekkenToken { path: path.to_owned(), list: "vocab", at, problem };
            if token.rank != at as u64 {
                return Err(bad("the ranks are not in order"));
            }
            let bytes =
                base64(token.token_bytes.as_bytes()).ok_or_else(|| bad("`token_bytes` is not base64"))?;
            if bytes.len() > MAX_TOKEN_BYTES {
                return Err(bad("a token has 1 to 512 bytes"));
            }
            if at < 256 && bytes != [at as u8] {
                return Err(bad("the first 256 tokens are the bytes in order"));
            }
            if by_bytes.insert(bytes.clone(), at).is_some() {
                return Err(bad("the token is listed twice"));
            }
            tokens.push(bytes);
        }
        Ok(Self { tokens, by_bytes })
    }

    /// Returns all splits of each token into two others, by the token's rank, then by theirs.
    fn merges(&self, path: &Path) -> Result<Vec<Vec<u8>>> {
        let mut merges = Vec::new();
        for (at, token) in self.tokens.iter().enumerate().skip(256) {
            let mut pairs: Vec<(usize, usize, usize)> = (1..token.len())
                .filter_map(|cut| {
                    let (left, right) = token.split_at(cut);
                    Some((*self.by_bytes.get(left)?, *self.by_bytes.get(right)?, cut))
                })
                .collect();
            if pairs.is_empty() {
                let problem = "no two tokens make it";
                return Err(TokenizerError::TekkenToken {
                    path: path.to_owned(),
                    list: "vocab",
                    at,
                    problem,
                });
            }
            pairs.sort_unstable();
            for (_, _, cut) in pairs {
                let (left, right) = token.split_at(cut);
                merges.push(format!("{} {}", written(left), written(right)).into_bytes());
            }
        }
        Ok(merges)
    }
}

fn of_model(path: &Path, name: &str, model: &ModelProto) -> Result<MistralVocabulary> {
    let size = model.pieces.len() as u64;
    check_size(path, size)?;
    let mut tokens = TokenList { scores: Some(Vec::new()), ..TokenList::default() };
    for piece in &model.pieces {
        tokens.push(piece.piece(), piece.score(), token_type(piece));
    }
    let id = |text: &str, kind| {
        let is_it =
            |piece: &super::super::Piece| piece.piece() == text.as_bytes() && piece.piece_kind() == kind;
        model.pieces.iter().position(is_it).map(|at| at as u32)
    };
    let needed = |text, kind| {
        let problem =
            "a model of Mistral's has the control pieces `<s>` and `</s>` and the unknown piece `<unk>`";
        id(text, kind).ok_or(TokenizerError::Member { path: path.to_owned(), member: "pieces", problem })
    };
    let (bos, eos) = (needed("<s>", PieceKind::Control)?, needed("</s>", PieceKind::Control)?);
    let unk = needed("<unk>", PieceKind::Unknown)?;
    let pad = id("<pad>", PieceKind::Control).unwrap_or(eos);
    let suffix = name.rsplit('.').next().unwrap_or_default();
    let version = suffix.split('m').next().unwrap_or_default();
    let version = if VERSIONS.contains(&version) { version } else { "v1" }.to_owned();
    Ok(MistralVocabulary { is_tekken: false, version, tokens, merges: Vec::new(), bos, eos, unk, pad })
}
