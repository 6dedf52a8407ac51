//! Properties of the scales and offsets of a weight that decide which block types can hold it.

use gguf_blocks::pack::f16_error;

/// Properties of the scales and offsets of a weight.
#[derive(Clone, Debug, Default)]
pub(super) struct ScaleFacts {
    /// Largest relative error of a scale in F16.
    pub(super) scale_error: f32,
    /// Largest relative error of a minimum in F16, as Q4_1 needs it.
    pub(super) min_error: f32,
    /// Smallest and largest offset, as subtracted; `None` if all are zero.
    pub(super) offsets: Option<(f32, f32)>,
    /// True if all offsets are integers.
    pub(super) is_integral: bool,
    /// Smallest and largest exponent byte.
    pub(super) exponents: (f64, f64),
    pub(super) n_zero: u64,
    pub(super) n_negative: u64,
}

impl ScaleFacts {
    pub(super) fn add(&mut self, scale: f64, offset: f32) {
        self.scale_error = self.scale_error.max(f16_error(scale as f32));
        self.min_error = self.min_error.max(f16_error(minimum(scale, offset)));
        let (low, high) = self.offsets.unwrap_or((offset, offset));
        self.offsets = Some((low.min(offset), high.max(offset)));
        self.is_integral &= offset == offset.trunc();
        self.exponents = (self.exponents.0.min(scale), self.exponents.1.max(scale));
        self.n_zero += u64::from(scale == 0.0);
        self.n_negative += u64::from(scale < 0.0);
    }
}

/// Returns the minimum of Q4_1 for four-bit codes, which are stored with 8 added.
pub(super) fn minimum(scale: f64, offset: f32) -> f32 {
    (-f64::from(offset + 8.0) * scale) as f32
}
