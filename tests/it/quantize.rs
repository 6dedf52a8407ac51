//! Tests of `quantize`.
