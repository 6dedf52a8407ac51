//! Lists the cards under `converters/`, so that an architecture is one file and nothing else.

#![expect(clippy::disallowed_methods, reason = "a build script has no more than the standard library")]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    list(&root.join("converters"), &out.join("cards.rs"))?;
    list(&root.join("converters/mmproj"), &out.join("mmproj.rs"))?;
    list(&root.join("converters/diffusion"), &out.join("diffusion.rs"))
}

/// Writes a table of the cards in a folder.
fn list(cards: &Path, table: &Path) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", cards.display());
    let mut rows = Vec::new();
    for entry in fs::read_dir(cards)? {
        let path = entry?.path();
        if let Some((stem, path)) = card(&path) {
            println!("cargo::rerun-if-changed={path}");
            rows.push(format!("({stem:?}, include_str!({path:?})),\n"));
        }
    }
    rows.sort();
    fs::write(table, format!("&[\n{}]\n", rows.concat()))
}

/// Stem and path of a card's file; none for other files (an editor's backups).
fn card(path: &Path) -> Option<(&str, &str)> {
    let is_card = path.extension().is_some_and(|extension| extension == "toml");
    Some((path.file_stem()?.to_str()?, path.to_str()?)).filter(|_| is_card)
}
