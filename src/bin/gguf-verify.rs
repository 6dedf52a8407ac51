//! `gguf-verify`: see [`gguf_foundry::cli::verify`].

fn main() -> std::process::ExitCode {
    gguf_foundry::cli::verify::main()
}
