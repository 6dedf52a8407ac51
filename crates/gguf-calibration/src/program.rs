//! Version of this program, on which the bits of a result depend.

/// Version of this program, with the commit if the build knows it.
pub(super) fn program() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("GGUF_FOUNDRY_COMMIT");
    commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}
