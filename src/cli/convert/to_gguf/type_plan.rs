//! Meaning of `--type`: resolved once, then matched.

use crate::arch;
use crate::cli::UsageError;
use crate::cli::quantize::options::usage;
use crate::convert::Codes;
use crate::core::GgmlType;
use crate::quantize::{self, parse_file_type_or};

/// Values of `--type` that are not file types.
pub(in crate::cli::convert) const AUTO: &str = "auto";
const NATIVE: &str = "native";

/// Block types that can take over integers, with their scales rounded, and 4-bit floats unchanged.
const KEEPING: [GgmlType; 5] =
    [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Mxfp4];

/// Resolved `--type`, with the options that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypePlan {
    /// Type that the converter itself writes; `None` for the one that suits the checkpoint.
    Plain {
        file_type: Option<arch::OutType>,
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
        file_type: quantize::FileType,
        /// Block type in which the checkpoint's integers are kept, if the mixture uses it.
        keep: Option<GgmlType>,
    },
}

/// Options that change the meaning of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TypeSwitches {
    /// True with `--allow-rounding`.
    pub(super) allow_rounding: bool,
    /// True with `--requantize`.
    pub(super) requantize: bool,
    /// True if an option was given that requires a quantization.
    pub(super) has_quantize_options: bool,
}

impl TypePlan {
    /// Plan for a target size. The block type is arbitrary: the size decides the types.
    pub(super) const OF_A_SIZE: Self = Self::Mixture { file_type: quantize::FileType::Q4KM, keep: None };

    /// Resolves the name of a type.
    ///
    /// # Errors
    /// Bad usage: no such type, or quantization options for a type that is not quantized to.
    pub(super) fn resolve(name: &str, switches: TypeSwitches) -> anyhow::Result<Self> {
        let plan = Self::parse(name, switches)?;
        if switches.has_quantize_options && !matches!(plan, Self::Mixture { .. }) {
            let text = format!("quantization options go with a quantized type, not with `--type {name}`");
            return Err(UsageError(text).into());
        }
        Ok(plan)
    }

    fn parse(
        name: &str,
        TypeSwitches { allow_rounding, requantize, .. }: TypeSwitches,
    ) -> anyhow::Result<Self> {
        let lower = name.to_ascii_lowercase();
        if lower == NATIVE {
            return Ok(Self::Native { allow_rounding });
        }
        let plain = arch::OutType::from_name(&lower);
        if plain.is_some() || lower == AUTO {
            let codes = match plain {
                _ if requantize => Codes::Float,
                Some(arch::OutType::Q8_0) => Codes::Keep(GgmlType::Q8_0),
                _ => Codes::Card,
            };
            return Ok(Self::Plain { file_type: plain, codes });
        }
        let file_type = parse_file_type_or(name, &[AUTO, NATIVE]).map_err(usage)?;
        let keep = file_type.base().filter(|ty| !requantize && KEEPING.contains(ty));
        Ok(Self::Mixture { file_type, keep })
    }

    /// Returns the file type of the conversion.
    pub(super) fn file_type(self) -> Option<arch::OutType> {
        match self {
            Self::Plain { file_type, .. } => file_type,
            Self::Native { .. } | Self::Mixture { .. } => Some(arch::OutType::F32),
        }
    }

    /// Returns the treatment of the checkpoint's integers.
    pub(super) fn codes(self) -> Codes {
        match self {
            Self::Plain { codes, .. } => codes,
            Self::Native { allow_rounding } => Codes::Native { allow_rounding },
            Self::Mixture { .. } => Codes::Float,
        }
    }
}

/// Returns the help of `--type`, which names every type.
pub(super) fn help() -> String {
    let own = arch::OutType::from_name;
    let mixtures: Vec<String> = quantize::FileType::all()
        .filter(|file_type| *file_type != quantize::FileType::Copy)
        .map(|file_type| file_type.name().to_ascii_lowercase())
        .filter(|name| own(name).is_none())
        .collect();
    format!(
        "Type of the file: f32, f16, bf16, q8_0, tq1_0, tq2_0 or auto (what the checkpoint has) as llama.cpp's \
         converter writes them; native (a quantized checkpoint's own integers where a block type holds them exactly, \
         the narrowest exact float elsewhere); {} as gguf-quantize makes them from the f32 file, in one pass \
         (`gguf-quantize --help` describes them)",
        mixtures.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::error_line;

    fn plan(name: &str) -> TypePlan {
        TypePlan::resolve(name, TypeSwitches::default()).unwrap()
    }

    #[test]
    fn one_name_one_plan() {
        let plain = |file_type, codes| TypePlan::Plain { file_type, codes };
        assert_eq!(plan("auto"), plain(None, Codes::Card));
        assert_eq!(plan("F16"), plain(Some(arch::OutType::F16), Codes::Card));
        assert_eq!(plan("q8_0"), plain(Some(arch::OutType::Q8_0), Codes::Keep(GgmlType::Q8_0)));
        assert_eq!(plan("Native"), TypePlan::Native { allow_rounding: false });
        let mixture = |file_type, keep| TypePlan::Mixture { file_type, keep };
        assert_eq!(plan("q4_k_m"), mixture(quantize::FileType::Q4KM, None));
        assert_eq!(plan("Q4_0"), mixture(quantize::FileType::Q4_0, Some(GgmlType::Q4_0)));
        // Numbers of llama-quantize.
        assert_eq!(plan("15"), mixture(quantize::FileType::Q4KM, None));
        let switches = TypeSwitches { requantize: true, ..TypeSwitches::default() };
        assert_eq!(
            TypePlan::resolve("q8_0", switches).unwrap(),
            plain(Some(arch::OutType::Q8_0), Codes::Float)
        );
        let found = TypePlan::resolve("q4_0", switches).unwrap();
        assert_eq!(found, mixture(quantize::FileType::Q4_0, None));
        assert_eq!((found.file_type(), found.codes()), (Some(arch::OutType::F32), Codes::Float));
    }

    #[test]
    fn what_contradicts_is_bad_usage() {
        let switches = TypeSwitches { has_quantize_options: true, ..TypeSwitches::default() };
        for name in ["f16", "auto", "native"] {
            let error = TypePlan::resolve(name, switches).unwrap_err();
            assert!(error.downcast_ref::<UsageError>().is_some());
            assert_eq!(
                error_line(&error),
                format!("quantization options go with a quantized type, not with `--type {name}`")
            );
        }
        assert!(TypePlan::resolve("q4_k_m", switches).is_ok());
        let error = TypePlan::resolve("q4_km", TypeSwitches::default()).unwrap_err();
        assert_eq!(error_line(&error), "unknown type `q4_km`");
    }

    #[test]
    fn the_help_names_every_type() {
        let help = help();
        for file_type in quantize::FileType::all().filter(|row| *row != quantize::FileType::Copy) {
            assert!(help.contains(&file_type.name().to_ascii_lowercase()), "{file_type}");
        }
    }
}
