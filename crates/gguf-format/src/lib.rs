//! GGUF file format: metadata values, reading, writing, split files.
//!
//! - [`GgufFile`] opens a model, with all its parts as one, and is a [`TensorSource`](gguf_core::TensorSource).
//! - [`write_gguf`] writes any [`TensorSource`](gguf_core::TensorSource) with its [`Metadata`]; [`plan_files`]
//!   returns the files that it would write.
//! - [`parse_header`] is the pure parser under [`GgufFile`], [`FilePlan`] the pure plan under [`write_gguf`].

mod assign;
mod endian;
mod error;
mod file_type;
mod foreign;
mod header;
mod imatrix;
pub mod key_faults;
pub mod keys;
pub mod loader_keys;
pub mod name_fault;
pub mod number_faults;
pub mod ollama;
mod other_file;
mod part;
mod plan;
mod reader;
mod share;
pub mod split;
mod split_id;
pub mod split_keys;
mod tensor_limits;
mod value;
mod vocabulary;
mod writer;

pub use assign::{AssignError, AssignType, Assignment, parse_assignment};
pub use endian::swap_blocks;
pub use error::{GgufError, HeaderError, HeaderItem};
pub use file_type::{FileType, id_of_blocks};
pub use foreign::DeclaredTensor;
pub use header::{Header, Strictness, parse_head, parse_header};
pub use imatrix::{
    ColumnSums, CombinedImatrix, Imatrix, ImatrixEntry, ImatrixError, ImatrixFormat, ImatrixPart,
    ImatrixSums, StoredImatrix, UnfinishedRun, combine_imatrix_parts, imatrix_identity, merge_imatrices,
};
pub use key_faults::KeyFault;
pub use other_file::OtherFile;
pub use part::{OpenOptions, Part};
pub use plan::{
    FilePlan, LayoutOptions, PlanError, PlannedFile, PlannedTensor, TensorDescriptor, value_bytes,
};
pub use reader::{GgufFile, TensorPlace};
pub use share::{PartsGap, Share, ShareError, WorkCost, each_once, listed, output_id};
pub use split::{SplitSpec, SplitStyle, merged_metadata};
pub use tensor_limits::{MAX_DIMS, TensorLimits};
pub use value::{Array, Metadata, Value, ValueType};
pub use vocabulary::{
    FILE_ROLES, Mode, ModeRequest, OtherFiles, RankCode, SpecialToken, Template, TokenizerRequest,
};
pub use writer::{
    PlannedOutput, VariantOutput, VariantReport, VariantSource, WriteError, WriteOptions, WriteReport,
    forget_notes, output_kind, plan_files, plan_parts, write_files, write_gguf, write_variants,
};
