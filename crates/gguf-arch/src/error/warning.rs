//! Anomalies of a checkpoint that do not prevent its conversion.

use gguf_core::text::escape;

/// Warning to the user about the converted file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum ArchWarning {
    #[error(
        "config.json: `{key}` is {n}, and no tensor of a draft head is stored ({}): the model is written without",
        head_names(*first_block)
    )]
    HeadsNotStored { key: &'static str, n: u64, first_block: Option<u64> },
    #[error("config.json: `architectures` names `{}`: converted as `{}`", escape(found), escape(class))]
    WrappedClass { found: String, class: String },
    #[error(
        "config.json: `architectures` names no class: converted as `{}`, the class of `model_type` `{}`",
        escape(class),
        escape(model_type)
    )]
    ClassOfType { model_type: String, class: String },
    #[error(
        "config.json: `{key}` has {n_entries} entries, and `{layers_key}` is {n_layers}: the first {n_layers} are read, as \
         transformers does"
    )]
    LongList { key: String, n_entries: u64, layers_key: &'static str, n_layers: u64 },
    #[error(
        "config.json: `rope_parameters` and `rope_scaling` have different values: those of `rope_parameters` are written, as by \
         llama.cpp's converter, and transformers takes `rope_scaling`; remove the one that is wrong"
    )]
    TwoRopes,
    #[error(
        "config.json: `{0}` = {1} and `{2}` = {3} are two names of one value: `{0}` counts, as in transformers; remove the one \
         that is wrong",
        names[0], values[0], names[1], values[1]
    )]
    TwoNames { names: [String; 2], values: [String; 2] },
    #[error(
        "config.json: `{name}` of type `{kind}` lacks {}, without which transformers does not load it: the values of llama.cpp's \
         converter are taken; add what the model was trained with",
        listed(lacks)
    )]
    RopeLacks { name: String, kind: String, lacks: Vec<&'static str> },
    #[error(
        "config.json: `{name}` has `factor` = {factor} and no `rope_type`: it has no effect, as in transformers; add the type if \
         the model was trained with one"
    )]
    RopeWithoutType { name: String, factor: String },
    #[error(
        "{file}: `{key}` = {} is lost: no key of a tower's file has it, and the runtime computes with {assumed}",
        escape(value)
    )]
    TowerValue { file: &'static str, key: String, value: String, assumed: String },
    #[error(
        "config.json: `{key}` = {} is that of the text model: the tower's file has it, as llama.cpp writes it, and transformers' \
         tower computes with {fixed}",
        escape(value)
    )]
    TowerEpsilon { key: String, value: String, fixed: String },
    #[error(
        "config.json: rope type `{}`: llama.cpp reads no rope factors for `{arch}`, none are written; the model rotates \
         as if there were no scaling",
        escape(found)
    )]
    FactorsNotRead { found: String, arch: String },
}

/// Name patterns of the tensors of a draft head.
fn head_names(first_block: Option<u64>) -> String {
    match first_block {
        Some(block) => format!("`mtp.*`, or a layer from {block} on"),
        None => "`mtp.*`".to_owned(),
    }
}

fn listed(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}
