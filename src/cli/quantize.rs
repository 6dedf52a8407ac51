//! `gguf-quantize`.

/// Entry of `gguf-quantize`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
