//! Facts from the name and the shape of a tensor: the class that mixtures use, the layer, the number of matrices, and
//! whether it is quantized at all.

use std::fmt;

use gguf_core::{GgmlType, TensorMeta};
use serde::{Serialize, Serializer};

/// Role of a tensor, as far as it matters for the choice of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorClass {
    /// `token_embd.weight`, `per_layer_token_embd.weight`.
    TokenEmbd,
    /// `output.weight`.
    Output,
    /// Query projection.
    AttnQ,
    /// Key projection.
    AttnK,
    /// Value projection.
    AttnV,
    /// Fused query, key and value projection.
    AttnQkv,
    /// Expansion of the compressed key and value.
    AttnKvB,
    /// Output projection of attention.
    AttnOutput,
    /// Up projection of the feed-forward network or of experts.
    FfnUp,
    /// Gate projection of the feed-forward network or of experts.
    FfnGate,
    /// Down projection of the feed-forward network or of experts.
    FfnDown,
    /// All other tensors.
    Other,
}

/// Classes by a part of the name, in the order of matching.
static BY_PART: &[(&str, TensorClass)] = &[
    ("attn_qkv.weight", TensorClass::AttnQkv),
    ("attn_kv_b.weight", TensorClass::AttnKvB),
    ("attn_v.weight", TensorClass::AttnV),
    ("attn_k.weight", TensorClass::AttnK),
    ("attn_q.weight", TensorClass::AttnQ),
    ("attn_output.weight", TensorClass::AttnOutput),
    ("ffn_up", TensorClass::FfnUp),
    ("ffn_gate", TensorClass::FfnGate),
    ("ffn_down", TensorClass::FfnDown),
];

impl TensorClass {
    /// Class of a tensor with this name.
    pub fn of(name: &str) -> Self {
        match name {
            "output.weight" => Self::Output,
            "token_embd.weight" | PER_LAYER_TOKEN_EMBD => Self::TokenEmbd,
            _ => BY_PART.iter().find(|row| name.contains(row.0)).map_or(Self::Other, |row| row.1),
        }
    }

    /// Returns true for value projections and tensors that contain them: the most sensitive part of attention.
    pub(crate) fn holds_values(self) -> bool {
        matches!(self, Self::AttnV | Self::AttnQkv | Self::AttnKvB)
    }

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenEmbd => "token_embd",
            Self::Output => "output",
            Self::AttnQ => "attn_q",
            Self::AttnK => "attn_k",
            Self::AttnV => "attn_v",
            Self::AttnQkv => "attn_qkv",
            Self::AttnKvB => "attn_kv_b",
            Self::AttnOutput => "attn_output",
            Self::FfnUp => "ffn_up",
            Self::FfnGate => "ffn_gate",
            Self::FfnDown => "ffn_down",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for TensorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for TensorClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Large per-layer embedding table, which shares the options of the token embeddings.
pub(crate) const PER_LAYER_TOKEN_EMBD: &str = "per_layer_token_embd.weight";

/// Layer number of a name that begins with `blk.N`; `None` for all others, including encoder and decoder blocks.
///
/// # Exactness
/// ref: the number is read like C's `%d`: after white space, with a sign, up to the first other character.
pub fn layer_of(name: &str) -> Option<i32> {
    let rest = name.strip_prefix("blk.")?.trim_ascii_start();
    let n_sign = usize::from(rest.starts_with(['+', '-']));
    let n_digits = rest.bytes().skip(n_sign).take_while(u8::is_ascii_digit).count();
    rest[..n_sign + n_digits].parse().ok()
}

/// Indices of the tensors in the order of a quantized file: by layer (tensors without a layer first), then by name,
/// bytewise.
pub fn file_order(tensors: &[TensorMeta]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_cached_key(|&index| {
        let name = &tensors[index].name;
        (layer_of(name).unwrap_or(-1), name.clone())
    });
    order
}

/// Parts of names of weights that are never quantized: too small, too sensitive, or not multiplied with anything.
static KEPT: &[&str] = &[
    "_norm.weight",
    // Routing to experts.
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    // Small mixing matrices of Gemma 3n.
    "altup",
    "laurel",
    "per_layer_model_proj",
    // Short convolutions.
    "ssm_conv1d",
    "shortconv.conv.weight",
    // Selection of attended positions.
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    // Low-rank and interpolation weights of RWKV.
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    // Relative positions of T5.
    "attn_rel_b.weight",
    // Vision and audio towers.
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Full names that are never quantized: learned positions and segments.
static KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// Parts of names that are never quantized in the architecture `glm5-next` only.
static KEPT_GLM5_NEXT: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Facts from the name and the shape of a tensor that matter for its type under any file type.
#[derive(Clone, Copy)]
pub(crate) struct TensorRole {
    pub(crate) class: TensorClass,
    /// True for weights that are quantized.
    pub(crate) is_matrix: bool,
}

/// Number of matrices in a stack; 1 for a single matrix or a vector.
pub fn n_matrices(tensor: &TensorMeta) -> u64 {
    let dims = tensor.shape.dims();
    dims[..dims.len().saturating_sub(2)].iter().product()
}

/// Returns true for integer tables, which are not weights and must not be quantized.
pub(crate) fn is_integer(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64)
}

/// Returns true for weights that can be quantized: matrices and stacks of matrices whose name is not on the lists.
///
/// # Exactness
/// ref: a name counts as a weight if it ends in `weight`, and also if it is exactly five bytes long.
pub(crate) fn is_quantizable(architecture: &str, tensor: &TensorMeta) -> bool {
    let name = tensor.name.as_str();
    let is_weight = name.ends_with("weight") || name.len() == 5;
    let is_listed = || {
        KEPT_NAMES.contains(&name)
            || KEPT.iter().any(|part| name.contains(part))
            || (architecture == "glm5-next" && KEPT_GLM5_NEXT.iter().any(|part| name.contains(part)))
    };
    tensor.shape.of_ggml().rank() >= 2 && is_weight && !is_integer(tensor.ty) && !is_listed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    fn tensor(name: &str, dims: &[u64]) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F16 }
    }

    #[test]
    fn classes() {
        for (name, class) in [
            ("output.weight", TensorClass::Output),
            ("enc.output.weight", TensorClass::Other),
            ("blk.3.attn_qkv.weight", TensorClass::AttnQkv),
            ("v.blk.3.attn_v.weight", TensorClass::AttnV),
            ("blk.3.attn_v.bias", TensorClass::Other),
            ("blk.3.ffn_gate_up_exps.weight", TensorClass::FfnGate),
            ("blk.3.ffn_down.1.weight", TensorClass::FfnDown),
            ("per_layer_token_embd.weight", TensorClass::TokenEmbd),
        ] {
            assert_eq!(TensorClass::of(name), class, "{name}");
        }
    }

    #[test]
    fn layers_and_order() {
        assert_eq!(layer_of("blk.12.attn_q.weight"), Some(12));
        assert_eq!(layer_of("blk.-3.odd"), Some(-3));
        for name in ["enc.blk.1.attn_q.weight", "blk..x", "blk.-.x", "blk.99999999999.x", "output"] {
            assert_eq!(layer_of(name), None, "{name}");
        }
        let names = ["blk.10.a", "blk.2.b", "token_embd", "blk.2.a", "output", "enc.blk.0.a"];
        let tensors: Vec<_> = names.iter().map(|name| tensor(name, &[4, 4])).collect();
        let sorted: Vec<_> = file_order(&tensors).into_iter().map(|index| names[index]).collect();
        assert_eq!(sorted, ["enc.blk.0.a", "output", "token_embd", "blk.2.a", "blk.2.b", "blk.10.a"]);
    }

    #[test]
    fn only_matrices_of_weights_are_quantized() {
        let quantizable = |name, dims: &[u64]| is_quantizable("llama", &tensor(name, dims));
        assert!(quantizable("blk.0.attn_q.weight", &[4, 4]));
        assert!(quantizable("blk.0.ffn_up_exps.weight", &[2, 4, 4]));
        assert!(quantizable("five.", &[4, 4]));
        assert!(!quantizable("blk.0.attn_q.weight", &[1, 4]));
        assert!(!quantizable("blk.0.attn_q.weight", &[4]));
        assert!(!quantizable("blk.0.attn_q.bias", &[4, 4]));
        assert!(!quantizable("blk.0.attn_q_norm.weight", &[4, 4]));
        assert!(!quantizable("position_embd.weight", &[4, 4]));
        assert!(quantizable("blk.0.attn_k_b.weight", &[4, 4]));
        assert!(!is_quantizable("glm5-next", &tensor("blk.0.attn_k_b.weight", &[4, 4])));
    }
}
