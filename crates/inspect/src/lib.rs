//! Inspection of GGUF files and checkpoints: description, comparison, hashes, edits of metadata, splitting and
//! joining.

mod checkpoint;
mod diff;
mod dump;
mod edit;
mod hash;
mod order;
mod parts;
mod show;
mod summary;
mod template;

pub use checkpoint::{
    Architecture, Aspect, CheckpointReport, ElementShare, ListedFile, ListedTensor, PlannedOutput, Problem,
    TargetTypes, VocabularyFacts, WeightFiles, checkpoint_json, inspect_checkpoint,
};
pub use diff::{DataDiff, Diff, DiffError, KeyDiff, TensorDiff, diff};
pub use dump::{DumpOptions, data_begin, dump_json};
pub use edit::{Change, Edit, EditError, EditPlan, Objection, TensorChange, objections_to};
pub use hash::{Hashes, hash};
pub use order::{plan_in_order, write_in_order};
pub use parts::{merge, plan_split, split_file};
pub use show::{typed_json, value_json, value_plain, value_text, value_type_name};
pub use summary::{
    FileSummary, SummaryOptions, TensorLine, TypeShare, endian_name, listed, summary, summary_json, warnings,
};
pub use template::{NamedTemplate, chat_templates, read_templates};
