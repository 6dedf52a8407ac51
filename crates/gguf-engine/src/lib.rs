//! The reference inference engine: f32 activations, weights streamed layer by layer over the whole prompt set. Weights are
//! decoded to F32 for the products.
//!
//! [`GraphPlan::new`] resolves a graph from a card's features, a file's metadata and its tensors; [`Engine`] runs it
//! over [`TokenChunk`]s of tokens: [`Engine::forward`] yields hidden states, [`Engine::scores`] and
//! [`Engine::divergences`] reduce the head's logits to scores and divergences per token. [`Engine::continuation`]
//! generates token by token, and [`Engine::draw`] samples the next token.

mod error;
mod exec;
mod layers;
mod ops;
mod outputs;
mod resolve;

pub use error::EngineError;
pub(crate) use error::Result;
pub use exec::activation::{Activation, GateFunction, GatedActivation, PlainActivation, Xielu};
pub use exec::batch::TokenChunk;
pub use exec::buffers::{Buffer, BufferPool};
pub use exec::cross_products::add_cross;
pub use exec::gradient::Gradients;
pub use exec::gram::Gram;
pub use exec::hidden::Hidden;
pub use exec::mask::Mask;
pub use exec::math::add_squares;
pub use exec::observer::Observer;
pub use exec::strips::Strips;
pub use exec::timings::WorkKind;
pub use exec::weights::{Matrix, Norm, NormFormula, Vector, WeightReader};
pub use layers::continued::Continuation;
pub use layers::forward::{Engine, EngineOptions};
pub use layers::gradient::Reference;
pub use layers::graph::GraphPlan;
pub use layers::layer::LayerPlan;
pub use layers::stage::{Stage, stage};
pub use ops::Mixer;
pub use ops::attention::{Attention, KvSource};
pub use ops::dense::Dense;
pub use ops::ffn::Ffn;
pub use ops::kept::{Kept, KeptBySequence, KeptRows, Reach, STEP_TOKENS};
pub use ops::moe::Moe;
pub use ops::pooling::PooledRow;
pub use ops::prefix::Prefix;
pub use outputs::fold::{TokenDivergence, TokenScore};
pub use outputs::rows::LogProbs;
pub use resolve::features::ModelKind;
pub use resolve::tensors::fits;

#[cfg(test)]
extern crate self as gguf_engine;
#[cfg(test)]
#[path = "../../../tests/testkit/engine.rs"]
mod testkit;
