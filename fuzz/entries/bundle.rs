//! Inputs of several files, and files on disk for code that reads paths.

use std::cell::OnceCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Marker before a file's name; a line feed ends the name.
const MARK: &[u8] = b"\n=== ";

/// Joins files to one input. Lengths would break with each byte that a fuzzer inserts; markers do not.
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

/// Splits an input into the files that an entry knows; of two files with one name, the first.
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

pub(super) fn find<'a>(files: &[(&'static str, &'a [u8])], name: &str) -> Option<&'a [u8]> {
    files.iter().find(|file| file.0 == name).map(|file| file.1)
}

/// Returns an accepted value. Errors are also formatted as for a user, which must neither fail nor give an empty text.
pub(super) fn accepted<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.map_err(|error| assert!(!error.to_string().is_empty(), "an error without words")).ok()
}

thread_local! {
    /// Directory of this thread, below `TMPDIR`, which `scripts/fuzz.sh` places in memory.
    static ROOM: OnceCell<TempDir> = const { OnceCell::new() };
}

/// Path in the thread's directory.
pub(super) fn place(name: &str) -> PathBuf {
    ROOM.with(|room| {
        let room = room.get_or_init(|| tempfile::tempdir().expect("a directory for temporary files"));
        room.path().join(name)
    })
}

pub(super) fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = place(name);
    fs_err::write(&path, data).expect("room for a small file");
    path
}

/// Temporary directory with only these files; removed on drop.
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

/// Numbers derived from an input, for choices that it does not contain: cut positions, pieces.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn of(data: &[u8]) -> Self {
        // FNV-1a.
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(data.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// Number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// Non-empty range within `0..n`; `n` must not be 0.
    pub(super) fn range(&mut self, n: u64) -> std::ops::Range<u64> {
        let start = self.below(n);
        start..start + 1 + self.below(n - start)
    }
}
