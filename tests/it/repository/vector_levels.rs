//! The vector level of a run is told to all code, not detected by it.

use std::path::{Path, PathBuf};

use crate::support::{files, root};

/// Paths of the source files below a directory.
fn sources(dir: &Path) -> impl Iterator<Item = PathBuf> {
    files::below(dir).into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
}

/// Lines of the library's code, without tests, that detect the vector instructions of the machine.
fn detecting(dir: &Path, n_files: &mut usize, found: &mut Vec<String>) {
    for path in sources(dir).filter(|path| !path.ends_with("tests.rs")) {
        *n_files += 1;
        let text = fs_err::read_to_string(&path).unwrap();
        // Tests are at the end of a file.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let lines = lines.filter(|line| line.contains("SimdLevel::detect"));
        found.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
}

/// Options have a default; all other code is given the level, so that `--simd` covers the whole run.
#[test]
fn the_vector_level_is_told_not_detected() {
    let (mut n_files, mut found) = (0, Vec::new());
    let crates = fs_err::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    // These define the levels, or measure each of them.
    let own = ["gguf-core", "gguf-matmul", "gguf-blocks", "gguf-solve", "gguf-testkit"];
    for dir in crates.filter(|dir| !own.iter().any(|name| dir.ends_with(name))).chain([root().to_owned()]) {
        detecting(&dir.join("src"), &mut n_files, &mut found);
    }
    assert!(n_files > 100, "only {n_files} files read");
    let is_default = |line: &String| {
        ["level", "simd"].iter().any(|field| line.ends_with(&format!(" {field}: SimdLevel::detect(),")))
    };
    let (defaults, others): (Vec<String>, Vec<String>) = found.into_iter().partition(is_default);
    assert!(!defaults.is_empty(), "the rule looks for something that is not there");
    assert!(others.is_empty(), "{}", others.join("\n"));
}
