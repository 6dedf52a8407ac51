//! Names of the files of a ladder.

use std::path::PathBuf;

use crate::convert::FileName;
use crate::job::input::OpenedInput;
use crate::job::ladder::Ladder;
use crate::quantize::OverrideValue;

/// Pattern of file names, as llama.cpp's tools have them.
pub const NAME_PATTERN: &str = "{name}-{type}";

/// Checks a pattern of file names.
///
/// # Errors
/// A pattern without `{type}`, with another word in braces, or that leads out of the folder, in words.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    let rest = pattern.replace("{name}", "").replace("{type}", "");
    if !pattern.contains("{type}") {
        return Err("`{type}` expected: every file needs a name of its own".to_owned());
    }
    if rest.contains(['{', '}']) {
        return Err("only `{name}` and `{type}` are replaced".to_owned());
    }
    if pattern.to_ascii_lowercase().ends_with(".gguf") {
        return Err("without `.gguf`, which every name gets".to_owned());
    }
    if pattern.contains(['/', '\\']) || pattern.starts_with('.') || rest.chars().any(char::is_control) {
        return Err("a file name expected: no slash, no dot at its beginning".to_owned());
    }
    Ok(())
}

impl Ladder {
    /// Name of the model that the user has given: by itself, or as the value of `general.name`.
    pub fn given_name(&self) -> Option<&str> {
        let set = self.quantize.overrides.iter().rev().find(|set| set.key == "general.name");
        match (&self.name, set.map(|set| &set.value)) {
            (Some(name), _) | (None, Some(OverrideValue::Str(name))) => Some(name),
            _ => None,
        }
    }

    /// Beginning of all file names, if the user has given a name.
    pub(super) fn own_name(&self) -> Option<String> {
        let name = self.given_name()?;
        // The same characters as in the name of any converted file.
        let stem = FileName { name: Some(name), ..FileName::default() }.stem();
        Some(stem.trim_start_matches('.').to_owned())
    }

    /// Path of the file of a type.
    pub(super) fn target(&self, opened: &OpenedInput, ty: &str) -> PathBuf {
        let usual = self.common().output.target(&self.input, opened, ty);
        let file = usual.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(stem) = file.strip_suffix(&format!("-{ty}.gguf")) else { return usual };
        let stem = match (self.own_name(), opened) {
            (Some(own), _) => own,
            // A folder that is published has names that everybody can type.
            (None, OpenedInput::File(_)) => stem.replace(char::is_control, "-"),
            (None, _) => with_one_size(stem),
        };
        let name = self.name_pattern.replace("{type}", ty).replace("{name}", &stem);
        self.directory.join(format!("{name}.gguf"))
    }
}

/// Removes the sizes of a name after its first: a model whose name has a size needs no label of it.
fn with_one_size(stem: &str) -> String {
    let is_size = |word: &str| {
        let number = word.strip_suffix(['K', 'M', 'B', 'T']);
        number.is_some_and(|number| {
            number.starts_with(|c: char| c.is_ascii_digit())
                && number.split('x').all(|n| n.parse::<f64>().is_ok())
        })
    };
    let mut has_size = false;
    let words = stem.split('-').filter(|word| !is_size(word) || !std::mem::replace(&mut has_size, true));
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_named_once() {
        for (stem, expected) in [
            ("Tiny-Llama-3.4M", "Tiny-Llama-3.4M"),
            ("Llama-3.2-1B-Instruct-1.2B", "Llama-3.2-1B-Instruct"),
            ("Mixtral-8x7B-v0.1-8x7B", "Mixtral-8x7B-v0.1"),
            ("Model-135M-8k-135M", "Model-135M-8k"),
            ("B-K-2", "B-K-2"),
        ] {
            assert_eq!(with_one_size(stem), expected, "{stem}");
        }
    }

    #[test]
    fn patterns_are_checked() {
        for pattern in [NAME_PATTERN, "{name}.{type}", "{type}"] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for pattern in
            ["{name}", "{name}-{type}-{size}", "../{type}", ".{type}", "a/{type}", "{type", "", "{type}.gguf"]
        {
            assert!(check_pattern(pattern).is_err(), "{pattern}");
        }
    }
}
