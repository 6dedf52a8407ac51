//! Table of `equal_files.md`: files of the corpus that are equal, by architecture and type.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use gguf_foundry::arch::diffusion::DiffusionCards;

use crate::support::root;

/// Environment variable with which the table is written.
const REWRITE: &str = "GGUF_FOUNDRY_REWRITE";
const START: &str = "<!-- equal files -->\n";
const END: &str = "<!-- end -->\n";
/// Columns, in the order of sizes.
const TYPES: [&str; 15] = [
    "auto", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k_m", "q5_k_s", "q4_1", "q4_0", "q4_k_m", "q4_k_s", "q3_k_l",
    "q3_k_m", "q3_k_s", "q2_k",
];

/// Number of files that equal those of the reference, by architecture and type.
#[derive(Default)]
pub struct EqualFiles(BTreeMap<(String, String), usize>);

fn page() -> PathBuf {
    root().join("tests/it/diffusion/equal_files.md")
}

/// Text of the page before, in and after the table.
fn parts(text: &str) -> (&str, &str, &str) {
    let (before, rest) = text.split_once(START).expect("the marker of the table");
    let (table, after) = rest.split_once(END).expect("the end of the table");
    (before, table, after)
}

impl EqualFiles {
    /// Counts a file.
    pub fn add(&mut self, architecture: &str, ty: &str) {
        assert!(TYPES.contains(&ty), "no column for {ty}");
        *self.0.entry((architecture.to_owned(), ty.to_owned())).or_default() += 1;
    }

    /// Compares the table of the page with what was counted, or writes it.
    pub fn check(&self) {
        let mut table =
            format!("| architecture | {} |\n|---|{}\n", TYPES.join(" | "), "--:|".repeat(TYPES.len()));
        for card in DiffusionCards::embedded().unwrap().iter() {
            let count = |ty: &str| self.0.get(&(card.gguf.clone(), ty.to_owned()));
            let cells = TYPES.map(|ty| count(ty).map_or_else(String::new, ToString::to_string));
            writeln!(table, "| `{}` | {} |", card.gguf, cells.join(" | ")).unwrap();
        }
        let text = fs_err::read_to_string(page()).unwrap();
        let (before, found, after) = parts(&text);
        if std::env::var_os(REWRITE).is_some() {
            fs_err::write(page(), format!("{before}{START}{table}{END}{after}")).unwrap();
            return;
        }
        assert_eq!(found, table, "{REWRITE}=1 writes the table");
    }
}

/// A card without a row would be a claim that nothing supports.
#[test]
fn every_card_has_a_row() {
    let text = fs_err::read_to_string(page()).unwrap();
    let rows: Vec<&str> = parts(&text).1.lines().skip(2).collect();
    let cards: Vec<_> = DiffusionCards::embedded().unwrap().iter().map(|card| card.gguf.clone()).collect();
    assert_eq!(rows.len(), cards.len());
    for (row, card) in rows.iter().zip(&cards) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells[0], format!("`{card}`"));
        // `auto` and Q8_0 of every architecture.
        assert!(cells[1..3].iter().all(|cell| cell.parse::<usize>().is_ok_and(|n| n > 0)), "{row}");
    }
}
