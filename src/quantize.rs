//! Which type each tensor gets, importance matrices, and the run from GGUF to GGUF.
//!
//! | file | subject |
//! |---|---|
//! | `file_type` `options` | what is asked for |
//! | `class` `model` | what names and metadata say about tensors and model |
//! | `mixture` `mix` | the type of each tensor |
//! | `nominal` | what a file type comes to on a well-known model |
//! | `imatrix` `coverage` | importance of columns, and what it leaves open |
//! | `prune` `metadata` `plan` `summary` | the whole output, before the first weight is read |
//! | `execute` | the plan as a source of quantized rows, and writing it |

mod class;
mod coverage;
mod error;
mod execute;
mod file_type;

mod metadata;
mod mix;
mod mixture;
mod model;
mod nominal;
mod options;
mod plan;
mod prune;
mod summary;

pub use class::{TensorClass, file_order, is_quantizable, layer_of};
pub use coverage::{Coverage, UnseenExperts};
pub use error::{QuantizeError, RowError};
pub use file_type::FileType;

pub use mix::{Choice, MixError, Reason, choose_types};
pub use model::ModelFacts;
pub use nominal::{Nominal, nominal};
pub use options::{
    CoveragePolicy, OptionError, Options, Override, OverrideValue, TensorTypeRule, parse_file_type,
    parse_file_type_or, parse_ggml_type, parse_layers,
};
pub use plan::{Input, QuantizePlan, Step};
pub use summary::{Sizes, Summary};
