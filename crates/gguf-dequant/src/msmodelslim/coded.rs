//! Quantized weights as the layer reads them: as floats, and as blocks.

use std::ops::Range;
use std::sync::Arc;

use super::linear::Linear;
use super::pack;
use crate::encoding::along_rows;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, InnerSource, Result};
use gguf_core::{GgmlType, Packing, Shape};

impl CodedWeight for Arc<Linear> {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        for (row, out) in part.split_rows(out, part.width()) {
            self.read_values(inner, row, part.cols.start, out)?;
        }
        Ok(())
    }

    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        Ok(pack::packings(inner, self)?)
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        for (row, out) in part.split_rows(out, pack::n_bytes(ty, part.width() as u64)) {
            pack::pack(inner, self, ty, row, &part.cols, out)?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let finest = [Some(&self.scale), self.second.as_ref()].into_iter().flatten();
        let groups = finest.map(|grid| grid.groups).max().unwrap_or(1).max(1);
        let scales = along_rows(self.n_cols().div_ceil(groups), self.n_cols());
        let offsets = if self.offset.is_some() { ", asymmetric" } else { "" };
        format!("{}, {scales}{offsets}", self.label)
    }

    /// Releases the codes of rows that are wholly inside the range: others may still be needed.
    fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        let rows = elems.start.div_ceil(shape.n_cols())..elems.end / shape.n_cols();
        if rows.start < rows.end {
            self.release_rows(inner, rows);
        }
    }
}
