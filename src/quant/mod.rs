//! Block quantizers and dequantizers: float rows to block bytes and back. Knows no files, names or metadata.
