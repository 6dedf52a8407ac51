//! Comparison of the tensor shapes with the keys of the file: a shape that a runtime refuses to load is an error.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_arch::{WrongShape, check_shapes};
use gguf_core::TensorMeta;
use gguf_core::text::escape;
use gguf_format::Metadata;

const CHECK: Check = Check::Shapes;
/// Maximum number of tensors that a finding names.
const MAX_EXAMPLES: usize = 3;

/// Returns one finding for all tensors of a model or of towers whose shapes contradict the keys.
pub(super) fn check(file: &CheckedFile<'_>) -> Option<Finding> {
    let is_judged = matches!(file.content, FileContent::Model | FileContent::Towers);
    is_judged.then(|| check_tensors(file.metadata, file.tensors()))?
}

fn check_tensors(metadata: &Metadata, tensors: &[TensorMeta]) -> Option<Finding> {
    let wrong = check_shapes(metadata, tensors).wrong;
    let (first, others) = wrong.split_first()?;
    let mut message = format!("shape {first}");
    let named = others.iter().take(MAX_EXAMPLES - 1);
    let named = named.map(|wrong: &WrongShape| format!("; `{}` {wrong}", escape(&wrong.name)));
    message.extend(named);
    match others.len().saturating_sub(MAX_EXAMPLES - 1) {
        0 => {}
        more => message.push_str(&["; and ", &more.to_string(), " more"].concat()),
    }
    Some(Finding::error(CHECK, message).of(&first.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn tensor(name: &str, dims: &[u64]) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F32 }
    }

    fn keys() -> Metadata {
        let mut keys = Metadata::new();
        keys.set("general.architecture", "llama");
        keys.set("llama.embedding_length", 64u32);
        keys.set("llama.feed_forward_length", 96u32);
        keys.set("llama.attention.head_count", 4u32);
        keys.set("llama.attention.head_count_kv", 2u32);
        keys.set("llama.vocab_size", 100u32);
        keys
    }

    #[test]
    fn shapes_that_follow_from_the_keys_pass() {
        let tensors = [
            tensor("token_embd.weight", &[100, 64]),
            tensor("blk.0.attn_k.weight", &[32, 64]),
            tensor("blk.0.ffn_up.weight", &[96, 64]),
            tensor("of.nobody.weight", &[5, 6]),
        ];
        assert_eq!(check_tensors(&keys(), &tensors), None);
    }

    #[test]
    fn a_contradiction_names_tensor_shapes_and_keys() {
        let tensors = [
            tensor("output.weight", &[90, 64]),
            tensor("blk.0.attn_k.weight", &[16, 64]),
            tensor("blk.0.ffn_up.weight", &[128, 64]),
            tensor("blk.0.ffn_down.weight", &[64, 128]),
        ];
        let finding = check_tensors(&keys(), &tensors).unwrap();
        assert_eq!(finding.tensor.as_deref(), Some("output.weight"));
        assert_eq!(
            finding.message,
            "shape [90, 64], expected [100, 64] by `llama.vocab_size` = 100; `blk.0.attn_k.weight` [16, 64], expected [32, 64] by \
             `llama.attention.head_count` = 4, `llama.attention.head_count_kv` = 2, `llama.embedding_length` = 64; \
             `blk.0.ffn_up.weight` [128, 64], expected [96, 64] by `llama.feed_forward_length` = 96; and 1 more"
        );
    }

    #[test]
    fn a_key_with_a_value_for_each_block_counts_block_by_block() {
        let mut keys = keys();
        keys.set("llama.feed_forward_length", vec![96i32, 32]);
        let tensors = [tensor("blk.0.ffn_up.weight", &[96, 64]), tensor("blk.1.ffn_up.weight", &[96, 64])];
        let finding = check_tensors(&keys, &tensors).unwrap();
        assert_eq!(finding.tensor.as_deref(), Some("blk.1.ffn_up.weight"));
        assert!(finding.message.ends_with("by `llama.feed_forward_length` = 32"), "{}", finding.message);
    }

    #[test]
    fn towers_for_sounds_are_judged() {
        let mut keys = Metadata::new();
        for (key, value) in [("embedding_length", 32u32), ("feed_forward_length", 64), ("num_mel_bins", 80)] {
            keys.set(format!("clip.audio.{key}"), value);
        }
        keys.set("general.architecture", "clip");
        keys.set("clip.projector_type", "qwen2a");
        let tensors = [
            tensor("a.conv1d.1.weight", &[32, 80, 3]),
            tensor("a.conv1d.1.bias", &[32, 1]),
            tensor("a.blk.0.ffn_up.weight", &[64, 32]),
            tensor("a.blk.0.ln1.weight", &[32]),
        ];
        assert_eq!(check_tensors(&keys, &tensors), None);
        for key in ["embedding_length", "feed_forward_length", "num_mel_bins"] {
            let mut keys = keys.clone();
            keys.set(format!("clip.audio.{key}"), 48u32);
            assert!(check_tensors(&keys, &tensors).unwrap().message.contains(key), "{key}");
        }
    }

    #[test]
    fn the_number_of_a_block_decides() {
        for arch in ["rwkv7", "arwkv7"] {
            let mut keys = Metadata::new();
            keys.set("general.architecture", arch);
            for (key, value) in [("iclr", 16u32), ("value_residual_mix", 8)] {
                keys.set(format!("{arch}.attention.{key}_lora_rank"), value);
            }
            keys.set(format!("{arch}.embedding_length"), 32u32);
            let ranks = |first, second| {
                let name = |block: u32| format!("blk.{block}.time_mix_v1.weight");
                check_tensors(&keys, &[tensor(&name(0), &[first, 32]), tensor(&name(1), &[second, 32])])
            };
            assert_eq!(ranks(16, 8), None, "{arch}");
            assert!(ranks(8, 8).unwrap().message.contains("iclr_lora_rank"), "{arch}");
            // ARWKV 7's key is a constant, whatever the weights have.
            let other = ranks(16, 16).is_some_and(|found| found.message.contains("value_residual_mix"));
            assert_eq!(other, arch == "rwkv7", "{arch}");
        }
    }

    #[test]
    fn what_needs_an_absent_key_is_not_judged() {
        let mut keys = keys();
        keys.remove("llama.feed_forward_length");
        keys.set("llama.attention.head_count", 0u32);
        let tensors = [tensor("blk.0.ffn_up.weight", &[7, 64]), tensor("blk.0.attn_q.weight", &[7, 64])];
        assert_eq!(check_tensors(&keys, &tensors), None);
    }
}
