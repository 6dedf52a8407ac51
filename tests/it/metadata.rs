//! Tests of `metadata`.
