//! `gguf-inspect`.

/// Entry of `gguf-inspect`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
