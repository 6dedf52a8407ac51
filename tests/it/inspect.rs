//! Tests of `inspect`.
