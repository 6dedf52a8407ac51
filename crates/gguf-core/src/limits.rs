//! Caps on what a header may declare. They are far above any real value and far below a harmful one.

/// Limits that parsers check before they allocate.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a safetensors header (the format's own cap).
    pub safetensors_header_bytes: u64,
    /// Bytes of the pickle in a PyTorch file.
    pub pickle_bytes: u64,
    /// Bytes of a JSON or text file read whole (`config.json`, `tokenizer.json`, an index).
    pub text_file_bytes: u64,
    /// Depth of nested arrays and JSON values.
    pub depth: usize,
    /// Tensors in one file or checkpoint.
    pub n_tensors: u64,
    /// Keys in a GGUF header.
    pub n_keys: u64,
    /// Parts of a split file or shards of a checkpoint.
    pub n_parts: usize,
    /// True to follow links out of a model's directory when reading its text files (configuration, tokenizer,
    /// templates): their text ends up in outputs.
    pub follow_links: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            safetensors_header_bytes: 100_000_000,
            pickle_bytes: 32 << 20,
            text_file_bytes: 1 << 30,
            depth: 64,
            n_tensors: 1 << 24,
            n_keys: 1 << 20,
            n_parts: 1 << 16,
            follow_links: false,
        }
    }
}
