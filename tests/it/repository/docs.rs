//! Paths and links in the pages lead somewhere, and the words of a graph are all described.

use std::path::{Path, PathBuf};

use gguf_foundry::arch::GraphFeatures;

use crate::support::{files, root};

/// Paths in backquotes that begin with a folder of the repository and have no placeholder `NAME`.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let folders = ["converters/", "crates/", "fixtures/", "fuzz/", "lab/", "scripts/", "src/", "tests/"];
    let is_path = move |word: &&str| {
        folders.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '\n', '<', '*'])
    };
    text.split('`').skip(1).step_by(2).filter(is_path).filter(|word| !word.contains("NAME"))
}

/// The pages for users and developers.
fn pages() -> Vec<PathBuf> {
    let mut found = files::entries(root().join("docs"));
    let others = ["README.md", "SECURITY.md", "CHANGELOG.md", "lab/README.md", "python/README.md"];
    found.extend(others.iter().map(|name| root().join(name)));
    found
}

#[test]
fn places_that_pages_name_exist() {
    let (mut n_named, mut missing) = (0, Vec::new());
    for page in pages() {
        let text = fs_err::read_to_string(&page).unwrap();
        for path in paths(&text) {
            n_named += 1;
            if !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(n_named > 60, "{n_named}");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the fault of a link between pages.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (file, part) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_owned() } else { page.parent()?.join(file) };
    if !path.exists() {
        return Some(format!("{}: no file {target}", page.display()));
    }
    let text = if part.is_empty() { String::new() } else { fs_err::read_to_string(&path).unwrap() };
    let mut headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
    (!part.is_empty() && !headings.any(|one| one == part))
        .then(|| format!("{}: no heading {target}", page.display()))
}

#[test]
fn links_between_pages_lead_somewhere() {
    let (mut n_links, mut faults) = (0, Vec::new());
    for page in pages() {
        let text = fs_err::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            n_links += 1;
            faults.extend(fault(&page, target));
        }
    }
    assert!(n_links > 40, "{n_links}");
    assert!(faults.is_empty(), "{faults:#?}");
    let page = root().join("docs/guarantees.md");
    assert!(fault(&page, "none.md").is_some() && fault(&page, "verify.md#none").is_some());
}

#[test]
fn the_page_of_cards_has_all_words_of_a_graph() {
    let page = fs_err::read_to_string(root().join("docs/extending.md")).unwrap();
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
