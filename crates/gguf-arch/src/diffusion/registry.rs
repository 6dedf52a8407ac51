//! All cards of image and video models, and the recognition of a checkpoint.

use crate::Result;
use std::sync::{Arc, OnceLock};

use super::card::DiffusionCard;
use super::common::{CommonRules, NamePrefix};
use super::layout::Layout;

/// Name and text of each embedded card: files of `converters/diffusion/`.
const TEXTS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/diffusion.rs"));
/// File with the rules that all share.
const BASE: &str = "base";

/// Most parts of a prefix that no rule lists.
const MAX_PREFIX_PARTS: usize = 3;

static EMBEDDED: OnceLock<DiffusionCards> = OnceLock::new();

/// Cards of image and video models, in the order of recognition.
#[derive(Clone, Debug)]
pub struct DiffusionCards {
    common: Arc<CommonRules>,
    cards: Vec<Arc<DiffusionCard>>,
    /// Number of cards that were added; they are the first.
    n_added: usize,
}

/// Result of recognizing a checkpoint by its names.
#[derive(Clone, Debug)]
pub enum Recognition<'a> {
    /// Model of this architecture.
    Card(&'a Arc<DiffusionCard>),
    /// Model of this architecture, in the layout of another program.
    Layout(&'a Arc<DiffusionCard>, &'a Layout),
    /// Models of two architectures.
    Two(&'a Arc<DiffusionCard>, &'a Arc<DiffusionCard>),
    /// File that is not converted.
    Refused {
        /// Description of the file.
        what: String,
        /// What to do instead.
        way_out: &'a str,
    },
    /// No rule knows these names.
    Unknown,
}

impl DiffusionCards {
    /// Returns the embedded cards. They are parsed once per process.
    ///
    /// # Errors
    /// [`Card`](crate::ArchError::Card) if an embedded card is invalid; never in a program that passes its tests.
    pub fn embedded() -> Result<&'static Self> {
        if let Some(cards) = EMBEDDED.get() {
            return Ok(cards);
        }
        let base = TEXTS.iter().find(|row| row.0 == BASE).map_or("", |row| row.1);
        let common = Arc::new(CommonRules::parse(base)?);
        let own = TEXTS.iter().filter(|row| row.0 != BASE);
        let cards = own.map(|(stem, text)| parsed(&common, stem, text));
        let mut cards = cards.collect::<Result<Vec<_>, _>>()?;
        cards.sort_by_key(|card| card.order);
        Ok(EMBEDDED.get_or_init(|| Self { common, cards, n_added: 0 }))
    }

    /// Adds a card before all others; it replaces one of the same architecture.
    pub fn with(&self, stem: &str, text: &str) -> Result<Self> {
        let card = parsed(&self.common, stem, text)?;
        let others = self.cards.iter().filter(|other| other.gguf != card.gguf).cloned();
        Ok(Self {
            cards: [Arc::clone(&card)].into_iter().chain(others).collect(),
            common: self.common.clone(),
            n_added: self.n_added + 1,
        })
    }

    /// Rules that all cards share.
    pub fn common(&self) -> &Arc<CommonRules> {
        &self.common
    }

    /// Iterates over the cards, in the order of recognition.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DiffusionCard>> {
        self.cards.iter()
    }

    /// Returns the card of an architecture.
    pub fn by_gguf(&self, gguf: &str) -> Option<&Arc<DiffusionCard>> {
        self.cards.iter().find(|card| card.gguf == gguf)
    }

    /// Returns the prefix of the diffusion model's tensors: one that the rules list, or else one of all names without which
    /// they are those of a model.
    pub fn prefix<'a>(&'a self, names: &[&'a str]) -> NamePrefix<'a> {
        let listed = self.common.prefix(names);
        if listed.text().is_some() || !matches!(self.recognize(names), Recognition::Unknown) {
            return listed;
        }
        let first = names.first().copied().unwrap_or_default();
        let ends = first.match_indices('.').map(|(at, _)| &first[..=at]).take(MAX_PREFIX_PARTS);
        let of_all = ends.filter(|prefix| names.iter().all(|name| name.starts_with(prefix)));
        let mut found = of_all.filter(|prefix| {
            let own: Vec<&str> = names.iter().map(|name| &name[prefix.len()..]).collect();
            matches!(self.recognize(&own), Recognition::Card(_) | Recognition::Layout(..))
        });
        found.next().map_or(listed, |prefix| self.common.with_prefix(Some(prefix)))
    }

    /// Recognizes a checkpoint by its tensor names, without their prefix.
    ///
    /// # Exactness
    /// ref: cards are tried in a fixed order; layouts of other programs, which the reference refuses, are found where their
    /// card is tried.
    pub fn recognize(&self, names: &[&str]) -> Recognition<'_> {
        let known: std::collections::HashSet<&str> = names.iter().copied().collect();
        let has = |name: &String| known.contains(name.as_str());
        let refused = |is_always: bool| {
            let rows = self.common.refused.iter().filter(|row| row.always == is_always);
            let row = rows.into_iter().find(|row| row.matches(names))?;
            Some(Recognition::Refused { what: row.what.clone(), way_out: &row.way_out })
        };
        if let Some(refused) = refused(true) {
            return refused;
        }
        for (at, card) in self.cards.iter().enumerate() {
            if let Some(row) = card.refused.iter().find(|row| row.names.iter().any(has)) {
                let what = format!("`{}` in the layout of {}", card.gguf, row.layout);
                return Recognition::Refused { what, way_out: &row.way_out };
            }
            if let Some(layout) = card.layout(has) {
                return Recognition::Layout(card, layout);
            }
            if card.recognize.iter().any(|set| set.iter().all(has)) {
                // An added card decides about names that others know as well.
                let mut others = self.cards.iter().skip(at + 1).filter(|_| at >= self.n_added);
                return match others.find(|other| is_apart(card, other, has)) {
                    Some(other) => Recognition::Two(card, other),
                    None => Recognition::Card(card),
                };
            }
        }
        refused(false).unwrap_or(Recognition::Unknown)
    }
}

/// Returns true if names of which one card knows none show the architecture of the other.
fn is_apart(card: &DiffusionCard, other: &DiffusionCard, has: impl Fn(&String) -> bool) -> bool {
    let is_own = |name: &String| card.recognize.iter().flatten().any(|own| own == name);
    let shows = |set: &&Vec<String>| set.iter().all(|name| has(name) && !is_own(name));
    other.recognize.iter().any(|set| shows(&set))
}

/// Parses a card, and adds the settings that it shares with others.
fn parsed(common: &CommonRules, stem: &str, text: &str) -> Result<Arc<DiffusionCard>> {
    let mut card = DiffusionCard::parse(stem, text)?;
    let shared = common.settings.iter().filter(|row| row.architectures.contains(&card.gguf));
    card.settings.extend(shared.cloned().collect::<Vec<_>>());
    Ok(Arc::new(card))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_recognizes_its_own_names_and_orders_differ() {
        let cards = DiffusionCards::embedded().unwrap();
        assert_eq!(cards.iter().count(), TEXTS.len() - 1);
        let mut orders: Vec<u32> = cards.iter().map(|card| card.order).collect();
        orders.dedup();
        assert_eq!(orders.len(), cards.iter().count());
        for card in cards.iter() {
            for set in &card.recognize {
                let names: Vec<&str> = set.iter().map(String::as_str).collect();
                let Recognition::Card(found) = cards.recognize(&names) else { panic!("{}", card.gguf) };
                assert_eq!(found.gguf, card.gguf);
            }
            assert!(!card.examples.is_empty(), "{}", card.gguf);
        }
    }

    #[test]
    fn two_models_in_one_file_are_found() {
        let cards = DiffusionCards::embedded().unwrap();
        let names_of = |gguf: &str, at: usize| -> Vec<&str> {
            cards.by_gguf(gguf).unwrap().recognize[at].iter().map(String::as_str).collect()
        };
        let both = [names_of("wan", 0), names_of("flux", 0)].concat();
        let Recognition::Two(first, second) = cards.recognize(&both) else { panic!("one model") };
        assert_eq!((first.gguf.as_str(), second.gguf.as_str()), ("flux", "wan"));
        // Names that both know are those of the first.
        let hyvid = names_of("hyvid", 1);
        assert!(hyvid.contains(&names_of("flux", 0)[0]));
        assert!(matches!(cards.recognize(&hyvid), Recognition::Card(card) if card.gguf == "hyvid"));
        let text = "schema = 1\nkind = \"diffusion\"\ngguf = \"mine\"\norder = 1\nexamples = [\"a/b\"]\n\
                    recognize = [[\"own.weight\"]]\n";
        let with = cards.with("mine", text).unwrap();
        let names = [names_of("flux", 0), vec!["own.weight"]].concat();
        assert!(matches!(with.recognize(&names), Recognition::Card(card) if card.gguf == "mine"));
    }

    #[test]
    fn other_models_beside_one_without_a_prefix_are_not_its_own() {
        let cards = DiffusionCards::embedded().unwrap();
        let first = "double_blocks.0.img_attn.proj.weight";
        let prefix = cards.prefix(&[first, "vae.decoder.conv_in.weight", "v_pred"]);
        assert_eq!(prefix.text(), None);
        assert_eq!(prefix.strip(first).as_deref(), Some(first));
        assert_eq!(prefix.strip("v_pred").as_deref(), Some("v_pred"));
        assert_eq!(prefix.strip("vae.decoder.conv_in.weight"), None);
    }

    #[test]
    fn other_files_are_named() {
        let cards = DiffusionCards::embedded().unwrap();
        let what = |names: &[&str]| match cards.recognize(names) {
            Recognition::Refused { what, .. } => what,
            Recognition::Card(card) => card.gguf.clone(),
            Recognition::Layout(card, layout) => format!("{} of {}", card.gguf, layout.program),
            Recognition::Two(first, second) => format!("{} and {}", first.gguf, second.gguf),
            Recognition::Unknown => "unknown".to_owned(),
        };
        for name in [
            "a.lora_down.weight",
            "lora_unet_x.oft_diag",
            "double_blocks.0.processor.qkv_lora1.down.weight",
            "unet.attn1.processor.to_q_lora.down.weight",
            "blocks.0.self_attn.q.diff_b",
            "blocks.0.self_attn.q.diff",
            "unet.attn1.to_q.lora_linear_layer.down.weight",
            "single_transformer_blocks.0.qkv_proj.lora_down",
            "diffusion_model.img_in.set_weight",
            "transformer.blocks.0.attn.to_q.vera_lambda_b",
            "diffusion_model.double_blocks.0.img_attn.proj.a1.weight",
        ] {
            assert_eq!(what(&[name]), "a LoRA, which is no model of its own", "{name}");
        }
        assert_eq!(what(&["decoder.conv_in.weight"]), "a VAE");
        assert_eq!(
            what(&["blocks.0.pos_embedding.embedding.weight"]),
            "a text encoder (UMT5, in the layout of Wan)"
        );
        assert_eq!(what(&["embeddings.token_embedding.weight"]), "a text encoder (CLIP)");
        assert_eq!(what(&["vision_model.encoder.layers.0.x"]), "an image encoder (CLIP)");
        assert!(what(&["clip_g", "clip_l"]).starts_with("an embedding"));
        assert_eq!(
            what(&["double_blocks.0.img_attn.proj.weight", "double_blocks.0.img_attn.proj.weight.absmax"]),
            "a checkpoint quantized by bitsandbytes"
        );
        assert_eq!(
            what(&["audio_time_embed.emb.timestep_embedder.linear_1.weight"]),
            "`ltxv` in the layout of diffusers"
        );
        assert_eq!(what(&["encoder.block.0.layer.0.SelfAttention.q.weight"]), "a text encoder (T5)");
        assert_eq!(what(&["x.weight"]), "unknown");
        let vae = ["latents_mean", "encoder.conv_in.conv.weight", "decoder.conv_out.conv.bias"];
        assert_eq!(what(&vae), "a VAE, or a pair of encoder and decoder");
        assert_eq!(what(&[vae[1], "time_in.weight"]), "unknown");
        assert!(
            what(&["down_blocks.0.temp_convs.0.conv1.0.weight", "conv_in.weight"])
                .starts_with("a video model")
        );
        assert_eq!(
            what(&["down_blocks.0.resnets.0.spatial_res_block.conv1.weight"]),
            "`sdxl` in the layout of diffusers"
        );
        assert_eq!(what(&["single_transformer_blocks.0.proj_mlp.weight"]), "flux of diffusers");
    }

    #[test]
    fn a_card_of_a_user_comes_first() {
        let text = "schema = 1\nkind = \"diffusion\"\ngguf = \"mine\"\norder = 99\nexamples = []\n\
                    recognize = [[\"double_blocks.0.img_attn.proj.weight\"]]\n";
        let cards = DiffusionCards::embedded().unwrap().with("mine", text).unwrap();
        let Recognition::Card(card) = cards.recognize(&["double_blocks.0.img_attn.proj.weight"]) else {
            panic!()
        };
        assert_eq!(card.gguf, "mine");
    }

    #[test]
    fn prefixes_are_those_of_the_reference() {
        let common = DiffusionCards::embedded().unwrap().common();
        let prefix = |names: &[&str]| common.prefix(names).text().map(ToOwned::to_owned);
        assert_eq!(prefix(&["a.model.b", "c"]), None);
        assert_eq!(prefix(&["vae.x", "model.diffusion_model.a"]).as_deref(), Some("model.diffusion_model."));
        assert_eq!(prefix(&["x", "model.a"]).as_deref(), Some("model."));
        assert_eq!(prefix(&["net.a", "net.b"]).as_deref(), Some("net."));
        assert_eq!(prefix(&["net.a", "b"]), None);
        let model = common.prefix(&["model.a"]);
        assert_eq!(model.strip("model.a.model.b").as_deref(), Some("a.b"));
        assert_eq!(model.strip("vae.b"), None);
    }
}
