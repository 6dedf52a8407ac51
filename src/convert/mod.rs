//! A checkpoint becomes a GGUF file: plan from headers, then stream.
