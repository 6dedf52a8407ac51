//! Messages of the programs are useful without the repository.

use std::path::PathBuf;

use crate::support::{files, programs, root};

/// Paths of the repository that a message must not name.
const PLACES: [&str; 6] = ["src/", "docs/", "tests/", "fixtures/", "converters/", ".rs"];

/// String literals of a line of code, approximately: the text between quotes.
fn literals(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(begin) = rest.find('"') {
        let mut text = String::new();
        let mut chars = rest[begin + 1..].char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = begin + 1 + at + 1;
                    break;
                }
                '\\' => text.extend(chars.next().map(|escaped| escaped.1)),
                c => text.push(c),
            }
        }
        found.push(text);
        rest = &rest[end..];
    }
    found
}

#[test]
fn no_message_names_a_place_in_the_repository() {
    let folders = ["src", "crates"].map(|dir| files::below(root().join(dir)));
    let mut files: Vec<PathBuf> = folders.into_iter().flatten().collect();
    let is_test = |path: &PathBuf| {
        path.components().any(|part| ["tests", "gguf-testkit"].iter().any(|own| part.as_os_str() == *own))
    };
    files.retain(|path| !is_test(path));
    files.retain(|path| path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("build.rs"));
    assert!(files.len() > 100, "only {} files found", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let source = fs_err::read_to_string(&path).unwrap();
        // Tests are at the end.
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate() {
            let line = line.trim_start();
            // Attributes and paths that are read at build time are not messages.
            if line.starts_with("//") || line.starts_with("#[") || line.contains("include") {
                continue;
            }
            let named =
                literals(line).into_iter().find(|text| PLACES.iter().any(|place| text.contains(place)));
            wrong.extend(named.map(|text| format!("{}:{}: {text}", path.display(), at + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_literals_sees_them() {
    assert_eq!(literals(r#"f("a \" b", 'x', "c/d") "#), ["a \" b", "c/d"]);
}

#[test]
fn the_help_of_every_command_names_no_place_in_the_repository() {
    for (program, commands) in [
        (
            "gguf-convert",
            &[
                "hf2gguf",
                "msmodelslim2gguf",
                "flm2gguf",
                "lora2gguf",
                "merge-lora",
                "gguf2hf",
                "archs",
                "draft",
            ][..],
        ),
        ("gguf-quantize", &[]),
        ("gguf-verify", &["logits", "imatrix", "combine"]),
        ("gguf-inspect", &["diff", "hash", "set", "remove", "split", "checkpoint", "merge"]),
    ] {
        for command in [None].into_iter().chain(commands.iter().map(Some)) {
            let help =
                programs::finish(programs::command(program, root()).args(command).arg("--help")).ok().out;
            assert!(help.contains("-q, --quiet"), "{program} {command:?}: {help}");
            for place in PLACES {
                assert!(!help.contains(place), "{program} {command:?}: {place}");
            }
        }
    }
}
