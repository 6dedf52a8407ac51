//! Finds the class that a configuration names, and the card that converts it.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::error::ArchError;
use crate::error::missing_input::MissingInput;
use crate::language::eval::Scope;
use crate::language::eval::error::EvalError;
use crate::language::names::{Captures, distance};
use crate::read::base;
use crate::read::schema::{Card, CardKind};
use crate::registry::Registry;

/// Endings of classes whose head is for another task than the next token, and what the runtime lacks for those that no
/// card has.
const TASKS: [&str; 5] = [
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "RewardModel",
];
const NO_HEAD: &str = "the head for this task (it has those of classifiers like BERT and ModernBERT, and of rerankers of Qwen 3)";

/// Members in which models keep the configuration of their text part. Each is copied to `text_config`, in this order.
const TEXT_PARTS: [&str; 4] = ["llm_config", "lm_config", "language_config", "lfm"];

/// Outer classes that take precedence over the class of the text part.
const OUTER_CLASSES: [&str; 5] = [
    "StepVLForConditionalGeneration",
    "Sarashina2VisionForCausalLM",
    "Exaone4_5_ForConditionalGeneration",
    "Step3p7ForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
];

/// Returns the configuration with its text part under `text_config`, under whichever name the model has it.
///
/// # Exactness
/// Equals `ModelBase.load_hparams` of llama.cpp 0.5.0.
pub fn with_text_config(config: &Map<String, Json>) -> Map<String, Json> {
    let mut config = config.clone();
    let thinker = config.get("thinker_config").and_then(|thinker| thinker.get("text_config")).cloned();
    for part in TEXT_PARTS {
        if part == "language_config"
            && let Some(thinker) = &thinker
        {
            config.insert("text_config".to_owned(), thinker.clone());
        }
        if let Some(part) = config.get(part).cloned() {
            config.insert("text_config".to_owned(), part);
        }
    }
    config
}

fn first_class(config: &Map<String, Json>) -> Option<&str> {
    config.get("architectures")?.get(0)?.as_str()
}

/// Returns the model class of a configuration (with its text part under `text_config`).
///
/// # Exactness
/// Equals `get_model_architecture` of llama.cpp 0.5.0 for text models. `model_type` is not consulted.
pub fn class_of(config: &Map<String, Json>) -> Result<String> {
    let outer = match (first_class(config), config.get("ssm_cfg")) {
        (Some(class), _) => Some(class.to_owned()),
        (None, Some(ssm)) => {
            let layer = ssm.get("layer").and_then(Json::as_str).unwrap_or("Mamba");
            Some(format!("{layer}ForCausalLM"))
        }
        (None, None) => None,
    };
    if let Some(class) = outer.as_ref().filter(|class| OUTER_CLASSES.contains(&class.as_str())) {
        return Ok(class.clone());
    }
    let inner = config.get("text_config").and_then(Json::as_object).and_then(first_class).map(str::to_owned);
    inner.or(outer).ok_or_else(|| ArchError::NoClass {
        model_type: config.get("model_type").and_then(Json::as_str).map(str::to_owned),
    })
}

/// Returns the class that identifies the towers of a model: that of its vision part, or that of the model.
///
/// # Exactness
/// Equals `get_model_architecture` of llama.cpp 0.5.0 for `--mmproj`.
pub(crate) fn tower_class_of(config: &Map<String, Json>) -> Result<String> {
    let inner = config.get("vision_config").and_then(Json::as_object).and_then(first_class);
    inner.or_else(|| first_class(config)).map(str::to_owned).ok_or_else(|| ArchError::NoClass {
        model_type: config.get("model_type").and_then(Json::as_str).map(str::to_owned),
    })
}

/// Returns the classes by which a configuration may find its card.
pub fn named_classes(config: &Map<String, Json>, kind: CardKind, mistral_format: bool) -> Vec<String> {
    let config = with_text_config(config);
    match (kind, mistral_format) {
        (CardKind::Text, true) => vec![mistral_class(&config).to_owned()],
        (CardKind::Text, false) => class_of(&config).into_iter().collect(),
        (CardKind::Mmproj, true) => vec![MISTRAL_TOWER.to_owned()],
        (CardKind::Mmproj, false) => {
            let outer = first_class(&config).map(str::to_owned);
            tower_class_of(&config).into_iter().chain(outer).collect()
        }
    }
}

/// Returns the class of the towers, or that of the whole model if a card lists only the latter.
pub(crate) fn claimed_tower_class_of(registry: &Registry, config: &Map<String, Json>) -> Result<String> {
    let class = tower_class_of(config)?;
    let is_claimed =
        |class: &str| registry.cards().iter().any(|card| card.classes.iter().any(|own| own == class));
    match first_class(config) {
        Some(outer) if !is_claimed(&class) && is_claimed(outer) => Ok(outer.to_owned()),
        _ => Ok(class),
    }
}

/// Returns true if some key of a configuration belongs to a vision or audio part.
fn describes_tower(config: &Map<String, Json>) -> bool {
    const WORDS: [&str; 9] = [
        "vision",
        "visual",
        "image",
        "audio",
        "speech",
        "sound",
        "encoder_config",
        "whisper",
        "thinker_config",
    ];
    config.iter().any(|(key, value)| !value.is_null() && WORDS.iter().any(|word| key.contains(word)))
}

/// Replaces an error by [`MissingInput::TextOnly`] if towers were requested of a model without towers.
pub(crate) fn text_only(error: ArchError, kind: CardKind, config: &Map<String, Json>) -> ArchError {
    if kind != CardKind::Mmproj || describes_tower(config) {
        return error;
    }
    let class = match &error {
        ArchError::NoTower { class, .. } => Some(class.clone()),
        ArchError::NoClass { model_type } => class_of(config).ok().or_else(|| model_type.clone()),
        _ => None,
    };
    class.map_or(error, |class| MissingInput::TextOnly { class }.into())
}

/// Class of the towers in Mistral's own format, as in llama.cpp's converter.
pub(crate) const MISTRAL_TOWER: &str = "PixtralModel";

/// Classes of models in Mistral's own format: dense, and mixture of experts.
pub(crate) const MISTRAL_CLASSES: [&str; 2] = ["MistralModel", "MistralMoeModel"];

/// Returns the class of a configuration in Mistral's own format (`params.json`), as in llama.cpp's converter.
pub(crate) fn mistral_class(config: &Map<String, Json>) -> &'static str {
    let [dense, experts] = MISTRAL_CLASSES;
    if config.get("moe").is_none_or(Json::is_null) { dense } else { experts }
}

/// Returns the card for a class. `holds` evaluates a card's condition on the checkpoint.
///
/// Conditions are evaluated first: the only card whose condition holds is chosen, else the card without a condition.
pub(crate) fn choose<'r>(
    registry: &'r Registry,
    class: &str,
    holds: &dyn Fn(&Card) -> Result<bool>,
) -> Result<&'r Card> {
    let candidates: Vec<&Card> =
        registry.cards().iter().filter(|card| card.classes.iter().any(|own| own == class)).collect();
    if candidates.is_empty() {
        let nearest = similar(registry, class);
        if registry.kind() == CardKind::Mmproj {
            let layout = base().tower_layouts.get(class).map(String::as_str);
            return Err(ArchError::NoTower { class: class.to_owned(), nearest, layout });
        }
        let has_task = TASKS.iter().any(|task| class.ends_with(task));
        let lacks = base().no_graph.get(class).map(String::as_str).or(has_task.then_some(NO_HEAD));
        let (class, resembles, by_type) = (class.to_owned(), None, None);
        return Err(ArchError::UnknownClass { class, lacks, nearest, resembles, by_type });
    }
    let mut chosen = Vec::new();
    for card in candidates.iter().filter(|card| card.when.is_some()) {
        if holds(card)? {
            chosen.push(*card);
        }
    }
    let n_true = chosen.len();
    if n_true == 0 {
        chosen.extend(candidates.iter().find(|card| card.when.is_none()));
    }
    match chosen.as_slice() {
        [card] => Ok(card),
        _ => Err(ArchError::AmbiguousClass {
            class: class.to_owned(),
            cards: candidates.iter().map(|card| format!("`{}`", card.name())).collect(),
            n_true,
        }),
    }
}

/// Returns up to three known classes with similar names: the nearest, and those at most one edit farther.
fn similar(registry: &Registry, class: &str) -> Vec<String> {
    if class.len() > 256 {
        return Vec::new();
    }
    let classes = registry.classes();
    let mut near: Vec<(usize, &str)> =
        classes.iter().map(|row| (distance(class, row.class), row.class)).collect();
    near.sort_unstable();
    near.dedup();
    let best = near.first().map_or(0, |candidate| candidate.0);
    let is_near = |candidate: &&(usize, &str)| candidate.0 <= (best + 1).min(class.len() / 2);
    near.iter().filter(is_near).take(3).map(|candidate| candidate.1.to_owned()).collect()
}

/// Evaluates a card's condition; a name that the configuration lacks makes it false.
pub(crate) fn condition(card: &Card, scope: &Scope<'_>) -> Result<bool> {
    match scope.holds(card.when.as_ref(), Captures::default()) {
        Ok(holds) => Ok(holds),
        Err(EvalError::Absent(_)) => Ok(false),
        Err(source) => Err(ArchError::Eval { card: card.name(), at: "`when`".to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(json: &str) -> String {
        let config = with_text_config(&serde_json::from_str(json).unwrap());
        class_of(&config).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn the_class_is_found_where_models_put_it() {
        for (json, want) in [
            (r#"{"architectures": ["A", "B"]}"#, "A"),
            (r#"{"architectures": ["A"], "text_config": {"architectures": ["T"]}}"#, "T"),
            (r#"{"architectures": ["A"], "llm_config": {"architectures": ["L"]}}"#, "L"),
            (r#"{"architectures": ["A"], "thinker_config": {"text_config": {"architectures": ["Q"]}}}"#, "Q"),
            (
                r#"{"architectures": ["StepVLForConditionalGeneration"], "text_config": {"architectures": ["T"]}}"#,
                "StepVLForConditionalGeneration",
            ),
            (r#"{"ssm_cfg": {"layer": "Mamba2"}}"#, "Mamba2ForCausalLM"),
            (r#"{"ssm_cfg": {}}"#, "MambaForCausalLM"),
            (
                r#"{"architectures": [], "model_type": "x"}"#,
                "config.json: `architectures` names no model class",
            ),
            (r#"{"architectures": "A"}"#, "config.json: `architectures` names no model class"),
        ] {
            assert_eq!(class(json), want, "{json}");
        }
    }

    #[test]
    fn unknown_classes_list_similar_ones() {
        let registry = Registry::embedded().unwrap();
        let error = choose(&registry, "LlamaForCasualLM", &|_| Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "no architecture card for class `LlamaForCasualLM`");
        let hints = gguf_core::Hint::hints(&error);
        assert!(hints[0].starts_with("similar classes: LlamaForCausalLM"), "{hints:?}");
    }
}
