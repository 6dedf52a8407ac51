//! Which type each tensor gets, importance matrices, and the run from GGUF to GGUF.
