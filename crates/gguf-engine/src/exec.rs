//! Execution: the parts that operations share. Operations run in a [`context::Context`]. Weights are decoded panel by
//! panel and multiplied with all tokens of a batch. Loops over values are compiled for every SIMD level.

pub(super) mod activation;
pub(super) mod batch;
pub(super) mod buffers;
pub(super) mod carried;
pub(super) mod context;
pub(super) mod count;
pub(super) mod cross_products;
pub(super) mod decode;
pub(super) mod gradient;
pub(super) mod gram;
pub(super) mod hidden;
mod kept;
pub(super) mod mask;
pub(super) mod math;
pub(super) mod norm;
pub(super) mod observer;
pub(super) mod panel;
pub(super) mod past;
pub(super) mod product;
pub(super) mod rope;
pub(super) mod rowwise;
pub(super) mod scalar;
pub(super) mod strips;
pub(super) mod timings;
pub(super) mod weights;
pub(super) mod workers;

pub(super) use gguf_matmul as matmul;
