//! Batches: all chunks of a group go through one layer before the next layer is read, so that every weight is decoded
//! once for the whole group.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

/// Tokens of one sequence, and the rows of it whose predictions are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenChunk {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Rows whose hidden state is wanted; row `i` predicts token `i + 1`.
    pub rows: Range<usize>,
    /// Number of tokens at the front that the encoder of an encoder-decoder model reads; the decoder reads the others.
    /// 0 for models of one stack.
    pub n_source: usize,
}

/// Position of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenPlace {
    /// Position in its chunk, or in the sequence that the chunk continues.
    pub(crate) position: u32,
    /// Position after the prefix, from 1 on, for models that have one; 0 in the prefix.
    pub(crate) block: u32,
    /// Number of tokens of its chunk, or the capacity of a sequence that is continued.
    pub(crate) chunk_len: u32,
}

/// Whole chunks that go through a layer together.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkBatch {
    /// First token of the batch in the group.
    pub(crate) start: usize,
    /// First token of every chunk, followed by the number of tokens.
    pub(crate) cuts: Vec<usize>,
    /// Position of every token.
    pub(crate) places: Vec<TokenPlace>,
    /// Number of tokens of every chunk's prefix, which see one another; empty without prefixes.
    pub(crate) prefixes: Vec<usize>,
    /// First encoder state of every chunk, followed by the number of states; empty without an encoder.
    pub(crate) memory: Vec<usize>,
    /// Tokens of every chunk whose output is wanted, if not all are: the last layer returns only those.
    wanted: Option<Vec<Range<usize>>>,
    /// Values that a layer leaves for later layers.
    pub(crate) carried: OnceLock<Vec<f32>>,
}

impl ChunkBatch {
    /// Returns a batch of whole chunks of these lengths.
    pub(crate) fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut batch = Self { cuts: vec![0], ..Self::default() };
        for len in lengths {
            batch.add(0..len, len);
        }
        batch
    }

    /// Returns a batch of chunks at these positions, which continue sequences of at most `capacity` tokens.
    pub(crate) fn continued(chunks: impl IntoIterator<Item = Range<usize>>, capacity: usize) -> Self {
        let mut batch = Self { cuts: vec![0], ..Self::default() };
        for positions in chunks {
            batch.add(positions, capacity);
        }
        batch
    }

    fn add(&mut self, positions: Range<usize>, chunk_len: usize) {
        let chunk_len = chunk_len as u32;
        let place = |position| TokenPlace { position, block: 0, chunk_len };
        self.places.extend((positions.start as u32..positions.end as u32).map(place));
        self.cuts.push(self.places.len());
    }

    /// Returns the batch with only these rows of every chunk wanted.
    pub(crate) fn narrowed(mut self, rows: impl IntoIterator<Item = Range<usize>>) -> Self {
        let clip = |(cut, rows): (&[usize], Range<usize>)| {
            let end = (cut[0] + rows.end).min(cut[1]);
            (cut[0] + rows.start).min(end)..end
        };
        self.wanted = Some(self.cuts.windows(2).zip(rows).map(clip).collect());
        self
    }

    /// Returns the number of tokens of a chunk's prefix, which see one another.
    pub(crate) fn prefix(&self, chunk: usize) -> usize {
        self.prefixes.get(chunk).copied().unwrap_or(0)
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of tokens whose output is wanted.
    pub(crate) fn n_wanted(&self) -> usize {
        self.wanted.as_ref().map_or(self.n_tokens(), |wanted| wanted.iter().map(ExactSizeIterator::len).sum())
    }

    /// Returns true if every token's output is wanted.
    pub(crate) fn is_whole(&self) -> bool {
        self.wanted.is_none()
    }

    pub(crate) fn wanted(&self, chunk: usize) -> Range<usize> {
        match &self.wanted {
            Some(wanted) => wanted[chunk].clone(),
            None => self.cuts[chunk]..self.cuts[chunk + 1],
        }
    }

    /// Returns the wanted rows of `[n_tokens, n_cols]`.
    pub(crate) fn select<'x, T: Copy>(&self, x: &'x [T], n_cols: usize) -> Cow<'x, [T]> {
        match &self.wanted {
            None => Cow::Borrowed(x),
            Some(wanted) => {
                let mut rows = Vec::with_capacity(self.n_wanted() * n_cols);
                for tokens in wanted {
                    rows.extend_from_slice(&x[tokens.start * n_cols..tokens.end * n_cols]);
                }
                Cow::Owned(rows)
            }
        }
    }

    /// Copies the wanted rows of `[n_tokens, n_cols]` into `[n_wanted, n_cols]`.
    pub(crate) fn copy_wanted(&self, x: &[f32], n_cols: usize, mut out: &mut [f32]) {
        for chunk in 0..self.cuts.len() - 1 {
            let tokens = self.wanted(chunk);
            let (rows, later) = out.split_at_mut(tokens.len() * n_cols);
            rows.copy_from_slice(&x[tokens.start * n_cols..tokens.end * n_cols]);
            out = later;
        }
    }

    /// Moves the wanted rows to the front and returns them.
    pub(crate) fn gather<'x>(&self, x: &'x mut [f32], n_cols: usize) -> &'x mut [f32] {
        let mut n = 0;
        for tokens in self.wanted.iter().flatten() {
            x.copy_within(tokens.start * n_cols..tokens.end * n_cols, n * n_cols);
            n += tokens.len();
        }
        &mut x[..self.n_wanted() * n_cols]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_rows_are_cut_at_their_chunk_and_come_to_the_front() {
        let batch = ChunkBatch::new([3, 2]);
        assert_eq!(batch.n_wanted(), 5);
        let batch = batch.narrowed([1..3, 1..9]);
        assert_eq!(batch.n_wanted(), 3);
        assert_eq!((batch.wanted(0), batch.wanted(1)), (1..3, 4..5));
        let mut x: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let expected = [2.0, 3.0, 4.0, 5.0, 8.0, 9.0];
        assert_eq!(*batch.select(&x, 2), expected);
        let mut copy = [0.0; 6];
        batch.copy_wanted(&x, 2, &mut copy);
        assert_eq!(copy, expected);
        assert_eq!(*batch.gather(&mut x, 2), expected);
    }
}
