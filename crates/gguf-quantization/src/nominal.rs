//! Bits per weight of a file type on a well-known model.

use std::sync::LazyLock;

use crate::choice::choose_types_of;
use crate::class::{TensorRole, file_order};
use crate::{FileType, ModelFacts, QuantizeOptions};
use gguf_core::{GgmlType, Shape, TensorMeta};

/// Dimensions of Llama 3 8B.
const N_LAYERS: u64 = 32;
const N_EMBD: u64 = 4096;
const N_FFN: u64 = 14336;
const N_KV: u64 = 1024;
const N_VOCAB: u64 = 128_256;

/// Nominal size of a file type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nominal {
    /// Bits per weight of Llama 3 8B from F16, without an importance matrix.
    pub bits_per_weight: f64,
    /// True if an importance matrix is required.
    pub needs_imatrix: bool,
}

/// Computes the bits per weight of a file type on Llama 3 8B; `None` for [`FileType::Copy`].
///
/// Types are chosen for its 291 tensors as for a file, so the number is that of a real file, not that of the base type.
pub fn nominal(file_type: FileType) -> Option<Nominal> {
    // The help of the programs has the sizes of all file types.
    static LLAMA: LazyLock<Llama> = LazyLock::new(Llama::new);
    file_type.base()?;
    let Llama { facts, tensors, roles } = &*LLAMA;
    let choices = choose_types_of(facts, tensors, roles, &QuantizeOptions::new(file_type), false).ok()?;
    let mut n_bits = 0.0;
    let mut n_elems = 0.0;
    for (tensor, choice) in tensors.iter().zip(&choices) {
        let elems = tensor.shape.n_elems() as f64;
        n_elems += elems;
        n_bits += elems * choice.ty.bits_per_weight();
    }
    let needs_imatrix = choices.iter().any(|choice| choice.needs_imatrix);
    Some(Nominal { bits_per_weight: n_bits / n_elems, needs_imatrix })
}

/// Tensors of Llama 3 8B, with all that is the same for every file type.
struct Llama {
    facts: ModelFacts,
    tensors: Vec<TensorMeta>,
    roles: Vec<TensorRole>,
}

impl Llama {
    fn new() -> Self {
        let facts = ModelFacts {
            architecture: "llama".to_owned(),
            n_layers: i32::try_from(N_LAYERS).unwrap_or(i32::MAX),
            n_gqa: 4,
            ..ModelFacts::default()
        };
        let tensors = llama_3_8b();
        let roles = facts.roles(&tensors);
        Self { facts, tensors, roles }
    }
}

fn llama_3_8b() -> Vec<TensorMeta> {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[u64]| {
        let ty = if dims.len() > 1 { GgmlType::F16 } else { GgmlType::F32 };
        if let Some(shape) = Shape::new(dims.to_vec()) {
            tensors.push(TensorMeta { name, shape, ty });
        }
    };
    add("token_embd.weight".to_owned(), &[N_VOCAB, N_EMBD]);
    add("output.weight".to_owned(), &[N_VOCAB, N_EMBD]);
    add("output_norm.weight".to_owned(), &[N_EMBD]);
    for layer in 0..N_LAYERS {
        let mut add = |name: &str, dims: &[u64]| add(format!("blk.{layer}.{name}.weight"), dims);
        add("attn_norm", &[N_EMBD]);
        add("attn_q", &[N_EMBD, N_EMBD]);
        add("attn_k", &[N_KV, N_EMBD]);
        add("attn_v", &[N_KV, N_EMBD]);
        add("attn_output", &[N_EMBD, N_EMBD]);
        add("ffn_norm", &[N_EMBD]);
        add("ffn_gate", &[N_FFN, N_EMBD]);
        add("ffn_up", &[N_FFN, N_EMBD]);
        add("ffn_down", &[N_EMBD, N_FFN]);
    }
    file_order(&tensors).into_iter().map(|at| tensors[at].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_llama_3_8b() {
        let bits = |file_type| (nominal(file_type).unwrap().bits_per_weight * 100.0).round() / 100.0;
        assert_eq!(llama_3_8b().len(), 291);
        assert_eq!(bits(FileType::F16), 16.0);
        assert_eq!(bits(FileType::Q8_0), 8.5);
        // llama.cpp's own table gives 4.58 GiB of 8.03 B weights.
        assert_eq!(bits(FileType::Q4KM), 4.89);
        assert_eq!(nominal(FileType::Copy), None);
        assert!(nominal(FileType::Iq2Xs).unwrap().needs_imatrix);
        assert!(!nominal(FileType::Iq3S).unwrap().needs_imatrix);
    }
}
