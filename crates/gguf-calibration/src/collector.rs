//! Observer of a run that hands out the moments of each layer as soon as no more text will add to them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};

use crate::groups::{InputRows, MatrixKey, SumGroups};
use crate::{CalibrateError, LayerMoments, MatrixName, MomentSums};
use gguf_core::sync::Unpoisoned;
use gguf_core::{TensorMeta, TensorSource};
use gguf_engine::{Engine, Matrix, Observer};
use gguf_verification::SumCollector;

/// Predicate that selects the tensors whose input moments are collected.
pub type Wanted<'a> = &'a (dyn Fn(&TensorMeta) -> bool + Sync);

/// Callback that receives the moments of a layer.
pub(super) type Consumer<'a, E> = &'a mut (dyn FnMut(LayerMoments) -> Result<(), E> + Send);

/// Order in which the text is run.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// Number of kinds of text.
    pub(super) n_kinds: usize,
    /// Kind of each batch, in order.
    pub(super) kinds: Vec<usize>,
    /// Number of rows of each batch that go through the layers.
    pub(super) rows: Vec<usize>,
}

struct CollectorState<'a, E> {
    kinds: Vec<SumGroups>,
    /// Kind of the batch that goes through a layer; `None` before and after all layers, where all tokens come at once.
    kind: Option<usize>,
    consumer: Consumer<'a, E>,
    failed: Option<E>,
}

/// Collects moments and importance sums, by kind of text.
pub(super) struct MomentCollector<'a, E> {
    state: Mutex<CollectorState<'a, E>>,
    sums: Vec<SumCollector>,
    schedule: Schedule,
    /// Last layer that uses each tensor.
    last: BTreeMap<usize, usize>,
    wants: Wanted<'a>,
    /// Engine whose threads also compute the sums: these are as much work as products with weights.
    engine: &'a Engine<'a>,
}

impl<'a, E: From<CalibrateError> + Send> MomentCollector<'a, E> {
    pub(super) fn new(
        engine: &'a Engine<'a>,
        schedule: Schedule,
        wants: Wanted<'a>,
        consumer: Consumer<'a, E>,
    ) -> Self {
        let level = engine.options().level;
        let n_kinds = schedule.n_kinds;
        let layers = engine.plan().all_layers().enumerate();
        // A later layer overwrites an earlier one: stacks that run in turn use the same layer several times.
        let last = layers.flat_map(|(at, layer)| layer.tensors.iter().map(move |&tensor| (tensor, at)));
        let state = CollectorState {
            kinds: (0..n_kinds).map(|_| SumGroups::default()).collect(),
            kind: None,
            consumer,
            failed: None,
        };
        Self {
            state: Mutex::new(state),
            sums: (0..n_kinds).map(|_| SumCollector::new(level)).collect(),
            last: last.collect(),
            schedule,
            wants,
            engine,
        }
    }

    fn state(&self) -> MutexGuard<'_, CollectorState<'a, E>> {
        self.state.lock().unpoisoned()
    }

    /// Adds rows to the sums of one kind; `batches` holds the number of rows of each batch.
    fn add(&self, groups: &mut SumGroups, kind: usize, matrices: &[&Matrix], x: &[f32], batches: &[usize]) {
        let tensors = self.engine.source.tensors();
        let is_wanted = |matrix: &&&Matrix| tensors.get(matrix.tensor).is_some_and(|meta| (self.wants)(meta));
        let keys: Vec<MatrixKey> = matrices.iter().filter(is_wanted).map(|m| MatrixKey::of(m)).collect();
        let n_cols = matrices.first().map_or(0, |matrix| matrix.n_cols);
        self.engine.install(|| {
            for matrix in matrices {
                self.sums[kind].input(self.engine.source, matrix, x);
            }
            if !keys.is_empty() && n_cols > 0 {
                groups.add(&keys, InputRows { x, n_cols, batches });
            }
        });
    }

    /// Adds rows of all kinds, concatenated in the order of the schedule.
    pub(super) fn add_all(&self, matrices: &[&Matrix], x: &[f32]) {
        let n_cols = matrices.first().map_or(0, |matrix| matrix.n_cols);
        // Rows that were computed only for some tokens cannot be assigned to a kind.
        if Some(x.len()) != self.schedule.rows.iter().sum::<usize>().checked_mul(n_cols) {
            return;
        }
        let (mut rest, mut state) = (x, self.state());
        let mut batches = &self.schedule.rows[..];
        for same in self.schedule.kinds.chunk_by(PartialEq::eq) {
            let (own_batches, later_batches) = batches.split_at(same.len());
            let (own, later) = rest.split_at(own_batches.iter().sum::<usize>() * n_cols);
            (batches, rest) = (later_batches, later);
            if let (Some(&kind), false) = (same.first(), own.is_empty()) {
                self.add(&mut state.kinds[kind], kind, matrices, own, own_batches);
            }
        }
    }

    /// Hands out the moments of all matrices that are done.
    fn hand_out(
        &self,
        state: &mut CollectorState<'a, E>,
        layer: Option<usize>,
        is_done: impl Fn(MatrixKey) -> bool,
    ) -> Result<(), E> {
        let mut kinds: Vec<Vec<(Vec<MatrixName>, MomentSums)>> = Vec::with_capacity(state.kinds.len());
        for groups in &mut state.kinds {
            groups.end_batch();
            let taken = groups.take(&is_done).into_iter();
            kinds.push(taken.map(|(keys, moments)| (self.names(keys), moments)).collect());
        }
        let broken = |(_, moments): &&(Vec<MatrixName>, MomentSums)| !moments.is_finite();
        if let Some((names, _)) = kinds.iter().flatten().find(broken) {
            let tensor = names.first().map(|name| name.tensor.clone()).unwrap_or_default();
            return Err(CalibrateError::NonFinite { tensor }.into());
        }
        if kinds.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let round = |groups: Vec<(Vec<MatrixName>, MomentSums)>| {
            groups.into_iter().map(|(names, sums)| (names, sums.round())).collect()
        };
        (state.consumer)(LayerMoments::of(layer, kinds.into_iter().map(round).collect()))
    }

    fn names(&self, keys: Vec<MatrixKey>) -> Vec<MatrixName> {
        let tensors = self.engine.source.tensors();
        let name = |key: MatrixKey| MatrixName {
            tensor: tensors.get(key.tensor).map(|meta| meta.name.clone()).unwrap_or_default(),
            expert: key.expert,
        };
        keys.into_iter().map(name).collect()
    }

    /// Adds the final states, the head's inputs. As in llama-imatrix, the head has no importance sums.
    pub(super) fn add_head(&self, head: &Matrix, states: &[f32]) {
        if self.engine.source.tensors().get(head.tensor).is_some_and(|meta| (self.wants)(meta)) {
            self.add_all(&[head], states);
        }
    }

    /// Error of the consumer, if it stopped the run.
    pub(super) fn failure(&self) -> Option<E> {
        self.state().failed.take()
    }

    /// Hands out the moments that belong to no layer, and returns the importance sums of each kind.
    pub(super) fn finish(self) -> Result<Vec<SumCollector>, E> {
        let mut state = self.state();
        self.hand_out(&mut state, None, |_| true)?;
        drop(state);
        Ok(self.sums)
    }
}

impl<E: From<CalibrateError> + Send> Observer for MomentCollector<'_, E> {
    fn inputs(&self, _: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        let mut state = self.state();
        match state.kind {
            Some(kind) => {
                let n_cols = matrices.first().map_or(0, |matrix| matrix.n_cols);
                let batch = [x.len() / n_cols.max(1)];
                self.add(&mut state.kinds[kind], kind, matrices, x, &batch);
            }
            None => {
                drop(state);
                self.add_all(matrices, x);
            }
        }
    }

    fn enter(&self, _: usize, batch: usize) {
        let mut state = self.state();
        state.kinds.iter_mut().for_each(SumGroups::end_batch);
        state.kind = self.schedule.kinds.get(batch).copied();
    }

    fn leave(&self, layer: usize) -> ControlFlow<()> {
        let mut state = self.state();
        state.kind = None;
        let is_done = |key: MatrixKey| self.last.get(&key.tensor).is_some_and(|&last| last <= layer);
        match self.hand_out(&mut state, Some(layer), is_done) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                state.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}
