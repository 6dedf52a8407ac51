//! Buffers of integers that products reuse.

use std::sync::Mutex;

use crate::exec::matmul::integer::RoundedRows;
use gguf_core::sync::Unpoisoned;

/// Integers of panels and rounded activations that were given back, for reuse.
#[derive(Debug, Default)]
pub(crate) struct IntegerBuffers {
    codes: Mutex<Vec<Vec<i16>>>,
    rounded: Mutex<Vec<RoundedRows>>,
}

impl IntegerBuffers {
    /// Takes at least `len` integers, not cleared.
    pub(crate) fn take_codes(&self, len: usize) -> Vec<i16> {
        let codes = if len == 0 { None } else { self.codes.lock().unpoisoned().pop() };
        codes.filter(|codes| codes.len() >= len).unwrap_or_else(|| vec![0; len])
    }

    /// Gives integers back.
    pub(crate) fn give_codes(&self, codes: Vec<i16>) {
        if !codes.is_empty() {
            self.codes.lock().unpoisoned().push(codes);
        }
    }

    /// Takes rounded activations, of any content.
    pub(crate) fn take_rounded(&self) -> RoundedRows {
        self.rounded.lock().unpoisoned().pop().unwrap_or_default()
    }

    /// Gives rounded activations back.
    pub(crate) fn give_rounded(&self, rounded: Option<RoundedRows>) {
        self.rounded.lock().unpoisoned().extend(rounded);
    }
}
