//! Tests of `arch`.
