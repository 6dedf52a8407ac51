//! Prefix attention with two-dimensional positions (ChatGLM-6B): the tokens before the begin token see one another, and
//! every token has two positions, one in the prefix and one in the answer after it.

use std::ops::Range;

use crate::exec::batch::{ChunkBatch, TokenChunk, TokenPlace};
use crate::exec::rope::RopeTable;
use crate::ops::model_extra::ModelExtraOp;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::MaskKind;
use gguf_core::simd::SimdLevel;

/// End of a model's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Token that ends the prefix; without one, the last token of a chunk.
    pub begin: Option<u32>,
}

impl Prefix {
    /// Returns the index of the token that ends the prefix of a chunk.
    fn end_of(self, tokens: &[u32]) -> usize {
        let begin = self.begin.and_then(|begin| tokens.iter().position(|&token| token == begin));
        begin.unwrap_or(tokens.len().saturating_sub(1))
    }
}

impl ModelExtraOp for Prefix {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<Prefix>> {
        Ok(match b.built.sight {
            MaskKind::Causal | MaskKind::Full => None,
            MaskKind::Prefix => {
                let begin = b.keys.token_id("bos");
                if begin.is_none() {
                    let text = "the file names no begin token: the last token of each prompt ends the prefix";
                    b.warnings.push(text.to_owned());
                }
                Some(Prefix { begin })
            }
        })
    }

    fn not_continued(&self) -> Option<&'static str> {
        Some("tokens of its prefix see those behind them")
    }

    fn n_positions(&self, chunk_len: usize) -> usize {
        // With an empty prefix the positions start at 1.
        chunk_len + 1
    }

    /// Sets the positions of all chunks' tokens, and the lengths of their prefixes.
    ///
    /// # Errors
    /// [`EngineError::PrefixRow`] if a wanted row is in the prefix, where it sees the token that it would have to
    /// predict.
    fn set_positions(&self, chunks: &[TokenChunk], batches: &mut [(Range<usize>, ChunkBatch)]) -> Result<()> {
        let mut prompts = chunks.iter().enumerate();
        for (_, batch) in batches {
            let n_chunks = batch.cuts.len() - 1;
            for (at, (prompt, chunk)) in prompts.by_ref().take(n_chunks).enumerate() {
                let end = self.end_of(&chunk.tokens);
                if chunk.rows.start < end && !chunk.rows.is_empty() {
                    return Err(EngineError::PrefixRow { prompt, row: chunk.rows.start, end });
                }
                let places = &mut batch.places[batch.cuts[at]..batch.cuts[at + 1]];
                for (token, place) in places.iter_mut().enumerate() {
                    let (position, block) = positions(token, end);
                    *place = TokenPlace { position: position as u32, block: block as u32, ..*place };
                }
                batch.prefixes.push(end);
            }
        }
        Ok(())
    }
}

/// Returns both positions of a token in a chunk whose prefix ends at token `end`. In the prefix, the first is its index
/// and the second is 0. From `end` on, the first is the index of the prefix's last token, and the second is the
/// number of tokens of the answer so far.
fn positions(token: usize, end: usize) -> (usize, usize) {
    if token < end { (token, 0) } else { (end.saturating_sub(1), token - end + 1) }
}

/// Rotates all heads of a row, `dk` wide each: the first half of a head by one position, the second half by the other.
pub(crate) fn rotate_2d(table: &RopeTable, level: SimdLevel, row: &mut [f32], dk: usize, place: TokenPlace) {
    for head in row.chunks_mut(dk) {
        let (first, second) = head.split_at_mut(dk / 2);
        table.rotate(level, first, dk / 2, place.position as usize);
        table.rotate(level, second, dk - dk / 2, place.block as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_stop_at_the_prefix_and_blocks_count_behind_it() {
        let of = |end: usize| (0..5).map(|token| positions(token, end)).collect::<Vec<_>>();
        assert_eq!(of(3), [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]);
        assert_eq!(of(4), [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)]);
        assert_eq!(of(0), [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]);
    }

    #[test]
    fn the_begin_token_ends_the_prefix_and_its_rows_are_refused() {
        let prefix = Prefix { begin: Some(9) };
        assert_eq!((prefix.end_of(&[1, 2, 9, 4, 9]), prefix.end_of(&[1, 2, 3])), (2, 2));
        let chunk = |rows: Range<usize>| vec![TokenChunk { tokens: vec![1, 2, 9, 4], rows, n_source: 0 }];
        let mut batches = vec![(0..4, ChunkBatch::new([4]))];
        let error = prefix.set_positions(&chunk(1..4), &mut batches).unwrap_err();
        assert_eq!(
            error.to_string(),
            "prompt 0: row 1 is in the prefix, which ends at token 2 and sees the tokens it would predict"
        );
        prefix.set_positions(&chunk(2..4), &mut batches).unwrap();
        assert_eq!(batches[0].1.prefixes, [2]);
    }
}
