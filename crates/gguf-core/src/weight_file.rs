//! Files with weights. Most are mapped; those of a checkpoint on a server are fetched range by range.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::mmap::MappedFile;
use crate::ranged::{Bytes, RangedFile, find};

/// A file with weights, local or remote.
#[derive(Debug)]
pub enum WeightFile {
    /// A local file.
    Mapped(MappedFile),
    /// A remote file that is fetched.
    Fetched(Arc<dyn RangedFile>),
}

impl WeightFile {
    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        match find(path) {
            Some(file) => Ok(Self::Fetched(file)),
            None => Ok(Self::Mapped(MappedFile::open(path)?)),
        }
    }

    /// Returns all bytes of the file if it is mapped.
    pub fn mapped(&self) -> Option<&[u8]> {
        match self {
            Self::Mapped(map) => Some(map),
            Self::Fetched(_) => None,
        }
    }

    /// Reads the bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is outside the file: callers plan from its length.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Mapped(map) => {
                out.copy_from_slice(&map[offset as usize..][..out.len()]);
                Ok(())
            }
            Self::Fetched(file) => file.read_at(offset, out),
        }
    }

    /// Tells the system that a range will be read soon. Best effort; remote files are announced earlier as a whole
    /// ([`WeightFile::expect`]).
    pub fn will_need(&self, offset: u64, n_bytes: u64) {
        if let Self::Mapped(map) = self {
            map.will_need(offset, n_bytes);
        }
    }

    /// Announces a range that will be read, after those announced before it. Local files need no announcement.
    pub fn expect(&self, offset: u64, n_bytes: u64) {
        if let Self::Fetched(file) = self {
            file.expect(offset, n_bytes);
        }
    }

    /// Releases a range that will not be read again soon.
    pub fn release(&self, offset: u64, n_bytes: u64) {
        match self {
            Self::Mapped(map) => map.release(offset, n_bytes),
            Self::Fetched(file) => file.release(offset, n_bytes),
        }
    }
}

impl Bytes for WeightFile {
    fn n_bytes(&self) -> u64 {
        match self {
            Self::Mapped(map) => map.len() as u64,
            Self::Fetched(file) => file.n_bytes(),
        }
    }

    fn get(&self, offset: u64, n_bytes: u64) -> io::Result<Option<Cow<'_, [u8]>>> {
        match self {
            Self::Mapped(map) => Bytes::get(&**map, offset, n_bytes),
            Self::Fetched(file) => {
                let is_inside = offset.checked_add(n_bytes).is_some_and(|end| end <= file.n_bytes());
                let Some(len) = usize::try_from(n_bytes).ok().filter(|_| is_inside) else { return Ok(None) };
                let mut bytes = vec![0; len];
                file.read_at(offset, &mut bytes)?;
                Ok(Some(Cow::Owned(bytes)))
            }
        }
    }
}
