//! Names in card expressions that do not come from the configuration.

use crate::language::names::Placeholder;

/// Returns true for numbers that expressions have by position: those in a tensor's name (`bid`), and its dimensions (`d0`).
pub(crate) fn is_number(name: &str) -> bool {
    let is_dim = || name.strip_prefix('d').is_some_and(|n| n.parse::<u8>().is_ok());
    Placeholder::from_name(name).is_some() || is_dim()
}

/// Roots of paths, sorted.
pub(crate) const ROOTS: &[&str] = &[
    "class",
    "file_type",
    "folders",
    "generation",
    "opt",
    "pooling",
    "preprocessor",
    "raw",
    "rope",
    "rope_full",
    "rope_swa",
    "target",
    "tokenizer_config",
    "vocab",
];

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_sorted() {
        assert!(super::ROOTS.is_sorted());
    }
}
