//! GGML type of each tensor: decided by its name and shape, then by the type of the file.

use std::fmt;

use crate::read::schema::EntryType;
use gguf_core::{ElementType, GgmlType, WeightMeta};
use gguf_format::FileType;

/// Type in which a conversion writes large matrices of floats, as named by `--outtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutType {
    /// `f32`
    F32,
    /// `f16`
    F16,
    /// `bf16`
    Bf16,
    /// `q8_0`
    Q8_0,
    /// `tq1_0`
    Tq1_0,
    /// `tq2_0`
    Tq2_0,
}

impl OutType {
    const ALL: [(Self, &'static str, FileType, GgmlType); 6] = [
        (Self::F32, "f32", FileType::F32, GgmlType::F32),
        (Self::F16, "f16", FileType::F16, GgmlType::F16),
        (Self::Bf16, "bf16", FileType::Bf16, GgmlType::Bf16),
        (Self::Q8_0, "q8_0", FileType::Q8_0, GgmlType::Q8_0),
        (Self::Tq1_0, "tq1_0", FileType::Tq1_0, GgmlType::Tq1_0),
        (Self::Tq2_0, "tq2_0", FileType::Tq2_0, GgmlType::Tq2_0),
    ];

    fn row(self) -> &'static (Self, &'static str, FileType, GgmlType) {
        &Self::ALL[self as usize]
    }

    /// Returns the type of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the name, as `--outtype` takes it.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the value of `general.file_type`.
    pub fn id(self) -> u32 {
        self.row().2.id()
    }

    /// Returns the GGML type of large matrices.
    pub fn ggml_type(self) -> GgmlType {
        self.row().3
    }

    /// Returns the type that suits a checkpoint: that of the first F16 or BF16 tensor with two or more dimensions, in
    /// the checkpoint's order; F16 without such a tensor.
    ///
    /// # Exactness
    /// Equals `--outtype auto` of llama.cpp 0.5.0.
    pub fn auto<'w>(weights: impl IntoIterator<Item = &'w WeightMeta>) -> Self {
        let narrow = |weight: &WeightMeta| match weight.ty {
            ElementType::Bf16 if weight.shape.rank() >= 2 => Some(Self::Bf16),
            ElementType::F16 if weight.shape.rank() >= 2 => Some(Self::F16),
            _ => None,
        };
        weights.into_iter().find_map(narrow).unwrap_or(Self::F16)
    }
}

impl fmt::Display for OutType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names, after `blk.{bid}.`, of tensors that stay F32: routers, convolutions, mixing and position weights.
const F32_IN_BLOCK: &[&str] = &[
    "altup_correct_coef",
    "altup_predict_coef",
    "ffn_gate_inp",
    "ffn_gate_inp_shexp",
    "indexer.proj",
    "shortconv.conv",
    "ssm_conv1d",
    "ssm_conv1d_k",
    "ssm_conv1d_q",
    "ssm_conv1d_v",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_first",
    "time_mix_lerp_fused",
    "time_mix_w1",
    "time_mix_w2",
];
/// Names of F32 tensors outside blocks.
const F32_WHOLE: &[&str] = &["a.position_embd", "position_embd", "token_types", "v.position_embd"];
/// Parts of the names of convolution kernels.
const CONVOLVED: &[&str] = &[".patch_embd.weight", ".patch_merger.weight"];
/// Names of tensors that stay F16 in ternary files, inside and outside blocks.
const F16_TERNARY_IN_BLOCK: &[&str] = &["laurel_l", "laurel_r"];
const F16_TERNARY_WHOLE: &[&str] = &["altup_router", "output", "per_layer_token_embd", "token_embd"];

/// Facts that decide the type of a tensor, in addition to the file type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeRule {
    /// Type rule of the entry.
    pub entry: EntryType,
    /// Block number in the source's name. The F32 names apply only if the target has the same block number.
    pub source_block: Option<u64>,
    /// Element type of the first source, for [`EntryType::Source`].
    pub source: Option<ElementType>,
}

impl TypeRule {
    /// Returns the type of a tensor with this name and these dimensions (outermost first).
    ///
    /// # Exactness
    /// Equals `ModelBase.prepare_tensors` of llama.cpp 0.5.0.
    pub fn ggml_type(&self, name: &str, dims: &[u64], file_type: OutType) -> GgmlType {
        let ty = self.wanted(name, dims.len(), file_type);
        let n_cols = dims.last().copied().unwrap_or(1);
        if ty.row_bytes(n_cols).is_some() { ty } else { GgmlType::F16 }
    }

    fn wanted(&self, name: &str, n_dims: usize, file_type: OutType) -> GgmlType {
        match self.entry {
            EntryType::I32 => return GgmlType::I32,
            EntryType::I64 => return GgmlType::I64,
            _ => {}
        }
        if n_dims <= 1 || name.ends_with("_norm.weight") {
            return GgmlType::F32;
        }
        match self.entry {
            EntryType::F32 => return GgmlType::F32,
            EntryType::F16 => return GgmlType::F16,
            EntryType::Conv => return convolved(file_type),
            EntryType::File => return file_type.ggml_type(),
            EntryType::Source => {
                return match self.source {
                    Some(ElementType::F16) => GgmlType::F16,
                    Some(ElementType::Bf16) => GgmlType::Bf16,
                    // 8-bit floats are stored in 8 bits.
                    Some(ElementType::F8E4M3 | ElementType::F8E5M2) => GgmlType::Q8_0,
                    _ => GgmlType::F32,
                };
            }
            // For `Blocks`, this is the type of floats if the weight has no blocks.
            EntryType::Auto | EntryType::Blocks | EntryType::I32 | EntryType::I64 => {}
        }
        if CONVOLVED.iter().any(|part| name.contains(part)) {
            return convolved(file_type);
        }
        let has_suffix = [".weight", ".lora_a", ".lora_b"].iter().any(|suffix| name.ends_with(suffix));
        if !has_suffix || self.is_one_of(name, F32_IN_BLOCK, F32_WHOLE) {
            return GgmlType::F32;
        }
        let is_ternary = matches!(file_type, OutType::Tq1_0 | OutType::Tq2_0);
        if is_ternary && self.is_one_of(name, F16_TERNARY_IN_BLOCK, F16_TERNARY_WHOLE) {
            return GgmlType::F16;
        }
        file_type.ggml_type()
    }

    fn is_one_of(&self, name: &str, in_block: &[&str], whole: &[&str]) -> bool {
        let Some(base) = name.strip_suffix(".weight") else { return false };
        let inside = || {
            let (block, rest) = base.strip_prefix("blk.")?.split_once('.')?;
            Some(in_block.contains(&rest) && block.parse().ok() == self.source_block)
        };
        whole.contains(&base) || inside().unwrap_or(false)
    }
}

fn convolved(file_type: OutType) -> GgmlType {
    if file_type == OutType::F16 { GgmlType::F16 } else { GgmlType::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    #[test]
    fn rows_sit_at_their_variant() {
        for (index, row) in OutType::ALL.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(OutType::from_name(row.1), Some(row.0));
        }
    }

    #[test]
    fn names_and_shapes_decide_before_the_file_type() {
        let rule = TypeRule { entry: EntryType::Auto, source_block: Some(3), source: None };
        let ty = |name: &str, dims: &[u64], file_type| rule.ggml_type(name, dims, file_type);
        for (name, dims, file_type, want) in [
            ("blk.3.attn_q.weight", &[64, 64][..], OutType::Q8_0, GgmlType::Q8_0),
            ("blk.3.attn_q.weight", &[64, 40], OutType::Q8_0, GgmlType::F16),
            ("blk.3.attn_norm.weight", &[64], OutType::Q8_0, GgmlType::F32),
            ("blk.3.attn_q_norm.weight", &[4, 64], OutType::F16, GgmlType::F32),
            ("blk.3.ffn_down_exps.bias", &[4, 64], OutType::F16, GgmlType::F32),
            ("blk.3.ffn_gate_inp.weight", &[4, 64], OutType::F16, GgmlType::F32),
            ("blk.4.ffn_gate_inp.weight", &[4, 64], OutType::F16, GgmlType::F16),
            ("position_embd.weight", &[4, 64], OutType::F16, GgmlType::F32),
            ("token_embd.weight", &[4, 256], OutType::Tq1_0, GgmlType::F16),
            ("blk.3.attn_q.weight", &[4, 256], OutType::Tq2_0, GgmlType::Tq2_0),
            ("blk.3.attn_q.weight", &[4, 64], OutType::Tq2_0, GgmlType::F16),
            ("v.patch_embd.weight", &[4, 3, 8, 8], OutType::F16, GgmlType::F16),
            ("v.patch_embd.weight", &[4, 3, 8, 8], OutType::Bf16, GgmlType::F32),
            ("v.patch_embd.weight.1", &[4, 3, 8, 8], OutType::F16, GgmlType::F16),
            ("v.patch_embd.bias", &[4], OutType::F16, GgmlType::F32),
            ("v.position_embd.weight", &[4, 64], OutType::F16, GgmlType::F32),
        ] {
            assert_eq!(ty(name, dims, file_type), want, "{name} {dims:?} {file_type}");
        }
        let file = TypeRule { entry: EntryType::File, ..rule };
        assert_eq!(file.ggml_type("blk.3.ffn_gate_inp.weight", &[4, 64], OutType::F16), GgmlType::F16);
        let conv = TypeRule { entry: EntryType::Conv, ..rule };
        assert_eq!(conv.ggml_type("mm.0.weight", &[4, 64], OutType::F16), GgmlType::F16);
        assert_eq!(conv.ggml_type("mm.0.weight", &[4, 64], OutType::Q8_0), GgmlType::F32);
    }

    #[test]
    fn auto_follows_the_first_narrow_matrix() {
        let weight = |ty, dims: &[u64]| WeightMeta {
            name: String::new(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty,
        };
        let weights = [
            weight(ElementType::F16, &[4]),
            weight(ElementType::F32, &[4, 4]),
            weight(ElementType::Bf16, &[4, 4]),
            weight(ElementType::F16, &[4, 4]),
        ];
        assert_eq!(OutType::auto(&weights), OutType::Bf16);
        assert_eq!(OutType::auto(&weights[..2]), OutType::F16);
    }
}
