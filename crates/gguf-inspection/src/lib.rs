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
    Architecture, Aspect, CheckpointClass, CheckpointQuantization, CheckpointReport, ElementShare,
    ListedFile, ListedTensor, PlannedOutput, Problem, ProblemKind, SampledWeights, TargetTypes, TypeCount,
    VocabularyFacts, WeightFiles, inspect_checkpoint,
};
pub use diff::{DataDiff, Diff, DiffError, KeyDiff, LayoutDiff, TensorDiff, TensorForm, diff, diff_keys};
pub use dump::{DumpOptions, DumpedKey, DumpedTensor, FileDump, data_begin, dump};
pub use edit::{Change, Edit, EditError, EditPlan, Objection, TensorChange, objections_to, remarks_on};
pub use hash::{FileHash, Hashes, TensorHash, hash};
pub use order::{plan_in_order, write_in_order};
pub use parts::{merge, plan_split, split_file};
pub use show::{ShownValue, TypedValue, value_plain, value_text, value_type_name};
pub use summary::{
    FilePart, FileSummary, MetadataEntry, SummaryOptions, TensorLine, TypeShare, endian_name, summary,
    warnings,
};
pub use template::{NamedTemplate, chat_templates, read_templates};
