//! llama.cpp's mixtures: weights of a file type that get more or fewer bits than its base type.
//!
//! Each role has its own function, with one arm per file type that deviates. Rules that depend on the place in the
//! model count tensors of the role in file order.

use crate::class::layer_of;
use crate::{FileType, ModelFacts, QuantizeOptions, TensorClass};
use gguf_core::{GgmlType, TensorMeta};

/// State of a walk over the tensors of one model.
pub(crate) struct Mixture<'a> {
    file_type: FileType,
    base: GgmlType,
    facts: &'a ModelFacts,
    options: &'a QuantizeOptions,
    has_imatrix: bool,
    /// True without `output.weight`: the token embeddings are then also the output.
    is_tied: bool,
    n_values: i32,
    seen_values: i32,
    seen_up: i32,
    seen_gate: i32,
    seen_down: i32,
}

/// Position of a tensor among those of its role.
#[derive(Clone, Copy)]
struct RolePosition {
    index: i32,
    of: i32,
}

impl RolePosition {
    /// Returns true in the first of `parts` equal parts.
    fn in_first(self, parts: i32) -> bool {
        self.index < self.of / parts
    }

    /// Returns true in the first and last eighth, and for every third tensor in between.
    fn gets_more_bits(self) -> bool {
        let eighth = self.of / 8;
        self.index < eighth
            || i64::from(self.index) >= 7 * i64::from(self.of) / 8
            || (self.index - eighth) % 3 == 2
    }

    /// Returns true outside of the first and last eighth.
    fn in_middle(self) -> bool {
        self.index >= self.of / 8 && i64::from(self.index) < 7 * i64::from(self.of) / 8
    }
}

impl<'a> Mixture<'a> {
    /// Begins a walk over tensors of these classes.
    pub(crate) fn new(
        base: GgmlType,
        facts: &'a ModelFacts,
        options: &'a QuantizeOptions,
        has_imatrix: bool,
        classes: impl Iterator<Item = TensorClass>,
    ) -> Self {
        let mut is_tied = true;
        let mut n_values = 0;
        for class in classes {
            is_tied &= class != TensorClass::Output;
            n_values += i32::from(class.holds_values());
        }
        Self {
            file_type: options.file_type,
            base,
            facts,
            options,
            has_imatrix,
            is_tied,
            n_values,
            seen_values: 0,
            seen_up: 0,
            seen_gate: 0,
            seen_down: 0,
        }
    }

    pub(crate) fn choose(&mut self, tensor: &TensorMeta, class: TensorClass) -> GgmlType {
        let is_output = class == TensorClass::Output || (self.is_tied && class == TensorClass::TokenEmbd);
        if self.is_held_at_8_bits(&tensor.name) {
            GgmlType::Q8_0
        } else if is_output {
            self.output(tensor)
        } else if self.file_type == FileType::Mxfp4Moe {
            self.expert_floats(tensor, class)
        } else if class == TensorClass::TokenEmbd {
            self.token_embd()
        } else if self.is_below_3_bits() {
            self.below_3_bits(class)
        } else {
            match class {
                class if class.holds_values() => self.values(),
                TensorClass::AttnK => self.keys(),
                TensorClass::AttnQ => self.queries(),
                TensorClass::AttnOutput => self.attn_output(),
                TensorClass::FfnDown => self.ffn_down(&tensor.name),
                TensorClass::FfnGate => {
                    let place = self.place(&tensor.name, self.seen_gate);
                    self.seen_gate += 1;
                    self.ffn_rest(place)
                }
                TensorClass::FfnUp => {
                    let place = self.place(&tensor.name, self.seen_up);
                    self.seen_up += 1;
                    self.ffn_rest(place)
                }
                _ => self.base,
            }
        }
    }

    fn is_falcon(&self) -> bool {
        self.facts.architecture == "falcon"
    }

    /// Returns true if four or more query heads share a key head. The value projection is then small, so more bits cost
    /// little.
    fn shares_heads(&self) -> bool {
        self.facts.n_gqa >= 4
    }

    /// Place in the feed-forward stack: the layer number from the name in models with experts, otherwise a count.
    fn place(&self, name: &str, seen: i32) -> RolePosition {
        let index = if self.facts.n_experts > 1 { layer_of(name).unwrap_or(seen) } else { seen };
        RolePosition { index, of: self.facts.n_layers }
    }

    fn is_held_at_8_bits(&self, name: &str) -> bool {
        self.facts.architecture == "glm5-next"
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"].iter().any(|part| name.contains(part))
            && !matches!(self.base, GgmlType::F32 | GgmlType::Bf16 | GgmlType::F16)
    }

    fn output(&self, tensor: &TensorMeta) -> GgmlType {
        if let Some(ty) = self.options.output_tensor_type {
            return ty;
        }
        let fits = tensor.shape.n_cols().is_multiple_of(self.base.block_elems() as u64);
        match self.file_type {
            FileType::Mxfp4Moe => GgmlType::Q8_0,
            _ if self.is_falcon() || !fits => GgmlType::Q8_0,
            FileType::Iq3Xxs => GgmlType::Q5K,
            _ if self.is_below_3_bits() => GgmlType::Q5K,
            _ if self.base == GgmlType::Q8_0 => GgmlType::Q8_0,
            _ => GgmlType::Q6K,
        }
    }

    fn token_embd(&self) -> GgmlType {
        if let Some(ty) = self.options.token_embedding_type {
            return ty;
        }
        match self.file_type {
            FileType::Iq2Xxs | FileType::Iq2Xs | FileType::Iq1S | FileType::Iq1M => GgmlType::Q2K,
            FileType::Iq2S | FileType::Iq2M | FileType::Iq3Xxs => GgmlType::Iq3S,
            FileType::Tq1_0 | FileType::Tq2_0 | FileType::Q2_0 => GgmlType::Q4K,
            _ => self.base,
        }
    }

    /// Types of MXFP4 mixtures: 4-bit floats for experts. ref: every stack of matrices counts as experts, except in one
    /// architecture that also has stacks in attention.
    fn expert_floats(&self, tensor: &TensorMeta, class: TensorClass) -> GgmlType {
        let is_ffn = matches!(class, TensorClass::FfnUp | TensorClass::FfnGate | TensorClass::FfnDown);
        let is_stack = tensor.shape.dims().iter().rev().nth(2).is_some_and(|&n| n > 1);
        if is_stack && (is_ffn || self.facts.architecture != "bailingmoe3") {
            GgmlType::Mxfp4
        } else {
            GgmlType::Q8_0
        }
    }

    fn is_below_3_bits(&self) -> bool {
        use FileType::{Iq1M, Iq1S, Iq2M, Iq2S, Iq2Xs, Iq2Xxs};
        matches!(self.file_type, Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq2M)
    }

    /// Types of all roles in the codebook types below 3 bits.
    fn below_3_bits(&mut self, class: TensorClass) -> GgmlType {
        let is_larger_half = matches!(self.file_type, FileType::Iq2S | FileType::Iq2M);
        let better = if is_larger_half { GgmlType::Iq3S } else { GgmlType::Q2K };
        match class {
            class if class.holds_values() => {
                self.seen_values += 1;
                if self.shares_heads() || self.facts.n_experts >= 4 { GgmlType::Q4K } else { better }
            }
            TensorClass::AttnK if self.facts.has_eight_experts() => GgmlType::Q4K,
            TensorClass::FfnDown => {
                let place = RolePosition { index: self.seen_down, of: self.facts.n_layers };
                self.seen_down += 1;
                if place.in_first(8) { better } else { self.base }
            }
            TensorClass::AttnOutput if self.facts.has_eight_experts() => GgmlType::Q5K,
            TensorClass::AttnOutput if is_larger_half => GgmlType::Iq3S,
            TensorClass::AttnOutput if matches!(self.file_type, FileType::Iq1S | FileType::Iq1M) => {
                GgmlType::Iq2Xxs
            }
            _ => self.base,
        }
    }

    fn values(&mut self) -> GgmlType {
        let place = RolePosition { index: self.seen_values, of: self.n_values };
        self.seen_values += 1;
        let ty = match self.file_type {
            FileType::Q2K if !self.shares_heads() => GgmlType::Q3K,
            FileType::Q2K | FileType::Iq3M => GgmlType::Q4K,
            FileType::Q2KS | FileType::Iq3Xxs | FileType::Iq3Xs | FileType::Iq3S if self.shares_heads() => {
                GgmlType::Q4K
            }
            FileType::Iq3Xxs if !self.has_imatrix => GgmlType::Iq3S,
            FileType::Q3KM if place.index >= 2 => GgmlType::Q4K,
            FileType::Q3KM | FileType::Q3KL => GgmlType::Q5K,
            FileType::Iq4Nl | FileType::Iq4Xs if self.shares_heads() => GgmlType::Q5K,
            FileType::Q4KM | FileType::Q5KM if place.gets_more_bits() => GgmlType::Q6K,
            FileType::Q4KS if place.index < 4 => GgmlType::Q5K,
            _ => self.base,
        };
        match ty {
            _ if self.facts.has_eight_experts() => GgmlType::Q8_0,
            GgmlType::Q3K | GgmlType::Q4K if self.facts.is_70b => GgmlType::Q5K,
            ty => ty,
        }
    }

    fn keys(&self) -> GgmlType {
        if self.facts.has_eight_experts() { GgmlType::Q8_0 } else { self.queries() }
    }

    fn queries(&self) -> GgmlType {
        match self.file_type {
            FileType::Iq3Xs => GgmlType::Iq3Xxs,
            FileType::Iq3Xxs => GgmlType::Iq2S,
            _ => self.base,
        }
    }

    fn ffn_down(&mut self, name: &str) -> GgmlType {
        let place = self.place(name, self.seen_down);
        self.seen_down += 1;
        match self.file_type {
            FileType::Q2K => GgmlType::Q3K,
            FileType::Q2KS | FileType::Iq3M if place.in_first(8) => GgmlType::Q4K,
            FileType::Iq3Xxs if !self.has_imatrix && place.in_first(8) => GgmlType::Q4K,
            FileType::Iq3Xxs if !self.has_imatrix => GgmlType::Q3K,
            FileType::Iq3M if self.facts.has_eight_experts() && place.gets_more_bits() => GgmlType::Q4K,
            FileType::Q3KM if place.in_first(16) => GgmlType::Q5K,
            FileType::Q3KM if !self.is_falcon() || place.gets_more_bits() => GgmlType::Q4K,
            FileType::Q3KL if self.is_falcon() => GgmlType::Q4K,
            FileType::Q3KL => GgmlType::Q5K,
            FileType::Q4KM if self.is_falcon() && place.in_first(16) => GgmlType::Q6K,
            FileType::Q4KM if self.is_falcon() && place.gets_more_bits() => GgmlType::Q5K,
            FileType::Q4KM if self.is_falcon() => GgmlType::Q4K,
            FileType::Q4KM | FileType::Q5KM if place.gets_more_bits() => GgmlType::Q6K,
            FileType::Iq4Nl | FileType::Iq4Xs if !self.has_imatrix && place.in_first(8) => GgmlType::Q5K,
            FileType::Q4KS if !self.is_falcon() && place.in_first(8) => GgmlType::Q5K,
            // With importance weights these types can be inaccurate in the first layers.
            FileType::Q4_0 if self.has_imatrix && place.in_first(8) => GgmlType::Q4_1,
            FileType::Q5_0 if self.has_imatrix && place.in_first(8) => GgmlType::Q5_1,
            _ => self.base,
        }
    }

    /// Types of gate and up projections.
    fn ffn_rest(&self, place: RolePosition) -> GgmlType {
        match self.file_type {
            FileType::Iq3Xs if place.in_middle() => GgmlType::Iq3Xxs,
            _ => self.base,
        }
    }

    fn attn_output(&self) -> GgmlType {
        use FileType::{Iq3M, Iq3S, Iq3Xs, Iq3Xxs, Iq4Nl, Iq4Xs, Q2K, Q3KL, Q3KM, Q3KS, Q4KM, Q4KS};
        match self.file_type {
            Q3KL if self.is_falcon() => GgmlType::Q4K,
            _ if self.is_falcon() => self.base,
            Q2K | Q3KS | Q3KM | Q4KS | Q4KM | Iq3Xxs | Iq3Xs | Iq3S | Iq3M | Iq4Nl | Iq4Xs
                if self.facts.has_eight_experts() =>
            {
                GgmlType::Q5K
            }
            _ if self.facts.has_eight_experts() => self.base,
            Q2K => GgmlType::Q3K,
            Iq3Xxs => GgmlType::Iq3S,
            Q3KM | Iq3M => GgmlType::Q4K,
            Q3KL => GgmlType::Q5K,
            _ => self.base,
        }
    }
}
