//! Keys: from a configuration to the one that expressions see, and to those of the file, with the shapes that follow.

pub(crate) mod hparams;
pub(crate) mod origin;
pub(crate) mod origins;
pub(crate) mod resaved;
pub(crate) mod runtime_keys;
pub(crate) mod shapes;
pub(crate) mod target;
mod windows;
