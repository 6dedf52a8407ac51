//! NVFP4 stacks stored as `[experts, inputs, outputs]`.
//!
//! ModelOpt packs their inputs: a byte holds two rows of a column, and a scale belongs to 16 rows of a column. No
//! GGML block has this layout.

use crate::fp4::{Factor, Nvfp4Params};
use crate::rectangle::Rectangle;
use crate::stack::matrices;
use crate::values::NumberTensor;
use crate::{CodedWeight, InnerSource, Result, Tensors};
use gguf_core::small_float::E2M1;
use gguf_core::{ElementType, Shape};

const GROUP: u64 = 16;

/// A stack of matrices whose columns are packed.
pub(super) struct TransposedFp4 {
    codes: usize,
    scales: NumberTensor,
    factor: Factor,
    mat_rows: u64,
    n_cols: u64,
    members: Vec<usize>,
}

impl TransposedFp4 {
    /// Returns the unpacked shape of bytes `[n, rows / 2, columns]`, if the scales are `[n, rows / 16, columns]`.
    pub(super) fn shape(codes: &Shape, scales: &Shape) -> Option<Shape> {
        let &[n_mats, pairs, n_cols] = codes.dims() else { return None };
        let rows = pairs.checked_mul(2)?;
        let fits = scales.dims() == [n_mats, rows.div_ceil(GROUP), n_cols];
        Shape::new(vec![n_mats, rows, n_cols]).filter(|_| fits)
    }

    /// Creates a stack of a shape that [`TransposedFp4::shape`] returned.
    ///
    /// # Errors
    /// Types that do not fit; factors that are not finite, or whose number differs from that of the matrices.
    pub(super) fn new(
        tensors: &Tensors<'_>,
        codes: usize,
        scale: usize,
        params: Nvfp4Params,
        shape: &Shape,
    ) -> Result<Self> {
        let (n_mats, mat_rows) = matrices(shape);
        tensors.check_type(codes, &[ElementType::U8])?;
        let scales = NumberTensor::new(tensors, scale, &[ElementType::F8E4M3])?;
        params.check(tensors, n_mats)?;
        let mut members = vec![codes, scale];
        members.extend(params.factor.member());
        Ok(Self { codes, scales, factor: params.factor, mat_rows, n_cols: shape.n_cols(), members })
    }
}

impl CodedWeight for TransposedFp4 {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let (mut scales, mut ready) = (Vec::new(), None);
        for (row, out) in part.split_rows(out, part.width()) {
            let (matrix, within) = (row / self.mat_rows, row % self.mat_rows);
            let group = matrix * self.mat_rows.div_ceil(GROUP) + within / GROUP;
            if ready != Some(group) {
                scales.clear();
                self.scales.read(inner, part.elems(group, self.n_cols), &mut scales)?;
                self.factor.apply(inner, matrix, &mut scales)?;
                ready = Some(group);
            }
            let pair = matrix * (self.mat_rows / 2) + within / 2;
            let shift = within % 2 * 4;
            inner.with_elems(self.codes, part.elems(pair, self.n_cols), |bytes| {
                for ((out, &byte), &scale) in out.iter_mut().zip(bytes).zip(&scales) {
                    *out = E2M1[usize::from(byte >> shift & 15)] * scale;
                }
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        "NVFP4, groups of 16 inputs, packed across rows".to_owned()
    }
}
