//! Values of towers that the runtime computes with regardless of the configuration, and those that it takes from the
//! text model.

use serde_json::{Map, Value as Json};

use crate::ArchWarning;
use crate::error::missing_input::PREPROCESSOR;
use crate::judge::carried::same;
use crate::keys::origins::member;

/// Classes, key and value in each line, with tabs between; and `written` if the file has the key's value.
const TABLE: &str = include_str!("tower_values.tsv");

/// Returns a warning for each value of the class's towers that the runtime and transformers do not share.
pub(crate) fn warnings(
    class: &str,
    config: &Map<String, Json>,
    preprocessor: Option<&Map<String, Json>>,
) -> Vec<ArchWarning> {
    let rows = TABLE.lines().filter_map(|line| {
        let mut cells = line.split('\t');
        Some((cells.next()?, cells.next()?, cells.next()?, cells.next() == Some("written")))
    });
    // The towers of a model may be found by the class of the vision part.
    let outer = config.get("architectures").and_then(|classes| classes.get(0)?.as_str());
    let is_of = |own: &str| own == class || Some(own) == outer;
    let of_class = rows.filter(|(classes, ..)| classes.split(' ').any(is_of));
    let mut lost = Vec::new();
    for (_, key, assumed, is_written) in of_class {
        let assumed = serde_json::from_str(assumed).unwrap_or_else(|_| Json::from(assumed));
        let (file, values, key, inside) = match key.strip_prefix("preprocessor.") {
            Some(key) => (PREPROCESSOR, preprocessor, key, "feature_extractor"),
            None => ("config.json", Some(config), key, "thinker_config"),
        };
        for key in spellings(key).flat_map(|key| [key.clone(), format!("{inside}.{key}")]) {
            let value = values.and_then(|values| member(values, &key));
            let Some(value) = value.filter(|value| !value.is_null() && !same(&assumed, value)) else {
                continue;
            };
            let (value, assumed) = (value.to_string(), assumed.to_string());
            lost.push(if is_written {
                ArchWarning::TowerEpsilon { key, value, fixed: assumed }
            } else {
                ArchWarning::TowerValue { file, key, value, assumed }
            });
        }
    }
    lost
}

/// Returns the names of a setting: transformers 5 has the rotary base in a member of its own.
fn spellings(key: &str) -> impl Iterator<Item = String> {
    let inner = key.strip_suffix("rope_theta").map(|head| format!("{head}rope_parameters.rope_theta"));
    std::iter::once(key.to_owned()).chain(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;
    use crate::read::schema::{Card, CardKind};

    #[test]
    fn what_the_runtime_computes_otherwise_is_named() {
        let of = |class: &str, json: &str| {
            let config: Map<String, Json> = serde_json::from_str(json).unwrap();
            warnings(class, &config, config.get("preprocessor").and_then(Json::as_object))
        };
        let gemma = "Gemma3ForConditionalGeneration";
        let lost = of(gemma, r#"{"vision_config": {"hidden_act": "relu"}}"#);
        assert_eq!(lost.len(), 1);
        assert!(lost[0].to_string().contains("`vision_config.hidden_act` = \"relu\""), "{}", lost[0]);
        for usual in [
            r#"{"vision_config": {"hidden_act": "gelu_new"}}"#,
            r#"{"vision_config": {"hidden_act": null}}"#,
            "{}",
        ] {
            assert_eq!(of(gemma, usual), [], "{usual}");
        }
        for (class, usual, other, words) in [
            (
                "VoxtralForConditionalGeneration",
                r#"{"projector_hidden_act": "gelu"}"#,
                r#"{"projector_hidden_act": "silu"}"#,
                "computes with \"gelu\"",
            ),
            (
                "Llama4ForConditionalGeneration",
                r#"{"vision_config": {"rope_theta": 1e4}}"#,
                r#"{"vision_config": {"rope_theta": 500}}"#,
                "computes with 10000",
            ),
            (
                "Mistral3ForConditionalGeneration",
                r#"{"vision_config": {"rope_parameters": {"rope_theta": 10000}}}"#,
                r#"{"vision_config": {"rope_parameters": {"rope_theta": 500.0}}}"#,
                "computes with 10000",
            ),
            (
                "Gemma4ForConditionalGeneration",
                r#"{"vision_config": {"rope_parameters": {"rope_theta": 100.0}}}"#,
                r#"{"vision_config": {"rope_parameters": {"rope_theta": 1000.0}}}"#,
                "computes with 100",
            ),
            (
                "Qwen2_5OmniForConditionalGeneration",
                r#"{"thinker_config": {"vision_config": {"window_size": 112}}}"#,
                r#"{"thinker_config": {"vision_config": {"window_size": 56}}}"#,
                "computes with 112",
            ),
            (
                "InternVisionModel",
                r#"{"architectures": ["InternVLChatModel"], "ps_version": "v2"}"#,
                r#"{"architectures": ["InternVLChatModel"], "ps_version": "v1"}"#,
                "computes with \"v2\"",
            ),
            (
                "Gemma4ForConditionalGeneration",
                r#"{"audio_config": {"attention_context_left": 13, "hidden_act": "swish", "rms_norm_eps": 1e-6}}"#,
                r#"{"audio_config": {"attention_context_left": 7}}"#,
                "computes with 13",
            ),
            (
                "Qwen2AudioForConditionalGeneration",
                r#"{"preprocessor": {"hop_length": 160, "feature_extractor": {"n_fft": 400}}}"#,
                r#"{"preprocessor": {"feature_extractor": {"hop_length": 240}}}"#,
                "preprocessor_config.json: `feature_extractor.hop_length` = 240 is lost",
            ),
            (
                "Qwen2_5_VLForConditionalGeneration",
                r#"{"rms_norm_eps": 1e-6}"#,
                r#"{"rms_norm_eps": 1e-5}"#,
                "transformers' tower computes with 1e-6",
            ),
        ] {
            assert_eq!(of(class, usual), [], "{class}");
            let lost = of(class, other);
            assert!(lost.len() == 1 && lost[0].to_string().contains(words), "{class}: {lost:?}");
        }
    }

    /// Each setting that transformers computes with is read by the class's card, or has a row.
    #[test]
    fn each_setting_of_a_tower_has_a_fate() {
        let cards = Registry::embedded_of(CardKind::Mmproj).unwrap();
        let settings = include_str!("../../../../fixtures/tower_settings.tsv").lines();
        for (key, classes) in settings.filter_map(|line| line.split_once('\t')) {
            let read = key.rsplit('.').next().unwrap();
            for class in classes.split(' ') {
                let of_class = |row: &[&str]| row[0].split(' ').any(|own| own == class) && row[1] == key;
                let has_row = TABLE.lines().any(|line| {
                    let row: Vec<&str> = line.split('\t').collect();
                    row.len() > 2 && of_class(&row)
                });
                let is_read = |card: &Card| {
                    card.classes.iter().any(|own| own == class) && format!("{card:?}").contains(read)
                };
                assert!(has_row || cards.cards().iter().any(is_read), "{class}: {key}");
            }
        }
    }
}
