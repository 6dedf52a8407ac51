//! Errors of recipes.

use std::path::PathBuf;

use crate::core::Hint;
use crate::core::text::escape;

/// Reasons why a recipe or a file is not written. Digests are SHA-256 in hexadecimal.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RecipeError {
    #[error("{}: not a recipe: `general.type` is `{}`, `recipe` expected", path.display(), escape(found))]
    NotARecipe { path: PathBuf, found: String },
    #[error("{}: `gguf_foundry.recipe.version`: 1 expected, found {found}", path.display())]
    Version { path: PathBuf, found: String },
    #[error("{}: damaged recipe: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{}: made of another source: {expected} expected, found {found}", path.display())]
    OtherSource { path: PathBuf, expected: String, found: String },
    #[error("{}: the keys of the source are not those of the recipe: header {expected} expected, found {found}", path.display())]
    OtherHeader { path: PathBuf, expected: String, found: String },
    #[error("{}: made with an importance matrix: {expected} expected, found none", path.display())]
    NoMatrix { path: PathBuf, expected: String },
    #[error("{}: made with another importance matrix: {expected} expected, found {found}", path.display())]
    OtherMatrix { path: PathBuf, expected: String, found: String },
    #[error("{}: the file has another digest than the original: {expected} expected, found {found}", path.display())]
    Mismatch { path: PathBuf, expected: String, found: String },
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
        };
        vec![hint.to_owned()]
    }
}
