//! What the Python package calls: block quantizers on NumPy arrays, and GGUF files.
//!
//! Everything that a Python programmer sees is in `gguf_foundry/__init__.py`; here arrays are flat, types are names, and rows are
//! whole blocks. Work is done without the interpreter's lock.

#![allow(clippy::needless_pass_by_value, reason = "pyo3 hands arguments over by value")]

mod blocks;
mod error;
mod file;
mod values;

/// The module `gguf_foundry._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::blocks::{dequantize, quantize, types};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
