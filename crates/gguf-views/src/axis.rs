//! Axes as products of strided factors: slicing an axis, and distributing its factors over new axes.

/// One strided factor of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) size: u64,
    /// Distance of neighbours in the source, in elements.
    pub(super) stride: u64,
}

/// An axis as the product of its factors, outermost first; no factors: size 1.
pub(super) type Axis = Vec<Dim>;

pub(super) fn axis_size(axis: &[Dim]) -> u64 {
    axis.iter().map(|dim| dim.size).product()
}

/// Slices `start..end` of a product of factors into pieces with their offsets, in order. There is more than one piece
/// if the range does not cut at whole inner products.
pub(super) fn slice_axis(axis: &[Dim], start: u64, end: u64) -> Vec<(u64, Axis)> {
    let Some((outer, rest)) = axis.split_first() else {
        return vec![(0, vec![Dim { size: end - start, stride: 0 }])];
    };
    let inner = axis_size(rest);
    if rest.is_empty() || inner <= 1 {
        return vec![(start * outer.stride, vec![Dim { size: end - start, stride: outer.stride }])];
    }
    if start == end {
        return vec![(0, vec![Dim { size: 0, stride: outer.stride }])];
    }
    let shift = |index: u64, pieces: Vec<(u64, Axis)>| {
        pieces.into_iter().map(move |(offset, axis)| (offset + index * outer.stride, axis))
    };
    let (first, last) = (start / inner, (end - 1) / inner);
    if first == last && !(start.is_multiple_of(inner) && end.is_multiple_of(inner)) {
        return shift(first, slice_axis(rest, start - first * inner, end - first * inner)).collect();
    }
    let whole_first = start.div_ceil(inner);
    let whole_last = end / inner;
    let mut pieces = Vec::new();
    if whole_first > first {
        pieces.extend(shift(first, slice_axis(rest, start - first * inner, inner)));
    }
    if whole_first < whole_last {
        let mut axis = vec![Dim { size: whole_last - whole_first, stride: outer.stride }];
        axis.extend_from_slice(rest);
        pieces.push((whole_first * outer.stride, axis));
    }
    if !end.is_multiple_of(inner) {
        pieces.extend(shift(whole_last, slice_axis(rest, 0, end - whole_last * inner)));
    }
    pieces
}

/// Distributes factors over axes of the sizes `dims`, outermost first; `None` if a cut falls inside a factor that it
/// does not divide.
pub(super) fn factor(factors: &[Dim], dims: &[u64]) -> Option<Vec<Axis>> {
    if factors.iter().any(|dim| dim.size == 0) {
        return Some(dims.iter().map(|&size| vec![Dim { size, stride: 0 }]).collect());
    }
    let merged = merge_dims(factors.iter().copied());
    let mut left = merged.into_iter();
    let mut current: Option<Dim> = None;
    let mut axes = Vec::with_capacity(dims.len());
    for &size in dims {
        let mut want = size;
        let mut axis = Axis::new();
        while want > 1 {
            let dim = current.take().or_else(|| left.next())?;
            if want % dim.size == 0 {
                axis.push(dim);
                want /= dim.size;
            } else if dim.size % want == 0 {
                let inner = dim.size / want;
                axis.push(Dim { size: want, stride: dim.stride * inner });
                current = Some(Dim { size: inner, stride: dim.stride });
                want = 1;
            } else {
                return None;
            }
        }
        if axis.is_empty() {
            axis.push(Dim { size: 1, stride: 0 });
        }
        axes.push(axis);
    }
    Some(axes)
}

/// Drops factors of size 1 and joins contiguous neighbours.
pub(super) fn merge_dims(factors: impl Iterator<Item = Dim>) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::new();
    for dim in factors.filter(|dim| dim.size != 1) {
        match merged.last_mut() {
            Some(outer) if outer.stride == dim.stride * dim.size => {
                *outer = Dim { size: outer.size * dim.size, stride: dim.stride };
            }
            _ => merged.push(dim),
        }
    }
    merged
}
