//! The `mixer` of a graph: what mixes positions in each layer.

use std::collections::BTreeMap;

use serde::Deserialize;

names! {
    /// Property that chooses a layer's mixer.
    MixerBy { KvHeads }
}

/// Mixer as the engine's table of mixers spells it (`crates/gguf-engine/src/ops.rs`), with the words that only this mixer reads. In a
/// card: `"gdn"`, or with words `{ gdn = { gate = "sigmoid" } }`. Unknown names and words are refused by the engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct MixerChoice {
    /// Name of the mixer.
    pub name: String,
    /// Words of its own.
    pub words: toml::Table,
}

impl Default for MixerChoice {
    fn default() -> Self {
        Self { name: "attention".to_owned(), words: toml::Table::new() }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Name(String),
    WithWords(BTreeMap<String, toml::Table>),
}

impl TryFrom<Written> for MixerChoice {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written::Name(name) => Ok(Self { name, words: toml::Table::new() }),
            Written::WithWords(mut mixers) => match (mixers.pop_first(), mixers.is_empty()) {
                (Some((name, words)), true) => Ok(Self { name, words }),
                _ => Err("expected the words of one mixer"),
            },
        }
    }
}

/// Mixers of the layers: one for all, or two chosen by a rule.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum MixerRule {
    /// One mixer for all layers.
    All(MixerChoice),
    /// `full` in every n-th layer, `rest` in the others.
    Every {
        /// The period.
        every: u32,
        /// Mixer of the last of each period.
        full: MixerChoice,
        /// Mixer of the others.
        rest: MixerChoice,
    },
    /// Chosen by `head_count_kv` of the layer.
    By {
        /// The rule; only `kv_heads`.
        by: MixerBy,
        /// Mixer of layers with key-value heads.
        full: MixerChoice,
        /// Mixer of the others.
        rest: MixerChoice,
    },
}

impl Default for MixerRule {
    fn default() -> Self {
        Self::All(MixerChoice::default())
    }
}

impl MixerRule {
    /// Returns the mixers that layers may have.
    pub fn choices(&self) -> Vec<&MixerChoice> {
        match self {
            Self::All(all) => vec![all],
            Self::Every { full, rest, .. } | Self::By { full, rest, .. } => vec![full, rest],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mixer: &str) -> Result<MixerRule, toml::de::Error> {
        #[derive(Deserialize)]
        struct Graph {
            mixer: MixerRule,
        }
        toml::from_str::<Graph>(&format!("mixer = {mixer}")).map(|graph| graph.mixer)
    }

    #[test]
    fn words_of_a_mixer_are_under_its_name() {
        let gdn = MixerChoice { name: "gdn".to_owned(), words: "gate = 'sigmoid'".parse().unwrap() };
        assert_eq!(read("{ gdn = { gate = 'sigmoid' } }").unwrap(), MixerRule::All(gdn.clone()));
        let rule = read("{ every = 4, full = 'attention', rest = { gdn = { gate = 'sigmoid' } } }").unwrap();
        assert_eq!(rule, MixerRule::Every { every: 4, full: MixerChoice::default(), rest: gdn });
        for text in ["{ gdn = 1 }", "{ gdn = {}, kda = {} }", "{}"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
