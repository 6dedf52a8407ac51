//! Names in card expressions that do not come from the configuration.

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
