//! Request to the tokenizer from a mapping, and the origin of the vocabulary.

use crate::mapping::{CardScope, map};
use crate::target::OpenTarget;
use crate::{ConvertError, ConvertOptions, ModelSource, Vocabulary, token_rows};
use gguf_arch::{CardKind, Mapping, TokenizerFrom};
use gguf_checkpoint::Checkpoint;
use gguf_core::WeightSource;
use gguf_format::Metadata;
use gguf_tokenizer::{self, Built, Mode, Template, TokenizerRequest};

/// Builds the keys of the vocabulary. `name` is the model's `general.name`.
pub(super) fn build(
    source: &ModelSource,
    mapping: &Mapping,
    options: &ConvertOptions,
    name: &str,
) -> Result<Built, ConvertError> {
    if mapping.card.kind == CardKind::Mmproj {
        return Ok(Built {
            rows: Metadata::new(),
            mode: Mode::None,
            warnings: Vec::new(),
            pieces: Vec::new(),
        });
    }
    let target = match mapping.card.tokenizer.from.filter(|_| options.tokenizer) {
        None => None,
        Some(from) => {
            let missing = || ConvertError::NoTarget { card: mapping.card.name() };
            let target = OpenTarget::of(options)?.ok_or_else(missing)?;
            Some((request_with_target(&target, from, mapping, options)?, target))
        }
    };
    let dir = target.as_ref().map_or(&source.dir, |target| target.1.dir());
    let path = dir.path();
    let asked = target.as_ref().map_or(&mapping.tokenizer, |target| &target.0);
    let mut request = request(asked, options)?;
    name.clone_into(&mut request.name);
    request.mistral_format = dir.is_mistral_format();
    request.others = dir.others().cloned();
    let mut built = match &source.vocabulary {
        Vocabulary::Given(given) if options.tokenizer => gguf_tokenizer::build_given(path, given, &request)?,
        Vocabulary::Absent => gguf_tokenizer::build(path, &TokenizerRequest::of(&[Mode::None]))?,
        Vocabulary::Given(_) | Vocabulary::Files => gguf_tokenizer::build(path, &request)?,
    };
    if let Some(rows) = token_rows::rows(mapping) {
        token_rows::fill(&mut built.rows, rows);
    }
    Ok(built)
}

/// Modes to try if no card selects one.
const USUAL: [Mode; 3] = [Mode::Spm, Mode::LlamaHf, Mode::Bpe];

/// Builds the vocabulary as a conversion would write it; without a mapping, in the usual modes.
pub fn vocabulary(
    source: &ModelSource,
    mapping: Option<&Mapping>,
    options: &ConvertOptions,
) -> Result<Built, ConvertError> {
    match (mapping, &source.vocabulary) {
        (Some(mapping), _) => build(source, mapping, options, ""),
        (None, Vocabulary::Given(given)) => {
            Ok(gguf_tokenizer::build_given(source.dir.path(), given, &TokenizerRequest::of(&USUAL))?)
        }
        (None, Vocabulary::Absent) => {
            Ok(gguf_tokenizer::build(source.dir.path(), &TokenizerRequest::of(&[Mode::None]))?)
        }
        (None, Vocabulary::Files) => {
            Ok(gguf_tokenizer::build(source.dir.path(), &TokenizerRequest::of(&USUAL))?)
        }
    }
}

/// Returns the request for the vocabulary of a target model, from the card that reads it: the draft's own, or the
/// target's.
fn request_with_target(
    target: &OpenTarget,
    from: TokenizerFrom,
    draft: &Mapping,
    options: &ConvertOptions,
) -> Result<TokenizerRequest, ConvertError> {
    if from == TokenizerFrom::Target {
        return Ok(draft.tokenizer.clone());
    }
    let dir = target.dir();
    // The variant of the card may depend on the tensors, if there are any.
    let weights = Checkpoint::with_dir(dir.clone());
    let weights = weights.map(|checkpoint| checkpoint.weights().to_vec()).unwrap_or_default();
    let source = ModelSource::without_weights(dir.clone());
    let own = ConvertOptions { target_model_dir: None, ..options.clone() };
    let target = map(&source, &weights, &own, CardScope::Keys, &mut Vec::new())?;
    let mut request = target.tokenizer;
    request.size = draft.tokenizer.size.or(request.size);
    request.architecture.clone_from(&draft.tokenizer.architecture);
    for (key, value) in draft.tokenizer.after.iter() {
        request.after.set(key, value.clone());
    }
    Ok(request)
}

/// Returns the card's request, completed by the options.
fn request(asked: &TokenizerRequest, options: &ConvertOptions) -> Result<TokenizerRequest, ConvertError> {
    if !options.tokenizer {
        return Ok(TokenizerRequest::of(&[Mode::None]));
    }
    let mut request = asked.clone();
    if let Some(path) = &options.chat_template {
        let text = gguf_core::input::read_to_string(path)?;
        // A byte order mark is an editor's; in the template it would stand before each prompt.
        request.template = Template::Given(text.trim_start_matches('\u{feff}').to_owned());
    }
    request.pre.clone_from(&options.pre);
    request.limits = options.limits;
    request.by_hand = options.set.iter().map(|(key, _)| key.clone()).collect();
    Ok(request)
}
