//! Causal depthwise convolutions: `y_t = Σ_j w_j u_(t - n_taps + 1 + j) + bias` per channel.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::past::move_on;
use crate::exec::scalar;
use crate::exec::weights::{Vector, WeightReader};
use crate::ops::scan::{ScanPart, ScanShape, scan, transposed};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::VectorLoop;

/// Causal depthwise convolution: `y_t = Σ_j w_j u_(t - n_taps + 1 + j) + bias` per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Taps, `[n_channels, n_taps]`.
    pub weight: Vector,
    /// Bias of the sum, one per channel.
    pub bias: Option<Vector>,
    /// Number of tokens that a sum spans.
    pub(crate) n_taps: usize,
}

const CONV_CHANNELS: usize = 256;

/// Convolution whose weights are in memory, taps outermost.
pub(crate) struct LoadedConv {
    /// Taps, `[n_taps, n_channels]`.
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    n_taps: usize,
    n_channels: usize,
}

impl Conv {
    /// Returns the number of floats that a sequence keeps of the last inputs of `n_channels`.
    pub(crate) fn remembered(&self, n_channels: usize) -> usize {
        self.n_taps.saturating_sub(1).saturating_mul(n_channels)
    }
}

impl LoadedConv {
    pub(crate) fn new(weights: &WeightReader<'_>, conv: &Conv) -> Result<Self> {
        let rows = weights.vector(&conv.weight)?;
        let n_taps = conv.n_taps;
        let n_channels = rows.len() / n_taps.max(1);
        let weight = transposed(&rows, n_taps);
        Ok(Self { weight, bias: weights.optional(conv.bias.as_ref())?, n_taps, n_channels })
    }
}

/// Function after a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvEnd {
    /// No function.
    Plain,
    /// SiLU.
    Silu,
}

/// Loop over the channels of a token: `out += tap * x` for each tap, then `out = silu(out)` if `end` is
/// [`ConvEnd::Silu`].
struct ConvRow<'a> {
    out: &'a mut [f32],
    taps: &'a [(&'a [f32], &'a [f32])],
    end: ConvEnd,
}

impl VectorLoop for ConvRow<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        for (weight, x) in self.taps {
            for ((y, &w), &x) in self.out.iter_mut().zip(*weight).zip(*x) {
                *y += w * x;
            }
        }
        if self.end == ConvEnd::Silu {
            for y in self.out {
                *y /= 1.0 + scalar::exp(-*y);
            }
        }
    }
}

impl LoadedConv {
    /// Convolves the channels of `x` over the tokens of every chunk into `out`, both `[n_tokens, n_channels]`.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
        end: ConvEnd,
    ) -> Result<()> {
        let LoadedConv { weight, bias, n_taps, n_channels } = self;
        let (level, n_before) = (cx.weights.level, n_taps.saturating_sub(1));
        let mut cache = cx.past.map(|past| past.take(n_before * n_channels));
        let mut before = match (cx.past, &mut cache) {
            (Some(past), Some(cache)) => past.chunk_parts(cache),
            _ => Vec::new(),
        };
        let shape = ScanShape { n_cols: *n_channels, step: CONV_CHANNELS, n_state: 0 };
        scan(cx, batch, out, shape, |part, tile, _| {
            let ScanPart { chunk, tokens, columns: channels, .. } = part;
            let before = before.get(chunk).map_or(&[][..], |rows| rows);
            let mut taps = Vec::with_capacity(*n_taps);
            for (t, at) in tokens.clone().enumerate() {
                taps.clear();
                let skipped = n_taps.saturating_sub(t + 1);
                if !before.is_empty() {
                    for tap in 0..skipped {
                        taps.push((
                            &weight[tap * n_channels..][channels.clone()],
                            &before[(t + tap) * n_channels..][channels.clone()],
                        ));
                    }
                }
                for tap in skipped..*n_taps {
                    let from = at + 1 + tap - n_taps;
                    taps.push((
                        &weight[tap * n_channels..][channels.clone()],
                        &x[from * n_channels..][channels.clone()],
                    ));
                }
                let out = tile.row_mut(t);
                match bias {
                    Some(bias) => out.copy_from_slice(&bias[channels.clone()]),
                    None => out.fill(0.0),
                }
                level.vectorize(ConvRow { out, taps: &taps, end });
            }
        })?;
        for (before, cut) in before.iter_mut().zip(batch.cuts.windows(2)) {
            move_on(before, &x[cut[0] * n_channels..cut[1] * n_channels]);
        }
        cx.give_cache(cache);
        Ok(())
    }
}

impl Conv {
    /// Resolves the causal convolution `name` of `n_channels` channels.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        name: &str,
        n_channels: usize,
        n_taps: usize,
    ) -> Result<Conv> {
        let weight = b.need_vector(&format!("{name}.weight"), n_channels.saturating_mul(n_taps))?;
        let bias = b.tensors.vector(&format!("{name}.bias"), n_channels)?;
        Ok(Conv { weight, bias, n_taps })
    }
}
