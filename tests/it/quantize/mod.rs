//! Tests of `quantize`.

mod bad_input;
mod files;
mod one_pass;
mod program;
mod recipes;
