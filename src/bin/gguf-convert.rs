//! `gguf-convert`: see [`gguf_foundry::cli::convert`].

fn main() -> std::process::ExitCode {
    gguf_foundry::cli::convert::main()
}
