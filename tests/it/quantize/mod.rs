//! Tests of `quantize`.

mod bad_input;
mod files;
mod program;
mod recipes;
