//! Types of an output's tensors.

use std::path::PathBuf;
use std::str::FromStr;

use crate::arch::OutType;
use crate::convert::Codes;
use crate::core::GgmlType;
use crate::quantize::{FileType, OptionError, SizeTarget, parse_file_type_or};

/// Block types that can take over integers, with their scales rounded, and 4-bit floats unchanged.
const KEEPING: [GgmlType; 5] =
    [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Mxfp4];

/// Types of an output's tensors. A GGUF file is quantized: to a mixture, to types for a size or a divergence, or to those of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum JobTypes {
    /// Type that the converter itself writes.
    Plain {
        /// Type of the file; `None` for the one that suits the checkpoint.
        file_type: Option<OutType>,
        /// Treatment of the checkpoint's integers.
        codes: Codes,
    },
    /// Integers of the checkpoint, if they can be kept.
    Native {
        /// True to keep them also if their scales must be rounded.
        allow_rounding: bool,
    },
    /// Type that is quantized to, from F32, in one pass.
    Mixture {
        /// Type of the file.
        file_type: FileType,
        /// Block type in which the checkpoint's integers are kept, if the mixture uses it.
        keep: Option<GgmlType>,
    },
    /// Types that are chosen for a size or a divergence of the file.
    Size {
        /// Limit of the file.
        target: FileTarget,
        /// Types to choose from; empty for the default ones.
        candidates: Vec<GgmlType>,
    },
    /// Types that the tensors of a GGUF file have.
    Like {
        /// The file; of a split one the first part.
        file: PathBuf,
        /// True to go through floats also where the checkpoint's integers could be kept.
        requantize: bool,
    },
}

/// Limit of a file whose types are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FileTarget {
    /// Size, for which the file diverges least.
    Size(SizeTarget),
    /// Mean KLD (nats) on held-out text with two standard errors, for which the file is smallest.
    Kld(f64),
}

/// Options that change the meaning of a type's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeSwitches {
    /// True to keep integers also where their scales must be rounded (`native`).
    pub allow_rounding: bool,
    /// True to go through floats also where the checkpoint's integers could be kept.
    pub requantize: bool,
}

impl JobTypes {
    /// Name of the type that suits the checkpoint.
    pub const AUTO: &str = "auto";
    /// Name of the types that keep the checkpoint's integers.
    pub const NATIVE: &str = "native";

    /// Resolves the name of a type: `auto`, `native`, a file type in any case or its number.
    pub fn named(name: &str, switches: TypeSwitches) -> Result<Self, OptionError> {
        let TypeSwitches { allow_rounding, requantize } = switches;
        let lower = name.to_ascii_lowercase();
        if lower == Self::NATIVE {
            return Ok(Self::Native { allow_rounding });
        }
        let plain = OutType::from_name(&lower);
        if plain.is_some() || lower == Self::AUTO {
            let codes = match plain {
                _ if requantize => Codes::Float,
                Some(OutType::Q8_0) => Codes::Keep(GgmlType::Q8_0),
                _ => Codes::Card,
            };
            return Ok(Self::Plain { file_type: plain, codes });
        }
        let file_type = parse_file_type_or(name, &[Self::AUTO, Self::NATIVE])?;
        let keep = file_type.base().filter(|ty| !requantize && KEEPING.contains(ty));
        Ok(Self::Mixture { file_type, keep })
    }

    /// Returns the mixture of a file type.
    pub fn mixture(file_type: FileType) -> Self {
        Self::Mixture { file_type, keep: None }
    }

    /// Returns true if the tensors are quantized: to a mixture, for a size or after a file.
    pub fn is_quantized(&self) -> bool {
        matches!(self, Self::Mixture { .. } | Self::Size { .. } | Self::Like { .. })
    }

    /// Returns the block type in which a quantization to `file_type` keeps the checkpoint's integers.
    pub(super) fn kept(&self, file_type: FileType) -> Option<GgmlType> {
        match self {
            Self::Mixture { keep, .. } => *keep,
            Self::Like { requantize: false, .. } => file_type.base().filter(|ty| KEEPING.contains(ty)),
            Self::Plain { .. } | Self::Native { .. } | Self::Size { .. } | Self::Like { .. } => None,
        }
    }

    /// Returns the file type of the conversion that is written or quantized.
    pub(super) fn converted(&self) -> Option<OutType> {
        match self {
            Self::Plain { file_type, .. } => *file_type,
            Self::Native { .. } | Self::Mixture { .. } | Self::Size { .. } | Self::Like { .. } => {
                Some(OutType::F32)
            }
        }
    }

    /// Returns the treatment of the checkpoint's integers in that conversion.
    pub(super) fn codes(&self) -> Codes {
        match self {
            Self::Plain { codes, .. } => *codes,
            Self::Native { allow_rounding } => Codes::Native { allow_rounding: *allow_rounding },
            Self::Mixture { .. } | Self::Size { .. } | Self::Like { .. } => Codes::Float,
        }
    }

    /// Returns the file type, unless a size or a file decides or nothing is quantized.
    pub(super) fn asked(&self) -> Option<FileType> {
        match self {
            Self::Mixture { file_type, .. } => Some(*file_type),
            Self::Plain { .. } | Self::Native { .. } | Self::Size { .. } | Self::Like { .. } => None,
        }
    }

    /// Returns the limit, if one decides.
    pub(super) fn target(&self) -> Option<FileTarget> {
        match self {
            Self::Size { target, .. } => Some(*target),
            Self::Plain { .. } | Self::Native { .. } | Self::Mixture { .. } | Self::Like { .. } => None,
        }
    }
}

/// Name of a type without switches.
impl FromStr for JobTypes {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Self, OptionError> {
        Self::named(name, TypeSwitches::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types() {
        let types = |name: &str| name.parse::<JobTypes>().unwrap();
        let plain = |file_type, codes| JobTypes::Plain { file_type, codes };
        assert_eq!(types("auto"), plain(None, Codes::Card));
        assert_eq!(types("F16"), plain(Some(OutType::F16), Codes::Card));
        assert_eq!(types("q8_0"), plain(Some(OutType::Q8_0), Codes::Keep(GgmlType::Q8_0)));
        assert_eq!(types("Native"), JobTypes::Native { allow_rounding: false });
        let mixture = |file_type, keep| JobTypes::Mixture { file_type, keep };
        assert_eq!(types("q4_k_m"), mixture(FileType::Q4KM, None));
        assert_eq!(types("Q4_0"), mixture(FileType::Q4_0, Some(GgmlType::Q4_0)));
        // Numbers of llama-quantize.
        assert_eq!(types("15"), mixture(FileType::Q4KM, None));
        let switches = TypeSwitches { requantize: true, ..TypeSwitches::default() };
        let found = JobTypes::named("q8_0", switches).unwrap();
        assert_eq!(found, plain(Some(OutType::Q8_0), Codes::Float));
        let found = JobTypes::named("q4_0", switches).unwrap();
        assert_eq!(found, mixture(FileType::Q4_0, None));
        assert_eq!((found.converted(), found.codes()), (Some(OutType::F32), Codes::Float));
    }
}
