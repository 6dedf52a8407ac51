//! `gguf-inspect`: see [`gguf_foundry::cli::inspect`].

gguf_foundry::program!(inspect);
