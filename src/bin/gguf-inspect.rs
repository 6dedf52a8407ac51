//! `gguf-inspect`: see [`gguf_foundry::cli::inspect`].

fn main() -> std::process::ExitCode {
    gguf_foundry::cli::inspect::main()
}
