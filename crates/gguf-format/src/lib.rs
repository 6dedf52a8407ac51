//! GGUF file format: metadata values, reading, writing, split files.
//!
//! - [`GgufFile`] opens a model, with all its parts as one, and is a [`TensorSource`](gguf_core::TensorSource).
//! - [`write_gguf`] writes any [`TensorSource`](gguf_core::TensorSource) with its [`Metadata`]; [`plan_files`]
//!   returns the files that it would write.
//! - [`parse_header`] is the pure parser under [`GgufFile`], [`FilePlan`] the pure plan under [`write_gguf`].
//!
//! ```
//! use gguf_core::progress::Silent;
//! use gguf_format::{GgufFile, Metadata, WriteOptions, write_gguf};
//! use gguf_testkit::memory::MemoryTensors;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut metadata = Metadata::new();
//! metadata.set("general.architecture", "llama");
//! metadata.set("general.name", "Two values");
//! let tensors = MemoryTensors::default().with_f32("output_norm.weight", &[2], &[1.0, 0.5]);
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("two.gguf");
//! write_gguf(&path, &metadata, &tensors, &WriteOptions::default(), &Silent)?;
//!
//! let file = GgufFile::open(&path)?;
//! assert_eq!(file.metadata().get("general.name").and_then(|value| value.as_str()), Some("Two values"));
//! # Ok(())
//! # }
//! ```

mod assign;
mod endian;
mod error;
mod file_type;
mod foreign;
mod header;
mod imatrix;
pub mod key_faults;
pub mod keys;
pub mod number_faults;
mod other_file;
mod part;
mod plan;
mod reader;
pub mod required_keys;
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
