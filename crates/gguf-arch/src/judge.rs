//! Judgement of a checkpoint and its plan: values that a file loses, tensors that it needs, cards that are similar.

pub(crate) mod carried;
mod conditions;
pub(crate) mod config_values;
pub(crate) mod facts;
pub(crate) mod kinds;
pub(crate) mod layer_lists;
pub(crate) mod loader;
pub(crate) mod long_rope;
pub(crate) mod needs;
pub(crate) mod preprocessing;
pub(crate) mod rope_members;
pub(crate) mod similar;
pub(crate) mod tower_values;
pub(crate) mod unread_biases;
