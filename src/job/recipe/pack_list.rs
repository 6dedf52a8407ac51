//! List of a pack: its files, and how each is made again.

use std::collections::HashSet;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::core::text::{escape, is_unsafe};
use crate::job::recipe::RecipeError;

/// Name of the list in the folder of a pack.
pub(super) const LIST: &str = "gguf-pack.json";
const MAX_BYTES: u64 = 64 << 20;
const VERSION: u32 = 1;

/// Content of a pack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PackList {
    /// Version of the list: 1.
    version: u32,
    /// Program and version that wrote the list.
    made_by: String,
    /// Names in the pack of the files of the source, the first first.
    pub(super) source: Vec<String>,
    /// Name in the pack of the importance matrix, if one is needed.
    pub(super) imatrix: Option<String>,
    /// Files that were packed.
    pub(super) files: Vec<PackEntry>,
}

/// File that was packed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PackEntry {
    /// Name in the folder, with `/` between folders.
    pub(super) name: String,
    /// Size in bytes.
    pub(super) bytes: u64,
    /// SHA-256 in hexadecimal.
    pub(super) sha256: String,
    /// Name in the pack of its recipe; null for a file that is there as it is.
    pub(super) recipe: Option<String>,
}

impl PackList {
    pub(super) fn new(source: Vec<String>, imatrix: Option<String>, files: Vec<PackEntry>) -> Self {
        let made_by = format!("gguf-foundry {}", env!("CARGO_PKG_VERSION"));
        Self { version: VERSION, made_by, source, imatrix, files }
    }

    /// Reads the list of a pack and checks its names.
    pub(super) fn read(folder: &Path) -> Result<Self, RecipeError> {
        let path = folder.join(LIST);
        let failed = |what: String| RecipeError::PackList { path: path.clone(), what };
        let n_bytes =
            fs_err::metadata(&path).map_err(|error| failed(format!("no list of a pack: {error}")))?.len();
        if n_bytes > MAX_BYTES {
            return Err(failed(format!("{n_bytes} bytes, at most {MAX_BYTES} expected")));
        }
        let text = crate::core::input::read(&path).map_err(|error| failed(error.to_string()))?;
        let list: Self = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        if list.version != VERSION {
            return Err(failed(format!("version {VERSION} expected, found {}", list.version)));
        }
        let recipes = list.files.iter().filter_map(|file| file.recipe.as_ref());
        let others = list.source.iter().chain(&list.imatrix).chain(recipes);
        if let Some(bad) =
            others.chain(list.files.iter().map(|file| &file.name)).find(|name| !is_inside(name))
        {
            return Err(failed(format!("`{}` is no name in a folder", escape(bad))));
        }
        let mut names = HashSet::new();
        if let Some(twice) = list.files.iter().find(|file| !names.insert(&file.name)) {
            return Err(failed(format!("`{}` appears twice", escape(&twice.name))));
        }
        let mut recipes = HashSet::new();
        let mut named = list.files.iter().filter_map(|file| file.recipe.as_ref());
        if let Some(twice) = named.find(|name| !recipes.insert(*name)) {
            return Err(failed(format!("`{}` is the recipe of two files", escape(twice))));
        }
        if list.source.is_empty() {
            return Err(failed("no source".to_owned()));
        }
        Ok(list)
    }
}

/// Returns true for a relative path that does not leave the folder.
fn is_inside(name: &str) -> bool {
    let mut components = Path::new(name).components();
    !name.is_empty()
        && !name.contains(|c| c == '\\' || is_unsafe(c))
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for name in ["a.gguf", "sub/a.gguf", "a b", ".hidden"] {
            assert!(is_inside(name), "{name}");
        }
        for name in [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a//b",
            "a/",
            "./a",
            "C:\\a",
            "a\0b",
            "a\nb",
            "a\u{1b}[2J",
            "gpj\u{202e}a",
        ] {
            assert!(!is_inside(name), "{name}");
        }
    }

    #[test]
    fn a_list_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let read =
            || PackList::read(dir.path()).map(|list| list.files.len()).map_err(|error| error.to_string());
        assert!(read().unwrap_err().contains("no list of a pack"));
        let file =
            |name: &str| PackEntry { name: name.to_owned(), bytes: 1, sha256: "0".repeat(64), recipe: None };
        let write = |list: &PackList| {
            fs_err::write(dir.path().join(LIST), serde_json::to_vec(list).unwrap()).unwrap();
        };
        let list = PackList::new(vec!["s.gguf".to_owned()], None, vec![file("a"), file("sub/b")]);
        write(&list);
        assert_eq!(read(), Ok(2));
        write(&PackList { files: vec![file("a"), file("a")], ..list.clone() });
        assert!(read().unwrap_err().ends_with("`a` appears twice"));
        let made = |name| PackEntry { recipe: Some("a.recipe.gguf".to_owned()), ..file(name) };
        write(&PackList { files: vec![made("a"), made("b")], ..list.clone() });
        assert!(read().unwrap_err().ends_with("`a.recipe.gguf` is the recipe of two files"));
        write(&PackList { files: vec![file("../a")], ..list.clone() });
        assert!(read().unwrap_err().ends_with("`../a` is no name in a folder"));
        write(&PackList { source: vec!["/s".to_owned()], ..list.clone() });
        assert!(read().unwrap_err().contains("no name"));
        write(&PackList { source: Vec::new(), ..list.clone() });
        assert!(read().unwrap_err().ends_with("no source"));
        write(&PackList { version: 2, ..list });
        assert!(read().unwrap_err().ends_with("version 1 expected, found 2"));
        fs_err::write(dir.path().join(LIST), "{").unwrap();
        assert!(read().is_err());
    }
}
