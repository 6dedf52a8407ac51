//! The tokenizer part of a mapping, as a request to the tokenizer.

use crate::arch::{Mapping, SpecialToken};
use crate::convert::{ConvertError, ConvertOptions};
use crate::gguf::{Metadata, Value};
use crate::tokenizer::{BuildRequest, Mode, ModeRequest, SpecialValue};

/// Makes the request for one checkpoint.
///
/// # Errors
/// A card that names an unknown mode; a chat template file that cannot be read.
pub(super) fn request(mapping: &Mapping, options: &ConvertOptions) -> Result<BuildRequest, ConvertError> {
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
