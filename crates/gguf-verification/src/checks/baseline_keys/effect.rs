//! Effect of a key: the graph is built with it and without it, by the rules and defaults of the engine.

use std::collections::BTreeSet;

use gguf_engine::GraphPlan;
use gguf_format::{Array, Metadata, Value};

/// Function that builds the graph of some metadata over the model's tensors, if it can be built, and returns the names
/// of the architecture's keys that were read.
pub(super) type BuildGraph<'a> = dyn Fn(&Metadata) -> (Option<GraphPlan>, BTreeSet<String>) + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphEffect {
    /// The graph differs.
    Differs,
    /// The graph is the same.
    None,
    /// Neither graph reads the key, or there is no graph.
    Unknown,
}

/// Length from which an array cannot be a number of the architecture.
const LONG_ARRAY: usize = 1 << 16;

/// Metadata of one side, with the graph that they describe.
struct GraphSide {
    metadata: Metadata,
    plan: Option<GraphPlan>,
    /// Names of the architecture's keys that the graph was built from.
    read: BTreeSet<String>,
}

/// Both sides, the model first.
pub(super) struct Graphs<'a> {
    build: &'a BuildGraph<'a>,
    sides: [GraphSide; 2],
}

impl<'a> Graphs<'a> {
    /// Builds the graphs of a model's keys and its baseline's, which must have the same architecture.
    pub(super) fn new(build: &'a BuildGraph<'a>, model: &Metadata, baseline: &Metadata) -> Self {
        let side = |metadata: &Metadata| {
            let metadata = without_vocabulary(metadata);
            let (plan, read) = build(&metadata);
            GraphSide { metadata, plan: plan.map(comparable), read }
        };
        Self { build, sides: [side(model), side(baseline)] }
    }

    /// Returns the effect of replacing a key's value on one side by the other side's. Both sides are tried: a scaling
    /// factor has no effect without the type of scaling that uses it.
    pub(super) fn effect(&self, name: &str, keys: [&str; 2]) -> GraphEffect {
        let mut effect = GraphEffect::Unknown;
        for (at, side) in self.sides.iter().enumerate().filter(|(_, side)| side.read.contains(name)) {
            let other = self.sides.get(1 - at).and_then(|other| other.metadata.get(keys[1 - at]));
            let mut changed = side.metadata.clone();
            match other {
                Some(value) => changed.set(keys[at], value.clone()),
                None => {
                    changed.remove(keys[at]);
                }
            }
            let (changed, _) = (self.build)(&changed);
            match (&side.plan, changed.map(comparable)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_arch::graph::GraphFeatures;
    use gguf_core::{GgmlType, Shape, TensorMeta};

    /// Returns the keys and tensors of a Llama of one layer.
    fn llama() -> (Metadata, Vec<TensorMeta>) {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        for (name, value) in [
            ("block_count", 1u32),
            ("embedding_length", 8),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
        ] {
            metadata.set(format!("llama.{name}"), value);
        }
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        let tensor = |(name, dims): (&str, &[u64])| TensorMeta {
            name: format!("{name}.weight"),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let tensors: [(&str, &[u64]); 11] = [
            ("token_embd", &[5, 8]),
            ("output_norm", &[8]),
            ("blk.0.attn_norm", &[8]),
            ("blk.0.attn_q", &[8, 8]),
            ("blk.0.attn_k", &[8, 8]),
            ("blk.0.attn_v", &[8, 8]),
            ("blk.0.attn_output", &[8, 8]),
            ("blk.0.ffn_norm", &[8]),
            ("blk.0.ffn_gate", &[16, 8]),
            ("blk.0.ffn_up", &[16, 8]),
            ("blk.0.ffn_down", &[8, 16]),
        ];
        (metadata, tensors.map(tensor).to_vec())
    }

    #[test]
    fn the_keys_that_a_graph_reads_are_judged_by_it() {
        let features = GraphFeatures::of("llama").unwrap();
        let (model, tensors) = llama();
        let build = |metadata: &Metadata| GraphPlan::with_read_keys(&features, metadata, &tensors);
        let (plan, read) = build(&model);
        assert!(plan.is_some());
        for (name, is_read) in [
            ("block_count", true),
            // Read although the file does not have it.
            ("rope.freq_base", true),
            // Read only with YaRN.
            ("rope.scaling.yarn_beta_fast", false),
            // Read only by other architectures, and by none.
            ("ssm.state_size", false),
            ("no_such_key", false),
        ] {
            assert_eq!(read.contains(name), is_read, "{name}");
        }
        for (name, value, expected) in [
            ("rope.freq_base", Value::F32(5e5), GraphEffect::Differs),
            ("rope.freq_base", Value::F32(1e4), GraphEffect::None),
            ("attention.head_count_kv", Value::U32(1), GraphEffect::Differs),
            ("attention.head_count_kv", Value::U32(2), GraphEffect::None),
            ("ssm.state_size", Value::U32(2), GraphEffect::Unknown),
            ("no_such_key", Value::U32(2), GraphEffect::Unknown),
        ] {
            let key = format!("llama.{name}");
            let mut baseline = model.clone();
            baseline.set(key.as_str(), value);
            let graphs = Graphs::new(&build, &model, &baseline);
            assert_eq!(graphs.effect(name, [&key; 2]), expected, "{name}");
        }
        // The factor of a scaling has an effect only with the type that uses it.
        let mut scaled = model.clone();
        scaled.set("llama.context_length", 4096u32);
        scaled.set("llama.rope.scaling.type", "yarn");
        scaled.set("llama.rope.scaling.factor", 4f32);
        scaled.set("llama.rope.scaling.yarn_beta_fast", 0.001f32);
        let graphs = Graphs::new(&build, &model, &scaled);
        let key = "llama.rope.scaling.yarn_beta_fast";
        assert_eq!(graphs.effect("rope.scaling.yarn_beta_fast", [key; 2]), GraphEffect::Differs);
    }

    #[test]
    fn without_a_graph_every_effect_is_unknown() {
        let (model, _) = llama();
        let mut baseline = model.clone();
        baseline.set("llama.rope.freq_base", 5e5f32);
        let build = |_: &Metadata| Default::default();
        let graphs = Graphs::new(&build, &model, &baseline);
        assert_eq!(graphs.effect("rope.freq_base", ["llama.rope.freq_base"; 2]), GraphEffect::Unknown);
    }
}
