//! Writer of `.flm` files for tests, byte by byte as in the format's description.

use std::path::{Path, PathBuf};

use gguf_core::numeric::f32_to_f16;

use crate::noise::Noise;
use crate::{files, root};

/// Parts of a file, in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    pub version: i32,
    pub dictionary: Vec<(String, String)>,
    pub adapters: Vec<(String, Vec<(String, String)>)>,
    /// Text, id, score.
    pub tokens: Vec<(Vec<u8>, i32, Option<f32>)>,
    pub special: Option<Vec<String>>,
    tensors: Vec<Vec<u8>>,
}

pub fn own(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn int(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&i32::try_from(value).unwrap().to_le_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    int(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn pairs(out: &mut Vec<u8>, entries: &[(String, String)]) {
    int(out, entries.len());
    for (key, value) in entries {
        text(out, key);
        text(out, value);
    }
}

impl Writer {
    pub fn new(dictionary: &[(&str, &str)]) -> Self {
        Self { version: 2, dictionary: own(dictionary), ..Self::default() }
    }

    fn tensor(&mut self, name: &str, dims: &[usize], ty: usize, payload: &[u8]) {
        let mut out = Vec::new();
        text(&mut out, name);
        int(&mut out, dims.len());
        for &dim in dims {
            int(&mut out, dim);
        }
        int(&mut out, ty);
        out.extend_from_slice(payload);
        self.tensors.push(out);
    }

    pub fn f32(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        let payload: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, dims, 0, &payload);
    }

    pub fn f16(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        let payload: Vec<u8> = values.iter().flat_map(|&value| f32_to_f16(value).to_le_bytes()).collect();
        self.tensor(name, dims, 7, &payload);
    }

    /// Writes type 3, 4 or 8 along axis 0, with a range per row.
    pub fn codes(&mut self, name: &str, dims: &[usize], ty: usize, ranges: &[(f32, f32)], codes: &[u8]) {
        let mut payload = 0i32.to_le_bytes().to_vec();
        put_ranges(&mut payload, ranges);
        put_codes(&mut payload, ty, codes);
        self.tensor(name, dims, ty, &payload);
    }

    /// Writes type 9, with a range per group of `width` columns.
    pub fn groups(&mut self, name: &str, dims: &[usize], width: usize, ranges: &[(f32, f32)], codes: &[u8]) {
        let mut payload = 0i32.to_le_bytes().to_vec();
        int(&mut payload, dims[1].div_ceil(width));
        int(&mut payload, width);
        put_ranges(&mut payload, ranges);
        put_codes(&mut payload, 9, codes);
        self.tensor(name, dims, 9, &payload);
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.version.to_le_bytes().to_vec();
        if self.version >= 1 {
            pairs(&mut out, &self.dictionary);
        }
        for (name, dictionary) in &self.adapters {
            text(&mut out, name);
            pairs(&mut out, dictionary);
        }
        int(&mut out, self.tokens.len());
        for (token, id, score) in &self.tokens {
            int(&mut out, token.len());
            for &byte in token {
                // Like writers with a signed `char`.
                out.extend_from_slice(&i32::from(byte as i8).to_le_bytes());
            }
            out.extend_from_slice(&id.to_le_bytes());
            if let Some(score) = score {
                out.extend_from_slice(&score.to_le_bytes());
            }
        }
        if let Some(special) = &self.special {
            int(&mut out, special.len());
            for name in special {
                text(&mut out, name);
            }
        }
        int(&mut out, self.tensors.len());
        for tensor in &self.tensors {
            out.extend_from_slice(tensor);
        }
        out
    }
}

fn put_ranges(out: &mut Vec<u8>, ranges: &[(f32, f32)]) {
    for (min, max) in ranges {
        out.extend_from_slice(&min.to_le_bytes());
        out.extend_from_slice(&max.to_le_bytes());
    }
}

fn put_codes(out: &mut Vec<u8>, ty: usize, codes: &[u8]) {
    if ty == 3 {
        out.extend_from_slice(codes);
    } else {
        out.extend(codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0)));
    }
}

/// Hidden size, inner size, rows of the embedding.
pub const WIDTHS: (usize, usize, usize) = (64, 96, 32);

/// Dictionary of a llama of one layer and four heads.
pub const LLAMA: [(&str, &str); 12] = [
    ("architectures", "['LlamaForCausalLM']"),
    ("hidden_act", "silu"),
    ("hidden_size", "64"),
    ("intermediate_size", "96"),
    ("max_position_embeddings", "256"),
    ("model_type", "llama"),
    ("num_attention_heads", "4"),
    ("num_hidden_layers", "1"),
    ("num_key_value_heads", "2"),
    ("rms_norm_eps", "1e-05"),
    ("rope_theta", "10000.0"),
    ("vocab_size", "32"),
];

/// Names and shapes of the matrices of that llama's layers, and its head.
pub const MATRICES: [(&str, [usize; 2]); 8] = [
    ("model.layers.0.self_attn.q_proj.weight", [64, 64]),
    ("model.layers.0.self_attn.k_proj.weight", [32, 64]),
    ("model.layers.0.self_attn.v_proj.weight", [32, 64]),
    ("model.layers.0.self_attn.o_proj.weight", [64, 64]),
    ("model.layers.0.mlp.gate_proj.weight", [96, 64]),
    ("model.layers.0.mlp.up_proj.weight", [96, 64]),
    ("model.layers.0.mlp.down_proj.weight", [64, 96]),
    ("lm_head.weight", [32, 64]),
];

/// Builds a llama whose matrices `matrix` writes.
pub fn llama(mut matrix: impl FnMut(&mut Writer, &str, [usize; 2], &mut Noise)) -> Writer {
    let mut noise = Noise::new(7);
    let mut writer = Writer::new(&LLAMA);
    let (hidden, _, rows) = WIDTHS;
    writer.f32("model.embed_tokens.weight", &[rows, hidden], &noise.floats(rows * hidden));
    for (name, dims) in MATRICES {
        matrix(&mut writer, name, dims, &mut noise);
    }
    for norm in ["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm"] {
        writer.f32(&format!("{norm}.weight"), &[hidden], &vec![1.0; hidden]);
    }
    writer.f32("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], &[0.5; 8]);
    writer
}

/// Llama of one layer with a vocabulary.
pub fn small() -> Writer {
    let mut writer = llama(|writer, name, [rows, cols], noise| {
        let ranges: Vec<(f32, f32)> =
            (0..rows).map(|_| (-0.5 - noise.signed().abs(), 0.5 + noise.signed().abs())).collect();
        writer.codes(name, &[rows, cols], 3, &ranges, &noise.bytes((rows * cols) as u64));
    });
    for (id, text) in ["<unk>", "<s>", "</s>", "a", "b"].iter().enumerate() {
        writer.tokens.push((text.as_bytes().to_vec(), id as i32, None));
    }
    writer
}

/// Valid cases of the corpus.
pub fn good(corpus: &Path) -> Vec<PathBuf> {
    let mut found = files::entries(corpus.join("formats/flm"));
    found.retain(|dir| dir.join("expected.json").exists());
    found
}

/// Returns true if a card converts the case's architecture.
pub fn has_card(case: &Path) -> bool {
    let arch = files::json(case.join("case.json"))["arch"].as_str().unwrap_or_default().to_owned();
    let name = if arch == "chatglm2" { "chatglm" } else { arch.as_str() };
    root().join(format!("converters/{name}.toml")).is_file()
}
