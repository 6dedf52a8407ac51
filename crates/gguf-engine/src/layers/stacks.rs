//! Stacks of encoder-decoder models (T5): the tokens of the encoder, those of the decoder, and the states between them.

use std::ops::Range;

use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::weights::Norm;
use crate::layers::layer::LayerPlan;
use crate::{EngineError, Result};

/// Layers that run one after another.
#[derive(Clone, Copy)]
pub(crate) struct LayerStack<'a> {
    pub(crate) layers: &'a [LayerPlan],
    pub(crate) n_before: usize,
    pub(crate) final_norm: Option<&'a Norm>,
}

/// Final states of the encoder.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) states: Buffer,
    /// First state of every chunk, followed by the number of states; empty without an encoder.
    pub(crate) cuts: Vec<usize>,
}

/// Tokens of a stack, and what they attend to.
pub(crate) struct StackInput<'a> {
    pub(crate) chunks: &'a [TokenChunk],
    /// Numbers of chunks of the batches; without it, the memory budget decides.
    pub(crate) batches: Option<&'a [usize]>,
    pub(crate) memory: Memory,
}

/// Chunks split into the tokens of the encoder and those of the decoder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SplitChunks {
    pub(crate) sources: Vec<TokenChunk>,
    pub(crate) answers: Vec<TokenChunk>,
    /// First token of every source, followed by the number of tokens.
    pub(crate) cuts: Vec<usize>,
}

impl SplitChunks {
    /// Splits chunks at their `n_source`.
    ///
    /// # Errors
    /// If a chunk has no tokens for one of the stacks, or if a wanted row belongs to the encoder, where it sees the
    /// token that it would predict.
    pub(crate) fn of(chunks: &[TokenChunk]) -> Result<Self> {
        let mut split = Self { sources: Vec::new(), answers: Vec::new(), cuts: vec![0] };
        let mut n_states = 0;
        for (prompt, TokenChunk { tokens, rows, n_source }) in chunks.iter().enumerate() {
            let end = *n_source;
            if end == 0 || end >= tokens.len() {
                return Err(EngineError::NoSource);
            }
            if rows.start < end && !rows.is_empty() {
                return Err(EngineError::PrefixRow { prompt, row: rows.start, end });
            }
            let (source, answer) = tokens.split_at(end);
            let chunk = |tokens: &[u32], rows| TokenChunk { tokens: tokens.to_vec(), rows, n_source: 0 };
            split.sources.push(chunk(source, 0..end));
            split.answers.push(chunk(answer, rows.start.saturating_sub(end)..rows.end.saturating_sub(end)));
            n_states += end;
            split.cuts.push(n_states);
        }
        Ok(split)
    }
}

/// Sets the states of every batch that its chunks attend to; `cuts` is empty if there are none.
pub(crate) fn give_memory(batches: &mut [(Range<usize>, ChunkBatch)], cuts: &[usize]) {
    let mut first = 0;
    for (_, batch) in batches {
        let n_chunks = batch.cuts.len() - 1;
        batch.memory = cuts.get(first..=first + n_chunks).map(<[usize]>::to_vec).unwrap_or_default();
        first += n_chunks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(tokens: &[u32], rows: Range<usize>, n_source: usize) -> TokenChunk {
        TokenChunk { tokens: tokens.to_vec(), rows, n_source }
    }

    #[test]
    fn chunks_are_cut_where_the_answer_begins() {
        let split = SplitChunks::of(&[chunk(&[1, 2, 3, 4, 5], 3..5, 3), chunk(&[6, 7], 1..2, 1)]).unwrap();
        assert_eq!(split.sources, [chunk(&[1, 2, 3], 0..3, 0), chunk(&[6], 0..1, 0)]);
        assert_eq!(split.answers, [chunk(&[4, 5], 0..2, 0), chunk(&[7], 0..1, 0)]);
        assert_eq!(split.cuts, [0, 3, 4]);
        let mut batches = vec![(0..2, ChunkBatch::new([2])), (2..3, ChunkBatch::new([1]))];
        give_memory(&mut batches, &split.cuts);
        assert_eq!((&batches[0].1.memory[..], &batches[1].1.memory[..]), (&[0, 3][..], &[3, 4][..]));
        give_memory(&mut batches, &[]);
        assert!(batches.iter().all(|(_, batch)| batch.memory.is_empty()));
    }

    #[test]
    fn a_stack_without_tokens_and_rows_of_the_encoder_are_refused() {
        for n_source in [0, 2] {
            let error = SplitChunks::of(&[chunk(&[1, 2], 1..2, n_source)]).unwrap_err();
            assert!(matches!(error, EngineError::NoSource), "{error}");
        }
        let error = SplitChunks::of(&[chunk(&[1, 2, 3], 1..3, 2)]).unwrap_err();
        assert!(matches!(error, EngineError::PrefixRow { row: 1, end: 2, .. }), "{error}");
    }
}
