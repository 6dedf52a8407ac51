//! Access to the elements of one weight: from memory if the source has it mapped, else read piece by piece.

use crate::ViewError;
use gguf_core::WeightSource;
use gguf_core::scratch::with_bytes;

/// Evenly spaced elements of a source.
#[derive(Clone, Copy)]
pub(super) struct StridedRange {
    /// Index of the first element.
    pub(super) start: u64,
    /// Distance from one element to the next.
    pub(super) stride: u64,
    pub(super) len: usize,
}

impl StridedRange {
    fn at(&self, i: usize) -> u64 {
        self.start + i as u64 * self.stride
    }
}

/// One weight of a source.
#[derive(Clone, Copy)]
pub(super) struct Elems<'s> {
    source: &'s dyn WeightSource,
    weight: usize,
    elem_bytes: usize,
    /// All bytes of the weight, if the source has it in memory.
    mapped: Option<&'s [u8]>,
}

impl<'s> Elems<'s> {
    /// Creates the accessor of a weight whose elements have `elem_bytes` each.
    pub(super) fn new(source: &'s dyn WeightSource, weight: usize, elem_bytes: usize) -> Self {
        Self { source, weight, elem_bytes, mapped: source.borrow(weight) }
    }

    pub(super) fn elem_bytes(&self) -> usize {
        self.elem_bytes
    }

    /// Passes a stretch to `use_it`, without a copy if possible.
    pub(super) fn with(
        &self,
        stretch: &StridedRange,
        use_it: impl FnOnce(&[u8]) -> Result<(), ViewError>,
    ) -> Result<(), ViewError> {
        let n_bytes = stretch.len * self.elem_bytes;
        match self.mapped {
            Some(bytes) if stretch.stride == 1 => {
                use_it(&bytes[stretch.start as usize * self.elem_bytes..][..n_bytes])
            }
            _ => with_bytes(n_bytes, |bytes| {
                self.copy(stretch, bytes)?;
                use_it(bytes)
            }),
        }
    }

    pub(super) fn copy(&self, stretch: &StridedRange, out: &mut [u8]) -> Result<(), ViewError> {
        match self.mapped {
            _ if stretch.stride != 1 => self.gather(stretch, out)?,
            Some(bytes) => {
                out.copy_from_slice(&bytes[stretch.start as usize * self.elem_bytes..][..out.len()]);
            }
            None => self.source.read_elems(self.weight, stretch.start, out)?,
        }
        Ok(())
    }

    /// Collects elements that are not adjacent in their source.
    pub(super) fn gather(&self, stretch: &StridedRange, out: &mut [u8]) -> Result<(), ViewError> {
        for (i, elem) in out.chunks_exact_mut(self.elem_bytes).enumerate() {
            match self.mapped {
                Some(bytes) => {
                    let at = stretch.at(i) as usize * self.elem_bytes;
                    elem.copy_from_slice(&bytes[at..][..self.elem_bytes]);
                }
                None => self.source.read_elems(self.weight, stretch.at(i), elem)?,
            }
        }
        Ok(())
    }

    /// Reads several rows of a transposed matrix. The first one is `column` of the source; neighbours are read together
    /// and distributed to the rows.
    pub(super) fn tile(&self, column: &StridedRange, n_rows: usize, out: &mut [u8]) -> Result<(), ViewError> {
        let deal = match self.elem_bytes {
            2 => deal::<2>,
            4 => deal::<4>,
            _ => deal_any,
        };
        let n_bytes = n_rows * self.elem_bytes;
        if let Some(bytes) = self.mapped {
            for i in 0..column.len {
                let neighbours = &bytes[column.at(i) as usize * self.elem_bytes..][..n_bytes];
                deal(neighbours, self.elem_bytes, i, column.len, out);
            }
            return Ok(());
        }
        with_bytes(n_bytes, |bytes| {
            for i in 0..column.len {
                self.source.read_elems(self.weight, column.at(i), bytes)?;
                deal(bytes, self.elem_bytes, i, column.len, out);
            }
            Ok(())
        })
    }
}

/// Copies element `r` to position `i` of row `r`.
fn deal<const N: usize>(bytes: &[u8], _: usize, i: usize, n_cols: usize, out: &mut [u8]) {
    let places = out.as_chunks_mut::<N>().0.iter_mut().skip(i).step_by(n_cols);
    for (place, elem) in places.zip(bytes.as_chunks::<N>().0) {
        *place = *elem;
    }
}

/// Does the same as [`deal`], for elements of any size.
fn deal_any(bytes: &[u8], elem_bytes: usize, i: usize, n_cols: usize, out: &mut [u8]) {
    let places = out.chunks_exact_mut(elem_bytes).skip(i).step_by(n_cols);
    for (place, elem) in places.zip(bytes.chunks_exact(elem_bytes)) {
        place.copy_from_slice(elem);
    }
}
