//! Import rules: a module uses only modules of lower layers.

use std::path::{Path, PathBuf};

use crate::support::{files, root};

/// Each module of `src` with the modules of `src` that it may use; any other import is in the wrong direction. Between
/// crates, the compiler enforces this.
const ARROWS: &[(&str, &[&str])] = &[
    ("remote", &[]),
    ("convert", &[]),
    ("quantize", &[]),
    ("verify", &["convert", "quantize"]),
    ("inspect", &["convert"]),
    ("calibrate", &["verify", "quantize"]),
    ("job", &["calibrate", "inspect", "verify", "convert", "quantize"]),
];

/// Names of modules after `crate::` in a source text, in `use` items and paths, across line ends.
fn uses(source: &str) -> Vec<String> {
    let code: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::").filter(|(at, _)| is_word_start(&code, *at)) {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads(group)),
            None => found.push(word(rest)),
        }
    }
    found
}

/// First words of the items of a group, without its opening brace.
fn heads(group: &str) -> Vec<String> {
    let (mut heads, mut depth, mut is_head) = (Vec::new(), 1, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => is_head = true,
            _ if is_head && c.is_alphabetic() => {
                heads.push(word(&group[at..]));
                is_head = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Returns true if neither a name nor a `$` continues into this position.
fn is_word_start(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$')
}

/// Paths of the source files below a directory.
fn sources(dir: &Path) -> impl Iterator<Item = PathBuf> {
    files::below(dir).into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
}

fn check_file(path: &Path, module: &str, allowed: &[&str], n_files: &mut usize, wrong: &mut Vec<String>) {
    *n_files += 1;
    for name in uses(&fs_err::read_to_string(path).unwrap()) {
        let is_module = name == "cli" || ARROWS.iter().any(|row| row.0 == name);
        if is_module && name != module && !allowed.contains(&name.as_str()) {
            wrong.push(format!("{}: uses crate::{name}", path.display()));
        }
    }
}

#[test]
fn arrows_point_one_way() {
    let mut n_files = 0;
    let mut wrong = Vec::new();
    for (module, allowed) in ARROWS {
        let rooms = root().join("src");
        check_file(&rooms.join(format!("{module}.rs")), module, allowed, &mut n_files, &mut wrong);
        for path in sources(&rooms.join(module)) {
            check_file(&path, module, allowed, &mut n_files, &mut wrong);
        }
    }
    assert!(n_files >= ARROWS.len(), "only {n_files} files read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_arrows_sees_paths_and_groups() {
    let source =
        "use crate::{gguf::Value, cli};\nlet x = crate::quant::f();\n// crate::verify\n$crate::engine::x";
    assert_eq!(uses(source), ["gguf", "cli", "quant"]);
    let source = "use crate::{\n    arch::{self, Card},\n    // crate::inspect\n    views,\n};";
    assert_eq!(uses(source), ["arch", "views"]);
}

/// Lines of the library's code, without tests, that detect the vector instructions of the machine.
fn detecting(dir: &Path, n_files: &mut usize, found: &mut Vec<String>) {
    for path in sources(dir).filter(|path| !path.ends_with("tests.rs")) {
        *n_files += 1;
        let text = fs_err::read_to_string(&path).unwrap();
        // Tests are at the end of a file.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().map(str::trim).filter(|line| line.contains("SimdLevel::detect"));
        found.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
}

/// Options have a default; all other code is given the level, so that `--simd` covers the whole run.
#[test]
fn the_vector_level_is_told_not_detected() {
    let (mut n_files, mut found) = (0, Vec::new());
    for dir in ["src", "crates/dequant/src", "crates/engine/src", "crates/tokenizer/src", "crates/views/src"]
    {
        detecting(&root().join(dir), &mut n_files, &mut found);
    }
    assert!(n_files > 100, "only {n_files} files read");
    let is_default = |line: &String| {
        ["level", "simd"].iter().any(|field| line.ends_with(&format!(" {field}: SimdLevel::detect(),")))
    };
    let (defaults, others): (Vec<String>, Vec<String>) = found.into_iter().partition(is_default);
    assert!(!defaults.is_empty(), "the rule looks for something that is not there");
    assert!(others.is_empty(), "{}", others.join("\n"));
}
