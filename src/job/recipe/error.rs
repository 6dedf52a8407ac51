//! Errors of recipes.

use std::path::PathBuf;

use crate::core::Hint;
use crate::core::text::escape;

/// Reasons why a recipe or a file is not written. Digests are SHA-256 in hexadecimal.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RecipeError {
    /// The file is no recipe.
    #[error("{}: not a recipe: `general.type` is `{}`, `recipe` expected", path.display(), escape(found))]
    NotARecipe { path: PathBuf, found: String },
    /// The recipe has a version that this program does not know.
    #[error("{}: `gguf_foundry.recipe.version`: 1 expected, found {found}", path.display())]
    Version { path: PathBuf, found: String },
    /// The recipe contradicts itself.
    #[error("{}: damaged recipe: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// The source is another one.
    #[error("{}: made of another source: {expected} expected, found {found}", path.display())]
    OtherSource { path: PathBuf, expected: String, found: String },
    /// The source has the same tensors and another header.
    #[error("{}: the keys of the source are not those of the recipe: header {expected} expected, found {found}", path.display())]
    OtherHeader { path: PathBuf, expected: String, found: String },
    /// An importance matrix was used, and none is given.
    #[error("{}: made with an importance matrix: {expected} expected, found none", path.display())]
    NoMatrix { path: PathBuf, expected: String },
    /// The importance matrix is another one.
    #[error("{}: made with another importance matrix: {expected} expected, found {found}", path.display())]
    OtherMatrix { path: PathBuf, expected: String, found: String },
    /// The file that was made is another one.
    #[error("{}: the file has another digest than the original: {expected} expected, found {found}", path.display())]
    Mismatch { path: PathBuf, expected: String, found: String },
    /// The source of a pack is no GGUF file.
    #[error("{}: the source of a pack must be a GGUF file", path.display())]
    NotGguf { path: PathBuf },
    /// A folder has no files, or more levels than are followed.
    #[error("{}: {what}", path.display())]
    Folder { path: PathBuf, what: &'static str },
    /// Two files of a pack would have the same name.
    #[error("{}: `{}` is the name of two files of the pack", path.display(), escape(name))]
    NameTwice { path: PathBuf, name: String },
    /// The list of a pack is missing or damaged.
    #[error("{}: {what}", path.display())]
    PackList { path: PathBuf, what: String },
}

impl Hint for RecipeError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NotARecipe { .. } => "`gguf-quantize recipe FILE --source SOURCE -o RECIPE` writes one",
            Self::Version { .. } => "a newer version of this program has written it",
            Self::Damaged { .. } => "copy or download the recipe again",
            Self::OtherSource { .. } => {
                "give the model that the recipe was made with; its name and folder do not matter"
            }
            Self::OtherHeader { .. } => "give the source file as it was, without edits of its keys",
            Self::NoMatrix { .. } => "give it with --imatrix",
            Self::OtherMatrix { .. } => "give the importance matrix that the recipe was made with",
            Self::Mismatch { .. } => "the recipe is damaged, or another version of this program made it",
            Self::NotGguf { .. } => {
                "convert it first: `gguf-convert hf2gguf DIR --type bf16 -o model-bf16.gguf`"
            }
            Self::NameTwice { .. } => "give one of the files another name",
            Self::PackList { .. } => "give a folder that `gguf-quantize pack` has written",
            Self::Folder { .. } => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
