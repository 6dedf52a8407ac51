//! Type of each tensor, importance matrices, and the run from GGUF to GGUF.
//!
//! | file | subject |
//! |---|---|
//! | `options` | options of a quantization, including the file type |
//! | `class` `model` | facts about tensors and model, from names and metadata |
//! | `mixture` | llama.cpp's rules: roles that get more or fewer bits |
//! | `choice` `idle` | type of each tensor: options, mixture, fit to its columns; options without effect |
//! | `allocate` | types chosen so that the file has a given size |
//! | `like` | types that another file has |
//! | `nominal` | bits per weight of a file type on a well-known model |
//! | `importance` `coverage` | importance of columns, and tensors that it does not cover |
//! | `prune` `metadata` `plan` `summary` | the whole output, before the first weight is read |
//! | `joint` | several quantizations of one model from one reading |
//! | `made` | single tensors in a given type, and keys of an output, to compare with a file |
//! | `execute` | the plan as a source of quantized rows, and writing it |

mod allocate;
mod choice;
mod class;
mod coverage;
mod error;
mod execute;
mod idle;
mod importance;
mod joint;
mod like;
mod made;
mod metadata;
mod mixture;
mod model;
mod nominal;
mod options;
mod plan;
mod prune;
mod recipe;
mod summary;

pub use allocate::{
    AllocateError, AllocateOptions, Allocation, Choices, ChosenType, DEFAULT_TYPES, MeasuredKld, OpenTensor,
    SizeTarget, StandardMix, Survey, TensorCost, TypeCandidate, TypeSet, type_rules,
};
pub use choice::{ChoiceError, Reason, TypeChoice, choose_types};
pub use class::{TensorClass, file_order, layer_of, n_matrices};
pub use coverage::{Coverage, StandIn, UnseenExperts};
pub use error::{QuantizeError, RowError};
pub use gguf_format::FileType;
pub use idle::IdleOption;
pub use joint::{JointPlans, RungTypes};
pub use like::{GivenTypes, LikeTypes};
pub use made::{MadeTensor, column_importance, written_metadata};
pub use model::ModelFacts;
pub use nominal::{Nominal, nominal};
pub use options::{
    CoveragePolicy, OptionError, Override, OverrideValue, QuantizeOptions, TensorTypeRule, parse_file_type,
    parse_file_type_or, parse_ggml_type, parse_layers,
};
pub use plan::{Input, QuantizePlan, SolvedRows, TensorPlan, must_be_weights};
pub use recipe::Recipe;
pub use summary::{Sizes, Summary};
