//! One run: the layer as the plan describes it, over a batch of chunks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::plan::{GraphPlan, Layer, Matrix, Mixer, Norm, Wiring};
use crate::engine::product::Product;
use crate::engine::rope::RopeTable;
use crate::engine::weights::Weights;
use crate::engine::workers::Workers;

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
pub(super) struct Place {
    /// Position in its chunk.
    pub(super) position: u32,
    /// Position behind the prefix, for models that have one.
    pub(super) block: u32,
    /// Tokens of its chunk.
    pub(super) chunk_len: u32,
}

/// Whole chunks that go through a layer together.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    /// First token of every chunk, and the number of tokens.
    pub(super) cuts: Vec<usize>,
    /// One place per token.
    pub(super) places: Vec<Place>,
    /// Tokens of every chunk that see one another; empty without prefixes.
    pub(super) prefixes: Vec<usize>,
}

impl Batch {
    pub(super) fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut batch = Self { cuts: vec![0], ..Self::default() };
        for len in lengths {
            let chunk_len = len as u32;
            batch.places.extend((0..chunk_len).map(|position| Place { position, block: 0, chunk_len }));
            batch.cuts.push(batch.places.len());
        }
        batch
    }

    /// Tokens of a chunk that see one another.
    pub(super) fn prefix(&self, chunk: usize) -> usize {
        self.prefixes.get(chunk).copied().unwrap_or(0)
    }

    pub(super) fn n_tokens(&self) -> usize {
        self.places.len()
    }
}

/// The rotations of a plan, tabulated.
#[derive(Debug, Default)]
pub(super) struct RopeTables {
    short: Vec<RopeTable>,
    /// Limit of the short table, and the long one.
    long: Vec<Option<(usize, RopeTable)>>,
}

impl RopeTables {
    pub(super) fn new(
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
    pub(super) fn table(&self, rope: usize, chunk_len: usize) -> &RopeTable {
        match &self.long[rope] {
            Some((limit, long)) if chunk_len > *limit => long,
            _ => &self.short[rope],
        }
    }
}

/// What the operations of a run share.
pub(super) struct Run<'a> {
    pub(super) plan: &'a GraphPlan,
    pub(super) weights: Weights<'a>,
    pub(super) workers: &'a Workers,
    pub(super) progress: &'a dyn Progress,
    pub(super) observer: Option<&'a dyn Observer>,
    pub(super) ropes: RopeTables,
    pub(super) layer: AtomicUsize,
    /// Buffers that were given back: their pages are already there.
    pub(super) buffers: Mutex<Vec<Vec<f32>>>,
}

impl Run<'_> {
    /// A buffer of `len` values, whatever they are.
    pub(super) fn take(&self, len: usize) -> Vec<f32> {
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

    pub(super) fn give<const N: usize>(&self, buffers: [Vec<f32>; N]) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }

    pub(super) fn slot(&self, name: &str, x: &[f32], n_cols: usize) {
        if let Some(observer) = self.observer {
            observer.slot(self.layer.load(Ordering::Relaxed), name, x, n_cols);
        }
    }

    /// Runs one layer over a batch; `x` is the residual stream, `[n_tokens, n_embd]`.
    pub(super) fn layer(&self, layer: &Layer, batch: &Batch, x: &mut [f32]) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        let rho = layer.residual_scale;
        let load = |norm: &Option<Norm>| norm.as_ref().map(|norm| self.weights.norm(norm)).transpose();
        let (pre_mixer, post_mixer) = (load(&layer.pre_mixer)?, load(&layer.post_mixer)?);
        let (pre_ffn, post_ffn) = (load(&layer.pre_ffn)?, load(&layer.post_ffn)?);
        let mut normed = self.take(x.len());
        match &pre_mixer {
            Some(norm) => self.norm_rows(norm, x, &mut normed, n_embd),
            None => normed.copy_from_slice(x),
        }
        self.slot("mixer_input", &normed, n_embd);
        let mut branch = self.take(x.len());
        match layer.wiring {
            Wiring::Serial => {
                if self.mixer(layer, batch, &normed, &mut branch)? {
                    self.slot("mixer", &branch, n_embd);
                    self.add_rows(x, &mut branch, post_mixer.as_ref(), rho, n_embd);
                }
                match &pre_ffn {
                    Some(norm) => self.norm_rows(norm, x, &mut normed, n_embd),
                    None => normed.copy_from_slice(x),
                }
                self.slot("ffn_input", &normed, n_embd);
            }
            Wiring::Normed => {
                // The stream goes on from the normed input, not from what was normed.
                if self.mixer(layer, batch, &normed, &mut branch)? {
                    self.slot("mixer", &branch, n_embd);
                    self.restart(x, &normed, rho);
                    self.add_rows(x, &mut branch, post_mixer.as_ref(), 1.0, n_embd);
                }
                match &pre_ffn {
                    Some(norm) => self.norm_rows(norm, x, &mut normed, n_embd),
                    None => normed.copy_from_slice(x),
                }
                self.slot("ffn_input", &normed, n_embd);
                self.restart(x, &normed, rho);
            }
            Wiring::Parallel => {
                // The feed-forward reads the layer's input too: it is normed before the mixer's output is added.
                let mut ffn_input = self.take(x.len());
                match &pre_ffn {
                    Some(norm) => self.norm_rows(norm, x, &mut ffn_input, n_embd),
                    None => ffn_input.copy_from_slice(&normed),
                }
                if self.mixer(layer, batch, &normed, &mut branch)? {
                    self.slot("mixer", &branch, n_embd);
                    self.add_rows(x, &mut branch, post_mixer.as_ref(), rho, n_embd);
                }
                self.give([std::mem::replace(&mut normed, ffn_input)]);
            }
        }
        self.ffn(&layer.ffn, batch, &normed, &mut branch)?;
        self.slot("ffn", &branch, n_embd);
        let rho = if layer.wiring == Wiring::Normed { 1.0 } else { rho };
        self.add_rows(x, &mut branch, post_ffn.as_ref(), rho, n_embd);
        self.slot("output", x, n_embd);
        self.give([normed, branch]);
        Ok(())
    }

    /// The layer's mixer; false if it has none.
    fn mixer(&self, layer: &Layer, batch: &Batch, x: &[f32], out: &mut [f32]) -> Result<bool, EngineError> {
        match &layer.mixer {
            Mixer::None => return Ok(false),
            Mixer::Linear(matrix) => self.products(x, batch.n_tokens(), vec![Product::plain(matrix, out)])?,
            Mixer::Attention(attention) => self.attention(attention, batch, x, out)?,
        }
        Ok(true)
    }
}
