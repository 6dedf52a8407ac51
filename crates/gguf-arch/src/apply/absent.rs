//! Translates errors about missing values in card expressions to the user's files and keys.

use crate::error::ArchError;
use crate::error::missing_input::{MissingInput, PREPROCESSOR, PROCESSOR};
use crate::keys::origins::defined;
use crate::language::eval::error::EvalError;
use crate::mapping::inputs::Inputs;
use crate::registry::Registry;

/// Returns an error about a missing value as one about the file and its key. With cards of users, the error stays as it
/// is: their authors need the place in the card.
pub(crate) fn in_files(
    error: ArchError,
    registry: &Registry,
    inputs: &Inputs<'_>,
    is_mistral: bool,
) -> ArchError {
    let (name, at, source) = match error {
        ArchError::Eval { card, at, source } if !registry.has_given() => (card, at, source),
        error => return error,
    };
    let config = if is_mistral { "params.json" } else { "config.json" };
    lack(&name, &at, source, registry, inputs, config).into()
}

fn lack(
    name: &str,
    at: &str,
    source: EvalError,
    registry: &Registry,
    inputs: &Inputs<'_>,
    config: &'static str,
) -> MissingInput {
    let path = match source {
        EvalError::Absent(path) => path,
        source => {
            let key = at.rsplit('`').nth(1).unwrap_or(at).to_owned();
            return MissingInput::NoValue { file: config, key, source };
        }
    };
    let Some((root, key)) = path.split_once('.') else {
        return MissingInput::of_config(config, path, inputs.config);
    };
    match root {
        "preprocessor" if inputs.preprocessor.is_none() => {
            MissingInput::FileMissing { file: PREPROCESSOR, key: key.to_owned() }
        }
        "preprocessor" => {
            let is_there = |name: &&str| inputs.files.iter().any(|file| file == name);
            let file = [PREPROCESSOR, PROCESSOR].into_iter().find(is_there).unwrap_or(PREPROCESSOR);
            MissingInput::of_file(file, key.to_owned())
        }
        "generation" => MissingInput::of_file("generation_config.json", key.to_owned()),
        "tokenizer_config" => MissingInput::of_file("tokenizer_config.json", key.to_owned()),
        "rope" | "rope_full" | "rope_swa" => {
            let part = ["rope_parameters", "rope_scaling"]
                .into_iter()
                .find(|part| inputs.config.contains_key(*part));
            MissingInput::of_file(config, format!("{}.{key}", part.unwrap_or("rope_scaling")))
        }
        "vocab" => MissingInput::of_file("tokenizer.json", key.to_owned()),
        "raw" => MissingInput::of_config(config, key.to_owned(), inputs.config),
        root => {
            let card = registry.cards().iter().find(|card| card.name() == name);
            let root =
                card.and_then(|card| defined(card, root, inputs.config)).unwrap_or_else(|| root.to_owned());
            MissingInput::of_file(config, format!("{root}.{key}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value as Json, json};

    use super::*;
    use crate::{CardKind, ResolveOptions, resolve};

    #[test]
    fn what_is_missing_is_a_file_or_its_key() {
        let registry = Registry::embedded_of(CardKind::Mmproj).unwrap();
        let config = |vision: Json| {
            let config = json!({
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {"hidden_size": 8},
                "vision_config": vision,
            });
            config.as_object().cloned().unwrap()
        };
        let options = ResolveOptions { metadata_only: true, ..ResolveOptions::default() };
        let message = |config: &Map<String, Json>, preprocessor: Option<&Map<String, Json>>| {
            let inputs = Inputs { preprocessor, ..Inputs::of_headers(config, &[]) };
            resolve(&registry, &inputs, &options).unwrap_err().to_string()
        };
        let whole = config(json!({"model_type": "siglip_vision_model"}));
        assert_eq!(
            message(&whole, None),
            "preprocessor_config.json is missing: the tower's file needs its `image_mean`"
        );
        let empty = Map::new();
        assert_eq!(message(&whole, Some(&empty)), "preprocessor_config.json: `image_mean` is missing");
        let bare = config(json!({"image_size": 8, "num_hidden_layers": 1, "model_type": "other"}));
        assert_eq!(message(&bare, Some(&empty)), "config.json: `vision_config.patch_size` is missing");
    }
}
