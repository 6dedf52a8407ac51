//! Checkpoints as they come: safetensors and their configuration, as named tensors and byte ranges. Knows no model.

pub mod safetensors_writer;
