//! Limits on the names and dimensions of tensors, which depend on the program that reads the file.

use crate::Metadata;
use crate::split_keys::SPLIT_NO;
use gguf_core::TensorMeta;

/// Maximum length of a tensor name in bytes: llama.cpp stores 64 with a terminating zero.
pub(crate) const MAX_NAME_BYTES: u64 = 63;
const ARCH: &str = "general.architecture";
/// Architectures of image and video models: whatever keys a file of them has, llama.cpp's reader does not read it.
const IMAGE_ARCHS: [&str; 12] = [
    "aura",
    "cosmos",
    "flux",
    "hidream",
    "hyvid",
    "ltxv",
    "lumina2",
    "qwen_image",
    "sd1",
    "sd3",
    "sdxl",
    "wan",
];
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
    pub(crate) const LLAMA_CPP: Self = Self { name_bytes: MAX_NAME_BYTES, dims: MAX_DIMS };
    /// Limits of the runtimes of image and video models, which do not use llama.cpp's reader: ComfyUI-GGUF's converter
    /// refuses longer names, and convolutions over time have five dimensions.
    pub const IMAGE: Self = Self { name_bytes: 127, dims: 5 };
    /// Limits of stable-diffusion.cpp, which is built for longer names; its files of whole checkpoints have hardly a key.
    pub(crate) const WITHOUT_KEYS: Self = Self { name_bytes: 159, dims: 5 };

    /// Limits of llama.cpp, for language models.
    pub const fn of_language() -> Self {
        Self::LLAMA_CPP
    }

    /// Limits of a file with these keys. A later part of a split model, whose keys are in the first, has the wider ones;
    /// [`crate::GgufFile`] applies those of the first part when it opens them together.
    pub fn of(metadata: &Metadata) -> Self {
        let is_general = |key: &str| key != ARCH && key.starts_with("general.");
        if metadata.iter().all(|(key, _)| is_general(key)) {
            Self::WITHOUT_KEYS
        } else if is_of_image(metadata) || is_later_part(metadata) {
            Self::IMAGE
        } else {
            Self::LLAMA_CPP
        }
    }

    /// Returns true if the name and the dimensions of a tensor are within the limits.
    pub fn allow(&self, tensor: &TensorMeta) -> bool {
        tensor.name.len() as u64 <= self.name_bytes && tensor.shape.rank() <= self.dims as usize
    }
}

/// Returns true for the keys of a part after the first, which do not declare the model.
fn is_later_part(metadata: &Metadata) -> bool {
    !metadata.contains(ARCH) && metadata.get(SPLIT_NO).and_then(crate::Value::as_u64).is_some_and(|no| no > 0)
}

/// Returns true if a file declares the architecture of an image or video model; or any architecture and the version or
/// type of its blocks, but no key of the architecture and no vocabulary. llama.cpp loads no such file.
fn is_of_image(metadata: &Metadata) -> bool {
    let Some(arch) = metadata.get(ARCH).and_then(crate::Value::as_str) else {
        return false;
    };
    let of_blocks = ["general.quantization_version", "general.file_type"];
    let is_own = |key: &str| key.strip_prefix(arch).is_some_and(|rest| rest.starts_with('.'));
    let is_of_language = |key: &str| is_own(key) || key.starts_with("tokenizer.");
    IMAGE_ARCHS.contains(&arch)
        || !arch.is_empty()
            && of_blocks.iter().any(|key| metadata.contains(key))
            && !metadata.iter().any(|(key, _)| is_of_language(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_keys_of_their_architecture_have_wider_limits() {
        let mut metadata = Metadata::new();
        metadata.set(ARCH, "new");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
        metadata.set("general.file_type", 1u32);
        metadata.set("newer.x", 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE);
        metadata.set("new.block_count", 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
    }

    #[test]
    fn architectures_of_images_have_their_limits_with_any_keys() {
        let mut metadata = Metadata::new();
        metadata.set(ARCH, "wan");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE);
        metadata.set("wan.fps", 16u32);
        metadata.set("tokenizer.ggml.model", "t5");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE);
    }

    #[test]
    fn files_with_hardly_a_key_have_the_widest() {
        let mut metadata = Metadata::new();
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::WITHOUT_KEYS);
        metadata.set("general.file_type", 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::WITHOUT_KEYS);
        metadata.set("tokenizer.ggml.model", "gpt2");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
    }

    #[test]
    fn a_later_part_has_the_wider_limits() {
        let mut metadata = Metadata::new();
        metadata.set(SPLIT_NO, 0u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
        metadata.set(SPLIT_NO, 1u32);
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::IMAGE);
        metadata.set("general.architecture", "llama");
        assert_eq!(TensorLimits::of(&metadata), TensorLimits::LLAMA_CPP);
    }
}
