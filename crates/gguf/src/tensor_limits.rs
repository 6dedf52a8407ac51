//! Limits on the names and dimensions of tensors, which depend on the program that reads the file.

use crate::Metadata;

/// Maximum length of a tensor name in bytes: llama.cpp stores 64 with a terminating zero.
pub const MAX_NAME_BYTES: u64 = 63;
/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;

/// Limits on the tensors of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorLimits {
    /// Maximum length of a name in bytes.
    pub name_bytes: u64,
    /// Maximum number of dimensions.
    pub dims: u32,
}

impl TensorLimits {
    /// Limits of llama.cpp.
    pub const LLAMA_CPP: Self = Self { name_bytes: MAX_NAME_BYTES, dims: MAX_DIMS };
    /// Limits of the runtimes of image and video models, which do not use llama.cpp's reader: ComfyUI-GGUF's converter
    /// refuses longer names, and convolutions over time have five dimensions.
    pub const IMAGE: Self = Self { name_bytes: 127, dims: 5 };

    /// Limits of a file with these keys.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        if has_no_model_keys(metadata) { Self::IMAGE } else { Self::LLAMA_CPP }
    }
}

/// Returns true if a file declares an architecture and the version or type of its blocks, but has no key of the
/// architecture and no vocabulary. llama.cpp loads no such file; those of image and video models are like this.
#[must_use]
pub fn has_no_model_keys(metadata: &Metadata) -> bool {
    let Some(arch) = metadata.get("general.architecture").and_then(crate::Value::as_str) else {
        return false;
    };
    let of_blocks = ["general.quantization_version", "general.file_type"];
    let is_own = |key: &str| key.strip_prefix(arch).is_some_and(|rest| rest.starts_with('.'));
    let is_of_language = |key: &str| is_own(key) || key.starts_with("tokenizer.");
    !arch.is_empty()
        && of_blocks.iter().any(|key| metadata.contains(key))
        && !metadata.iter().any(|(key, _)| is_of_language(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_keys_of_their_architecture_have_wider_limits() {
        let mut metadata = Metadata::new();
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
        metadata.set("general.architecture", "wan");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
        metadata.set("general.file_type", 1u32);
        metadata.set("wander.x", 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE);
        metadata.set("wan.block_count", 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
    }
}
