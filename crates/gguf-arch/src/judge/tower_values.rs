//! Values of towers that the runtime computes with regardless of the configuration, and those that it takes from the
//! text model.

use serde_json::{Map, Value as Json};

use crate::ArchWarning;
use crate::judge::carried::same;
use crate::keys::origins::member;

/// Classes, key and value in each line, with tabs between; and `written` if the file has the key's value.
const TABLE: &str = include_str!("tower_values.tsv");

/// Returns a warning for each value of the class's towers that the runtime and transformers do not share.
pub(crate) fn warnings(class: &str, config: &Map<String, Json>) -> Vec<ArchWarning> {
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
        for key in [key.to_owned(), format!("thinker_config.{key}")] {
            let Some(value) = member(config, &key).filter(|value| !value.is_null() && !same(&assumed, value))
            else {
                continue;
            };
            let (value, assumed) = (value.to_string(), assumed.to_string());
            lost.push(if is_written {
                ArchWarning::TowerEpsilon { key, value, fixed: assumed }
            } else {
                ArchWarning::TowerValue { key, value, assumed }
            });
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_runtime_computes_otherwise_is_named() {
        let of = |class: &str, json: &str| warnings(class, &serde_json::from_str(json).unwrap());
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
}
