//! The tokenizer part of a mapping, as a request to the tokenizer, and where the vocabulary comes from.

use crate::arch::{Mapping, SpecialToken};
use crate::convert::{ConvertError, ConvertOptions, ModelSource, Vocabulary};
use crate::gguf::{Metadata, Value};
use crate::tokenizer::{self, BuildRequest, Built, Mode, ModeRequest, SpecialValue};

/// Makes the keys of the vocabulary.
///
/// # Errors
/// A card that names an unknown mode; a chat template file that cannot be read; the vocabulary itself.
pub(super) fn build(
    source: &ModelSource,
    mapping: &Mapping,
    options: &ConvertOptions,
) -> Result<Built, ConvertError> {
    let path = source.dir.path();
    let request = request(mapping, options)?;
    Ok(match &source.vocabulary {
        Vocabulary::Given(given) if options.tokenizer => tokenizer::build_given(path, given, &request)?,
        Vocabulary::Absent => tokenizer::build(path, &BuildRequest::of(&[Mode::None]))?,
        Vocabulary::Given(_) | Vocabulary::Files => tokenizer::build(path, &request)?,
    })
}

/// Ways to read a vocabulary where no card says which.
const USUAL: [Mode; 3] = [Mode::Spm, Mode::LlamaHf, Mode::Bpe];

/// The vocabulary as a conversion would write it; without a card's mapping, as most models have it.
///
/// # Errors
/// As a conversion's: files that are missing, broken, or not understood.
pub fn vocabulary(
    source: &ModelSource,
    mapping: Option<&Mapping>,
    options: &ConvertOptions,
) -> Result<Built, ConvertError> {
    match (mapping, &source.vocabulary) {
        (Some(mapping), _) => build(source, mapping, options),
        (None, Vocabulary::Given(given)) => {
            Ok(tokenizer::build_given(source.dir.path(), given, &BuildRequest::of(&USUAL))?)
        }
        (None, Vocabulary::Absent) => {
            Ok(tokenizer::build(source.dir.path(), &BuildRequest::of(&[Mode::None]))?)
        }
        (None, Vocabulary::Files) => Ok(tokenizer::build(source.dir.path(), &BuildRequest::of(&USUAL))?),
    }
}

/// Makes the request for one checkpoint.
fn request(mapping: &Mapping, options: &ConvertOptions) -> Result<BuildRequest, ConvertError> {
    if !options.tokenizer {
        return Ok(BuildRequest::of(&[Mode::None]));
    }
    let plan = &mapping.tokenizer;
    let special = |tokens: &[(String, SpecialToken)]| -> Vec<(String, SpecialValue)> {
        tokens.iter().map(|(role, token)| (role.clone(), special_value(token))).collect()
    };
    let mut modes = Vec::with_capacity(plan.modes.len());
    for mode in &plan.modes {
        let parsed = Mode::from_name(&mode.mode).ok_or_else(|| ConvertError::TokenizerMode {
            card: mapping.card.name(),
            mode: mode.mode.clone(),
        })?;
        let mut request = ModeRequest::new(parsed);
        request.special = special(&mode.special);
        request.special.extend(special(&plan.special));
        request.after = rows(&mode.after);
        modes.push(request);
    }
    Ok(BuildRequest {
        modes,
        size: plan.size,
        pad_multiple: plan.pad_multiple,
        force: special(&plan.force),
        types: plan.types.clone(),
        control: plan.control.clone(),
        user_defined: plan.user_defined.clone(),
        specials_list: plan.specials_list.clone(),
        no_template: plan.template.as_deref() == Some("none"),
        chat_template: options.chat_template.as_ref().map(fs_err::read_to_string).transpose()?,
        pre: options.pre.clone(),
        before: rows(&plan.before),
        after: rows(&plan.after),
        limits: options.limits,
    })
}

fn special_value(token: &SpecialToken) -> SpecialValue {
    match token {
        SpecialToken::Id(id) => SpecialValue::Id(*id),
        SpecialToken::Text(text) => SpecialValue::Token(text.clone()),
    }
}

fn rows(metadata: &Metadata) -> Vec<(String, Value)> {
    metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect()
}
