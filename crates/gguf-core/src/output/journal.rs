//! The journal of a set: the final name of each temporary file. It is complete on the disk before the first file gets
//! its name, so the next run can finish what a dead run left half done. It is locked while its writer lives, so two
//! writers of one set take turns.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::checksum::checksum;
use super::lock::{self, Lock};
use super::temporary_name::{staged, stem, stem_of};
use super::{fault, sync_directory};
use crate::platform::{FileId, again};

const SUFFIX: &[u8] = b".set.journal";
const HEAD: &str = "gguf-foundry set 1";
/// Maximum bytes of a journal, more than the largest set needs.
const MAX_BYTES: u64 = 64 << 20;

/// One file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalEntry {
    /// Temporary name; includes the directory if that is not the final one.
    pub(super) temporary: OsString,
    /// Final name, in the directory of the journal.
    pub(super) name: OsString,
    pub(super) n_bytes: u64,
    /// Number of the file on its file system; 0 if unknown.
    pub(super) inode: u64,
}

impl JournalEntry {
    pub(super) fn of(file: &File, temporary: OsString, name: &OsStr) -> io::Result<Self> {
        let inode = FileId::of(file).map_or(0, |id| id.index);
        Ok(Self { temporary, name: name.to_owned(), n_bytes: file.metadata()?.len(), inode })
    }

    /// Returns true if the file has its final name, and that is `name`.
    pub(super) fn is_named(&self, dir: &Path, name: &OsStr) -> bool {
        self.name == name && self.is_at(&dir.join(name))
    }

    /// Returns true if the file has its temporary name. A link in the place of its directory does not count.
    fn is_waiting(&self, dir: &Path) -> bool {
        let is_directory_intact = self
            .staging(dir)
            .is_none_or(|staging| staging.symlink_metadata().is_ok_and(|found| found.is_dir()));
        is_directory_intact && self.is_at(&dir.join(&self.temporary))
    }

    /// Returns the directory of the temporary file, if it is not the final one.
    fn staging(&self, dir: &Path) -> Option<PathBuf> {
        staged(&self.temporary).map(|(staging, _)| dir.join(staging))
    }

    fn is_at(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == self.n_bytes)
            && FileId::of_name(path).map_or(0, |id| id.index) == self.inode
    }
}

/// Returns the journal's name for the set whose first file is called `first`.
fn file_name(first: &OsStr) -> OsString {
    let mut name = OsString::from(".");
    name.push(stem(first));
    name.push(OsStr::new(".set.journal"));
    name
}

/// Returns the stem of the set's first file from a journal's name; `None` for any other name.
pub(super) fn journal_stem(name: &OsStr) -> Option<&[u8]> {
    name.as_encoded_bytes().strip_prefix(b".")?.strip_suffix(SUFFIX).filter(|stem| !stem.is_empty())
}

/// An open and locked journal. Dropping it removes the file, unless it is left to the next run.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    stays: bool,
}

impl Journal {
    /// Takes the journal of the set whose first file is called `first`, after its current holder is done.
    pub(super) fn acquire(dir: &Path, first: &OsStr) -> io::Result<Self> {
        let path = dir.join(file_name(first));
        loop {
            let file = match lock::open_existing(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match File::options().read(true).write(true).create_new(true).open(&path) {
                        // Another writer of the set was faster.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        opened => opened.map_err(|error| about(&path, &error))?,
                    }
                }
                opened => opened.map_err(|error| about(&path, &error))?,
            };
            let lock = lock::wait(&file).map_err(|error| about(&path, &error))?;
            // The previous holder may have removed it.
            let is_there = lock::leads_to(&path, &file);
            if lock == Lock::Unknown && is_there && file.metadata().is_ok_and(|found| found.len() > 0) {
                let why = "another program is giving these files their names, or has died of it (this file system has no \
                           locks, so it is not known): remove this file if none is running";
                return Err(about(&path, &io::Error::other(why)));
            }
            if is_there {
                return Ok(Self { path, file, stays: false });
            }
        }
    }

    /// Takes an existing journal if its writer is dead.
    pub(super) fn take_dead(path: &Path) -> Option<Self> {
        let file = lock::open_existing(path).ok()?;
        let dead = lock::take_of_dead(&file) == Lock::Held && lock::leads_to(path, &file);
        dead.then(|| Self { path: path.to_owned(), file, stays: true })
    }

    /// Returns true if a living writer holds the journal.
    pub(super) fn is_busy(path: &Path) -> bool {
        lock::open_existing(path).is_ok_and(|file| lock::take(&file) == Lock::Busy)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the set that a dead writer left; `None` if its journal is incomplete.
    pub(super) fn read(&mut self) -> io::Result<Option<Vec<JournalEntry>>> {
        let failed = |error: io::Error| about(&self.path, &error);
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut bytes = Vec::new();
        (&self.file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        let entries = parse(&bytes);
        // It must not be removed until its set is finished.
        self.stays |= entries.is_some();
        Ok(entries)
    }

    /// Writes the entries of the set, synced if `sync`.
    pub(super) fn write(&mut self, entries: &[JournalEntry], sync: bool) -> io::Result<()> {
        let failed = |error: io::Error| about(&self.path, &error);
        self.file.set_len(0).map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.file.write_all(text(entries).as_bytes()).map_err(failed)?;
        fault::point()?;
        if sync {
            self.file.sync_all().map_err(failed)?;
            // The journal's own name and the temporary names must be on the disk before one of them goes.
            stagings(self.dir(), entries).iter().try_for_each(|dir| sync_directory(dir))?;
            sync_directory(self.dir())?;
        }
        Ok(())
    }

    fn dir(&self) -> &Path {
        super::parent(&self.path)
    }

    /// Finishes the work of a dead writer. Returns false if files of the set are gone, so that it cannot be finished.
    pub(super) fn finish(&mut self, entries: &[JournalEntry]) -> io::Result<bool> {
        self.stays = true;
        let dir = self.dir().to_owned();
        let at = |name: &OsStr| dir.join(name);
        let is_whole = entries.iter().all(|entry| entry.is_waiting(&dir) || entry.is_at(&at(&entry.name)));
        if is_whole {
            for entry in entries.iter().filter(|entry| entry.is_waiting(&dir)) {
                again(|| fs_err::rename(at(&entry.temporary), at(&entry.name)))?;
                fault::point()?;
            }
            sync_directory(&dir)?;
            for staging in stagings(&dir, entries) {
                // Empty now, or not of this set.
                let _ = fs_err::remove_dir(staging);
            }
        }
        self.stays = false;
        Ok(is_whole)
    }

    /// Leaves the journal to the next run.
    pub(super) fn leave(mut self) {
        self.stays = true;
    }

    /// Removes the journal after all is done.
    pub(super) fn remove(mut self) -> io::Result<()> {
        self.stays = true;
        let mut remove = || fs_err::remove_file(&self.path);
        again(&mut remove).or_else(|_| again(&mut remove))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Still under the lock, since the file is closed after this.
        if !self.stays {
            let _ = fs_err::remove_file(&self.path);
        }
    }
}

/// Returns the directories in `dir` that hold files of a set.
fn stagings(dir: &Path, entries: &[JournalEntry]) -> Vec<PathBuf> {
    let mut found: Vec<_> = entries.iter().filter_map(|entry| entry.staging(dir)).collect();
    found.dedup();
    found
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn text(entries: &[JournalEntry]) -> String {
    let mut text = format!("{HEAD}\n");
    for entry in entries {
        let (from, to) = (encode(&entry.temporary), encode(&entry.name));
        text.extend([&from, " ", &to, " ", &entry.n_bytes.to_string(), " ", &entry.inode.to_string(), "\n"]);
    }
    let sum = checksum(text.as_bytes());
    text + &format!("end {sum:016x}\n")
}

/// Returns the entries of a complete journal. Their names refer only to files next to it.
fn parse(bytes: &[u8]) -> Option<Vec<JournalEntry>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let end = text.rfind("end ")?;
    let (body, end) = text.split_at_checked(end)?;
    let sum = end.strip_prefix("end ")?.strip_suffix('\n')?;
    if sum.len() != 16 || u64::from_str_radix(sum, 16).ok()? != checksum(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next() != Some(HEAD) {
        return None;
    }
    lines.map(entry).collect()
}

fn entry(line: &str) -> Option<JournalEntry> {
    let mut words = line.split(' ');
    let mut name = || decode(words.next()?);
    let (temporary, target) = (name()?, name().filter(|name| is_plain(name))?);
    let mut number = || words.next()?.parse().ok();
    let (n_bytes, inode) = (number()?, number()?);
    let fits = match staged(&temporary) {
        Some((_, file)) => file == target,
        None => is_plain(&temporary) && stem_of(&temporary) == Some(stem(&target).as_encoded_bytes()),
    };
    (fits && words.next().is_none()).then_some(JournalEntry { temporary, name: target, n_bytes, inode })
}

fn is_plain(name: &OsStr) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(std::path::Component::Normal(part)) if part == name) && parts.next().is_none()
}

/// Encodes a name in ASCII without spaces.
fn encode(name: &OsStr) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let bytes = name.as_encoded_bytes().iter();
    bytes
        .map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

fn decode(text: &str) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(first);
        }
    }
    #[cfg(unix)]
    {
        Some(std::os::unix::ffi::OsStringExt::from_vec(bytes))
    }
    #[cfg(not(unix))]
    {
        Some(String::from_utf8(bytes).ok()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<JournalEntry> {
        ["m-00001-of-00002.gguf", "ä b\n%-00002-of-00002.gguf"]
            .map(|name| JournalEntry {
                temporary: format!(".{name}.aB3xYz.tmp").into(),
                name: name.into(),
                n_bytes: 7,
                inode: 3,
            })
            .to_vec()
    }

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_not() {
        let whole = text(&entries());
        assert_eq!(parse(whole.as_bytes()), Some(entries()));
        for len in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..len]), None, "{len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes), None, "{at}");
        }
    }

    #[test]
    fn no_entry_leads_out_of_the_directory_or_to_a_file_of_another_name() {
        for (temporary, name) in [
            ("../.m.aB3xYz.tmp", "m"),
            (".m.aB3xYz.tmp", "../m"),
            (".m.aB3xYz.tmp", "n"),
            ("m", "m"),
            (".m.aB3xYz.tmp", "."),
            (".m.aB3xYz.tmp", "/m"),
            ("", ""),
            (".p.aB3xYz.tmp/n", "m"),
            ("p/m", "m"),
            ("../.p.aB3xYz.tmp/m", "m"),
            (".p.aB3xYz.tmp/../m", "m"),
            (".p.aB3xYz.tmp/.q.aB3xYz.tmp/m", "m"),
            ("/.p.aB3xYz.tmp/m", "m"),
            (".p.aB3xYz.tmp//m", "m"),
        ] {
            let entry = JournalEntry { temporary: temporary.into(), name: name.into(), n_bytes: 1, inode: 1 };
            assert_eq!(parse(text(&[entry]).as_bytes()), None, "{temporary} {name}");
        }
    }

    #[test]
    fn a_link_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::acquire(dir.path(), OsStr::new("m")).unwrap();
        assert_eq!(journal.read().unwrap(), None);
        assert!(Journal::take_dead(journal.path()).is_none(), "taken from the living");
        let path = journal.path().to_owned();
        drop(journal);
        assert!(!path.exists());
        #[cfg(unix)]
        {
            fs_err::write(dir.path().join("other"), b"keep").unwrap();
            std::os::unix::fs::symlink("other", &path).unwrap();
            assert!(Journal::acquire(dir.path(), OsStr::new("m")).is_err());
            assert_eq!(fs_err::read(dir.path().join("other")).unwrap(), b"keep");
        }
    }
}
