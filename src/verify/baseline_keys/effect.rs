//! Effect of a key: the graph is built with it and without it, by the rules and defaults of the engine.

use crate::engine::GraphPlan;
use crate::gguf::{Array, Metadata, Value};
use crate::verify::baseline_keys::class::READ;

/// Function that builds the graph of some metadata over the model's tensors, if it can be built.
pub(super) type BuildGraph<'a> = dyn Fn(&Metadata) -> Option<GraphPlan> + 'a;

/// Effect of a key on the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphEffect {
    /// The graph differs.
    Differs,
    /// The graph is the same.
    None,
    /// The engine does not read the key, or there is no graph.
    Unknown,
}

/// Length from which an array cannot be a number of the architecture.
const LONG_ARRAY: usize = 1 << 16;

/// Metadata of both sides, with the graphs that they describe.
pub(super) struct Graphs<'a> {
    build: &'a BuildGraph<'a>,
    sides: [(Metadata, Option<GraphPlan>); 2],
}

impl<'a> Graphs<'a> {
    /// Builds the graphs of a model's keys and its baseline's, which must have the same architecture.
    pub(super) fn new(build: &'a BuildGraph<'a>, model: &Metadata, baseline: &Metadata) -> Self {
        let side = |metadata: &Metadata| {
            let light = without_vocabulary(metadata);
            let plan = build(&light).map(comparable);
            (light, plan)
        };
        Self { build, sides: [side(model), side(baseline)] }
    }

    /// Returns the effect of replacing a key's value on one side by the other side's. Both sides are tried: a scaling
    /// factor has no effect without the type of scaling that uses it.
    pub(super) fn effect(&self, name: &str, keys: [&str; 2]) -> GraphEffect {
        if !READ.contains(&name) {
            return GraphEffect::Unknown;
        }
        let mut effect = GraphEffect::Unknown;
        for (at, (metadata, plan)) in self.sides.iter().enumerate() {
            let other = self.sides.get(1 - at).and_then(|(other, _)| other.get(keys[1 - at]));
            let mut changed = metadata.clone();
            match other {
                Some(value) => changed.set(keys[at], value.clone()),
                None => {
                    changed.remove(keys[at]);
                }
            }
            let changed = (self.build)(&changed).map(comparable);
            match (plan, changed) {
                (Some(plan), Some(changed)) if *plan == changed => effect = GraphEffect::None,
                (None, None) => {}
                _ => return GraphEffect::Differs,
            }
        }
        effect
    }
}

/// Returns the metadata without the large arrays, which no graph reads.
fn without_vocabulary(metadata: &Metadata) -> Metadata {
    let mut light = Metadata::new();
    for (key, value) in metadata.iter() {
        let is_large = |array: &Array| matches!(array, Array::String(_)) || array.len() >= LONG_ARRAY;
        if !value.as_array().is_some_and(is_large) {
            light.set(key, value.clone());
        }
    }
    light
}

/// Removes the parts of a graph that do not change the outputs.
fn comparable(mut plan: GraphPlan) -> GraphPlan {
    plan.n_ctx_train = None;
    plan.warnings.clear();
    plan
}

/// Returns true for values that equal the usual default, for keys whose effect on the graph is unknown: none, false,
/// the usual base, a factor of one.
pub(super) fn is_neutral(name: &str, value: &Value) -> bool {
    let number = value.as_i128().map(|n| n as f64).or_else(|| value.as_f64());
    match (value, number) {
        (Value::Bool(flag), _) => *flag == (name == "attention.causal"),
        (_, Some(number)) => {
            let usual = match name {
                "rope.freq_base" => 10_000.0,
                "rope.scaling.yarn_beta_fast" => 32.0,
                "rope.scaling.factor"
                | "rope.scale_linear"
                | "rope.scaling.attn_factor"
                | "rope.scaling.yarn_attn_factor"
                | "rope.scaling.yarn_beta_slow"
                | "expert_weights_scale" => 1.0,
                _ => 0.0,
            };
            number == usual
        }
        (Value::String(text), None) => name == "rope.scaling.type" && text == b"none",
        _ => false,
    }
}
