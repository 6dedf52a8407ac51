//! Tests of `quantize`.

mod bad_input;
mod calibrate;
mod checkpoint;
mod files;
mod kept;
mod one_pass;
mod options;
pub mod program;
mod recipes;
mod stats;
mod target;
mod work;
