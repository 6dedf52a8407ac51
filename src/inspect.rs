//! Look into GGUF files and checkpoints, compare files, hash them, edit their metadata, cut and join them.

mod checkpoint;
mod diff;
mod edit;
mod hash;
mod parts;
mod show;
mod summary;

pub use checkpoint::{
    Architecture, Aspect, Becomes, CheckpointReport, ElementShare, ListedTensor, PlannedOutput, Problem,
    VocabularyFacts, WeightFile, WeightFiles, checkpoint_json, inspect_checkpoint,
};
pub use diff::{DataDiff, Diff, DiffError, KeyDiff, TensorDiff, diff};
pub use edit::{Change, Edit, EditError, EditPlan, Objection};
pub use hash::{Hashes, hash};
pub use parts::{merge, split_file};
pub use show::{typed_json, value_json, value_plain, value_text, value_type_name};
pub use summary::{FileSummary, Listing, TypeShare, endian_name, summary, summary_json, warnings};
