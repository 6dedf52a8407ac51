//! The context of operations: weights, buffers, threads and observers of a run.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::exec::buffers::{Buffer, BufferPool};
use crate::exec::carried::Carried;
use crate::exec::count::MemoryCount;
use crate::exec::observer::Observer;
use crate::exec::past::{OpCache, Past};
use crate::exec::rope::RopeTables;
use crate::exec::timings::Clock;
use crate::exec::weights::WeightReader;
use crate::exec::workers::{WorkerBuffers, Workers};
use gguf_core::progress::Progress;

/// State that the operations of a run share.
pub(crate) struct Context<'a> {
    /// Width of the residual stream.
    pub(crate) n_embd: usize,
    pub(crate) weights: WeightReader<'a>,
    pub(crate) workers: &'a Workers,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) observer: Option<&'a dyn Observer>,
    pub(crate) ropes: RopeTables,
    pub(crate) clock: &'a Clock,
    pub(crate) layer: AtomicUsize,
    /// Final states of the encoder, for all chunks.
    pub(crate) memory: Buffer,
    pub(crate) buffers: BufferPool,
    pub(crate) carried: Carried,
    /// Keys, values and states of earlier tokens, for a run that continues step by step.
    pub(crate) past: Option<&'a Past>,
    /// Records of a run that only counts its memory.
    pub(crate) count: Option<&'a MemoryCount>,
}

impl Context<'_> {
    /// Takes a buffer of `len` values, not cleared.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        self.buffers.take(len)
    }

    pub(crate) fn give<const N: usize>(&self, buffers: [Buffer; N]) {
        self.buffers.give(buffers);
    }

    /// Gives a buffer back, if there is one.
    pub(crate) fn give_some(&self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.give([buffer]);
        }
    }

    /// Runs tasks on all threads, as [`Workers::each`], unless the run only counts its memory.
    pub(crate) fn each(
        &self,
        n_tasks: usize,
        task: impl Fn(&mut WorkerBuffers, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        if self.count.is_some() { Ok(()) } else { self.workers.each(n_tasks, task) }
    }

    /// Reports the values `x`, `[_, n_cols]`, of an operation of the current layer to the observer.
    pub(crate) fn slot(&self, name: &str, x: &[f32], n_cols: usize) {
        if let Some(observer) = self.observer {
            observer.slot(self.layer.load(Ordering::Relaxed), name, x, n_cols);
        }
    }

    /// Gives the cache of an operation back, if there is one.
    pub(crate) fn give_cache(&self, cache: Option<OpCache>) {
        if let (Some(past), Some(cache)) = (self.past, cache) {
            past.give(cache);
        }
    }
}
