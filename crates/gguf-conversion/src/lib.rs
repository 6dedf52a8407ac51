//! Conversion of a checkpoint to a GGUF file: a plan from the headers, then a stream of tensors.
//!
//! [`Conversion::plan`] decides everything about the output. The conversion is then the source of its tensors, for
//! [`gguf_format::write_gguf`] or any other reader of tensors (one-pass quantization, the engine).

pub mod metadata;
pub mod model_card;
pub mod naming;

mod account;
mod codes;
mod companions;
mod computable;
mod conversion;
mod diffusion;
mod draft;
mod drops;
mod error;
mod fastllm;
mod key_check;
mod left_out;
mod lora;
mod mapping;
mod mlx;
mod model_vocabulary;
mod modules;
mod native;
mod options;
mod plain_names;
mod pooling;
mod rerank;
mod sentence;
mod short_tower;
mod shown;
mod side_files;
mod sizes;
mod source;
mod target;
mod to_hf;
mod token_counts;
mod token_rows;

pub use codes::{Codes, FloatReason, FloatRole, KeptRole};
pub use conversion::Conversion;
pub use diffusion::{DiffusionConversion, DiffusionError};
pub use draft::draft;
pub use error::ConvertError;
pub use fastllm::FlmOptions;
pub use gguf_core::account::{Fate, Piece, PieceKind};
pub use gguf_dequant::msmodelslim::OffsetSign;
pub use gguf_dequant::{Quantization, StoredClass};
pub use key_check::KeysError;
pub use lora::{AdapterConversion, AdapterError, AdapterOptions, Stray};
pub use mapping::{CardScope, map, registry, without_cards};
pub use metadata::{GeneralMetadata, MetadataFiles, MetadataInputs, MetadataWarning, general_metadata};
pub use model_vocabulary::vocabulary;
pub use naming::{FileName, ParameterCounts, fill_template};
pub use native::NativePlan;
pub use options::ConvertOptions;
pub use shown::ShownOptions;
pub use sizes::SizesError;
pub use source::{ModelSource, Vocabulary};
pub use to_hf::{ToHfError, ToHfOptions, ToHfReport, gguf_to_hf};
