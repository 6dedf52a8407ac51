//! Architecture cards: the mapping of each architecture's checkpoints to GGUF, as data.
//!
//! A card (`converters/*.toml`) declares which model classes it converts, how their tensors are named, joined and
//! reordered, and which configuration keys become which metadata keys. This crate loads and checks cards, and applies
//! a card to the headers of a checkpoint. The result is a [`Mapping`]: plain data that `views` and `convert` execute.
//!
//! ```
//! use gguf_arch::Registry;
//!
//! let registry = Registry::embedded()?;
//! let card = registry.by_gguf("qwen3").expect("a card of this architecture");
//! assert!(card.classes.iter().any(|class| class == "Qwen3ForCausalLM"));
//! # Ok::<(), gguf_arch::ArchError>(())
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `expr` `eval` `datum` | the expressions in cards |
//! | `ops` | the closed list of tensor operations |
//! | `names` | patterns |
//! | `schema` `visit` `card_merge` `read` `check` `load` | cards: types, expressions, inheritance, TOML, checks, the registry |
//! | `detect` `hparams` `config_keys` | configurations: class, defaults, keys |
//! | `metadata_rows` `origins` | metadata keys: their values, and the configuration keys that these come from |
//! | `runtime_keys` | defaults of the runtime for keys that a card's rows do not write |
//! | `inputs` `options` `scope` | facts about a checkpoint, choices of the user, and the names that expressions see |
//! | `resolve` `matching` `assign` `types` `mapping` | a card applied to a checkpoint |
//! | `attributes` `carried` `lost_value` | attributes of configuration classes, and those that reach the file |
//! | `invert` | conversion from GGUF back to a checkpoint |
//! | `shapes` | the shapes of tensors by the keys of their file |
//! | `facts` | keys and tensors that a card reads and writes |
//! | `kinds` `similar` `similarity` | cards that resemble a checkpoint without a card |
//! | `graph` | facts about the architecture for the reference engine |
//! | `diffusion` | cards of image and video models, which are lists of names |

mod absent;
mod assign;
mod attributes;
mod card_merge;
mod carried;
mod check;
mod config_keys;
mod config_numbers;
mod datum;
mod detect;
mod draft;
mod error;
mod error_hints;
mod eval;
mod expr;
mod facts;
mod fuse;
mod fusion;
mod generated;
mod heads;
mod hparams;
mod inputs;
mod invert;
mod kept_ops;
mod kinds;
mod layer_lists;
mod leftover;
mod listing;
mod load;
mod long_rope;
mod lost_value;
mod mapping;
mod matching;
mod metadata_rows;
mod missing_input;
mod model_types;
mod names;
mod needs;
mod ops;
mod options;
mod origins;
mod plain_names;
mod read;
mod resaved;
mod resolve;
mod roots;
mod runtime_keys;
mod schema;
mod scope;
mod shapes;
mod similar;
mod similarity;
mod target;
mod tie;
mod tied;
mod towers;
mod types;
mod values;
mod visit;
mod warning;

pub mod diffusion;
#[expect(missing_docs, reason = "fields and variants are words of cards; docs/extending.md describes each")]
pub mod graph;

pub use datum::Datum;
pub use detect::{class_of, named_classes, tower_class_of, with_text_config};
pub use draft::{AddedEntry, Draft, Unmatched, UnreadKey, draft};
pub use error::{ArchError, CardProblem, ParentProblem};
pub use eval::error::EvalError;
pub use expr::ParseError;
pub use facts::{
    CardContents, CardFacts, CardHead, ConfigKeyFacts, IgnoredTensors, KeyDefault, TensorFacts, all_facts,
    facts,
};
pub use fusion::{Fuse, Fusion};
pub use graph::GraphFeatures;
pub use heads::{DraftHeads, exports_heads};
pub use inputs::{Inputs, Pooling};
pub use invert::{Inverse, invert};
pub use load::{ClassRow, Registry};
pub use lost_value::LostValue;
pub use mapping::{
    Assembly, DropReason, Dropped, JoinKind, Mapping, OpStep, OutputSpec, RopeFreqsLlama3, SourceWeight,
    TensorContent,
};
pub use metadata_rows::derived_keys;
pub use missing_input::MissingInput;
pub use model_types::{text_parts, without_graph};
pub use names::{Pattern, PatternError, Stars};
pub use needs::{ForeignTensors, MissingTensors, foreign_names, foreign_tensors, missing_tensors};
pub use ops::{MathOp, Op, OpError, WholeOp};
pub use options::{Rerank, ResolveOptions};
pub use origins::{Origin, Origins};
pub use plain_names::{PlainNames, plain_names};
pub use resolve::{embedding_rows, resolve};
pub use schema::{Card, CardKind, EntryType, Phase, TokenizerFrom};
pub use shapes::{EMBEDDING, ShapeCheck, WrongShape, check_shapes, embeds_all_tokens};
pub use similar::similar;
pub use similarity::Similarity;
pub use target::{TargetModel, target_config};
pub use tie::Tie;
pub use towers::{TowerFile, TowerGaps, block_count, block_number, tower_gaps};
pub use types::{OutType, TypeRule};
pub use values::{CountTokens, TokenCounts};
pub use warning::ArchWarning;
