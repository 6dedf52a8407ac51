//! Which type each tensor gets, importance matrices, and the run from GGUF to GGUF.
//!
//! | file | subject |
//! |---|---|
//! | `options` | what is asked for, beside the file type |
//! | `class` `model` | what names and metadata say about tensors and model |
//! | `mixture` | llama.cpp's rules: which roles get more or fewer bits |
//! | `choice` `idle` | the type of each tensor: options, mixture, what fits its columns; options without effect |
//! | `allocate` | types chosen so that the file has a given size |
//! | `nominal` | what a file type comes to on a well-known model |
//! | `importance` `coverage` | importance of columns, and what it leaves open |
//! | `prune` `metadata` `plan` `summary` | the whole output, before the first weight is read |
//! | `execute` | the plan as a source of quantized rows, and writing it |

mod allocate;
mod choice;
mod class;
mod coverage;
mod error;
mod execute;
mod idle;
mod importance;
mod metadata;
mod mixture;
mod model;
mod nominal;
mod options;
mod plan;
mod prune;
mod recipe;
mod summary;

pub use crate::gguf::FileType;
pub use allocate::{
    AllocateError, AllocateOptions, Allocation, Candidate, ChosenType, DEFAULT_TYPES, OpenTensor, SizeTarget,
    StandardMix, Survey, TensorCost, type_rules,
};
pub use choice::{Choice, ChoiceError, Reason, choose_types};
pub use class::{TensorClass, file_order, is_quantizable, layer_of};
pub use coverage::{Coverage, StandIn, UnseenExperts};
pub use error::{QuantizeError, RowError};
pub use idle::IdleOption;
pub use model::ModelFacts;
pub use nominal::{Nominal, nominal};
pub use options::{
    CoveragePolicy, OptionError, Override, OverrideValue, QuantizeOptions, TensorTypeRule, parse_file_type,
    parse_file_type_or, parse_ggml_type, parse_layers,
};
pub(crate) use plan::n_matrices;
pub use plan::{Input, QuantizePlan, SolvedRows, Step};
pub use recipe::Recipe;
pub use summary::{Sizes, Summary};
