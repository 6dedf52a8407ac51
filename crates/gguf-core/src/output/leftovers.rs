//! Leftovers of dead runs next to an output: temporary files that nobody holds, and sets half renamed.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

use super::journal::{Journal, JournalEntry, journal_stem};
use super::lock::{self, Lock};
use super::temporary_name::{staging_stem, stem, stem_of};
use super::{OutputError, parent};
use crate::platform::again;

/// Clears a directory of what dead runs left of the files called `names`: a half-renamed set is finished, temporary
/// files are removed. Files that a living run holds are kept, and so is everything without a temporary name.
///
/// # Errors
/// The file system refused; an interrupted set that shares files with this one.
pub(super) fn clear(dir: &Path, names: &[&OsStr]) -> Result<(), OutputError> {
    let stems: HashSet<OsString> = names.iter().map(|name| stem(name)).collect();
    let stems: HashSet<&[u8]> = stems.iter().map(|stem| stem.as_encoded_bytes()).collect();
    let directories: HashSet<OsString> = names.iter().map(|name| staging_stem(name)).collect();
    let directories: HashSet<&[u8]> = directories.iter().map(|stem| stem.as_encoded_bytes()).collect();
    let entries = match fs_err::read_dir(dir) {
        // A directory that cannot be listed is not cleared.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        entries => entries?,
    };
    let (mut journals, mut temporaries, mut stagings) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if journal_stem(&name).is_some() {
            journals.push(name);
        } else if stem_of(&name).is_some_and(|stem| stems.contains(stem)) {
            temporaries.push(name);
        } else if stem_of(&name).is_some_and(|stem| directories.contains(stem)) && entry.file_type()?.is_dir()
        {
            stagings.push(name);
        }
    }
    let mut is_quiet = true;
    for name in journals {
        let path = dir.join(&name);
        let Some(mut journal) = Journal::take_dead(&path) else {
            is_quiet &= !Journal::is_busy(&path);
            continue;
        };
        let is_own = journal_stem(&name).is_some_and(|stem| stems.contains(stem));
        match journal.read()? {
            Some(entries) => {
                resume(&mut journal, &entries, names)?;
            }
            // Its writer died before it had recorded anything.
            None if is_own => journal.remove()?,
            None => {}
        }
    }
    // Another run may be finishing a dead run's set: its files have no other owner.
    if !is_quiet {
        return Ok(());
    }
    for name in temporaries {
        remove_dead(&dir.join(name))?;
    }
    for name in stagings {
        remove_dead_directory(&dir.join(name))?;
    }
    Ok(())
}

/// Finishes an interrupted set, if it is that of the files called `names`. Then, and also if it cannot be finished, the
/// journal is removed when it is dropped.
///
/// # Errors
/// The file system refused; the set is a different one that shares files with this.
pub(super) fn resume(
    journal: &mut Journal,
    entries: &[JournalEntry],
    names: &[&OsStr],
) -> Result<(), OutputError> {
    let ours: HashSet<&OsStr> = names.iter().copied().collect();
    let Some(shared) = entries.iter().find(|entry| ours.contains(entry.name.as_os_str())) else {
        return Ok(());
    };
    if !entries.iter().all(|entry| ours.contains(entry.name.as_os_str())) {
        let journal = journal.path().to_owned();
        return Err(OutputError::Interrupted { target: journal.with_file_name(&shared.name), journal });
    }
    journal.finish(entries)?;
    Ok(())
}

/// Removes directories that dead runs began to fill for `target`.
pub(super) fn clear_directories(target: &Path) -> io::Result<()> {
    let wanted = stem(target.file_name().unwrap_or_default());
    let entries = match fs_err::read_dir(parent(target)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if stem_of(&entry.file_name()) != Some(wanted.as_encoded_bytes()) || !entry.file_type()?.is_dir() {
            continue;
        }
        remove_dead_directory(&entry.path())?;
    }
    Ok(())
}

/// Returns true for an empty directory. Empties it first if everything in it was left by runs that died early: their
/// temporary files, and files that got their names while others did not.
pub(super) fn is_empty(dir: &Path) -> io::Result<bool> {
    let (mut journals, mut files) = (Vec::new(), Vec::new());
    for entry in fs_err::read_dir(dir)? {
        let name = entry?.file_name();
        if journal_stem(&name).is_some() { journals.push(name) } else { files.push(name) }
    }
    let mut taken = Vec::new();
    for name in &journals {
        let Some(mut journal) = Journal::take_dead(&dir.join(name)) else { return Ok(false) };
        taken.push((journal.read()?.unwrap_or_default(), journal));
    }
    let entries = || taken.iter().flat_map(|(entries, _)| entries);
    let is_left =
        |name: &OsString| stem_of(name).is_some() || entries().any(|entry| entry.is_named(dir, name));
    if !files.iter().all(is_left) {
        return Ok(false);
    }
    // A complete set is a valid output, even if its writer died before it removed the journal.
    if taken.iter().any(|(entries, _)| {
        !entries.is_empty() && entries.iter().all(|entry| entry.is_named(dir, &entry.name))
    }) {
        for (_, journal) in taken {
            journal.remove()?;
        }
        return Ok(false);
    }
    for name in files.iter().filter(|name| stem_of(name).is_some()) {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            remove_dead_directory(&path)?;
        } else {
            remove_dead(&path)?;
        }
    }
    for entry in entries().filter(|entry| entry.is_named(dir, &entry.name)) {
        again(|| fs_err::remove_file(dir.join(&entry.name)))?;
    }
    for (_, journal) in taken {
        journal.remove()?;
    }
    Ok(fs_err::read_dir(dir)?.next().is_none())
}

/// Removes a directory, which is no link, and its content if nobody holds it.
fn remove_dead_directory(path: &Path) -> io::Result<()> {
    let Ok(open) = File::options().read(true).open(path) else { return Ok(()) };
    if lock::take(&open) == Lock::Held && lock::leads_to(path, &open) {
        again(|| fs_err::remove_dir_all(path))?;
    }
    Ok(())
}

/// Removes a temporary file if nobody holds it.
pub(super) fn remove_dead(path: &Path) -> io::Result<()> {
    // Gone by now, or it cannot be opened: then its state is unknown.
    let Ok(file) = lock::open_existing(path) else { return Ok(()) };
    if lock::take(&file) == Lock::Held && lock::leads_to(path, &file) {
        again(|| fs_err::remove_file(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::temporary::TemporaryFile;
    use super::super::{Destination, OutputFile};

    #[test]
    fn the_dead_go_and_the_living_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let target = at("m.gguf");
        let living = TemporaryFile::named(&target, 0o600).unwrap();
        let others = [
            ".m.gguf.abc123.tmpx",
            ".m.gguf.abc12.tmp",
            ".m.gguf.abc-23.tmp",
            ".n.gguf.abc123.tmp",
            "m.gguf.abc123.tmp",
        ];
        for name in [".m.gguf.abc123.tmp", ".m.gguf.XyZ789.tmp"].iter().chain(&others) {
            fs_err::write(at(name), b"left").unwrap();
        }
        // Only regular files are looked at; opening a FIFO would block.
        fs_err::create_dir_all(at(".m.gguf.direct.tmp")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("n", at(".m.gguf.symlnk.tmp")).unwrap();
        let output = OutputFile::create(&target).unwrap();
        let mut expected: Vec<String> = others.iter().map(ToString::to_string).collect();
        expected.push(living.name().unwrap().to_str().unwrap().to_owned());
        expected.push(".m.gguf.direct.tmp".to_owned());
        #[cfg(unix)]
        expected.push(".m.gguf.symlnk.tmp".to_owned());
        expected.sort();
        let found = || {
            let names = dir.path().read_dir().unwrap();
            let mut names: Vec<_> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // Where the file system supports unnamed files, the new one has no name.
        let named = found().len() - expected.len();
        assert!(named <= 1);
        drop(output);
        assert_eq!(found(), expected);
        drop(living);
        expected.retain(|name| {
            !name.starts_with(".m.gguf.")
                || name.contains("tmpx")
                || others.contains(&name.as_str())
                || name.contains("direct")
                || name.contains("symlnk")
        });
        assert_eq!(found(), expected);
    }

    #[test]
    fn an_empty_journal_of_the_dead_goes_and_another_sets_stays() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".m.gguf.set.journal", ".n.gguf.set.journal"] {
            fs_err::write(dir.path().join(name), b"").unwrap();
        }
        let mut destinations = [Destination::of(&dir.path().join("m.gguf")).unwrap()];
        Destination::clear_all(&mut destinations).unwrap();
        assert!(!dir.path().join(".m.gguf.set.journal").exists());
        assert!(dir.path().join(".n.gguf.set.journal").exists());
    }
}
