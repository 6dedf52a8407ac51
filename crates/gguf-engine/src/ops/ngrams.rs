//! N-gram embeddings (Qwen 3.8): the last tokens are looked up as n-grams by their hashes, and the rows found are added
//! to the streams of a layer.

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::scalar;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::ops::scan::transposed;
use crate::resolve::resolver::Resolver;

/// Table of n-grams, and the hashes of its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NgramTable {
    /// Rows of all parts, one part after another.
    pub rows: Matrix,
    /// Factors of a token and of those before it, by distance; their number is the length of the longest n-grams.
    pub multipliers: Vec<u64>,
    /// First row and number of rows of every part: those of pairs, then those of triples and so on.
    pub parts: Vec<(usize, usize)>,
    pub(crate) n_per_length: usize,
    /// Token that ends the history, and that replaces the tokens before it.
    pub end: u32,
}

/// N-gram embedding of a layer, added to the streams.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ngrams {
    /// Table of n-grams.
    pub table: NgramTable,
    /// Projection of the rows found to a key for each stream.
    pub key: Matrix,
    /// Projection of the rows found to the value, which all streams share.
    pub value: Matrix,
    pub(crate) key_norm: Norm,
    /// Norm of each stream.
    pub query_norm: Norm,
    /// Norm before the convolution.
    pub conv_norm: Norm,
    /// Taps of the convolution, `[n_streams * n_embd, n_taps]`.
    pub conv: Vector,
    pub(crate) n_taps: usize,
    /// Distance between taps, in tokens.
    pub(crate) dilation: usize,
}

/// Lower bound of the values whose root is taken.
const LEAST: f32 = 1e-6;

impl Ngrams {
    /// Adds the n-grams to the streams `x`, `[n_tokens, n_streams * n_embd]`.
    pub(crate) fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &mut [f32]) -> Result<()> {
        let (n_tokens, width, n_embd) = (batch.n_tokens(), self.key.n_rows, self.value.n_rows);
        let n_streams = width / n_embd;
        let mut found = cx.take(n_tokens * self.key.n_cols);
        look_up(cx, &self.table, batch, &mut found)?;
        let [mut added, mut query] = [(); 2].map(|()| cx.take(n_tokens * width));
        let mut value = cx.take(n_tokens * n_embd);
        let products = vec![Product::plain(&self.key, &mut added), Product::plain(&self.value, &mut value)];
        cx.products(&found, n_tokens, products)?;
        cx.give([found]);
        cx.norm_parts(&cx.weights.norm(&self.key_norm)?, &mut added, width, n_streams);
        query.copy_from_slice(x);
        cx.norm_parts(&cx.weights.norm(&self.query_norm)?, &mut query, width, n_streams);
        cx.workers.install(|| {
            let rows = added.par_chunks_mut(n_embd).zip(query.par_chunks(n_embd)).enumerate();
            rows.run(&|(at, (key, query))| {
                cx.clock.time(WorkKind::Activation, || {
                    let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
                    let gate = gate((dot / (n_embd as f64).sqrt()) as f32);
                    let value = &value[at / n_streams * n_embd..][..n_embd];
                    key.iter_mut().zip(value).for_each(|(to, value)| *to = gate * value);
                });
            });
        });
        let mut normed = query;
        normed.copy_from_slice(&added);
        cx.norm_parts(&cx.weights.norm(&self.conv_norm)?, &mut normed, width, n_streams);
        let taps = transposed(&cx.weights.vector(&self.conv)?, self.n_taps);
        cx.workers.install(|| {
            let rows = x.par_chunks_mut(ROWS_PER_TASK * width).zip(added.par_chunks(ROWS_PER_TASK * width));
            rows.enumerate().run_with_scratch(&|sum, (task, (x, added))| {
                cx.clock.time(WorkKind::Activation, || {
                    let rows = x.chunks_mut(width).zip(added.chunks(width)).enumerate();
                    for (row, (x, added)) in rows {
                        let token = task * ROWS_PER_TASK + row;
                        convolve_far(self, &taps, &normed, batch, token, sum);
                        for ((x, added), conv) in x.iter_mut().zip(added).zip(&*sum) {
                            *x += added + conv * scalar::sigmoid(*conv);
                        }
                    }
                });
            });
        });
        cx.give([added, value, normed]);
        Ok(())
    }
}

/// Looks up the rows of every token, one part after another.
pub(crate) fn look_up(
    cx: &Context<'_>,
    table: &NgramTable,
    batch: &ChunkBatch,
    out: &mut [f32],
) -> Result<()> {
    let tokens = &cx.carried.tokens[batch.start..batch.start + batch.n_tokens()];
    let (width, mut bytes) = (table.rows.n_cols, Vec::new());
    let mut parts = out.chunks_mut(width);
    for cut in batch.cuts.windows(2) {
        for token in cut[0]..cut[1] {
            for (row, out) in table.row_indices(&tokens[cut[0]..=token]).into_iter().zip(&mut parts) {
                cx.weights.rows(table.rows.tensor, row, 1, &mut bytes, out)?;
            }
        }
    }
    Ok(())
}

/// Computes the dilated convolution of one token.
fn convolve_far(n: &Ngrams, taps: &[f32], x: &[f32], batch: &ChunkBatch, token: usize, sum: &mut Vec<f32>) {
    let width = n.key.n_rows;
    sum.clear();
    sum.resize(width, 0.0);
    for (tap, weights) in taps.chunks(width).enumerate() {
        let back = (n.n_taps - 1 - tap).saturating_mul(n.dilation);
        // Tokens before the first of a chunk belong to another chunk.
        if back <= batch.places[token].position as usize {
            let row = &x[(token - back) * width..][..width];
            for ((sum, weight), x) in sum.iter_mut().zip(weights).zip(row) {
                *sum += weight * x;
            }
        }
    }
}

impl NgramTable {
    fn row_indices(&self, tokens: &[u32]) -> Vec<usize> {
        let mut before = tokens.iter().rev().copied();
        let Some(last) = before.next() else { return Vec::new() };
        let mut mixed = u64::from(last).wrapping_mul(self.multipliers[0]);
        let mut is_cut = false;
        let mut rows = Vec::with_capacity(self.parts.len());
        for (factor, parts) in self.multipliers[1..].iter().zip(self.parts.chunks(self.n_per_length)) {
            let token = before.next().filter(|&token| !is_cut && token != self.end);
            is_cut = token.is_none();
            mixed ^= u64::from(token.unwrap_or(self.end)).wrapping_mul(*factor);
            rows.extend(parts.iter().map(|&(first, n)| first + (mixed % n as u64) as usize));
        }
        rows
    }
}

/// Returns the logistic function of the signed square root.
fn gate(a: f32) -> f32 {
    if a == 0.0 { 0.5 } else { scalar::sigmoid(a.abs().max(LEAST).sqrt().copysign(a)) }
}

const LAYERS: &str = "ple.layers";
const SIZE: &str = "ple.ngram_size";

const OFFSETS: &str = "ple.head_offsets";
const SIZES: &str = "ple.head_vocab_sizes";

const MULTIPLIERS: &str = "ple.layer_multipliers";
/// Largest length of n-grams, more than any model has.
const MOST_TOKENS: usize = 64;

impl Ngrams {
    /// Resolves the n-gram embedding for the `n_streams` streams of a layer, if it is the layer that the file names.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        layer: usize,
        n_streams: usize,
    ) -> Result<Option<Box<Ngrams>>> {
        let Some(layers) = b.keys.counts(LAYERS)? else { return Ok(None) };
        if layers.len() > 1 {
            // There is only one table, and one row of hashes.
            return Err(b.keys.unknown(LAYERS, "one layer", &format!("{} layers", layers.len())));
        }
        if !layers.contains(&layer) {
            return Ok(None);
        }
        let at = |name: &str| format!("blk.{layer}.ple_{name}");
        let n_embd = b.n_embd;
        let all = n_embd.saturating_mul(n_streams);
        let table = NgramTable::resolve(b)?;
        let n_cols = table.parts.len().saturating_mul(table.rows.n_cols);
        let n_taps = b.keys.need_count("ple.conv_kernel")?;
        Ok(Some(Box::new(Ngrams {
            key: b.tensors.need_matrix(&at("key"), all, n_cols)?,
            value: b.tensors.need_matrix(&at("value"), n_embd, n_cols)?,
            key_norm: b.need_norm_of(&at("norm_key"), all)?,
            query_norm: b.need_norm_of(&at("norm_query"), all)?,
            conv_norm: b.need_norm_of(&at("norm_conv"), all)?,
            conv: b.need_vector(&format!("{}.weight", at("conv1d")), all.saturating_mul(n_taps))?,
            n_taps,
            dilation: table.multipliers.len(),
            table,
        })))
    }
}

impl NgramTable {
    /// Resolves the table from the keys `ple.*` and the tensor `per_layer_token_embd`.
    pub(crate) fn resolve(b: &mut Resolver<'_>) -> Result<NgramTable> {
        let n_tokens = b.keys.need_count(SIZE)?;
        if !(2..=MOST_TOKENS).contains(&n_tokens) {
            return Err(b.keys.unknown(SIZE, "from 2 to 64", &n_tokens.to_string()));
        }
        let n_per_length = b.keys.need_count("ple.heads_per_ngram")?;
        let n_parts = n_per_length.saturating_mul(n_tokens - 1);
        let list = |key: &'static str, len: usize, expected| {
            let found = b.keys.counts(key)?.ok_or_else(|| b.keys.missing(key))?;
            let n = found.len();
            if n == len { Ok(found) } else { Err(b.keys.unknown(key, expected, &n.to_string())) }
        };
        let multipliers = list(MULTIPLIERS, n_tokens, "as many as `ple.ngram_size`")?;
        let expected = "`ple.heads_per_ngram` for each length of n-grams";
        let (offsets, sizes) = (list(OFFSETS, n_parts, expected)?, list(SIZES, n_parts, expected)?);
        let end = "ple.eos_token_id";
        let end = b.keys.count(end)?.ok_or_else(|| b.keys.missing(end))?;
        let width = b.keys.need_count("embedding_length_per_layer_input")?;
        let name = "per_layer_token_embd";
        let rows = b.tensors.need_matrix(name, b.n_rows(name)?, width)?;
        for (&first, &n) in offsets.iter().zip(&sizes) {
            if n == 0 || first.checked_add(n).is_none_or(|end| end > rows.n_rows) {
                let found = format!("{n} from {first} on, of {}", rows.n_rows);
                return Err(b.keys.unknown(SIZES, "rows of the table", &found));
            }
        }
        Ok(NgramTable {
            rows,
            multipliers: multipliers.into_iter().map(|factor| factor as u64).collect(),
            parts: offsets.into_iter().zip(sizes).collect(),
            n_per_length,
            end: u32::try_from(end).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests;
