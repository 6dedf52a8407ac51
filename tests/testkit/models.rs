//! GGUF models of some kilobytes in memory, with noise for weights.

use std::sync::Mutex;

use gguf_arch::GraphFeatures;
use gguf_core::progress::Silent;
use gguf_core::{GgmlType, TensorSource};
use gguf_engine::{Engine, EngineError, EngineOptions, GraphPlan, Observer, TokenChunk};
use gguf_format::{Metadata, Value};

use gguf_testkit::memory::{MemoryTensors, f32_bytes};
use gguf_testkit::noise::Noise;

/// Metadata with these keys of an architecture.
pub fn metadata<V: Into<Value>>(arch: &str, keys: impl IntoIterator<Item = (&'static str, V)>) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", arch);
    for (key, value) in keys {
        metadata.set(format!("{arch}.{key}"), value);
    }
    metadata
}

/// Model in memory, with F32 tensors.
#[derive(Clone)]
pub struct TinyModel {
    pub metadata: Metadata,
    pub tensors: MemoryTensors,
    /// Features of the architecture's card; the default for an architecture without a card.
    pub features: GraphFeatures,
}

impl TinyModel {
    /// Model without tensors, with these keys and this RMS norm epsilon.
    pub fn new(arch: &str, keys: &[(&'static str, usize)], eps: f32) -> Self {
        let mut metadata = metadata(arch, keys.iter().map(|&(key, value)| (key, value as u32)));
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), eps);
        let features = GraphFeatures::of(arch).unwrap_or_default();
        Self { metadata, tensors: MemoryTensors::default(), features }
    }

    /// Two layers of attention and feed-forward of 64 columns; the head is the embedding.
    pub fn dense() -> Self {
        let mut model = Self::llama(&[]);
        for layer in 0..2 {
            model.add_layer_of_llama(
                layer,
                &[
                    ("ffn_gate.weight", &[96, 64]),
                    ("ffn_up.weight", &[96, 64]),
                    ("ffn_down.weight", &[64, 96]),
                ],
            );
        }
        model
    }

    /// Like [`TinyModel::dense`], with a router and this many experts in place of each feed-forward.
    pub fn experts(n: usize) -> Self {
        let mut model = Self::llama(&[("expert_count", n), ("expert_used_count", 2)]);
        for layer in 0..2 {
            model.add_layer_of_llama(
                layer,
                &[
                    ("ffn_gate_inp.weight", &[n, 64]),
                    ("ffn_gate_exps.weight", &[n, 96, 64]),
                    ("ffn_up_exps.weight", &[n, 96, 64]),
                    ("ffn_down_exps.weight", &[n, 64, 96]),
                ],
            );
        }
        model
    }

    fn llama(more: &[(&'static str, usize)]) -> Self {
        let keys = [
            ("block_count", 2),
            ("context_length", 512),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 16),
        ];
        let mut model = Self::new("llama", &[&keys, more].concat(), 1e-5);
        model.add_weights("", &[("token_embd.weight", &[64, 64]), ("output_norm.weight", &[64])]);
        model
    }

    fn add_layer_of_llama(&mut self, layer: usize, feed_forward: &[(&str, &[usize])]) {
        let attention: [(&str, &[usize]); 6] = [
            ("attn_norm.weight", &[64]),
            ("attn_q.weight", &[64, 64]),
            ("attn_k.weight", &[32, 64]),
            ("attn_v.weight", &[32, 64]),
            ("attn_output.weight", &[64, 64]),
            ("ffn_norm.weight", &[64]),
        ];
        self.add_weights(&format!("blk.{layer}."), &[&attention, feed_forward].concat());
    }

    /// Two stacks of one layer each. The low one runs twice before each of two runs of the high one.
    pub fn cycled() -> Self {
        let mut model = Self::dense();
        for (key, value) in
            [("block_count", 6u32), ("hrm.layers_per_stack", 1), ("hrm.h_cycles", 2), ("hrm.l_cycles", 2)]
        {
            model.metadata.set(format!("llama.{key}"), value);
        }
        model.add(&[("hrm.z_l_init", &[64])]);
        model.features = GraphFeatures::from_toml(&"extras = ['cycles']".parse().unwrap()).unwrap();
        model
    }

    /// One layer whose two branches read the same normed input.
    pub fn parallel() -> Self {
        let keys = [
            ("block_count", 1),
            ("context_length", 512),
            ("embedding_length", 32),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 8),
        ];
        let mut model = Self::new("command-r", &keys, 1e-5);
        model.metadata.set("command-r.attention.layer_norm_epsilon", 1e-5f32);
        model.metadata.set("command-r.logit_scale", 0.5f32);
        model.add_weights("", &[("token_embd.weight", &[64, 32]), ("output_norm.weight", &[32])]);
        model.add_weights(
            "blk.0.",
            &[
                ("attn_norm.weight", &[32]),
                ("attn_q.weight", &[32, 32]),
                ("attn_k.weight", &[16, 32]),
                ("attn_v.weight", &[16, 32]),
                ("attn_output.weight", &[32, 32]),
                ("ffn_gate.weight", &[96, 32]),
                ("ffn_up.weight", &[96, 32]),
                ("ffn_down.weight", &[32, 96]),
            ],
        );
        model
    }

    /// Two layers of Mamba, with a separate head.
    pub fn recurrent() -> Self {
        let keys = [
            ("block_count", 2),
            ("context_length", 512),
            ("embedding_length", 32),
            ("feed_forward_length", 0),
            ("attention.head_count", 0),
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", 64),
            ("ssm.state_size", 6),
            ("ssm.time_step_rank", 5),
        ];
        let mut model = Self::new("mamba", &keys, 1e-5);
        model.add_weights(
            "",
            &[("token_embd.weight", &[64, 32]), ("output.weight", &[64, 32]), ("output_norm.weight", &[32])],
        );
        for layer in 0..2 {
            model.add_weights(
                &format!("blk.{layer}."),
                &[
                    ("attn_norm.weight", &[32]),
                    ("ssm_in.weight", &[128, 32]),
                    ("ssm_conv1d.weight", &[64, 4]),
                    ("ssm_conv1d.bias", &[64]),
                    ("ssm_x.weight", &[17, 64]),
                    ("ssm_dt.weight", &[64, 5]),
                    ("ssm_dt.bias", &[64]),
                    ("ssm_a", &[64, 6]),
                    ("ssm_d", &[64]),
                    ("ssm_out.weight", &[32, 64]),
                ],
            );
        }
        model
    }

    /// Adds tensors of these names and dimensions, with noise from -1 up to 1.
    pub fn add(&mut self, tensors: &[(&str, &[usize])]) {
        for (name, dims) in tensors {
            self.add_scaled(name, dims, |x| x);
        }
    }

    /// Adds tensors with noise as large as weights are: a matrix hardly changes the magnitude of what it multiplies.
    fn add_weights(&mut self, prefix: &str, tensors: &[(&str, &[usize])]) {
        for (name, dims) in tensors {
            let scale = if name.contains("norm") { 2.0 } else { 2.0 / (dims[dims.len() - 1] as f32).sqrt() };
            // Decay rates of states are negative.
            let is_decay = name.contains("ssm_a");
            let scaled = |x: f32| if is_decay { -x.abs() - 0.1 } else { scale * x };
            self.add_scaled(&format!("{prefix}{name}"), dims, scaled);
        }
    }

    fn add_scaled(&mut self, name: &str, dims: &[usize], scaled: impl Fn(f32) -> f32) {
        let mut noise = Noise::new(2000 + self.tensors.tensors().len() as u64);
        let values: Vec<f32> = noise.floats(dims.iter().product()).into_iter().map(scaled).collect();
        let dims: Vec<u64> = dims.iter().map(|&n| n as u64).collect();
        self.tensors.add(name, &dims, GgmlType::F32, f32_bytes(&values));
    }

    /// Replaces a tensor's noise by these values.
    pub fn set(&mut self, name: &str, values: &[f32]) {
        self.tensors.edit_f32s(name, |noise| noise.copy_from_slice(values));
    }

    /// Values of a tensor.
    pub fn get(&self, name: &str) -> Vec<f64> {
        self.tensors.f32s(name).into_iter().map(f64::from).collect()
    }

    /// Resolves the graph from a card's `[graph]` in TOML.
    pub fn plan(&self, graph: &str) -> Result<GraphPlan, EngineError> {
        let features = GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap();
        GraphPlan::new(&features, &self.metadata, self.tensors.tensors())
    }

    /// Returns what an operation of the last layer reports under `name`; asserts that the threads do not change it.
    pub fn slot(&self, graph: &str, name: &'static str, tokens: &[u32]) -> Vec<f32> {
        let run = |n_threads| {
            let options = EngineOptions { n_threads, ..EngineOptions::default() };
            let engine = Engine::new(self.plan(graph).unwrap(), &self.tensors, options).unwrap();
            let chunk =
                TokenChunk { tokens: tokens.to_vec(), rows: 0..tokens.len(), ..TokenChunk::default() };
            let kept = SlotRecorder { name, values: Mutex::default() };
            engine.forward(&[chunk], &Silent, Some(&kept)).unwrap();
            kept.values.into_inner().unwrap()
        };
        let found = run(1);
        assert_eq!(found, run(3));
        found
    }
}

/// Observer that keeps the last values reported under one name.
struct SlotRecorder {
    name: &'static str,
    values: Mutex<Vec<f32>>,
}

impl Observer for SlotRecorder {
    fn slot(&self, _: usize, name: &str, x: &[f32], _: usize) {
        if name == self.name {
            *self.values.lock().unwrap() = x.to_vec();
        }
    }
}
