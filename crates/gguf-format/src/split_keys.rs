//! Keys of the parts of a split file.

/// Key of the part's number, from 0 (u16).
pub const SPLIT_NO: &str = "split.no";
/// Key of the number of parts (u16).
pub const SPLIT_COUNT: &str = "split.count";
/// Key of the number of tensors in all parts (i32).
pub const SPLIT_TENSORS: &str = "split.tensors.count";
/// Key of the id of the set.
pub const SPLIT_ID: &str = "gguf_foundry.split.id";
