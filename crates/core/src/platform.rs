//! What every system can do and each does in its own way: positions in files, what tells one file from another, free room. Whoever needs
//! one of these asks here and need not know where it runs. What only some systems have (files without a name, advice on pages,
//! limits) stays with its one user, with a word on what happens without.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The largest piece of a file that [`write_all_at`] hands over in one call, between multiples of it in the file. The page cache of
/// Linux takes as much at a piece as a call brings; a virtual machine finds pieces of up to 32 KiB among memory that was just in
/// use, larger ones among memory that its host may have taken back and has to give again, a page at a time.
const PIECE_BYTES: u64 = if cfg!(unix) { 32 << 10 } else { 1 << 20 };

/// Writes bytes at an offset; callable from several threads at once. The position of the file afterwards is anywhere.
///
/// # Errors
/// I/O errors. What was written then is not known.
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

/// Reads as many bytes as there is room for, from an offset on; callable from several threads at once. The position of the file
/// afterwards is anywhere.
///
/// # Errors
/// I/O errors; the file ends before ([`io::ErrorKind::UnexpectedEof`]).
pub fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    system::read_exact_at(file, out, offset)
}

/// What tells a file that is there from every other: its volume, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Number of the file system.
    pub volume: u64,
    /// Number on the file system (of the inode).
    pub index: u64,
}

impl FileId {
    /// Of an open file.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn of(file: &File) -> io::Result<Self> {
        system::id_of(file)
    }

    /// Of what a path leads to, through links.
    ///
    /// # Errors
    /// Nothing is there, or the system does not tell.
    pub fn at(path: &Path) -> io::Result<Self> {
        system::id_at(path, true)
    }

    /// Of what has a name, be it a link.
    ///
    /// # Errors
    /// Nothing is there, or the system does not tell.
    pub fn of_name(path: &Path) -> io::Result<Self> {
        system::id_at(path, false)
    }
}

/// What tells a file from what it was before, or from another in its place, for a note: its length, and when it was changed.
#[must_use]
pub fn stamp(found: &Metadata) -> String {
    let time = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} bytes, changed at {}", found.len(), time.unwrap_or_default().as_nanos())
}

/// Bytes free on the file system that holds `path` (or will hold it); `None` where the system does not tell.
#[must_use]
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

/// Bytes of memory that this process holds, files that are mapped left out. Where the system does not tell, what programs of this
/// kind begin with.
#[must_use]
pub fn held_bytes() -> u64 {
    const USUAL: u64 = 24 << 20;
    system::held_bytes().unwrap_or(USUAL)
}

/// Makes a file appear at another path as well, which is not there yet: by a link, where users may make links. Where they may
/// not (Windows), by another name (a hard link), for which both have to lie on one volume.
///
/// # Errors
/// I/O errors; two volumes where one is needed.
pub fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
    system::show_file_at(&file.canonicalize()?, path)
}

/// Sets the length of a file, and takes the room for it on the disk, so that a full disk shows now and not in the middle of a
/// write. On file systems that cannot reserve the length is set and nothing else.
///
/// # Errors
/// A full disk; I/O errors.
pub fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
    system::reserve(file, n_bytes)
}

#[cfg(unix)]
mod system {
    use std::fs::{File, Metadata};
    use std::io;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use super::FileId;

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

    pub(super) fn free_bytes_at(path: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(super) fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(file, path)
    }

    /// Of Linux, which tells it in pages: all that are there, and those of files.
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
        crate::output::again(|| file.set_len(n_bytes))
    }
}

#[cfg(windows)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::{FileExt, OpenOptionsExt};
    use std::path::Path;

    use super::FileId;

    /// Opens directories, too (`FILE_FLAG_BACKUP_SEMANTICS`).
    const ANY_KIND: u32 = 0x0200_0000;
    /// Opens a link and not what it leads to (`FILE_FLAG_OPEN_REPARSE_POINT`).
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
        // Without any access: only what it is is asked, whoever has it open.
        let file = File::options().access_mode(0).custom_flags(flags).open(path)?;
        id_of(&file)
    }

    pub(super) fn free_bytes_at(path: &Path) -> io::Result<u64> {
        fs4::available_space(path)
    }

    pub(super) fn show_file_at(file: &Path, path: &Path) -> io::Result<()> {
        fs_err::hard_link(file, path)
    }

    pub(super) fn held_bytes() -> Option<u64> {
        None
    }

    /// The length is room on the disk, too.
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
    fn room_is_known_and_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(&dir.path().join("not/there/yet")).is_some_and(|n| n > 0));
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        for n_bytes in [0, 5000, 70_000] {
            reserve(&file, n_bytes).unwrap();
            assert_eq!(file.metadata().unwrap().len(), n_bytes);
        }
    }
}
