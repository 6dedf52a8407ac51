//! Checkpoints made by tests: with any tensors, or from the bundled model quantized as by msModelSlim.

use std::path::Path;

use gguf_core::numeric::bf16_to_f32;
use safetensors::SafeTensors;
use serde_json::{Map, Value as Json, json};

use crate::bundled::{config, is_in_layers};
use crate::checkpoints::Safetensors;
use crate::fixture;
use crate::memory::f32_bytes;
use crate::noise::Noise;

/// Tensors with their labels.
#[derive(Default)]
pub struct Made {
    tensors: Safetensors,
    pub description: Map<String, Json>,
}

impl Made {
    pub fn add(&mut self, name: &str, label: &str, dtype: &str, dims: &[usize], bytes: &[u8]) {
        self.description.insert(name.to_owned(), json!(label));
        self.tensors.add(name, dtype, dims, bytes);
    }

    pub fn floats(&mut self, name: &str, label: &str, dims: &[usize], values: &[f32]) {
        self.add(name, label, "F32", dims, &f32_bytes(values));
    }

    pub fn codes(&mut self, name: &str, label: &str, dims: &[usize], values: &[i8]) {
        let bytes: Vec<u8> = values.iter().map(|&value| value as u8).collect();
        self.add(name, label, "I8", dims, &bytes);
    }

    /// Writes description, weights and configuration.
    pub fn write(&self, dir: &Path, config: &Json) {
        self.tensors.write(&dir.join("quant_model_weights.safetensors"));
        let description = Json::Object(self.description.clone()).to_string();
        fs_err::write(dir.join("quant_model_description.json"), description).unwrap();
        fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
    }
}

/// Random numbers from -1 up to 1.
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    Noise::new(seed).floats(n)
}

/// Quantizes rows to int8 with one scale each.
pub fn int8(values: &[f32], n_cols: usize) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in values.chunks(n_cols) {
        let scale = row.iter().fold(0f32, |max, value| max.max(value.abs())) / 127.0;
        codes.extend(row.iter().map(|value| (value / scale).round_ties_even() as i8));
        scales.push(scale);
    }
    (codes, scales)
}

/// Quantizes groups of columns to int4 with scale and offset.
fn int4(values: &[f32], group: usize) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
    let (mut codes, mut scales, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks(group) {
        let low = group.iter().copied().fold(0f32, f32::min);
        let high = group.iter().copied().fold(0f32, f32::max);
        let scale = (high - low) / 15.0;
        let offset = (-8.0 - low / scale).round_ties_even();
        codes.extend(
            group.iter().map(|value| ((value / scale).round_ties_even() + offset).clamp(-8.0, 7.0) as i8),
        );
        scales.push(scale);
        offsets.push(offset);
    }
    (codes, scales, offsets)
}

/// Layouts in which the bundled model is quantized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Static W8A8, with dynamic down projections.
    W8A8,
    /// W4A16 in groups of 32, rows packed in pairs.
    W4A16,
}

/// First layers of the bundled model, with quantized linear layers.
fn tiny(layout: Layout, n_layers: u32) -> Made {
    let file = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let checkpoint = SafeTensors::deserialize(&file).unwrap();
    let mut made = Made::default();
    made.description.insert("version".to_owned(), json!("1.0.0"));
    let mut views = checkpoint.tensors();
    views.retain(|(name, _)| is_in_layers(name, n_layers));
    views.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, view) in views {
        let dims = view.shape();
        let Some(module) = name.strip_suffix("_proj.weight").map(|stem| format!("{stem}_proj")) else {
            made.add(&name, "FLOAT", "BF16", dims, view.data());
            continue;
        };
        let halves = view.data().as_chunks::<2>().0.iter();
        let values: Vec<f32> = halves.map(|&b| bf16_to_f32(u16::from_le_bytes(b))).collect();
        let (n_rows, n_cols) = (dims[0], dims[1]);
        let part = |ending: &str| format!("{module}.{ending}");
        if layout == Layout::W4A16 {
            let (codes, scales, offsets) = int4(&values, 32);
            let grid = [n_rows, n_cols / 32];
            let pairs = codes.chunks(2 * n_cols).flat_map(|rows| {
                let (even, odd) = rows.split_at(n_cols);
                even.iter().zip(odd).map(|(even, odd)| even & 15 | odd << 4).collect::<Vec<_>>()
            });
            made.codes(&name, "W4A16", &[n_rows / 2, n_cols], &pairs.collect::<Vec<_>>());
            made.floats(&part("weight_scale"), "W4A16", &grid, &scales);
            made.floats(&part("weight_offset"), "W4A16", &grid, &offsets);
            continue;
        }
        let (codes, scales) = int8(&values, n_cols);
        if module.ends_with("down_proj") {
            made.codes(&name, "W8A8_DYNAMIC", dims, &codes);
            made.floats(&part("weight_scale"), "W8A8_DYNAMIC", &[n_rows, 1], &scales);
            made.floats(&part("weight_offset"), "W8A8_DYNAMIC", &[n_rows, 1], &vec![0.0; n_rows]);
            continue;
        }
        let (input_scale, input_offset) = (0.043f32, -7i32);
        let deq_scales: Vec<f32> = scales.iter().map(|scale| scale * input_scale).collect();
        let sums = codes.chunks(n_cols).map(|row| row.iter().map(|&code| i32::from(code)).sum::<i32>());
        let quant_bias: Vec<u8> = sums.flat_map(|sum| (-sum * input_offset).to_le_bytes()).collect();
        made.codes(&name, "W8A8", dims, &codes);
        made.floats(&part("deq_scale"), "W8A8", &[n_rows], &deq_scales);
        made.floats(&part("input_scale"), "W8A8", &[1], &[input_scale]);
        made.floats(&part("input_offset"), "W8A8", &[1], &[input_offset as f32]);
        made.add(&part("quant_bias"), "W8A8", "I32", &[n_rows], &quant_bias);
    }
    made
}

/// Writes the quantized model with its configuration and tokenizer.
pub fn write_tiny(layout: Layout, n_layers: u32, dir: &Path) {
    tiny(layout, n_layers).write(dir, &config(n_layers));
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.join(name)).unwrap();
    }
}
