//! What a graph is made of: one operation a file, and the two that all others stand on, slices (`math`) and products
//! of matrices (`matmul`, `product`).

mod adjugates;
mod altup;
pub(super) mod attention;
mod by_token;
pub(super) mod columns;
pub(super) mod compressed;
pub(super) mod cross;
mod cycles;
mod delta_net;
mod draw;
pub(super) mod extras;
pub(super) mod ffn;
mod gate;
mod gated_q;
pub(super) mod gram;
pub(super) mod gram_sum;
pub(super) mod head;
mod hyper;
mod kda;
mod latent;
mod laurel;
mod lightning;
pub(super) mod logs;
pub(super) mod mamba;
mod mamba2;
pub(super) mod math;
pub(super) mod mla;
pub(super) mod moe;
mod ngrams;
#[cfg(test)]
mod noise;
pub(super) mod norm;
mod pair;
mod plamo2;
mod pooling;
pub(super) mod prefix;
pub(super) mod product;
mod recurrence;
pub(super) mod relative;
pub(super) mod rope;
pub(super) mod rows;
mod rowwise;
mod rwkv6;
mod rwkv7;
mod shift;
mod shortconv;
pub(super) mod stream_mix;
pub(super) mod strips;
mod switched;

pub(super) use gguf_matmul as matmul;
