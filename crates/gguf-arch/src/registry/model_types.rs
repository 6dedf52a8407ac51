//! Class of a configuration that names none, that names the model inside (as `AutoModel` saves it), or that names a
//! wrapper: FSDP, PEFT and others write their own name into `architectures`, around the model's class or instead of it.
//! Names of wrappers are in `base.toml`.

use crate::Result;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use crate::attributes::Attributes;
use crate::error::ArchError;
use crate::error::warning::ArchWarning;
use crate::read::base;
use crate::registry::Registry;

/// Written by `lab/peers/model_types.py`: the class of each model type that transformers and a card know.
const TABLE: &str = include_str!("model_types.toml");

static CLASSES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    // A test covers that the table parses.
    toml::from_str(TABLE).unwrap_or_default()
});

/// Models inside whose class with a head has another name, in transformers 5.24.
const INNER_CLASSES: [(&str, &str); 1] = [("MiniMaxM3VLModel", "MiniMaxM3SparseForConditionalGeneration")];
/// Endings of the names of models inside, the longest first.
const INNER: [&str; 2] = ["TextModel", "Model"];
/// Endings of classes that add a head to a model.
const WITH_HEAD: [&str; 4] = ["ForCausalLM", "LMHeadModel", "ModelLM", "ForConditionalGeneration"];

/// Returns the class that a configuration means, with a warning if it does not name it. `named` is the class that it
/// names.
pub(crate) fn recognized(
    registry: &Registry,
    named: Result<String>,
    config: &Map<String, Json>,
) -> Result<(String, Option<ArchWarning>)> {
    let classes = registry.classes();
    let is_known = |class: &str| classes.iter().any(|row| row.class == class);
    let of_type = || class_of_type(registry, config);
    match named {
        Ok(found) if is_known(&found) => Ok((found, None)),
        Ok(found) if let Some(class) = of_text_part(&found, config).filter(|class| is_known(class)) => {
            Ok((class, None))
        }
        Ok(found) => {
            let inner = unwrapped(&found).find(|class| is_known(class)).map(str::to_owned);
            let is_wrapper = base().wrapper_classes.contains(&found);
            // transformers selects the class by the type, unless the model brings its own code.
            let has_code = config.get("auto_map").is_some_and(|map| !map.is_null());
            let means = |class: &str| is_wrapper || (!has_code && found.ends_with(class));
            let class = inner.or_else(|| of_type().map(|row| row.1).filter(|class| means(class)));
            let class =
                class.or_else(|| same_model(&found, config, &mut classes.iter().map(|row| row.class)));
            match class {
                Some(class) => Ok((class.clone(), Some(ArchWarning::WrappedClass { found, class }))),
                None => Ok((found, None)),
            }
        }
        Err(error @ ArchError::NoClass { .. }) => {
            let (model_type, class) = of_type().ok_or(error)?;
            Ok((class.clone(), Some(ArchWarning::ClassOfType { model_type, class })))
        }
        Err(error) => Err(error),
    }
}

/// Returns the `model_type` of a configuration, or of its text part, that has a known class, and that class.
pub(crate) fn class_of_type(registry: &Registry, config: &Map<String, Json>) -> Option<(String, String)> {
    let classes = registry.classes();
    let text = config.get("text_config").and_then(Json::as_object);
    let types = [Some(config), text].into_iter().flatten();
    types.filter_map(|part| part.get("model_type")?.as_str()).find_map(|model_type| {
        let class = CLASSES.get(model_type).filter(|class| classes.iter().any(|row| row.class == **class))?;
        Some((model_type.to_owned(), class.clone()))
    })
}

/// Returns the classes of models of several parts whose text part is a model of its own type, unchanged; with the
/// `model_type` of a text part that names none.
pub fn text_parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    base().text_parts.iter().map(|(class, model_type)| (class.as_str(), model_type.as_str()))
}

/// Returns the classes that no graph of llama.cpp computes, with what it lacks.
pub fn without_graph() -> impl Iterator<Item = (&'static str, &'static str)> {
    base().no_graph.iter().map(|(class, lacks)| (class.as_str(), lacks.as_str()))
}

/// Returns the class of the text part of a model of several parts, if its configuration names no type.
pub(crate) fn usual_text_part(class: &str) -> Option<&'static str> {
    CLASSES.get(base().text_parts.get(class)?).map(String::as_str)
}

/// Returns the class of the text part, of a model that adds nothing to it but embeddings of images and sounds.
fn of_text_part(class: &str, config: &Map<String, Json>) -> Option<String> {
    let default = base().text_parts.get(class)?;
    let text = config.get("text_config")?.as_object()?;
    let model_type = text.get("model_type").and_then(Json::as_str).unwrap_or(default);
    CLASSES.get(model_type).cloned()
}

/// Returns the known class of a model with its head for the class of the model inside: `Qwen3VLModel` is saved by
/// `AutoModel`. Spelling does not count: transformers and the model's own code differ in it.
fn same_model(
    found: &str,
    config: &Map<String, Json>,
    known: &mut dyn Iterator<Item = &str>,
) -> Option<String> {
    let plain = |class: &str| class.replace('_', "").to_lowercase();
    let known: Vec<(String, &str)> = known.map(|class| (plain(class), class)).collect();
    let find = |class: &str| {
        let alike = || known.iter().find(|row| row.0 == plain(class));
        known.iter().find(|row| row.1 == class).or_else(alike).map(|row| row.1.to_owned())
    };
    // A model of several parts has a class of the same name for its text part.
    let has_parts = config.get("text_config").is_some_and(Json::is_object);
    let mut heads: Vec<&str> = WITH_HEAD.into();
    if has_parts {
        heads.reverse();
    }
    let stems = INNER.iter().filter_map(|end| found.strip_suffix(end)).filter(|stem| !stem.is_empty());
    let with_head = || stems.flat_map(|stem| heads.iter().map(move |head| format!("{stem}{head}")));
    find(found).or_else(|| with_head().find_map(|class| find(&class))).or_else(|| {
        let (_, class) = INNER_CLASSES.iter().find(|row| row.0 == found)?;
        find(class)
    })
}

/// Returns the `model_type` of a class in transformers. `found` is kept if it is one, or if the class is not of
/// transformers: it may be of the model's own code.
pub(crate) fn type_of<'t>(class: &str, found: &'t str) -> &'t str {
    let of_class = || CLASSES.iter().find(|row| row.1 == class).map(|row| row.0.as_str());
    if CLASSES.contains_key(found) || Attributes::are_of(found) { found } else { of_class().unwrap_or(found) }
}

/// Returns a class without a wrapper's prefix or suffix, and without its module.
fn unwrapped(class: &str) -> impl Iterator<Item = &str> {
    let module = class.rsplit_once('.').map(|row| row.1);
    let base = base();
    let in_front = base.wrapper_prefixes.iter().filter_map(|prefix| class.strip_prefix(prefix.as_str()));
    let behind = base.wrapper_suffixes.iter().filter_map(|suffix| class.strip_suffix(suffix.as_str()));
    module.into_iter().chain(in_front).chain(behind).map(|class| class.trim_matches(['_', '.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(json: &str) -> Result<(String, bool), String> {
        let registry = Registry::embedded().unwrap();
        let config = crate::with_text_config(&serde_json::from_str(json).unwrap());
        let found = recognized(&registry, crate::class_of(&config), &config);
        found.map(|(class, warning)| (class, warning.is_some())).map_err(|error| error.to_string())
    }

    #[test]
    fn wrappers_are_taken_off() {
        for (json, want, is_told) in [
            (r#"{"architectures": ["LlamaForCausalLM"]}"#, "LlamaForCausalLM", false),
            (r#"{"architectures": ["FSDPLlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["FSDPQwen3MoeForCausalLM"]}"#, "Qwen3MoeForCausalLM", true),
            (r#"{"architectures": ["Qwen2ForCausalLMWithValueHead"]}"#, "Qwen2ForCausalLM", true),
            (
                r#"{"architectures": ["PeftModelForCausalLM"], "model_type": "qwen2"}"#,
                "Qwen2ForCausalLM",
                true,
            ),
            (r#"{"architectures": ["OptimizedModule"], "model_type": "gemma2"}"#, "Gemma2ForCausalLM", true),
            (r#"{"architectures": null, "model_type": "bert"}"#, "BertModel", true),
            (r#"{"model_type": "llama"}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": [], "model_type": "xlm-roberta"}"#, "XLMRobertaModel", true),
            (r#"{"architectures": ["FSDP_LlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["a.b.LlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "llama"}"#, "LlamaForCausalLM", true),
            // The model's own code may compute something else.
            (
                r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "llama", "auto_map": {"AutoConfig": "x"}}"#,
                "MyLlamaForCausalLM",
                false,
            ),
            (
                r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "mine"}"#,
                "MyLlamaForCausalLM",
                false,
            ),
            (r#"{"architectures": ["PeftModel"], "model_type": "nobodys"}"#, "PeftModel", false),
            // The model inside, as AutoModel saves it; of a model's own code, too.
            (r#"{"architectures": ["GemmaModel"]}"#, "GemmaForCausalLM", true),
            (
                r#"{"architectures": ["BaichuanModel"], "auto_map": {"AutoModel": "x"}}"#,
                "BaichuanForCausalLM",
                true,
            ),
            (r#"{"architectures": ["GPT2Model"]}"#, "GPT2LMHeadModel", true),
            (r#"{"architectures": ["PhimoeForCausalLM"]}"#, "PhiMoEForCausalLM", true),
            (r#"{"architectures": ["Gemma3nModel"]}"#, "Gemma3nForCausalLM", true),
            (r#"{"architectures": ["Qwen3VLTextModel"]}"#, "Qwen3VLForConditionalGeneration", true),
            (r#"{"architectures": ["MiniMaxM3VLModel"]}"#, "MiniMaxM3SparseForConditionalGeneration", true),
            (
                r#"{"architectures": ["Gemma3nModel"], "text_config": {}}"#,
                "Gemma3nForConditionalGeneration",
                true,
            ),
            (r#"{"architectures": ["LlamaModel"]}"#, "LlamaModel", false),
            (r#"{"architectures": ["BertModel"]}"#, "BertModel", false),
            (r#"{"architectures": ["Model"]}"#, "Model", false),
        ] {
            assert_eq!(class(json), Ok((want.to_owned(), is_told)), "{json}");
        }
        let error = class(r#"{"model_type": "nobodys"}"#).unwrap_err();
        assert_eq!(error, "config.json: `architectures` names no model class");
    }

    /// transformers finds the configuration's class by the type that is written back.
    #[test]
    fn every_class_of_transformers_has_its_type_again() {
        assert_eq!(type_of("FalconH1ForCausalLM", "falcon-h1"), "falcon_h1");
        assert_eq!(type_of("MistralForCausalLM", "mistral"), "mistral");
        assert_eq!(type_of("XverseForCausalLM", "xverse"), "xverse");
        let registry = Registry::embedded().unwrap();
        for row in registry.classes() {
            let of_transformers = CLASSES.values().any(|class| class == row.class);
            let found = type_of(row.class, row.gguf);
            let is_known = CLASSES.contains_key(found) || Attributes::are_of(found);
            assert!(!of_transformers || is_known, "{row:?}");
        }
    }

    #[test]
    fn the_table_is_sorted_and_its_classes_are_known() {
        let rows = TABLE.lines().filter(|line| line.contains(" = "));
        assert!(rows.clone().is_sorted());
        assert_eq!(rows.count(), CLASSES.len());
        let registry = Registry::embedded().unwrap();
        let classes = registry.classes();
        for (model_type, class) in &*CLASSES {
            assert!(classes.iter().any(|row| row.class == class), "{model_type}: {class}");
        }
    }
}
