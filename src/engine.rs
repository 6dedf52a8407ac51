//! The reference inference engine: exact f32 activations, weights streamed layer by layer over the whole prompt set.
//!
//! [`GraphPlan::new`] resolves a graph from a card's features, a file's metadata and its tensors; [`Engine`] runs it
//! over [`TokenChunk`]s of tokens: [`Engine::forward`] yields hidden states, [`Engine::scores`] and
//! [`Engine::divergences`] fold the head's logits into what a verdict needs. [`Engine::continuation`] goes on from token
//! to token, and [`Engine::draw`] draws the next.

mod build;
mod error;
mod ops;
mod run;

pub mod plan;

pub(crate) use build::claims::fits;
pub use build::{Stage, stage};
pub use error::EngineError;
pub use ops::cross::add_cross;
pub use ops::gram::Gram;
pub use ops::gram_sum::GramSum;
pub use ops::head::{Hidden, TokenDivergence, TokenScore};
pub use ops::math::add_squares;
pub use ops::prefix::Prefix;
pub use ops::rows::LogProbs;
pub use ops::strips::Strips;
pub use plan::GraphPlan;
pub(crate) use run::buffers::{Buffer, Buffers};
pub use run::continued::Continuation;
pub use run::forward::{Engine, EngineOptions, TokenChunk};
pub use run::observer::Observer;
pub use run::timings::WorkKind;
pub(crate) use run::weights::WeightReader;
