//! Request to the tokenizer from a mapping, and the origin of the vocabulary.

use crate::arch::{CardKind, Mapping};
use crate::convert::target::OpenTarget;
use crate::convert::{ConvertError, ConvertOptions, ModelSource, Vocabulary, token_rows};
use crate::gguf::Metadata;
use crate::tokenizer::{self, Built, Mode, Template, TokenizerRequest};

/// Builds the keys of the vocabulary.
///
/// # Errors
/// A chat template file that cannot be read; an invalid vocabulary.
pub(super) fn build(
    source: &ModelSource,
    mapping: &Mapping,
    options: &ConvertOptions,
) -> Result<Built, ConvertError> {
    if mapping.card.kind == CardKind::Mmproj {
        return Ok(Built { rows: Metadata::new(), mode: Mode::None, warnings: Vec::new() });
    }
    let target = match mapping.card.tokenizer.from.filter(|_| options.tokenizer) {
        None => None,
        Some(from) => {
            let missing = || ConvertError::NoTarget { card: mapping.card.name() };
            let target = OpenTarget::of(options)?.ok_or_else(missing)?;
            Some((target.vocabulary(from, mapping, options)?, target))
        }
    };
    let dir = target.as_ref().map_or(&source.dir, |target| target.1.dir());
    let path = dir.path();
    let asked = target.as_ref().map_or(&mapping.tokenizer, |target| &target.0);
    let mut request = request(asked, options)?;
    request.mistral_format = dir.is_mistral_format();
    request.others = dir.others().cloned();
    let mut built = match &source.vocabulary {
        Vocabulary::Given(given) if options.tokenizer => tokenizer::build_given(path, given, &request)?,
        Vocabulary::Absent => tokenizer::build(path, &TokenizerRequest::of(&[Mode::None]))?,
        Vocabulary::Given(_) | Vocabulary::Files => tokenizer::build(path, &request)?,
    };
    if let Some(rows) = token_rows::rows(mapping) {
        token_rows::fill(&mut built.rows, rows);
    }
    Ok(built)
}

/// Modes to try if no card selects one.
const USUAL: [Mode; 3] = [Mode::Spm, Mode::LlamaHf, Mode::Bpe];

/// Builds the vocabulary as a conversion would write it; without a mapping, in the usual modes.
///
/// # Errors
/// As for a conversion: files that are missing, broken, or not understood.
pub fn vocabulary(
    source: &ModelSource,
    mapping: Option<&Mapping>,
    options: &ConvertOptions,
) -> Result<Built, ConvertError> {
    match (mapping, &source.vocabulary) {
        (Some(mapping), _) => build(source, mapping, options),
        (None, Vocabulary::Given(given)) => {
            Ok(tokenizer::build_given(source.dir.path(), given, &TokenizerRequest::of(&USUAL))?)
        }
        (None, Vocabulary::Absent) => {
            Ok(tokenizer::build(source.dir.path(), &TokenizerRequest::of(&[Mode::None]))?)
        }
        (None, Vocabulary::Files) => Ok(tokenizer::build(source.dir.path(), &TokenizerRequest::of(&USUAL))?),
    }
}

/// Returns the card's request, completed by the options.
fn request(asked: &TokenizerRequest, options: &ConvertOptions) -> Result<TokenizerRequest, ConvertError> {
    if !options.tokenizer {
        return Ok(TokenizerRequest::of(&[Mode::None]));
    }
    let mut request = asked.clone();
    if let Some(path) = &options.chat_template {
        request.template = Template::Given(crate::core::input::read_to_string(path)?);
    }
    request.pre.clone_from(&options.pre);
    request.limits = options.limits;
    request.by_hand = options.set.iter().map(|(key, _)| key.clone()).collect();
    Ok(request)
}
