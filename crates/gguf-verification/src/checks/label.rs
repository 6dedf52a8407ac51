//! Label of a file: the types in `general.file_type` and in its name, compared with the types of its tensors.
//!
//! A file that is called Q8_0 and holds Q2_K is as wrong as a damaged one, though every tensor is intact.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checks::{adapter, control_vector, images, towers};
use crate::{Check, Finding};
use gguf_core::TensorMeta;
use gguf_core::text::{escape, plural};
use gguf_format::{FileType, Metadata, Value};
use gguf_quantization::Recipe;

const CHECK: Check = Check::Label;
/// Tolerance in bits per weight if the name only gives the family of a type (`Q4_K_XL`).
const LOOSE_BITS: f64 = 1.6;

/// Type in a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedType {
    file_type: FileType,
    /// True for a mixture that llama.cpp does not have, similar to this type: `Q4_K_XL`, `Q6_K_L`.
    is_family: bool,
}

/// Description of a file's types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLabel {
    /// Recipe of the tensors: `Q4_K_M of llama.cpp, importance matrix (100 chunks)`.
    pub recipe: String,
    /// File type of the tensors, if it is one of llama.cpp's.
    pub file_type: Option<String>,
}

impl FileLabel {
    /// Escapes terminal control sequences: what comes from files is untrusted.
    pub(crate) fn escaped(self) -> Self {
        let clean = |text: String| escape(&text).into_owned();
        Self { recipe: clean(self.recipe), file_type: self.file_type.map(clean) }
    }
}

/// Declared types of a file, and the types of its tensors.
#[derive(Clone, Debug)]
pub struct Label {
    /// Type in `general.file_type`.
    claimed: Option<FileType>,
    /// Types in the name of the file.
    named: Vec<NamedType>,
    recipe: Recipe,
    imatrix: Option<String>,
}

impl Label {
    /// Reads the label of a file; its name is taken from `path`.
    pub fn of(metadata: &Metadata, tensors: &[TensorMeta], path: Option<&Path>) -> Self {
        let id =
            metadata.get("general.file_type").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let stem = path.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
        Self {
            claimed: id.and_then(FileType::from_id),
            named: stem.map(|stem| types_in_name(&stem)).unwrap_or_default(),
            recipe: Recipe::of(metadata, tensors),
            imatrix: importance(metadata),
        }
    }

    /// Describes the tensors: `Q4_K_M of llama.cpp, importance matrix (100 chunks)`.
    pub fn recipe(&self) -> String {
        let named = self.named.first().map(|named| named.file_type);
        let recipe = self.recipe.describe(self.claimed.or(named));
        match &self.imatrix {
            Some(imatrix) => format!("{recipe}, {imatrix}"),
            None => recipe,
        }
    }

    /// Returns the file type of the tensors: the declared one, unless it is contradicted.
    pub fn file_type(&self) -> Option<FileType> {
        let claimed = self.claimed.filter(|&claimed| self.recipe.may_be_called(claimed));
        claimed.or_else(|| self.recipe.file_type(self.claimed))
    }

    /// Returns the recipe and the file type as text.
    fn in_words(&self) -> FileLabel {
        let file_type = self.file_type().map(|file_type| file_type.name().to_owned());
        FileLabel { recipe: self.recipe(), file_type }
    }

    /// Reports declared types that contradict the tensors.
    fn findings(&self) -> Vec<Finding> {
        let is = || {
            format!(
                "the tensors are {} ({:.2} bits per weight)",
                self.recipe.describe(None),
                self.recipe.bits_per_weight()
            )
        };
        let has = |file_type: FileType| {
            let bits = self.recipe.bits_per_weight_as(file_type);
            bits.map(|bits| format!(", {file_type} would have {bits:.2}")).unwrap_or_default()
        };
        let key = self.claimed.filter(|&claimed| !self.recipe.may_be_called(claimed)).map(|claimed| {
            let instead = self.recipe.file_type(None).map(|found| {
                format!("; `gguf-inspect set FILE general.file_type={}` makes it say so", found.id())
            });
            format!(
                "labelled {claimed} (`general.file_type` = {}), but {}{}{}",
                claimed.id(),
                is(),
                has(claimed),
                instead.unwrap_or_default()
            )
        });
        let fits = |named: &NamedType| {
            self.recipe.may_be_called(named.file_type)
                || (named.is_family && self.recipe.has_bits_of(named.file_type, LOOSE_BITS))
        };
        let name = self.named.first().filter(|_| !self.named.iter().any(fits)).map(|named| {
            let file_type = named.file_type;
            format!("the file's name claims {file_type}, but {}{}; rename it", is(), has(file_type))
        });
        key.into_iter().chain(name).map(|message| Finding::error(CHECK, message)).collect()
    }
}

/// Compares the label of a file with its tensors. Adapters, vocabularies, towers and image models of floats are skipped:
/// their types follow other rules. That of the last is the type of most tensors of the source, however small they are.
pub(crate) fn check(
    metadata: &Metadata,
    tensors: &[TensorMeta],
    path: Option<&Path>,
) -> (Option<FileLabel>, Vec<Finding>) {
    if tensors.is_empty()
        || adapter::is_one(metadata)
        || towers::is_towers(metadata)
        || control_vector::is_one(metadata)
    {
        return (None, Vec::new());
    }
    let label = Label::of(metadata, tensors, path);
    if images::is_one(metadata, tensors) && tensors.iter().all(|tensor| !tensor.ty.is_quantized()) {
        return (Some(label.in_words()), Vec::new());
    }
    (Some(label.in_words()), label.findings())
}

/// Returns where the declared types of a file, in its keys and its name, contradict its tensors.
pub fn label_findings(metadata: &Metadata, tensors: &[TensorMeta], path: &Path) -> Vec<Finding> {
    check(metadata, tensors, Some(path)).1
}

/// Describes the importance matrix that the keys name.
fn importance(metadata: &Metadata) -> Option<String> {
    let number = |key: &str| metadata.get(key).and_then(Value::as_u64);
    let has =
        metadata.get("quantize.imatrix.entries_count").or_else(|| metadata.get("quantize.imatrix.file"));
    has?;
    let text = metadata.get("quantize.imatrix.dataset").and_then(Value::as_str);
    let text = text.filter(|text| !text.is_empty()).map(|text| format!(" of `{}`", escape(text)));
    let chunks = number("quantize.imatrix.chunks_count").map(|n| format!(" ({})", plural(n, "chunk")));
    Some(format!("importance matrix{}{}", text.unwrap_or_default(), chunks.unwrap_or_default()))
}

/// Alternative names of types in file names.
const OTHER_NAMES: [(&str, FileType); 6] = [
    ("FP32", FileType::F32),
    ("FP16", FileType::F16),
    ("MXFP4", FileType::Mxfp4Moe),
    ("Q3_K", FileType::Q3KM),
    ("Q4_K", FileType::Q4KM),
    ("Q5_K", FileType::Q5KM),
];

/// Finds the types in a name: case-insensitive, delimited by characters other than letters and digits. The last one is
/// the likeliest (`model-F16-Q4_K_M`), so they are returned from the end.
fn types_in_name(stem: &str) -> Vec<NamedType> {
    let mut text: Vec<u8> = stem.to_ascii_uppercase().into_bytes();
    let own = FileType::all().filter(|file_type| *file_type != FileType::Copy);
    let mut names: Vec<(&str, FileType)> = own.map(|file_type| (file_type.name(), file_type)).collect();
    names.extend(OTHER_NAMES);
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let mut found = Vec::new();
    for (name, file_type) in names {
        let mut from = 0;
        while let Some(at) = find(&text, name.as_bytes(), from) {
            let end = at + name.len();
            from = end;
            let is_letter =
                |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(u8::is_ascii_alphanumeric);
            if is_letter(at.checked_sub(1)) || is_letter(Some(end)) {
                continue;
            }
            let rest = text.get(end..).unwrap_or_default();
            // `Q4_0_4_4` and the like were separate types that no longer exist.
            let is_family = rest.first() == Some(&b'_') && rest.get(1).is_some_and(u8::is_ascii_alphanumeric);
            found.push((at, NamedType { file_type, is_family }));
            if let Some(bytes) = text.get_mut(at..end) {
                bytes.fill(b' ');
            }
        }
    }
    found.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    found.into_iter().map(|(_, named)| named).collect()
}

fn find(text: &[u8], name: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    rest.windows(name.len()).position(|window| window == name).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(stem: &str) -> Vec<String> {
        let show =
            |named: NamedType| format!("{}{}", named.file_type, if named.is_family { "+" } else { "" });
        types_in_name(stem).into_iter().map(show).collect()
    }

    #[test]
    fn names_say_their_types() {
        assert_eq!(named("Llama-3.2-1B-Instruct-Q4_K_M"), ["Q4_K_M"]);
        assert_eq!(named("model.q8_0"), ["Q8_0"]);
        assert_eq!(named("tiny_iq2_xxs"), ["IQ2_XXS"]);
        assert_eq!(named("gemma-3-4b-it-UD-Q4_K_XL"), ["Q4_K_M+"]);
        assert_eq!(named("qwen-Q6_K_L"), ["Q6_K+"]);
        assert_eq!(named("a-f16-to-Q3_K_L"), ["Q3_K_L", "F16"]);
        assert_eq!(named("Q4_K_M-00001-of-00003"), ["Q4_K_M"]);
        assert_eq!(named("bf16"), ["BF16"]);
        assert_eq!(named("SuperQ8_0x"), Vec::<String>::new());
        assert_eq!(named("gpt-oss-20b-MXFP4"), ["MXFP4_MOE"]);
        assert_eq!(named("modell"), Vec::<String>::new());
    }
}
