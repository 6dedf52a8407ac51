//! State that a run carries from layer to layer in addition to the residual stream.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use gguf_core::sync::Unpoisoned;

/// Keys and values of all tokens of a batch.
type KeysAndValues = (Vec<f32>, Vec<f32>);

/// Keys, values, streams and tokens that later layers read.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By layer and first token of the batch.
    kept: Mutex<HashMap<(usize, usize), KeysAndValues>>,
    /// Streams before layers, in the order of the layers, by first token of the batch.
    streams: Mutex<HashMap<usize, Vec<Vec<f32>>>>,
    /// Token ids of the group, if layers look them up.
    pub(crate) tokens: Vec<u32>,
    /// Adapter slots of the group's tokens, if tokens switch adapters on.
    pub(crate) slots: Vec<u32>,
    /// Stream before the first layer, if later layers read it.
    pub(crate) start: Vec<f32>,
    /// Second state in addition to the stream, if two stacks run in turn.
    held: Mutex<Vec<f32>>,
}

impl Carried {
    /// Returns the number of values that are kept; token ids and slots count as values.
    pub(crate) fn n_floats(&self) -> usize {
        let kept = self.kept.lock().unpoisoned();
        let kept: usize = kept.values().map(|(keys, values)| keys.len() + values.len()).sum();
        let streams = self.streams.lock().unpoisoned();
        let streams: usize = streams.values().flatten().map(Vec::len).sum();
        let held = self.held.lock().unpoisoned().len();
        kept + streams + held + self.tokens.len() + self.slots.len() + self.start.len()
    }

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

    /// Calls `task` with the kept streams of a batch.
    pub(crate) fn with_streams<T>(&self, start: usize, task: impl FnOnce(&[Vec<f32>]) -> T) -> T {
        let streams = self.streams.lock().unpoisoned();
        task(streams.get(&start).map_or(&[], Vec::as_slice))
    }

    /// Sets the held state to the same row for all tokens.
    pub(crate) fn hold(&mut self, row: &[f32], n_tokens: usize) {
        self.held = Mutex::new(row.repeat(n_tokens));
    }

    /// Calls `task` with a part of the held state.
    pub(crate) fn with_held(&self, part: Range<usize>, task: impl FnOnce(&mut [f32])) {
        let mut held = self.held.lock().unpoisoned();
        task(&mut held[part]);
    }

    /// Copies the keys and values that an earlier layer kept.
    pub(crate) fn recall(&self, layer: usize, start: usize, k: &mut [f32], v: &mut [f32]) {
        let kept = self.kept.lock().unpoisoned();
        let (keys, values) = kept.get(&(layer, start)).expect("the plan says which layers keep");
        k.copy_from_slice(keys);
        v.copy_from_slice(values);
    }
}
