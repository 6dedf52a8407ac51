//! Tensors from recorded rebuild calls: the geometry is checked once, then elements are read through it.
//!
//! Element `(i0, i1, ..)` is element `offset + i0 * stride0 + i1 * stride1 + ..` of the storage.

use std::collections::HashMap;
use std::io;

use crate::pickle::globals::{Global, Rebuild};
use crate::pickle::{Id, Pickle, Value};
use crate::torch::error::{TensorProblem, elem_bytes};
use crate::torch::storage::StorageId;
use crate::torch::zip_archive::FileRange;
use gguf_core::bytes::Endian;
use gguf_core::ranged::Bytes;
use gguf_core::{ElementType, Shape, WeightMeta};

/// Maximum ratio of a tensor's elements to those of its storage (stride 0 repeats an element).
const EXPANSION: u64 = 64;

/// A tensor and the positions of its elements, checked against the length of the file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Name, shape and type.
    pub meta: WeightMeta,
    /// Absolute offset of the first element.
    offset: u64,
    /// Size and stride in elements, outermost first.
    ///
    /// Contiguous neighbours are merged, and sizes of 1 are left out. Empty for one element, or none at all.
    dims: Vec<(u64, u64)>,
    /// True if the bytes of each element must be swapped.
    swap: bool,
}

/// Extents and byte order of a file's storages.
pub(super) struct Storages {
    pub(super) extents: HashMap<String, FileRange>,
    pub(super) endian: Endian,
}

/// Sizes and strides of a tensor.
struct StridedLayout {
    offset: u64,
    sizes: Vec<u64>,
    strides: Vec<u64>,
}

impl StoredTensor {
    /// Reads the description in the arguments of a call of `by`.
    ///
    /// # Errors
    /// Arguments that do not fit, a storage that is missing or of another size, elements outside it.
    pub(super) fn read(
        name: &str,
        pickle: &Pickle,
        by: Rebuild,
        args: &[Id],
        storages: &Storages,
    ) -> Result<Self, TensorProblem> {
        let Some(&[storage, offset, sizes, strides]) = args.first_chunk() else {
            return Err(TensorProblem::Missing { field: "geometry" });
        };
        let geometry = StridedLayout {
            offset: unsigned(pickle, offset, "offset")?,
            sizes: unsigned_list(pickle, sizes, "size")?,
            strides: unsigned_list(pickle, strides, "stride")?,
        };
        let id = StorageId::read(pickle, storage)?;
        let ty = match by {
            Rebuild::TensorV3 => dtype(pickle, args)?,
            _ => id.ty,
        };
        let extent = extent(&id, storages)?;
        Self::with_geometry(name, geometry, ty, extent, storages.endian)
    }

    fn with_geometry(
        name: &str,
        geometry: StridedLayout,
        ty: ElementType,
        extent: FileRange,
        endian: Endian,
    ) -> Result<Self, TensorProblem> {
        let StridedLayout { offset, sizes, strides } = geometry;
        let elem = elem_bytes(ty) as u64;
        let n_elems = extent.n_bytes / elem;
        if sizes.len() != strides.len() {
            return Err(TensorProblem::Rank { sizes: sizes.len(), strides: strides.len() });
        }
        let shape =
            Shape::new(sizes.clone()).ok_or_else(|| TensorProblem::Overflow { sizes: sizes.clone() })?;
        let pairs = || sizes.iter().copied().zip(strides.iter().copied());
        let is_empty = shape.n_elems() == 0;
        if !is_empty {
            let steps = pairs().map(|(size, stride)| u128::from(size - 1).saturating_mul(u128::from(stride)));
            let last = steps.fold(u128::from(offset), u128::saturating_add);
            if last >= u128::from(n_elems) {
                return Err(TensorProblem::Beyond { sizes, strides, offset, n_elems });
            }
            let n = shape.n_elems();
            if n / EXPANSION > n_elems {
                return Err(TensorProblem::Expanded { n, n_elems, limit: EXPANSION });
            }
        } else if offset > n_elems {
            return Err(TensorProblem::Beyond { sizes, strides, offset, n_elems });
        }
        let dims = if is_empty { Vec::new() } else { merge(pairs()) };
        Ok(Self {
            meta: WeightMeta { name: name.to_owned(), shape, ty },
            offset: extent.offset + offset * elem,
            dims,
            swap: endian == Endian::Big && elem > 1,
        })
    }

    fn elem_bytes(&self) -> usize {
        elem_bytes(self.meta.ty)
    }

    fn n_bytes(&self) -> u64 {
        self.meta.shape.n_elems() * self.elem_bytes() as u64
    }

    /// Returns true if the elements are contiguous in the file, in their order.
    fn is_contiguous(&self) -> bool {
        matches!(self.dims[..], [] | [(_, 1)])
    }

    /// Borrows the elements, little-endian and in order; `None` if they must be gathered or swapped.
    pub fn borrow<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        let plain = self.is_contiguous() && !self.swap;
        plain.then(|| &file[self.offset as usize..][..self.n_bytes() as usize])
    }

    /// Reads elements `first ..` as little-endian bytes, row-major.
    ///
    /// # Panics
    /// If the range is outside the tensor, or `file` is not the file that was parsed.
    pub fn read_elems(&self, file: &[u8], first: u64, out: &mut [u8]) {
        self.read_part(file, 0, first, out);
    }

    /// Reads elements as [`StoredTensor::read_elems`] does, fetching only the needed bytes of the file.
    ///
    /// # Panics
    /// As [`StoredTensor::read_elems`].
    pub(crate) fn fetch_elems<B: Bytes + ?Sized>(
        &self,
        file: &B,
        first: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let n = (out.len() / self.elem_bytes()) as u64;
        // A view that is not in storage order may need any byte of the tensor.
        let window = self.window(first, n).or_else(|| self.window(0, self.meta.shape.n_elems()));
        if let Some((offset, n_bytes)) = window {
            let bytes = file.get(offset, n_bytes)?.unwrap_or_default();
            self.read_part(&bytes, offset, first, out);
        }
        Ok(())
    }

    /// Reads elements as [`StoredTensor::read_elems`] does, given the bytes of the file from `file_offset` on.
    fn read_part(&self, file: &[u8], file_offset: u64, first: u64, out: &mut [u8]) {
        let elem = self.elem_bytes();
        let n = (out.len() / elem) as u64;
        assert!(out.len().is_multiple_of(elem), "the buffer holds whole elements");
        let end = first.checked_add(n);
        assert!(end.is_some_and(|end| end <= self.meta.shape.n_elems()), "elements are outside the tensor");
        let (inner, outer) =
            self.dims.split_last().map_or(((1, 1), &[][..]), |(inner, outer)| (*inner, outer));
        let mut done = 0;
        while done < n {
            let at = first + done;
            let (mut rest, column) = (at / inner.0, at % inner.0);
            let mut start = column * inner.1;
            for &(size, stride) in outer.iter().rev() {
                start += rest % size * stride;
                rest /= size;
            }
            let len = (inner.0 - column).min(n - done);
            let from = &file[(self.offset + start * elem as u64 - file_offset) as usize..];
            let to = &mut out[done as usize * elem..][..len as usize * elem];
            copy_strided(from, inner.1 as usize, elem, to);
            done += len;
        }
        if self.swap {
            out.chunks_exact_mut(elem).for_each(<[u8]>::reverse);
        }
    }

    /// Returns offset and length of the file bytes that hold elements `first .. first + n` and no earlier or later
    /// element.
    ///
    /// These bytes can be fetched before and dropped after the elements. `None` for a view that is not in storage
    /// order, unless the range is the whole tensor.
    pub fn window(&self, first: u64, n: u64) -> Option<(u64, u64)> {
        let n_elems = self.meta.shape.n_elems();
        let end = first.checked_add(n).filter(|&end| end <= n_elems && n > 0)?;
        let elem = self.elem_bytes() as u64;
        let in_order = self.dims.windows(2).all(|pair| (pair[1].0 - 1) * pair[1].1 < pair[0].1);
        if first == 0 && end == n_elems {
            let last: u64 = self.dims.iter().map(|&(size, stride)| (size - 1) * stride).sum();
            return Some((self.offset, (last + 1) * elem));
        }
        if !in_order {
            return None;
        }
        let place = |at: u64| {
            let mut rest = at;
            self.dims.iter().rev().fold(0, |sum, &(size, stride)| {
                let step = rest % size * stride;
                rest /= size;
                sum + step
            })
        };
        let (begin, last) = (place(first), place(end - 1));
        Some((self.offset + begin * elem, (last + 1 - begin) * elem))
    }
}

/// Copies elements at a distance of `stride` elements.
fn copy_strided(from: &[u8], stride: usize, elem: usize, to: &mut [u8]) {
    fn each<const N: usize>(from: &[u8], stride: usize, to: &mut [u8]) {
        for (i, out) in to.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            out.copy_from_slice(&from[i * stride * N..][..N]);
        }
    }
    match elem {
        _ if stride == 1 => to.copy_from_slice(&from[..to.len()]),
        1 => each::<1>(from, stride, to),
        2 => each::<2>(from, stride, to),
        4 => each::<4>(from, stride, to),
        _ => each::<8>(from, stride, to),
    }
}

/// Drops sizes of 1, whose strides mean nothing, and merges neighbours that are contiguous.
fn merge(dims: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (size, stride) in dims.filter(|dim| dim.0 != 1) {
        match merged.last_mut() {
            Some(outer) if size.checked_mul(stride) == Some(outer.1) => *outer = (outer.0 * size, stride),
            _ => merged.push((size, stride)),
        }
    }
    merged
}

/// Returns the bytes of the view of a storage; the whole must have the size that its id declares.
fn extent(id: &StorageId, storages: &Storages) -> Result<FileRange, TensorProblem> {
    let key = || id.key.clone();
    let whole = storages.extents.get(&id.key).ok_or_else(|| TensorProblem::StorageMissing { key: key() })?;
    let elem = elem_bytes(id.ty) as u64;
    let expected = u128::from(id.n_elems) * u128::from(elem);
    if expected != u128::from(whole.n_bytes) {
        return Err(TensorProblem::StorageSize { key: key(), expected, found: whole.n_bytes });
    }
    let (first, n) = id.view;
    Ok(FileRange { offset: whole.offset + first * elem, n_bytes: n * elem })
}

/// Returns the element type from the arguments of `_rebuild_tensor_v3`.
fn dtype(pickle: &Pickle, args: &[Id]) -> Result<ElementType, TensorProblem> {
    let &dtype = args.get(6).ok_or(TensorProblem::Missing { field: "element type" })?;
    match pickle.get(dtype) {
        Value::Global(Global::Dtype(Some(ty))) => Ok(*ty),
        Value::Global(Global::Dtype(None)) => Err(TensorProblem::ElementType),
        other => Err(TensorProblem::Field { field: "element type", found: other.kind() }),
    }
}

fn unsigned(pickle: &Pickle, id: Id, field: &'static str) -> Result<u64, TensorProblem> {
    let value = pickle.int(id).ok_or(TensorProblem::Field { field, found: pickle.get(id).kind() })?;
    u64::try_from(value).map_err(|_| TensorProblem::Negative { field, value })
}

fn unsigned_list(pickle: &Pickle, id: Id, field: &'static str) -> Result<Vec<u64>, TensorProblem> {
    /// Far above what any model has; PyTorch itself stops at 64.
    const MAX_RANK: usize = 64;
    let items = pickle.items(id).filter(|items| items.len() <= MAX_RANK);
    let items = items.ok_or(TensorProblem::Field { field, found: pickle.get(id).kind() })?;
    items.iter().map(|&item| unsigned(pickle, item, field)).collect()
}
