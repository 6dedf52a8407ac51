//! Look into GGUF files and compare them.
