//! Architecture cards: the mapping of each architecture's checkpoints to GGUF, as data.
//!
//! A card (`converters/*.toml`) declares which model classes it converts, how their tensors are named, joined and
//! reordered, and which configuration keys become which metadata keys. This crate loads and checks cards, and applies
//! a card to the headers of a checkpoint. The result is a [`Mapping`]: plain data that `gguf-views` and `gguf-conversion` execute.
//!
//! | module | subject |
//! |---|---|
//! | `attributes` | attributes of transformers' configuration classes, with their defaults |
//! | `graph` | facts about the architecture for the reference engine |
//! | `language` | expressions in cards, patterns of names, the closed list of tensor operations |
//! | `error` | errors and warnings |
//! | `read` | cards: types, inheritance, TOML, checks |
//! | `registry` | all cards; the class of a configuration and its card |
//! | `keys` | configuration keys, and the keys and shapes of a file that follow from them |
//! | `mapping` | a card, the facts about a checkpoint and the options of the user; the result of their application |
//! | `judge` | values that a file loses, tensors that it lacks, cards that resemble a checkpoint |
//! | `apply` | a card applied to a checkpoint |
//! | `invert` | conversion from GGUF back to a checkpoint |
//! | `draft` | a first card for a checkpoint that no card fits |
//! | `diffusion` | cards of image and video models, which are lists of names |
//!
//! A module uses those above it in this list only.

mod apply;
mod attributes;
pub mod diffusion;
mod draft;
mod error;
#[expect(missing_docs, reason = "fields and variants are words of cards; docs/extending.md describes each")]
pub mod graph;
mod invert;
mod judge;
mod keys;
mod language;
mod mapping;
mod read;
mod registry;

pub use graph::GraphFeatures;

pub use language::datum::Datum;
pub use language::eval::error::EvalError;
pub use language::expr::ParseError;
pub use language::names::{Pattern, PatternError, Stars, is_bound};
pub use language::ops::{MathOp, Op, OpError, WholeOp};
pub use language::values::TokenCounts;

pub(crate) use error::Result;
pub use error::lost_value::LostValue;
pub use error::missing_input::MissingInput;
pub use error::similarity::Similarity;
pub use error::tie::Tie;
pub use error::warning::ArchWarning;
pub use error::{ArchError, CardProblem, CutBlocks, ParentProblem};

pub use read::fusion::{Fuse, Fusion};
pub use read::metadata_rows::derived_keys;
pub use read::schema::{Card, CardKind, EntryType, Phase, TokenizerFrom};

pub use judge::preprocessing::settle_preprocessor;
pub use registry::detect::{class_of, named_classes, with_text_config};
pub use registry::model_types::{text_parts, without_graph};
pub use registry::towers::{TowerFile, TowerGaps, block_count, block_number, tower_fixed, tower_gaps};
pub use registry::{ClassRow, Registry};

pub use keys::origin::Origin;
pub use keys::shapes::{
    EMBEDDING, ShapeCheck, WrongShape, check_shapes, embeds_all_tokens, with_dropped_ones,
};
pub use keys::target::{TargetModel, target_config};

pub use mapping::heads::{DraftHeads, exports_heads};
pub use mapping::inputs::{Inputs, Pooling};
pub use mapping::options::{Rerank, ResolveOptions};
pub use mapping::types::{OutType, TypeRule};
pub use mapping::{
    Assembly, DropReason, Dropped, JoinKind, Mapping, OpStep, OutputSpec, RopeFreqsLlama3, SourceWeight,
    TensorContent,
};

pub use judge::facts::{
    CardContents, CardFacts, CardHead, ConfigKeyFacts, IgnoredTensors, KeyDefault, TensorFacts, all_facts,
    facts,
};
pub use judge::loader::{LoaderFault, loader_faults, own_window};
pub use judge::needs::{
    ForeignTensors, MissingTensors, foreign_names, foreign_tensors, has_loader, missing_tensors,
};
pub use judge::similar::similar;

pub use apply::plain_names::{PlainNames, plain_names};
pub use apply::resolve::resolve;

pub use draft::{AddedEntry, Draft, Unmatched, UnreadKey, draft};
pub use invert::{Inverse, invert};
