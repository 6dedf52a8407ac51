//! The reference inference engine: exact f32 activations, weights streamed layer by layer over the whole prompt set.
//!
//! [`GraphPlan::new`] resolves a graph from a card's features, a file's metadata and its tensors; [`Engine`] runs it
//! over [`Chunk`]s of tokens: [`Engine::forward`] yields hidden states, [`Engine::scores`] and
//! [`Engine::divergences`] fold the head's logits into what a verdict needs.

mod attention;
mod error;
mod ffn;
mod graph;
mod head;
mod hparams;
mod layers;
mod math;
mod matmul;
mod model;
mod moe;
mod norm;
mod panel;
mod prefix;
mod product;
mod rope;
mod stream;
mod tensors;
mod timings;
mod weights;
mod workers;

pub mod plan;

pub use error::EngineError;
pub use graph::Observer;
pub use head::{Hidden, TokenDivergence, TokenScore};
pub use math::add_squares;
pub use plan::GraphPlan;
pub use prefix::Prefix;
pub use stream::{Chunk, Engine, EngineOptions};
pub use timings::Phase;
