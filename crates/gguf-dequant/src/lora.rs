//! Low-rank adapters (LoRA), merged into their weights while these are read.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::adapted::{Change, adapted};
use crate::layer::Weight;
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{DequantError, InnerSource, Result};
use gguf_core::sync::Unpoisoned;
use gguf_core::text::escape;
use gguf_core::{Shape, scratch};

/// A weight and the two matrices that change it: W + scale · B · A, or W + scale · (B · A)ᵀ if W is transposed.
///
/// Indices are those of the layer's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraPair {
    /// Index of W, `[n, k]`; `[k, n]` if it is transposed. A stack of experts has their number in front.
    pub base: usize,
    /// Index of A, `[r, k]`; `[experts · r, k]` or `[experts, r, k]`, expert after expert.
    pub a: usize,
    /// Index of B, `[n, r]`; `[n, r · experts]`, with the experts side by side for each rank; `[experts, n, r]` if A has
    /// three dimensions, too.
    pub b: usize,
    /// Scale factor, `lora_alpha / r`.
    pub scale: f32,
    /// True if the weight is stored transposed: an embedding, or a layer that multiplies from the other side
    /// (`Conv1D`).
    pub is_transposed: bool,
    /// Part of the product, and its place in W.
    pub part: LoraPart,
}

/// Part of a product of matrices of several experts, and the rows of the weight that it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraPart {
    /// Number of experts whose matrices A and B hold.
    pub n_experts: u64,
    /// Experts that change the weight, one after the other.
    pub experts: Range<u64>,
    /// Rows of each product, as the weight stores it, that precede those of the weight; 0 unless layers are joined.
    pub skip: u64,
    /// Number of rows of each product; `None` for all.
    pub n_rows: Option<u64>,
    /// First row of the weight that is changed.
    pub first_row: u64,
    /// First column of a transposed weight that is changed, if others of its columns belong to another matrix.
    pub first_col: Option<u64>,
    /// Distance of the rows that are changed, or of the columns if there is a first one; 1 unless matrices alternate.
    pub step: u64,
}

impl Default for LoraPart {
    fn default() -> Self {
        Self { n_experts: 1, experts: 0..1, skip: 0, n_rows: None, first_row: 0, first_col: None, step: 1 }
    }
}

/// Reasons why an adapter cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum LoraError {
    #[error("tensor `{}`: shape {base}, but the adapter's matrices are {b} and {a}", escape(name))]
    Shapes { name: String, base: Shape, a: Shape, b: Shape },
    #[error("tensor `{}`: shape {base}, but the adapter has {by}", escape(name))]
    Replaced { name: String, base: Shape, by: Shape },
    #[error("tensor `{}`: shape {base}, but the adapter has {by} for rows {first} to {last}", escape(name))]
    Rows { name: String, base: Shape, by: Shape, first: u64, last: u64 },
    #[error("tensor `{}` is changed twice", escape(name))]
    Twice { name: String },
}

/// Merges pairs into the weights of a layer; removes the matrices, and PEFT's `.base_layer` from names.
pub(super) fn merge(weights: Vec<Weight>, pairs: &[LoraPair]) -> Result<Vec<Weight>, LoraError> {
    let parts = pairs.iter().map(|pair| part(&weights, pair)).collect::<Result<Vec<_>, _>>()?;
    check(&weights, pairs, &parts)?;
    let mut weights: Vec<Option<Weight>> = weights.into_iter().map(Some).collect();
    let mut products: BTreeMap<usize, Vec<LowRank>> = BTreeMap::new();
    for (pair, part) in pairs.iter().zip(parts) {
        let mut take = |index: usize| weights[index].take().map(Operand::of);
        let (Some(a), Some(b)) = (take(pair.a), take(pair.b)) else { continue };
        let (scale, is_transposed) = (pair.scale, pair.is_transposed);
        let product = LowRank { a, b, scale, is_transposed, part, block: Mutex::default() };
        products.entry(pair.base).or_default().push(product);
    }
    for (base, products) in products {
        weights[base] = weights[base].take().map(|weight| adapted(weight, Sum(products)));
    }
    let mut merged: Vec<Weight> = weights.into_iter().flatten().collect();
    // Some models have matrices of adapters of their own, and keep all names.
    if !merged.iter().any(|weight| weight.meta.name.contains(".lora_A")) {
        for weight in &mut merged {
            weight.meta.name = weight.meta.name.replace(".base_layer.", ".");
        }
    }
    Ok(merged)
}

/// Sizes of a product, and its rows of the weight.
struct Part {
    rank: u64,
    n_experts: u64,
    first_expert: u64,
    n_rows: u64,
    skip: u64,
    /// Rows of the weight that change, and their distance.
    rows: Range<u64>,
    row_step: u64,
    /// Columns of the weight that change, and their distance.
    cols: Range<u64>,
    col_step: u64,
    /// Rows of B.
    n_out: u64,
    /// True if B has its experts one after the other, too.
    b_by_expert: bool,
}

/// Returns the sizes of a pair's product.
fn part(weights: &[Weight], pair: &LoraPair) -> Result<Part, LoraError> {
    let [base, a, b] = [pair.base, pair.a, pair.b].map(|index| &weights[index].meta);
    let LoraPart { n_experts, experts, skip, n_rows, first_row, first_col, step } = pair.part.clone();
    let [row_step, col_step] = if first_col.is_some() { [1, step] } else { [step, 1] };
    let found = || {
        let (a_rows, k, n, b_cols, b_by_expert) = match (a.shape.dims(), b.shape.dims()) {
            (&[a_rows, k], &[n, b_cols]) => (a_rows, k, n, b_cols, false),
            (&[n_a, r, k], &[n_b, n, own]) if [n_a, n_b, own] == [n_experts, n_experts, r] => {
                let all = n_a.checked_mul(r)?;
                (all, k, n, all, true)
            }
            _ => return None,
        };
        let (&n_cols, stacked) =
            base.shape.dims().split_last().filter(|(_, rows)| (1..=2).contains(&rows.len()))?;
        let [all, across] = if pair.is_transposed { [k, n] } else { [n, k] };
        let n_rows = n_rows.unwrap_or(all);
        let n_taken = experts.end.checked_sub(experts.start)?;
        let rank = a_rows.checked_div(n_experts)?;
        let end = end_of(first_row, n_rows.checked_mul(n_taken)?, row_step)?;
        let cols = first_col.unwrap_or(0)..end_of(first_col.unwrap_or(0), across, col_step)?;
        let n_base = stacked.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim))?;
        let fits = a_rows == b_cols
            && rank.checked_mul(n_experts) == Some(a_rows)
            && if first_col.is_some() { cols.end <= n_cols } else { across == n_cols }
            && skip.checked_add(n_rows)? <= all
            && experts.end <= n_experts
            && end <= n_base
            // A stack has a matrix for each expert.
            && stacked.last().is_some_and(|rows| n_rows > 0 && rows % n_rows == 0)
            && (pair.part != LoraPart::default() || end == n_base);
        fits.then_some(Part {
            rank,
            n_experts,
            first_expert: experts.start,
            n_rows,
            skip,
            rows: first_row..end,
            row_step,
            cols,
            col_step,
            n_out: n,
            b_by_expert,
        })
    };
    found().ok_or_else(|| {
        let (name, base) = (base.name.clone(), base.shape.clone());
        LoraError::Shapes { name, base, a: a.shape.clone(), b: b.shape.clone() }
    })
}

/// Returns the end of `n` places from the first one on.
fn end_of(first: u64, n: u64, step: u64) -> Option<u64> {
    first.checked_add(n.checked_sub(1)?.checked_mul(step)?)?.checked_add(1)
}

/// Checks that no matrix is in two pairs, and that no row is changed twice.
fn check(weights: &[Weight], pairs: &[LoraPair], parts: &[Part]) -> Result<(), LoraError> {
    let twice = |weight: usize| LoraError::Twice { name: weights[weight].meta.name.clone() };
    let mut seen = HashSet::new();
    if let Some(index) = pairs.iter().flat_map(|pair| [pair.a, pair.b]).find(|&index| !seen.insert(index)) {
        return Err(twice(index));
    }
    let place = |(pair, part): (&LoraPair, &Part)| {
        // Matrices that alternate begin at different rows or columns.
        ((pair.base, part.rows.start % part.row_step, part.cols.start), part.rows.start, part.rows.end)
    };
    let mut rows: Vec<_> = pairs.iter().zip(parts).map(place).collect();
    rows.sort_unstable();
    match rows.windows(2).find(|two| two[0].0 == two[1].0 && two[0].2 > two[1].1) {
        Some(two) => Err(twice(two[0].0.0)),
        None => Ok(()),
    }
}

/// The product of two matrices that is added to a weight.
///
/// # Exactness
/// Sums are computed in F64 in the order of the rank and rounded to F32 once.
struct LowRank {
    a: Operand,
    b: Operand,
    scale: f32,
    is_transposed: bool,
    part: Part,
    /// B of the expert that was read last, `[n, r]`: the columns of an expert are not contiguous.
    block: Mutex<Option<(u64, Arc<[f32]>)>>,
}

/// Products that are added to different rows of a weight.
struct Sum(Vec<LowRank>);

/// Number of elements whose sums are kept at a time.
const STEP_ELEMS: usize = 1 << 15;

impl LowRank {
    /// Adds the products of all experts to the values of a rectangle.
    fn apply(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<()> {
        let own = &self.part;
        let width = part.width();
        let after = |start: u64, first: u64, step: u64| start.saturating_sub(first).div_ceil(step);
        let end = part.cols.end.min(own.cols.end);
        let cols =
            after(part.cols.start, own.cols.start, own.col_step)..after(end, own.cols.start, own.col_step);
        if cols.is_empty() {
            return Ok(());
        }
        let skip = own.cols.start + cols.start * own.col_step - part.cols.start;
        let mut at = after(part.rows.start, own.rows.start, own.row_step);
        let end = after(part.rows.end.min(own.rows.end), own.rows.start, own.row_step);
        while at < end {
            let (expert, first) = (own.first_expert + at / own.n_rows, at % own.n_rows);
            let n = (own.n_rows - first).min(end - at).min((STEP_ELEMS / width.max(1)).max(1) as u64);
            // Rows that are not changed lie between the others.
            let n = if own.row_step == 1 { n } else { 1 };
            let start = (own.rows.start + at * own.row_step - part.rows.start) as usize * width;
            let rows = own.skip + first..own.skip + first + n;
            let sums = self.sums(inner, expert, &Rectangle { rows, cols: cols.clone() })?;
            let values = values[start..start + n as usize * width].chunks_exact_mut(width);
            for (values, sums) in values.zip(sums.chunks_exact((cols.end - cols.start) as usize)) {
                let values = values.iter_mut().skip(skip as usize).step_by(own.col_step as usize);
                for (value, sum) in values.zip(sums) {
                    *value = (f64::from(*value) + f64::from(self.scale) * sum) as f32;
                }
            }
            at += n;
        }
        Ok(())
    }

    /// Returns a part of the product of an expert.
    fn sums(&self, inner: InnerSource<'_>, expert: u64, part: &Rectangle) -> Result<Vec<f64>> {
        let (Rectangle { rows, cols }, width) = (part, part.width().max(1));
        // A is read one rank at a time. Of B, all ranks of the step's rows are needed (of its columns if the weight
        // is transposed).
        let (along, across) =
            if self.is_transposed { (rows.clone(), cols.clone()) } else { (cols.clone(), rows.clone()) };
        let (n_along, n_across) = ((along.end - along.start) as usize, (across.end - across.start) as usize);
        let rank = self.part.rank as usize;
        let mut sums = vec![0.0f64; part.n_elems() as usize];
        scratch::with_floats(n_across * rank, |block| {
            if self.part.n_experts == 1 || self.part.b_by_expert {
                let first = if self.part.b_by_expert { expert * self.part.n_out } else { 0 };
                let rows = first + across.start..first + across.end;
                self.b.read(inner, &Rectangle { rows, cols: 0..self.part.rank }, block)?;
            } else {
                let all = self.block_of(inner, expert)?;
                let start = across.start as usize * rank;
                block.copy_from_slice(&all[start..start + n_across * rank]);
            }
            scratch::with_floats(n_along, |line| {
                for k in 0..rank {
                    let row = expert * self.part.rank + k as u64;
                    let row = Rectangle { rows: row..row + 1, cols: along.clone() };
                    self.a.read(inner, &row, line)?;
                    let column = block.iter().skip(k).step_by(rank);
                    if self.is_transposed {
                        for (sums, left) in sums.chunks_exact_mut(width).zip(line.iter()) {
                            add_products(sums, *left, column.clone());
                        }
                    } else {
                        for (sums, left) in sums.chunks_exact_mut(width).zip(column) {
                            add_products(sums, *left, line.iter());
                        }
                    }
                }
                Ok::<_, DequantError>(())
            })
        })?;
        Ok(sums)
    }

    fn block_of(&self, inner: InnerSource<'_>, expert: u64) -> Result<Arc<[f32]>> {
        let mut last = self.block.lock().unpoisoned();
        if let Some((_, block)) = last.as_ref().filter(|(own, _)| *own == expert) {
            return Ok(block.clone());
        }
        let Part { rank, n_experts, n_out, .. } = self.part;
        let n_cols = rank * n_experts;
        let mut block = Vec::with_capacity((n_out * rank) as usize);
        scratch::with_floats(n_cols as usize, |line| {
            for row in 0..n_out {
                self.b.read(inner, &Rectangle { rows: row..row + 1, cols: 0..n_cols }, line)?;
                block.extend(line.iter().skip(expert as usize).step_by(n_experts as usize));
            }
            Ok::<_, DequantError>(())
        })?;
        let block: Arc<[f32]> = block.into();
        *last = Some((expert, block.clone()));
        Ok(block)
    }
}

/// Adds `left` times each number of `right` to `sums`.
fn add_products<'a>(sums: &mut [f64], left: f32, right: impl Iterator<Item = &'a f32>) {
    for (sum, right) in sums.iter_mut().zip(right) {
        *sum += f64::from(left) * f64::from(*right);
    }
}

impl Change for Sum {
    fn apply(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<()> {
        self.0.iter().try_for_each(|product| product.apply(inner, part, values))
    }
}
