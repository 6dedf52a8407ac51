//! A verdict on a file: structure, tensors, tokenizer, perplexity.
