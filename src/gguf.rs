//! GGUF file format: metadata values, reading, writing, split files.
//!
//! - [`GgufFile`] opens a model, with all its parts as one, and is a [`TensorSource`](crate::core::TensorSource).
//! - [`write_gguf`] writes any [`TensorSource`](crate::core::TensorSource) with its [`Metadata`]; [`plan_files`]
//!   returns the files that it would write.
//! - [`parse_header`] is the pure parser under [`GgufFile`], [`FilePlan`] the pure plan under [`write_gguf`].

mod assign;
mod endian;
mod error;
mod file_type;
mod foreign;
mod header;
mod imatrix;
pub(crate) mod key_faults;
pub(crate) mod keys;
mod other_file;
mod part;
mod plan;
mod reader;
mod share;
pub(crate) mod split;
pub(crate) mod split_id;
pub(crate) mod split_keys;
mod value;
mod vocabulary;
pub(crate) mod writer;

pub use assign::{AssignError, AssignType, Assignment, parse_assignment};
pub use endian::{swap_blocks, to_order};
pub use error::{GgufError, HeaderError, HeaderItem};
pub use file_type::FileType;
pub(crate) use file_type::id_of_blocks;
pub use foreign::DeclaredTensor;
pub use header::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header, MAX_DIMS, MAX_NAME_BYTES, Strictness, parse_header,
};
pub use imatrix::{
    ColumnSums, CombinedImatrix, Imatrix, ImatrixEntry, ImatrixError, ImatrixFormat, ImatrixPart,
    ImatrixSums, StoredImatrix, UnfinishedRun, combine_imatrix_parts, merge_imatrices,
};
pub use key_faults::KeyFault;
pub use other_file::OtherFile;
pub use part::{OpenOptions, Part};
pub(crate) use plan::{TensorDescriptor, value_bytes};
pub use plan::{FilePlan, LayoutOptions, PlanError, PlannedFile, PlannedTensor};
pub use reader::{GgufFile, TensorPlace};
pub(crate) use share::{PartsGap, each_once, listed};
pub use share::{Share, ShareError};
pub use split::{SplitSpec, SplitStyle, merged_metadata};
pub use value::{Array, Metadata, Value, ValueType};
pub use vocabulary::{
    FILE_ROLES, Mode, ModeRequest, OtherFiles, RankCode, SpecialToken, Template, TokenizerRequest,
};
pub(crate) use writer::{PlannedOutput, output_kind, write_files};
pub use writer::{WriteError, WriteOptions, WriteReport, plan_files, write_gguf};
