//! Twin mixers (Falcon H1): two mixers of the same input, whose outputs are added.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::ops::Mixer;
use crate::ops::kept::Kept;
use crate::ops::mixer::{BranchEnd, MixerOp};

/// Two mixers that read the same input and whose outputs are added.
#[derive(Clone, Debug, PartialEq)]
pub struct Twin {
    /// First mixer.
    pub first: Mixer,
    /// Second mixer.
    pub second: Mixer,
    /// Width of their outputs.
    pub n_embd: usize,
}

impl Twin {
    fn both(&self) -> impl Iterator<Item = &dyn MixerOp> {
        [&self.first, &self.second].into_iter().filter_map(Mixer::op)
    }
}

impl MixerOp for Twin {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        if let Some(first) = self.first.op() {
            first.run(cx, batch, x, out)?;
        }
        if let Some(second) = self.second.op() {
            let mut added = cx.take(out.len());
            second.run(cx, batch, x, &mut added)?;
            cx.add_rows(out, &mut added, None, 1.0, self.n_embd);
            cx.give([added]);
        }
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        None
    }

    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        self.both().try_fold(0usize, |sum, mixer| Ok(sum.saturating_add(mixer.remembered(n_ctx)?)))
    }

    fn kept(&self) -> Kept {
        self.both().fold(Kept::default(), |sum, mixer| sum.and(mixer.kept()))
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        self.both().map(|mixer| mixer.thread_bytes(chunk_len)).max().unwrap_or(0)
    }
}
