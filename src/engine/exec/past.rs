//! What a continued run remembers of its sequences: keys and values, states, the last inputs of convolutions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::core::sync::Unpoisoned;
use crate::engine::exec::kept::KeptPanels;

/// The past of sequences that go on step by step. Operations that look back come by in the same order in every step, and
/// each finds what it left the step before.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Tokens that a sequence may come to.
    pub(crate) capacity: usize,
    /// Tokens of every sequence, those of the step included.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// The sequence of every chunk of the step, in ascending order.
    pub(crate) sequences: Vec<usize>,
    /// Tokens that came before every chunk of the step.
    pub(crate) before: Vec<usize>,
    /// Weights that every step needs again.
    pub(crate) kept: KeptPanels,
    /// By operation; empty while it is taken.
    places: Mutex<Vec<Vec<f32>>>,
    /// The operation that comes next.
    next: AtomicUsize,
}

/// What one operation remembers, as much of each sequence.
#[derive(Debug)]
pub(crate) struct Place {
    at: usize,
    floats: usize,
    values: Vec<f32>,
}

impl Past {
    /// The past of sequences that have not begun, with room for `kept_bytes` of decoded weights.
    pub(crate) fn new(n_sequences: usize, capacity: usize, kept_bytes: u64) -> Self {
        let kept = KeptPanels::new(kept_bytes);
        Self { capacity, tokens: vec![Vec::new(); n_sequences], kept, ..Self::default() }
    }

    /// Goes back to the first operation.
    pub(crate) fn rewind(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// What the next operation has left, `floats` for each sequence: zeros at first. To be given back.
    pub(crate) fn take(&self, floats: usize) -> Place {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let mut places = self.places.lock().unpoisoned();
        if places.len() <= at {
            places.resize_with(at + 1, Vec::new);
        }
        let mut values = std::mem::take(&mut places[at]);
        let n = floats * self.tokens.len();
        if values.len() != n {
            // The system gives zeros page by page as sequences grow.
            values = vec![0.0; n];
        }
        Place { at, floats, values }
    }

    pub(crate) fn give(&self, place: Place) {
        let mut places = self.places.lock().unpoisoned();
        places[place.at] = place.values;
    }

    /// The part of each chunk of the step; where a sequence begins, zeros.
    pub(crate) fn parts<'p>(&self, place: &'p mut Place) -> Vec<&'p mut [f32]> {
        let mut parts = self.parts_as_left(place);
        for (part, _) in parts.iter_mut().zip(&self.before).filter(|(_, before)| **before == 0) {
            part.fill(0.0);
        }
        parts
    }

    /// [`Past::parts`], where nothing is looked at that was not written before.
    pub(crate) fn parts_as_left<'p>(&self, place: &'p mut Place) -> Vec<&'p mut [f32]> {
        let of_step = |(sequence, _): &(usize, &mut [f32])| self.sequences.binary_search(sequence).is_ok();
        let all = place.values.chunks_mut(place.floats.max(1)).enumerate();
        all.filter(of_step).map(|(_, part)| part).collect()
    }

    /// Floats that are remembered, of all sequences.
    pub(crate) fn n_floats(&self) -> usize {
        let places = self.places.lock().unpoisoned();
        places.iter().map(Vec::len).sum()
    }
}

/// Rows that came before a chunk, the oldest first, after the chunk's own have come: `rows` is as long as it was.
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
    fn places_come_back_in_their_order_and_begin_with_zeros() {
        let mut past = Past::new(3, 8, 0);
        past.sequences = vec![0, 2];
        past.before = vec![0, 0];
        for step in 0..2 {
            past.rewind();
            for (at, floats) in [2, 0, 1].into_iter().enumerate() {
                let mut place = past.take(floats);
                let parts = past.parts(&mut place);
                assert_eq!(parts.len(), if floats == 0 { 0 } else { 2 });
                for (chunk, part) in parts.into_iter().enumerate() {
                    let left = if step == 0 || chunk == 0 { 0.0 } else { (10 * at + chunk) as f32 };
                    assert_eq!(part, vec![left; floats], "{step} {at} {chunk}");
                    part.fill((10 * at + chunk) as f32);
                }
                past.give(place);
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
