//! Look into GGUF files and checkpoints, compare files, hash them, edit their metadata, cut and join them.

mod checkpoint;
mod diff;
mod edit;
mod hash;
mod show;
mod summary;

pub use checkpoint::{
    Architecture, Becomes, CheckpointReport, Container, ElementShare, Output, Part, Problem, StoredTensor,
    Vocabulary, WeightFile, checkpoint_json, inspect_checkpoint,
};
pub use diff::{DataDiff, Diff, DiffError, KeyDiff, TensorDiff, diff};
pub use edit::{EditError, merge, remove, set, split_file};
pub use hash::{Hashes, hash};
pub use show::{value_json, value_text, value_type_name};
pub use summary::{Summary, TypeShare, endian_name, summary, summary_json, warnings};
