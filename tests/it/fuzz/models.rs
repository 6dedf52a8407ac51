//! Models of some kilobytes, for seeds: each has everything that its architecture needs to be run, converted and
//! converted back.

use gguf_foundry::arch::Registry;
use gguf_foundry::convert::{ToHfOptions, gguf_to_hf};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, Shape, TensorMeta};
use gguf_foundry::gguf::{Array, FilePlan, GgufFile, LayoutOptions, Metadata, Value};
use gguf_foundry::tokenizer::char_of;

use crate::support::files;

/// GGUF file of these tensors, filled with small numbers.
pub fn gguf(metadata: &Metadata, tensors: &[(String, Vec<u64>, GgmlType)]) -> Vec<u8> {
    let metas: Vec<TensorMeta> = tensors
        .iter()
        .map(|(name, dims, ty)| TensorMeta {
            name: name.clone(),
            shape: Shape::new(dims.clone()).unwrap(),
            ty: *ty,
        })
        .collect();
    let plan = FilePlan::new(metadata, &metas, &LayoutOptions::default()).unwrap();
    let mut bytes = plan.header;
    bytes.resize(plan.file_bytes as usize, 0);
    for (meta, place) in metas.iter().zip(&plan.tensors) {
        let data = &mut bytes[place.offset as usize..(place.offset + place.n_bytes) as usize];
        let number = |at: usize| ((at * 37 + meta.name.len()) % 41) as f32 / 64.0 - 0.3125;
        match meta.ty.name() {
            "F32" => {
                for (at, word) in data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *word = number(at).to_le_bytes();
                }
            }
            "F16" | "BF16" => {
                // Small and positive in both formats.
                for (at, word) in data.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *word = (0x2c00 + at as u16 % 512).to_le_bytes();
                }
            }
            _ => {
                // Blocks of codes: the position of the scale depends on the type; zeros are valid for each.
                for (at, byte) in data.iter_mut().enumerate() {
                    *byte = if at % 34 < 2 { [0x00, 0x2c][at % 34] } else { at as u8 };
                }
            }
        }
    }
    bytes
}

/// Sets the letters of byte-level BPE with some merges as keys; returns the number of tokens.
pub fn letters(keys: &mut Metadata) -> usize {
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| char_of(byte).to_string().into_bytes()).collect();
    let merges = ["t h", "th e", "Ġ the", "a a", "Ġ Ġ"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "").into_bytes()));
    tokens.extend([b"<|end|>".to_vec(), b"<|user|>".to_vec()]);
    let n_tokens = tokens.len();
    let mut types = vec![1i32; n_tokens];
    types[n_tokens - 2] = 3;
    types[n_tokens - 1] = 4;
    keys.set("tokenizer.ggml.model", "gpt2");
    keys.set("tokenizer.ggml.pre", "llama-bpe");
    keys.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    keys.set("tokenizer.ggml.token_type", types);
    let merges = merges.map(|merge| merge.as_bytes().to_vec()).to_vec();
    keys.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    keys.set("tokenizer.ggml.eos_token_id", n_tokens as u32 - 2);
    n_tokens
}

const N_EMBD: u64 = 32;
const N_FF: u64 = 64;

/// Model of one layer, with a vocabulary if `vocabulary` is true.
pub fn model(arch: &str, ty: GgmlType, vocabulary: bool) -> Vec<u8> {
    let mut keys = Metadata::new();
    keys.set("general.architecture", arch);
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", N_EMBD as u32),
        ("feed_forward_length", N_FF as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("vocab_size", 16),
    ] {
        keys.set(format!("{arch}.{key}"), value);
    }
    keys.set(format!("{arch}.rope.freq_base"), 10000.0f32);
    keys.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    if arch == "llama" {
        keys.set("llama.rope.dimension_count", 16u32);
    }
    let n_vocab = if vocabulary { letters(&mut keys) as u64 } else { 16 };
    keys.set(format!("{arch}.vocab_size"), n_vocab as u32);
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![n_vocab, N_EMBD], ty)];
    let layer = |local: &str, dims: &[u64], ty: GgmlType| (format!("blk.0.{local}"), dims.to_vec(), ty);
    let float = GgmlType::F32;
    let (kv, ff) = (N_EMBD / 2, N_FF);
    tensors.extend([
        layer("attn_norm.weight", &[N_EMBD], float),
        layer("attn_q.weight", &[N_EMBD, N_EMBD], ty),
        layer("attn_k.weight", &[kv, N_EMBD], ty),
        layer("attn_v.weight", &[kv, N_EMBD], ty),
        layer("attn_output.weight", &[N_EMBD, N_EMBD], ty),
        layer("ffn_norm.weight", &[N_EMBD], float),
    ]);
    if arch == "qwen2" {
        tensors.extend(
            [("q", N_EMBD), ("k", kv), ("v", kv)]
                .map(|(part, n)| layer(&format!("attn_{part}.bias"), &[n], float)),
        );
    }
    if arch == "qwen3" || arch == "qwen3moe" {
        keys.set(format!("{arch}.attention.key_length"), 16u32);
        keys.set(format!("{arch}.attention.value_length"), 16u32);
        tensors.extend(["q", "k"].map(|part| layer(&format!("attn_{part}_norm.weight"), &[16], float)));
    }
    if arch == "qwen3moe" {
        keys.set("qwen3moe.expert_count", 4u32);
        keys.set("qwen3moe.expert_used_count", 2u32);
        keys.set("qwen3moe.expert_feed_forward_length", N_FF as u32);
        tensors.extend([
            layer("ffn_gate_inp.weight", &[4, N_EMBD], float),
            layer("ffn_gate_exps.weight", &[4, ff, N_EMBD], ty),
            layer("ffn_up_exps.weight", &[4, ff, N_EMBD], ty),
            layer("ffn_down_exps.weight", &[4, N_EMBD, ff], ty),
        ]);
    } else {
        tensors.extend([
            layer("ffn_gate.weight", &[ff, N_EMBD], ty),
            layer("ffn_up.weight", &[ff, N_EMBD], ty),
            layer("ffn_down.weight", &[N_EMBD, ff], ty),
        ]);
    }
    tensors.push(("output_norm.weight".to_owned(), vec![N_EMBD], float));
    tensors.push(("output.weight".to_owned(), vec![n_vocab, N_EMBD], ty));
    gguf(&keys, &tensors)
}

/// Files of a model converted back to Hugging Face's format.
pub fn checkpoint(file: &[u8], max_shard_bytes: u64) -> Vec<(String, Vec<u8>)> {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("m.gguf");
    fs_err::write(&path, file).unwrap();
    let model = GgufFile::open(&path).unwrap();
    let tokenizer = model.metadata().contains("tokenizer.ggml.model");
    let options = ToHfOptions { tokenizer, sync: false, max_shard_bytes, ..ToHfOptions::default() };
    let dir = room.path().join("hf");
    let registry = Registry::embedded().unwrap();
    gguf_to_hf(&registry, model.metadata(), &model, &dir, &options, &Silent).unwrap();
    files::contents(&dir).into_iter().collect()
}
