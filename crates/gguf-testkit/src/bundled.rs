//! The bundled model (`fixtures/tiny-llama`) with its first layers only: whoever compares bytes does not need all four.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value as Json;

use crate::{files, fixture};

/// Returns true for a tensor of the first layers, or of none.
pub fn is_in_layers(name: &str, n_layers: u32) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    layer.is_none_or(|(layer, _)| layer.parse::<u32>().unwrap() < n_layers)
}

/// Configuration of the bundled model with another number of layers.
pub fn config(n_layers: u32) -> Json {
    let mut config = files::json(fixture("tiny-llama/config.json"));
    config["num_hidden_layers"] = n_layers.into();
    config
}

/// Writes a checkpoint of the first layers, with its tokenizer, into a new directory.
pub fn write_layers(n_layers: u32, dir: &Path) {
    fs_err::create_dir_all(dir).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.join(name)).unwrap();
    }
    let file = fs_err::read(fixture("tiny-llama/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap().tensors();
    let kept = tensors.into_iter().filter(|(name, _)| is_in_layers(name, n_layers));
    fs_err::write(dir.join("model.safetensors"), safetensors::serialize(kept, None).unwrap()).unwrap();
    fs_err::write(dir.join("config.json"), config(n_layers).to_string()).unwrap();
}
