//! Biases that llama.cpp does not read under an architecture: it does not load a file that has one.

use std::fmt;

use gguf_arch::OutputSpec;
use gguf_core::text::escape;

/// Table with a line per architecture of llama.cpp: its name, and the tensors whose bias its loader accepts.
const TAKEN: &str = include_str!("runtime_biases.tsv");
/// Number of names that a message shows.
const SHOWN: usize = 3;

/// Biases of a planned file that the runtime does not accept.
pub(super) struct UnreadBiases<'a> {
    arch: &'a str,
    names: Vec<&'a str>,
}

impl<'a> UnreadBiases<'a> {
    /// Finds the biases of a file; `None` if there are none, or the runtime does not know the architecture.
    pub(super) fn of(arch: &'a str, outputs: &'a [OutputSpec]) -> Option<Self> {
        let mut rows = TAKEN.lines().filter_map(|line| line.split_once('\t'));
        let taken: Vec<&str> = rows.find(|row| row.0 == arch)?.1.split_whitespace().collect();
        let is_taken = |stem: &str| taken.contains(&without_numbers(stem).as_str());
        let names = outputs.iter().map(|output| output.name.as_str());
        let names: Vec<&str> =
            names.filter(|name| name.strip_suffix(".bias").is_some_and(|stem| !is_taken(stem))).collect();
        (!names.is_empty()).then_some(Self { arch, names })
    }
}

impl fmt::Display for UnreadBiases<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> =
            self.names.iter().take(SHOWN).map(|name| format!("`{}`", escape(name))).collect();
        write!(f, "{}", shown.join(", "))?;
        match self.names.len() {
            1 => write!(f, ": llama.cpp has no such tensor")?,
            n if n > SHOWN => write!(f, " and {} more: llama.cpp has no such tensors", n - SHOWN)?,
            _ => write!(f, ": llama.cpp has no such tensors")?,
        }
        write!(
            f,
            " under architecture `{}`, and does not load a file with biases that it has no place for",
            self.arch
        )
    }
}

/// Replaces every number between the dots of a tensor's name by `N`.
fn without_numbers(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "N" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_arch::Registry;

    #[test]
    fn the_table_knows_the_architectures_of_most_cards() {
        let registry = Registry::embedded().unwrap();
        let known =
            |arch: &str| TAKEN.lines().any(|line| line.split_once('\t').is_some_and(|row| row.0 == arch));
        let cards: Vec<_> = registry.cards().iter().filter(|card| !card.is_abstract).collect();
        let n_known = cards.iter().filter(|card| known(&card.gguf)).count();
        assert!(n_known * 10 > cards.len() * 9, "{n_known} of {}", cards.len());
    }

    #[test]
    fn numbers_of_blocks_do_not_matter() {
        assert_eq!(without_numbers("blk.12.attn_q"), "blk.N.attn_q");
        assert_eq!(without_numbers("dec.blk.0.attn_q"), "dec.blk.N.attn_q");
        assert_eq!(without_numbers("output"), "output");
    }
}
