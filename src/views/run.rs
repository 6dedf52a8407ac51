//! Walking a view: ranges of output elements cut into evenly spaced stretches of their sources.

use std::ops::Range;
use std::sync::Arc;

use crate::core::scratch::{with_bytes, with_floats};
use crate::core::simd::SimdLevel;
use crate::core::{ElementType, GgmlType, WeightSource};
use crate::quant;
use crate::views::TransformError;
use crate::views::math::Math;
use crate::views::view::{Body, Dim, Leaf, Origin, View, merge_dims};

/// Takes a leaf, a position inside it, and the part of the range that it covers from there.
type Visit<'a, E> = dyn FnMut(&Run, u64, Range<u64>) -> Result<(), E> + 'a;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Run),
    Concat {
        /// Elements of one step of the axes outside the seam (and of the seam, where parts take turns), summed up to
        /// and with each part.
        ends: Vec<u64>,
        parts: Vec<Node>,
    },
}

/// A leaf with its factors merged to as few as possible.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) origin: Origin,
    offset: u64,
    dims: Vec<Dim>,
    pub(super) math: Vec<Math>,
}

/// Parts that take turns at most so many elements apart are read one by one, whole.
const SHORT_PERIOD: u64 = 64;

/// A stretch of output elements that lie evenly spaced in their source.
struct Stretch {
    start: u64,
    stride: u64,
    len: usize,
}

pub(super) fn compile(view: &View) -> Node {
    match &view.body {
        Body::Leaf(leaf) => Node::Leaf(merge(leaf)),
        Body::Concat { axis, parts, takes_turns } => {
            // What a part gives before the next one goes on: all of the axis, or one index of it.
            let first = if *takes_turns { axis + 1 } else { *axis };
            let mut end = 0;
            let ends = parts.iter().map(|part| {
                end += part.shape()[first..].iter().product::<u64>();
                end
            });
            Node::Concat { ends: ends.collect(), parts: parts.iter().map(compile).collect() }
        }
    }
}

fn merge(leaf: &Leaf) -> Run {
    Run {
        origin: leaf.origin.clone(),
        offset: leaf.offset,
        dims: merge_dims(leaf.dims()),
        math: leaf.math.clone(),
    }
}

impl Node {
    /// Calls `test` on every leaf until it says no; true if it never did.
    pub(super) fn all_leaves(&self, test: &mut dyn FnMut(&Run) -> bool) -> bool {
        match self {
            Self::Leaf(run) => test(run),
            Self::Concat { parts, .. } => parts.iter().all(|part| part.all_leaves(test)),
        }
    }

    /// Splits the range `first .. first + n` at the seams: one visit each.
    fn walk<E>(&self, first: u64, n: u64, visit: &mut Visit<'_, E>) -> Result<(), E> {
        self.walk_from(first, n, 0, visit)
    }

    fn walk_from<E>(&self, first: u64, n: u64, done: u64, visit: &mut Visit<'_, E>) -> Result<(), E> {
        let (ends, parts) = match self {
            Self::Leaf(run) => return visit(run, first, done..done + n),
            Self::Concat { ends, parts } => (ends, parts),
        };
        let period = ends.last().copied().unwrap_or(0);
        let (mut at, end) = (first, first + n);
        while at < end && period > 0 {
            let (outer, within) = (at / period, at % period);
            let index = ends.partition_point(|&end| end <= within);
            let begin = if index == 0 { 0 } else { ends[index - 1] };
            let len = (ends[index] - within).min(end - at);
            let inner = outer * (ends[index] - begin) + (within - begin);
            parts[index].walk_from(inner, len, done + (at - first), visit)?;
            at += len;
        }
        Ok(())
    }

    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        level: SimdLevel,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), TransformError> {
        if let Self::Concat { ends, parts } = self
            && let Some(&period) = ends.last()
            && (1..=SHORT_PERIOD.min(out.len() as u64)).contains(&period)
        {
            let mut begin = 0;
            for (part, &end) in parts.iter().zip(ends) {
                read_part(part, (begin..end, period), source, level, first, out)?;
                begin = end;
            }
            return Ok(());
        }
        self.walk(first, out.len() as u64, &mut |run, first, range| {
            run.read(source, level, first, &mut out[range.start as usize..range.end as usize])
        })
    }

    pub(super) fn copy(
        &self,
        source: &dyn WeightSource,
        first: u64,
        out: &mut [u8],
        elem_bytes: usize,
    ) -> Result<(), TransformError> {
        let n = (out.len() / elem_bytes) as u64;
        self.walk(first, n, &mut |run, first, range| {
            let out = &mut out[range.start as usize * elem_bytes..range.end as usize * elem_bytes];
            run.copy(source, first, out, elem_bytes)
        })
    }

    /// Whether every element comes from a weight, unchanged, in whole blocks of `block_elems` neighbours.
    pub(super) fn keeps_blocks(&self, block_elems: u64) -> bool {
        match self {
            Self::Leaf(run) => run.keeps_blocks(block_elems),
            Self::Concat { ends, parts } => {
                ends.iter().all(|end| end % block_elems == 0)
                    && parts.iter().all(|part| part.keeps_blocks(block_elems))
            }
        }
    }

    /// Reads blocks of a type that every weight behind this node can be packed as.
    pub(super) fn read_packed(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), TransformError> {
        let (elems, bytes) = (ty.block_elems() as u64, ty.block_bytes());
        let n = (out.len() / bytes) as u64 * elems;
        let offset = |elem: u64| (elem / elems) as usize * bytes;
        self.walk(first, n, &mut |run, first, range| {
            run.read_packed(source, ty, first, &mut out[offset(range.start)..offset(range.end)])
        })
    }

    pub(super) fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        let _ = self.walk::<std::convert::Infallible>(first, n, &mut |run, first, range| {
            run.release(source, first, range.end - range.start);
            Ok(())
        });
    }

    /// The weights behind a range of elements, each once, in order of first use.
    pub(super) fn weights_in(&self, first: u64, n: u64) -> Vec<usize> {
        let mut found = Vec::new();
        let _ = self.walk::<std::convert::Infallible>(first, n, &mut |run, _, _| {
            if let Origin::Weight { index, .. } = run.origin
                && !found.contains(&index)
            {
                found.push(index);
            }
            Ok(())
        });
        found
    }

    /// The weight and element behind an output element; `None` if it comes from none.
    pub(super) fn locate(&self, index: u64) -> Option<(usize, u64)> {
        let mut found = None;
        let _ = self.walk::<std::convert::Infallible>(index, 1, &mut |run, first, _| {
            if let Origin::Weight { index, .. } = run.origin {
                run.stretches(first, 1, &mut |stretch, _| found = Some((index, stretch.start)));
            }
            Ok(())
        });
        found
    }
}

/// Reads what one of several parts has in the range from `first`: its turn is `turn` of every `period` elements.
fn read_part(
    part: &Node,
    (turn, period): (Range<u64>, u64),
    source: &dyn WeightSource,
    level: SimdLevel,
    first: u64,
    out: &mut [f32],
) -> Result<(), TransformError> {
    let size = turn.end - turn.start;
    // Elements of the part in front of a place.
    let before = |at: u64| at / period * size + (at % period).clamp(turn.start, turn.end) - turn.start;
    let (from, to) = (before(first), before(first + out.len() as u64));
    if from == to {
        return Ok(());
    }
    with_floats((to - from) as usize, |values| {
        part.read(source, level, from, values)?;
        let mut within = from % size;
        let mut at = from / size * period + turn.start + within - first;
        for &mut value in values {
            out[at as usize] = value;
            (at, within) = (at + 1, within + 1);
            if within == size {
                (at, within) = (at + period - size, 0);
            }
        }
        Ok(())
    })
}

impl Run {
    /// Cuts `first .. first + n` into stretches of even spacing; the second argument is the position in the range.
    fn stretches(&self, first: u64, n: u64, visit: &mut dyn FnMut(Stretch, usize)) {
        let mut done = 0;
        while done < n {
            let stretch = self.stretch(first + done, n - done);
            let len = stretch.len as u64;
            visit(stretch, done as usize);
            done += len;
        }
    }

    /// The stretch from `at`, of at most `n` elements.
    fn stretch(&self, at: u64, n: u64) -> Stretch {
        let Some((inner, outer)) = self.dims.split_last() else {
            return Stretch { start: self.offset, stride: 1, len: 1 };
        };
        let (mut rest, column) = (at / inner.size, at % inner.size);
        let mut start = self.offset + column * inner.stride;
        for dim in outer.iter().rev() {
            start += rest % dim.size * dim.stride;
            rest /= dim.size;
        }
        Stretch { start, stride: inner.stride, len: (inner.size - column).min(n) as usize }
    }

    /// The two innermost factors of a matrix that is turned: rows of the result are columns of the source.
    fn turned(&self) -> Option<(Dim, Dim)> {
        match self.dims.as_slice() {
            [.., rows, columns] if rows.stride == 1 && columns.stride != 1 => Some((*rows, *columns)),
            _ => None,
        }
    }

    /// Elements `first ..` of a matrix that is turned. Several rows of the result are read together, so that what lies
    /// side by side in the source is asked for at once.
    fn read_turned(
        &self,
        (rows, columns): (Dim, Dim),
        source: &dyn WeightSource,
        (index, elem_bytes): (usize, usize),
        first: u64,
        out: &mut [u8],
    ) -> Result<(), TransformError> {
        let borrowed = source.borrow(index);
        let n = (out.len() / elem_bytes) as u64;
        let mut done = 0;
        while done < n {
            let at = first + done;
            let stretch = self.stretch(at, n - done);
            let row = at / columns.size % rows.size;
            let n_rows = if at.is_multiple_of(columns.size) { (n - done) / columns.size } else { 0 };
            let n_rows = n_rows.min(rows.size - row);
            let len = if n_rows > 1 { n_rows * columns.size } else { stretch.len as u64 };
            let out = &mut out[done as usize * elem_bytes..(done + len) as usize * elem_bytes];
            if n_rows > 1 {
                tile(source, borrowed, (index, elem_bytes), &stretch, n_rows as usize, out)?;
            } else {
                gather(source, borrowed, index, elem_bytes, &stretch, out)?;
            }
            done += len;
        }
        Ok(())
    }

    fn read(
        &self,
        source: &dyn WeightSource,
        level: SimdLevel,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), TransformError> {
        let mut result = Ok(());
        match &self.origin {
            Origin::Fill(value) => out.fill(*value),
            Origin::Values(values) => self.stretches(first, out.len() as u64, &mut |stretch, at| {
                take_values(values, &stretch, &mut out[at..at + stretch.len]);
            }),
            Origin::Weight { index, ty } => {
                let elem_bytes = ty.bytes().ok_or_else(|| TransformError::ElementType {
                    weight: source.weights()[*index].name.clone(),
                    ty: *ty,
                })?;
                let borrowed = source.borrow(*index);
                let decode_run = |bytes: &[u8], out: &mut [f32]| {
                    quant::decode_elements(*ty, level, bytes, out).map_err(|_| TransformError::ElementType {
                        weight: source.weights()[*index].name.clone(),
                        ty: *ty,
                    })
                };
                if let Some(turned) = self.turned() {
                    result = with_bytes(out.len() * elem_bytes, |bytes| {
                        self.read_turned(turned, source, (*index, elem_bytes), first, bytes)?;
                        decode_run(bytes, out)
                    });
                    return self.finish(result, out);
                }
                self.stretches(first, out.len() as u64, &mut |stretch, at| {
                    if result.is_err() {
                        return;
                    }
                    let out = &mut out[at..at + stretch.len];
                    result = if stretch.stride == 1 {
                        with_elems(source, borrowed, *index, elem_bytes, &stretch, |bytes| {
                            decode_run(bytes, out)
                        })
                    } else {
                        with_bytes(out.len() * elem_bytes, |bytes| {
                            gather(source, borrowed, *index, elem_bytes, &stretch, bytes)?;
                            decode_run(bytes, out)
                        })
                    };
                });
            }
        }
        self.finish(result, out)
    }

    /// Arithmetic on what was read.
    fn finish(&self, read: Result<(), TransformError>, out: &mut [f32]) -> Result<(), TransformError> {
        read?;
        let in_f16 = matches!(self.origin, Origin::Weight { ty: ElementType::F16, .. });
        for math in &self.math {
            math.apply(out, in_f16);
        }
        Ok(())
    }

    fn copy(
        &self,
        source: &dyn WeightSource,
        first: u64,
        out: &mut [u8],
        elem_bytes: usize,
    ) -> Result<(), TransformError> {
        let Origin::Weight { index, .. } = self.origin else { return Ok(()) };
        if let Some(turned) = self.turned() {
            return self.read_turned(turned, source, (index, elem_bytes), first, out);
        }
        let borrowed = source.borrow(index);
        let mut result = Ok(());
        self.stretches(first, (out.len() / elem_bytes) as u64, &mut |stretch, at| {
            if result.is_err() {
                return;
            }
            let out = &mut out[at * elem_bytes..(at + stretch.len) * elem_bytes];
            result = match borrowed {
                Some(bytes) if stretch.stride == 1 => {
                    out.copy_from_slice(&bytes[stretch.start as usize * elem_bytes..][..out.len()]);
                    Ok(())
                }
                None if stretch.stride == 1 => {
                    source.read_elems(index, stretch.start, out).map_err(TransformError::from)
                }
                _ => gather(source, borrowed, index, elem_bytes, &stretch, out),
            };
        });
        result
    }

    fn keeps_blocks(&self, block_elems: u64) -> bool {
        let Some((inner, outer)) = self.dims.split_last() else { return block_elems == 1 };
        matches!(self.origin, Origin::Weight { .. })
            && self.math.is_empty()
            && inner.stride == 1
            && inner.size % block_elems == 0
            && self.offset.is_multiple_of(block_elems)
            && outer.iter().all(|dim| dim.stride % block_elems == 0)
    }

    fn read_packed(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), TransformError> {
        let Origin::Weight { index, .. } = self.origin else { return Ok(()) };
        let (elems, bytes) = (ty.block_elems(), ty.block_bytes());
        let mut result = Ok(());
        self.stretches(first, (out.len() / bytes * elems) as u64, &mut |stretch, at| {
            if result.is_ok() {
                let out = &mut out[at / elems * bytes..(at + stretch.len) / elems * bytes];
                result = source.read_packed(index, ty, stretch.start, out);
            }
        });
        result.map_err(TransformError::from)
    }

    fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        let Origin::Weight { index, .. } = self.origin else { return };
        let Some((outer, rest)) = self.dims.split_first() else { return };
        let inner: u64 = rest.iter().map(|dim| dim.size).product();
        // Whole steps of the outermost factor, if each is one region of its own in the source.
        if rest.iter().any(|dim| dim.stride >= outer.stride) {
            return;
        }
        // Up to the last element used: a step that ends with a gap may end behind the weight.
        let extent = 1 + rest.iter().map(|dim| (dim.size - 1) * dim.stride).sum::<u64>();
        let (begin, end) = (first.div_ceil(inner), (first + n) / inner);
        if begin < end {
            let n_elems = (end - begin - 1) * outer.stride + extent;
            source.release_elems(index, self.offset + begin * outer.stride, n_elems);
        }
    }
}

fn take_values(values: &Arc<[f32]>, stretch: &Stretch, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = values[(stretch.start + i as u64 * stretch.stride) as usize];
    }
}

/// Hands contiguous elements on, from the mapping or through a buffer.
fn with_elems(
    source: &dyn WeightSource,
    borrowed: Option<&[u8]>,
    weight: usize,
    elem_bytes: usize,
    stretch: &Stretch,
    use_it: impl FnOnce(&[u8]) -> Result<(), TransformError>,
) -> Result<(), TransformError> {
    let n_bytes = stretch.len * elem_bytes;
    match borrowed {
        Some(bytes) => use_it(&bytes[stretch.start as usize * elem_bytes..][..n_bytes]),
        None => with_bytes(n_bytes, |bytes| {
            source.read_elems(weight, stretch.start, bytes)?;
            use_it(bytes)
        }),
    }
}

/// Several rows of a turned matrix, whose first one is `column` of the source: neighbours are read together and dealt
/// out to the rows.
fn tile(
    source: &dyn WeightSource,
    borrowed: Option<&[u8]>,
    (weight, elem_bytes): (usize, usize),
    column: &Stretch,
    n_rows: usize,
    out: &mut [u8],
) -> Result<(), TransformError> {
    let deal = match elem_bytes {
        2 => deal::<2>,
        4 => deal::<4>,
        _ => deal_any,
    };
    let at = |i: usize| column.start + i as u64 * column.stride;
    if let Some(bytes) = borrowed {
        for i in 0..column.len {
            deal(
                &bytes[at(i) as usize * elem_bytes..][..n_rows * elem_bytes],
                elem_bytes,
                i,
                column.len,
                out,
            );
        }
        return Ok(());
    }
    with_bytes(n_rows * elem_bytes, |bytes| {
        for i in 0..column.len {
            source.read_elems(weight, at(i), bytes)?;
            deal(bytes, elem_bytes, i, column.len, out);
        }
        Ok(())
    })
}

/// Element `r` goes to place `i` of row `r`.
fn deal<const N: usize>(bytes: &[u8], _: usize, i: usize, n_cols: usize, out: &mut [u8]) {
    let places = out.as_chunks_mut::<N>().0.iter_mut().skip(i).step_by(n_cols);
    for (place, elem) in places.zip(bytes.as_chunks::<N>().0) {
        *place = *elem;
    }
}

/// As [`deal`], for elements of any size.
fn deal_any(bytes: &[u8], elem_bytes: usize, i: usize, n_cols: usize, out: &mut [u8]) {
    let places = out.chunks_exact_mut(elem_bytes).skip(i).step_by(n_cols);
    for (place, elem) in places.zip(bytes.chunks_exact(elem_bytes)) {
        place.copy_from_slice(elem);
    }
}

/// Collects elements that are not neighbours in their source.
fn gather(
    source: &dyn WeightSource,
    borrowed: Option<&[u8]>,
    weight: usize,
    elem_bytes: usize,
    stretch: &Stretch,
    out: &mut [u8],
) -> Result<(), TransformError> {
    for (i, elem) in out.chunks_exact_mut(elem_bytes).enumerate() {
        let at = stretch.start + i as u64 * stretch.stride;
        match borrowed {
            Some(bytes) => elem.copy_from_slice(&bytes[at as usize * elem_bytes..][..elem_bytes]),
            None => source.read_elems(weight, at, elem)?,
        }
    }
    Ok(())
}
