//! Checks that the values of a configuration reach the file. Reports attributes whose values no key and no tensor
//! carries, and for which runtimes compute something else.
//!
//! An attribute is carried if the planned keys change when its value is replaced by the class's default. If a card or
//! its graph declares what the runtime computes regardless of the configuration, the value is compared with that
//! instead.

use crate::Result;
use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};

use crate::attributes::{AttributeDefault, Attributes};
use crate::error::lost_value::LostValue;
use crate::graph::{GraphFeatures, RopeOn};
use crate::judge::long_rope;
use crate::keys::hparams::{self, ConfigMap};
use crate::keys::origins::Origins;
use crate::keys::{runtime_keys, target};
use crate::language::eval::{Root, Scope};
use crate::mapping::scope::configure;
use crate::mapping::{OutputSpec, generated};
use crate::read::schema::Card;
use crate::read::{base, metadata_rows};
use gguf_core::account::Piece;
use gguf_format::Metadata;

mod assumed;
mod effects;
mod fates;
mod mentioned;
mod omitted;
mod rope;
mod same;
mod switched_off;

use assumed::Assumption;
pub(crate) use fates::of_read;
pub(crate) use same::{number, same};

/// Returns a list by layer that repeats `beginning`.
fn repeated(beginning: &[Json], n_layers: usize) -> Json {
    beginning.iter().cycle().take(n_layers).cloned().collect()
}

/// Part of a plan that depends on the configuration, but not on weights.
#[derive(PartialEq)]
struct ConfigPlan {
    generated: Vec<OutputSpec>,
    early: Metadata,
    metadata: Metadata,
    long_rope: Option<Map<String, Json>>,
}

/// Effect of changing the value of an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Changes a key or a generated tensor, or makes planning fail.
    OnFile,
    /// Changes an annotation.
    OnAnnotation,
    /// No effect.
    None,
}

struct CarriedCheck<'j, 'a> {
    card: &'a Card,
    /// Configuration with its text part under `text_config`.
    config: &'j ConfigMap,
    attributes: Option<&'static Attributes>,
    scope: Scope<'a>,
    plan: ConfigPlan,
    annotations: Metadata,
    annotate: bool,
    /// Names that expressions about tensors read.
    mentioned: BTreeSet<String>,
    lost: Vec<LostValue>,
}

/// Returns the values of a configuration that the plan of a card loses, and what becomes of each key. `rivals` are the
/// cards of the same class, `outputs` the written tensors, `origins` the sources of the file's keys.
pub(crate) fn lost<'a>(
    card: &'a Card,
    rivals: &[&Card],
    config: &ConfigMap,
    scope: Scope<'a>,
    outputs: &[OutputSpec],
    origins: &Origins,
    annotate: bool,
) -> Result<(Vec<LostValue>, Vec<Piece>)> {
    // The configuration of a draft model partly describes its target model.
    if target::is_used_by(card) {
        return Ok((Vec::new(), of_read(card, config)));
    }
    let mut scope = scope;
    let (plan, annotations) = config_plan(card, config, &mut scope)?;
    let attributes = Attributes::of_text(config);
    let mentioned = mentioned::by_tensors(card, rivals);
    let lost = Vec::new();
    let mut check =
        CarriedCheck { card, config, attributes, scope, plan, annotations, annotate, mentioned, lost };
    let assumptions = check.assumptions()?;
    check.compare(&assumptions);
    check.attributes(&assumptions);
    check.switched_off(outputs);
    check.rope();
    check.omitted();
    let fates = check.fates(origins);
    Ok((check.lost, fates))
}

/// Computes the keys and generated tensors for a configuration, and the annotations.
fn config_plan(card: &Card, config: &ConfigMap, scope: &mut Scope<'_>) -> Result<(ConfigPlan, Metadata)> {
    scope.roots.retain(|root| root.0 != "raw");
    scope.roots.push(("raw", Root::Value(Json::Object(config.clone()))));
    configure(card, config, scope)?;
    let generated = card.generate.iter().map(|generate| generated::generated(card, generate, scope));
    let generated: Vec<Option<OutputSpec>> = generated.collect::<Result<_, _>>()?;
    hparams::set_for_metadata(card, scope)?;
    let (mut early, mut metadata) = (Metadata::new(), Metadata::new());
    metadata_rows::apply_rows(card, "early", &card.early, scope, &mut early)?;
    metadata_rows::apply_rows(card, "metadata", &card.metadata, scope, &mut metadata)?;
    runtime_keys::add(card, scope, &early, &mut metadata)?;
    let is_reader = |archs: &str| archs.split(' ').any(|arch| arch == card.gguf);
    for (key, _) in base().read_by.iter().filter(|(_, archs)| !is_reader(archs)) {
        metadata.remove(&format!("{}.{key}", card.gguf));
    }
    let annotations = metadata_rows::annotations(card, scope)?;
    let generated = generated.into_iter().flatten().collect();
    let long_rope = long_rope::parameters(scope);
    Ok((ConfigPlan { generated, early, metadata, long_rope }, annotations))
}

impl CarriedCheck<'_, '_> {
    fn effect(&mut self, changed: &ConfigMap) -> Effect {
        match config_plan(self.card, changed, &mut self.scope) {
            Err(_) => Effect::OnFile,
            Ok((plan, _)) if plan != self.plan => Effect::OnFile,
            // If the change only adds annotations, a file without them already expresses the given value.
            Ok((_, annotations))
                if self.annotations.iter().any(|(key, value)| annotations.get(key) != Some(value)) =>
            {
                Effect::OnAnnotation
            }
            Ok((_, annotations)) if annotations != self.annotations => Effect::OnFile,
            Ok(_) => Effect::None,
        }
    }

    /// Returns the place of an attribute: the part of the configuration, and the name used there.
    fn place(&self, name: &str) -> Option<(Option<&'static str>, String)> {
        let spellings: Vec<&str> = match self.attributes {
            Some(attributes) => attributes.spellings(name).collect(),
            None => vec![name],
        };
        let text = self.config.get("text_config").and_then(Json::as_object);
        let parts = [text.map(|text| (Some("text_config"), text)), Some((None, self.config))];
        parts.into_iter().flatten().find_map(|(part, config)| {
            let spelled = spellings.iter().find(|name| config.contains_key(**name))?;
            Some((part, (*spelled).to_owned()))
        })
    }

    fn part(&self, part: Option<&str>) -> &ConfigMap {
        part.and_then(|part| self.config.get(part)).and_then(Json::as_object).unwrap_or(self.config)
    }

    /// Returns the value in the configuration; `None` for a null that counts as absent.
    fn given(&self, name: &str) -> Option<&Json> {
        let (part, spelled) = self.place(name)?;
        let value = self.part(part).get(&spelled)?;
        let is_filled = self.attributes.is_none_or(|attributes| attributes.fills_null(name));
        Some(value).filter(|value| !(value.is_null() && is_filled))
    }

    /// Returns the value in the configuration, or the class's default.
    fn effective(&self, name: &str) -> Option<Json> {
        let default = || match self.attributes?.default_of(name)? {
            AttributeDefault::Value(value) => Some(value),
            AttributeDefault::Period(_) | AttributeDefault::Derived => None,
        };
        self.given(name).cloned().or_else(default)
    }

    /// Returns the configuration with another value of an attribute that it contains.
    fn with(&self, name: &str, value: Json) -> Option<ConfigMap> {
        let (part, spelled) = self.place(name)?;
        let mut changed = self.config.clone();
        let target = match part {
            Some(part) => changed.get_mut(part)?.as_object_mut()?,
            None => &mut changed,
        };
        target.insert(spelled, value);
        Some(changed)
    }

    fn lose(&mut self, key: &str, value: Json, assumed: Option<Json>, effect: Effect) {
        let can_be_annotated = match effect {
            Effect::OnFile => return,
            Effect::OnAnnotation if self.annotate => return,
            Effect::OnAnnotation => true,
            Effect::None => false,
        };
        let gguf = self.card.gguf.clone();
        let key = key.to_owned();
        self.lost.push(LostValue { key, value, assumed, gguf, can_be_annotated, is_absent: false });
    }

    /// As [`CarriedCheck::lose`], for a value that neither a key nor an annotation carries.
    fn lose_anyway(&mut self, key: &str, value: Json, assumed: Json) {
        self.lose(key, value, Some(assumed), Effect::None);
    }

    /// Compares values with those that the runtime computes regardless of the configuration.
    fn compare(&mut self, assumptions: &[Assumption]) {
        for assumption in assumptions {
            let Some(value) = self.taken(&assumption.name) else { continue };
            let Some(first) = assumption.values.first() else { continue };
            if assumption.values.iter().any(|assumed| same(assumed, &value)) {
                continue;
            }
            if !self.acts(&assumption.name, &value) {
                continue;
            }
            let changed = self.with(&assumption.name, first.clone());
            let effect = match changed.map(|changed| self.effect(&changed)) {
                Some(Effect::OnFile) if assumption.is_firm => Effect::None,
                Some(effect) => effect,
                None => Effect::None,
            };
            self.lose(&assumption.name, value, Some(first.clone()), effect);
        }
    }

    /// Compares all other values with the defaults of the class.
    fn attributes(&mut self, assumptions: &[Assumption]) {
        let Some(attributes) = self.attributes else { return };
        for name in attributes.names() {
            let is_assumed = assumptions.iter().any(|assumption| assumption.name == name);
            if is_assumed || rope::is_judged(name) || !effects::has_effect(name) {
                continue;
            }
            let Some(value) = self.given(name).cloned() else { continue };
            let Some(default) = self.default_for(name, &value) else { continue };
            let is_off = default.is_null() && value == false;
            if is_off || same(&default, &value) || self.mentioned.contains(name) || !self.acts(name, &value) {
                continue;
            }
            let Some(changed) = self.with(name, default.clone()) else { continue };
            let effect = self.effect(&changed);
            self.lose(name, value, Some(default), effect);
        }
    }

    /// Returns the class's default for an attribute whose given value is `value`.
    fn default_for(&self, name: &str, value: &Json) -> Option<Json> {
        let of_others = effects::derived(name, &|name| self.effective(name));
        match self.attributes?.default_of(name)? {
            AttributeDefault::Value(default) => of_others.or(Some(default)),
            AttributeDefault::Period(beginning) => Some(repeated(&beginning, value.as_array()?.len())),
            AttributeDefault::Derived => of_others,
        }
    }

    /// Returns true unless other attributes make this one ineffective.
    fn acts(&self, name: &str, value: &Json) -> bool {
        // Whether there is a window decides which layers rotate.
        let is_rotation = |graph: &GraphFeatures| graph.rope.on == RopeOn::Windowed;
        if name == "sliding_window" && self.card.graph.as_ref().is_some_and(is_rotation) {
            return !value.is_null();
        }
        // If neither the file nor the runtime has a window, all layers have full attention.
        let is_full = |layers: Json| {
            layers.as_array().is_some_and(|layers| layers.iter().all(|layer| layer == "full_attention"))
        };
        let layers = match name {
            "layer_types" => Some(value.clone()),
            "sliding_window" => self.effective("layer_types"),
            _ => None,
        };
        if layers.is_some_and(is_full) && !self.has_window() {
            return false;
        }
        effects::acts(name, value, &|name| self.effective(name))
    }
}
