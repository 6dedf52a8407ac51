//! Text parts of models of several parts, in the form in which transformers 5.24 reads them.

use serde_json::{Map, Value as Json, json};

use crate::attributes::Attributes;
use crate::mapping::OutputSpec;

/// Members that stay with the whole model.
const OF_THE_WHOLE: [&str; 4] = ["architectures", "model_type", "n_deepstack_layers", "tie_word_embeddings"];
/// Names of the model's weights, and of the same ones as a part of the whole.
const MODEL: [&str; 2] = ["model.", "model.language_model."];

/// Puts the configuration under `text_config` and the weights under `model.language_model.`, if the class has towers as
/// well; returns what to know about them.
pub(super) fn nest(config: &mut Map<String, Json>, outputs: &mut [OutputSpec]) -> Option<String> {
    let class = config.get("architectures")?.get(0)?.as_str()?;
    let text_type = Attributes::text_type(config.get("model_type")?.as_str()?)?;
    if !class.ends_with("ForConditionalGeneration") {
        return None;
    }
    let note = format!(
        "`{class}` has towers, which this file does not: transformers makes them up, so only text is right; those of the original \
         checkpoint, next to these weights, complete the model"
    );
    let mut text = config.clone();
    text.retain(|name, _| !OF_THE_WHOLE.contains(&name.as_str()));
    config.retain(|name, _| OF_THE_WHOLE.contains(&name.as_str()));
    text.insert("model_type".to_owned(), json!(text_type));
    config.insert("text_config".to_owned(), Json::Object(text));
    let [own, nested] = MODEL;
    for output in outputs {
        if let Some(rest) = output.name.strip_prefix(own).filter(|_| !output.name.starts_with(nested)) {
            output.name = format!("{nested}{rest}");
        }
    }
    Some(note)
}
