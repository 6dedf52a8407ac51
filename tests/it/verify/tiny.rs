//! Bundled model as a GGUF that tests may damage.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::gguf::{Array, Metadata, Value, WriteOptions, write_gguf};
use gguf_foundry::quant::quantize_rows;
use gguf_foundry::tokenizer::Encoder;
use safetensors::SafeTensors;

use crate::support::fixture;

/// Model in memory.
#[derive(Clone)]
pub struct Tiny {
    pub metadata: Metadata,
    pub metas: Vec<TensorMeta>,
    pub bytes: Vec<Vec<u8>>,
    pub encoder: Arc<Encoder>,
}

impl TensorSource for Tiny {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first_row as usize * self.metas[tensor].row_bytes().unwrap() as usize;
        out.copy_from_slice(&self.bytes[tensor][start..start + out.len()]);
        Ok(())
    }
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
    let text = fs_err::read_to_string(fixture("tiny-llama/tokenizer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
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
        let mut model = Self { metadata, metas: Vec::new(), bytes: Vec::new(), encoder };
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
            let shape = Shape::new(view.shape().iter().map(|&n| n as u64).collect()).unwrap();
            model.metas.push(TensorMeta { name, shape, ty: GgmlType::F32 });
            model.bytes.push(values.iter().flat_map(|x| x.to_le_bytes()).collect());
        }
        model
    }

    /// Rereads the tokenizer after its keys were changed.
    pub fn reread(&mut self) {
        self.encoder = Arc::new(Encoder::from_metadata(&self.metadata).unwrap());
    }

    pub fn index(&self, name: &str) -> usize {
        self.metas.iter().position(|meta| meta.name == name).unwrap()
    }

    pub fn values(&self, name: &str) -> Vec<f32> {
        let at = self.index(name);
        assert_eq!(self.metas[at].ty, GgmlType::F32);
        self.bytes[at].as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
    }

    pub fn set_values(&mut self, name: &str, values: &[f32]) {
        let at = self.index(name);
        assert_eq!(self.bytes[at].len(), values.len() * 4);
        self.bytes[at] = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    }

    /// Copy with all matrices in a type.
    pub fn quantized(&self, ty: GgmlType) -> Self {
        let mut model = self.clone();
        for at in (0..model.metas.len()).filter(|&at| self.metas[at].shape.rank() > 1) {
            model.bytes[at] = self.quantized_tensor(at, ty);
            model.metas[at].ty = ty;
        }
        model
    }

    /// Bytes of an F32 matrix in a type.
    pub fn quantized_tensor(&self, at: usize, ty: GgmlType) -> Vec<u8> {
        let meta = TensorMeta { ty, ..self.metas[at].clone() };
        let values = self.values(&meta.name);
        let mut bytes = vec![0; meta.n_bytes().unwrap() as usize];
        let n_cols = meta.shape.n_cols() as usize;
        quantize_rows(ty, SimdLevel::detect(), n_cols, &values, None, &mut bytes).unwrap();
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
        let tensors = model.metas.into_iter().zip(model.bytes).filter(|(meta, _)| is_kept(&meta.name));
        (model.metas, model.bytes) = tensors.unzip();
        model
    }

    /// Copy without the reordering of q and k.
    pub fn unpermuted(&self) -> Self {
        let mut model = self.clone();
        for layer in 0..4 {
            for (name, n_heads) in [("attn_q", 4), ("attn_k", 2)] {
                let name = format!("blk.{layer}.{name}.weight");
                // With 64 rows per head, the inverse permutation goes from [pair][half] to [half][pair].
                let values = self.values(&name);
                let per_head = values.len() / 256 / n_heads;
                let mut out = vec![0.0; values.len()];
                for head in 0..n_heads {
                    for row in 0..per_head {
                        let to = head * per_head + (row % 2) * (per_head / 2) + row / 2;
                        let from = head * per_head + row;
                        out[to * 256..(to + 1) * 256].copy_from_slice(&values[from * 256..(from + 1) * 256]);
                    }
                }
                model.set_values(&name, &out);
            }
        }
        model
    }

    /// Writes the model.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        write_gguf(&path, &self.metadata, self, &options, &Silent).unwrap();
        path
    }
}
