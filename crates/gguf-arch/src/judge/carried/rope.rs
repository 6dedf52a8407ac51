//! Checks the rope parameters of a configuration, member by member, in each of their forms.

use serde_json::Value as Json;

use crate::attributes::AttributeDefault;
use crate::error::lost_value::LostValue;
use crate::graph::{Positions, log_multiplier};
use crate::judge::carried::same::{number, same};
use crate::judge::carried::{CarriedCheck, ConfigMap, Effect};
use crate::keys::hparams::{ROPE_BASES, ROPE_PARTS};
use crate::keys::runtime_keys;

/// Members that hold rope parameters.
const DESCRIPTIONS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Older names of rope parameters, which the classes still read.
pub(super) const OLD: [&str; 3] = ["initial_context_length", "local_rope_theta", "rope_local_base_freq"];
/// Layer types with full attention, as classes name them.
const FULL_KINDS: [&str; 2] = ["full_attention", "indexed_attention"];
/// Keys of the rotated fraction of a head outside the rope parameters; the last belongs to single cards.
const PARTS: [&str; 4] = [ROPE_PARTS[0], ROPE_PARTS[1], ROPE_PARTS[2], "rotary_pct"];
/// Types without a scaling, or with one that other members describe.
const PLAIN: [&str; 4] = ["default", "mrope", "none", "xdrope"];

/// Members that act under a type, with their defaults; null leaves the value to other members.
fn members(rope_type: &str) -> &'static [(&'static str, &'static str)] {
    match rope_type {
        "linear" => &[("factor", "1.0")],
        "yarn" => &[
            ("factor", "1.0"),
            ("original_max_position_embeddings", "null"),
            ("attention_factor", "null"),
            ("beta_fast", "32.0"),
            ("beta_slow", "1.0"),
            ("truncate", "true"),
        ],
        "longrope" => &[("long_factor", "null"), ("short_factor", "null"), ("attention_factor", "null")],
        "llama3" => &[
            ("factor", "1.0"),
            ("high_freq_factor", "null"),
            ("low_freq_factor", "null"),
            ("original_max_position_embeddings", "null"),
        ],
        _ => &[],
    }
}

/// Returns true for attributes that this module checks.
pub(super) fn is_judged(name: &str) -> bool {
    DESCRIPTIONS.iter().any(|description| name.split('.').next() == Some(description))
        || ROPE_BASES.contains(&name)
        || PARTS.contains(&name)
}

/// Path from the top of the configuration to a set of rope parameters.
pub(super) type ConfigPath = Vec<String>;

impl CarriedCheck<'_, '_> {
    /// Checks the rope, if the model has one.
    pub(super) fn rope(&mut self) {
        let positions = self.card.graph.as_ref().map(|graph| graph.positions);
        if !matches!(positions, None | Some(Positions::Rope | Positions::Rope2d | Positions::ByDepth)) {
            return;
        }
        let paths = self.descriptions();
        for path in &paths {
            self.described(path);
        }
        let (has_base, has_part) =
            (self.is_described("rope_theta"), self.is_described("partial_rotary_factor"));
        if !has_base {
            self.outside(&ROPE_BASES, "rope_theta");
        }
        if !has_part {
            self.outside(&PARTS, "partial_rotary_factor");
        }
        self.other_bases();
        if let (false, Some(path)) = (has_part, paths.first()) {
            self.whole_heads(path);
        }
    }

    /// Checks bases under other names than the one that is used: transformers' classes read only their own name.
    fn other_bases(&mut self) {
        let bases: Vec<(&str, Json)> = ROPE_BASES
            .into_iter()
            .filter_map(|name| Some((name, self.given(name)?.clone())))
            .filter(|(_, base)| !base.is_null())
            .collect();
        let Some(((_, taken), others)) = bases.split_first() else { return };
        for (name, base) in others.iter().filter(|(_, base)| !same(base, taken)) {
            self.lose_anyway(name, base.clone(), taken.clone());
        }
    }

    /// Checks files with partly rotated heads and no such parameter in the configuration: the class then rotates whole
    /// heads, unless it has a default.
    fn whole_heads(&mut self, path: &ConfigPath) {
        let has_own = PARTS.iter().chain(&["rotary_dim"]).any(|name| self.given(name).is_some());
        let has_default = self.default_member(None, "partial_rotary_factor").is_some();
        if self.attributes.is_some() && !has_own && !has_default && self.turns_in_part() {
            self.lose_absent(&place(path, "partial_rotary_factor"), 1.0.into());
        }
    }

    /// Returns true if the file declares partly rotated heads. Heads of latent attention, which have a separate rotated
    /// part, do not count.
    fn turns_in_part(&self) -> bool {
        let (Some(rotated), Some(head)) = (self.count("rope.dimension_count"), self.head_size()) else {
            return false;
        };
        rotated < head && self.effective("qk_rope_head_dim").is_none()
    }

    /// Returns true if some set of rope parameters has this member.
    pub(super) fn is_described(&self, member: &str) -> bool {
        let mut paths = self.descriptions().into_iter();
        paths.any(|path| self.at(&path).is_some_and(|description| description.contains_key(member)))
    }

    /// Returns the paths of all sets of rope parameters: one, or one per layer type.
    pub(super) fn descriptions(&self) -> Vec<ConfigPath> {
        let text = self.config.get("text_config").and_then(Json::as_object);
        let (part, config) = text.map_or((None, self.config), |text| (Some("text_config"), text));
        let Some(name) = DESCRIPTIONS.into_iter().find(|name| config.get(*name).is_some_and(Json::is_object))
        else {
            return Vec::new();
        };
        let path: ConfigPath = part.into_iter().chain([name]).map(str::to_owned).collect();
        let members = config[name].as_object().into_iter().flatten();
        let kinds: Vec<ConfigPath> = members
            .filter(|(_, member)| member.is_object())
            .map(|(kind, _)| path.iter().chain([kind]).cloned().collect())
            .collect();
        if kinds.is_empty() { vec![path] } else { kinds }
    }

    pub(super) fn at(&self, path: &ConfigPath) -> Option<&ConfigMap> {
        path.iter().try_fold(self.config, |config, name| config.get(name)?.as_object())
    }

    /// Returns the configuration with other members in a set of rope parameters; null removes a member.
    pub(super) fn with_members(&self, path: &ConfigPath, members: &[(&str, Json)]) -> Option<ConfigMap> {
        let mut changed = self.config.clone();
        let description =
            path.iter().try_fold(&mut changed, |config, name| config.get_mut(name)?.as_object_mut())?;
        for (name, value) in members {
            match value {
                Json::Null => description.remove(*name),
                value => description.insert((*name).to_owned(), value.clone()),
            };
        }
        Some(changed)
    }

    /// Returns the class's default of a member.
    pub(super) fn default_member(&self, kind: Option<&str>, member: &str) -> Option<Json> {
        let of_kind = |kind: &str| format!("rope_parameters.{kind}.{member}");
        let names = kind.map(of_kind).into_iter().chain([format!("rope_parameters.{member}")]);
        let mut names = names.chain(FULL_KINDS.map(of_kind));
        let attributes = self.attributes?;
        names.find_map(|name| match attributes.default_of(&name)? {
            AttributeDefault::Value(value) => Some(value),
            AttributeDefault::Period(_) | AttributeDefault::Derived => None,
        })
    }

    /// Returns what is lost of a member; with the type, all that acts under it is.
    pub(super) fn lost_member(&self, path: &ConfigPath, member: &str) -> Option<&LostValue> {
        let of = |member: &str| self.lost.iter().find(|lost| lost.key == place(path, member));
        let acts_alone = ["rope_theta", "partial_rotary_factor"].contains(&member);
        of(member).or_else(|| ["rope_type", "type"].into_iter().filter(|_| !acts_alone).find_map(of))
    }

    fn described(&mut self, path: &ConfigPath) {
        let Some(description) = self.at(path).cloned() else { return };
        let kind = path.last().map(String::as_str).filter(|name| !DESCRIPTIONS.contains(name));
        let place = |member: &str| place(path, member);
        let type_name = ["rope_type", "type"]
            .into_iter()
            .find(|name| description.get(*name).is_some_and(Json::is_string));
        let rope_type = match type_name.and_then(|name| description.get(name)).and_then(Json::as_str) {
            None => "default".to_owned(),
            Some(name) if name.eq_ignore_ascii_case("su") => "longrope".to_owned(),
            Some(name) => name.to_lowercase(),
        };
        if let Some(type_name) = type_name
            && !self.is_plain(&rope_type, &description)
        {
            let mut plain = vec![("rope_type", Json::from("default")), ("type", Json::Null)];
            plain.extend(members(&rope_type).iter().map(|(member, _)| (*member, Json::Null)));
            let changed = self.with_members(path, &plain);
            let effect = changed.map_or(Effect::OnFile, |changed| self.effect(&changed));
            if effect != Effect::OnFile {
                self.lose(&place(type_name), rope_type.into(), Some("default".into()), effect);
                return;
            }
        }
        for (member, absent) in members(&rope_type) {
            let absent = self.default_member(kind, member).or_else(|| serde_json::from_str(absent).ok());
            self.member(path, &place(member), member, &absent.unwrap_or_default());
        }
        self.magnitudes(path, &place("mscale"), &rope_type);
        self.score_magnitude(&description, &place("mscale_all_dim"), &rope_type);
        let base = self.default_member(kind, "rope_theta").unwrap_or_else(|| 10000.0.into());
        self.member(path, &place("rope_theta"), "rope_theta", &base);
        let part = self.default_member(kind, "partial_rotary_factor");
        if let Some(part) = part.or_else(|| self.turns_in_part().then_some(Json::Null)) {
            self.member(path, &place("partial_rotary_factor"), "partial_rotary_factor", &part);
        }
    }

    /// Returns true for types that stretch nothing within the declared context length.
    fn is_plain(&self, rope_type: &str, description: &ConfigMap) -> bool {
        let trained = description.get("original_max_position_embeddings").and_then(number);
        let longest = self.effective("max_position_embeddings").as_ref().and_then(number);
        let is_within = trained.is_none() || trained >= longest;
        // All pairs of a head are rotated.
        let is_whole =
            description.get("partial_rotary_factor").and_then(number).is_none_or(|part| part == 1.0);
        match rope_type {
            "dynamic" => is_within,
            // The generated factors per pair carry it.
            "proportional" => is_whole || !self.plan.generated.is_empty(),
            other => PLAIN.contains(&other),
        }
    }

    /// Checks one member against its default.
    fn member(&mut self, path: &ConfigPath, place: &str, member: &str, absent: &Json) {
        let Some(value) = self.at(path).and_then(|description| description.get(member)).cloned() else {
            return;
        };
        // Runtimes round the ends of the ramp by default.
        let is_usual = member == "truncate" && value == true;
        let is_stated = member == "partial_rotary_factor" && self.is_stated_part(&value);
        if value.is_null() || is_usual || is_stated || self.is_outranked(member) || same(&value, absent) {
            return;
        }
        let other = if absent.is_null() { other_than(&value) } else { absent.clone() };
        let Some(changed) = self.with_members(path, &[(member, other)]) else { return };
        let effect = self.effect(&changed);
        let assumed = Some(absent.clone()).filter(|absent| !absent.is_null());
        self.lose(place, value, assumed, effect);
    }

    /// Returns true for the base of a model with bases by layer.
    fn is_outranked(&self, member: &str) -> bool {
        member == "rope_theta" && self.given("layer_rope_theta").is_some_and(|bases| !bases.is_null())
    }

    /// Checks the two numbers of YaRN's magnitude, which act together.
    fn magnitudes(&mut self, path: &ConfigPath, place: &str, rope_type: &str) {
        let Some(description) = self.at(path).filter(|_| rope_type == "yarn") else { return };
        let has = |name: &str| description.get(name).and_then(number).is_some_and(|number| number != 0.0);
        let has_factor = description.get("attention_factor").is_some_and(|factor| !factor.is_null());
        if has_factor || !has("mscale_all_dim") || !has("mscale") {
            return;
        }
        let value = description.get("mscale").cloned().unwrap_or_default();
        let all = description.get("mscale_all_dim").cloned().unwrap_or_default();
        if !same(&value, &all)
            && let Some(changed) = self.with_members(path, &[("mscale", all.clone())])
        {
            let effect = self.effect(&changed);
            self.lose(place, value, Some(all), effect);
            return;
        }
        let Some(changed) =
            self.with_members(path, &[("mscale", Json::Null), ("mscale_all_dim", Json::Null)])
        else {
            return;
        };
        let effect = self.effect(&changed);
        self.lose(place, value, None, effect);
    }

    /// Checks the factor of scores that comes with a scaling under latent attention.
    fn score_magnitude(&mut self, description: &ConfigMap, place: &str, rope_type: &str) {
        let (Some(graph), true) = (&self.card.graph, matches!(rope_type, "linear" | "yarn")) else { return };
        let float = |key: &str| self.plan.metadata.get(&format!("{}.{key}", self.card.gguf))?.as_f64();
        let Some(factor) = float("rope.scaling.factor") else { return };
        let is_yarn = rope_type == "yarn";
        let wanted = runtime_keys::wanted_magnitudes(description, &self.scope.config, is_yarn, factor);
        let [key, attn_factor] =
            ["yarn_log_multiplier", "attn_factor"].map(|key| float(&format!("rope.scaling.{key}")));
        let found = graph.rope.yarn_mu.magnitudes(is_yarn, factor, key, attn_factor.unwrap_or(1.0));
        let multiplier = |magnitude: f64| (log_multiplier(factor, magnitude) * 1e4).round() / 1e4;
        let [wanted, found] = [wanted, found].map(|magnitudes| multiplier(magnitudes.scores));
        if wanted != found {
            self.lose_anyway(place, wanted.into(), found.into());
        }
    }

    /// Returns true if the file declares this rotated fraction of a head; without the key, whole heads are rotated.
    fn is_stated_part(&self, part: &Json) -> bool {
        let (Some(part), Some(head)) = (number(part), self.head_size()) else { return false };
        let rotated = self.count("rope.dimension_count").unwrap_or(head);
        // The rotated part of latent attention's heads has its own size.
        let is_own = self.effective("qk_rope_head_dim").is_some_and(|own| own == rotated);
        is_own || (part * head as f64).floor() == rotated as f64
    }

    /// Checks a number outside the rope parameters, under the first of its names that is present.
    fn outside(&mut self, names: &[&str], member: &str) {
        let Some(name) = names.iter().find(|name| self.given(name).is_some_and(|value| !value.is_null()))
        else {
            return;
        };
        let Some(value) = self.given(name).cloned() else { return };
        if self.is_outranked(member) || member == "partial_rotary_factor" && self.is_stated_part(&value) {
            return;
        }
        let absent = self.default_member(None, member);
        let absent = absent.or_else(|| (member == "rope_theta").then(|| 10000.0.into()));
        let Some(absent) = absent.filter(|absent| !same(absent, &value)) else { return };
        let Some(changed) = self.with(name, absent.clone()) else { return };
        let effect = self.effect(&changed);
        self.lose(name, value, Some(absent), effect);
    }
}

/// Returns the dotted name of a member of rope parameters, without `text_config`.
fn place(path: &ConfigPath, member: &str) -> String {
    let path = path.iter().skip_while(|name| *name == "text_config").map(String::as_str);
    path.chain([member]).collect::<Vec<_>>().join(".")
}

/// Returns a different value of the same kind.
fn other_than(value: &Json) -> Json {
    match (value, number(value)) {
        (Json::Array(items), _) => items.iter().map(other_than).collect(),
        (_, Some(number)) if value.is_u64() => ((number * 2.0 + 1.0) as u64).into(),
        (_, Some(number)) => (number * 2.0 + 1.0).into(),
        _ => Json::Null,
    }
}
