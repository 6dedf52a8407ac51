//! Kernels of convolutions with the channels last, as other programs have them: with the channels first.

use std::sync::Arc;

use gguf_core::{ElementType, Shape, SourceError, WeightMeta, WeightSource};

/// Weights of another source, some of which are kernels `[out, .., channels]` that are presented as `[out, channels, ..]`.
pub struct ChannelsFirst {
    base: Arc<dyn WeightSource + Send>,
    metas: Vec<WeightMeta>,
    /// Number of channels of the kernels, 0 for all other weights.
    channels: Vec<u64>,
}

impl ChannelsFirst {
    /// Turns the weights that `is_kernel` accepts. Those with less than three dimensions stay.
    pub fn over(base: Arc<dyn WeightSource + Send>, is_kernel: impl Fn(&WeightMeta) -> bool) -> Self {
        let turned = |meta: &WeightMeta| {
            let [out, inner @ .., channels] = meta.shape.dims() else { return None };
            let dims = [&[*out, *channels], inner].concat();
            let shape = Shape::new(dims).filter(|_| !inner.is_empty() && is_kernel(meta))?;
            Some((WeightMeta { shape, ..meta.clone() }, *channels))
        };
        let all = base.weights().iter().map(|meta| turned(meta).unwrap_or_else(|| (meta.clone(), 0)));
        let (metas, channels) = all.unzip();
        Self { base, metas, channels }
    }
}

impl WeightSource for ChannelsFirst {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (meta, channels) = (&self.metas[weight], self.channels[weight] as usize);
        let size = meta.ty.bytes().unwrap_or(1);
        if channels == 0 || out.is_empty() {
            return self.base.read_elems(weight, first, out);
        }
        // One output's part of the kernel is read at a time.
        let per_output: u64 = meta.shape.dims()[1..].iter().product();
        let mut stored = vec![0; per_output as usize * size];
        let (places, end) = (per_output as usize / channels, first + (out.len() / size) as u64);
        for output in first / per_output..end.div_ceil(per_output) {
            let start = output * per_output;
            self.base.read_elems(weight, start, &mut stored)?;
            for at in first.max(start)..end.min(start + per_output) {
                let (to, own) = ((at - first) as usize * size, (at - start) as usize);
                let from = (own % places * channels + own / places) * size;
                out[to..to + size].copy_from_slice(&stored[from..from + size]);
            }
        }
        Ok(())
    }

    /// A kernel is small, and any part of an output may need all of it: it is not released.
    fn origin(&self, weight: usize) -> Option<(&dyn WeightSource, usize)> {
        (self.channels[weight] == 0).then_some((&*self.base, weight))
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        self.base.code_type(weight)
    }

    fn expect(&self, weight: usize) {
        self.base.expect(weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::little_endian::f32s;
    use gguf_testkit::memory::MemoryWeights;

    #[test]
    fn kernels_are_turned_in_any_range() {
        let (dims, n) = ([2u64, 2, 3, 4], 48usize);
        let values: Vec<f32> = (0..n).map(|at| at as f32).collect();
        let base =
            MemoryWeights::default().with_f32("proj.weight", &dims, &values).with_f32("pos", &dims, &values);
        let source = ChannelsFirst::over(Arc::new(base), |meta| meta.name.starts_with("proj"));
        assert_eq!(source.weights()[0].shape.dims(), [2, 4, 2, 3]);
        let stored = |at: usize| {
            let (output, channel, place) = (at / 24, at % 24 / 6, at % 6);
            (output * 24 + place * 4 + channel) as f32
        };
        for (first, n) in [(0, n), (5, 30), (23, 2), (47, 1)] {
            let mut out = vec![0; n * 4];
            source.read_elems(0, first as u64, &mut out).unwrap();
            assert_eq!(f32s(&out).collect::<Vec<_>>(), (first..first + n).map(stored).collect::<Vec<_>>());
        }
        assert_eq!(source.weights()[1].shape.dims(), dims);
        assert!(source.borrow(0).is_none());
    }
}
