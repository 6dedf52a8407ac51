//! Parity with the original tokenizer of a model: `tokenizer.json`, read by the `tokenizers` crate, or the pieces of a
//! SentencePiece model.

use std::path::Path;

use serde_json::Value as Json;

use crate::checks::baseline_keys;
use crate::checks::vocabulary::strings;
use crate::{Check, Finding, Model, Severity, TextEncoder, VerifyError};
use gguf_arch::LostValue;
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::limits::Limits;
use gguf_core::text::{escape, escape_bytes};
use gguf_format::keys::ANNOTATION_PREFIX;
use gguf_format::{Array, Metadata, Value};
use gguf_tokenizer::files::Directory;
use gguf_tokenizer::reference::ReferenceTokenizer;
use gguf_tokenizer::sentencepiece::{ModelProto, first_of};

const CHECK: Check = Check::SourceTokenizer;
const TOKENS: &str = "tokenizer.ggml.tokens";
/// File names of SentencePiece models.
const MODELS: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];
/// Maximum bytes of one text that are compared, and of all texts: differences show early.
const TEXT_BYTES: usize = 1 << 18;
const ALL_BYTES: usize = 1 << 22;
/// Number of tokens shown on both sides of a difference.
const SHOWN: usize = 6;

/// Tokenizer of the checkpoint that a file was made from.
///
/// A file should have the keys that a conversion writes: only the converter knows which pieces get blanks in front,
/// which ids are moved and which scores are replaced. The checkpoint's own files are the reference for keys if it
/// cannot be converted, and always for the ids of texts.
pub struct OriginTokenizer {
    kind: OriginFormat,
    /// True if texts begin with BOS; `None` if the files do not declare it.
    adds_bos: Option<bool>,
    /// Keys that a conversion writes.
    keys: ExpectedKeys,
    /// Facts of the configuration that no conversion writes, or only as an annotation.
    lost: Vec<LostValue>,
}

/// Keys that a conversion of the checkpoint writes.
enum ExpectedKeys {
    /// Known keys.
    Converted(Box<Metadata>),
    /// Keys of the baseline, with which all keys of a file are compared.
    OfBaseline,
    /// Unknown keys, with the reason.
    Unknown(String),
}

enum OriginFormat {
    Json(Box<JsonTokenizer>),
    Pieces(Box<ModelProto>),
    /// `tokenizer.json` that the reference implementation rejects, with the reason.
    Refused(String),
    /// Files of another kind, which only the converter reads.
    Other,
}

/// `tokenizer.json`, with its tokens by id.
struct JsonTokenizer {
    tokenizer: ReferenceTokenizer,
    tokens: Vec<(u32, String)>,
}

impl JsonTokenizer {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let tokenizer = ReferenceTokenizer::new(bytes)?;
        let tokens = tokenizer.vocabulary()?;
        Ok(Self { tokenizer, tokens })
    }

    /// Returns true if the post-processor puts a token in front of a text.
    fn adds_bos(&self) -> Option<bool> {
        let [full, bare] = [true, false].map(|special| self.tokenizer.ids("a", special));
        Some(full.ok()?.first() != bare.ok()?.first())
    }
}

/// Compares a model's tokenizer with its original, if that is given. Errors among `earlier` findings about keys of the
/// tokenizer explain different ids.
pub(super) fn check(model: &Model<'_>, texts: &[&str], earlier: &[Finding]) -> Vec<Finding> {
    let Some(origin) = model.origin else { return Vec::new() };
    let differs = |f: &Finding| f.severity == Severity::Error && f.check == Check::TokenizerParity;
    origin.compare(model.metadata, model.encoder, texts, earlier.iter().any(differs))
}

impl OriginTokenizer {
    /// Opens the tokenizer of a checkpoint directory and converts it. The keys reveal a wrong pre-tokenizer even if no
    /// text at hand does.
    ///
    /// # Errors
    /// I/O errors, malformed files, no tokenizer.
    pub fn of_source(path: &Path) -> Result<Self, VerifyError> {
        let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
        fs_err::read_dir(path)?;
        let (keys, lost) = match Conversion::plan(path, &options) {
            Ok(conversion) => {
                let lost = conversion.mapping().lost.clone();
                (ExpectedKeys::Converted(Box::new(conversion.metadata().clone())), lost)
            }
            Err(error) => (ExpectedKeys::Unknown(error.to_string()), Vec::new()),
        };
        Self::open(path, keys, lost)
    }

    /// Opens the tokenizer of a directory that is the baseline: keys are compared with those of its conversion.
    ///
    /// # Errors
    /// I/O errors, malformed files, no tokenizer.
    pub fn of_baseline(path: &Path) -> Result<Self, VerifyError> {
        Self::open(path, ExpectedKeys::OfBaseline, Vec::new())
    }

    fn open(path: &Path, keys: ExpectedKeys, lost: Vec<LostValue>) -> Result<Self, VerifyError> {
        let directory = Directory::new(path, Limits::default());
        fs_err::read_dir(path)?;
        let config = directory.tree("tokenizer_config.json")?;
        let mut adds_bos = config.get("add_bos_token").and_then(Json::as_bool);
        let kind = if let Some(bytes) = directory.bytes("tokenizer.json")? {
            match JsonTokenizer::read(&bytes) {
                Ok(reference) => {
                    adds_bos = adds_bos.or(reference.adds_bos());
                    OriginFormat::Json(Box::new(reference))
                }
                Err(reason) if !matches!(keys, ExpectedKeys::Unknown(_)) => OriginFormat::Refused(reason),
                Err(reason) => {
                    let path = directory.join("tokenizer.json");
                    return Err(VerifyError::OriginTokenizer { path, reason });
                }
            }
        } else if let Some((_, model)) = first_of(&directory, &MODELS)? {
            OriginFormat::Pieces(Box::new(model))
        } else if matches!(&keys, ExpectedKeys::Converted(keys) if keys.contains(TOKENS)) {
            OriginFormat::Other
        } else {
            return Err(VerifyError::NoOriginTokenizer { path: path.to_owned() });
        };
        Ok(Self { kind, adds_bos, keys, lost })
    }

    /// Compares a file's vocabulary, and its ids of texts, with the origin's. `keys_differ` is true if keys of the
    /// tokenizer are known to differ from the baseline's.
    fn compare(
        &self,
        metadata: &Metadata,
        encoder: Result<&dyn TextEncoder, &str>,
        texts: &[&str],
        keys_differ: bool,
    ) -> Vec<Finding> {
        let Some(tokens) = strings(metadata, TOKENS) else { return Vec::new() };
        let is_annotated = metadata.iter().any(|(key, _)| key.starts_with(ANNOTATION_PREFIX));
        let lost = self.lost.iter().filter(|lost| !(lost.can_be_annotated && is_annotated));
        let mut findings: Vec<Finding> =
            lost.map(|lost| Finding::warning(Check::Hparams, lost.to_string())).collect();
        match &self.keys {
            ExpectedKeys::Converted(keys) => {
                findings.extend(baseline_keys::tokenizer(metadata, keys, CHECK, "the source"));
            }
            ExpectedKeys::OfBaseline => {}
            ExpectedKeys::Unknown(reason) => {
                let message =
                    format!("keys are not compared with the source's conversion: {}", escape(reason));
                findings.push(Finding::unchecked(CHECK, message));
            }
        }
        let is_unknown = matches!(self.keys, ExpectedKeys::Unknown(_));
        let differs = keys_differ || findings.iter().any(|finding| finding.severity == Severity::Error);
        match &self.kind {
            OriginFormat::Json(reference) => {
                let JsonTokenizer { tokenizer, tokens: expected } = &**reference;
                if is_unknown {
                    findings.extend(compare_tokens(expected, tokens, is_word_pieces(metadata)));
                }
                match encoder {
                    Ok(encoder) => {
                        let found = compare_ids(tokenizer, encoder, tokens, texts);
                        // If the keys are those of the conversion, a remaining difference is a limit of the format.
                        findings.extend(found.map(|found| match found.severity {
                            Severity::Error if !(is_unknown || differs) => as_converted(&found),
                            _ => found,
                        }));
                    }
                    Err(reason) => {
                        let message = format!("ids are not compared with tokenizer.json: {reason}");
                        findings.push(Finding::unchecked(CHECK, message));
                    }
                }
            }
            OriginFormat::Pieces(model) if is_unknown => {
                findings.extend(compare_pieces(model, metadata, tokens));
            }
            OriginFormat::Refused(reason) => {
                let message = format!("ids are not compared with tokenizer.json: {}", escape(reason));
                findings.push(Finding::unchecked(CHECK, message));
            }
            OriginFormat::Pieces(_) | OriginFormat::Other => {}
        }
        if let (Some(expected), Ok(encoder), true) = (self.adds_bos, encoder, is_unknown || differs) {
            let found = encoder.start_of_text().is_some();
            if found != expected {
                let message = if expected {
                    "the file does not begin texts with BOS, its source does"
                } else {
                    "the file begins texts with BOS, its source does not"
                };
                findings.push(Finding::error(CHECK, message));
            }
        }
        findings
    }
}

fn as_converted(found: &Finding) -> Finding {
    let message = format!("{}; the file's keys are those that the source is converted to", found.message);
    Finding::warning(CHECK, message)
}

fn is_word_pieces(metadata: &Metadata) -> bool {
    metadata.get("tokenizer.ggml.model").and_then(Value::as_str) == Some("bert")
}

/// Compares two tokens; blanks may be written as in SentencePiece.
fn same_token(a: &str, b: &[u8]) -> bool {
    a.as_bytes() == b || (a.contains('\u{2581}') && a.replace('\u{2581}', " ").as_bytes() == b)
}

/// Compares two pieces of words: GGUF marks those that begin a word, WordPiece those that do not.
fn same_word_piece(a: &str, b: &[u8]) -> bool {
    match a.strip_prefix("##") {
        Some(rest) => rest.as_bytes() == b,
        None => b.strip_prefix("\u{2581}".as_bytes()) == Some(a.as_bytes()),
    }
}

fn compare_tokens(expected: &[(u32, String)], tokens: &[Vec<u8>], is_word_pieces: bool) -> Option<Finding> {
    let mut n = 0usize;
    let mut first = None;
    for (id, expected) in expected {
        // Rows of the embedding that the tokenizer does not use are ignored.
        let Some(token) = usize::try_from(*id).ok().and_then(|id| tokens.get(id)) else { continue };
        let is_same = same_token(expected, token) || (is_word_pieces && same_word_piece(expected, token));
        if !is_same {
            n += 1;
            first.get_or_insert((id, expected, token));
        }
    }
    let all = expected.len();
    let missing = all.saturating_sub(tokens.len());
    match first {
        Some((id, expected, token)) => Some(Finding::error(
            CHECK,
            format!(
                "{n} of {} tokens differ, first {id}: `{}`, in tokenizer.json `{}`",
                tokens.len(),
                escape_bytes(token),
                escape(expected)
            ),
        )),
        None if missing > 0 => {
            Some(Finding::error(CHECK, format!("{} tokens, tokenizer.json has {all}", tokens.len())))
        }
        None => None,
    }
}

/// Compares the ids of texts; special tokens written out in them count as such on both sides.
fn compare_ids(
    tokenizer: &ReferenceTokenizer,
    encoder: &dyn TextEncoder,
    tokens: &[Vec<u8>],
    texts: &[&str],
) -> Option<Finding> {
    let mut left = ALL_BYTES;
    for text in texts {
        let mut end = text.len().min(TEXT_BYTES).min(left);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text[..end];
        left -= end;
        let expected = match tokenizer.ids(text, false) {
            Ok(ids) => ids,
            Err(reason) => {
                let message =
                    format!("tokenizer.json cannot encode `{}`: {}", start_of(text), escape(&reason));
                return Some(Finding::unchecked(CHECK, message));
            }
        };
        let found = match encoder.encode(text, true) {
            Ok(found) => found,
            Err(reason) => {
                let message = format!("`{}` has no ids: {reason}", start_of(text));
                return Some(Finding::error(CHECK, message));
            }
        };
        if found == expected {
            continue;
        }
        let at = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let before = encoder.decode(&found[..at]);
        let place = escape_bytes(&before[before.len().saturating_sub(24)..]);
        let show = |ids: &[u32]| {
            let shown = &ids[at..ids.len().min(at + SHOWN)];
            let token = |&id: &u32| {
                let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
                format!("{id} `{}`", token.map(|token| escape_bytes(token)).unwrap_or_default())
            };
            let more = if ids.len() > at + SHOWN { ", …" } else { "" };
            format!("[{}{more}]", shown.iter().map(token).collect::<Vec<_>>().join(", "))
        };
        let message = format!(
            "text `{}`: token {at}, after `{place}`: the file says {}, tokenizer.json {}",
            start_of(text),
            show(&found),
            show(&expected)
        );
        return Some(Finding::error(CHECK, message));
    }
    None
}

fn start_of(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", escape(&start))
}

/// Compares the tokens with the pieces and scores of a SentencePiece model; tokens after the last piece were added
/// later.
fn compare_pieces(model: &ModelProto, metadata: &Metadata, tokens: &[Vec<u8>]) -> Option<Finding> {
    let scores = match metadata.get("tokenizer.ggml.scores").and_then(Value::as_array) {
        Some(Array::F32(scores)) => scores.as_slice(),
        _ => &[],
    };
    if tokens.len() < model.pieces.len() {
        let message = format!("{} tokens, the SentencePiece model has {}", tokens.len(), model.pieces.len());
        return Some(Finding::error(CHECK, message));
    }
    for (id, (piece, token)) in model.pieces.iter().zip(tokens).enumerate() {
        let expected = piece.piece.as_deref().unwrap_or_default();
        let text = String::from_utf8_lossy(expected);
        // Blanks may be written in either form.
        if expected != token.as_slice() && !same_token(&text, token) {
            let message = format!(
                "token {id} is `{}`, in the SentencePiece model `{}`",
                escape_bytes(token),
                escape(&text)
            );
            return Some(Finding::error(CHECK, message));
        }
        let expected = piece.score.unwrap_or(0.0);
        if let Some(&found) = scores.get(id).filter(|&&found| found != expected) {
            let message = format!(
                "token {id} `{}` has the score {found}, in the SentencePiece model {expected}",
                escape_bytes(token)
            );
            return Some(Finding::error(CHECK, message));
        }
    }
    None
}
