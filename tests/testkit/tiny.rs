//! Bundled model as a GGUF that tests may damage.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gguf_blocks::quantize_rows;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_format::{Array, Metadata, Value};
use gguf_tokenizer::Encoder;
use safetensors::SafeTensors;
use tempfile::TempDir;

use gguf_testkit::memory::{MemoryTensors, f32_bytes, write_source};
use gguf_testkit::{files, fixture};

/// Model in memory.
#[derive(Clone)]
pub struct Tiny {
    pub metadata: Metadata,
    pub tensors: MemoryTensors,
    pub encoder: Arc<Encoder>,
}

/// Reorders rows from `[head][half][pair]` to `[head][pair][half]`, as the converter does for interleaved rotation.
fn permute(values: &[f32], n_heads: usize, n_cols: usize) -> Vec<f32> {
    let per_head = values.len() / n_cols / n_heads;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..n_heads {
        for row in 0..per_head {
            let from = head * per_head + (row % 2) * (per_head / 2) + row / 2;
            out.extend_from_slice(&values[from * n_cols..(from + 1) * n_cols]);
        }
    }
    out
}

fn gguf_name(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap();
    match name {
        "embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "norm.weight" => return "output_norm.weight".to_owned(),
        _ => {}
    }
    let rest = name.strip_prefix("layers.").unwrap();
    let (layer, rest) = rest.split_once('.').unwrap();
    let local = match rest.strip_suffix(".weight").unwrap() {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{local}.weight")
}

fn tokenizer(metadata: &mut Metadata) {
    let json = files::json(fixture("tiny-llama/tokenizer.json"));
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![Vec::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone().into_bytes();
    }
    let pair = |m: &serde_json::Value| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(|m| pair(m).into_bytes()).collect();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 2 { 3 } else { 1 }).collect();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "gpt-2");
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    metadata.set("tokenizer.ggml.bos_token_id", 0u32);
    metadata.set("tokenizer.ggml.eos_token_id", 1u32);
    metadata.set("tokenizer.ggml.add_bos_token", true);
}

/// Directory with the bundled model as `base.gguf`.
pub fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().write(dir.path(), "base.gguf");
    dir
}

/// Directory with the first layer of the bundled model as `base.gguf`: enough where figures do not matter.
pub fn directory_of_a_layer() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Tiny::new().with_layers(1).write(dir.path(), "base.gguf");
    dir
}

impl Tiny {
    /// Creates the model in f32.
    pub fn new() -> Self {
        static BUNDLED: LazyLock<Tiny> = LazyLock::new(Tiny::read);
        BUNDLED.clone()
    }

    fn read() -> Self {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        for (key, value) in [
            ("block_count", 4u32),
            ("context_length", 512),
            ("embedding_length", 256),
            ("feed_forward_length", 768),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 64),
        ] {
            metadata.set(format!("llama.{key}"), value);
        }
        metadata.set("llama.rope.freq_base", 10000.0f32);
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        tokenizer(&mut metadata);
        let file = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
        let checkpoint = SafeTensors::deserialize(&file).unwrap();
        let encoder = Arc::new(Encoder::from_metadata(&metadata).unwrap());
        let mut model = Self { metadata, tensors: MemoryTensors::default(), encoder };
        let mut views = checkpoint.tensors();
        views.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, view) in views {
            let bf16 = view.data().as_chunks::<2>().0;
            let mut values: Vec<f32> =
                bf16.iter().map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect();
            let name = gguf_name(&name);
            if name.contains("attn_q.") {
                values = permute(&values, 4, 256);
            } else if name.contains("attn_k.") {
                values = permute(&values, 2, 256);
            }
            let dims: Vec<u64> = view.shape().iter().map(|&n| n as u64).collect();
            model.tensors.add(&name, &dims, GgmlType::F32, f32_bytes(&values));
        }
        model
    }

    /// Rereads the tokenizer after its keys were changed.
    pub fn reread(&mut self) {
        self.encoder = Arc::new(Encoder::from_metadata(&self.metadata).unwrap());
    }

    /// Numbers of an F32 tensor.
    pub fn values(&self, name: &str) -> Vec<f32> {
        self.tensors.f32s(name)
    }

    pub fn set_values(&mut self, name: &str, values: &[f32]) {
        self.tensors.edit_f32s(name, |own| own.copy_from_slice(values));
    }

    /// Changes the numbers of an F32 tensor.
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut [f32])) {
        self.tensors.edit_f32s(name, edit);
    }

    /// Copy with all matrices in a type.
    pub fn quantized(&self, ty: GgmlType) -> Self {
        let mut model = self.clone();
        for meta in self.tensors.tensors().iter().filter(|meta| meta.shape.rank() > 1) {
            model.tensors.replace(&meta.name, ty, self.quantized_tensor(&meta.name, ty));
        }
        model
    }

    /// Bytes of an F32 matrix in a type.
    pub fn quantized_tensor(&self, name: &str, ty: GgmlType) -> Vec<u8> {
        self.weighted_tensor(name, ty, None)
    }

    /// Bytes of an F32 matrix in a type, with the importance of each column.
    pub fn weighted_tensor(&self, name: &str, ty: GgmlType, importance: Option<&[f32]>) -> Vec<u8> {
        let meta = TensorMeta { ty, ..self.tensors.meta(name).clone() };
        let mut bytes = vec![0; meta.n_bytes().unwrap() as usize];
        let n_cols = meta.shape.n_cols() as usize;
        quantize_rows(ty, SimdLevel::detect(), n_cols, &self.values(name), importance, &mut bytes).unwrap();
        bytes
    }

    /// Copy with the first layers only.
    pub fn with_layers(&self, n_layers: u32) -> Self {
        let mut model = self.clone();
        model.metadata.set("llama.block_count", n_layers);
        let is_kept = |name: &str| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            layer.is_none_or(|(layer, _)| layer.parse::<u32>().unwrap() < n_layers)
        };
        model.tensors.retain(|meta| is_kept(&meta.name));
        model
    }

    /// Undoes the reordering of a matrix' rows for interleaved rotation.
    pub fn unpermute(&mut self, name: &str, n_heads: usize) {
        let row_bytes = self.tensors.meta(name).row_bytes().unwrap() as usize;
        let bytes = self.tensors.bytes_mut(name);
        let old = bytes.to_vec();
        let per_head = old.len() / row_bytes / n_heads;
        for (from, row) in old.chunks_exact(row_bytes).enumerate() {
            let (head, at) = (from / per_head, from % per_head);
            let to = head * per_head + (at % 2) * (per_head / 2) + at / 2;
            bytes[to * row_bytes..(to + 1) * row_bytes].copy_from_slice(row);
        }
    }

    /// Copy without the reordering of q and k.
    pub fn unpermuted(&self) -> Self {
        let mut model = self.clone();
        let n_layers = self.metadata.get("llama.block_count").and_then(Value::as_u64).unwrap();
        for layer in 0..n_layers {
            model.unpermute(&format!("blk.{layer}.attn_q.weight"), 4);
            model.unpermute(&format!("blk.{layer}.attn_k.weight"), 2);
        }
        model
    }

    /// Writes the model.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        write_source(&path, &self.metadata, &self.tensors);
        path
    }
}
