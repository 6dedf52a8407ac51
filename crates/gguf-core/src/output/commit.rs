//! Renaming of finished files to their final names. One file takes one rename. For several in one directory a journal
//! first records the plan; then they are renamed one after the other. If the process dies in between, the next run
//! finishes the work.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::edit_lock::FileState;
use super::guard::look_again;
use super::journal::{Journal, JournalEntry};
use super::temporary::TemporaryFile;
use super::{fault, leftovers, named, parent, sync_directory};

/// A written file and its final path.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) temporary: TemporaryFile,
    pub(super) path: PathBuf,
    /// State of the file at that path when this one was begun.
    pub(super) before: Option<FileState>,
    /// True if this one is an edit of that file.
    pub(super) is_edit: bool,
}

/// Gives files their names, directory by directory.
///
/// # Errors
/// I/O errors; the message states what happened until then. A name that something else has taken.
pub(super) fn commit(files: Vec<Finished>, sync: bool) -> io::Result<()> {
    for Finished { temporary, path, before, is_edit } in &files {
        look_again(&*temporary.file()?, path, before.as_ref(), *is_edit)?;
    }
    let mut sets: Vec<Vec<Finished>> = Vec::new();
    for file in files {
        match sets
            .iter_mut()
            .find(|set| set.first().is_some_and(|first| parent(&first.path) == parent(&file.path)))
        {
            Some(set) => set.push(file),
            None => sets.push(vec![file]),
        }
    }
    sets.into_iter().try_for_each(|mut set| match set.len() {
        1 => set.pop().map_or(Ok(()), |file| commit_one(file, sync)),
        _ => commit_set(set, sync),
    })
}

fn commit_one(file: Finished, sync: bool) -> io::Result<()> {
    let Finished { mut temporary, path, .. } = file;
    temporary.prepare_rename(&path).map_err(|error| named(&path, &error))?;
    fault::point()?;
    temporary.rename(&path).map_err(|(error, _)| named(&path, &error))?;
    fault::point()?;
    if sync { sync_directory(parent(&path)) } else { Ok(()) }
}

/// Renames the files of a set. Until the journal is complete, nothing has happened; from then on, this or the next run
/// finishes it.
fn commit_set(mut files: Vec<Finished>, sync: bool) -> io::Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    let dir = parent(&first.path).to_owned();
    let mut journal = Journal::acquire(&dir, name(&first.path))?;
    fault::point()?;
    if let Some(entries) = journal.read()? {
        // Another writer of the set died since this run began.
        let names: Vec<_> = files.iter().map(|file| name(&file.path)).collect();
        leftovers::resume(&mut journal, &entries, &names).map_err(io::Error::other)?;
    }
    let mut entries = Vec::with_capacity(files.len());
    for Finished { temporary, path, .. } in &mut files {
        temporary.prepare_rename(path).map_err(|error| named(path, &error))?;
        fault::point()?;
        entries.push(JournalEntry::of(
            &*temporary.file()?,
            temporary.name().unwrap_or_default(),
            name(path),
        )?);
    }
    journal.write(&entries, sync)?;
    let n_files = files.len();
    let mut files = files.into_iter();
    let mut n_done = 0;
    while let Some(Finished { temporary, path, .. }) = files.next() {
        let renamed = match fault::point() {
            Ok(()) => temporary.rename(&path),
            Err(error) => Err((error, temporary)),
        };
        let Err((error, temporary)) = renamed else {
            n_done += 1;
            continue;
        };
        let error = named(&path, &error);
        // Nothing has been renamed yet, and nothing will be.
        if n_done == 0 {
            return Err(error);
        }
        temporary.keep();
        files.for_each(|file| file.temporary.keep());
        journal.leave();
        return Err(io::Error::new(
            error.kind(),
            format!(
                "{error}; {n_done} of {n_files} files have been replaced: the same command again finishes it"
            ),
        ));
    }
    fault::point()?;
    if sync {
        sync_directory(&dir)?;
    }
    journal.remove()?;
    fault::point()?;
    if sync { sync_directory(&dir) } else { Ok(()) }
}

fn name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::super::fault::{self, Fault};
    use super::super::{Destination, OutputError, OutputFile};
    use super::*;
    use crate::output::tests::entries;

    const NAMES: [&str; 3] = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];

    /// Writes the set, or one file of it; `content` is in every file.
    fn write(dir: &Path, names: &[&str], content: &str) -> Result<(), OutputError> {
        write_with(dir, names, content, true)
    }

    fn write_with(dir: &Path, names: &[&str], content: &str, sync: bool) -> Result<(), OutputError> {
        let files = names.iter().map(|name| (dir.join(name), Some(format!("{content} {name}"))));
        OutputFile::write_all(&files.collect::<Vec<_>>(), sync)
    }

    /// Content of each file; `None` for a file that does not exist.
    fn contents(dir: &Path, names: &[&str]) -> Vec<Option<String>> {
        let read = |name: &&str| {
            let text = fs_err::read_to_string(dir.join(name)).ok()?;
            Some(text.strip_suffix(&format!(" {name}")).expect("a whole file").to_owned())
        };
        names.iter().map(read).collect()
    }

    fn all(content: Option<&str>, names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|_| content.map(ToOwned::to_owned)).collect()
    }

    /// Number of fault points in an undisturbed commit.
    fn n_points(names: &[&str]) -> usize {
        let dir = tempfile::tempdir().unwrap();
        fault::arm(None);
        write(dir.path(), names, "new").unwrap();
        let n = fault::reached();
        assert!(n >= 2, "{n}");
        n
    }

    /// The process that is killed: this test binary, started again.
    #[test]
    #[ignore = "the victim of the tests below, not a test"]
    fn victim() {
        let Ok(plan) = std::env::var("GGUF_CORE_TEST_VICTIM") else { return };
        let (point, rest) = plan.split_once(' ').unwrap();
        let (n_names, dir) = rest.split_once(' ').unwrap();
        fault::arm(Some((point.parse().unwrap(), Fault::Kill)));
        write(Path::new(dir), &NAMES[..n_names.parse().unwrap()], "new").unwrap();
    }

    fn kill_at(point: usize, n_names: usize, dir: &Path) {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "output::commit::tests::victim", "--ignored"])
            .env("GGUF_CORE_TEST_VICTIM", format!("{point} {n_names} {}", dir.display()))
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9), "point {point}: {status}");
    }

    #[test]
    fn whoever_is_killed_while_naming_a_set_leaves_what_the_next_run_clears_up() {
        for before in [None, Some("old")] {
            let mut n_mixed = 0;
            for point in 0..n_points(&NAMES) {
                let dir = tempfile::tempdir().unwrap();
                if let Some(content) = before {
                    write(dir.path(), &NAMES, content).unwrap();
                }
                kill_at(point, NAMES.len(), dir.path());
                let found = contents(dir.path(), &NAMES);
                let mixed = found != all(before, &NAMES) && found != all(Some("new"), &NAMES);
                if mixed {
                    n_mixed += 1;
                    // One file alone would be lost among those that are renamed later.
                    let error = write(dir.path(), &NAMES[1..2], "edit").unwrap_err();
                    assert!(matches!(error, OutputError::Interrupted { .. }), "point {point}: {error}");
                    assert_eq!(contents(dir.path(), &NAMES), found, "point {point}");
                }
                // Another run of the same command that writes nothing: the set is whole nevertheless.
                let mut again: Vec<_> =
                    NAMES.iter().map(|name| Destination::of(&dir.path().join(name)).unwrap()).collect();
                Destination::clear_all(&mut again).unwrap();
                let found = contents(dir.path(), &NAMES);
                let is_whole = found == all(before, &NAMES) || found == all(Some("new"), &NAMES);
                assert!(
                    is_whole && (!mixed || found == all(Some("new"), &NAMES)),
                    "point {point}: {found:?}"
                );
                let left = entries(dir.path());
                assert!(left.iter().all(|name| NAMES.contains(&name.as_str())), "point {point}: {left:?}");
                write(dir.path(), &NAMES, "third").unwrap();
                assert_eq!(contents(dir.path(), &NAMES), all(Some("third"), &NAMES));
                assert_eq!(entries(dir.path()), NAMES);
            }
            assert!(n_mixed >= NAMES.len() - 1, "no kill fell between two names: {n_mixed}");
        }
    }

    #[test]
    fn whoever_is_killed_while_naming_one_file_leaves_the_old_or_the_new() {
        let name = &NAMES[..1];
        for point in 0..n_points(name) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), name, "old").unwrap();
            kill_at(point, 1, dir.path());
            let found = contents(dir.path(), name);
            assert!(found == all(Some("old"), name) || found == all(Some("new"), name), "{found:?}");
            write(dir.path(), name, "third").unwrap();
            assert_eq!(entries(dir.path()), name, "point {point}");
        }
    }

    #[test]
    fn a_file_that_a_set_no_longer_has_is_removed_whatever_a_killed_run_left() {
        for point in 0..n_points(&NAMES) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &NAMES, "old").unwrap();
            kill_at(point, NAMES.len(), dir.path());
            let texts = [Some("new"), Some("new"), None];
            let files = NAMES.iter().zip(texts).map(|(name, text)| (dir.path().join(name), text));
            OutputFile::write_all(&files.collect::<Vec<_>>(), true).unwrap();
            assert_eq!(entries(dir.path()), NAMES[..2], "point {point}");
        }
    }

    #[test]
    fn new_and_existing_files_are_one_set_however_the_directory_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let roundabout = dir.path().join("sub/..");
        fs_err::create_dir(dir.path().join("sub")).unwrap();
        for n_existing in 0..=NAMES.len() {
            for point in 0..n_points(&NAMES) {
                for name in NAMES {
                    drop(fs_err::remove_file(dir.path().join(name)));
                }
                write(dir.path(), &NAMES[..n_existing], "old").unwrap();
                kill_at(point, NAMES.len(), &roundabout);
                write(&roundabout, &NAMES, "third").unwrap();
                let found = contents(dir.path(), &NAMES);
                assert_eq!(found, all(Some("third"), &NAMES), "{n_existing} files, point {point}");
                assert_eq!(entries(dir.path()).len(), NAMES.len() + 1, "{n_existing} files, point {point}");
            }
        }
    }

    #[test]
    fn an_error_while_naming_a_set_keeps_the_old_one_or_tells_how_to_finish() {
        let mut n_half = 0;
        for point in 0..n_points(&NAMES) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &NAMES, "old").unwrap();
            fault::arm(Some((point, Fault::Error)));
            let error = write(dir.path(), &NAMES, "new").unwrap_err().to_string();
            fault::arm(None);
            let found = contents(dir.path(), &NAMES);
            if found == all(Some("old"), &NAMES) {
                assert_eq!(entries(dir.path()), NAMES, "point {point}: {error}");
            } else if found != all(Some("new"), &NAMES) {
                n_half += 1;
                assert!(error.contains("of 3 files have been replaced: the same command"), "{error}");
            }
            write(dir.path(), &NAMES, "third").unwrap();
            assert_eq!(contents(dir.path(), &NAMES), all(Some("third"), &NAMES));
            assert_eq!(entries(dir.path()), NAMES, "point {point}");
        }
        assert_eq!(n_half, NAMES.len() - 1);
    }

    #[test]
    fn a_set_whose_files_are_gone_is_not_resumed() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &NAMES, "old").unwrap();
        // Between the first and the second name.
        let point = (0..n_points(&NAMES))
            .find(|&point| {
                kill_at(point, NAMES.len(), dir.path());
                contents(dir.path(), &NAMES)[0].as_deref() == Some("new")
            })
            .unwrap();
        let temporary = entries(dir.path())
            .into_iter()
            .find(|name| name.starts_with('.') && !name.ends_with("journal"))
            .unwrap();
        fs_err::remove_file(dir.path().join(temporary)).unwrap();
        write(dir.path(), &NAMES, "third").unwrap();
        assert_eq!(contents(dir.path(), &NAMES), all(Some("third"), &NAMES), "point {point}");
        assert_eq!(entries(dir.path()), NAMES);
    }

    #[test]
    fn whoever_is_killed_while_clearing_up_is_cleared_up_after_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut n_kills = 0;
        for point in 0..n_points(&NAMES) {
            for second in 0..3 {
                write(dir.path(), &NAMES, "old").unwrap();
                kill_at(point, NAMES.len(), dir.path());
                let is_mixed = contents(dir.path(), &NAMES)[0] != contents(dir.path(), &NAMES)[2];
                kill_at(second, NAMES.len(), dir.path());
                n_kills += usize::from(is_mixed);
                let mut again: Vec<_> =
                    NAMES.iter().map(|name| Destination::of(&dir.path().join(name)).unwrap()).collect();
                Destination::clear_all(&mut again).unwrap();
                let found = contents(dir.path(), &NAMES);
                let is_whole = found == all(Some("old"), &NAMES) || found == all(Some("new"), &NAMES);
                assert!(is_whole, "points {point}, {second}: {found:?}");
                assert_eq!(entries(dir.path()), NAMES, "points {point}, {second}");
            }
        }
        assert!(n_kills >= 3);
    }

    #[test]
    fn of_writers_at_once_one_wins_whole() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..30 {
            std::thread::scope(|scope| {
                for writer in 0..4 {
                    let dir = dir.path();
                    scope.spawn(move || {
                        for _ in 0..3 {
                            write_with(dir, &NAMES, &writer.to_string(), false).unwrap();
                        }
                    });
                }
            });
            let found = contents(dir.path(), &NAMES);
            assert!(
                found[0].is_some() && found.iter().all(|content| content == &found[0]),
                "{round}: {found:?}"
            );
            assert_eq!(entries(dir.path()), NAMES);
        }
    }
}
