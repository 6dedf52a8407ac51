//! Check of the types of vectors: llama.cpp adds and multiplies them as F32 alone.
//!
//! Its converter writes every vector as F32, and its loader takes any type; the first step then stops the program
//! (`unsupported types`, `GGML_ASSERT(c->type == GGML_TYPE_F32)`).

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_arch::Registry;
use gguf_core::text::{escape, plural};
use gguf_core::{GgmlType, TensorMeta};
use gguf_format::Value;

/// Vectors that are the only row of a matrix, which may have any type.
const MATRICES: [&str; 3] = ["_shexp.weight", "cls.weight", "cls.output.weight"];
/// Tensors of more dimensions that are read as F32, too: kernels of convolutions and states.
const KERNELS: [&str; 4] = ["ssm_conv1d.weight", "shortconv.conv.weight", ".ssm_a", ".ssm_d"];

/// Returns one finding for all vectors of another type.
pub(super) fn check(file: &CheckedFile<'_>) -> Option<Finding> {
    let arch = file.metadata.get("general.architecture").and_then(Value::as_str)?;
    if file.content != FileContent::Model || !Registry::knows(arch) {
        return None;
    }
    let mut wrong = file.tensors().iter().filter(|tensor| is_wrong(tensor));
    let (first, n_more) = (wrong.next()?, wrong.count());
    let more =
        if n_more == 0 { String::new() } else { format!(", and {}", plural(n_more as u64, "other vector")) };
    let text = format!(
        "`{}` is {}{more}: llama.cpp computes with F32 here and stops at the first token; \
         `gguf-convert hf2gguf` of the checkpoint writes F32",
        escape(&first.name),
        first.ty
    );
    Some(Finding::error(Check::Tensors, text))
}

fn is_wrong(tensor: &TensorMeta) -> bool {
    use GgmlType::{F32, I8, I16, I32, I64};
    let ends = |names: &[&str]| names.iter().any(|name| tensor.name.ends_with(name));
    let is_operand = (tensor.shape.rank() == 1 && !ends(&MATRICES)) || ends(&KERNELS);
    is_operand && !matches!(tensor.ty, F32 | I8 | I16 | I32 | I64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    #[test]
    fn vectors_and_kernels_are_f32_and_matrices_what_they_like() {
        use GgmlType::{Bf16, F16, F32, I64, Q8_0};
        let wrong = |name: &str, dims: &[u64], ty| {
            is_wrong(&TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty })
        };
        for name in
            ["blk.0.attn_norm.weight", "blk.0.attn_q.bias", "rope_freqs.weight", "blk.1.attn_sinks.weight"]
        {
            assert!(!wrong(name, &[32], F32), "{name}");
            assert!([F16, Bf16, Q8_0].into_iter().all(|ty| wrong(name, &[32], ty)), "{name}");
        }
        assert!(wrong("blk.0.ssm_conv1d.weight", &[64, 4], F16));
        assert!(wrong("blk.0.ssm_a", &[64, 16], Bf16));
        assert!(!wrong("blk.0.ssm_dt.weight", &[64, 32], F16));
        assert!(!wrong("blk.0.ffn_gate_inp_shexp.weight", &[32], F16));
        assert!(!wrong("blk.0.attn_q.weight", &[64, 32], F16));
        assert!(!wrong("d2t", &[32], I64));
    }
}
