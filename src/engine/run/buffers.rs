//! Large buffers that operations hand on to one another: their pages are already there, and nobody fills them.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// `len` values, whatever they are.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Longer than `len` if it was made for more.
    values: Vec<f32>,
    len: usize,
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

/// Buffers that were given back.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<f32>>>,
}

impl Buffers {
    /// The smallest buffer that holds `len` values.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = (0..free.len()).filter(|&at| free[at].len() >= len);
        let values = match fitting.min_by_key(|&at| free[at].len()) {
            Some(at) => free.swap_remove(at),
            // None is large enough: the largest is replaced, so that the number of buffers stays what is in use. The
            // system gives zeros page by page as they are first touched, by the threads that write there.
            None => {
                let largest = (0..free.len()).max_by_key(|&at| free[at].len());
                drop(largest.map(|at| free.swap_remove(at)));
                vec![0.0; len]
            }
        };
        Buffer { values, len }
    }

    pub(crate) fn give<const N: usize>(&self, buffers: [Buffer; N]) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(buffers.map(|buffer| buffer.values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_comes_back_and_the_largest_gives_way() {
        let buffers = Buffers::default();
        let mut taken = [buffers.take(10), buffers.take(30)];
        taken[1].fill(7.0);
        buffers.give(taken);
        let buffer = buffers.take(11);
        assert_eq!((buffer.len(), buffer[10]), (11, 7.0));
        buffers.give([buffer]);
        assert_eq!(*buffers.take(31), [0.0; 31]);
        assert_eq!(buffers.free.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [10]);
    }
}
