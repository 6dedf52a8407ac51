//! Meaning of `--type`.

use crate::arch::OutType;
use crate::cli::UsageError;
use crate::cli::quantize::options::usage;
use crate::job::{JobTypes, TypeSwitches};
use crate::quantize::FileType;

/// Resolves the name of a type. `is_quantizing` is true if an option was given that requires a quantization.
///
/// # Errors
/// Bad usage: no such type, or quantization options for a type that is not quantized to.
pub(in crate::cli) fn resolve(
    name: &str,
    switches: TypeSwitches,
    is_quantizing: bool,
) -> anyhow::Result<JobTypes> {
    let types = JobTypes::named(name, switches).map_err(usage)?;
    if is_quantizing && !types.is_quantized() {
        let text = format!("quantization options go with a quantized type, not with `--type {name}`");
        return Err(UsageError(text).into());
    }
    Ok(types)
}

/// Returns the help of `--type`, which names every type.
pub(super) fn help() -> String {
    let own = OutType::from_name;
    let mixtures: Vec<String> = FileType::all()
        .filter(|file_type| *file_type != FileType::Copy)
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

    #[test]
    fn what_contradicts_is_bad_usage() {
        let resolve = |name, is_quantizing| resolve(name, TypeSwitches::default(), is_quantizing);
        for name in ["f16", "auto", "native"] {
            let error = resolve(name, true).unwrap_err();
            assert!(error.downcast_ref::<UsageError>().is_some());
            assert_eq!(
                error_line(&error),
                format!("quantization options go with a quantized type, not with `--type {name}`")
            );
        }
        assert!(resolve("q4_k_m", true).is_ok());
        let error = resolve("q4_km", false).unwrap_err();
        assert_eq!(error_line(&error), "unknown type `q4_km`");
    }

    #[test]
    fn the_help_names_every_type() {
        let help = help();
        for file_type in FileType::all().filter(|row| *row != FileType::Copy) {
            assert!(help.contains(&file_type.name().to_ascii_lowercase()), "{file_type}");
        }
    }
}
