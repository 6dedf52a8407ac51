//! A weight whose values an adapter changes while they are read.

use std::ops::Range;

use crate::layer::{Weight, WeightOrigin};
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, InnerSource, Result};
use gguf_core::{ElementType, Shape, WeightMeta};

/// A change of the values of a weight.
pub(super) trait Change: Send + Sync {
    /// Changes the values of a rectangle, given row after row.
    fn apply(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<()>;
}

struct Adapted<C> {
    base: Operand,
    change: C,
}

/// Returns the weight with a change of its values, under its own name.
pub(super) fn adapted(weight: Weight, change: impl Change + 'static) -> Weight {
    let meta = WeightMeta { ty: ElementType::F32, ..weight.meta.clone() };
    let adapted = Adapted { base: Operand::of(weight), change };
    Weight { meta, origin: WeightOrigin::Coded(Box::new(adapted)) }
}

impl<C: Change> CodedWeight for Adapted<C> {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        self.base.read(inner, part, out)?;
        self.change.apply(inner, part, out)
    }

    /// Returns no members: the weight has no codes.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "merged".to_owned()
    }

    fn expect(&self, inner: InnerSource<'_>) {
        self.base.expect(inner);
    }

    /// Releases the base weight only: the adapter's tensors are small, and later rows may need all of them.
    fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        self.base.release(inner, shape, elems);
    }
}
