//! Files that are read by ranges: those of a checkpoint on a server are fetched when needed. Such a checkpoint has a
//! local directory whose small files are real. For the large ones, this module knows who fetches them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::{fmt, io};

use crate::sync::Unpoisoned;

/// A file whose bytes must be fetched.
pub trait RangedFile: Send + Sync + fmt::Debug {
    /// Length of the file in bytes.
    fn n_bytes(&self) -> u64;

    /// Reads the bytes from `offset` on, waiting for them if necessary.
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

struct RegisteredDirectory {
    root: PathBuf,
    shown: String,
    /// `None` once it is closed; its errors may be reported later.
    directory: Option<Arc<dyn RangedDirectory>>,
}

/// Directories that are or were open; a program has one or two.
static OPEN: RwLock<Vec<RegisteredDirectory>> = RwLock::new(Vec::new());

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
pub fn register(root: &Path, shown: &str, directory: Arc<dyn RangedDirectory>) -> Registration {
    let registered =
        RegisteredDirectory { root: root.to_owned(), shown: shown.to_owned(), directory: Some(directory) };
    OPEN.write().unpoisoned().push(registered);
    Registration { root: root.to_owned() }
}

/// Returns the file at a path, if it must be fetched.
pub fn find(path: &Path) -> Option<Arc<dyn RangedFile>> {
    let open = OPEN.read().unpoisoned();
    open.iter().find_map(|open| open.directory.as_ref()?.file(path.strip_prefix(&open.root).ok()?))
}

/// Returns true if links in the directory `root` may lead to `found`: it consists of links to the folder that contains
/// `found`.
pub(crate) fn may_lead_to(root: &Path, found: &Path) -> bool {
    let open = OPEN.read().unpoisoned();
    let folder = |open: &RegisteredDirectory| {
        open.directory.as_ref()?.folder_of_links().map(|folder| found.starts_with(folder))
    };
    open.iter().filter(|open| root.starts_with(&open.root)).any(|open| folder(open) == Some(true))
}

/// Replaces local directories in a message by the names that users know.
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
