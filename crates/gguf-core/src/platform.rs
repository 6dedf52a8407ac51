//! Functions that every system has in its own form: positioned file access, file identity, free space. Callers of this
//! module need not know the system. Features of only some systems (unnamed files, advice on pages, limits) stay with
//! their only user, with a note on what happens without them.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Largest piece of a file that [`write_all_at`] writes in one call; pieces end at multiples of it in the file. The
/// page cache of Linux allocates as much at once as a call writes. A virtual machine finds pieces of up to 32 KiB in
/// memory that was recently in use, and larger ones in memory that its host may have taken back and must return page by
/// page.
const PIECE_BYTES: u64 = if cfg!(unix) { 32 << 10 } else { 1 << 20 };

/// Writes bytes at an offset; callable from several threads at once. The file position afterwards is unspecified.
///
/// # Errors
/// I/O errors. How much was written then is unknown.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let (mut rest, mut at) = (bytes, offset);
    while !rest.is_empty() {
        let n = usize::try_from(PIECE_BYTES - at % PIECE_BYTES).map_or(rest.len(), |n| n.min(rest.len()));
        let (piece, behind) = rest.split_at(n);
        system::write_piece_at(file, piece, at)?;
        (rest, at) = (behind, at.saturating_add(n as u64));
    }
    Ok(())
}

/// Fills `out` from an offset on; callable from several threads at once. The file position afterwards is unspecified.
///
/// # Errors
/// I/O errors; the file ends too early ([`io::ErrorKind::UnexpectedEof`]).
pub fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    system::read_exact_at(file, out, offset)
}

/// Identity of an existing file: its volume, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    pub(crate) volume: u64,
    /// Number on the file system (the inode).
    pub index: u64,
}

impl FileId {
    /// Returns the identity of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        system::id_of(file)
    }

    /// Returns the identity of the file that a path leads to, through links.
    ///
    /// # Errors
    /// The file does not exist, or the system does not report it.
    pub fn at(path: &Path) -> io::Result<Self> {
        system::id_at(path, true)
    }

    /// Returns the identity of the file with that name, without following links.
    pub(crate) fn of_name(path: &Path) -> io::Result<Self> {
        system::id_at(path, false)
    }
}

/// Returns length and modification time as text: tells a file from its earlier content, or from another in its place.
pub fn stamp(found: &Metadata) -> String {
    let time = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} bytes, changed at {}", found.len(), time.unwrap_or_default().as_nanos())
}

/// Returns the bytes on the disk that a file takes, fewer than its length if it has holes; 0 if the system does not report
/// them.
pub fn allocated_bytes(file: &File) -> u64 {
    system::allocated_bytes(file).unwrap_or(0)
}

/// Returns the free bytes on the file system that holds `path` (or will hold it); `None` if the system does not report
/// them.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let mut dir = path;
    loop {
        let probe = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        if let Ok(free) = system::free_bytes_at(probe) {
            return Some(free);
        }
        dir = dir.parent()?;
    }
}

/// Checks that files can be made in a directory.
///
/// # Errors
/// A directory that this user may not write to, or that is on a read-only file system.
pub fn check_writable(dir: &Path) -> io::Result<()> {
    system::check_writable(dir)
}

/// Returns the bytes of memory that this process holds, without mapped files. If the system does not report them,
/// returns the usual size of such a program at its start.
pub fn held_bytes() -> u64 {
    const USUAL: u64 = 24 << 20;
    system::held_bytes().unwrap_or(USUAL)
}

/// Makes a file appear at a second path, which must not exist yet. Uses a symbolic link where users may create those;
/// on Windows a hard link, for which both paths must be on one volume.
///
/// # Errors
/// I/O errors; two volumes where one is needed.
pub fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
    system::show_file_at(&file.canonicalize()?, path)
}

/// Sets the length of a file and reserves its blocks on the disk, so that a full disk is detected now and not in the
/// middle of a write. File systems that cannot reserve only set the length.
///
/// # Errors
/// A full disk; I/O errors.
pub fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
    system::reserve(file, n_bytes)
}

/// Repeats a call that a signal interrupted.
pub(crate) fn again<T>(mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match what() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(unix)]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use super::{FileId, again};

    pub(super) fn write_piece_at(file: &File, piece: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(piece, offset)
    }

    pub(super) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(out, offset)
    }

    pub(super) fn id_of(file: &File) -> io::Result<FileId> {
        file.metadata().map(|found| id(&found))
    }

    pub(super) fn id_at(path: &Path, follow: bool) -> io::Result<FileId> {
        let found = if follow { path.metadata() } else { path.symlink_metadata() };
        found.map(|found| id(&found))
    }

    fn id(found: &Metadata) -> FileId {
        FileId { volume: found.dev(), index: found.ino() }
    }

    pub(super) fn allocated_bytes(file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.blocks().saturating_mul(512))
    }

    pub(super) fn free_bytes_at(path: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(super) fn check_writable(dir: &Path) -> io::Result<()> {
        use rustix::fs::Access;
        Ok(rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
    }

    pub(super) fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(file, path)
    }

    /// Reads Linux's count of pages: all resident pages minus those of files.
    pub(super) fn held_bytes() -> Option<u64> {
        let text = fs_err::read_to_string("/proc/self/statm").ok()?;
        let mut pages = text.split(' ').skip(1).map(|pages| pages.parse::<u64>().ok());
        let (there, of_files) = (pages.next()??, pages.next()??);
        Some(there.saturating_sub(of_files).saturating_mul(rustix::param::page_size() as u64))
    }

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    pub(super) fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::{Errno, retry_on_intr};
        if n_bytes > 0 {
            match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, n_bytes)) {
                Ok(()) => return Ok(()),
                Err(Errno::NOSPC) => return Err(Errno::NOSPC.into()),
                Err(_) => {}
            }
        }
        set_len(file, n_bytes)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    pub(super) fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
        set_len(file, n_bytes)
    }

    fn set_len(file: &File, n_bytes: u64) -> io::Result<()> {
        again(|| file.set_len(n_bytes))
    }
}

#[cfg(windows)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;

    use super::FileId;

    const ANY_KIND: u32 = 0x0200_0000;
    /// Opens a link itself and not its target (`FILE_FLAG_OPEN_REPARSE_POINT`).
    const NOT_THROUGH_LINKS: u32 = 0x0020_0000;

    pub(super) fn write_piece_at(file: &File, mut piece: &[u8], mut offset: u64) -> io::Result<()> {
        while !piece.is_empty() {
            match file.seek_write(piece, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    piece = piece.get(n..).unwrap_or_default();
                    offset = offset.saturating_add(n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !out.is_empty() {
            match file.seek_read(out, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    out = out.get_mut(n..).unwrap_or_default();
                    offset = offset.saturating_add(n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn id_of(file: &File) -> io::Result<FileId> {
        let found = winapi_util::file::information(file)?;
        Ok(FileId { volume: found.volume_serial_number(), index: found.file_index() })
    }

    pub(super) fn id_at(path: &Path, follow: bool) -> io::Result<FileId> {
        let flags = if follow { ANY_KIND } else { ANY_KIND | NOT_THROUGH_LINKS };
        // Without any access: only metadata is queried, even if another program has the file open.
        let file = File::options().access_mode(0).custom_flags(flags).open(path)?;
        id_of(&file)
    }

    pub(super) fn allocated_bytes(_: &File) -> io::Result<u64> {
        Ok(0)
    }

    pub(super) fn free_bytes_at(path: &Path) -> io::Result<u64> {
        fs4::available_space(path)
    }

    // Only an attempt shows it there.
    pub(super) fn check_writable(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
        fs_err::hard_link(file, path)
    }

    pub(super) fn held_bytes() -> Option<u64> {
        None
    }

    /// Sets the length, which also reserves the blocks.
    pub(super) fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
        file.set_len(n_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_to_their_places_and_back() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        write_all_at(&file, &bytes[1_999_999..], 1_999_999).unwrap();
        write_all_at(&file, &bytes[..1_999_999], 0).unwrap();
        write_all_at(&file, &[], u64::MAX).unwrap();
        for (from, to) in [(0, 3_000_000), (32_767, 32_769), (5, 5)] {
            let mut found = vec![0; to - from];
            read_exact_at(&file, &mut found, from as u64).unwrap();
            assert!(found == bytes[from..to]);
        }
        let error = read_exact_at(&file, &mut [0; 2], 2_999_999).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_file_is_itself_by_every_name_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, other) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs_err::write(&a, "x").unwrap();
        fs_err::write(&other, "x").unwrap();
        fs_err::hard_link(&a, &b).unwrap();
        let open = File::options().read(true).open(&a).unwrap();
        let id = FileId::of(&open).unwrap();
        assert_eq!(FileId::at(&a).unwrap(), id);
        assert_eq!(FileId::of_name(&b).unwrap(), id);
        assert_ne!(FileId::at(&other).unwrap(), id);
        assert!(FileId::at(dir.path()).is_ok());
        assert!(FileId::at(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn a_file_appears_at_another_path() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, shown) = (dir.path().join("kept"), dir.path().join("shown"));
        fs_err::write(&kept, "1").unwrap();
        show_file_at(&kept, &shown).unwrap();
        assert_eq!(fs_err::read_to_string(&shown).unwrap(), "1");
        assert!(show_file_at(&kept, &shown).is_err());
        assert!(show_file_at(&dir.path().join("missing"), &dir.path().join("other")).is_err());
    }

    #[test]
    fn space_is_known_and_reserved() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(&dir.path().join("not/there/yet")).is_some_and(|n| n > 0));
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        // Holes take no space.
        file.set_len(1 << 30).unwrap();
        assert!(allocated_bytes(&file) < 1 << 20);
        file.set_len(0).unwrap();
        for n_bytes in [0, 5000, 70_000] {
            reserve(&file, n_bytes).unwrap();
            assert_eq!(file.metadata().unwrap().len(), n_bytes);
        }
    }
}
