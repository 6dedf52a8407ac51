//! Application of a card to a checkpoint.

pub(crate) mod absent;
pub(crate) mod assign;
pub(crate) mod fuse;
pub(crate) mod plain_names;
pub(crate) mod resolve;
pub(crate) mod tied;
