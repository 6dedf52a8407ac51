//! Activations of towers that the runtime computes with regardless of the configuration.

use serde_json::{Map, Value as Json};

use crate::ArchWarning;
use crate::judge::carried::same;

/// Class, key and value in each line, with tabs between.
const TABLE: &str = include_str!("tower_activations.tsv");

/// Returns a warning for each activation of the class's towers that is not the runtime's.
pub(crate) fn warnings(class: &str, config: &Map<String, Json>) -> Vec<ArchWarning> {
    let rows = TABLE.lines().filter_map(|line| {
        let mut cells = line.split('\t');
        Some((cells.next()?, cells.next()?, cells.next()?))
    });
    let of_class = rows.filter(|(own, _, _)| *own == class);
    let lost = of_class.filter_map(|(_, key, assumed)| {
        let mut names = key.split('.');
        let first = config.get(names.next()?)?;
        let value = names.try_fold(first, |value, name| value.get(name))?;
        let is_lost = !value.is_null() && !same(&assumed.into(), value);
        is_lost.then(|| ArchWarning::TowerActivation { key, value: value.to_string(), assumed })
    });
    lost.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_of_other_kinds_are_named() {
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
        assert_eq!(of("VoxtralForConditionalGeneration", r#"{"projector_hidden_act": "silu"}"#).len(), 1);
    }
}
