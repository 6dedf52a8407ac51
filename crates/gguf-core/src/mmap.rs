//! Read-only mapping of input files.
#![allow(unsafe_code)]

use std::ops::Deref;
#[cfg(unix)]
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::Hint;
use crate::text::bytes;

pub mod faults;

/// A file mapped read-only for as long as the value lives.
///
/// Another process that truncates the file while it is mapped makes reads fault (`SIGBUS`): the operating system offers
/// no way to turn that into an error. A program may ask for a message and an orderly exit ([`faults`]). We never write
/// to a path that we map, and outputs appear by rename, which leaves a mapped predecessor intact.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    // Dropped before the mapping: another file may get its addresses right after.
    _watch: faults::Watch,
    // `None` for an empty file, which cannot be mapped.
    map: Option<Mmap>,
    is_locked: bool,
}

/// Failure to lock the pages of a mapped file in memory.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {} ({n_bytes} bytes) cannot be locked in memory{}: {source}",
    path.display(),
    bytes(*n_bytes),
    limit_bytes.map_or(String::new(), |limit| format!(", the limit of this process is {} in all", bytes(limit)))
)]
pub struct LockError {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes that should have been locked.
    pub n_bytes: u64,
    /// Bytes that the process may lock in total (`RLIMIT_MEMLOCK`), if limited.
    pub(crate) limit_bytes: Option<u64>,
    /// Error from the system.
    pub source: std::io::Error,
}

impl Hint for LockError {
    fn hints(&self) -> Vec<String> {
        let limited = self.limit_bytes.is_some_and(|limit| limit < self.n_bytes);
        let kib = self.n_bytes.div_ceil(1024);
        let raise = format!(
            "raise the limit in this shell with `ulimit -l unlimited` (at least {kib}, counted in KiB, for this file \
             alone), for a service with `LimitMEMLOCK=infinity`, for a container with `--ulimit memlock=-1`"
        );
        let free = "the memory must be there: free some, or do not lock the file".to_owned();
        if limited { vec![raise, free] } else { vec![free, raise] }
    }
}

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// I/O errors, named with the path; a path that is not a regular file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::open_head(path, u64::MAX)
    }

    /// Maps the first `most` bytes of a file, or all if it has fewer.
    pub fn open_head(path: &Path, most: u64) -> std::io::Result<Self> {
        let file = crate::input::open(path)?;
        let metadata = file.metadata()?;
        let map = if metadata.len() == 0 {
            None
        } else {
            let len = usize::try_from(metadata.len().min(most)).map_err(std::io::Error::other)?;
            // SAFETY: the mapping is private and read-only, and only `&[u8]` leaves this type. Another process
            // changing the file under us changes the bytes we see, which every parser treats as untrusted anyway.
            Some(unsafe { memmap2::MmapOptions::new().len(len).map(file.file()) }?)
        };
        let watch = faults::mapped(path, map.as_deref().unwrap_or(&[]));
        Ok(Self { path: path.to_owned(), _watch: watch, map, is_locked: false })
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole mapping into memory and keeps it there as long as the value lives: it is not swapped out, and
    /// [`MappedFile::release`] does nothing.
    ///
    /// # Errors
    /// If the system refuses (the limit of locked memory, or too little memory), and always where there is no such
    /// call.
    pub fn lock(&mut self) -> Result<(), LockError> {
        let Some(map) = &self.map else { return Ok(()) };
        #[cfg(unix)]
        let locked = map.lock();
        #[cfg(not(unix))]
        let locked = Err(std::io::Error::from(std::io::ErrorKind::Unsupported));
        locked.map_err(|source| LockError {
            path: self.path.clone(),
            n_bytes: map.len() as u64,
            limit_bytes: locked_limit_bytes(),
            source,
        })?;
        self.is_locked = true;
        Ok(())
    }

    /// Tells the system that the range will be read soon, front to back. Best effort.
    pub fn will_need(&self, offset: u64, n_bytes: u64) {
        #[cfg(unix)]
        if let Some((map, start, len)) = self.clip(offset, n_bytes) {
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, len);
        }
        #[cfg(not(unix))]
        let _ = (offset, n_bytes);
    }

    /// Drops the pages wholly inside the range from this process. They are read back from the file (or the page cache)
    /// on the next access. Best effort; a locked file keeps them.
    pub fn release(&self, offset: u64, n_bytes: u64) {
        if self.is_locked {
            return;
        }
        #[cfg(unix)]
        {
            let Some((map, start, len)) = self.clip(offset, n_bytes) else { return };
            if let Some(pages) = whole_pages(start..start + len, rustix::param::page_size()) {
                // SAFETY: the mapping is read-only and backed by a file, so dropped pages are read back unchanged;
                // no reference observes a difference.
                let _ = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, pages.start, pages.len())
                };
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, n_bytes);
    }

    #[cfg(unix)]
    fn clip(&self, offset: u64, n_bytes: u64) -> Option<(&Mmap, usize, usize)> {
        let map = self.map.as_ref()?;
        let start = usize::try_from(offset).ok().filter(|&start| start < map.len())?;
        let len = usize::try_from(n_bytes).unwrap_or(usize::MAX).min(map.len() - start);
        (len > 0).then_some((map, start, len))
    }
}

/// Returns the pages wholly inside a range of a mapping, if any. Pages have 4, 16 or 64 KiB; the system refuses to drop
/// a part of one.
#[cfg(unix)]
fn whole_pages(range: Range<usize>, page_bytes: usize) -> Option<Range<usize>> {
    let first = range.start.checked_next_multiple_of(page_bytes)?;
    let end = range.end / page_bytes * page_bytes;
    (first < end).then_some(first..end)
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

/// Returns the bytes of address space that this process may have, if limited (`ulimit -v`).
pub fn address_space_bytes() -> Option<u64> {
    #[cfg(unix)]
    {
        rustix::process::getrlimit(rustix::process::Resource::As).current
    }
    #[cfg(not(unix))]
    {
        None
    }
}

/// Returns the bytes that this process may lock in memory, if limited (`ulimit -l`).
fn locked_limit_bytes() -> Option<u64> {
    #[cfg(unix)]
    {
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    }
    #[cfg(not(unix))]
    {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_lock_states_what_is_needed_and_how_to_get_it() {
        let error = |limit_bytes| LockError {
            path: "model.gguf".into(),
            n_bytes: 300 << 20,
            limit_bytes,
            source: std::io::Error::from(std::io::ErrorKind::OutOfMemory),
        };
        let limited = error(Some(8 << 20));
        let text = limited.to_string();
        for part in ["model.gguf", "314572800 bytes", "300", "8", "limit of this process"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            limited.hints()[0].contains("`ulimit -l unlimited` (at least 307200"),
            "{:?}",
            limited.hints()
        );
        assert!(!error(None).to_string().contains("limit"));
        assert!(error(None).hints()[0].starts_with("the memory must be there"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_locked_file_stays_in_memory_when_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        // Below the default limit of systems.
        fs_err::write(&path, vec![7u8; 32 << 10]).unwrap();
        let resident_bytes = |map: &MappedFile| {
            let start = format!("{:x}-", map.as_ptr() as usize);
            let text = fs_err::read_to_string("/proc/self/smaps").unwrap();
            let lines = text.lines().skip_while(|line| !line.starts_with(&start));
            lines.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap().trim().to_owned()
        };
        let mut map = MappedFile::open(&path).unwrap();
        assert_eq!(resident_bytes(&map), "0 kB");
        map.lock().unwrap();
        assert_eq!(resident_bytes(&map), "32 kB");
        map.release(0, u64::MAX);
        assert_eq!(resident_bytes(&map), "32 kB");
        let other = MappedFile::open(&path).unwrap();
        assert_eq!(other[0], 7);
        other.release(0, u64::MAX);
        assert_eq!(resident_bytes(&other), "0 kB");
    }

    #[test]
    fn maps_releases_and_reads_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        fs_err::write(&path, &data).unwrap();
        let map = MappedFile::open(&path).unwrap();
        map.will_need(0, 5000);
        map.release(1, u64::MAX);
        map.release(u64::MAX, 1);
        assert_eq!(&map[..], &data[..]);
        assert_eq!(&MappedFile::open_head(&path, 7).unwrap()[..], &data[..7]);
        assert_eq!(MappedFile::open_head(&path, 1 << 40).unwrap().len(), data.len());
    }

    #[cfg(unix)]
    #[test]
    fn only_whole_pages_are_dropped_whatever_their_size() {
        assert_eq!(whole_pages(0..70_000, 4096), Some(0..69_632));
        assert_eq!(whole_pages(1..70_000, 4096), Some(4096..69_632));
        assert_eq!(whole_pages(1..70_000, 16 << 10), Some(16_384..65_536));
        assert_eq!(whole_pages(0..70_000, 64 << 10), Some(0..65_536));
        // A page of 4 KiB is not a page of 64 KiB.
        assert_eq!(whole_pages(4096..8192, 64 << 10), None);
        assert_eq!(whole_pages(usize::MAX - 1..usize::MAX, 4096), None);
        assert!(rustix::param::page_size().is_power_of_two());
    }

    #[test]
    fn an_empty_file_is_an_empty_slice_and_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        fs_err::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        assert!(MappedFile::open(dir.path()).is_err());
    }
}
