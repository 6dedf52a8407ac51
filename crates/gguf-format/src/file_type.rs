//! File types of whole files (`Q4_K_M`), as opposed to the block types of their tensors: the only table of llama.cpp's
//! numbers and names.

use std::fmt;

use gguf_core::GgmlType;

/// Row of the table of file types.
struct FileTypeRow {
    file_type: FileType,
    id: u32,
    name: &'static str,
    base: Option<GgmlType>,
    about: &'static str,
}

macro_rules! file_types {
    ($( $variant:ident = $id:literal, $name:literal, $base:expr, $about:literal; )*) => {
        /// File type of llama.cpp: a base block type and the rules that deviate from it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FileType {
            $( #[doc = concat!("`", $name, "`: ", $about, ".")] $variant, )*
        }

        static FILE_TYPES: &[FileTypeRow] = &[
            $( FileTypeRow {
                file_type: FileType::$variant,
                id: $id,
                name: $name,
                base: $base,
                about: $about,
            }, )*
        ];
    };
}

file_types! {
    F32 = 0, "F32", Some(GgmlType::F32), "plain floats, no rounding from any source";
    F16 = 1, "F16", Some(GgmlType::F16), "half precision";
    Bf16 = 32, "BF16", Some(GgmlType::Bf16), "the upper half of a float";
    Q8_0 = 7, "Q8_0", Some(GgmlType::Q8_0), "8-bit blocks of 32";
    Q6K = 18, "Q6_K", Some(GgmlType::Q6K), "6-bit super-blocks throughout";
    Q5KM = 17, "Q5_K_M", Some(GgmlType::Q5K), "5-bit super-blocks, 6 bits where it counts";
    Q5KS = 16, "Q5_K_S", Some(GgmlType::Q5K), "5-bit super-blocks";
    Q5_1 = 9, "Q5_1", Some(GgmlType::Q5_1), "5-bit blocks of 32 with an offset";
    Q5_0 = 8, "Q5_0", Some(GgmlType::Q5_0), "5-bit blocks of 32";
    Q4KM = 15, "Q4_K_M", Some(GgmlType::Q4K), "4-bit super-blocks, 6 bits where it counts";
    Q4KS = 14, "Q4_K_S", Some(GgmlType::Q4K), "4-bit super-blocks, 5 bits in the first layers";
    Iq4Nl = 25, "IQ4_NL", Some(GgmlType::Iq4Nl), "4-bit blocks of 32 on a curved scale";
    Iq4Xs = 30, "IQ4_XS", Some(GgmlType::Iq4Xs), "4-bit super-blocks on a curved scale";
    Q4_1 = 3, "Q4_1", Some(GgmlType::Q4_1), "4-bit blocks of 32 with an offset";
    Q4_0 = 2, "Q4_0", Some(GgmlType::Q4_0), "4-bit blocks of 32";
    Mxfp4Moe = 38, "MXFP4_MOE", Some(GgmlType::Mxfp4), "4-bit floats for experts, Q8_0 for the rest";
    Q3KL = 13, "Q3_K_L", Some(GgmlType::Q3K), "3-bit super-blocks, 5 bits where it counts";
    Q3KM = 12, "Q3_K_M", Some(GgmlType::Q3K), "3-bit super-blocks, 4 and 5 bits where it counts";
    Q3KS = 11, "Q3_K_S", Some(GgmlType::Q3K), "3-bit super-blocks";
    Iq3M = 27, "IQ3_M", Some(GgmlType::Iq3S), "3-bit codebook, 4 bits where it counts";
    Iq3S = 26, "IQ3_S", Some(GgmlType::Iq3S), "3-bit codebook";
    Iq3Xs = 22, "IQ3_XS", Some(GgmlType::Iq3S), "3-bit codebook, less in the middle layers";
    Iq3Xxs = 23, "IQ3_XXS", Some(GgmlType::Iq3Xxs), "small 3-bit codebook";
    Q2K = 10, "Q2_K", Some(GgmlType::Q2K), "2-bit super-blocks, 3 and 4 bits where it counts";
    Q2KS = 21, "Q2_K_S", Some(GgmlType::Q2K), "2-bit super-blocks";
    Iq2M = 29, "IQ2_M", Some(GgmlType::Iq2S), "2-bit codebook, 3 bits where it counts";
    Iq2S = 28, "IQ2_S", Some(GgmlType::Iq2Xs), "2-bit codebook of the size below, 3 bits where it counts";
    Iq2Xs = 20, "IQ2_XS", Some(GgmlType::Iq2Xs), "small 2-bit codebook";
    Iq2Xxs = 19, "IQ2_XXS", Some(GgmlType::Iq2Xxs), "smallest 2-bit codebook";
    Q2_0 = 41, "Q2_0", Some(GgmlType::Q2_0), "2-bit blocks of 64";
    Tq2_0 = 37, "TQ2_0", Some(GgmlType::Tq2_0), "ternary weights, 2 bits each";
    Tq1_0 = 36, "TQ1_0", Some(GgmlType::Tq1_0), "ternary weights, five in a byte";
    Iq1M = 31, "IQ1_M", Some(GgmlType::Iq1M), "codebook below 2 bits";
    Iq1S = 24, "IQ1_S", Some(GgmlType::Iq1S), "smallest codebook";
    Q1_0 = 40, "Q1_0", Some(GgmlType::Q1_0), "signs and a scale, blocks of 128";
    Copy = 0, "COPY", None, "tensors as they are, in the order and metadata of a quantized file";
}

/// Short names that llama-quantize accepts.
static ALIASES: &[(&str, FileType)] =
    &[("Q3_K", FileType::Q3KM), ("Q4_K", FileType::Q4KM), ("Q5_K", FileType::Q5KM)];

/// Bit that marks a file type as guessed from the tensors, because the source did not declare one.
const GUESSED: u32 = 1024;

impl FileType {
    fn row(self) -> &'static FileTypeRow {
        &FILE_TYPES[self as usize]
    }

    /// Iterates over all file types, from most to fewest bits; [`FileType::Copy`] is last.
    pub fn all() -> impl Iterator<Item = Self> {
        FILE_TYPES.iter().map(|row| row.file_type)
    }

    /// Returns the file type with this name, in any case (`q4_k_m`, or the alias `q4_k`), or with llama.cpp's number
    /// (`15`). The number 0 means F32.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::from_id(text.parse().ok()?);
        }
        let alias = ALIASES.iter().find(|alias| alias.0.eq_ignore_ascii_case(text)).map(|alias| alias.1);
        alias.or_else(|| {
            FILE_TYPES.iter().find(|row| row.name.eq_ignore_ascii_case(text)).map(|row| row.file_type)
        })
    }

    /// Returns the file type with llama.cpp's number; 0 is F32. `None` for guessed types and types that cannot be
    /// requested.
    pub fn from_id(id: u32) -> Option<Self> {
        FILE_TYPES.iter().find(|row| row.id == id).map(|row| row.file_type)
    }

    /// llama.cpp's number, as stored in `general.file_type`. [`FileType::Copy`] has no number of its own and returns 0.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// Name in llama.cpp's spelling (`Q4_K_M`).
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Alias that [`FileType::parse`] accepts.
    pub fn alias(self) -> Option<&'static str> {
        ALIASES.iter().find(|alias| alias.1 == self).map(|alias| alias.0)
    }

    /// Block type of tensors without a rule; `None` if tensors are only copied.
    pub fn base(self) -> Option<GgmlType> {
        self.row().base
    }

    /// Short description.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    /// Guesses the number that a copied file without `general.file_type` gets: the block type of most of its tensors,
    /// with the bit for guessed types.
    ///
    /// # Exactness
    /// Among equally frequent types, the one that reaches the count first wins, in the given order. Types without a
    /// file type of their own count as F32.
    pub fn guess(types: impl Iterator<Item = GgmlType>) -> u32 {
        let mut counts: Vec<(GgmlType, usize)> = Vec::new();
        let mut most = (GgmlType::F32, 0);
        for ty in types {
            let count = match counts.iter_mut().find(|count| count.0 == ty) {
                Some(count) => {
                    count.1 += 1;
                    count.1
                }
                None => {
                    counts.push((ty, 1));
                    1
                }
            };
            if count > most.1 {
                most = (ty, count);
            }
        }
        guessed_id(most.0) | GUESSED
    }
}

/// llama.cpp's number for a file of NVFP4 blocks. It cannot be requested: such files are only made by conversion.
const NVFP4: u32 = 39;

/// Returns llama.cpp's number for a file whose large tensors have this block type. It is F32's for types without a
/// number, and for types that are part of several mixtures.
pub fn id_of_blocks(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::Nvfp4 => NVFP4,
        GgmlType::Mxfp4 => FileType::Mxfp4Moe.id(),
        ty => FILE_TYPES.iter().find(|row| row.name == ty.name()).map_or(FileType::F32.id(), |row| row.id),
    }
}

fn guessed_id(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::Q3K => FileType::Q3KM.id(),
        GgmlType::Q4K => FileType::Q4KM.id(),
        GgmlType::Q5K => FileType::Q5KM.id(),
        // ref: does not guess MXFP4
        GgmlType::Mxfp4 => FileType::F32.id(),
        ty => id_of_blocks(ty),
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GgmlType::{F16, F32, I32, Mxfp4, Nvfp4, Q4_0, Q4K, Q6K, Q8_0};

    #[test]
    fn rows_sit_at_their_variant_and_parse_back() {
        for (index, row) in FILE_TYPES.iter().enumerate() {
            assert_eq!(row.file_type as usize, index, "{}", row.name);
            assert_eq!(FileType::parse(&row.name.to_lowercase()), Some(row.file_type));
            if row.file_type != FileType::Copy {
                assert_eq!(FileType::parse(&row.id.to_string()), Some(row.file_type), "{}", row.name);
            }
        }
    }

    #[test]
    fn names_that_are_no_file_type() {
        for text in ["", "Q9_9", "4", "39", "15x", "-1", "99999999999", "NVFP4", "Q8_K"] {
            assert_eq!(FileType::parse(text), None, "{text}");
        }
        assert_eq!(FileType::parse("q4_K"), Some(FileType::Q4KM));
    }

    #[test]
    fn the_type_that_is_first_to_be_most_frequent_is_the_guess() {
        assert_eq!(FileType::guess([F32, F16, F16, F32].into_iter()), 1 | GUESSED);
        assert_eq!(FileType::guess([F32, F16, F32, F16].into_iter()), GUESSED);
        assert_eq!(FileType::guess([Q4K].into_iter()), 15 | GUESSED);
        assert_eq!(FileType::guess([I32].into_iter()), GUESSED);
        assert_eq!(FileType::guess([Mxfp4].into_iter()), GUESSED);
        assert_eq!(FileType::guess([Nvfp4].into_iter()), GUESSED + 39);
        assert_eq!(FileType::guess(std::iter::empty()), GUESSED);
    }

    #[test]
    fn blocks_have_the_number_of_their_file() {
        for (ty, id) in
            [(Q4_0, 2), (Q8_0, 7), (Q6K, 18), (Mxfp4, 38), (Nvfp4, 39), (F16, 1), (F32, 0), (I32, 0)]
        {
            assert_eq!(id_of_blocks(ty), id, "{ty}");
        }
    }
}
