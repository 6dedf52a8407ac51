//! Conversion, quantization, verification and inspection of GGUF model files.
//!
//! Data flows in one direction, and each module may use only those before it:
//! [`core`] → `remote`, [`gguf`], [`checkpoint`], [`quant`] → [`dequant`], [`tokenizer`], [`arch`] → [`views`] →
//! [`convert`], [`quantize`], [`engine`] → [`verify`], [`inspect`] → [`calibrate`] → `cli`.
//!
//! The library does not use a terminal: it returns values and errors and reports progress through
//! [`core::progress::Progress`]. The feature `cli` (default) adds the four programs, the feature `remote` (default)
//! checkpoints on servers.

pub mod arch;
pub mod calibrate;
pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod convert;
pub mod dequant;
pub mod engine;
pub mod gguf;
pub mod inspect;
pub mod quantize;
#[cfg(feature = "remote")]
pub mod remote;
pub mod tokenizer;
pub mod verify;
pub mod views;

#[cfg(test)]
extern crate self as gguf_foundry;
#[cfg(test)]
#[path = "../tests/testkit/mod.rs"]
mod testkit;

pub use gguf_core as core;
pub use gguf_quant as quant;
pub use gguf_solve as solve;
