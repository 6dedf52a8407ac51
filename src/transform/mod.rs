//! Tensor operations that cards name: layout as strided views, arithmetic element by element.

pub mod decoded;
