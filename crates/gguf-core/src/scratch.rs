//! Buffers that live as long as their thread: rows are read thousands of times, and each read needs a buffer.

use std::cell::RefCell;

thread_local! {
    static FLOATS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Gives a buffer that will be overwritten `n` elements. A new one comes zeroed from the system, at no cost.
pub fn renew<T: Clone + Default>(buffer: &mut Vec<T>, n: usize) {
    if buffer.len() != n {
        *buffer = vec![T::default(); n];
    }
}

/// Lends a buffer of `n` floats that lives as long as the thread. A nested loan gets its own buffer.
pub fn with_floats<T>(n: usize, use_it: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut buffer = FLOATS.take();
    if buffer.len() < n {
        renew(&mut buffer, n);
    }
    let result = use_it(&mut buffer[..n]);
    FLOATS.set(buffer);
    result
}

/// Lends a buffer of `n` bytes like [`with_floats`].
pub fn with_bytes<T>(n: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = BYTES.take();
    if buffer.len() < n {
        renew(&mut buffer, n);
    }
    let result = use_it(&mut buffer[..n]);
    BYTES.set(buffer);
    result
}
