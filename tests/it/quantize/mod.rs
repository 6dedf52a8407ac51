//! Tests of `quantize`.

mod bad_input;
mod files;
mod one_pass;
pub mod program;
mod recipes;
