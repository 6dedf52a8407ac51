//! `gguf-quantize`: see [`gguf_foundry::cli::quantize`].

fn main() -> std::process::ExitCode {
    gguf_foundry::cli::quantize::main()
}
