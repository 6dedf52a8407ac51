//! Small adapters.

use std::path::Path;

use serde_json::json;

use crate::checkpoints::Safetensors;
use crate::{files, fixture};

pub const Q_A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
pub const Q_B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

/// Small number that is rarely repeated within a tensor.
pub fn element(tensor: usize, at: usize) -> f32 {
    ((at * 193 + tensor * 71) % 257) as f32 / 128.0 - 1.0
}

/// Writes tensors of F32 whose elements are [`element`]s.
pub fn write_safetensors(path: &Path, tensors: &[(&str, Vec<u64>)]) {
    let mut file = Safetensors::default();
    for (index, (name, dims)) in tensors.iter().enumerate() {
        let n: u64 = dims.iter().product();
        let values: Vec<f32> = (0..n as usize).map(|at| element(index, at)).collect();
        file.add_f32(name, dims, &values);
    }
    file.write(path);
}

/// Writes an adapter of the bundled model for the queries of its first layer.
pub fn write_tiny_adapter(dir: &Path) {
    let config = files::json(fixture("tiny-llama/config.json"));
    let hidden = config["hidden_size"].as_u64().unwrap();
    write_safetensors(
        &dir.join("adapter_model.safetensors"),
        &[(Q_A, vec![2, hidden]), (Q_B, vec![hidden, 2])],
    );
    set_alpha(dir, 1);
}

/// Sets the strength of an adapter of rank 2.
pub fn set_alpha(dir: &Path, alpha: u32) {
    let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": alpha});
    fs_err::write(dir.join("adapter_config.json"), settings.to_string()).unwrap();
}
