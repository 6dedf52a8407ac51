//! Files that are read by ranges. Most are mapped; those of a checkpoint on a server are fetched when needed. Such a
//! checkpoint has a local directory whose small files are real. For the large ones, this module knows who fetches them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::{fmt, io};

use crate::mmap::MappedFile;
use crate::sync::Unpoisoned;

/// A file whose bytes must be fetched.
pub trait RangedFile: Send + Sync + fmt::Debug {
    /// Length of the file in bytes.
    fn n_bytes(&self) -> u64;

    /// Reads the bytes from `offset` on, waiting for them if necessary.
    ///
    /// # Errors
    /// If the bytes cannot be fetched.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Announces a range that will be read, after those that were announced before it.
    fn expect(&self, offset: u64, n_bytes: u64);

    /// Releases a range that will not be read again soon.
    fn release(&self, offset: u64, n_bytes: u64);
}

/// The files of a directory that must be fetched.
pub trait RangedDirectory: Send + Sync + fmt::Debug {
    /// Returns the file of a name relative to the directory; `None` for a file that is really in the directory.
    fn file(&self, name: &Path) -> Option<Arc<dyn RangedFile>>;

    /// Returns the folder to which links in the directory lead, if it consists of links.
    fn folder_of_links(&self) -> Option<&Path> {
        None
    }
}

struct Registered {
    root: PathBuf,
    shown: String,
    /// `None` once it is closed; its errors may be reported later.
    directory: Option<Arc<dyn RangedDirectory>>,
}

/// Directories that are or were open; a program has one or two.
static OPEN: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// Keeps a directory registered; open files stay open when it is dropped.
#[derive(Debug)]
pub struct Registration {
    root: PathBuf,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut open = OPEN.write().unpoisoned();
        open.iter_mut().filter(|open| open.root == self.root).for_each(|open| open.directory = None);
    }
}

/// Registers a directory: files below `root` that `directory` has are read through it. Messages name it `shown`. Each
/// root belongs to one directory at a time.
#[must_use]
pub fn register(root: &Path, shown: &str, directory: Arc<dyn RangedDirectory>) -> Registration {
    let registered =
        Registered { root: root.to_owned(), shown: shown.to_owned(), directory: Some(directory) };
    OPEN.write().unpoisoned().push(registered);
    Registration { root: root.to_owned() }
}

/// Returns the file at a path, if it must be fetched.
#[must_use]
pub fn find(path: &Path) -> Option<Arc<dyn RangedFile>> {
    let open = OPEN.read().unpoisoned();
    open.iter().find_map(|open| open.directory.as_ref()?.file(path.strip_prefix(&open.root).ok()?))
}

/// Returns true if links in the directory `root` may lead to `found`: it consists of links to the folder that contains
/// `found`.
#[must_use]
pub fn may_lead_to(root: &Path, found: &Path) -> bool {
    let open = OPEN.read().unpoisoned();
    let folder = |open: &Registered| {
        open.directory.as_ref()?.folder_of_links().map(|folder| found.starts_with(folder))
    };
    open.iter().filter(|open| root.starts_with(&open.root)).any(|open| folder(open) == Some(true))
}

/// Replaces local directories in a message by the names that users know.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    let open = OPEN.read().unpoisoned();
    open.iter().fold(Cow::Borrowed(text), |text, open| match open.root.to_str() {
        Some(root) if text.contains(root) => Cow::Owned(text.replace(root, &open.shown)),
        _ => text,
    })
}

/// Bytes that are read by ranges.
pub trait Bytes {
    /// Number of bytes.
    fn n_bytes(&self) -> u64;

    /// Returns a range; `None` if it reaches beyond the end.
    ///
    /// # Errors
    /// The bytes cannot be fetched.
    fn get(&self, offset: u64, n_bytes: u64) -> io::Result<Option<Cow<'_, [u8]>>>;
}

impl Bytes for [u8] {
    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn get(&self, offset: u64, n_bytes: u64) -> io::Result<Option<Cow<'_, [u8]>>> {
        let range = usize::try_from(offset).ok().zip(usize::try_from(n_bytes).ok());
        let slice = range.and_then(|(start, len)| <[u8]>::get(self, start..start.checked_add(len)?));
        Ok(slice.map(Cow::Borrowed))
    }
}

impl Bytes for Vec<u8> {
    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn get(&self, offset: u64, n_bytes: u64) -> io::Result<Option<Cow<'_, [u8]>>> {
        Bytes::get(self.as_slice(), offset, n_bytes)
    }
}

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
    ///
    /// # Errors
    /// As [`MappedFile::open`].
    pub fn open(path: &Path) -> io::Result<Self> {
        match find(path) {
            Some(file) => Ok(Self::Fetched(file)),
            None => Ok(Self::Mapped(MappedFile::open(path)?)),
        }
    }

    /// Returns all bytes of the file if it is mapped.
    #[must_use]
    pub fn mapped(&self) -> Option<&[u8]> {
        match self {
            Self::Mapped(map) => Some(map),
            Self::Fetched(_) => None,
        }
    }

    /// Reads the bytes from `offset` on.
    ///
    /// # Errors
    /// If the bytes cannot be fetched.
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
