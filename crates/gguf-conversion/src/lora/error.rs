//! Errors of converting or merging an adapter.

use std::path::{Path, PathBuf};

use gguf_arch::ArchError;
use gguf_checkpoint::{MLX_WAY_OUT, hub_id};
use gguf_core::text::escape;
use gguf_core::{Hint, Shape};
use gguf_views::FactorError;

/// Kinds of adapter tensors that belong to no pair of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A magnitude vector of DoRA, of a layer that is no plain one, or without `use_dora`.
    Magnitude,
    /// A matrix with the adapter's name in its own name.
    Named,
    /// Lengths of rows, as MLX saves them (DoRA).
    Lengths,
    /// A matrix of an MLX adapter.
    Mlx,
    /// Rows of single trained tokens.
    Tokens,
    /// A bias of matrix B.
    LoraBias,
    /// A bias.
    Bias,
    /// A whole tensor of the model.
    Whole,
    /// A matrix of `lora_down` or `lora_up`, or its strength, as programs for image models save them.
    ImageModel,
    /// A matrix of torchtune.
    Torchtune,
    /// A matrix without `.weight` at the end of its name.
    Unweighted,
    /// A matrix of 8-bit floats.
    Narrow,
    /// Anything else.
    Unknown,
}

impl Stray {
    fn what(self) -> &'static str {
        match self {
            Self::Magnitude => "a vector of magnitudes (DoRA)",
            Self::Named => "a matrix with the adapter's name in its own",
            Self::Lengths => "lengths of rows (DoRA)",
            Self::Mlx => "a matrix as MLX saves adapters",
            Self::Tokens => "rows for single tokens",
            Self::LoraBias => "a bias of matrix B (`lora_bias`)",
            Self::Bias => "a bias",
            Self::Whole => "a whole tensor of the model, no `lora_A` or `lora_B`",
            Self::ImageModel => {
                "a matrix as programs for image models save adapters (`lora_down`, `lora_up`, `alpha`)"
            }
            Self::Torchtune => "a matrix as torchtune saves adapters for itself",
            Self::Unweighted => {
                "a matrix without `.weight` at the end of its name, as LitGPT and loralib save it"
            }
            Self::Narrow => "a matrix of 8-bit floats",
            Self::Unknown => "neither `lora_A` nor `lora_B`",
        }
    }

    fn way_out(self) -> &'static str {
        match self {
            Self::Magnitude => "merge it with PEFT's `merge_and_unload`, and convert the model",
            Self::Named => {
                "save the adapter with PEFT's `save_pretrained`: names end in `.lora_A.weight` and `.lora_B.weight`"
            }
            Self::Mlx => MLX_WAY_OUT,
            Self::Lengths | Self::Bias | Self::LoraBias | Self::Whole | Self::Tokens => MERGE,
            Self::ImageModel => {
                "an adapter of an image model is loaded as it is, next to the GGUF of the model; one of a language model needs \
                 the names of PEFT (`lora_A`, `lora_B`)"
            }
            Self::Torchtune => {
                "torchtune's checkpointer also writes `adapter_model.safetensors` with adapter_config.json: take those"
            }
            Self::Unweighted => {
                "merge it with the program that trained it (`litgpt merge_lora`), and convert the model"
            }
            Self::Narrow => "save the adapter again in BF16 or F32",
            Self::Unknown => {
                "only LoRA adapters of PEFT are read: merge others with PEFT, and convert the model"
            }
        }
    }
}

/// Adapter types that do not change weights.
const NEVER_WEIGHTS: [&str; 6] =
    ["PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT"];
const MERGE: &str = "a GGUF adapter has no place for it: `gguf-convert merge-lora BASE ADAPTER` merges the adapter into its \
                     base model";
const BASE: &str = "check that the base is the model that the adapter was made for";
const OTHER_NAMES: &str = "check that the base is the model that the adapter was made for; if it is, merge the two by PEFT \
                           (`merge_and_unload`, then `save_pretrained`), and convert the result";

/// Reasons why an adapter can be neither converted nor merged.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum AdapterError {
    #[error("{}: `{key}` is missing", path.display())]
    NoKey { path: PathBuf, key: &'static str },
    #[error("{}: `{}` is not {expected}", path.display(), escape(key))]
    Value { path: PathBuf, key: String, expected: &'static str },
    #[error("{}: an adapter of type `{}`, only LORA can be read", path.display(), escape(found))]
    Kind { path: PathBuf, found: String },
    #[error("{}: `{key}` is `{}`: PEFT changes the base model as it loads this adapter", path.display(), escape(found))]
    ChangesBase { path: PathBuf, key: String, found: String },
    #[error("{}: `{key}` is on: {why}", path.display())]
    NoSum { path: PathBuf, key: String, why: &'static str },
    #[error("{}: `{}` is `{}`, a setting that is not known and may change what the adapter does", path.display(), escape(key), escape(found))]
    UnknownKey { path: PathBuf, key: String, found: String },
    #[error("{}: `alora_invocation_tokens`: the adapter acts on the tokens that follow these only", path.display())]
    Activated { path: PathBuf },
    #[error(
        "`target_parameters` ({}) and the {n_pairs} pairs of matrices of `{}` do not fit together",
        escape(targets),
        escape(module)
    )]
    Parameters { module: String, n_pairs: usize, targets: String },
    #[error(
        "tensor `{}`: matrices of stacked experts (`target_parameters`), which the base model's architecture does not have",
        escape(tensor)
    )]
    Stacked { tensor: String },
    #[error("adapter_config.json: `r` is missing, the rank of each expert of `{}`", escape(tensor))]
    NoRank { tensor: String },
    #[error(
        "tensor `{}`: a bias of matrix B (`lora_bias`), but the base model has no `{}` to add it to",
        escape(tensor),
        escape(bias)
    )]
    NoBias { tensor: String, bias: String },
    #[error(
        "tensor `{}`: a norm of {}, which MLX stores with one added, and the base model without",
        escape(tensor),
        path.display()
    )]
    MlxNorm { path: PathBuf, tensor: String },
    #[error("tensor `{}`: {} has no `trainable_token_indices` for it", escape(tensor), path.display())]
    NoTokens { path: PathBuf, tensor: String },
    #[error(
        "tensor `{}`: {rows} rows in the adapter in place of {base_rows}, but `{}` of the base model keeps {base_rows}",
        escape(resized),
        escape(kept)
    )]
    Resized { resized: String, kept: String, rows: u64, base_rows: u64 },
    #[error("{}: `invocation_string` without `alora_invocation_tokens`", path.display())]
    Invocation { path: PathBuf },
    #[error("tensor `{}`: {}", escape(tensor), stray.what())]
    Stray { tensor: String, stray: Stray },
    #[error("tensor `{}` has no counterpart `{}`", escape(tensor), escape(missing))]
    Half { tensor: String, missing: String },
    #[error("tensors `{}` and `{}` change the same tensor", escape(first), escape(second))]
    Twice { first: String, second: String },
    #[error("tensor `{}` {a}: {}", escape(a_name), if *is_of_experts {
        "matrices of several experts in one tensor, as Tinker saves them"
    } else {
        "a convolution of low rank"
    })]
    Dimensions { a_name: String, a: Shape, is_of_experts: bool },
    #[error("tensors `{}` {a} and `{}` {b}: no matrices of one rank", escape(a_name), escape(b_name))]
    Shapes { a_name: String, a: Shape, b_name: String, b: Shape },
    #[error("{}: no matrices of an adapter", path.display())]
    Empty { path: PathBuf },
    #[error("{}: the base model {}", path.display(), match named {
        Some(name) => format!("`{}` is no directory here", escape(name)),
        None => "is not named".to_owned(),
    })]
    NoBase { path: PathBuf, named: Option<String> },
    #[error("tensor `{}`: {found} in the base model, the adapter's matrices make {product}", escape(tensor))]
    OtherShape { tensor: String, found: Shape, product: String },
    #[error("the base model has no tensor `{}`, which the adapter changes", escape(tensor))]
    NotInBase { tensor: String },
    #[error(
        "the adapter changes the output `{}`, which is always the embeddings in this architecture",
        escape(tensor)
    )]
    SharedOutput { tensor: String },
    #[error(
        "the adapter replaces the embeddings `{}`, and PEFT keeps the base model's as the output, which is always the embeddings in \
         this architecture",
        escape(tensor)
    )]
    KeptOutput { tensor: String },
    #[error("{}: nothing of the adapter can be written to a GGUF adapter: {why}", path.display())]
    Nothing { path: PathBuf, why: String },
    #[error(
        "tensors `{}` and `{}` of the base model may both be what the adapter calls `{}`",
        escape(first),
        escape(second),
        escape(tensor)
    )]
    Ambiguous { tensor: String, first: String, second: String },
    #[error("tensor `{}` becomes `{}`, which is no norm", escape(tensor), escape(target))]
    NotNorm { tensor: String, target: String },
    #[error("tensor `{}`: {source}", escape(tensor))]
    Factors { tensor: String, source: FactorError },
    #[error(transparent)]
    Card(Box<ArchError>),
}

impl Hint for AdapterError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NoKey { .. } => "the strength of the adapter: it is in the settings of the training",
            Self::Value { .. } => "write it as the training had it, in the form in which PEFT saves it",
            Self::Twice { .. } => return Vec::new(),
            Self::Kind { found, .. } if NEVER_WEIGHTS.contains(&found.as_str()) => {
                "it changes what the model reads, not its weights: neither PEFT nor a GGUF file can merge it"
            }
            Self::Dimensions { is_of_experts: true, .. } => {
                "`tinker_cookbook.weights.build_lora_adapter` writes it as an adapter of PEFT"
            }
            Self::Kind { .. }
            | Self::ChangesBase { .. }
            | Self::NoSum { .. }
            | Self::Parameters { .. }
            | Self::Dimensions { .. } => "merge it with PEFT's `merge_and_unload`, and convert the model",
            Self::UnknownKey { .. } => {
                "if it does not change the trained model, remove the key; else merge the adapter with PEFT's \
                 `merge_and_unload`, and convert the model"
            }
            Self::Activated { .. } => {
                "no merged model can do that: `gguf-convert lora2gguf ADAPTER --base BASE` writes an adapter that does"
            }
            Self::SharedOutput { .. } => {
                "no file can hold it: train the adapter without `lm_head`, or remove its two matrices"
            }
            Self::KeptOutput { .. } => {
                "`\"ensure_weight_tying\": true` in adapter_config.json takes the adapter's embeddings as the output, too: another \
                 model than that of the training"
            }
            Self::Nothing { .. } => "a GGUF adapter changes the text model's own tensors only",
            Self::Stacked { .. } => {
                "`gguf-convert merge-lora BASE ADAPTER` merges the adapter into its base model"
            }
            Self::NoRank { .. } => "add the rank of the training as `r`",
            Self::NoBias { .. } => {
                "PEFT does not merge such an adapter either: train it without `lora_bias`, or use the base model that has biases"
            }
            Self::MlxNorm { .. } => "merge it into the checkpoint that MLX saved",
            Self::NoTokens { .. } => "save the adapter again with PEFT's `save_pretrained`",
            Self::Resized { .. } => {
                "merge the adapter with PEFT: `resize_token_embeddings` of the base, then `merge_and_unload`"
            }
            Self::Invocation { .. } => {
                "add the token ids of the text, without a first one that begins every text, as `alora_invocation_tokens`"
            }
            Self::Stray { stray, .. } => stray.way_out(),
            Self::Shapes { a, b, .. } if [a, b].iter().any(|shape| shape.rank() < 2) => {
                "a training over several processes has saved its own part alone (ZeRO-3, FSDP): save the adapter with gathered \
                 weights, or put the checkpoint together with `zero_to_fp32.py` or `accelerate merge-weights`"
            }
            Self::Half { .. } | Self::Shapes { .. } | Self::Empty { .. } => {
                "the file is not whole, or no adapter: save it again with the program that trained it"
            }
            // The base that the adapter names is downloaded only on request.
            Self::NoBase { named: Some(name), .. }
                if cfg!(feature = "remote") && hub_id(Path::new(name)).is_some() =>
            {
                return vec![format!(
                    "`--base {}` reads its configuration from the hub, `--base DIR` from a directory; `config.json` is enough",
                    escape(name)
                )];
            }
            Self::NoBase { .. } => {
                "`--base DIR` names the directory of the base model; its `config.json` is enough"
            }
            Self::NotInBase { tensor } if tensor.contains("lm_head") => {
                "a model that shares its embeddings has no output of its own to change; else check that the base is the model \
                 that the adapter was made for"
            }
            Self::NotInBase { .. } => OTHER_NAMES,
            Self::OtherShape { .. } | Self::Ambiguous { .. } => BASE,
            Self::NotNorm { .. } | Self::Factors { .. } => MERGE,
            Self::Card(error) => match **error {
                ArchError::Stack { .. } | ArchError::Alone { .. } => {
                    "a GGUF adapter changes all experts of a layer or none, and what is one tensor there as a whole: `gguf-convert \
                     merge-lora BASE ADAPTER` merges the adapter into its base model"
                }
                ArchError::Block { .. } => BASE,
                ArchError::Leftover { .. } => {
                    return std::iter::once(OTHER_NAMES.to_owned()).chain(error.hints()).collect();
                }
                _ => return error.hints(),
            },
        };
        vec![hint.to_owned()]
    }
}
