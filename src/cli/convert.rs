//! `gguf-convert`.

/// Entry of `gguf-convert`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
