//! Vocabularies: read from tokenizer files, identified, written as `tokenizer.*` keys.
//!
//! [`build`] is the way from a checkpoint directory to the keys of a GGUF file. What a card's `[tokenizer]` table
//! says arrives evaluated, as a [`BuildRequest`]. [`build_given`] is the same for a container that carries its own
//! vocabulary. [`to_hf`] is the way back. [`Encoder`] turns text into ids by these keys.

pub mod chat_template;
pub mod emit;
mod encode;
mod error;
pub mod files;
mod given;
pub mod hf_json;
pub mod hf_vocab;
mod merges;
mod modes;
pub mod pretokenizer;
mod rebuild;
mod request;
pub mod sentencepiece;
pub mod special;
mod specials;

use std::path::Path;

pub use encode::{EncodeError, Encoder};
pub use error::{TokenizerError, TokenizerWarning};
pub use given::{GivenKind, GivenToken, GivenVocabulary, build_given};
pub use rebuild::{HfTokenizerFiles, special_ids, to_hf};
pub use request::{BuildRequest, Mode, ModeRequest, SpecialValue};

use crate::gguf::Metadata;

use self::files::Directory;
use self::hf_json::HfJson;
use self::modes::{Attempt, Context};

/// A vocabulary as keys.
#[derive(Clone, Debug)]
pub struct Built {
    /// The keys in file order.
    pub rows: Metadata,
    /// The mode that fitted.
    pub mode: Mode,
    /// What is odd about the files.
    pub warnings: Vec<TokenizerWarning>,
}

/// Makes the `tokenizer.*` keys for the tokenizer files of a directory.
///
/// # Exactness
/// Keys, types, values and order equal llama.cpp 0.5.0's converter, except where that makes llama.cpp tokenize
/// unlike the original (`docs/differences.md`).
///
/// # Errors
/// I/O errors, malformed files, inconsistent vocabularies, an unknown pre-tokenizer, no fitting mode.
pub fn build(directory: &Path, request: &BuildRequest) -> Result<Built, TokenizerError> {
    let files = Directory::new(directory, request.limits);
    let mut tried = Vec::new();
    let mut warnings = Vec::new();
    let needs_files = request.modes.iter().any(|mode| mode.mode != Mode::None);
    let hf = if needs_files { HfJson::read(&files)? } else { None };
    for (at, mode) in request.modes.iter().enumerate() {
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
                extend(&mut rows, &mode.after);
                if plain {
                    extend(&mut rows, &request.after);
                }
                warnings.append(&mut own_warnings);
                return Ok(Built { rows, mode: mode.mode, warnings });
            }
            Ok(Attempt::Absent(reason)) => tried.push((mode.mode, reason)),
            // A file of another format under the name that this mode looks for (Llama 3's tokenizer.model).
            Err(
                error @ (TokenizerError::SentencePiece { .. }
                | TokenizerError::NoPieces { .. }
                | TokenizerError::JsonModel { .. }),
            ) if at + 1 < request.modes.len() => {
                let reason = error.to_string();
                warnings.push(TokenizerWarning::ModePassedOver { mode: mode.mode, reason: reason.clone() });
                tried.push((mode.mode, reason));
            }
            Err(error) => return Err(error),
        }
    }
    Err(TokenizerError::NothingFits { path: directory.to_owned(), tried })
}

fn extend(rows: &mut Metadata, more: &[(String, crate::gguf::Value)]) {
    for (key, value) in more {
        rows.set(key.as_str(), value.clone());
    }
}
