//! Traversal of a view: ranges of output elements are split at the seams between its parts.

use std::ops::Range;

use crate::ViewError;
use crate::merged_leaf::MergedLeaf;
use crate::origin::{LeafOrigin, Reader};
use crate::view::{Body, Joint, View};
use gguf_core::scratch::with_floats;
use gguf_core::{ElementType, GgmlType, WeightSource};

/// Callback for a leaf, a position inside it, and the part of the range that it covers from there.
type Visit<'a, E> = dyn FnMut(&MergedLeaf, u64, Range<u64>) -> Result<(), E> + 'a;

/// A view prepared for reading: leaves, and their sequence.
#[derive(Clone, Debug)]
pub(super) enum ViewNode {
    Leaf(MergedLeaf),
    Concat {
        /// Number of elements of one step of the axes outside the seam (and of the seam, if parts take turns), summed
        /// up to and including each part.
        ends: Vec<u64>,
        parts: Vec<ViewNode>,
    },
}

/// Longest period, in elements, at which parts that take turns are read one by one, whole.
const SHORT_PERIOD: u64 = 64;

pub(super) fn compile(view: &View) -> ViewNode {
    match &view.body {
        Body::Leaf(leaf) => ViewNode::Leaf(MergedLeaf::of(leaf)),
        Body::Concat { axis, parts, joint } => {
            // Elements that a part contributes before the next one follows: all of the axis, or one index of it.
            let first = match joint {
                Joint::EndToEnd => *axis,
                Joint::InTurns => axis + 1,
            };
            let mut end = 0;
            let ends = parts.iter().map(|part| {
                end += part.shape()[first..].iter().product::<u64>();
                end
            });
            ViewNode::Concat { ends: ends.collect(), parts: parts.iter().map(compile).collect() }
        }
    }
}

impl ViewNode {
    /// Calls `test` on every leaf until it returns false; returns true if it never did.
    pub(super) fn all_leaves(&self, test: &mut dyn FnMut(&MergedLeaf) -> bool) -> bool {
        match self {
            Self::Leaf(leaf) => test(leaf),
            Self::Concat { parts, .. } => parts.iter().all(|part| part.all_leaves(test)),
        }
    }

    /// Returns the element type of all sources, if it is the same for all.
    pub(super) fn element_type(&self) -> Option<ElementType> {
        let mut found = None;
        let uniform = self.all_leaves(&mut |leaf| match &leaf.origin {
            LeafOrigin::Weight { ty, .. } => *found.get_or_insert(*ty) == *ty,
            LeafOrigin::Computed(computed) => {
                computed.element_type().is_some_and(|ty| *found.get_or_insert(ty) == ty)
            }
            // Zeros and other constants are of any type.
            LeafOrigin::Values(_) | LeafOrigin::Fill(_) => true,
        });
        found.filter(|_| uniform)
    }

    /// Calls `visit` for the weights of every leaf.
    pub(super) fn each_weight(&self, visit: &mut dyn FnMut(usize)) {
        self.all_leaves(&mut |leaf| {
            weights_of(leaf, visit);
            true
        });
    }

    /// Splits the range `first .. first + n` at the seams, with one visit each.
    fn walk<E>(&self, first: u64, n: u64, visit: &mut Visit<'_, E>) -> Result<(), E> {
        self.walk_from(first, n, 0, visit)
    }

    fn walk_from<E>(&self, first: u64, n: u64, done: u64, visit: &mut Visit<'_, E>) -> Result<(), E> {
        let (ends, parts) = match self {
            Self::Leaf(leaf) => return visit(leaf, first, done..done + n),
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

    pub(super) fn read(&self, reader: Reader<'_>, first: u64, out: &mut [f32]) -> Result<(), ViewError> {
        if let Self::Concat { ends, parts } = self
            && let Some(&period) = ends.last()
            && (1..=SHORT_PERIOD.min(out.len() as u64)).contains(&period)
        {
            let mut begin = 0;
            for (part, &end) in parts.iter().zip(ends) {
                let turn = Turn { begin, end, period };
                turn.read(part, reader, first, out)?;
                begin = end;
            }
            return Ok(());
        }
        self.walk(first, out.len() as u64, &mut |leaf, first, range| {
            leaf.read(reader, first, &mut out[range.start as usize..range.end as usize])
        })
    }

    /// Reads integers and converts them to another width.
    pub(super) fn read_ints(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let size = ty.block_bytes();
        self.walk(first, (out.len() / size) as u64, &mut |leaf, first, range| {
            let out = &mut out[range.start as usize * size..range.end as usize * size];
            leaf.read_ints(source, ty, first, out)
        })
    }

    pub(super) fn copy(
        &self,
        source: &dyn WeightSource,
        first: u64,
        out: &mut [u8],
        elem_bytes: usize,
    ) -> Result<(), ViewError> {
        let n = (out.len() / elem_bytes) as u64;
        self.walk(first, n, &mut |leaf, first, range| {
            let out = &mut out[range.start as usize * elem_bytes..range.end as usize * elem_bytes];
            leaf.copy(source, first, out, elem_bytes)
        })
    }

    /// Returns true if every element comes from a weight, unchanged, in whole blocks of `block_elems` neighbours.
    pub(super) fn keeps_blocks(&self, block_elems: u64) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.keeps_blocks(block_elems),
            Self::Concat { ends, parts } => {
                ends.iter().all(|end| end % block_elems == 0)
                    && parts.iter().all(|part| part.keeps_blocks(block_elems))
            }
        }
    }

    /// Reads blocks of a type that every weight of this node can be packed as.
    pub(super) fn read_packed(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let (elems, bytes) = (ty.block_elems() as u64, ty.block_bytes());
        let n = (out.len() / bytes) as u64 * elems;
        let offset = |elem: u64| (elem / elems) as usize * bytes;
        self.walk(first, n, &mut |leaf, first, range| {
            leaf.read_packed(source, ty, first, &mut out[offset(range.start)..offset(range.end)])
        })
    }

    pub(super) fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        let _ = self.walk::<std::convert::Infallible>(first, n, &mut |leaf, first, range| {
            leaf.release(source, first, range.end - range.start);
            Ok(())
        });
    }

    /// Returns the weights of a range of elements with the index of the matrix inside each, each pair once, in order of
    /// first use. `matrix_elems` returns the number of elements of a weight's matrices, or `None` for a single matrix
    /// (index 0). The index is `None` for computed elements.
    pub(super) fn matrices_in(
        &self,
        first: u64,
        n: u64,
        matrix_elems: &dyn Fn(usize) -> Option<u64>,
    ) -> Vec<(usize, Option<u64>)> {
        let mut found = Vec::new();
        let mut note = |place: (usize, Option<u64>)| {
            if !found.contains(&place) {
                found.push(place);
            }
        };
        let _ = self.walk::<std::convert::Infallible>(first, n, &mut |leaf, first, range| {
            let n = range.end - range.start;
            match &leaf.origin {
                LeafOrigin::Weight { index, .. } => match matrix_elems(*index).filter(|&elems| elems > 0) {
                    Some(elems) => leaf.each_part(first, n, elems, &mut |part| note((*index, Some(part)))),
                    None => note((*index, Some(0))),
                },
                LeafOrigin::Computed(_) => weights_of(leaf, &mut |index| note((index, None))),
                LeafOrigin::Values(_) | LeafOrigin::Fill(_) => {}
            }
            Ok(())
        });
        found
    }

    /// Returns the weight and element of an output element; `None` if it comes from no weight.
    pub(super) fn locate(&self, index: u64) -> Option<(usize, u64)> {
        let mut found = None;
        let _ = self.walk::<std::convert::Infallible>(index, 1, &mut |leaf, first, _| {
            let at = leaf.stretch(first, 1).start;
            found = match &leaf.origin {
                LeafOrigin::Weight { index, .. } => Some((*index, at)),
                LeafOrigin::Computed(computed) => computed.locate(at),
                LeafOrigin::Values(_) | LeafOrigin::Fill(_) => None,
            };
            Ok(())
        });
        found
    }
}

/// Calls `visit` for the weights of a leaf.
fn weights_of(leaf: &MergedLeaf, visit: &mut dyn FnMut(usize)) {
    match &leaf.origin {
        LeafOrigin::Weight { index, .. } => visit(*index),
        LeafOrigin::Computed(computed) => computed.each_weight(visit),
        LeafOrigin::Values(_) | LeafOrigin::Fill(_) => {}
    }
}

/// Position of a part among several that take turns: `begin..end` of every `period` elements.
#[derive(Clone, Copy)]
struct Turn {
    begin: u64,
    end: u64,
    period: u64,
}

impl Turn {
    /// Reads the elements of the part in the range from `first`.
    fn read(self, part: &ViewNode, reader: Reader<'_>, first: u64, out: &mut [f32]) -> Result<(), ViewError> {
        let Self { begin, end, period } = self;
        let size = end - begin;
        // Number of elements of the part before a position.
        let before = |at: u64| at / period * size + (at % period).clamp(begin, end) - begin;
        let (from, to) = (before(first), before(first + out.len() as u64));
        if from == to {
            return Ok(());
        }
        with_floats((to - from) as usize, |values| {
            part.read(reader, from, values)?;
            let mut within = from % size;
            let mut at = from / size * period + begin + within - first;
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
}
