//! Facts that all cards share: `base.toml`.

use std::sync::LazyLock;

use indexmap::IndexMap;
use toml::Table;

use super::{CardTable, Read, exprs, numbers, rows, text};
use crate::error::CardProblem;
use crate::language::expr::Expr;
use crate::read::schema::MetadataRow;

const TEXT: &str = include_str!("base.toml");

const BASE_KEYS: &[&str] = &[
    "by_layer",
    "by_modality",
    "companions",
    "config_keys",
    "counts",
    "inverse",
    "let",
    "long_rope",
    "metadata",
    "mtp_keep",
    "no_graph",
    "outputs",
    "read_by",
    "tables",
    "text_parts",
    "tied",
    "together",
    "tower_heads",
    "tower_layouts",
    "tower_let",
    "widths",
    "wrapper_classes",
    "wrapper_prefixes",
    "wrapper_suffixes",
];

/// Content of `base.toml`, which explains it.
#[derive(Debug, Default)]
pub(crate) struct Base {
    /// Configuration keys.
    pub(crate) by_layer: Vec<String>,
    pub(crate) config_keys: Vec<String>,
    /// Rows of `["include", "base"]`.
    pub(crate) metadata: Vec<MetadataRow>,
    pub(super) lets: IndexMap<String, Expr>,
    /// Further definitions of towers.
    pub(super) tower_lets: IndexMap<String, Expr>,
    pub(super) tables: IndexMap<String, IndexMap<String, i64>>,
    pub(super) outputs: Vec<String>,
    pub(super) mtp_keep: Vec<String>,
    pub(super) companions: Vec<String>,
    /// Configuration keys, with the GGUF keys that restore them.
    pub(crate) inverse: IndexMap<String, String>,
    pub(crate) long_rope: Vec<String>,
    /// GGUF keys, with the only architectures that read them, separated by spaces.
    pub(crate) read_by: IndexMap<String, String>,
    /// Classes that no graph of the runtime computes, with what it lacks.
    pub(crate) no_graph: IndexMap<String, String>,
    /// Classes of models of several parts, with the `model_type` of a text part that names none.
    pub(crate) text_parts: IndexMap<String, String>,
    /// Classes whose towers have a layout without a card, with the class of the same models that has one.
    pub(crate) tower_layouts: IndexMap<String, String>,
    /// Beginnings of names.
    pub(crate) tower_heads: Vec<String>,
    /// Model types.
    pub(crate) by_modality: Vec<String>,
    /// Model types.
    pub(crate) tied: Vec<String>,
    /// Targets of a block, separated by spaces.
    pub(crate) together: Vec<String>,
    /// Configuration keys.
    pub(crate) widths: Vec<String>,
    /// Configuration keys.
    pub(crate) counts: Vec<String>,
    /// Classes of wrappers that name no model.
    pub(crate) wrapper_classes: Vec<String>,
    /// Prefixes that wrappers add to a model's class.
    pub(crate) wrapper_prefixes: Vec<String>,
    /// Suffixes that wrappers add to a model's class.
    pub(crate) wrapper_suffixes: Vec<String>,
}

/// Returns the shared facts; they are parsed once per process.
pub(crate) fn base() -> &'static Base {
    // The text is part of the program, and a test parses it.
    static BASE: LazyLock<Base> = LazyLock::new(|| parsed(TEXT).unwrap_or_default());
    &BASE
}

/// Returns true for tensors of other modalities, which a text model does not need.
///
/// # Exactness
/// Equals `TextModel.filter_tensors` of llama.cpp 0.5.0, but for the names in `base.toml` of classes that it does not know.
pub(crate) fn is_multimodal(name: &str) -> bool {
    const HEADS: [&str; 10] = [
        "mlp",
        "vit.",
        "vpm.",
        "siglip2.",
        "conformer.",
        "merger.",
        "resampler.",
        "sound_encoder.",
        "sound_projection.",
        "speech_embeddings.",
    ];
    const PARTS: [&str; 16] = [
        "visual.",
        "vision.",
        "audio.",
        "talker.",
        "vision_",
        "audio_",
        "token2wav.",
        "code2wav.",
        "projector.",
        "pre_mm_projector_norm",
        "image_newline",
        "view_seperator",
        "patch_embed",
        "patch_merger.",
        "patch_merge_mlp.",
        "model.connector.",
    ];
    let own = name.strip_prefix("model.").unwrap_or(name);
    HEADS.iter().any(|head| name.starts_with(head))
        || PARTS.iter().any(|part| name.contains(part))
        || base().tower_heads.iter().any(|head| own.starts_with(head.as_str()))
}

fn parsed(text: &str) -> Read<Base> {
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| CardProblem::Toml(error.message().to_owned()))?;
    let top = CardTable::of(&table, "base.toml", BASE_KEYS)?;
    Ok(Base {
        by_layer: top.texts("by_layer")?,
        config_keys: top.texts("config_keys")?,
        metadata: rows(&top, "metadata")?,
        lets: exprs(&top, "let")?,
        tower_lets: exprs(&top, "tower_let")?,
        tables: numbers(&top)?,
        outputs: top.texts("outputs")?,
        mtp_keep: top.texts("mtp_keep")?,
        companions: top.texts("companions")?,
        inverse: names(&top, "inverse")?,
        long_rope: top.texts("long_rope")?,
        read_by: names(&top, "read_by")?,
        no_graph: names(&top, "no_graph")?,
        tower_layouts: names(&top, "tower_layouts")?,
        text_parts: names(&top, "text_parts")?,
        tower_heads: top.texts("tower_heads")?,
        by_modality: top.texts("by_modality")?,
        tied: top.texts("tied")?,
        together: top.texts("together")?,
        counts: top.texts("counts")?,
        widths: top.texts("widths")?,
        wrapper_classes: top.texts("wrapper_classes")?,
        wrapper_prefixes: top.texts("wrapper_prefixes")?,
        wrapper_suffixes: top.texts("wrapper_suffixes")?,
    })
}

fn names(top: &CardTable<'_>, key: &str) -> Read<IndexMap<String, String>> {
    let at = top.at(key);
    top.tables(key)?.map(|(name, value)| Ok((name.clone(), text(value, &at)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn the_shared_facts_are_read() {
        let base = parsed(TEXT).unwrap();
        let lengths = [base.lets.len(), base.tower_lets.len(), base.tables.len(), base.inverse.len()];
        assert!(lengths.iter().all(|&n| n > 0), "{lengths:?}");
        let named = base.long_rope.iter().map(String::as_str);
        let named = named.chain(base.read_by.values().flat_map(|archs| archs.split(' ')));
        for arch in named {
            assert!(Registry::knows(arch), "{arch}");
        }
    }

    #[test]
    fn names_of_other_modalities_are_known() {
        assert!(is_multimodal("vision_tower.vision_model.embeddings.weight"));
        assert!(is_multimodal("mlp1.0.weight") && !is_multimodal("model.layers.0.mlp.up_proj.weight"));
    }
}
