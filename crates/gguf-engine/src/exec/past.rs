//! Memory of a continued run: keys and values, states, and the last inputs of convolutions of its sequences.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::exec::kept::KeptPanels;
use gguf_core::sync::Unpoisoned;

/// Past of sequences that continue step by step. Operations that look back take their caches in the same order in every
/// step, so each finds the values that it left in the previous step.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Largest number of tokens of a sequence.
    pub(crate) capacity: usize,
    /// Tokens of every sequence, including those of the step.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Sequence of every chunk of the step, in ascending order.
    pub(crate) sequences: Vec<usize>,
    /// Number of tokens before every chunk of the step.
    pub(crate) before: Vec<usize>,
    /// Decoded weights that every step uses again.
    pub(crate) kept: KeptPanels,
    /// Values by operation; empty while a cache is taken.
    caches: Mutex<Vec<Vec<f32>>>,
    next: AtomicUsize,
}

/// Values that one operation remembers, `floats` for each sequence.
#[derive(Debug)]
pub(crate) struct OpCache {
    at: usize,
    floats: usize,
    values: Vec<f32>,
}

impl Past {
    /// Returns the past of sequences that have not begun, with a budget of `kept_bytes` for decoded weights.
    pub(crate) fn new(n_sequences: usize, capacity: usize, kept_bytes: u64) -> Self {
        let kept = KeptPanels::new(kept_bytes);
        Self { capacity, tokens: vec![Vec::new(); n_sequences], kept, ..Self::default() }
    }

    /// Goes back to the first operation.
    pub(crate) fn rewind(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// Takes the cache of the next operation, `floats` for each sequence, zero at first. It must be given back.
    pub(crate) fn take(&self, floats: usize) -> OpCache {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let mut caches = self.caches.lock().unpoisoned();
        if caches.len() <= at {
            caches.resize_with(at + 1, Vec::new);
        }
        let mut values = std::mem::take(&mut caches[at]);
        let n = floats * self.tokens.len();
        if values.len() != n {
            // The system maps zero pages as sequences grow.
            values = vec![0.0; n];
        }
        OpCache { at, floats, values }
    }

    pub(crate) fn give(&self, cache: OpCache) {
        let mut caches = self.caches.lock().unpoisoned();
        caches[cache.at] = cache.values;
    }

    /// Returns the part of a cache for each chunk of the step, set to zero if the chunk begins its sequence.
    pub(crate) fn chunk_parts<'p>(&self, cache: &'p mut OpCache) -> Vec<&'p mut [f32]> {
        let mut parts = self.chunk_parts_as_left(cache);
        for (part, _) in parts.iter_mut().zip(&self.before).filter(|(_, before)| **before == 0) {
            part.fill(0.0);
        }
        parts
    }

    /// Returns [`Past::chunk_parts`] without zeroing, for operations that only read what they wrote before.
    pub(crate) fn chunk_parts_as_left<'p>(&self, cache: &'p mut OpCache) -> Vec<&'p mut [f32]> {
        let of_step = |(sequence, _): &(usize, &mut [f32])| self.sequences.binary_search(sequence).is_ok();
        let all = cache.values.chunks_mut(cache.floats.max(1)).enumerate();
        all.filter(of_step).map(|(_, part)| part).collect()
    }

    /// Returns the number of floats that are remembered, over all sequences.
    pub(crate) fn n_floats(&self) -> usize {
        let caches = self.caches.lock().unpoisoned();
        caches.iter().map(Vec::len).sum()
    }
}

/// Shifts `rows`, the last rows before a chunk (oldest first), so that they end with the chunk's own. Their number
/// stays the same.
pub(crate) fn move_on(rows: &mut [f32], chunk: &[f32]) {
    let n = rows.len();
    if chunk.len() >= n {
        rows.copy_from_slice(&chunk[chunk.len() - n..]);
    } else {
        rows.copy_within(chunk.len().., 0);
        rows[n - chunk.len()..].copy_from_slice(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_come_back_in_their_order_and_begin_with_zeros() {
        let mut past = Past::new(3, 8, 0);
        past.sequences = vec![0, 2];
        past.before = vec![0, 0];
        for step in 0..2 {
            past.rewind();
            for (at, floats) in [2, 0, 1].into_iter().enumerate() {
                let mut cache = past.take(floats);
                let parts = past.chunk_parts(&mut cache);
                assert_eq!(parts.len(), if floats == 0 { 0 } else { 2 });
                for (chunk, part) in parts.into_iter().enumerate() {
                    let left = if step == 0 || chunk == 0 { 0.0 } else { (10 * at + chunk) as f32 };
                    assert_eq!(part, vec![left; floats], "{step} {at} {chunk}");
                    part.fill((10 * at + chunk) as f32);
                }
                past.give(cache);
            }
            past.before = vec![0, 1];
        }
        assert_eq!(past.n_floats(), 9);
    }

    #[test]
    fn rows_before_a_chunk_move_on() {
        let mut rows = [1.0, 2.0, 3.0, 4.0];
        move_on(&mut rows, &[5.0, 6.0]);
        assert_eq!(rows, [3.0, 4.0, 5.0, 6.0]);
        move_on(&mut rows, &[7.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!(rows, [8.0, 9.0, 10.0, 11.0]);
        move_on(&mut rows, &[]);
        assert_eq!(rows, [8.0, 9.0, 10.0, 11.0]);
        move_on(&mut [], &[1.0]);
    }
}
