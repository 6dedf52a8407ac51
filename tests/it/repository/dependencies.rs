//! The page about dependencies lists the packages of `Cargo.lock`.

use std::collections::BTreeSet;

use crate::support::root;

#[test]
fn the_page_lists_every_crate_of_the_lock_file() {
    let lock = fs_err::read_to_string(root().join("Cargo.lock")).unwrap();
    let lock: toml::Table = lock.parse().unwrap();
    let text =
        |package: &toml::Value, key: &str| package.get(key).and_then(|v| v.as_str()).map(str::to_owned);
    let expected: BTreeSet<(String, String)> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        // Packages of this project come from no registry.
        .filter(|package| package.get("source").is_some())
        .map(|package| (text(package, "name").unwrap(), text(package, "version").unwrap()))
        .collect();
    let page = fs_err::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let cells = |line: &str| -> Option<(String, String)> {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    let found: BTreeSet<(String, String)> = page.lines().filter_map(cells).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let extra: Vec<_> = found.difference(&expected).collect();
    assert!(missing.is_empty() && extra.is_empty(), "run scripts/dependencies.py: + {missing:?} - {extra:?}");
}
