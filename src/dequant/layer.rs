//! A source of floats over a source of codes.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use crate::core::{ElementType, GgmlType, Packing, SourceError, WeightMeta, WeightSource};
use crate::dequant::DequantError;

/// One weight that the checkpoint keeps as codes. It is seen as a matrix: the columns are its last dimension, the rows
/// all others together.
pub trait Decoder: Send + Sync {
    /// Decodes a rectangle into `out`, row after row. `source` is the source below the layer.
    ///
    /// # Errors
    /// The source failed, or a code or scale that no value belongs to.
    fn decode(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError>;

    /// As [`WeightSource::packings`].
    ///
    /// # Errors
    /// The source failed, or a scale that is not finite.
    fn packings(&self, source: &dyn WeightSource) -> Result<Vec<Packing>, DequantError> {
        let _ = source;
        Ok(Vec::new())
    }

    /// Writes a rectangle, whose columns are whole blocks, as blocks of a type that [`Decoder::packings`] names.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    ///
    /// # Panics
    /// If there is no such packing.
    fn pack(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), DequantError> {
        let _ = (source, rows, cols, out);
        panic!("no packing as {ty}")
    }

    /// The weights below that this one is made of, that of the codes first.
    fn members(&self) -> &[usize];

    /// What codes and scales look like, for people: `4 bit, groups of 128`.
    fn form(&self) -> String;
}

/// Where a weight of the layer comes from.
enum Origin {
    /// A weight below, as it is.
    Plain(usize),
    Coded(Box<dyn Decoder>),
}

/// A weight that the layer will have.
pub(super) enum Planned {
    /// A weight of the source below as it is.
    Plain(usize),
    /// A weight that is decoded; its element type is F32.
    Coded(WeightMeta, Box<dyn Decoder>),
}

/// The weights of a quantized checkpoint as floats under plain names.
pub struct Dequantized {
    source: Box<dyn WeightSource + Send>,
    weights: Vec<WeightMeta>,
    origins: Vec<Origin>,
}

impl fmt::Debug for Dequantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dequantized").field("weights", &self.weights.len()).finish_non_exhaustive()
    }
}

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Dequantized {
    /// The layer that `plan` describes over `source`, the source it was planned for.
    pub(super) fn new(source: Box<dyn WeightSource + Send>, plan: Vec<Planned>) -> Self {
        let mut layer = Self { source, weights: Vec::new(), origins: Vec::new() };
        for planned in plan {
            let (meta, origin) = match planned {
                Planned::Plain(index) => (layer.source.weights()[index].clone(), Origin::Plain(index)),
                Planned::Coded(meta, decoder) => (meta, Origin::Coded(decoder)),
            };
            layer.weights.push(meta);
            layer.origins.push(origin);
        }
        layer
    }

    /// Cuts a range of elements into rectangles: `visit` gets rows, columns and where they begin in the range.
    fn rectangles<E>(
        &self,
        weight: usize,
        first: u64,
        n: u64,
        mut visit: impl FnMut(Range<u64>, Range<u64>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let n_cols = self.weights[weight].shape.n_cols().max(1);
        let (mut at, end) = (first, first + n);
        while at < end {
            let (row, col) = (at / n_cols, at % n_cols);
            let whole_rows = (end - at) / n_cols;
            let (rows, cols) = if col == 0 && whole_rows > 0 {
                (row..row + whole_rows, 0..n_cols)
            } else {
                (row..row + 1, col..n_cols.min(col + end - at))
            };
            let len = (rows.end - rows.start) * (cols.end - cols.start);
            visit(rows, cols, at - first)?;
            at += len;
        }
        Ok(())
    }
}

impl WeightSource for Dequantized {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let decoder = match &self.origins[weight] {
            Origin::Plain(index) => return self.source.read_elems(*index, first, out),
            Origin::Coded(decoder) => decoder,
        };
        let n = out.len() / size_of::<f32>();
        // The buffer is taken out, so that a decoder that reads through another layer finds its own.
        let mut floats = FLOATS.take();
        floats.resize(n.max(floats.len()), 0.0);
        let result = self.rectangles(weight, first, n as u64, |rows, cols, at| {
            let len = (rows.end - rows.start) * (cols.end - cols.start);
            decoder.decode(&*self.source, rows, cols, &mut floats[at as usize..(at + len) as usize])
        });
        for (bytes, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&floats) {
            *bytes = value.to_le_bytes();
        }
        FLOATS.set(floats);
        result.map_err(|error| error.reading(&self.weights[weight].name))
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        match &self.origins[weight] {
            Origin::Plain(index) => self.source.borrow(*index),
            Origin::Coded(_) => None,
        }
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        match &self.origins[weight] {
            Origin::Plain(index) => self.source.packings(*index),
            Origin::Coded(decoder) => {
                let found = decoder.packings(&*self.source);
                found.map_err(|error| error.reading(&self.weights[weight].name))
            }
        }
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        match &self.origins[weight] {
            Origin::Plain(index) => self.source.code_type(*index),
            Origin::Coded(decoder) => decoder.members().first().map(|&codes| self.source.weights()[codes].ty),
        }
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let decoder = match &self.origins[weight] {
            Origin::Plain(index) => return self.source.read_packed(*index, ty, first, out),
            Origin::Coded(decoder) => decoder,
        };
        let (block_elems, block_bytes) = (ty.block_elems() as u64, ty.block_bytes() as u64);
        let n = out.len() as u64 / block_bytes * block_elems;
        let result = self.rectangles(weight, first, n, |rows, cols, at| {
            let len = (rows.end - rows.start) * (cols.end - cols.start);
            let bytes = |elems: u64| (elems / block_elems * block_bytes) as usize;
            decoder.pack(&*self.source, ty, rows, cols, &mut out[bytes(at)..bytes(at + len)])
        });
        result.map_err(|error| error.reading(&self.weights[weight].name))
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        match &self.origins[weight] {
            Origin::Plain(index) => self.source.release_elems(*index, first, n),
            // Codes of one row may lie all over their tensors: they go when the last rows have been read.
            Origin::Coded(decoder) => {
                if first + n >= self.weights[weight].shape.n_elems() {
                    for &member in decoder.members() {
                        let n_elems = self.source.weights()[member].shape.n_elems();
                        self.source.release_elems(member, 0, n_elems);
                    }
                }
            }
        }
    }
}
