//! Attributes that a configuration omits and for which the class has another default than the card.

use serde_json::Value as Json;

use crate::attributes::AttributeDefault;
use crate::error::lost_value::LostValue;
use crate::judge::carried::{CarriedCheck, Effect, effects, rope};
use crate::keys::hparams::{ROPE_BASES, ROPE_PARTS};

/// Attributes that tensors imply, that older configurations have under other names, or for which runtimes use the
/// class's default.
const NOT_ASKED: [&str; 5] =
    ["attention_chunk_size", "head_dim", "hidden_size", "layer_norm_eps", "num_attention_heads"];

impl CarriedCheck<'_, '_> {
    /// Checks omitted attributes, including those of the rope.
    pub(super) fn omitted(&mut self) {
        let Some(attributes) = self.attributes else { return };
        for name in attributes.names() {
            if NOT_ASKED.contains(&name)
                || rope::is_judged(name)
                || !effects::has_effect(name)
                || self.mentioned.contains(name)
            {
                continue;
            }
            if self.given(name).is_none() {
                let default = match attributes.default_of(name) {
                    Some(AttributeDefault::Value(default)) => Some(default),
                    _ => None,
                };
                self.omitted_value(name, default);
            }
        }
        for (name, names) in [("rope_theta", &ROPE_BASES[..]), ("partial_rotary_factor", &ROPE_PARTS[..])] {
            let is_stated = names.iter().any(|name| self.given(name).is_some() || self.is_described(name));
            if !is_stated {
                // Default of runtimes for a file without a base.
                let default = self.default_member(None, name).filter(|default| *default != 10000.0);
                self.omitted_value(name, default);
            }
        }
    }

    fn omitted_value(&mut self, name: &str, default: Option<Json>) {
        let Some(default) = default.filter(|default| !default.is_null()) else { return };
        let part = self.config.get("text_config").filter(|part| part.is_object()).map(|_| "text_config");
        let mut changed = self.config.clone();
        let target = match part {
            Some(part) => changed.get_mut(part).and_then(Json::as_object_mut),
            None => Some(&mut changed),
        };
        let Some(target) = target else { return };
        target.insert(name.to_owned(), default.clone());
        // A window as long as the context hides nothing, but windowed layers may have other rope parameters.
        let acts = self.acts(name, &default) || (name == "sliding_window" && self.names_windowed_layers());
        if acts && self.effect(&changed) == Effect::OnFile {
            self.lose_absent(name, default);
        }
    }

    /// Records an omitted key, and transformers' default for it.
    pub(super) fn lose_absent(&mut self, key: &str, value: Json) {
        let (key, gguf) = (key.to_owned(), self.card.gguf.clone());
        self.lost.push(LostValue {
            key,
            value,
            assumed: None,
            gguf,
            can_be_annotated: false,
            is_absent: true,
        });
    }

    fn names_windowed_layers(&self) -> bool {
        let layer_types = self.given("layer_types").and_then(Json::as_array);
        layer_types.is_some_and(|layers| layers.iter().any(|layer| layer == "sliding_attention"))
    }
}
