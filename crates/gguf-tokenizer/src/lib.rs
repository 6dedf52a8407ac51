//! Vocabularies: read from tokenizer files, identified, written as `tokenizer.*` keys.
//!
//! [`build`] converts a checkpoint directory to the keys of a GGUF file. A card's `[tokenizer]` table arrives
//! evaluated, as a [`TokenizerRequest`]. [`build_given`] does the same for a container that has its own vocabulary.
//! [`to_hf`] is the inverse. [`Encoder`] converts text to ids by these keys.

mod account;
mod by_content;
mod byte_alphabet;
pub mod chat_template;
pub mod emit;
mod encode;
mod ends;
mod error;
pub mod files;
mod given;
mod hf_decoder;
pub mod hf_json;
pub mod hf_vocab;
mod merges;
mod modes;
pub mod pretokenizer;
mod python_literal;
mod rank_code;
mod rebuild;
pub mod reference;
mod roles;
pub mod sentencepiece;
pub mod special;

use std::path::Path;

pub use byte_alphabet::{byte_of, char_of};
pub use encode::{EncodeError, Encoder, read_alike};
pub use ends::EndTokens;
pub(crate) use error::Result;
pub use error::{Moved, TokenizerError, TokenizerWarning};
pub use given::{GivenKind, GivenToken, GivenVocabulary};
pub use hf_json::{HfJson, HfKind};
pub use pretokenizer::is_pre_tokenizer;
pub use rebuild::{HfTokenizerFiles, special_ids, to_hf};
pub use reference::{REFERENCE_JOB, reference_job};
pub use sentencepiece::{ModelProto, Piece, TrainerSpec};

pub use gguf_format::{Mode, ModeRequest, RankCode, SpecialToken, Template, TokenizerRequest};

use gguf_format::Metadata;

use self::files::Directory;
use self::modes::{Attempt, Context};

/// A vocabulary as keys.
#[derive(Clone, Debug)]
pub struct Built {
    /// Keys in file order.
    pub rows: Metadata,
    /// Mode that fitted.
    pub mode: Mode,
    /// Oddities of the files.
    pub warnings: Vec<TokenizerWarning>,
    /// What becomes of each key of the files.
    pub pieces: Vec<gguf_core::account::Piece>,
}

/// Builds the `tokenizer.*` keys from the tokenizer files of a directory.
///
/// # Exactness
/// Keys, types, values and order equal llama.cpp 0.5.0's converter, except where these make llama.cpp tokenize
/// differently from the original (`docs/differences.md`).
///
/// # Errors
/// I/O errors, malformed files, inconsistent vocabularies, an unknown pre-tokenizer, no fitting mode.
pub fn build(directory: &Path, request: &TokenizerRequest) -> Result<Built> {
    let files = Directory::new(directory, request.limits).with_others(request.others.as_ref());
    let mut tried = Vec::new();
    let mut warnings = Vec::new();
    let needs_files = request.modes.is_empty() || request.modes.iter().any(|mode| mode.mode != Mode::None);
    let hf = if needs_files { HfJson::read(&files)? } else { None };
    let by_content = by_content::modes(&files, hf.as_ref(), request)?;
    // A vocabulary that is built into the converter is only for checkpoints without tokenizer files.
    let (builtin, asked): (Vec<_>, Vec<_>) =
        request.modes.iter().partition(|asked| asked.mode == Mode::Builtin);
    let modes: Vec<&ModeRequest> = asked.into_iter().chain(&by_content).chain(builtin).collect();
    for (at, &mode) in modes.iter().enumerate() {
        let mut rows = Metadata::new();
        let plain = !matches!(mode.mode, Mode::None | Mode::Mistral);
        if plain {
            extend(&mut rows, &request.before);
        }
        let mut own_warnings = Vec::new();
        let mut context = Context {
            directory: files,
            request,
            mode,
            hf: hf.as_ref(),
            out: &mut rows,
            warnings: &mut own_warnings,
        };
        match modes::run(&mut context) {
            Ok(Attempt::Done) => {
                special::extend(&mut rows, &mode.after);
                if plain {
                    special::extend(&mut rows, &request.after);
                }
                special::write_last(&request.last, &mut rows);
                warnings.append(&mut own_warnings);
                settle(&files, hf.as_ref(), request, &mut rows, &mut warnings)?;
                if let Some(hf) = &hf {
                    account::check(&files, hf, mode.mode, request, &rows, &mut warnings)?;
                }
                let pieces = if needs_files {
                    account::pieces(&files, hf.as_ref(), mode.mode, &mut warnings)?
                } else {
                    Vec::new()
                };
                return Ok(Built { rows, mode: mode.mode, warnings, pieces });
            }
            Ok(Attempt::Absent(reason)) => tried.push((mode.mode, reason)),
            // A file of another format under the name that this mode reads (Llama 3's tokenizer.model).
            Err(
                error @ (TokenizerError::SentencePiece { .. }
                | TokenizerError::RanksAsPieces { .. }
                | TokenizerError::NoPieces { .. }
                | TokenizerError::JsonModel { .. }),
            ) if at + 1 < modes.len() => {
                let reason = error.to_string();
                warnings.push(TokenizerWarning::ModePassedOver { mode: mode.mode, reason: reason.clone() });
                tried.push((mode.mode, reason));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(hf) = hf.as_ref().filter(|hf| hf.kind().is_none()) {
        let (path, expected) = (files.join(hf_json::FILE), "BPE, Unigram or WordPiece");
        let found = hf.model.kind.clone().unwrap_or_else(|| "missing".to_owned());
        return Err(TokenizerError::JsonModel { path, found, expected });
    }
    Err(TokenizerError::NothingFits { path: directory.to_owned(), tried })
}

/// Builds the `tokenizer.*` keys from a vocabulary in memory. `path` names the container in messages. The vocabulary
/// determines its kind; the request's modes determine the rows that a card adds.
///
/// # Errors
/// [`TokenizerError`]: an unknown pre-tokenizer, more tokens than any model has, malformed files.
pub fn build_given(path: &Path, given: &GivenVocabulary, request: &TokenizerRequest) -> Result<Built> {
    let directory = Directory::in_memory(path, request.limits, &given.files);
    let has_model = directory.bytes("tokenizer.model")?.is_some();
    // A SentencePiece model declares its own kind: the unigram mode passes a BPE model on.
    let own_modes =
        if has_model && given.kind == GivenKind::Pieces { &[Mode::Unigram] } else { given.kind.modes() };
    let from_card = request.modes.iter().find(|mode| own_modes.contains(&mode.mode)).cloned();
    let mut mode = from_card.unwrap_or_else(|| ModeRequest::new(own_modes[0]));
    mode.files.clear();
    let mut rows = Metadata::new();
    extend(&mut rows, &request.before);
    let mut warnings = Vec::new();
    let mut context =
        Context { directory, request, mode: &mode, hf: None, out: &mut rows, warnings: &mut warnings };
    let attempt = if has_model { modes::run(&mut context)? } else { modes::run_given(&mut context, given)? };
    if let Attempt::Absent(reason) = attempt {
        return Err(TokenizerError::NothingFits { path: path.to_owned(), tried: vec![(mode.mode, reason)] });
    }
    special::extend(&mut rows, &mode.after);
    special::extend(&mut rows, &request.after);
    special::write_last(&request.last, &mut rows);
    settle(&directory, None, request, &mut rows, &mut warnings)?;
    Ok(Built { rows, mode: mode.mode, warnings, pieces: Vec::new() })
}

/// Checks the keys of a vocabulary against all files that declare its roles and templates.
fn settle(
    directory: &Directory<'_>,
    hf: Option<&HfJson>,
    request: &TokenizerRequest,
    rows: &mut Metadata,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<()> {
    if !rows.contains("tokenizer.ggml.tokens") {
        return Ok(());
    }
    emit::check_texts(directory.path(), rows)?;
    warnings.extend(emit::missing_bytes(rows));
    if request.template == Template::Files {
        chat_template::settle(directory, rows, warnings)?;
    }
    roles::settle(directory, hf, request, rows, warnings)
}

fn extend(rows: &mut Metadata, more: &Metadata) {
    for (key, value) in more.iter() {
        rows.set(key, value.clone());
    }
}
