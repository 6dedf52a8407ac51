//! Products of block-quantized weights with activations in integers.
//!
//! Weights are 16-bit integers times F32 scales ([`IntegerForm`]); activations are rounded to 16 bits, with one step for
//! each group of 256 columns of a row. For each group and token:
//!
//! ```text
//! step      = max |x| / 32767           (0 if all are 0; NaN if one is not finite)
//! r         = round to nearest even of x / step
//! y        += step · Σ over scales (scale · Σ r · integer - min_scale · Σ minimum · Σ r)
//! ```
//!
//! An uneven group, with an activation that is far larger than the others, would have a step that is too coarse for them.
//! What its integers leave, `x - step · r`, is rounded as a second group, with its own step, and its products are added
//! after those of the first. So the last step of a group is at most a thousandth of its mean magnitude, or 2⁻³¹ of its
//! largest.
//!
//! # Exactness
//! The sums of products are exact integers, whatever their order. They become F32 after [`run_columns`] columns at
//! most, before they could leave 32 bits; the F32 operations run in the order of columns, each rounded. So a product
//! has the same bits on every processor, for every level of vector instructions and for any number of other rows.
//!
//! # Layout
//! A panel has strips of 16 rows. A strip has, for each group of 256 columns, 16 pairs of integers for each pair of
//! columns, then the pairs of minima. Activations are pairs of 16-bit integers too, so that one instruction multiplies
//! and adds a pair for each row. The sums of activations for the minima have up to 21 bits: they are stored as a pair
//! `(low, high)` with `low + 512 · high`, and a minimum `m` as `(m, 512 · m)`.

mod kernel;
mod lanes;
mod levels;
mod panel;
mod rounded;
#[cfg(test)]
mod tests;

use gguf_core::IntegerForm;

pub use levels::IntegerKernel;
pub use panel::{IntegerPanel, PanelLayout, RowPart, STRIP};
pub use rounded::{RoundedPart, RoundedRows, RoundedView};

use crate::MatrixTile;
use kernel::Multiply;

/// Number of columns of a group, whose activations share a step.
pub const GROUP: usize = 256;

/// Largest magnitude of a rounded activation.
pub const LARGEST: i32 = 32767;

/// Factor of the high part of a sum of activations.
const HIGH: i32 = 512;

/// Number of tokens whose results are in the cache at a time.
const TOKENS: usize = 256;

/// Returns the largest number of columns whose products with activations always add up to less than 2^31.
///
/// Every product is at most `largest · 32767` in magnitude, so `n` of them are at most `n · largest · 32767`. Sums of
/// parts of the columns are bounded by the same number, so no order of adding overflows.
#[must_use]
pub const fn run_columns(form: &IntegerForm) -> usize {
    let mut n = form.scaled;
    while n > 2 && n as i64 * form.largest as i64 * LARGEST as i64 > i32::MAX as i64 {
        n /= 2;
    }
    n
}

/// Returns the number of floats of `scratch` that [`multiply`] needs for panels of at most `n_rows` rows.
#[must_use]
pub const fn scratch_floats(n_rows: usize) -> usize {
    n_rows.next_multiple_of(STRIP) * TOKENS
}

/// Computes `out = factor * x wᵀ`, with `x` of `[n_tokens, n_cols]` and `w` of `[n_rows, n_cols]`. `scratch` is resized
/// as needed; its content does not matter.
///
/// # Panics
/// If the sizes do not fit together.
pub fn multiply(
    kernel: IntegerKernel,
    out: &mut MatrixTile<'_>,
    x: &RoundedView<'_>,
    w: &IntegerPanel<'_>,
    factor: f32,
    scratch: &mut Vec<f32>,
) {
    assert!(out.n_rows == x.n_tokens() && out.n_cols == w.n_rows(), "sizes of a product");
    assert!(x.n_cols() == w.layout().n_cols(), "sizes of a product");
    let n_strips = w.n_rows().div_ceil(STRIP);
    for first in (0..x.n_tokens()).step_by(TOKENS) {
        let x = x.tokens(first..x.n_tokens().min(first + TOKENS));
        let n_tokens = x.n_tokens();
        scratch.clear();
        scratch.resize(n_strips * n_tokens * STRIP, 0.0);
        let sums = scratch.as_chunks_mut::<STRIP>().0;
        kernel.run(Multiply { x, w, sums });
        for token in 0..n_tokens {
            let row = out.row_mut(first + token);
            for (y, sums) in row.chunks_mut(STRIP).zip(sums.iter().skip(token).step_by(n_tokens)) {
                for (y, sum) in y.iter_mut().zip(sums) {
                    *y = factor * sum;
                }
            }
        }
    }
}
