//! `gguf-quantize`: see [`gguf_foundry::cli::quantize`].

gguf_foundry::program!(quantize);
