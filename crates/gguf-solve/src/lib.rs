//! Rounding that takes the inputs of a layer into account: scales and codes of GGML's blocks, scalar ones and those on
//! code books, are chosen so that the layer's *output* changes least. The format, the types and the sizes do not
//! change.
//!
//! A layer multiplies inputs `X` with rows of weights. Rounding changes its output by `tr(E H Eᵀ)`, where `E` is the
//! rounding error of the weights and `H = XᵀX / N` contains the correlations of the inputs ([`SecondMoments`]). An
//! importance matrix holds only the diagonal of `H`; the solver uses all of it:
//!
//! 1. [`Metric::new`] regularizes `H` and factors it;
//! 2. [`solve_rows`] takes the scales of the quantizer in `gguf_blocks`, rounds column by column with error feedback
//!    (GPTQ), then improves scales, minima and codes by coordinate descent. Types on code books (IQ1, IQ2, IQ3) go
//!    eight columns at a time, and choose a point of the grid and its signs under the metric of those columns;
//! 3. if earlier layers are quantized already, [`Correction`] first changes the weights to compensate for the errors of
//!    those layers.
//!
//! ```
//! use gguf_core::{GgmlType, simd::SimdLevel};
//! use gguf_solve::{Metric, SHRINKAGE, SecondMoments, SolveOptions, Start, solve_rows};
//!
//! let n = 32;
//! // Columns that vary together.
//! let values = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.7 }).collect();
//! let moments = SecondMoments::new(n, 1000, values)?;
//! let metric = Metric::new(&moments, SHRINKAGE)?;
//! let w: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
//! let mut blocks = vec![0; GgmlType::Q4_0.block_bytes()];
//! let start = moments.diagonal();
//! let level = SimdLevel::detect();
//! solve_rows(GgmlType::Q4_0, level, &w, Start::Importance(&start), &metric, SolveOptions::default(), &mut blocks)?;
//! # Ok::<(), gguf_solve::SolveError>(())
//! ```

#![allow(
    clippy::inline_always,
    reason = "code that is compiled once per vector level must be inlined into its entry"
)]
#![allow(clippy::needless_range_loop, reason = "formulas index several lanes alike")]

mod cholesky;
mod descent;
mod error;
mod gptq;
mod grid;
mod lanes;
mod metric;
mod moments;
mod moving;
mod panel;
mod rows;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
mod unit;

#[cfg(test)]
use gguf_testkit::noise;

pub use error::SolveError;
pub use metric::{Metric, SHRINKAGE, SHRINKAGE_OF_STREAM};
pub use moments::SecondMoments;
pub use moving::{MOVING_BYTES, MovingBlocks, MovingStep};
pub use rows::{PANEL_ROWS, SolveOptions, Start, can_solve, objective, solve_rows};
pub use target::{Correction, InputCorrection};
