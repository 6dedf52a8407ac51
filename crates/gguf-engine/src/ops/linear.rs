//! Linear layer in place of a mixer: `W x`, one matrix for each position separately.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::weights::Matrix;
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};

impl MixerOp for Matrix {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let rows = batch.select(x, self.n_cols);
        cx.products(&rows, batch.n_wanted(), vec![Product::plain(self, out)])
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(self, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Ok(0)
    }

    fn kept(&self) -> Kept {
        Kept::default()
    }

    fn thread_bytes(&self, _: usize) -> usize {
        0
    }
}
