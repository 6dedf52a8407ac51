//! Interface of mixers, the branches of layers that mix information between positions.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::weights::Matrix;
use crate::ops::kept::Kept;

/// Last matrix of a branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BranchEnd<'a> {
    pub(crate) matrix: &'a Matrix,
    /// Factor of its product.
    pub(crate) factor: f32,
}

impl<'a> BranchEnd<'a> {
    /// Returns the end of a branch, or `None` for a matrix with its own scale, which is read with the weights.
    pub(crate) fn of(matrix: &'a Matrix, factor: f32) -> Option<Self> {
        matrix.scale.is_none().then_some(Self { matrix, factor })
    }
}

/// Operation of a mixer. Its file also describes it, resolves it from a file's keys and tensors, and tests it.
pub(crate) trait MixerOp {
    /// Computes the mixer of the normed input `x`, `[n_tokens, n_embd]`, into `out`, which has the wanted rows only.
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()>;

    /// Returns the last matrix, if its product is the whole output.
    fn end(&self) -> Option<BranchEnd<'_>>;

    /// Returns the number of floats that a sequence of at most `n_ctx` tokens keeps.
    ///
    /// # Errors
    /// If the mixer cannot generate token by token: the reason, as the end of a sentence about the model.
    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str>;

    /// Returns what a runtime keeps of a sequence.
    fn kept(&self) -> Kept;

    /// Returns the bytes of a thread's buffers, in addition to those of products, for chunks of at most `chunk_len`
    /// tokens.
    fn thread_bytes(&self, chunk_len: usize) -> usize;
}
