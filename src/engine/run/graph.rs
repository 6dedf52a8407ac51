//! One run: the layer as the plan describes it, over a batch of chunks.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::ops::product::Product;
use crate::engine::ops::rope::RopeTable;
use crate::engine::plan::{GraphPlan, Layer, Matrix, Mixer, Norm, Wiring};
use crate::engine::run::timings::Clock;
use crate::engine::run::weights::Weights;
use crate::engine::run::workers::Workers;

/// Sees what flows through a run: importance matrices and traces are made of it.
pub trait Observer: Sync {
    /// Rows of activations that a matrix is about to be multiplied with; `x` holds whole rows of `matrix.n_cols`.
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let _ = (source, matrix, x);
    }

    /// A named intermediate of a layer, in rows of `n_cols`.
    fn slot(&self, layer: usize, name: &str, x: &[f32], n_cols: usize) {
        let _ = (layer, name, x, n_cols);
    }
}

/// Where a token stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Position in its chunk.
    pub(crate) position: u32,
    /// Position behind the prefix, for models that have one.
    pub(crate) block: u32,
    /// Tokens of its chunk.
    pub(crate) chunk_len: u32,
}

/// Whole chunks that go through a layer together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// First token of every chunk, and the number of tokens.
    pub(crate) cuts: Vec<usize>,
    /// One place per token.
    pub(crate) places: Vec<Place>,
    /// Tokens of every chunk that see one another; empty without prefixes.
    pub(crate) prefixes: Vec<usize>,
    /// Tokens of every chunk whose output is wanted, if not all are: after the last layer only those go on.
    wanted: Option<Vec<Range<usize>>>,
}

impl Batch {
    pub(crate) fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut batch = Self { cuts: vec![0], ..Self::default() };
        for len in lengths {
            let chunk_len = len as u32;
            batch.places.extend((0..chunk_len).map(|position| Place { position, block: 0, chunk_len }));
            batch.cuts.push(batch.places.len());
        }
        batch
    }

    /// The same batch when only some rows of every chunk are wanted.
    pub(crate) fn narrowed(mut self, rows: impl IntoIterator<Item = Range<usize>>) -> Self {
        let clip = |(cut, rows): (&[usize], Range<usize>)| {
            let end = (cut[0] + rows.end).min(cut[1]);
            (cut[0] + rows.start).min(end)..end
        };
        self.wanted = Some(self.cuts.windows(2).zip(rows).map(clip).collect());
        self
    }

    /// Tokens of a chunk that see one another.
    pub(crate) fn prefix(&self, chunk: usize) -> usize {
        self.prefixes.get(chunk).copied().unwrap_or(0)
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.places.len()
    }

    /// Number of tokens whose output is wanted.
    pub(crate) fn n_wanted(&self) -> usize {
        self.wanted.as_ref().map_or(self.n_tokens(), |wanted| wanted.iter().map(ExactSizeIterator::len).sum())
    }

    /// True if every token's output is wanted.
    pub(crate) fn is_whole(&self) -> bool {
        self.wanted.is_none()
    }

    /// Wanted tokens of a chunk.
    pub(crate) fn wanted(&self, chunk: usize) -> Range<usize> {
        match &self.wanted {
            Some(wanted) => wanted[chunk].clone(),
            None => self.cuts[chunk]..self.cuts[chunk + 1],
        }
    }

    /// First row of every chunk among the wanted rows, and their number.
    pub(crate) fn wanted_cuts(&self) -> Vec<usize> {
        let mut cuts = vec![0];
        for chunk in 0..self.cuts.len() - 1 {
            cuts.push(cuts[chunk] + self.wanted(chunk).len());
        }
        cuts
    }

    /// The wanted rows of `[n_tokens, n_cols]`.
    pub(crate) fn select<'x, T: Copy>(&self, x: &'x [T], n_cols: usize) -> Cow<'x, [T]> {
        match &self.wanted {
            None => Cow::Borrowed(x),
            Some(wanted) => {
                let mut rows = Vec::with_capacity(self.n_wanted() * n_cols);
                for tokens in wanted {
                    rows.extend_from_slice(&x[tokens.start * n_cols..tokens.end * n_cols]);
                }
                Cow::Owned(rows)
            }
        }
    }

    /// Moves the wanted rows to the front and lends them.
    pub(crate) fn gather<'x>(&self, x: &'x mut [f32], n_cols: usize) -> &'x mut [f32] {
        let mut n = 0;
        for tokens in self.wanted.iter().flatten() {
            x.copy_within(tokens.start * n_cols..tokens.end * n_cols, n * n_cols);
            n += tokens.len();
        }
        &mut x[..self.n_wanted() * n_cols]
    }
}

/// The rotations of a plan, tabulated.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    short: Vec<RopeTable>,
    /// Limit of the short table, and the long one.
    long: Vec<Option<(usize, RopeTable)>>,
}

impl RopeTables {
    pub(crate) fn new(
        plan: &GraphPlan,
        weights: Weights<'_>,
        n_positions: usize,
    ) -> Result<Self, EngineError> {
        let mut tables = Self::default();
        for rope in &plan.ropes {
            let factors = weights.optional(rope.factors.as_ref())?;
            tables.short.push(rope.table(n_positions, factors.as_deref()));
            tables.long.push(match &rope.long_factors {
                Some((limit, vector)) if n_positions > *limit => {
                    let factors = weights.vector(vector)?;
                    Some((*limit, rope.table(n_positions, Some(&factors))))
                }
                _ => None,
            });
        }
        Ok(tables)
    }

    /// The table of rotation `rope` for a chunk of this length.
    pub(crate) fn table(&self, rope: usize, chunk_len: usize) -> &RopeTable {
        match &self.long[rope] {
            Some((limit, long)) if chunk_len > *limit => long,
            _ => &self.short[rope],
        }
    }
}

/// What the operations of a run share.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a GraphPlan,
    pub(crate) weights: Weights<'a>,
    pub(crate) workers: &'a Workers,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) observer: Option<&'a dyn Observer>,
    pub(crate) ropes: RopeTables,
    pub(crate) clock: &'a Clock,
    pub(crate) layer: AtomicUsize,
    /// Buffers that were given back: their pages are already there.
    pub(crate) buffers: Mutex<Vec<Vec<f32>>>,
}

impl Run<'_> {
    /// A buffer of `len` values, whatever they are.
    pub(crate) fn take(&self, len: usize) -> Vec<f32> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..buffers.len()).filter(|&at| buffers[at].capacity() >= len);
        let best = fitting.min_by_key(|&at| buffers[at].capacity());
        let mut buffer = match best {
            Some(at) => buffers.swap_remove(at),
            // None is large enough: the largest is replaced, so that the number of buffers stays what is in use.
            None => {
                let largest = (0..buffers.len()).max_by_key(|&at| buffers[at].capacity());
                drop(largest.map(|at| buffers.swap_remove(at)));
                Vec::with_capacity(len)
            }
        };
        buffer.resize(len, 0.0);
        buffer
    }

    pub(crate) fn give<const N: usize>(&self, buffers: [Vec<f32>; N]) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }

    pub(crate) fn slot(&self, name: &str, x: &[f32], n_cols: usize) {
        if let Some(observer) = self.observer {
            observer.slot(self.layer.load(Ordering::Relaxed), name, x, n_cols);
        }
    }

    /// Runs one layer over a batch; `x` is the residual stream, `[n_tokens, n_embd]`. If not all rows are wanted,
    /// those that are come to its front.
    pub(crate) fn layer(&self, layer: &Layer, batch: &Batch, x: &mut [f32]) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        // With normed wiring the stream goes on from the scaled normed inputs, and the branches are added as they are.
        let is_normed = layer.wiring == Wiring::Normed;
        let rho = if is_normed { 1.0 } else { layer.residual_scale };
        let load = |norm: &Option<Norm>| norm.as_ref().map(|norm| self.weights.norm(norm)).transpose();
        let (pre_mixer, post_mixer) = (load(&layer.pre_mixer)?, load(&layer.post_mixer)?);
        let (pre_ffn, post_ffn) = (load(&layer.pre_ffn)?, load(&layer.post_ffn)?);
        let mut mixer_input = self.take(x.len());
        match &pre_mixer {
            Some(norm) => self.norm_rows(norm, x, &mut mixer_input, n_embd),
            None => mixer_input.copy_from_slice(x),
        }
        self.slot("mixer_input", &mixer_input, n_embd);
        let x = batch.gather(x, n_embd);
        let mut branch = self.take(x.len());
        let mut ffn_input = self.take(x.len());
        // With parallel wiring the feed-forward reads the layer's input too.
        if layer.wiring == Wiring::Parallel {
            match &pre_ffn {
                Some(norm) => self.norm_rows(norm, x, &mut ffn_input, n_embd),
                None => ffn_input.copy_from_slice(&batch.select(&mixer_input, n_embd)),
            }
        }
        if self.mixer(layer, batch, &mixer_input, &mut branch)? {
            self.slot("mixer", &branch, n_embd);
            if is_normed {
                self.restart(x, &batch.select(&mixer_input, n_embd), layer.residual_scale);
            }
            self.add_rows(x, &mut branch, post_mixer.as_ref(), rho, n_embd);
        }
        if layer.wiring != Wiring::Parallel {
            match &pre_ffn {
                Some(norm) => self.norm_rows(norm, x, &mut ffn_input, n_embd),
                None => ffn_input.copy_from_slice(x),
            }
            self.slot("ffn_input", &ffn_input, n_embd);
            if is_normed {
                self.restart(x, &ffn_input, layer.residual_scale);
            }
        }
        self.give([mixer_input]);
        self.ffn(&layer.ffn, &ffn_input, batch.n_wanted(), &mut branch)?;
        self.slot("ffn", &branch, n_embd);
        self.add_rows(x, &mut branch, post_ffn.as_ref(), rho, n_embd);
        self.slot("output", x, n_embd);
        self.give([ffn_input, branch]);
        Ok(())
    }

    /// The layer's mixer, of all rows of `x` into the wanted rows of `out`; false if it has none.
    fn mixer(&self, layer: &Layer, batch: &Batch, x: &[f32], out: &mut [f32]) -> Result<bool, EngineError> {
        match &layer.mixer {
            Mixer::None => return Ok(false),
            Mixer::Linear(matrix) => {
                let rows = batch.select(x, matrix.n_cols);
                self.products(&rows, batch.n_wanted(), vec![Product::plain(matrix, out)])?;
            }
            Mixer::Attention(attention) => self.attention(attention, batch, x, out)?,
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_rows_are_cut_at_their_chunk_and_come_to_the_front() {
        let batch = Batch::new([3, 2]);
        assert_eq!((batch.n_wanted(), batch.wanted_cuts()), (5, vec![0, 3, 5]));
        let batch = batch.narrowed([1..3, 1..9]);
        assert_eq!((batch.n_wanted(), batch.wanted_cuts()), (3, vec![0, 2, 3]));
        assert_eq!((batch.wanted(0), batch.wanted(1)), (1..3, 4..5));
        let mut x: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let expected = [2.0, 3.0, 4.0, 5.0, 8.0, 9.0];
        assert_eq!(*batch.select(&x, 2), expected);
        assert_eq!(*batch.gather(&mut x, 2), expected);
    }
}
