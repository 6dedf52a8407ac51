//! Reserved words of the card vocabulary that this program does not support: the error names them instead of suggesting
//! a typing error.

use crate::error::CardProblem;

/// Kind of word, the word, and its replacement (may be empty).
const RESERVED: &[(&str, &str, &str)] = &[
    (
        "key",
        "rows",
        "`split` cuts the tensor, and each target has operations of its own; `scale` takes `rows`",
    ),
    (
        "operation",
        "drop_if_equal",
        "it is a key of rules in `[ignore]`: `drop_if_equal = \"the other tensor\"`",
    ),
    ("operation", "replace_row", ""),
    ("operation", "require_zero", "it is a key of rules in `[ignore]`: `require_zero = true`"),
    ("operation", "take", "`repeat` copies the first index of an axis, `slice` takes a range"),
    (
        "operation",
        "tp_qkv",
        "scales by rank are seen by themselves; `ungroup` brings the ranks' rows together, and `shape` of the scales tells how many there are",
    ),
    ("join", "mxfp4", "`type = \"blocks\"` keeps the blocks of MXFP4 weights"),
    ("kind", "file", ""),
];

/// Returns the error for a reserved word; `None` for any other word.
pub(crate) fn not_built(at: &str, what: &'static str, word: &str) -> Option<CardProblem> {
    let row = RESERVED.iter().find(|row| row.0 == what && row.1 == word)?;
    Some(CardProblem::NotBuilt { at: at.to_owned(), what, word: row.1.to_owned(), instead: row.2 })
}
