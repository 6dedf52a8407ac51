//! Words of the card vocabulary that are not built: whoever writes one is told so by name, and not that it is a typing
//! error.

use crate::arch::error::CardProblem;

/// What kind of word, the word, and what to write instead, where there is something.
const RESERVED: &[(&str, &str, &str)] = &[
    ("key", "also", ""),
    ("key", "from", "put the target model's tokenizer files beside config.json"),
    ("key", "repeat", ""),
    ("key", "rows", "`split` cuts the tensor, and each target has operations of its own"),
    ("operation", "add_index", ""),
    ("operation", "deinterleave", "`permute_axis` reorders whole heads"),
    ("operation", "drop_if_equal", "`[ignore]` leaves the tensor out"),
    ("operation", "gather_blocks", "`permute_axis` reorders blocks, `gather` rows"),
    ("operation", "interleave", "`permute_axis` reorders whole heads"),
    ("operation", "l2_normalize", ""),
    ("operation", "negate", ""),
    ("operation", "pad_rows", ""),
    ("operation", "prepend_zero", ""),
    ("operation", "repeat", ""),
    ("operation", "replace_row", ""),
    ("operation", "require_zero", "`[ignore]` leaves the tensor out"),
    ("operation", "sub_mean", ""),
    ("operation", "take", "`slice` takes a range of rows"),
    ("operation", "ternary", ""),
    ("operation", "tp_qkv", ""),
    ("join", "mul", ""),
    ("join", "mxfp4", "`type = \"blocks\"` keeps the blocks of MXFP4 weights"),
    ("type", "i32", ""),
    ("type", "i64", ""),
    ("function", "ints", ""),
    ("function", "normal_icdf", ""),
    ("function", "tensor", ""),
    ("function", "zero_rows", ""),
    ("kind", "file", ""),
    ("kind", "fill", ""),
    ("kind", "rope_factors", ""),
    ("kind", "rope_freqs_proportional", ""),
    ("name", "target", ""),
    ("name", "vocab", ""),
];

/// The problem of a word that is not built, if it is one.
pub(in crate::arch) fn not_built(at: &str, what: &'static str, word: &str) -> Option<CardProblem> {
    let row = RESERVED.iter().find(|row| row.0 == what && row.1 == word)?;
    Some(CardProblem::NotBuilt { at: at.to_owned(), what, word: row.1.to_owned(), instead: row.2 })
}
