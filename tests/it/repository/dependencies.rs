//! The page about dependencies lists the packages of `Cargo.lock`.

use std::collections::BTreeSet;

use crate::support::root;

#[test]
fn the_page_lists_every_crate_of_the_lock_file() {
    let lock = fs_err::read_to_string(root().join("Cargo.lock")).unwrap();
    let lock: toml::Table = lock.parse().unwrap();
    let expected: BTreeSet<&str> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        // Packages of this project come from no registry.
        .filter(|package| package.get("source").is_some())
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    let page = fs_err::read_to_string(root().join("docs/dependencies.md")).unwrap();
    assert!(!page.contains("TODO"), "a crate has no reason");
    // The introduction names files and programs.
    let names = page[page.find("\n| `").unwrap()..].split('`').skip(1).step_by(2);
    let found: BTreeSet<&str> = names.filter(|name| !name.contains(['.', ' '])).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(missing.is_empty(), "run scripts/dependencies.py: {missing:?}");
}
