//! Numbers in an unnamed file: memory that the system may write out when it is short of memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use memmap2::MmapMut;

/// Floats in a temporary file that is mapped for reading and writing. The file has no name, so nothing is left behind,
/// however the program ends.
#[derive(Debug)]
pub struct SpilledFloats {
    /// `None` if there are none: an empty file cannot be mapped.
    map: Option<MmapMut>,
    len: usize,
}

impl SpilledFloats {
    /// Creates `len` zeros in a file in `dir`.
    ///
    /// # Errors
    /// I/O errors, named with the folder; a full disk.
    pub fn new(dir: &Path, len: usize) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
        Self::in_dir(dir, len).map_err(named)
    }

    fn in_dir(dir: &Path, len: usize) -> io::Result<Self> {
        let n_bytes = len.checked_mul(size_of::<f32>()).ok_or(io::ErrorKind::FileTooLarge)?;
        if n_bytes == 0 {
            return Ok(Self { map: None, len });
        }
        let file = tempfile::tempfile_in(dir)?;
        fill(&file, n_bytes as u64)?;
        // SAFETY: the file has no name and no other handle, so nobody else changes or truncates it; its blocks are
        // reserved, so a full disk cannot cause a fault.
        let map = unsafe { MmapMut::map_mut(&file) }?;
        Ok(Self { map: Some(map), len })
    }
}

/// Fills a file with `n_bytes` zeros and reserves their blocks: a write to mapped memory must not find the disk full.
fn fill(file: &File, n_bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, n_bytes)) {
            // File systems without this call.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            done => return Ok(done?),
        }
    }
    io::copy(&mut io::Read::take(io::repeat(0), n_bytes), &mut &*file).map(drop)
}

impl Deref for SpilledFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: the mapping begins at a page boundary and has `len` floats; all bit patterns are floats.
        unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for SpilledFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        let Some(map) = &mut self.map else { return &mut [] };
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_begin_as_zeros_and_hold_what_is_written_and_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut floats = SpilledFloats::new(dir.path(), 5000).unwrap();
        assert!(floats.len() == 5000 && floats.iter().all(|x| *x == 0.0));
        floats[4999] = 7.0;
        floats[..2].copy_from_slice(&[1.0, f32::NAN]);
        assert_eq!((floats[0], floats[1].to_bits(), floats[4999]), (1.0, f32::NAN.to_bits(), 7.0));
        let n_files = || fs_err::read_dir(dir.path()).unwrap().count();
        // Windows removes the file when it is closed.
        assert!(n_files() == 0 || cfg!(windows));
        drop(floats);
        assert_eq!(n_files(), 0);
        assert!(SpilledFloats::new(dir.path(), 0).unwrap().is_empty());
    }

    #[test]
    fn a_folder_that_is_none_and_more_than_any_disk_holds_are_errors_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().join("absent");
        let error = SpilledFloats::new(&absent, 1).unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
        for len in [1 << 58, usize::MAX] {
            let error = SpilledFloats::new(dir.path(), len).unwrap_err();
            assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        }
    }
}
