//! Memory that the moments of a model take, computed before it runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::CalibrateError;
use crate::collector::Wanted;
use gguf_core::{TensorMeta, TensorSource};
use gguf_engine::{Dense, EngineOptions, Ffn, Gram, GramSum, GraphPlan, KvSource, LayerPlan, Mixer, Moe};

/// Maximum bytes that a run takes in addition to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Smallest sufficient memory budget in bytes, in addition to the weights: with hidden states in files.
    #[serde(rename = "needed_bytes")]
    pub least_bytes: u64,
    /// Bytes of memory with everything in memory, in addition to the weights.
    #[serde(rename = "in_memory_bytes")]
    pub all_bytes: u64,
    /// Bytes of the files of hidden states.
    #[serde(skip)]
    pub spilled_bytes: u64,
}

impl Needs {
    /// Needs of a run without hidden states.
    pub(super) fn in_memory(n_bytes: u64) -> Self {
        Self { least_bytes: n_bytes, all_bytes: n_bytes, spilled_bytes: 0 }
    }

    /// Adds `n_bytes` of memory to these needs.
    pub(super) fn plus(self, n_bytes: u64) -> Self {
        Self {
            least_bytes: self.least_bytes.saturating_add(n_bytes),
            all_bytes: self.all_bytes.saturating_add(n_bytes),
            spilled_bytes: self.spilled_bytes,
        }
    }

    /// Returns true if hidden states have to go to files.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`] if the budget is too small even then.
    pub(super) fn spills(&self, options: &EngineOptions, tokens: usize) -> Result<bool, CalibrateError> {
        let (needed_bytes, budget_bytes) = (self.least_bytes, options.memory_bytes);
        if needed_bytes > budget_bytes {
            return Err(CalibrateError::Memory { budget_bytes, needed_bytes, tokens });
        }
        Ok(self.all_bytes > options.elastic_bytes())
    }
}

/// Maximum bytes that the moments of one kind of text take: those of a layer, and of layers whose tensors are used
/// again later.
///
/// Matrices that share an input are counted once where the plan shows it: queries, keys and values, gate and up
/// projections. Inputs that other mixers share are counted separately.
pub(super) fn moment_bytes(plan: &GraphPlan, source: &dyn TensorSource, wants: Wanted<'_>) -> u64 {
    let tensors = source.tensors();
    let mut spans: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for (at, layer) in plan.all_layers().enumerate() {
        shared.extend(sharing(layer));
        for &tensor in &layer.tensors {
            spans.entry(tensor).or_insert((at, at)).1 = at;
        }
    }
    let bytes = |tensor: usize| {
        let meta = tensors.get(tensor).filter(|meta| !shared.contains(&tensor) && wants(meta));
        meta.map_or(0, stack_bytes)
    };
    let at_layer = |at: usize| {
        let alive = spans.iter().filter(|(_, (first, last))| (*first..=*last).contains(&at));
        alive.fold(0u64, |sum, (&tensor, _)| sum.saturating_add(bytes(tensor)))
    };
    let layers = (0..plan.all_layers().count()).map(at_layer).max().unwrap_or(0);
    // Moments outside of layers stay until the end; those of the head are collected after all layers.
    let is_outside = |tensor: &usize| !spans.contains_key(tensor) && *tensor != plan.head.tensor;
    let outside = (0..tensors.len()).filter(is_outside);
    let outside = outside.fold(0u64, |sum, tensor| sum.saturating_add(bytes(tensor)));
    // Rows are kept until it is known which matrices have met them.
    let widest = spans.keys().filter_map(|&tensor| tensors.get(tensor)).filter(|meta| wants(meta));
    let waiting = widest.map(matrix_bytes).max().unwrap_or(0);
    layers.max(sum_bytes(plan.head.n_cols)).saturating_add(outside).saturating_add(waiting)
}

/// Bytes of the sums of an input while rows are added, and of the rounded sums. Both may exist at once, since memory
/// that is freed in pieces is not returned to the system immediately.
fn sum_bytes(n_cols: usize) -> u64 {
    GramSum::bytes(n_cols).saturating_add(Gram::bytes(n_cols))
}

fn matrix_bytes(meta: &TensorMeta) -> u64 {
    match meta.shape.rank() {
        0 | 1 => 0,
        _ => usize::try_from(meta.shape.n_cols()).map_or(u64::MAX, sum_bytes),
    }
}

fn stack_bytes(meta: &TensorMeta) -> u64 {
    let n = match meta.shape.dims() {
        [n, _, _] => *n,
        _ => 1,
    };
    matrix_bytes(meta).saturating_mul(n)
}

/// Tensors of a layer that share their input with another of its tensors.
fn sharing(layer: &LayerPlan) -> Vec<usize> {
    let mut found = of_mixer(&layer.mixer);
    match &layer.ffn {
        Ffn::Dense(dense) => found.extend(of_dense(dense)),
        Ffn::Switched(switched) => found.extend(of_dense(&switched.dense)),
        Ffn::Moe(moe) => found.extend(of_moe(moe)),
        Ffn::Both(both) => found.extend(of_dense(&both.dense).into_iter().chain(of_moe(&both.moe))),
        Ffn::None | Ffn::ChannelMix(_) => {}
    }
    found
}

fn of_mixer(mixer: &Mixer) -> Vec<usize> {
    match mixer {
        Mixer::Attention(a) if !matches!(a.kv, KvSource::From(_)) => {
            [a.k.tensor, a.v.tensor].into_iter().filter(|&tensor| tensor != a.q.tensor).collect()
        }
        Mixer::Twin(twin) => [of_mixer(&twin.first), of_mixer(&twin.second)].concat(),
        _ => Vec::new(),
    }
}

fn of_moe(moe: &Moe) -> Vec<usize> {
    moe.experts.first().into_iter().chain(&moe.shared).filter_map(of_dense).collect()
}

/// Gate projection, which reads the same input as the up projection.
fn of_dense(dense: &Dense) -> Option<usize> {
    dense.act.gate().map(|gate| gate.tensor).filter(|&tensor| tensor != dense.up.tensor)
}
