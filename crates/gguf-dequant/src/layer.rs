//! The float source on top of a source of codes.

use std::fmt;
use std::sync::Arc;

use crate::encoding::n_bytes;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, DequantError, Encoding, Encodings, InnerSource, Result};
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::little_endian::store_f32s;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, Packing, SourceError, WeightMeta, WeightSource, scratch};

pub(super) enum WeightOrigin {
    /// A tensor of the inner source, unchanged.
    Plain(usize),
    /// A tensor of another source, unchanged.
    Other(Arc<dyn WeightSource + Send>, usize),
    /// A decoded or computed weight.
    Coded(Box<dyn CodedWeight>),
}

impl WeightOrigin {
    /// Returns the source and tensor index of an unchanged weight, or else its decoder.
    pub(super) fn place<'a>(
        &'a self,
        inner: &'a dyn WeightSource,
    ) -> Result<(&'a dyn WeightSource, usize), &'a dyn CodedWeight> {
        match self {
            Self::Plain(index) => Ok((inner, *index)),
            Self::Other(source, index) => Ok((&**source, *index)),
            Self::Coded(coded) => Err(&**coded),
        }
    }
}

pub(super) struct Weight {
    pub(super) meta: WeightMeta,
    pub(super) origin: WeightOrigin,
}

impl Weight {
    /// Creates an unchanged weight under its own name.
    pub(super) fn plain(source: &dyn WeightSource, index: usize) -> Self {
        Self { meta: source.weights()[index].clone(), origin: WeightOrigin::Plain(index) }
    }
}

/// The weights of a quantized checkpoint as floats under the float model's names: the only source over codes, for all
/// methods.
pub(super) struct Dequantized {
    source: Arc<dyn WeightSource + Send>,
    level: SimdLevel,
    weights: Vec<WeightMeta>,
    origins: Vec<WeightOrigin>,
}

impl fmt::Debug for Dequantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dequantized")
            .field("weights", &self.weights.len())
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

impl Dequantized {
    /// Creates the layer of `weights` over `source`, the source for which they were planned.
    pub(super) fn new(source: Box<dyn WeightSource + Send>, level: SimdLevel, weights: Vec<Weight>) -> Self {
        Self::over(Arc::from(source), level, weights)
    }

    /// Creates the layer over a shared source.
    pub(super) fn over(source: Arc<dyn WeightSource + Send>, level: SimdLevel, weights: Vec<Weight>) -> Self {
        let (weights, origins) = weights.into_iter().map(|weight| (weight.meta, weight.origin)).unzip();
        Self { source, level, weights, origins }
    }

    /// Returns the layer with the weights that `change` makes of the present ones.
    pub(super) fn changed<E>(
        self,
        change: impl FnOnce(Vec<Weight>) -> Result<Vec<Weight>, E>,
    ) -> Result<Self, E> {
        let weights = self.weights.into_iter().zip(self.origins);
        let weights = weights.map(|(meta, origin)| Weight { meta, origin }).collect();
        Ok(Self::over(self.source, self.level, change(weights)?))
    }

    /// Returns the encodings of the coded weights, for a method of this name.
    pub(super) fn encodings(&self, method: &'static str) -> Encodings {
        let encoding = |(meta, origin): (&WeightMeta, &WeightOrigin)| match origin {
            WeightOrigin::Coded(weight) if !weight.members().is_empty() => {
                let n_bytes = n_bytes(&*self.source, weight.members());
                Some((meta.name.clone(), Encoding { method, form: weight.form(), n_bytes }))
            }
            WeightOrigin::Plain(_) | WeightOrigin::Other(..) | WeightOrigin::Coded(_) => None,
        };
        self.weights.iter().zip(&self.origins).filter_map(encoding).collect()
    }

    /// Returns the stored tensors that are no weights of the layer: members of coded weights, and others with a reason.
    pub(super) fn pieces(&self, unused: &str) -> Vec<Piece> {
        let stored = self.source.weights();
        let (mut made, mut is_plain) = (vec![Vec::new(); stored.len()], vec![false; stored.len()]);
        for (meta, origin) in self.weights.iter().zip(&self.origins) {
            match origin {
                WeightOrigin::Plain(index) => is_plain[*index] = true,
                WeightOrigin::Coded(weight) => {
                    weight.members().iter().for_each(|&member| made[member].push(meta.name.clone()));
                }
                WeightOrigin::Other(..) => {}
            }
        }
        let others = stored.iter().zip(made).zip(is_plain).filter(|(_, is_plain)| !is_plain);
        let piece = |((meta, made), _): ((&WeightMeta, Vec<String>), bool)| {
            if made.is_empty() {
                Piece::not(PieceKind::Tensor, &meta.name, Fate::WithoutEffect, unused)
            } else {
                Piece::written(PieceKind::Tensor, &meta.name, made)
            }
        };
        others.map(piece).collect()
    }

    fn place(&self, weight: usize) -> Result<(&dyn WeightSource, usize), &dyn CodedWeight> {
        self.origins[weight].place(&*self.source)
    }

    fn inner(&self) -> InnerSource<'_> {
        InnerSource { source: &*self.source, level: self.level }
    }

    /// Splits a range of elements into rectangles: `visit` gets each with its offset in the range.
    fn rectangles<E>(
        &self,
        weight: usize,
        first: u64,
        n: u64,
        mut visit: impl FnMut(&Rectangle, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let shape = &self.weights[weight].shape;
        let (mut at, end) = (first, first + n);
        assert!(end <= shape.n_elems(), "elements {first}..+{n} are outside weight {weight}");
        let n_cols = shape.n_cols().max(1);
        while at < end {
            let (row, col) = (at / n_cols, at % n_cols);
            let whole_rows = (end - at) / n_cols;
            let (rows, cols) = if col == 0 && whole_rows > 0 {
                (row..row + whole_rows, 0..n_cols)
            } else {
                (row..row + 1, col..n_cols.min(col + end - at))
            };
            let part = Rectangle { rows, cols };
            visit(&part, at - first)?;
            at += part.n_elems();
        }
        Ok(())
    }
}

impl WeightSource for Dequantized {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let coded = match self.place(weight) {
            Ok((source, index)) => return source.read_elems(index, first, out),
            Err(coded) => coded,
        };
        scratch::with_floats(out.len() / size_of::<f32>(), |floats| {
            self.rectangles(weight, first, floats.len() as u64, |part, at| {
                let end = at + part.n_elems();
                coded.decode(self.inner(), part, &mut floats[at as usize..end as usize])
            })?;
            store_f32s(floats, out);
            Ok(())
        })
        .map_err(|error: DequantError| error.reading(&self.weights[weight].name))
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        let (source, index) = self.place(weight).ok()?;
        source.borrow(index)
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        match self.place(weight) {
            Ok((source, index)) => source.packings(index),
            Err(coded) => {
                coded.packings(self.inner()).map_err(|error| error.reading(&self.weights[weight].name))
            }
        }
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        match self.place(weight) {
            Ok((source, index)) => source.code_type(index),
            Err(coded) => coded.code_type(self.inner()),
        }
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let coded = match self.place(weight) {
            Ok((source, index)) => return source.read_packed(index, ty, first, out),
            Err(coded) => coded,
        };
        let (block_elems, block_bytes) = (ty.block_elems() as u64, ty.block_bytes() as u64);
        let n = out.len() as u64 / block_bytes * block_elems;
        self.rectangles(weight, first, n, |part, at| {
            let bytes = |elems: u64| (elems / block_elems * block_bytes) as usize;
            coded.pack(self.inner(), ty, part, &mut out[bytes(at)..bytes(at + part.n_elems())])
        })
        .map_err(|error| error.reading(&self.weights[weight].name))
    }

    fn expect(&self, weight: usize) {
        match self.place(weight) {
            Ok((source, index)) => source.expect(index),
            Err(coded) => coded.expect(self.inner()),
        }
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        match self.place(weight) {
            Ok((source, index)) => source.release_elems(index, first, n),
            Err(coded) => {
                coded.release(self.inner(), &self.weights[weight].shape, first..first.saturating_add(n));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use gguf_core::Shape;
    use gguf_testkit::memory::MemoryWeights;

    type DecodeLog = Mutex<Vec<(SimdLevel, Rectangle)>>;

    /// A coded weight that records the requested rectangles; an element is its row and column in one number.
    struct LoggingWeight(&'static DecodeLog);

    impl CodedWeight for LoggingWeight {
        fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
            self.0.lock().unwrap().push((inner.level, part.clone()));
            let elems = part.rows.clone().flat_map(|row| part.elems(row, 10));
            out.iter_mut().zip(elems).for_each(|(out, elem)| *out = elem as f32);
            Ok(())
        }

        fn members(&self) -> &[usize] {
            &[]
        }

        fn form(&self) -> String {
            "numbers".to_owned()
        }
    }

    fn layer(level: SimdLevel, seen: &'static DecodeLog) -> Dequantized {
        let shape = Shape::new(vec![5, 10]).unwrap();
        let meta = WeightMeta { name: "w".to_owned(), shape, ty: ElementType::F32 };
        let weight = Weight { meta, origin: WeightOrigin::Coded(Box::new(LoggingWeight(seen))) };
        Dequantized::new(Box::new(MemoryWeights::default()), level, vec![weight])
    }

    #[test]
    fn a_range_is_cut_into_rectangles() {
        static SEEN: DecodeLog = Mutex::new(Vec::new());
        let mut out = [0; 4 * 27];
        layer(SimdLevel::Scalar, &SEEN).read_elems(0, 7, &mut out).unwrap();
        let found: Vec<f32> = gguf_core::little_endian::f32s(&out).collect();
        assert_eq!(found, (7..34).map(|elem| elem as f32).collect::<Vec<_>>());
        let rectangles: Vec<_> = SEEN.lock().unwrap().iter().map(|row| row.1.clone()).collect();
        let wanted = [(0..1, 7..10), (1..3, 0..10), (3..4, 0..4)];
        assert_eq!(rectangles, wanted.map(|(rows, cols)| Rectangle { rows, cols }));
    }

    #[test]
    fn weights_are_decoded_at_the_level_that_was_asked_for() {
        static SEEN: DecodeLog = Mutex::new(Vec::new());
        for level in SimdLevel::ALL {
            SEEN.lock().unwrap().clear();
            layer(level, &SEEN).read_elems(0, 0, &mut [0; 200]).unwrap();
            assert!(SEEN.lock().unwrap().iter().all(|row| row.0 == level), "{level}");
            assert!(!SEEN.lock().unwrap().is_empty());
        }
    }
}
