//! Members of `rope_scaling` and `rope_parameters`: numbers are numbers, a type has the members that transformers
//! requires of it, and no two values contradict each other.

use crate::Result;
use gguf_core::text::escape;
use serde_json::{Map, Value as Json};

use crate::ArchWarning;
use crate::error::ArchError;
use crate::judge::config_values::shown;
use crate::keys::hparams::{ROPE_BASES, ROPE_PARTS};

const OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// Members that are positive numbers, and those that are numbers.
const POSITIVE: [&str; 5] =
    ["factor", "rope_theta", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
const NUMBERS: [&str; 7] = [
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "partial_rotary_factor",
];
const WORDS: [&str; 2] = ["rope_type", "type"];
/// Shares of the axes in the pairs of a rotation.
const SECTIONS: [&str; 2] = ["mrope_section", "xdrope_section"];

/// Members without which transformers does not compute a type.
const REQUIRED: [(&str, &[&str]); 4] = [
    ("linear", &["factor"]),
    ("dynamic", &["factor"]),
    ("yarn", &["factor"]),
    ("llama3", &["factor", "low_freq_factor", "high_freq_factor"]),
];

/// Words for one type.
const SAME_TYPE: [[&str; 2]; 2] = [["mrope", "default"], ["su", "longrope"]];

/// Checks the numbers of both descriptions, also by type of layer.
pub(crate) fn check(config: &Map<String, Json>) -> Result<()> {
    each(config, &mut |name, rope| {
        let wrong = rope.iter().find_map(|(key, value)| Some((key, value, expected(key, value)?)));
        wrong.map_or(Ok(()), |(key, value, expected)| {
            Err(ArchError::ConfigValue { key: format!("{name}.{key}"), value: shown(value), expected })
        })
    })
}

/// Returns what a member holds that has another value.
fn expected(key: &str, value: &Json) -> Option<&'static str> {
    let is_in = |keys: &[&str]| keys.contains(&key);
    // Values of bases by layer are checked as such.
    let is_by_layer = key == "rope_theta" && value.as_array().is_some_and(|items| !items.is_empty());
    if value.is_null() || is_by_layer {
        None
    } else if is_in(&POSITIVE) {
        value.as_f64().is_none_or(|number| number <= 0.0).then_some("a number above 0")
    } else if is_in(&NUMBERS) {
        (!value.is_number() && *value != Json::Bool(false)).then_some("a number")
    } else if is_in(&SECTIONS) {
        let sizes: Option<Vec<u64>> =
            value.as_array().and_then(|items| items.iter().map(Json::as_u64).collect());
        sizes.is_none_or(|sizes| sizes.iter().all(|size| *size == 0)).then_some("a list of whole numbers")
    } else {
        (is_in(&WORDS) && !value.is_string()).then_some("a text")
    }
}

/// Returns warnings about members that are missing, that have no effect, or that contradict others.
pub(crate) fn warnings(config: &Map<String, Json>) -> Vec<ArchWarning> {
    let mut found = Vec::new();
    let visited = each(config, &mut |name, rope| {
        let [own, old] = ["rope_type", "type"].map(|key| rope.get(key).and_then(Json::as_str));
        let kind = own.or(old).unwrap_or_default().to_lowercase();
        if let (Some(own), Some(old)) = (own, old)
            && !is_same_type(own, old)
        {
            let names = [format!("{name}.rope_type"), format!("{name}.type")];
            let values = [own, old].map(|value| format!("\"{}\"", escape(value)));
            found.push(ArchWarning::TwoNames { names, values });
        }
        let is_absent = |key: &&str| rope.get(*key).is_none_or(Json::is_null);
        let required = REQUIRED.iter().find(|(own, _)| *own == kind);
        let lacks: Vec<&str> =
            required.map_or(&[][..], |row| row.1).iter().copied().filter(is_absent).collect();
        if !lacks.is_empty() {
            found.push(ArchWarning::RopeLacks { name: name.to_owned(), kind: kind.clone(), lacks });
        }
        if kind.is_empty()
            && let Some(factor) = rope.get("factor").filter(|factor| !factor.is_null())
        {
            let (name, factor) = (name.to_owned(), factor.to_string());
            found.push(ArchWarning::RopeWithoutType { name, factor });
        }
        Ok(())
    });
    debug_assert!(visited.is_ok(), "nothing refuses");
    found.extend(said_outside(config));
    found
}

type Visit<'v> = dyn FnMut(&str, &Map<String, Json>) -> Result<()> + 'v;

/// Calls `visit` for each description of a configuration and its text part: each object, or its members by type of layer.
fn each(config: &Map<String, Json>, visit: &mut Visit<'_>) -> Result<()> {
    let text = config.get("text_config").and_then(Json::as_object);
    // A text part may have been written out into the configuration.
    let is_own = |name: &&str| text.is_some_and(|text| text.get(*name) != config.get(*name));
    let of_text = OBJECTS.into_iter().filter(is_own).map(|name| (text, name));
    for (part, name) in OBJECTS.into_iter().map(|name| (Some(config), name)).chain(of_text) {
        let Some(rope) = part.and_then(|part| part.get(name)?.as_object()) else { continue };
        visit(name, rope)?;
        for (kind, member) in rope.iter().filter(|(kind, _)| kind.ends_with("_attention")) {
            member.as_object().map_or(Ok(()), |member| visit(&format!("{name}.{kind}"), member))?;
        }
    }
    Ok(())
}

fn is_same_type(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(str::to_lowercase);
    one == other || SAME_TYPE.iter().any(|same| same.contains(&&*one) && same.contains(&&*other))
}

/// Returns warnings about numbers of `rope_parameters`, for layers with full attention, that stand beside it with other
/// values.
fn said_outside(config: &Map<String, Json>) -> Vec<ArchWarning> {
    let Some(whole) = config.get("rope_parameters") else { return Vec::new() };
    let full = whole.get("full_attention").filter(|full| full.is_object());
    let path = if full.is_some() { "rope_parameters.full_attention" } else { "rope_parameters" };
    let differing = |member: &str, names: &[&str]| {
        let inner = full.unwrap_or(whole).get(member)?;
        let (key, outer) = names.iter().find_map(|key| config.get_key_value(*key))?;
        let [taken, other] = [inner, outer].map(Json::as_f64);
        (other.is_some() && taken != other).then(|| ArchWarning::TwoNames {
            names: [format!("{path}.{member}"), key.clone()],
            values: [inner, outer].map(Json::to_string),
        })
    };
    let members = [("rope_theta", &ROPE_BASES[..]), ("partial_rotary_factor", &ROPE_PARTS)];
    members.into_iter().filter_map(|(member, names)| differing(member, names)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Map<String, Json> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn members_of_ropes_are_numbers() {
        for (json, want) in [
            (
                r#"{"rope_scaling": {"type": "yarn", "factor": "4.0"}}"#,
                Some("`rope_scaling.factor` is \"4.0\", expected a number above 0"),
            ),
            (
                r#"{"rope_scaling": {"type": "linear", "factor": -2}}"#,
                Some("`rope_scaling.factor` is -2, expected a number above 0"),
            ),
            (
                r#"{"rope_scaling": {"type": "linear", "factor": -1e40}}"#,
                Some("`rope_scaling.factor` is -1e40, expected a number above 0"),
            ),
            (
                r#"{"rope_scaling": {"beta_fast": "32"}}"#,
                Some("`rope_scaling.beta_fast` is \"32\", expected a number"),
            ),
            (
                r#"{"rope_parameters": {"full_attention": {"rope_theta": "1e6"}}}"#,
                Some("`rope_parameters.full_attention.rope_theta` is \"1e6\", expected a number above 0"),
            ),
            (
                r#"{"text_config": {"rope_parameters": {"beta_slow": ""}}}"#,
                Some("`rope_parameters.beta_slow` is \"\", expected a number"),
            ),
            (
                r#"{"rope_parameters": {"rope_theta": []}}"#,
                Some("`rope_parameters.rope_theta` is [], expected a number above 0"),
            ),
            (
                r#"{"rope_scaling": {"mrope_section": [0, 0]}}"#,
                Some("`rope_scaling.mrope_section` is [0,0], expected a list of whole numbers"),
            ),
            (r#"{"rope_scaling": {"rope_type": 7}}"#, Some("`rope_scaling.rope_type` is 7, expected a text")),
            (
                r#"{"rope_scaling": {"factor": null, "beta_fast": 32, "long_factor": [1.0], "type": "su"}}"#,
                None,
            ),
        ] {
            let found = check(&config(json)).err().map(|error| error.to_string());
            assert_eq!(found, want.map(|want| format!("config.json: {want}")), "{json}");
        }
    }

    #[test]
    fn what_a_rope_lacks_or_says_twice_is_told() {
        for (json, want) in [
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8}}"#,
                "lacks `low_freq_factor`, `high_freq_factor`",
            ),
            (
                r#"{"rope_parameters": {"sliding_attention": {"type": "linear"}}}"#,
                "`rope_parameters.sliding_attention` of type `linear` lacks `factor`",
            ),
            (r#"{"rope_scaling": {"factor": 8}}"#, "`rope_scaling` has `factor` = 8 and no `rope_type`"),
            (
                r#"{"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2}}"#,
                "`rope_scaling.rope_type` = \"yarn\" and `rope_scaling.type` = \"linear\"",
            ),
            (
                r#"{"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}"#,
                "`rope_parameters.rope_theta` = 1000000.0 and `rope_theta` = 10000.0",
            ),
            (
                r#"{"partial_rotary_factor": 0.5, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25}}}"#,
                "`rope_parameters.full_attention.partial_rotary_factor` = 0.25 and `partial_rotary_factor` = 0.5",
            ),
        ] {
            let found = warnings(&config(json));
            assert!(found.len() == 1 && found[0].to_string().contains(want), "{json}: {found:?}");
        }
        for json in [
            r#"{"rope_theta": 10000, "rope_parameters": {"rope_theta": 10000.0}, "rope_scaling": null}"#,
            r#"{"partial_rotary_factor": 0.5, "rope_parameters": {"sliding_attention": {"partial_rotary_factor": 1}}}"#,
            r#"{"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}}"#,
            r#"{"rope_scaling": {"type": "su", "rope_type": "longrope", "short_factor": [1]}}"#,
        ] {
            assert_eq!(warnings(&config(json)), [], "{json}");
        }
    }
}
