//! Origin of the elements of a leaf: a weight, constants, or a computation.

use std::fmt;
use std::sync::Arc;

use crate::ViewError;
use crate::elems::StridedRange;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, WeightSource};

/// Weights that elements are read from, and the vector instructions of the arithmetic on them.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) source: &'a dyn WeightSource,
    pub(super) level: SimdLevel,
}

/// Source of the elements of a leaf.
#[derive(Clone, Debug)]
pub(super) enum LeafOrigin {
    Weight {
        index: usize,
        ty: ElementType,
    },
    Values(Arc<[f32]>),
    Fill(f32),
    /// A computation that needs more than one read of its sources.
    Computed(Arc<dyn Computation>),
}

/// A list of elements that are computed from other views.
///
/// A leaf may be computed from views, which consist of leaves: the trait ends this recursion of types.
pub(super) trait Computation: fmt::Debug + Send + Sync {
    /// Returns the type that further arithmetic computes in, if that is not F32.
    fn element_type(&self) -> Option<ElementType>;

    fn read(&self, reader: Reader<'_>, stretch: &StridedRange, out: &mut [f32]) -> Result<(), ViewError>;

    /// Calls `visit` for all weights that the elements depend on.
    fn each_weight(&self, visit: &mut dyn FnMut(usize));

    /// Returns the weight and element of the element `index`; `None` if it comes from no weight.
    fn locate(&self, index: u64) -> Option<(usize, u64)>;

    /// Releases the memory of a range.
    fn release(&self, source: &dyn WeightSource, first: u64, n: u64);
}
