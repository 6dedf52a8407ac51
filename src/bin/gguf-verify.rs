//! `gguf-verify`: see [`gguf_foundry::cli::verify`].

gguf_foundry::program!(verify);
