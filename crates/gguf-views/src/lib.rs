//! Tensor operations that cards name: layout as strided views, and element-wise arithmetic.
//!
//! A [`View`] defines the source of each element of a tensor. A [`Recipe`] is a view prepared for reading: any range of
//! rows can be read on its own, so that no tensor is ever held in memory as a whole.
//!
//! ```
//! use gguf_core::ElementType;
//! use gguf_core::simd::SimdLevel;
//! use gguf_testkit::memory::{MemoryWeights, weight_meta};
//! use gguf_views::{Recipe, View};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let weights = MemoryWeights::default().with_f32("w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
//! let turned = View::weight(0, &weight_meta("w", &[2, 3], ElementType::F32)).transpose(0, 1)?;
//! let recipe = Recipe::new(&turned).unwrap();
//! // The second row of three.
//! let mut row = [0.0; 2];
//! recipe.read_f32(&weights, SimdLevel::detect(), 2, &mut row)?;
//! assert_eq!(row, [2.0, 5.0]);
//! # Ok(())
//! # }
//! ```

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
