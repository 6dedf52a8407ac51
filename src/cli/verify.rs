//! `gguf-verify`.

/// Entry of `gguf-verify`.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
