//! The type tables: GGML tensor types (of GGUF files) and checkpoint element types (of safetensors, PyTorch and similar
//! formats). One row per type; every lookup reads that row.

use std::fmt;

use serde::{Serialize, Serializer};

/// Need of a quantizer for an importance matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImatrixNeed {
    /// Importance weights do not change the result.
    Ignored,
    /// Used when given.
    Optional,
    /// The quantizer refuses to run without one.
    Required,
}

/// One row of the type table.
#[derive(Clone, Copy, Debug)]
pub struct GgmlTypeInfo {
    /// The type itself.
    pub ty: GgmlType,
    /// Type number in the file format.
    pub id: u32,
    /// Name as the format spells it, used in messages.
    pub name: &'static str,
    /// Elements per block (1 for plain types).
    pub block_elems: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Need of an importance matrix when quantizing to it.
    pub imatrix: ImatrixNeed,
}

macro_rules! ggml_types {
    ($( $variant:ident = $id:literal, $name:literal, $elems:literal, $bytes:literal, $imatrix:ident; )*) => {
        /// A tensor type of the GGUF format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum GgmlType {
            $(
                #[doc = concat!("`", $name, "`: ", $elems, " elements in ", $bytes, " bytes.")]
                $variant,
            )*
        }

        /// All types in the order of their numbers.
        static GGML_TYPES: &[GgmlTypeInfo] = &[
            $( GgmlTypeInfo {
                ty: GgmlType::$variant, id: $id, name: $name, block_elems: $elems, block_bytes: $bytes,
                imatrix: ImatrixNeed::$imatrix,
            }, )*
        ];
    };
}

ggml_types! {
    F32 = 0, "F32", 1, 4, Ignored;
    F16 = 1, "F16", 1, 2, Ignored;
    Q4_0 = 2, "Q4_0", 32, 18, Optional;
    Q4_1 = 3, "Q4_1", 32, 20, Optional;
    Q5_0 = 6, "Q5_0", 32, 22, Optional;
    Q5_1 = 7, "Q5_1", 32, 24, Optional;
    Q8_0 = 8, "Q8_0", 32, 34, Ignored;
    Q8_1 = 9, "Q8_1", 32, 36, Ignored;
    Q2K = 10, "Q2_K", 256, 84, Optional;
    Q3K = 11, "Q3_K", 256, 110, Optional;
    Q4K = 12, "Q4_K", 256, 144, Optional;
    Q5K = 13, "Q5_K", 256, 176, Optional;
    Q6K = 14, "Q6_K", 256, 210, Optional;
    Q8K = 15, "Q8_K", 256, 292, Ignored;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66, Required;
    Iq2Xs = 17, "IQ2_XS", 256, 74, Required;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98, Optional;
    Iq1S = 19, "IQ1_S", 256, 50, Required;
    Iq4Nl = 20, "IQ4_NL", 32, 18, Optional;
    Iq3S = 21, "IQ3_S", 256, 110, Optional;
    Iq2S = 22, "IQ2_S", 256, 82, Optional;
    Iq4Xs = 23, "IQ4_XS", 256, 136, Optional;
    I8 = 24, "I8", 1, 1, Ignored;
    I16 = 25, "I16", 1, 2, Ignored;
    I32 = 26, "I32", 1, 4, Ignored;
    I64 = 27, "I64", 1, 8, Ignored;
    F64 = 28, "F64", 1, 8, Ignored;
    Iq1M = 29, "IQ1_M", 256, 56, Optional;
    Bf16 = 30, "BF16", 1, 2, Ignored;
    Tq1_0 = 34, "TQ1_0", 256, 54, Ignored;
    Tq2_0 = 35, "TQ2_0", 256, 66, Ignored;
    Mxfp4 = 39, "MXFP4", 32, 17, Ignored;
    Nvfp4 = 40, "NVFP4", 64, 36, Ignored;
    Q1_0 = 41, "Q1_0", 128, 18, Ignored;
    Q2_0 = 42, "Q2_0", 64, 18, Ignored;
}

/// Types of earlier formats that no reader accepts any more: number, name.
static REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl GgmlType {
    /// Returns the type's table row.
    pub fn info(self) -> &'static GgmlTypeInfo {
        &GGML_TYPES[self as usize]
    }

    /// Iterates over all types in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        GGML_TYPES.iter().map(|row| row.ty)
    }

    /// Returns the type with this number in the file format, if it still exists.
    pub fn from_id(id: u32) -> Option<Self> {
        GGML_TYPES.iter().find(|row| row.id == id).map(|row| row.ty)
    }

    /// Returns the name of a type number that was removed from the format.
    pub fn removed_name(id: u32) -> Option<&'static str> {
        REMOVED.iter().find(|row| row.0 == id).map(|row| row.1)
    }

    /// Returns the type of this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        GGML_TYPES.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(|row| row.ty)
    }

    /// Number in the file format.
    pub fn id(self) -> u32 {
        self.info().id
    }

    /// Name as the format spells it (`Q4_K`).
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Elements per block.
    pub fn block_elems(self) -> usize {
        self.info().block_elems
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.info().block_bytes
    }

    /// Returns true for types whose blocks hold more than one element.
    pub fn is_quantized(self) -> bool {
        self.info().block_elems > 1
    }

    /// Bits per weight of a full block.
    pub fn bits_per_weight(self) -> f64 {
        self.info().block_bytes as f64 * 8.0 / self.info().block_elems as f64
    }

    /// Bytes of one row of `n_cols` elements; `None` if the row is not a whole number of blocks or overflows.
    pub fn row_bytes(self, n_cols: u64) -> Option<u64> {
        let info = self.info();
        if !n_cols.is_multiple_of(info.block_elems as u64) {
            return None;
        }
        (n_cols / info.block_elems as u64).checked_mul(info.block_bytes as u64)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for GgmlType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

macro_rules! element_types {
    ($( $variant:ident = $name:literal, $bits:literal; )*) => {
        /// Element type of a checkpoint tensor, before any conversion. Names are those of safetensors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ElementType {
            $( #[doc = concat!("`", $name, "`, ", $bits, " bits.")] $variant, )*
        }

        static ELEMENT_TYPES: &[(ElementType, &str, u32)] = &[
            $( (ElementType::$variant, $name, $bits), )*
        ];
    };
}

element_types! {
    F64 = "F64", 64;
    F32 = "F32", 32;
    F16 = "F16", 16;
    Bf16 = "BF16", 16;
    I64 = "I64", 64;
    I32 = "I32", 32;
    I16 = "I16", 16;
    I8 = "I8", 8;
    U64 = "U64", 64;
    U32 = "U32", 32;
    U16 = "U16", 16;
    U8 = "U8", 8;
    Bool = "BOOL", 8;
    F8E4M3 = "F8_E4M3", 8;
    F8E5M2 = "F8_E5M2", 8;
    F8E8M0 = "F8_E8M0", 8;
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8;
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8;
    F6E2M3 = "F6_E2M3", 6;
    F6E3M2 = "F6_E3M2", 6;
    F4 = "F4", 4;
    C64 = "C64", 64;
}

impl ElementType {
    /// Returns the type of this safetensors name.
    pub fn from_name(name: &str) -> Option<Self> {
        ELEMENT_TYPES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The safetensors name.
    pub fn name(self) -> &'static str {
        ELEMENT_TYPES[self as usize].1
    }

    /// Bits per element.
    pub fn bits(self) -> u32 {
        ELEMENT_TYPES[self as usize].2
    }

    /// Bytes per element; `None` for types narrower than a byte.
    pub fn bytes(self) -> Option<usize> {
        let bits = self.bits();
        (bits >= 8).then_some(bits as usize / 8)
    }

    /// Returns true for the floating-point types of weights without any quantization.
    pub fn is_plain_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_sit_at_their_variant() {
        for (index, row) in GGML_TYPES.iter().enumerate() {
            assert_eq!(row.ty as usize, index, "{}", row.name);
            assert_eq!(GgmlType::from_id(row.id), Some(row.ty));
            assert_eq!(GgmlType::from_name(&row.name.to_lowercase()), Some(row.ty));
        }
        for (index, row) in ELEMENT_TYPES.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
        }
    }

    #[test]
    fn removed_numbers_are_not_types() {
        for (id, _) in REMOVED {
            assert_eq!(GgmlType::from_id(*id), None);
        }
    }

    #[test]
    fn a_row_is_whole_blocks() {
        assert_eq!(GgmlType::Q6K.row_bytes(512), Some(420));
        assert_eq!(GgmlType::Q6K.row_bytes(576), None);
        assert_eq!(GgmlType::F64.row_bytes(u64::MAX), None);
    }
}
