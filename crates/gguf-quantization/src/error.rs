//! Errors of planning and running a quantization.

use crate::choice::fit_columns;
use crate::{ChoiceError, StandIn};
use gguf_blocks::{BlockError, BlockFlaw, QuantError};
use gguf_core::text::{escape, plural};
use gguf_core::{GgmlType, Hint, Shape};
use gguf_format::{ImatrixError, WriteError};

/// Errors that prevent a plan or stop its run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum QuantizeError {
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("the file is an adapter (`general.type`), not a model")]
    Adapter,
    #[error("the file is a control vector (`general.architecture`), not a model")]
    ControlVector,
    #[error("layer {layer} cannot be pruned: the model has {}", layers(*n_layers))]
    NoLayer { layer: u32, n_layers: u32 },
    #[error("no layer would be left: the model has {}", layers(*n_layers))]
    AllLayers { n_layers: u32 },
    #[error("layers cannot be pruned: key `{}` names layers by number", escape(key))]
    LayersByNumber { key: String },
    #[error(
        "layers cannot be pruned: the model has {} by its keys, and {} of layer {layer}",
        layers(*n_layers),
        if layer < n_layers { "no tensors" } else { "tensors" }
    )]
    NotByLayer { layer: u32, n_layers: u32 },
    #[error("layers cannot be pruned: what is left would not load: {fault}")]
    LeftUnfit { fault: String },
    #[error("key `{}` is of type {expected}, `{}` is not", escape(key), escape(given))]
    OverrideType { key: String, expected: String, given: String },
    #[error("tensor `{}`: shape {shape} has no elements", escape(tensor))]
    NoElements { tensor: String, shape: Shape },
    #[error("tensor `{}`: cannot quantize to {ty}", escape(tensor))]
    NotATarget { tensor: String, ty: GgmlType },
    #[error(
        "tensor `{}`: {n_cols} columns are not a multiple of {}, as {ty} needs",
        escape(tensor),
        ty.block_elems()
    )]
    Columns { tensor: String, n_cols: u64, ty: GgmlType, option: &'static str },
    #[error("tensor `{}`: already quantized ({from}); requantizing to {to} is not allowed", escape(tensor))]
    Requantize { tensor: String, from: GgmlType, to: GgmlType },
    #[error("{} an importance matrix, none given{}", needs(tensors), more(tensors))]
    NoImatrix { tensors: Vec<(String, GgmlType)> },
    #[error("{} importance data, the importance matrix has none for it{}", needs(tensors), more(tensors))]
    NotCovered { tensors: Vec<(String, GgmlType)>, elsewhere: Option<Box<StandIn>> },
    #[error("{} without importance data, the first is `{}`", plural(*n_more as u64 + 1, "tensor"), escape(tensor))]
    Coverage { tensor: String, n_more: usize },
    #[error(
        "tensor `{}`: no token reached {n_experts} of {} when the importance matrix was made",
        escape(tensor),
        plural(*of as u64, "expert")
    )]
    Experts { tensor: String, n_experts: usize, of: usize },
}

fn layers(n: u32) -> String {
    n.checked_sub(1).map_or_else(|| "no layers".to_owned(), |last| format!("layers 0 to {last}"))
}

/// Text about the first of the tensors that need something.
fn needs(tensors: &[(String, GgmlType)]) -> String {
    tensors.first().map(|(tensor, ty)| format!("tensor `{}`: {ty} needs", escape(tensor))).unwrap_or_default()
}

/// Text about the other tensors: up to two by name.
fn more(tensors: &[(String, GgmlType)]) -> String {
    let Some(others @ [_, ..]) = tensors.get(1..) else { return String::new() };
    let named: Vec<_> =
        others.iter().take(2).map(|(tensor, ty)| format!("`{}` ({ty})", escape(tensor))).collect();
    let rest = others.len() - named.len();
    let rest = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    format!("; the same for {}{rest}", named.join(", "))
}

impl Hint for QuantizeError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Choice(error) => error.hints(),
            Self::Imatrix(error) => error.hints(),
            Self::Write(error) => error.hints(),
            Self::Adapter => vec![
                "`gguf-convert lora2gguf DIR --type q8_0` writes an adapter in another type".to_owned(),
                "`gguf-convert merge-lora BASE DIR --type TYPE` merges one into its base model".to_owned(),
            ],
            Self::NoElements { tensor, .. } => {
                let pattern = fancy_regex::escape(tensor);
                vec![format!("leave it out first: `gguf-inspect drop FILE '^{}$' -o OUT`", escape(&pattern))]
            }
            Self::ControlVector => {
                vec!["llama.cpp takes it as it is, in F32: `--control-vector FILE`".to_owned()]
            }
            Self::LeftUnfit { .. } => vec!["prune other layers, or leave out --prune-layers".to_owned()],
            Self::Columns { n_cols, ty, option, .. } => {
                let fits = fit_columns(*n_cols, *ty).unwrap_or(GgmlType::F16);
                vec![format!("choose a type that fits: `{option} {}`", fits.name().to_lowercase())]
            }
            Self::Requantize { tensor, from: from @ (GgmlType::Mxfp4 | GgmlType::Nvfp4), .. } => {
                let part = if tensor.contains("_exps") { "_exps" } else { tensor };
                let ty = from.name().to_lowercase();
                vec![
                    format!(
                        "the checkpoint itself may have these blocks: `--tensor-type {}={ty}` keeps them",
                        escape(part)
                    ),
                    "accept the loss with --allow-requantize".to_owned(),
                ]
            }
            Self::Requantize { .. } => vec![
                "quantize from the unquantized model".to_owned(),
                "accept the loss with --allow-requantize".to_owned(),
            ],
            Self::NoImatrix { .. } => vec![
                "give one with `--imatrix FILE`; `gguf-verify imatrix MODEL --prompts TEXT -o FILE` measures it".to_owned(),
                "choose a type that does without, such as Q2_K, IQ3_S or IQ4_XS".to_owned(),
            ],
            Self::NotCovered { elsewhere: Some(pair), .. } => vec![format!(
                "`{}` has the same input as `{}`, and importance: --share-importance takes it",
                escape(&pair.entry),
                escape(&pair.tensor)
            )],
            Self::NotCovered { tensors, .. } => match tensors.as_slice() {
                [(tensor, _)] => {
                    vec![format!("give it another type: `--tensor-type {}=q4_k`", escape(tensor))]
                }
                [(first, _), rest @ ..] if let Some(block) = block_of(first, rest) => vec![format!(
                    "give them another type, as for draft heads, which no importance matrix covers: `--tensor-type {}=q4_k`",
                    escape(block)
                )],
                _ => {
                    vec!["measure the importance matrix of this very model: `gguf-verify imatrix`".to_owned()]
                }
            },
            Self::Coverage { .. } | Self::Experts { .. } => vec![
                "measure the importance matrix on more text".to_owned(),
                "accept it with `--coverage warn`".to_owned(),
            ],
            _ => Vec::new(),
        }
    }
}

/// Returns the beginning of the first name up to its block number, if all tensors are in that block.
fn block_of<'t>(first: &'t str, rest: &[(String, GgmlType)]) -> Option<&'t str> {
    let number = first.find("blk.")? + "blk.".len();
    let block = first.get(..number + first.get(number..)?.find('.')? + 1)?;
    rest.iter().all(|(tensor, _)| tensor.starts_with(block)).then_some(block)
}

/// Errors of quantizing rows of a tensor. Rows and columns count from 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RowError {
    #[error("row {row}, column {column}: {value}")]
    NonFinite { row: u64, column: u64, value: f32 },
    #[error("row {row}: {error}")]
    BadBlock { row: u64, error: BlockError },
    #[error("row {row}, from column {column} on: values up to {largest:e} are too {what} for {ty} ({flaw})")]
    Overflow { row: u64, column: u64, largest: f32, what: &'static str, ty: GgmlType, flaw: BlockFlaw },
    #[error(transparent)]
    Quant(#[from] QuantError),
}

impl Hint for RowError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Quant(error) => error.hints(),
            Self::Overflow { .. } => vec![
                "give the tensor a type of a wider range: `--tensor-type NAME=bf16`".to_owned(),
                "go on in spite of it with --allow-nonfinite".to_owned(),
            ],
            _ => vec!["go on in spite of it with --allow-nonfinite".to_owned()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_without_elements_is_dropped_by_its_name_alone() {
        let shape = Shape::new(vec![0]).unwrap();
        let hints = QuantizeError::NoElements { tensor: "x.zero".to_owned(), shape }.hints();
        assert_eq!(hints, [r"leave it out first: `gguf-inspect drop FILE '^x\.zero$' -o OUT`"]);
    }

    #[test]
    fn tensors_of_one_layer_without_importance_get_another_type() {
        let hints = |names: &[&str]| {
            let tensors = names.iter().map(|name| ((*name).to_owned(), GgmlType::Iq2Xs)).collect();
            QuantizeError::NotCovered { tensors, elsewhere: None }.hints()
        };
        let draft = hints(&["blk.4.attn_k.weight", "blk.4.nextn.eh_proj.weight"]);
        assert!(
            draft[0].contains("draft heads") && draft[0].ends_with("`--tensor-type blk.4.=q4_k`"),
            "{draft:?}"
        );
        for others in
            [&["blk.4.attn_k.weight", "blk.40.attn_k.weight"][..], &["output.weight", "token_embd.weight"]]
        {
            assert!(hints(others)[0].starts_with("measure the importance matrix"), "{others:?}");
        }
    }
}
