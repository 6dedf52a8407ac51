//! All paths in the developer documentation exist, and the page of words of cards is complete.

use gguf_foundry::arch::GraphFeatures;

use crate::support::root;

/// Paths in backquotes that begin with a folder of the repository and have no placeholder `NAME`.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let folders = ["converters/", "crates/", "fixtures/", "fuzz/", "lab/", "scripts/", "src/", "tests/"];
    let is_path = move |word: &&str| {
        folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(char::is_whitespace)
    };
    text.split('`').skip(1).step_by(2).filter(is_path).filter(|word| !word.contains("NAME"))
}

#[test]
fn places_that_the_map_names_exist() {
    let text = fs_err::read_to_string(root().join("docs/developing.md")).unwrap();
    let named: Vec<&str> = paths(&text).collect();
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_page_of_words_has_all_of_a_graph() {
    let page = fs_err::read_to_string(root().join("docs/cards.md")).unwrap();
    for table in ["", "attention.", "head.", "moe.", "norms.", "rope.", "window."] {
        let graph = format!("{table}zz = 1").parse().unwrap();
        let error = GraphFeatures::from_toml(&graph).unwrap_err().to_string();
        let known: Vec<&str> =
            error.split('`').skip(3).step_by(2).filter(|word| !word.contains('.')).collect();
        assert!(known.len() > 3, "{error}");
        for word in known {
            assert!(page.contains(&format!("`{word}`")), "{table}{word}");
        }
    }
}
