//! Names of files in answers about several.

use std::path::Path;

/// Returns the names of files: without their directories, and with the last of these where names are alike.
pub(super) fn distinct_names(paths: &[&Path]) -> Vec<String> {
    let name = |path: &Path, n_parts: usize| {
        let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        parts[parts.len().saturating_sub(n_parts)..].join("/").replace("//", "/")
    };
    let own = |path: &&Path| {
        let is_same = |other: &&&Path, n: usize| **other != *path && name(other, n) == name(path, n);
        let most = path.components().count().max(1);
        let n_parts = (1..=most).find(|&n| !paths.iter().any(|other| is_same(&other, n)));
        name(path, n_parts.unwrap_or(most))
    };
    paths.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_have_their_directories() {
        let names = |paths: &[&str]| distinct_names(&paths.iter().map(Path::new).collect::<Vec<_>>());
        assert_eq!(names(&["x/d1/a.gguf", "x/d2/a.gguf", "x/b.gguf"]), ["d1/a.gguf", "d2/a.gguf", "b.gguf"]);
        assert_eq!(names(&["1/d/a.gguf", "2/d/a.gguf"]), ["1/d/a.gguf", "2/d/a.gguf"]);
        assert_eq!(names(&["a.gguf", "d/a.gguf"]), ["a.gguf", "d/a.gguf"]);
        assert_eq!(names(&["d/a.gguf", "d/a.gguf"]), ["a.gguf", "a.gguf"]);
    }
}
