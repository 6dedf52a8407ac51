//! What is odd about a checkpoint and does not keep it from being converted.

use crate::core::text::escape;

/// Something that the user should know about the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum ArchWarning {
    /// Draft heads are counted and not stored.
    #[error(
        "config.json: `{key}` is {n}, and no tensor of a draft head is stored ({}): the model is written without",
        head_names(*first_block)
    )]
    HeadsNotStored { key: &'static str, n: u64, first_block: Option<u64> },
    /// The class's name is that of a known one with a wrapper's name around it, or a wrapper's alone.
    #[error("config.json: `architectures` names `{}`: converted as `{}`", escape(found), escape(class))]
    WrappedClass { found: String, class: String },
    /// No class is named.
    #[error(
        "config.json: `architectures` names no class: converted as `{}`, the class of `model_type` `{}`",
        escape(class),
        escape(model_type)
    )]
    ClassOfType { model_type: String, class: String },
    /// The runtime does not read the factors.
    #[error(
        "config.json: rope type `{}`: llama.cpp reads no rope factors for `{arch}`, none are written; the model rotates \
         as if there were no scaling",
        escape(found)
    )]
    FactorsNotRead { found: String, arch: String },
}

/// How tensors of a head are named.
fn head_names(first_block: Option<u64>) -> String {
    match first_block {
        Some(block) => format!("`mtp.*`, or a layer from {block} on"),
        None => "`mtp.*`".to_owned(),
    }
}
