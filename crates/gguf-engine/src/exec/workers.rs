//! Threads of a run and the buffers that they keep between tasks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::iter::ParallelIterator;

use crate::{EngineError, Result};
use gguf_core::sync::Unpoisoned;

/// Number of rows that one task of a row-wise operation works on.
pub(crate) const ROWS_PER_TASK: usize = 64;

/// Buffers of one thread, with the contents that the last task left.
#[derive(Debug, Default)]
pub(crate) struct WorkerBuffers {
    /// Encoded rows.
    pub(crate) bytes: Vec<u8>,
    /// Decoded rows, or keys.
    pub(crate) rows: Vec<f32>,
    /// Tile of results.
    pub(crate) tile: Vec<f32>,
    /// Sums, one per row of a tile.
    pub(crate) sums: Vec<f32>,
}

/// Makes `buffer` at least `len` long and returns its first `len` elements.
pub(crate) fn lend<T: Default + Clone>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// Pool of threads.
#[derive(Debug)]
pub(crate) struct Workers {
    pool: rayon::ThreadPool,
    scratch: Vec<Mutex<WorkerBuffers>>,
}

impl Workers {
    /// Starts this many threads, or fewer if the system does not allow as many.
    pub(crate) fn new(n_threads: usize) -> Result<Self> {
        let mut threads = n_threads.max(1);
        let pool = loop {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            match builder.thread_name(|at| format!("engine-{at}")).build() {
                Ok(pool) => break pool,
                // Limits of processes or memory may allow fewer; the results are the same.
                Err(_) if threads > 1 => threads /= 2,
                Err(source) => return Err(EngineError::Threads { threads, source }),
            }
        };
        Ok(Self { pool, scratch: (0..threads).map(|_| Mutex::default()).collect() })
    }

    pub(crate) fn n_threads(&self) -> usize {
        self.scratch.len()
    }

    /// Runs tasks `0 .. n_tasks`, started in ascending order, each on one thread with that thread's buffers. After an
    /// error no further task starts; the error of the lowest failed task is returned.
    pub(crate) fn each(
        &self,
        n_tasks: usize,
        task: impl Fn(&mut WorkerBuffers, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        self.each_of(n_tasks, &task)
    }

    /// [`Workers::each`], compiled once for all tasks.
    fn each_of(
        &self,
        n_tasks: usize,
        task: &(dyn Fn(&mut WorkerBuffers, usize) -> Result<()> + Sync),
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<(usize, EngineError)>> = Mutex::new(None);
        self.pool.broadcast(|context| {
            let scratch = &self.scratch[context.index()];
            let mut scratch = scratch.lock().unpoisoned();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= n_tasks {
                    break;
                }
                if let Err(error) = task(&mut scratch, at) {
                    next.store(n_tasks, Ordering::Relaxed);
                    let mut failed = failed.lock().unpoisoned();
                    if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                        *failed = Some((at, error));
                    }
                }
            }
        });
        match failed.into_inner().unpoisoned() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Runs `work` with rayon's parallel iterators on the pool's threads.
    pub(crate) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let (mut work, mut result) = (Some(work), None);
        let mut once = || result = work.take().map(|work| work());
        // rayon is compiled once for this type, not for each caller.
        let once: &mut (dyn FnMut() + Send) = &mut once;
        self.pool.install(once);
        result.expect("the work has run")
    }
}

/// Ends of rayon's iterators for which rayon is compiled once for each kind of iterator, not for each closure: a third of
/// this crate's machine code would be copies of it.
pub(crate) trait Tasks: ParallelIterator {
    /// Does `for_each`.
    fn run(self, task: &(dyn Fn(Self::Item) + Sync)) {
        self.for_each(task);
    }

    /// Does `for_each` with a buffer for each piece of the work.
    fn run_with_scratch(self, task: &(dyn Fn(&mut Vec<f32>, Self::Item) + Sync)) {
        self.for_each_init(Vec::new, task);
    }
}

impl<I: ParallelIterator> Tasks for I {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_the_first_error_wins() {
        let workers = Workers::new(3).unwrap();
        let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        let count = |_: &mut WorkerBuffers, at: usize| {
            counts[at].fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        workers.each(100, count).unwrap();
        assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        let fail = |_: &mut WorkerBuffers, at: usize| {
            if at >= 7 { Err(EngineError::Token { prompt: at, token: 0, vocabulary: 0 }) } else { Ok(()) }
        };
        assert!(matches!(workers.each(100, fail), Err(EngineError::Token { prompt: 7..=9, .. })));
    }
}
