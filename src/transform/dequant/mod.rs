//! Layers over a checkpoint's tensors that undo a quantization tool's own format: floats under plain names, and the
//! block types that take over its codes.

pub mod flm;
pub mod msmodelslim;
