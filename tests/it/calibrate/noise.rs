//! Small models with random weights.

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::gguf::Metadata;
use gguf_foundry::verify::{Model, NoTemplate};

const NO_TEMPLATE: NoTemplate = NoTemplate;

/// Model in memory.
#[derive(Clone)]
pub struct Noise {
    pub metadata: Metadata,
    pub metas: Vec<TensorMeta>,
    pub values: Vec<Vec<f32>>,
    pub features: GraphFeatures,
}

impl TensorSource for Noise {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let skip = first as usize * self.metas[tensor].shape.n_cols() as usize;
        let bytes = self.values[tensor][skip..].iter().flat_map(|x| x.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

impl Noise {
    fn new(arch: &str, keys: &[(&str, u32)], tensors: &[(String, Vec<u64>)]) -> Self {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        for (key, value) in keys {
            metadata.set(format!("{arch}.{key}"), *value);
        }
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
        let (mut metas, mut values) = (Vec::new(), Vec::new());
        for (name, dims) in tensors {
            let mut state = 77 + metas.len() as u32;
            let scale =
                if name.contains("norm") { 1.0 } else { (*dims.last().unwrap() as f32).sqrt().recip() };
            let noise = (0..dims.iter().product::<u64>()).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
                // Decay rates of states are negative.
                if name.contains("ssm_a") { -x.abs() - 0.1 } else { 2.0 * scale * x }
            });
            values.push(noise.collect());
            let shape = Shape::new(dims.clone()).unwrap();
            metas.push(TensorMeta { name: name.clone(), shape, ty: GgmlType::F32 });
        }
        Self { metadata, metas, values, features: GraphFeatures::of(arch).unwrap() }
    }

    /// Two layers of attention and feed-forward, with `n_experts` experts if not 0; the head is the embedding.
    pub fn llama(n_experts: u64) -> Self {
        let mut keys = vec![
            ("block_count", 2),
            ("context_length", 512),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 16),
        ];
        let mut tensors =
            vec![("token_embd.weight".to_owned(), vec![64, 64]), ("output_norm.weight".to_owned(), vec![64])];
        for layer in 0..2 {
            let mut own = vec![
                ("attn_norm", vec![64]),
                ("attn_q", vec![64, 64]),
                ("attn_k", vec![32, 64]),
                ("attn_v", vec![32, 64]),
                ("attn_output", vec![64, 64]),
                ("ffn_norm", vec![64]),
            ];
            if n_experts == 0 {
                own.extend([
                    ("ffn_gate", vec![96, 64]),
                    ("ffn_up", vec![96, 64]),
                    ("ffn_down", vec![64, 96]),
                ]);
            } else {
                own.extend([
                    ("ffn_gate_inp", vec![n_experts, 64]),
                    ("ffn_gate_exps", vec![n_experts, 96, 64]),
                    ("ffn_up_exps", vec![n_experts, 96, 64]),
                    ("ffn_down_exps", vec![n_experts, 64, 96]),
                ]);
            }
            let own = own.into_iter().map(|(name, dims)| (format!("blk.{layer}.{name}.weight"), dims));
            tensors.extend(own);
        }
        if n_experts > 0 {
            keys.extend([("expert_count", n_experts as u32), ("expert_used_count", 2)]);
        }
        Self::new("llama", &keys, &tensors)
    }

    /// Two stacks of one layer each. The low one runs twice before each of two runs of the high one.
    pub fn cycled() -> Self {
        let mut model = Self::llama(0);
        let turns =
            [("block_count", 6), ("hrm.layers_per_stack", 1), ("hrm.h_cycles", 2), ("hrm.l_cycles", 2)];
        for (key, value) in turns {
            model.metadata.set(format!("llama.{key}"), value as u32);
        }
        model.values.push((0..64).map(|i| i as f32 / 64.0 - 0.5).collect());
        let shape = Shape::new(vec![64]).unwrap();
        model.metas.push(TensorMeta { name: "hrm.z_l_init".to_owned(), shape, ty: GgmlType::F32 });
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
        let tensors = [
            ("token_embd", vec![64, 32]),
            ("output_norm", vec![32]),
            ("blk.0.attn_norm", vec![32]),
            ("blk.0.attn_q", vec![32, 32]),
            ("blk.0.attn_k", vec![16, 32]),
            ("blk.0.attn_v", vec![16, 32]),
            ("blk.0.attn_output", vec![32, 32]),
            ("blk.0.ffn_gate", vec![96, 32]),
            ("blk.0.ffn_up", vec![96, 32]),
            ("blk.0.ffn_down", vec![32, 96]),
        ];
        let tensors = tensors.map(|(name, dims)| (format!("{name}.weight"), dims));
        let mut model = Self::new("command-r", &keys, &tensors);
        model.metadata.set("command-r.attention.layer_norm_epsilon", 1e-5f32);
        model.metadata.set("command-r.logit_scale", 0.5f32);
        model
    }

    /// Two layers of Mamba, with a separate head.
    pub fn mamba() -> Self {
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
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![64, 32]),
            ("output.weight".to_owned(), vec![64, 32]),
            ("output_norm.weight".to_owned(), vec![32]),
        ];
        for layer in 0..2 {
            for (name, dims) in [
                ("attn_norm.weight", vec![32]),
                ("ssm_in.weight", vec![128, 32]),
                ("ssm_conv1d.weight", vec![64, 4]),
                ("ssm_conv1d.bias", vec![64]),
                ("ssm_x.weight", vec![17, 64]),
                ("ssm_dt.weight", vec![64, 5]),
                ("ssm_dt.bias", vec![64]),
                ("ssm_a", vec![64, 6]),
                ("ssm_d", vec![64]),
                ("ssm_out.weight", vec![32, 64]),
            ] {
                tensors.push((format!("blk.{layer}.{name}"), dims));
            }
        }
        Self::new("mamba", &keys, &tensors)
    }

    pub fn model(&self) -> Model<'_> {
        Model {
            source: self,
            metadata: &self.metadata,
            file: None,
            features: Ok(&self.features),
            encoder: Err("none"),
            template: &NO_TEMPLATE,
            origin: None,
            lost: &[],
            recall: None,
        }
    }
}
