//! What a run carries from layer to layer besides the residual stream.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use crate::core::sync::Unpoisoned;

/// Keys and values of all tokens of a batch.
type KeysAndValues = (Vec<f32>, Vec<f32>);

/// Keys and values that later layers use, and what the stream began with.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By layer and first token of the batch.
    kept: Mutex<HashMap<(usize, usize), KeysAndValues>>,
    /// Streams before layers, in their order, by first token of the batch.
    streams: Mutex<HashMap<usize, Vec<Vec<f32>>>>,
    /// Tokens of the group, if layers look them up.
    pub(crate) tokens: Vec<u32>,
    /// Slots of the group's tokens, where tokens turn adapters on.
    pub(crate) slots: Vec<u32>,
    /// The stream before the first layer, if later layers read it.
    pub(crate) start: Vec<f32>,
    /// The state beside the stream, if stacks run in turn.
    held: Mutex<Vec<f32>>,
}

impl Carried {
    /// Keeps keys and values of a layer and batch.
    pub(crate) fn keep(&self, layer: usize, start: usize, k: &[f32], v: &[f32]) {
        let mut kept = self.kept.lock().unpoisoned();
        kept.insert((layer, start), (k.to_vec(), v.to_vec()));
    }

    /// Keeps the stream of a batch for later layers.
    pub(crate) fn keep_stream(&self, start: usize, x: &[f32]) {
        let mut streams = self.streams.lock().unpoisoned();
        streams.entry(start).or_default().push(x.to_vec());
    }

    /// Lends the streams of a batch that were kept.
    pub(crate) fn with_streams<T>(&self, start: usize, task: impl FnOnce(&[Vec<f32>]) -> T) -> T {
        let streams = self.streams.lock().unpoisoned();
        task(streams.get(&start).map_or(&[], Vec::as_slice))
    }

    /// Holds the same row for all tokens.
    pub(crate) fn hold(&mut self, row: &[f32], n_tokens: usize) {
        self.held = Mutex::new(row.repeat(n_tokens));
    }

    /// Hands out a part of the held state.
    pub(crate) fn with_held(&self, part: Range<usize>, task: impl FnOnce(&mut [f32])) {
        let mut held = self.held.lock().unpoisoned();
        task(&mut held[part]);
    }

    /// Copies what an earlier layer has kept.
    pub(crate) fn recall(&self, layer: usize, start: usize, k: &mut [f32], v: &mut [f32]) {
        let kept = self.kept.lock().unpoisoned();
        let (keys, values) = kept.get(&(layer, start)).expect("the plan says which layers keep");
        k.copy_from_slice(keys);
        v.copy_from_slice(values);
    }
}
