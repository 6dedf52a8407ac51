//! Byte-level BPE from a rank file (`qwen.tiktoken`): one token per line, its bytes in base64 and its rank. Merges
//! follow from the ranks; special tokens are defined in the tokenizer's Python file.

use crate::Result;
use std::collections::HashMap;
use std::path::Path;

use gguf_format::{Array, Value};

use super::super::byte_alphabet::written;
use super::super::emit::{MAX_TOKENS, TokenList, TokenType, n_tokens};
use super::super::files::CONFIG;
use super::super::rank_code::CodeFacts;
use super::super::special::token_text;
use super::super::{TokenizerError, pretokenizer};
use super::added_tokens_decoder::{TokenOverride, decoder_entries};
use super::{Attempt, Context};

/// Maximum length of a token in bytes. Released vocabularies stay below 256.
pub(super) const MAX_TOKEN_BYTES: usize = 512;
/// Names of rank files to try if the model family is unknown.
const NAMES: [&str; 2] = ["qwen.tiktoken", "tokenizer.model"];

/// Writes the keys of a rank vocabulary.
///
/// # Exactness
/// Equals `_set_vocab_qwen` of llama.cpp 0.5.0 for Qwen and StableLM, and the equivalents in its classes for Hunyuan
/// and Kimi.
pub(super) fn run(context: &mut Context<'_>) -> Result<Attempt> {
    let code = context.mode.rank_code.map(CodeFacts::of);
    let own: Vec<&str> = context.mode.files.iter().map(String::as_str).collect();
    let names = match (own.is_empty(), code) {
        (false, _) => own,
        (true, Some(code)) => vec![code.file],
        (true, None) => NAMES.to_vec(),
    };
    let mut found = None;
    for name in &names {
        if let Some(bytes) = context.directory.bytes(name)? {
            found = Some((context.directory.join(name), bytes));
            break;
        }
    }
    let Some((path, bytes)) = found else {
        return Ok(Attempt::Absent(format!("{} is missing", names.join(" or "))));
    };
    let ranks = TokenRanks::read(&path, &bytes)?;
    let code = code.ok_or_else(|| TokenizerError::RankCodeNotSaid { path: path.clone() })?;
    let added = special_tokens(context, code, ranks.end())?;
    let end = added.iter().map(|token| token.0 + 1).max().unwrap_or(0).max(ranks.end());
    let size = n_tokens(context.request, end);
    let mut tokens = TokenList::unused(&path, size, None)?;
    let merges = set_ranks(&path, code, &ranks, &mut tokens)?;
    for (id, text) in &added {
        set(&path, &mut tokens, "special", *id, text, TokenType::Control)?;
    }
    tokens.retype(context.request);
    let mut special = context.special(&tokens)?;
    if let Some(end_of_text) = code.end_of_text.and_then(|text| tokens.id(text)) {
        if special.ids.is_empty() {
            special.set("bos", end_of_text, context.warnings);
            special.set("eos", end_of_text, context.warnings);
        }
        special.set("unk", end_of_text, context.warnings);
    }
    let own_end = own_end(context, code, &tokens)?;
    let pre = context.request.pre.as_deref().map(pretokenizer::accept).transpose()?;
    tokens.write("gpt2", pre.as_deref().unwrap_or(code.pre), context.out);
    if !merges.is_empty() {
        context.out.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    }
    special.write(context.out);
    if let Some(id) = own_end {
        context.out.set("tokenizer.ggml.eos_token_id", id);
    }
    Ok(Attempt::Done)
}

/// Returns the special tokens of the code, with the names that the configuration gives some of them.
fn special_tokens(context: &Context<'_>, code: &CodeFacts, n_ranks: u64) -> Result<Vec<(u64, String)>> {
    let mut added = code.special(n_ranks, context.request.size);
    if code.reads_config {
        for TokenOverride { id, text, .. } in decoder_entries(context, MAX_TOKENS - 1)? {
            match added.iter_mut().find(|own| own.0 == id) {
                Some(own) => own.1 = text,
                None => added.push((id, text)),
            }
        }
    }
    Ok(added)
}

/// Sets the text tokens and returns the merges that make them.
fn set_ranks(
    path: &Path,
    code: &CodeFacts,
    ranks: &TokenRanks,
    tokens: &mut TokenList,
) -> Result<Vec<Vec<u8>>> {
    let mut merges = Vec::with_capacity(ranks.tokens.len());
    for (token, rank) in &ranks.tokens {
        let text = written(token);
        set(path, tokens, "rank", u64::from(*rank), &text, TokenType::Normal)?;
        if token.len() < 2 {
            continue;
        }
        match ranks.split(token, *rank) {
            Some(at) => {
                merges.push(format!("{} {}", written(&token[..at]), written(&token[at..])).into_bytes());
            }
            None if code.skips_unreachable => {}
            None => {
                return Err(TokenizerError::RankUnreachable {
                    path: path.to_owned(),
                    rank: *rank,
                    token: text,
                });
            }
        }
    }
    Ok(merges)
}

/// Returns the id of the tokenizer's own end token, if it overrides the configuration's.
fn own_end(context: &Context<'_>, code: &CodeFacts, tokens: &TokenList) -> Result<Option<u32>> {
    let Some(default) = code.own_end else { return Ok(None) };
    let config = context.directory.tree(CONFIG)?;
    let text = config.get("eos_token").and_then(token_text).unwrap_or(default);
    let id = tokens.id(text).and_then(|id| u32::try_from(id).ok());
    id.map(Some).ok_or_else(|| TokenizerError::NotAToken {
        path: context.directory.join(CONFIG),
        key: "eos_token",
        token: text.to_owned(),
    })
}

fn set(
    path: &Path,
    tokens: &mut TokenList,
    key: &'static str,
    id: u64,
    text: &str,
    kind: TokenType,
) -> Result<()> {
    let size = tokens.len();
    if tokens.set(id, text, 0.0, kind) {
        return Ok(());
    }
    let token = text.to_owned();
    Err(TokenizerError::IdBeyondVocabulary { path: path.to_owned(), key, token, id, size })
}

/// Tokens and their ranks, in the order of the file.
struct TokenRanks {
    tokens: Vec<(Vec<u8>, u32)>,
    by_bytes: HashMap<Vec<u8>, u32>,
}

impl TokenRanks {
    fn read(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut tokens: Vec<(Vec<u8>, u32)> = Vec::new();
        let mut by_bytes = HashMap::new();
        let mut by_rank: HashMap<u32, usize> = HashMap::new();
        for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            let text = text.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let bad = |problem| TokenizerError::Line { path: path.to_owned(), line, problem };
            let at = text.iter().position(|&byte| byte == b' ').ok_or_else(|| bad("no rank"))?;
            let token = base64(&text[..at]).ok_or_else(|| bad("the token is not base64"))?;
            let rank = std::str::from_utf8(text[at..].trim_ascii()).ok().and_then(|rank| rank.parse().ok());
            let rank: u32 = rank.ok_or_else(|| bad("the rank is no number"))?;
            if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
                return Err(bad("a token has 1 to 512 bytes"));
            }
            if u64::from(rank) >= MAX_TOKENS {
                return Err(bad("the rank is beyond any vocabulary"));
            }
            if by_rank.insert(rank, tokens.len()).is_some() {
                return Err(bad("the rank is listed twice"));
            }
            if by_bytes.insert(token.clone(), rank).is_some() {
                return Err(bad("the token is listed twice"));
            }
            tokens.push((token, rank));
        }
        if tokens.is_empty() {
            return Err(TokenizerError::Line { path: path.to_owned(), line: 1, problem: "no tokens" });
        }
        Ok(Self { tokens, by_bytes })
    }

    /// Returns the highest rank plus one.
    fn end(&self) -> u64 {
        self.tokens.iter().map(|token| u64::from(token.1) + 1).max().unwrap_or(0)
    }

    /// Returns the offset at which the last merge of a token joins its two halves. All merges of a lower rank are
    /// applied to its bytes, lowest rank first, leftmost of equal ranks. `None` if not exactly two parts remain.
    fn split(&self, token: &[u8], rank: u32) -> Option<usize> {
        let mut cuts: Vec<usize> = (0..=token.len()).collect();
        while cuts.len() > 3 {
            let pair = |at: usize| self.by_bytes.get(token.get(cuts[at]..cuts[at + 2])?).copied();
            let best = (0..cuts.len() - 2).filter_map(|at| Some((pair(at)?, at))).min()?;
            if best.0 >= rank {
                return None;
            }
            cuts.remove(best.1 + 1);
        }
        cuts.get(1).copied().filter(|_| cuts.len() == 3)
    }
}

/// Decodes standard base64 with padding.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let n_padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let digits = text.get(..text.len() - n_padding).filter(|_| n_padding < 3)?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0u32, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
            bits &= (1 << n_bits) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_strict() {
        assert_eq!(base64(b"aGk="), Some(b"hi".to_vec()));
        assert_eq!(base64(b"IQ=="), Some(b"!".to_vec()));
        assert_eq!(base64(b"YWJj"), Some(b"abc".to_vec()));
        for bad in [&b""[..], b"a", b"aG=k", b"aGl=", b"====", b"a-b="] {
            assert_eq!(base64(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_last_merge_is_found() {
        let line = |token: &str, rank: u32| -> String {
            let mut text = String::new();
            for chunk in token.as_bytes().chunks(3) {
                let bits = chunk.iter().fold(0u32, |bits, &byte| (bits << 8) | u32::from(byte))
                    << (8 * (3 - chunk.len()));
                let digit = |shift: u32| {
                    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                        [(bits >> shift & 63) as usize] as char
                };
                let digits = [18, 12, 6, 0].map(digit);
                text.extend(&digits[..=chunk.len()]);
                text.push_str(&"="[..].repeat(3 - chunk.len()));
            }
            format!("{text} {rank}\n")
        };
        let file: String =
            ["a", "b", "c", "ab", "bc", "abc"].iter().zip(0..).map(|(t, r)| line(t, r)).collect();
        let ranks = TokenRanks::read(Path::new("r"), file.as_bytes()).unwrap();
        assert_eq!(ranks.split(b"ab", 3), Some(1));
        assert_eq!(ranks.split(b"abc", 5), Some(2), "`ab` merges before `bc`");
        assert_eq!(ranks.split(b"abca", 9), Some(3));
        assert_eq!(ranks.split(b"cba", 9), None);
        for (bad, want) in [
            ("YQ==", "r: line 1: no rank"),
            ("YQ== x", "r: line 1: the rank is no number"),
            ("YQ== 1\nYQ== 2", "r: line 2: the token is listed twice"),
            ("YQ== 1\nYg== 1", "r: line 2: the rank is listed twice"),
            ("", "r: line 1: no tokens"),
        ] {
            let error = TokenRanks::read(Path::new("r"), bad.as_bytes()).err().unwrap();
            assert_eq!(error.to_string(), want);
        }
    }
}
