//! Layers that turn the integer codes of a quantized checkpoint into floats as they are read, one file a family. Each is
//! a [`crate::core::WeightSource`] over another, and offers the block types that keep its codes.

pub mod flm;
