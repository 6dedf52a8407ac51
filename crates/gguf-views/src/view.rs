//! Layout operations as algebra on strided views: no data moves until rows are read, and any range of rows can be read
//! on its own.
//!
//! A [`View`] is a tree. Each leaf refers to one source, through axes that are products of strided factors
//! (`rows = heads × half × pair`), so that splitting an axis, reordering its factors and joining axes again only change
//! bookkeeping. Inner nodes join views along an axis. Every operation returns a new view with a known shape, or an
//! error if it cannot be expressed.

use std::sync::Arc;

use crate::axis::{Axis, Dim, axis_size, factor, slice_axis};
use crate::error::ShapeError;
use crate::origin::{Computation, LeafOrigin};
use gguf_arch::MathOp;
use gguf_core::WeightMeta;

/// A strided view of one source.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) origin: LeafOrigin,
    pub(super) offset: u64,
    axes: Vec<Axis>,
    pub(super) math: Vec<MathOp>,
}

impl Leaf {
    /// Iterates over the factors of all axes, outermost first.
    pub(super) fn dims(&self) -> impl Iterator<Item = Dim> {
        self.axes.iter().flatten().copied()
    }
}

/// A planned tensor: a shape, and the source of each element.
#[derive(Clone, Debug)]
pub struct View {
    shape: Vec<u64>,
    pub(super) body: Body,
}

/// Arrangement of parts along the axis that joins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    /// One part after the other.
    EndToEnd,
    /// One index of each in turn.
    InTurns,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Leaf(Leaf),
    /// Parts side by side along `axis`; all other dimensions are equal.
    Concat {
        axis: usize,
        parts: Vec<View>,
        joint: Joint,
    },
}

impl View {
    /// Creates a view of an unchanged weight of the source.
    pub fn weight(index: usize, meta: &WeightMeta) -> Self {
        Self::contiguous(LeafOrigin::Weight { index, ty: meta.ty }, meta.shape.dims().to_vec())
    }

    /// Creates a view of values that were computed while planning.
    ///
    /// # Errors
    /// [`ShapeError::Reshape`] if the shape holds another number of elements.
    pub fn values(values: Arc<[f32]>, shape: Vec<u64>) -> Result<Self, ShapeError> {
        if shape.iter().product::<u64>() != values.len() as u64 {
            return Err(ShapeError::Reshape { from: vec![values.len() as u64], to: shape });
        }
        Ok(Self::contiguous(LeafOrigin::Values(values), shape))
    }

    /// Creates a view of a computation that needs more than one read of its sources.
    pub(super) fn computed(computed: Arc<dyn Computation>, shape: Vec<u64>) -> Self {
        Self::contiguous(LeafOrigin::Computed(computed), shape)
    }

    /// Creates a view with one value everywhere.
    pub fn fill(value: f32, shape: Vec<u64>) -> Self {
        Self::contiguous(LeafOrigin::Fill(value), shape)
    }

    fn contiguous(origin: LeafOrigin, shape: Vec<u64>) -> Self {
        let mut stride = 1;
        let mut axes: Vec<Axis> = Vec::with_capacity(shape.len());
        for &size in shape.iter().rev() {
            axes.push(vec![Dim { size, stride }]);
            stride *= size.max(1);
        }
        axes.reverse();
        Self { shape, body: Body::Leaf(Leaf { origin, offset: 0, axes, math: Vec::new() }) }
    }

    fn leaf(leaf: Leaf) -> Self {
        Self { shape: leaf.axes.iter().map(|axis| axis_size(axis)).collect(), body: Body::Leaf(leaf) }
    }

    /// Returns the dimensions, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Joins views along an axis.
    ///
    /// # Errors
    /// No views, or other dimensions that differ.
    pub fn concat(parts: Vec<Self>, axis: usize) -> Result<Self, ShapeError> {
        let first = parts.first().ok_or(ShapeError::Empty)?;
        let mut shape = first.shape.clone();
        if axis >= shape.len() {
            return Err(ShapeError::Axis { axis: axis as i64, rank: shape.len() });
        }
        let mut total = 0u64;
        for part in &parts {
            let fits = part.shape.len() == shape.len()
                && part.shape.iter().zip(&shape).enumerate().all(|(at, (a, b))| at == axis || a == b);
            let sum = fits.then(|| total.checked_add(part.shape[axis])).flatten();
            total = sum.ok_or_else(|| ShapeError::Join {
                first: first.shape.clone(),
                other: part.shape.clone(),
                axis,
            })?;
        }
        shape[axis] = total;
        if parts.len() == 1 {
            return parts.into_iter().next().ok_or(ShapeError::Empty);
        }
        Ok(Self { shape, body: Body::Concat { axis, parts, joint: Joint::EndToEnd } })
    }

    /// Interleaves views of one shape along an axis: index 0 of each, index 1 of each, and so on.
    ///
    /// # Errors
    /// No views, or shapes that differ.
    pub fn zip(parts: Vec<Self>, axis: usize) -> Result<Self, ShapeError> {
        let first = parts.first().ok_or(ShapeError::Empty)?;
        if let Some(other) = parts.iter().find(|part| part.shape != first.shape) {
            let (first, other) = (first.shape.clone(), other.shape.clone());
            return Err(ShapeError::Join { first, other, axis });
        }
        let is_one = parts.len() == 1;
        let mut view = Self::concat(parts, axis)?;
        // A single view stays unchanged, and may itself be a joined one.
        if let (Body::Concat { joint, .. }, false) = (&mut view.body, is_one) {
            *joint = Joint::InTurns;
        }
        Ok(view)
    }

    /// Joins the parts of a joined view again, along an axis whose number may have changed.
    fn rejoined(parts: Vec<Self>, axis: usize, joint: Joint) -> Result<Self, ShapeError> {
        match joint {
            Joint::EndToEnd => Self::concat(parts, axis),
            Joint::InTurns => Self::zip(parts, axis),
        }
    }

    /// Stacks views of one shape on a new outermost axis.
    pub fn stack(parts: Vec<Self>) -> Result<Self, ShapeError> {
        Self::concat(parts.into_iter().map(|part| part.unsqueeze(0)).collect::<Result<_, _>>()?, 0)
    }

    /// Resolves an axis that may be counted from the end.
    pub fn axis(&self, axis: i64) -> Result<usize, ShapeError> {
        let rank = self.shape.len();
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(at).ok().filter(|&at| at < rank).ok_or(ShapeError::Axis { axis, rank })
    }

    pub(super) fn known_axis(&self, axis: usize) -> Result<usize, ShapeError> {
        self.axis(i64::try_from(axis).unwrap_or(i64::MAX))
    }

    /// Keeps `start..end` of an axis.
    ///
    /// # Errors
    /// A range that is not inside the axis.
    pub fn slice(&self, axis: usize, start: u64, end: u64) -> Result<Self, ShapeError> {
        self.known_axis(axis)?;
        let size = self.shape[axis];
        if start > end || end > size {
            return Err(ShapeError::Range { start, end, size });
        }
        match &self.body {
            Body::Leaf(leaf) => {
                let pieces = slice_axis(&leaf.axes[axis], start, end).into_iter().map(|(offset, factors)| {
                    let mut leaf = leaf.clone();
                    leaf.offset += offset;
                    leaf.axes[axis] = factors;
                    Self::leaf(leaf)
                });
                Self::concat(pieces.collect(), axis)
            }
            Body::Concat { axis: seam, parts, joint } if *seam != axis => {
                let parts =
                    parts.iter().map(|part| part.slice(axis, start, end)).collect::<Result<_, _>>()?;
                Self::rejoined(parts, *seam, *joint)
            }
            Body::Concat { parts, joint: Joint::InTurns, .. } => {
                let n = parts.len() as u64;
                if !start.is_multiple_of(n) || !end.is_multiple_of(n) {
                    let mut to = self.shape.clone();
                    to[axis] = end - start;
                    return Err(ShapeError::Seam { from: self.shape.clone(), to });
                }
                let parts = parts.iter().map(|part| part.slice(axis, start / n, end / n));
                Self::zip(parts.collect::<Result<_, _>>()?, axis)
            }
            Body::Concat { parts, .. } => {
                let mut kept = Vec::new();
                let mut begin = 0;
                for part in parts {
                    let n = part.shape[axis];
                    let (from, to) = (start.clamp(begin, begin + n), end.clamp(begin, begin + n));
                    if from < to {
                        kept.push(part.slice(axis, from - begin, to - begin)?);
                    }
                    begin += n;
                }
                if kept.is_empty() {
                    let mut shape = self.shape.clone();
                    shape[axis] = 0;
                    return Ok(Self::fill(0.0, shape));
                }
                Self::concat(kept, axis)
            }
        }
    }

    /// Splits an axis into consecutive parts of the given sizes.
    ///
    /// # Errors
    /// Sizes that do not add up to the axis.
    pub fn split(&self, axis: usize, sizes: &[u64]) -> Result<Vec<Self>, ShapeError> {
        self.known_axis(axis)?;
        let size = self.shape[axis];
        let sum = sizes.iter().try_fold(0u64, |sum, &n| sum.checked_add(n));
        if sum != Some(size) {
            return Err(ShapeError::Sizes { size, sizes: sizes.to_vec() });
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&n| {
                start += n;
                self.slice(axis, start - n, start)
            })
            .collect()
    }

    /// Swaps two axes.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self, ShapeError> {
        self.known_axis(a)?;
        self.known_axis(b)?;
        match &self.body {
            Body::Leaf(leaf) => {
                let mut leaf = leaf.clone();
                leaf.axes.swap(a, b);
                Ok(Self::leaf(leaf))
            }
            Body::Concat { axis, parts, joint } => {
                let parts = parts.iter().map(|part| part.transpose(a, b)).collect::<Result<_, _>>()?;
                let swapped = match *axis {
                    at if at == a => b,
                    at if at == b => a,
                    at => at,
                };
                Self::rejoined(parts, swapped, *joint)
            }
        }
    }

    /// Splits an axis into a product, outermost factor first; each factor becomes an axis.
    ///
    /// # Errors
    /// Factors that do not multiply to the axis, or that cut across an earlier reordering.
    pub fn unflatten(&self, axis: usize, factors: &[u64]) -> Result<Self, ShapeError> {
        self.known_axis(axis)?;
        let size = self.shape[axis];
        if factors.iter().try_fold(1u64, |product, &n| product.checked_mul(n)) != Some(size) {
            return Err(ShapeError::Factors { size, factors: factors.to_vec() });
        }
        let mut to = self.shape.clone();
        to.splice(axis..=axis, factors.iter().copied());
        self.refactor(axis, 1, factors).ok_or_else(|| ShapeError::Seam { from: self.shape.clone(), to })
    }

    /// Joins `n` neighbouring axes into one.
    ///
    /// # Errors
    /// Axes that do not exist; a seam along an inner one of them.
    pub(crate) fn flatten_axes(&self, axis: usize, n: usize) -> Result<Self, ShapeError> {
        if n == 0 {
            return Err(ShapeError::Empty);
        }
        self.known_axis(axis.saturating_add(n - 1))?;
        let size: u64 = self.shape[axis..axis + n].iter().product();
        let mut to = self.shape.clone();
        to.splice(axis..axis + n, [size]);
        self.refactor(axis, n, &[size]).ok_or_else(|| ShapeError::Seam { from: self.shape.clone(), to })
    }

    /// Changes the shape, in row-major order.
    ///
    /// # Errors
    /// Another number of elements, or a cut across an earlier reordering.
    pub fn reshape(&self, dims: &[u64]) -> Result<Self, ShapeError> {
        let n = self.shape.iter().product::<u64>();
        if dims.iter().try_fold(1u64, |product, &n| product.checked_mul(n)) != Some(n) {
            return Err(ShapeError::Reshape { from: self.shape.clone(), to: dims.to_vec() });
        }
        if dims == self.shape {
            return Ok(self.clone());
        }
        self.refactor(0, self.shape.len(), dims)
            .ok_or_else(|| ShapeError::Seam { from: self.shape.clone(), to: dims.to_vec() })
    }

    /// Flattens all elements to one axis.
    pub fn flatten(&self) -> Result<Self, ShapeError> {
        self.reshape(&[self.shape.iter().product()])
    }

    /// Replaces `n` axes from `axis` by axes of the sizes `dims` (same product); `None` if strides cannot express it.
    fn refactor(&self, axis: usize, n: usize, dims: &[u64]) -> Option<Self> {
        match &self.body {
            Body::Leaf(leaf) => {
                let factors: Axis = leaf.axes[axis..axis + n].concat();
                let axes = factor(&factors, dims)?;
                let mut leaf = leaf.clone();
                leaf.axes.splice(axis..axis + n, axes);
                Some(Self::leaf(leaf))
            }
            Body::Concat { axis: seam, parts, joint } => {
                let (seam, joint) = (*seam, *joint);
                if seam < axis {
                    let parts = parts.iter().map(|part| part.refactor(axis, n, dims));
                    return Self::rejoined(parts.collect::<Option<_>>()?, seam, joint).ok();
                }
                if seam >= axis + n {
                    let parts = parts.iter().map(|part| part.refactor(axis, n, dims));
                    let seam = seam - n + dims.len();
                    return Self::rejoined(parts.collect::<Option<_>>()?, seam, joint).ok();
                }
                // A seam along the outermost of the axes remains a seam if whole rows of the new shape fit between the
                // cuts.
                if seam != axis || dims.is_empty() || joint == Joint::InTurns {
                    return None;
                }
                let inner: u64 = dims[1..].iter().product();
                let parts = parts.iter().map(|part| {
                    let n_elems: u64 = part.shape[axis..axis + n].iter().product();
                    let rows = n_elems.checked_div(inner).filter(|rows| rows * inner == n_elems)?;
                    let mut dims = dims.to_vec();
                    dims[0] = rows;
                    part.refactor(axis, n, &dims)
                });
                Self::concat(parts.collect::<Option<_>>()?, axis).ok()
            }
        }
    }

    /// Drops an axis of size 1.
    ///
    /// # Errors
    /// A longer axis.
    pub fn squeeze(&self, axis: usize) -> Result<Self, ShapeError> {
        self.known_axis(axis)?;
        match &self.body {
            _ if self.shape[axis] != 1 => Err(ShapeError::Squeeze { size: self.shape[axis] }),
            Body::Leaf(leaf) => {
                let mut leaf = leaf.clone();
                leaf.axes.remove(axis);
                Ok(Self::leaf(leaf))
            }
            Body::Concat { axis: seam, parts, joint } => {
                let seam = *seam;
                if seam == axis {
                    // Among parts that add up to one, exactly one is not empty.
                    let part = parts.iter().find(|part| part.shape[axis] == 1).ok_or(ShapeError::Empty)?;
                    return part.squeeze(axis);
                }
                let parts = parts.iter().map(|part| part.squeeze(axis)).collect::<Result<_, _>>()?;
                Self::rejoined(parts, if seam > axis { seam - 1 } else { seam }, *joint)
            }
        }
    }

    /// Adds an axis of size 1 before `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Result<Self, ShapeError> {
        if axis > self.shape.len() {
            return Err(ShapeError::Axis { axis: axis as i64, rank: self.shape.len() });
        }
        match &self.body {
            Body::Leaf(leaf) => {
                let mut leaf = leaf.clone();
                leaf.axes.insert(axis, vec![Dim { size: 1, stride: 0 }]);
                Ok(Self::leaf(leaf))
            }
            Body::Concat { axis: seam, parts, joint } => {
                let parts = parts.iter().map(|part| part.unsqueeze(axis)).collect::<Result<_, _>>()?;
                Self::rejoined(parts, if *seam >= axis { seam + 1 } else { *seam }, *joint)
            }
        }
    }

    /// Applies arithmetic to every element, after the arithmetic that is already there.
    pub fn math(&self, math: MathOp) -> Self {
        let mut view = self.clone();
        view.push_math(math);
        view
    }

    /// Adds the index of each element of a list to it, or subtracts it (`math` selects which).
    ///
    /// # Errors
    /// [`ShapeError::Axis`] for anything but one whole list as it is stored: only there the index is the position of
    /// the element.
    pub(super) fn index_math(&self, math: MathOp) -> Result<Self, ShapeError> {
        match &self.body {
            Body::Leaf(leaf) if self.shape.len() == 1 && leaf.offset == 0 => Ok(self.math(math)),
            _ => Err(ShapeError::Axis { axis: 1, rank: self.shape.len() }),
        }
    }

    fn push_math(&mut self, math: MathOp) {
        match &mut self.body {
            Body::Leaf(leaf) => leaf.math.push(math),
            Body::Concat { parts, .. } => parts.iter_mut().for_each(|part| part.push_math(math)),
        }
    }
}
