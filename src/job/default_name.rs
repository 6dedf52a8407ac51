//! Default names of outputs, and the files that they may replace.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::convert::FileName;
use crate::core::text::escape;
use crate::core::{GgmlType, Hint, TensorMeta, TensorSource};
use crate::gguf::{GgufFile, Metadata, OpenOptions, Value};
use crate::quantize::FileType;

/// Keys that identify a model.
const IDENTITY: [&str; 8] = [
    "general.architecture",
    "general.type",
    "general.name",
    "general.organization",
    "general.basename",
    "general.finetune",
    "general.version",
    "general.size_label",
];
/// Maximum number of tensors whose values are compared, and of bytes of each.
const MAX_COMPARED: usize = 8;
const MAX_COMPARED_BYTES: u64 = 64 << 10;

/// Returns the default name of a quantized file, next to its input: the type replaces the one at the end of the input's
/// name (`tiny-F16.gguf` becomes `tiny-Q4_0.gguf`). In place of a hash it begins with the model's name.
pub(super) fn quantized(input: &Path, metadata: &Metadata, ty: &str) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    if let (true, Some(model)) = (is_digest(input), metadata.get("general.name").and_then(Value::as_str)) {
        let stem = FileName { name: Some(model), ..FileName::default() }.stem();
        return input.with_file_name(format!("{}-{ty}.gguf", stem.trim_start_matches('.')));
    }
    let whole = without_part(strip_end(&name, ".gguf").unwrap_or(&name));
    let named = |stem: &str| format!("{stem}-{ty}.gguf");
    let short = named(without_type(whole));
    // The file is quantized again to the type that it has.
    input.with_file_name(if short == *name { named(whole) } else { short })
}

/// Returns true for the name of a file in a store that names files by their hash: Ollama's, or the cache of the hub.
pub(crate) fn is_digest(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.strip_prefix("sha256-").unwrap_or(&name);
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes an ending in any case; `None` if nothing else is left or the name ends differently.
fn strip_end<'a>(name: &'a str, end: &str) -> Option<&'a str> {
    let (stem, found) = name.split_at_checked(name.len().checked_sub(end.len())?)?;
    (found.eq_ignore_ascii_case(end) && !stem.is_empty()).then_some(stem)
}

fn without_part(stem: &str) -> &str {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut words = stem.rsplitn(4, '-');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(n_parts), Some("of"), Some(part), Some(name)) if is_number(n_parts) && is_number(part) => name,
        _ => stem,
    }
}

/// Removes the type at the end of a name, after `-`, `.` or `_`.
fn without_type(stem: &str) -> &str {
    let files =
        FileType::all().filter(|&ty| ty != FileType::Copy).flat_map(|ty| [Some(ty.name()), ty.alias()]);
    let words = files.flatten().chain(GgmlType::all().map(GgmlType::name)).chain(["NATIVE"]);
    let stems = words.filter_map(|word| strip_end(stem, word)?.strip_suffix(['-', '.', '_']));
    // The longest match: `Q4_K_M` rather than a shorter type with the same ending.
    stems.filter(|stem| !stem.is_empty()).min_by_key(|stem| stem.len()).unwrap_or(stem)
}

/// Error: the file with the default name belongs to another model.
#[derive(Debug, thiserror::Error)]
#[error("{}: the output's default name is taken by {found}", path.display())]
pub struct NameTaken {
    path: PathBuf,
    found: String,
}

impl Hint for NameTaken {
    fn hints(&self) -> Vec<String> {
        vec![
            "name the output (`gguf-convert ... -o FILE`, `gguf-quantize --type TYPE IN OUT`), or remove that file first"
                .to_owned(),
        ]
    }
}

/// Model that is about to be written under a default name.
#[derive(Clone, Copy)]
pub(super) struct Unnamed<'a> {
    /// Keys of the output or of its source: those that identify the model are the same.
    pub(super) metadata: &'a Metadata,
    pub(super) source: &'a dyn TensorSource,
}

impl Unnamed<'_> {
    /// Refuses to replace a file of another model. The guard of outputs refuses files that are not GGUF.
    pub(super) fn check(&self, path: &Path) -> Result<(), NameTaken> {
        // An empty file, or one that is not regular, holds no model that could be lost.
        if !path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
            return Ok(());
        }
        let options = OpenOptions { join_parts: false, ..OpenOptions::default() };
        let found = match GgufFile::open_with(path, &options) {
            Ok(file) => self.difference(&file).map(|how| format!("another model: {how}")),
            Err(_) => Some("a file that cannot be read as a model".to_owned()),
        };
        match found {
            Some(found) => Err(NameTaken { path: path.to_owned(), found }),
            None => Ok(()),
        }
    }

    /// Returns a difference between the model of a file and this one.
    fn difference(&self, file: &GgufFile) -> Option<String> {
        let own = self.source.tensors().iter().enumerate();
        let places: HashMap<&str, usize> = own.map(|(at, own)| (own.name.as_str(), at)).collect();
        IDENTITY
            .iter()
            .find_map(|key| self.other_key(key, file.metadata()))
            .or_else(|| file.tensors().iter().find_map(|tensor| self.other_shape(tensor, &places)))
            .or_else(|| self.other_values(file, &places))
    }

    fn other_key(&self, key: &str, found: &Metadata) -> Option<String> {
        let (found, own) = (found.get(key)?.as_str()?, self.metadata.get(key)?.as_str()?);
        (found != own).then(|| format!("its `{key}` is `{}`, here it is `{}`", escape(found), escape(own)))
    }

    fn other_shape(&self, found: &TensorMeta, places: &HashMap<&str, usize>) -> Option<String> {
        let own = &self.source.tensors()[*places.get(found.name.as_str())?];
        (own.shape.of_ggml() != found.shape.of_ggml()).then(|| {
            let name = escape(&found.name);
            format!("its tensor `{name}` has the shape {}, here it is {}", found.shape, own.shape)
        })
    }

    /// Compares tensors that are F32 in both, such as norms: quantization does not change them.
    fn other_values(&self, file: &GgufFile, places: &HashMap<&str, usize>) -> Option<String> {
        let all = file.tensors().iter().enumerate();
        let pairs = all.filter_map(|(at, found)| Some((at, found, *places.get(found.name.as_str())?)));
        let of_floats = pairs.filter(|(_, found, own)| {
            found.ty == GgmlType::F32 && self.source.tensors()[*own].ty == GgmlType::F32
        });
        let of_floats: Vec<_> = of_floats.collect();
        // Samples from the first to the last layers.
        let mut compared = of_floats.iter().step_by(of_floats.len().div_ceil(MAX_COMPARED).max(1));
        let (_, other, _) = compared.find(|&&(at, found, own)| {
            let (theirs, ours) = (beginning(file, at, found), beginning(self.source, own, found));
            // Unreadable tensors stop the run where they are needed.
            theirs.zip(ours).is_some_and(|(theirs, ours)| theirs != ours)
        })?;
        Some(format!("its tensor `{}` has other values", escape(&other.name)))
    }
}

/// Returns the first rows of a tensor; `None` if they are too long or cannot be read.
fn beginning(source: &dyn TensorSource, tensor: usize, meta: &TensorMeta) -> Option<Vec<u8>> {
    let row_bytes = meta.row_bytes().filter(|&n| n > 0)?;
    let n_rows = (MAX_COMPARED_BYTES / row_bytes).min(meta.shape.n_rows());
    let mut bytes = vec![0; usize::try_from(n_rows * row_bytes).ok()?];
    source.read_rows(tensor, 0, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantized_file_is_named_after_its_input() {
        let none = Metadata::new();
        for (input, expected) in [
            ("dir/model.gguf", "dir/model-Q4_0.gguf"),
            ("ggml-model-f16.gguf", "ggml-model-Q4_0.gguf"),
            ("a.BF16.gguf", "a-Q4_0.gguf"),
            ("a_Q4_K_M.GGUF", "a-Q4_0.gguf"),
            ("a-MXFP4_MOE.gguf", "a-Q4_0.gguf"),
            ("a-F16-00001-of-00003.gguf", "a-Q4_0.gguf"),
            ("Qwen2.5-0.5B", "Qwen2.5-0.5B-Q4_0.gguf"),
            ("Phi-3.gguf", "Phi-3-Q4_0.gguf"),
            ("of-copy.gguf", "of-copy-Q4_0.gguf"),
            ("f16.gguf", "f16-Q4_0.gguf"),
            ("a-Q4_0.gguf", "a-Q4_0-Q4_0.gguf"),
            ("ü.gguf", "ü-Q4_0.gguf"),
        ] {
            assert_eq!(quantized(Path::new(input), &none, "Q4_0"), Path::new(expected), "{input}");
        }
        assert_eq!(quantized(Path::new("dir/in.gguf"), &none, "Q4_K_M"), Path::new("dir/in-Q4_K_M.gguf"));
        assert_eq!(quantized(Path::new("in.gguf"), &none, "COPY"), Path::new("in-COPY.gguf"));
        let digest = format!("blobs/sha256-{}", "0a".repeat(32));
        assert!(!is_digest(Path::new("sha256-00.gguf")) && is_digest(Path::new(&digest[13..])));
        let mut named = Metadata::new();
        named.set("general.name", "../My model");
        assert_eq!(quantized(Path::new(&digest), &named, "Q4_0"), Path::new("blobs/-My-model-Q4_0.gguf"));
        assert_eq!(quantized(Path::new(&digest), &none, "Q4_0"), Path::new(&format!("{digest}-Q4_0.gguf")));
    }
}
