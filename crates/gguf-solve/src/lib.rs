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
#[cfg(test)]
mod samples;
mod target;
mod unit;

#[cfg(test)]
use gguf_testkit::noise;

pub use error::SolveError;
pub use metric::{Metric, SHRINKAGE, SHRINKAGE_OF_STREAM};
pub use moments::SecondMoments;
pub use moving::{MOVING_BYTES, MovingBlocks, MovingStep};
pub use rows::{PANEL_ROWS, SolveOptions, Start, can_solve, objective, solve_rows};
pub use target::{Correction, InputCorrection};
