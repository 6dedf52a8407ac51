//! Files of other programs, with block types, names or shapes that llama.cpp does not support. Their metadata and
//! tensor list can be read, and copied with changes; their blocks cannot be decoded.

use gguf_core::GgmlType;

/// Declared shape and type of a tensor that llama.cpp's format does not cover. Its [`gguf_core::TensorMeta`]
/// describes only the bytes: `I8`, one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredTensor {
    /// Dimensions, outermost first.
    pub dims: Vec<u64>,
    /// Number of the type.
    pub type_id: u32,
}

impl DeclaredTensor {
    /// Returns name and number of the type, as far as known.
    pub fn type_name(&self) -> String {
        let id = self.type_id;
        match GgmlType::from_id(id) {
            Some(ty) => ty.to_string(),
            None => match foreign_type(id).and_then(|row| row.0).or(GgmlType::removed_name(id)) {
                Some(name) => format!("{name} ({id})"),
                None => format!("type {id}"),
            },
        }
    }

    /// Returns the program that writes the type, if known.
    pub fn program(&self) -> Option<&'static str> {
        foreign_type(self.type_id).map(|row| row.1)
    }

    /// Number of elements; saturates.
    pub fn n_elems(&self) -> u64 {
        self.dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
    }
}

const IK: &str = "ik_llama.cpp";
const BITNET: &str = "BitNet";
/// Writes the blocks of gpt-oss under a number that llama.cpp gave up before there was GGUF.
pub(crate) const OLLAMA: &str = "Ollama";

/// Number, name and program of block types that current llama.cpp does not have.
static TYPES: &[(u32, &str, &str)] = &[
    (4, "MXFP4", OLLAMA),
    // llama.cpp once used 36 to 38 for repacked IQ4_NL; files in circulation are BitNet's.
    (36, "I2_S", BITNET),
    (37, "I8_S", BITNET),
    (38, "TL1", BITNET),
    (133, "Q6_0", IK),
    (134, "IQ1_BN", IK),
    (135, "IQ2_BN", IK),
    (136, "Q8_K64", IK),
    (137, "IQ2_K", IK),
    (138, "IQ3_K", IK),
    (139, "IQ4_K", IK),
    (140, "IQ5_K", IK),
    (141, "IQ6_K", IK),
    (142, "IQ2_TN", IK),
    (143, "IQ1_TN", IK),
    (144, "IQ4_KS", IK),
    (145, "IQ2_KS", IK),
    (146, "IQ4_KSS", IK),
    (147, "Q8_K16", IK),
    (148, "Q8_K32", IK),
    (149, "Q8_KR8", IK),
    (150, "Q8_K128", IK),
    (151, "Q8_KV", IK),
    (152, "IQ5_KS", IK),
    (153, "IQ2_KT", IK),
    (154, "IQ3_KT", IK),
    (155, "IQ4_KT", IK),
    (156, "IQ3_KS", IK),
    (157, "IQ2_KL", IK),
    (158, "IQ1_KT", IK),
    (202, "Q4_0_R8", IK),
    (206, "Q5_0_R4", IK),
    (208, "Q8_0_R8", IK),
    (210, "Q2_K_R4", IK),
    (211, "Q3_K_R4", IK),
    (212, "Q4_K_R4", IK),
    (213, "Q5_K_R4", IK),
    (214, "Q6_K_R4", IK),
    (216, "IQ2_XXS_R4", IK),
    (217, "IQ2_XS_R4", IK),
    (218, "IQ3_XXS_R4", IK),
    (219, "IQ1_S_R4", IK),
    (220, "IQ4_NL_R4", IK),
    (221, "IQ3_S_R4", IK),
    (222, "IQ2_S_R4", IK),
    (223, "IQ4_XS_R8", IK),
    (229, "IQ1_M_R4", IK),
    (230, "BF16_R16", IK),
    (233, "Q6_0_R4", IK),
    (335, "IQ2_BN_R4", IK),
    (337, "IQ2_K_R4", IK),
    (338, "IQ3_K_R4", IK),
    (339, "IQ4_K_R4", IK),
    (340, "IQ5_K_R4", IK),
    (344, "IQ4_KS_R4", IK),
    (352, "IQ5_KS_R4", IK),
    (397, "Q8_K_R16", IK),
    (398, "Q8_KV_R8", IK),
    (399, "Q8_K_R8", IK),
];

/// Numbers of ik_llama.cpp's types; types newer than the table have no name here.
const OF_IK: std::ops::RangeInclusive<u32> = 133..=400;

/// Returns the name (if known) and the program of a block type that is not llama.cpp's.
pub(crate) fn foreign_type(id: u32) -> Option<(Option<&'static str>, &'static str)> {
    let row = TYPES.iter().find(|row| row.0 == id).map(|row| (Some(row.1), row.2));
    row.or_else(|| OF_IK.contains(&id).then_some((None, IK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_and_programs() {
        let of = |type_id| DeclaredTensor { dims: vec![8, 256], type_id };
        assert_eq!((of(139).type_name(), of(139).program()), ("IQ4_K (139)".to_owned(), Some(IK)));
        assert_eq!((of(36).type_name(), of(36).program()), ("I2_S (36)".to_owned(), Some(BITNET)));
        assert_eq!((of(4).type_name(), of(4).program()), ("MXFP4 (4)".to_owned(), Some(OLLAMA)));
        assert_eq!((of(0).type_name(), of(0).program()), ("F32".to_owned(), None));
        assert_eq!((of(9999).type_name(), of(9999).program()), ("type 9999".to_owned(), None));
        assert_eq!((of(224).type_name(), of(224).program()), ("type 224".to_owned(), Some(IK)));
        assert_eq!((of(31).type_name(), of(31).program()), ("Q4_0_4_4 (31)".to_owned(), None));
    }

    #[test]
    fn no_type_of_ours_is_foreign_and_rows_are_sorted() {
        assert!(TYPES.iter().all(|row| GgmlType::from_id(row.0).is_none()));
        assert!(TYPES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
