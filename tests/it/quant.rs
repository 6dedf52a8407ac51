//! Tests of `quant`.
