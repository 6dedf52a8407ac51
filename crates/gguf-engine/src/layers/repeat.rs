//! Repetition of layers: some models run their stacks several times.

use crate::Result;
use crate::layers::layer::LayerPlan;
use crate::ops::Mixer;
use crate::ops::attention::KvSource;
use crate::ops::cycles::{Cycles, StackEntry, cycles, has_cycles};
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::Extra;

/// Returns the layers in the order in which they run: some models run their stack several times, with a norm in
/// between.
pub(crate) fn run_layers(b: &mut Resolver<'_>, mut layers: Vec<LayerPlan>) -> Result<Vec<LayerPlan>> {
    let sources: Vec<usize> = layers
        .iter()
        .filter_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => match a.kv {
                KvSource::From(source) => Some(source),
                KvSource::Own | KvSource::Kept => None,
            },
            _ => None,
        })
        .collect();
    for source in sources {
        if let Some(Mixer::Attention(a)) = layers.get_mut(source).map(|layer| &mut layer.mixer) {
            a.kv = KvSource::Kept;
        }
    }
    if has_cycles(b) {
        return cycled(b, &layers);
    }
    if !b.features.extras.contains(&Extra::Loops) {
        return Ok(layers);
    }
    let n_loops = b.keys.need_count("num_loops")?;
    if n_loops.saturating_mul(layers.len()) > 1 << 16 {
        let expected = "fewer than 65537 layers in all";
        return Err(b.keys.unknown("num_loops", expected, &n_loops.to_string()));
    }
    let mut again = layers.clone();
    if !b.keys.flag("skip_loop_final_norm")?.unwrap_or(false) {
        let norm = b.features.norms.output.clone();
        let norm = if norm == "none" { None } else { Some(b.need_norm(&norm)?) };
        if let Some(last) = again.last_mut() {
            last.extras.exit_norm = norm;
        }
    }
    let repeated = (1..n_loops).flat_map(|_| again.clone());
    Ok(repeated.chain(layers).collect())
}

/// Returns the layers of two stacks that run in turn; the low stack comes first in the file. Each run ends with a norm,
/// the last one with the model's final norm.
pub(crate) fn cycled(b: &mut Resolver<'_>, layers: &[LayerPlan]) -> Result<Vec<LayerPlan>> {
    let Cycles { n_stack, high, low } = cycles(b)?;
    let norm = match b.features.norms.output.as_str() {
        "none" => None,
        name => Some(b.need_norm(name)?),
    };
    let (low_stack, high_stack) = layers.split_at(n_stack.min(layers.len()));
    let mut all = Vec::new();
    for cycle in 0..high {
        for turn in 0..=low {
            let stack = if turn < low { low_stack } else { high_stack };
            let first = all.len();
            all.extend_from_slice(stack);
            let is_again = turn > 0 && turn < low;
            if let Some(layer) = all.get_mut(first) {
                layer.extras.entry = Some(if is_again { StackEntry::Again } else { StackEntry::Turn });
            }
            let is_last = cycle + 1 == high && turn == low;
            if let Some(layer) = all.last_mut().filter(|_| !is_last) {
                layer.extras.exit_norm.clone_from(&norm);
            }
        }
    }
    Ok(all)
}
