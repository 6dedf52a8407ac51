//! Tensor operations that cards name: layout as strided views, and element-wise arithmetic.
//!
//! A [`View`] defines the source of each element of a tensor. A [`Recipe`] is a view prepared for reading: any range of
//! rows can be read on its own, so that no tensor is ever held in memory as a whole.

pub mod decoded;

mod apply;
mod axis;
mod computed;
mod elems;
mod error;
mod exp;
mod grid;
mod layout;
mod low_rank;
mod math;
mod merged_leaf;
mod node;
mod origin;
mod recipe;
mod rope;
mod sinusoids;
mod sum;
mod view;

pub use apply::{RecipeError, apply, recipe};
pub use error::{ShapeError, ViewError};
pub use low_rank::{FactorError, LowRank, factors};
pub use recipe::{ReadPolicy, Recipe};
pub use rope::{match_rope_freqs, rope_freqs_llama3};
pub use view::View;
