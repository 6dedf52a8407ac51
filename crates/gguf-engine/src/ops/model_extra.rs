//! Interface of the extras of models: what some families have in addition to embedding, layers and head.

use std::ops::Range;

use crate::Result;
use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::resolve::resolver::Resolver;

/// Operation of an extra. Each method belongs to one point of a run; an extra implements those at which it has work. Its
/// file also describes and tests it.
pub(crate) trait ModelExtraOp {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<Self>>
    where
        Self: Sized;

    /// Returns the number of streams per token between layers, if the extra defines it.
    fn n_streams(&self) -> Option<usize> {
        None
    }

    /// Returns the reason why a sequence cannot be continued token by token, if there is one, as the end of a sentence
    /// about the model.
    fn not_continued(&self) -> Option<&'static str> {
        None
    }

    /// Returns the number of positions that the tokens of a chunk may have.
    fn n_positions(&self, chunk_len: usize) -> usize {
        chunk_len
    }

    /// Sets the positions of all chunks' tokens.
    ///
    /// # Errors
    /// If a wanted row sees the token that it would have to predict.
    fn set_positions(
        &self,
        _chunks: &[TokenChunk],
        _batches: &mut [(Range<usize>, ChunkBatch)],
    ) -> Result<()> {
        Ok(())
    }

    /// Returns the token that needs the most memory, if tokens differ.
    fn busiest_token(&self) -> Option<u32> {
        None
    }

    /// Returns the token whose embedding is used for a token.
    fn substitute(&self, token: u32) -> u32 {
        token
    }

    /// Prepares what layers read. Returns the streams before the first layer, `[n_tokens, n_streams, n_embd]`, of the
    /// embeddings `x`, `[n_tokens, n_embd]`.
    fn begin(&self, _cx: &mut Context<'_>, _chunks: &[TokenChunk], x: Buffer) -> Result<Buffer> {
        Ok(x)
    }

    /// Returns one row per token, `[n_tokens, n_embd]`, of the streams `x` after the last layer.
    fn end(&self, _cx: &Context<'_>, x: Buffer) -> Result<Buffer> {
        Ok(x)
    }
}
