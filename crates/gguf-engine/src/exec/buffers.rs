//! Large buffers that operations reuse: their pages are already mapped, and they are not cleared.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use rayon::prelude::*;

use crate::exec::workers::Tasks;
use crate::{EngineError, Result};
use gguf_core::spill::SpilledFloats;
use gguf_core::sync::Unpoisoned;

/// Number of values from which on a buffer is worth a file.
const SPILLED: usize = 1 << 12;

/// Storage of a buffer's values.
#[derive(Debug)]
enum BufferStorage {
    Memory(Vec<f32>),
    File(SpilledFloats),
}

impl BufferStorage {
    fn len(&self) -> usize {
        match self {
            Self::Memory(values) => values.len(),
            Self::File(values) => values.len(),
        }
    }

    fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// Buffer of `len` values, not cleared.
#[derive(Debug)]
pub struct Buffer {
    /// At least `len` values; more if the buffer was made for more.
    values: BufferStorage,
    len: usize,
}

impl Buffer {
    /// Appends values, in memory.
    pub(crate) fn extend(&mut self, later: &[f32]) {
        let mut values = std::mem::take(self).into_vec();
        values.extend_from_slice(later);
        *self = values.into();
    }

    /// Returns the values, in memory.
    pub(crate) fn into_vec(self) -> Vec<f32> {
        match self.values {
            BufferStorage::Memory(mut values) => {
                values.truncate(self.len);
                values
            }
            BufferStorage::File(values) => values[..self.len].to_vec(),
        }
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(values: Vec<f32>) -> Self {
        Self { len: values.len(), values: BufferStorage::Memory(values) }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.values {
            BufferStorage::Memory(values) => &values[..self.len],
            BufferStorage::File(values) => &values[..self.len],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.values {
            BufferStorage::Memory(values) => &mut values[..self.len],
            BufferStorage::File(values) => &mut values[..self.len],
        }
    }
}

/// Buffers that were given back, for reuse.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Mutex<Vec<BufferStorage>>,
    /// Folder for large buffers, if they are files.
    dir: Option<PathBuf>,
    /// Error of the first buffer that could not be made a file.
    failed: Mutex<Option<io::Error>>,
    /// Floats of all buffers, free or in use.
    n_floats: AtomicUsize,
}

impl BufferPool {
    /// Returns an empty set, whose large buffers are files in `dir`, if given.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        Self { dir: dir.map(Path::to_owned), ..Self::default() }
    }

    /// Takes the smallest free buffer that holds `len` values, or makes one.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let dir = self.dir.as_deref().filter(|_| len >= SPILLED);
        let mut free = self.free();
        let of_kind = |&at: &usize| free[at].is_file() == dir.is_some();
        let fitting = (0..free.len()).filter(of_kind).filter(|&at| free[at].len() >= len);
        let values = match fitting.min_by_key(|&at| free[at].len()) {
            Some(at) => free.swap_remove(at),
            // None is large enough: the largest is replaced, so that the number of buffers stays the number in use. The
            // system maps zero pages as they are first touched, by the threads that write there.
            None => {
                let largest = (0..free.len()).filter(of_kind).max_by_key(|&at| free[at].len());
                if let Some(replaced) = largest.map(|at| free.swap_remove(at)) {
                    self.n_floats.fetch_sub(replaced.len(), Ordering::Relaxed);
                }
                drop(free);
                self.make(len, dir)
            }
        };
        Buffer { values, len }
    }

    fn make(&self, len: usize, dir: Option<&Path>) -> BufferStorage {
        self.n_floats.fetch_add(len, Ordering::Relaxed);
        match dir.map(|dir| SpilledFloats::new(dir, len)) {
            Some(Ok(values)) => return BufferStorage::File(values),
            Some(Err(error)) => {
                self.failed.lock().unpoisoned().get_or_insert(error);
            }
            None => {}
        }
        BufferStorage::Memory(vec![0.0; len])
    }

    /// Returns a copy of values, made by the threads of the current rayon pool.
    pub fn copy(&self, x: &[f32]) -> Buffer {
        let mut buffer = self.take(x.len());
        let parts = buffer.par_chunks_mut(1 << 16).zip(x.par_chunks(1 << 16));
        parts.run(&|(buffer, x)| buffer.copy_from_slice(x));
        buffer
    }

    /// Gives buffers back.
    pub fn give<const N: usize>(&self, buffers: [Buffer; N]) {
        self.free().extend(buffers.map(|buffer| buffer.values));
    }

    /// Returns the number of floats of all buffers, free or in use.
    pub(crate) fn n_floats(&self) -> usize {
        self.n_floats.load(Ordering::Relaxed)
    }

    /// Returns the error of a buffer that could not be made a file, once.
    ///
    /// # Errors
    /// If a buffer that was to be a file is in memory: a run that goes on would use memory that was not granted.
    pub fn check(&self) -> Result<()> {
        let failed = self.failed.lock().unpoisoned().take();
        failed.map_or(Ok(()), |error| Err(EngineError::Spill(error)))
    }

    fn free(&self) -> MutexGuard<'_, Vec<BufferStorage>> {
        self.free.lock().unpoisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_comes_back_and_the_largest_gives_way() {
        let buffers = BufferPool::default();
        let mut taken = [buffers.take(10), buffers.take(30)];
        taken[1].fill(7.0);
        buffers.give(taken);
        let buffer = buffers.take(11);
        assert_eq!((buffer.len(), buffer[10]), (11, 7.0));
        buffers.give([buffer]);
        assert_eq!(*buffers.take(31), [0.0; 31]);
        assert_eq!(buffers.free().iter().map(BufferStorage::len).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn large_ones_are_files_where_that_is_asked_for_and_come_back_too() {
        let dir = tempfile::tempdir().unwrap();
        let buffers = BufferPool::in_dir(Some(dir.path()));
        let x: Vec<f32> = (0..SPILLED + 3).map(|i| i as f32).collect();
        let large = buffers.copy(&x);
        assert!(large.values.is_file() && *large == *x && large.clone().into_vec() == x);
        let mut small = buffers.copy(&x[..5]);
        assert!(!small.values.is_file());
        small.extend(&[7.0]);
        assert_eq!(*small, [0.0, 1.0, 2.0, 3.0, 4.0, 7.0]);
        buffers.give([large, small]);
        let (again, other) = (buffers.take(SPILLED), buffers.take(SPILLED));
        assert!(again.values.is_file() && again.values.len() == x.len() && again.len() == SPILLED);
        assert!(other.values.is_file() && other.values.len() == SPILLED);
        assert!(buffers.take(7).len() == 7 && buffers.check().is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_an_error_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let buffers = BufferPool::in_dir(Some(&dir.path().join("absent")));
        assert_eq!(buffers.take(SPILLED).len(), SPILLED);
        let error = buffers.check().unwrap_err();
        assert!(matches!(&error, EngineError::Spill(_)) && error.to_string().contains("absent"), "{error}");
    }
}
