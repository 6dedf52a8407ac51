//! `gguf-convert`: see [`gguf_foundry::cli::convert`].

gguf_foundry::program!(convert);
