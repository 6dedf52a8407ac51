//! Inputs of several files, and files on a disk for what reads paths.

use std::cell::OnceCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// What stands before a file's name; a line feed ends the name.
const MARK: &[u8] = b"\n=== ";

/// Files as one input. Lengths would break with each byte that a fuzzer puts in; marks do not.
#[allow(dead_code, reason = "for who makes seeds")]
pub fn join<B: AsRef<[u8]>>(files: &[(&str, B)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, bytes) in files {
        all.extend_from_slice(if all.is_empty() { &MARK[1..] } else { MARK });
        all.extend_from_slice(name.as_bytes());
        all.push(b'\n');
        all.extend_from_slice(bytes.as_ref());
    }
    all
}

/// The files of an input, of those that an entry knows; of two with one name the first.
pub(super) fn split<'a>(data: &'a [u8], known: &[&'static str]) -> Vec<(&'static str, &'a [u8])> {
    let mut files: Vec<(&'static str, &[u8])> = Vec::new();
    let mut rest = data.strip_prefix(&MARK[1..]);
    while let Some(part) = rest {
        let end = part.windows(MARK.len()).position(|window| window == MARK);
        let (file, behind) = match end {
            Some(end) => (&part[..end], Some(&part[end + MARK.len()..])),
            None => (part, None),
        };
        rest = behind;
        let Some(line) = file.iter().position(|&byte| byte == b'\n') else { continue };
        let name = known.iter().find(|name| name.as_bytes() == &file[..line]);
        if let Some(&name) = name.filter(|&&name| files.iter().all(|file| file.0 != name)) {
            files.push((name, &file[line + 1..]));
        }
    }
    files
}

/// One of the files.
pub(super) fn find<'a>(files: &[(&'static str, &'a [u8])], name: &str) -> Option<&'a [u8]> {
    files.iter().find(|file| file.0 == name).map(|file| file.1)
}

/// What was accepted. An error is put into words as for a user: that must not fail either, nor may there be none.
pub(super) fn accepted<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.map_err(|error| assert!(!error.to_string().is_empty(), "an error without words")).ok()
}

thread_local! {
    /// A directory of this thread, below `TMPDIR`: `scripts/fuzz.sh` lets it lie in memory.
    static ROOM: OnceCell<TempDir> = const { OnceCell::new() };
}

/// A path in the thread's directory.
pub(super) fn place(name: &str) -> PathBuf {
    ROOM.with(|room| {
        let room = room.get_or_init(|| tempfile::tempdir().expect("a directory for temporary files"));
        room.path().join(name)
    })
}

/// The bytes as a file.
pub(super) fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = place(name);
    fs_err::write(&path, data).expect("room for a small file");
    path
}

/// A directory with these files and no others; it goes when the value does.
pub(super) struct Directory(TempDir);

impl Directory {
    pub(super) fn of(files: &[(&'static str, &[u8])]) -> Self {
        let dir = tempfile::tempdir_in(place("")).expect("a directory for temporary files");
        for (name, bytes) in files {
            fs_err::write(dir.path().join(name), bytes).expect("room for a small file");
        }
        Self(dir)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Numbers that an input decides, for what the input does not say itself: where to cut, which piece to take.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn of(data: &[u8]) -> Self {
        // FNV-1a.
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(data.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// A range within `0..n` that is not empty; `n` is not 0.
    pub(super) fn range(&mut self, n: u64) -> std::ops::Range<u64> {
        let start = self.below(n);
        start..start + 1 + self.below(n - start)
    }
}
