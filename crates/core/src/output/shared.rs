//! A file that several runs write together, each its own ranges, on one machine or on many that share a file system. It gets
//! its name when the last of them is through.
//!
//! Nobody asks anybody. Beside the target lies `TARGET.into-ID.1`, as long as the whole from the start, and for each run
//! that is through an empty file `TARGET.into-ID.1.2-of-8`. Whoever finds all of these gives the file its name. The id
//! stands for the plan and the input, so that runs of different plans do not write into one file. A run that was
//! stopped leaves no such file, but `TARGET.into-ID.1.2-of-8.at`: up to where it came. Started again, it goes on from
//! there. A single run that is to be resumed is one of one.
//!
//! The number behind the id is that of the attempt: what is noted counts for the file of its own attempt and no other. A
//! file that has gone (it got its name, or somebody removed it) is never begun again under its number while anything of
//! that attempt is left, so that no note can speak of bytes that are not there. Before the file gets its name, its length
//! and time are noted in `.TARGET.into-ID.1.done`. That note stays: as long as the target is the file that it tells of,
//! a run that is started again has nothing to do. Whoever finds it otherwise begins another attempt.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::{Destination, OutputError, OutputFile, Sink, again, fault, named, parent, sync_directory};
use crate::platform::{FileId, stamp};

/// What a name has behind that of the target, before the id.
const INTO: &str = ".into-";
/// How the name of the note ends that the whole is there.
const DONE: &str = ".done";
/// How often a file may vanish between looking and opening.
const MAX_TRIES: usize = 100;

/// The part of a shared file that is written here.
#[derive(Debug)]
pub struct SharedOutput {
    /// As it was given.
    target: PathBuf,
    /// Where its links lead.
    path: PathBuf,
    id: String,
    number: usize,
    count: usize,
    /// That of the file which is written.
    attempt: u64,
}

/// What there is to do for a run.
#[derive(Debug)]
pub enum Begun {
    /// Nothing: the target is what this and the other runs wrote.
    Finished,
    /// This run's ranges are there; others are missing.
    Written,
    /// To write this run's ranges from `start` on: those before this offset are in the file.
    At {
        /// The file, which other runs may write to as well.
        file: OutputFile,
        /// Offset in the file.
        start: u64,
    },
}

/// What lies beside the target.
#[derive(Debug, Default)]
struct Survey {
    /// Attempts of which there is anything; each once for each of its files.
    names: Vec<(u64, OsString)>,
}

impl Survey {
    /// The newest attempt; 0 where there is none.
    fn newest(&self) -> u64 {
        self.names.iter().map(|(attempt, _)| *attempt).max().unwrap_or(0)
    }
}

impl SharedOutput {
    /// Run `number` (from 1) of `count` that write `target`.
    ///
    /// # Errors
    /// As [`Destination::of_part`]: a device has no file beside it.
    pub fn of(target: &Path, id: &str, number: usize, count: usize) -> Result<Self, OutputError> {
        let path = Destination::of_part(target)?.into_file()?;
        Ok(Self { target: target.to_owned(), path, id: id.to_owned(), number, count, attempt: 0 })
    }

    /// What all names of this plan have in common.
    fn stem(&self) -> OsString {
        let mut name = self.path.file_name().map(OsString::from).unwrap_or_default();
        name.push(format!("{INTO}{}.", self.id));
        name
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.stem();
        name.push(format!("{}{end}", self.attempt));
        self.path.with_file_name(name)
    }

    fn data(&self) -> PathBuf {
        self.beside("")
    }

    fn mark(&self, number: usize) -> PathBuf {
        self.beside(&format!(".{number}-of-{}", self.count))
    }

    fn journal(&self) -> PathBuf {
        self.beside(&format!(".{}-of-{}.at", self.number, self.count))
    }

    fn done(&self) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.stem());
        name.push(format!("{}{DONE}", self.attempt));
        self.path.with_file_name(name)
    }

    /// Looks for what runs of this plan have left.
    fn survey(&self) -> io::Result<Survey> {
        let stem = self.stem();
        let attempt_of = |name: &OsStr| {
            let bytes = name.as_encoded_bytes();
            let rest = bytes.strip_prefix(b".").filter(|_| bytes.ends_with(DONE.as_bytes())).unwrap_or(bytes);
            let rest = rest.strip_prefix(stem.as_encoded_bytes())?;
            let digits = rest.split(|&byte| byte == b'.').next()?;
            std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
        };
        let mut survey = Survey::default();
        for entry in fs_err::read_dir(parent(&self.path))? {
            let name = entry?.file_name();
            if let Some(attempt) = attempt_of(&name) {
                survey.names.push((attempt, name));
            }
        }
        Ok(survey)
    }

    /// Finds out what there is to do. The file is `n_bytes` long; another run may have begun it.
    ///
    /// # Errors
    /// I/O errors, named with the target.
    pub fn begin(&mut self, n_bytes: u64) -> io::Result<Begun> {
        let failed = |error| named(&self.target.clone(), &error);
        for _ in 0..MAX_TRIES {
            let survey = self.survey().map_err(failed)?;
            self.attempt = survey.newest();
            let is_new = self.attempt == 0 || !self.data().exists();
            if is_new && self.attempt > 0 && self.is_finished().map_err(failed)? {
                self.clear(self.attempt).map_err(failed)?;
                return Ok(Begun::Finished);
            }
            if is_new {
                self.attempt += 1;
            } else if self.mark(self.number).exists() {
                return Ok(Begun::Written);
            }
            let mut options = File::options();
            options.read(true).write(true).create_new(is_new);
            let file = match again(|| options.open(self.data())) {
                Ok(file) => file,
                // Another run was faster, or gave it its name.
                Err(error)
                    if [io::ErrorKind::AlreadyExists, io::ErrorKind::NotFound].contains(&error.kind()) =>
                {
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            fault::point()?;
            if is_new {
                // Looked at again now that nobody else can begin this attempt: it may be one that was through before we looked.
                let attempt = self.attempt;
                let survey = self.survey().map_err(failed)?;
                if survey.newest() > attempt || self.done().exists() {
                    remove(&self.data()).map_err(failed)?;
                    continue;
                }
                self.clear(attempt - 1).map_err(failed)?;
            }
            // All runs set the same length, so that none cuts off what another has written.
            if file.metadata().map_err(failed)?.len() != n_bytes {
                again(|| file.set_len(n_bytes)).map_err(failed)?;
            }
            fault::point()?;
            let start = self.written_to();
            let file = OutputFile { target: self.target.clone(), sink: Sink::Shared(file) };
            return Ok(Begun::At { file, start });
        }
        Err(failed(io::Error::other("other runs keep beginning and ending it")))
    }

    /// Offset in the file before which all of this run's ranges are there; 0 where it has not begun.
    fn written_to(&self) -> u64 {
        // What a power cut has left of a number is a smaller one, or has no end.
        let text = fs_err::read_to_string(self.journal()).unwrap_or_default();
        text.strip_suffix('\n').and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Takes note that all of this run's ranges before `offset` are in the file, on the disk if `sync`.
    ///
    /// # Errors
    /// I/O errors, named with the target.
    pub fn note_written_to(&self, file: &OutputFile, offset: u64, sync: bool) -> io::Result<()> {
        if sync {
            file.sync_data()?;
        }
        fs_err::write(self.journal(), format!("{offset}\n")).map_err(|error| named(&self.target, &error))
    }

    /// Notes that this run's ranges are there, and gives the file its name if it was the last. Returns the numbers of the
    /// runs that are missing.
    ///
    /// # Errors
    /// I/O errors, named with the target; somebody has removed the file.
    pub fn finish(&self, written: Option<&OutputFile>, sync: bool) -> io::Result<Vec<usize>> {
        let failed = |error| named(&self.target, &error);
        if let Some(file) = written {
            if sync {
                file.sync()?;
            }
            fault::point()?;
            fs_err::File::create(self.mark(self.number)).map_err(failed)?;
            fault::point()?;
            remove(&self.journal()).map_err(failed)?;
            if sync {
                sync_directory(parent(&self.path)).map_err(failed)?;
            }
        }
        let missing: Vec<_> = (1..=self.count).filter(|&number| !self.mark(number).exists()).collect();
        let data = fs_err::metadata(self.data());
        if let (Ok(data), true) = (&data, missing.is_empty()) {
            self.note_done(data, sync)?;
            fault::point()?;
            match fs_err::rename(self.data(), &self.path) {
                // Another run was faster.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            fault::point()?;
            if sync {
                sync_directory(parent(&self.path)).map_err(failed)?;
            }
        } else if data.is_ok() {
            return Ok(missing);
        } else if !self.is_target(written, sync).map_err(failed)? {
            remove(&self.mark(self.number)).map_err(failed)?;
            let text =
                format!("{}: removed while it was written: start every part again", self.data().display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.clear(self.attempt).map_err(failed)?;
        self.forget_others().map_err(failed)?;
        Ok(Vec::new())
    }

    /// Notes what the whole is like.
    fn note_done(&self, whole: &Metadata, sync: bool) -> io::Result<()> {
        Ok(OutputFile::write(&self.done(), stamp(whole).as_bytes(), sync)?)
    }

    /// True if the target is the file that the note of this attempt tells of.
    fn is_finished(&self) -> io::Result<bool> {
        let told_of = match fs_err::read_to_string(self.done()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            // A note that is none.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(self.path.metadata().is_ok_and(|found| stamp(&found) == told_of))
    }

    /// The same where this run has the file open: what it wrote when the file had its name already made it younger.
    fn is_target(&self, written: Option<&OutputFile>, sync: bool) -> io::Result<bool> {
        let Some(Sink::Shared(file)) = written.map(|file| &file.sink) else { return self.is_finished() };
        if !matches!((FileId::of(file), FileId::at(&self.path)), (Ok(own), Ok(target)) if own == target) {
            return self.is_finished();
        }
        if self.count > 1 {
            self.note_done(&file.metadata()?, sync)?;
        }
        Ok(true)
    }

    /// Removes what is noted of the attempts up to `last`. That the whole is there stays noted, where others may be started again.
    fn clear(&self, last: u64) -> io::Result<()> {
        let kept = self.done();
        for (attempt, name) in self.survey()?.names {
            let path = self.path.with_file_name(name);
            if attempt <= last && (path != kept || self.count == 1) {
                fault::point()?;
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the notes of other plans: the target is not what they tell of any more.
    fn forget_others(&self) -> io::Result<()> {
        let mut start = OsString::from(".");
        start.push(self.path.file_name().unwrap_or_default());
        start.push(INTO);
        let kept = self.done();
        for entry in fs_err::read_dir(parent(&self.path))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            let is_note = name.starts_with(start.as_encoded_bytes()) && name.ends_with(DONE.as_bytes());
            if is_note && path.file_name() != kept.file_name() {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ab";
    const COUNT: usize = 3;
    const WHOLE: [u8; 6] = [1, 1, 2, 2, 3, 3];
    const NOTE: &str = ".m.gguf.into-ab.1.done";

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn shared(dir: &Path, number: usize) -> SharedOutput {
        SharedOutput::of(&dir.join("m.gguf"), ID, number, COUNT).unwrap()
    }

    fn begin(shared: &mut SharedOutput) -> OutputFile {
        let Begun::At { file, .. } = shared.begin(6).unwrap() else { panic!("nothing to do") };
        file
    }

    fn fill(file: &OutputFile, number: usize) {
        file.write_at(2 * (number as u64 - 1), &[number as u8; 2]).unwrap();
    }

    /// A run as a scheduler starts it.
    fn run(dir: &Path, number: usize) -> io::Result<Vec<usize>> {
        let mut shared = shared(dir, number);
        match shared.begin(6)? {
            Begun::Finished => Ok(Vec::new()),
            Begun::Written => shared.finish(None, true),
            Begun::At { file, .. } => {
                fill(&file, number);
                shared.finish(Some(&file), true)
            }
        }
    }

    fn whole(dir: &Path) -> Vec<u8> {
        fs_err::read(dir.join("m.gguf")).unwrap_or_default()
    }

    #[test]
    fn the_last_gives_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs_err::write(dir.join("m.gguf"), "old").unwrap();
        assert_eq!(run(dir, 2).unwrap(), [1, 3]);
        assert_eq!(run(dir, 3).unwrap(), [1]);
        assert_eq!(whole(dir), b"old");
        assert!(matches!(shared(dir, 3).begin(6).unwrap(), Begun::Written));
        assert_eq!(run(dir, 3).unwrap(), [1]);
        assert_eq!(run(dir, 1).unwrap(), [0; 0]);
        assert_eq!(whole(dir), WHOLE);
        assert_eq!(names(dir), [NOTE, "m.gguf"]);
        // Started again, each has nothing to do.
        for number in 1..=COUNT {
            assert!(matches!(shared(dir, number).begin(6).unwrap(), Begun::Finished));
        }
        assert_eq!(names(dir), [NOTE, "m.gguf"]);
    }

    #[test]
    fn a_target_that_is_another_file_is_no_result() {
        for change in [
            |target: &Path| fs_err::remove_file(target).unwrap(),
            |target: &Path| fs_err::write(target, "another").unwrap(),
            // As long, and written in its place.
            |target: &Path| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                fs_err::write(target, "zzzzzz").unwrap();
            },
        ] {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
            change(&dir.join("m.gguf"));
            assert_eq!(run(dir, 3).unwrap(), [1, 2]);
            assert_eq!(
                names(dir).iter().filter(|name| name.contains(".done")).count(),
                0,
                "{:?}",
                names(dir)
            );
            assert_eq!(run(dir, 1).unwrap(), [2]);
            assert_eq!(run(dir, 2).unwrap(), [0; 0]);
            assert_eq!(whole(dir), WHOLE);
            assert_eq!(names(dir), [".m.gguf.into-ab.2.done", "m.gguf"]);
        }
    }

    #[test]
    fn notes_of_a_file_that_has_gone_count_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(run(dir, 1).unwrap(), [2, 3]);
        assert_eq!(run(dir, 2).unwrap(), [3]);
        fs_err::remove_file(dir.join("m.gguf.into-ab.1")).unwrap();
        fs_err::write(dir.join("m.gguf.into-ab.1.3-of-3.at"), "6\n").unwrap();
        assert_eq!(run(dir, 3).unwrap(), [1, 2]);
        assert_eq!(names(dir), ["m.gguf.into-ab.2", "m.gguf.into-ab.2.3-of-3"]);
        assert!(!dir.join("m.gguf").exists());
        // Whoever was at it when it went does not count either.
        let mut late = shared(dir, 1);
        let file = begin(&mut late);
        fs_err::remove_file(dir.join("m.gguf.into-ab.2")).unwrap();
        let error = late.finish(Some(&file), true).unwrap_err().to_string();
        assert!(error.contains("start every part again"), "{error}");
        for number in [1, 2, 3] {
            run(dir, number).unwrap();
        }
        assert_eq!(whole(dir), WHOLE);
    }

    #[test]
    fn another_plan_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
        let mut other = SharedOutput::of(&dir.join("m.gguf"), "cd", 1, 1).unwrap();
        let Begun::At { file, start: 0 } = other.begin(2).unwrap() else { panic!("nothing to do") };
        file.write_at(0, &[7, 7]).unwrap();
        assert_eq!(other.finish(Some(&file), false).unwrap(), [0; 0]);
        assert_eq!(names(dir), ["m.gguf"]);
        assert_eq!(run(dir, 2).unwrap(), [1, 3]);
    }

    #[test]
    fn a_run_that_was_started_twice() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        run(dir, 1).unwrap();
        run(dir, 2).unwrap();
        let mut late = shared(dir, 3);
        let file = begin(&mut late);
        assert_eq!(run(dir, 3).unwrap(), [0; 0]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fill(&file, 3);
        // Younger than what was noted, by its own writing.
        assert_eq!(late.finish(Some(&file), true).unwrap(), [0; 0]);
        assert_eq!(whole(dir), WHOLE);
        assert_eq!(names(dir), [NOTE, "m.gguf"]);
        assert!(matches!(shared(dir, 1).begin(6).unwrap(), Begun::Finished));
    }

    #[test]
    fn a_run_knows_how_far_it_came() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let open = || {
            let mut shared = SharedOutput::of(&dir.join("m.gguf"), ID, 1, 1).unwrap();
            let Begun::At { file, start } = shared.begin(20).unwrap() else { panic!("nothing to do") };
            (shared, file, start)
        };
        assert_eq!(open().2, 0);
        for offset in [7, 12] {
            // Windows keeps the name of what is open.
            let (shared, file, _) = open();
            shared.note_written_to(&file, offset, true).unwrap();
            drop(file);
            assert_eq!(open().2, offset);
        }
        // Cut short by a power cut: no end, no number.
        fs_err::write(dir.join("m.gguf.into-ab.1.1-of-1.at"), "1").unwrap();
        assert_eq!(open().2, 0);
        fs_err::write(dir.join("m.gguf.into-ab.1.1-of-1.at"), "12\n").unwrap();
        fs_err::remove_file(dir.join("m.gguf.into-ab.1")).unwrap();
        let (shared, file, start) = open();
        assert_eq!(start, 0, "the file itself is gone");
        assert_eq!(shared.finish(Some(&file), true).unwrap(), [0; 0]);
        assert_eq!(names(dir), ["m.gguf"]);
    }

    #[test]
    fn many_at_once_and_again() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            std::thread::scope(|scope| {
                for number in [1, 2, 3, 1, 2, 3] {
                    scope.spawn(move || run(dir, number).unwrap());
                }
            });
            (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
            assert_eq!(whole(dir), WHOLE, "{:?}", names(dir));
            assert_eq!(names(dir).len(), 2, "{:?}", names(dir));
        }
    }

    /// The process that is killed: this test binary once more.
    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "the victim of the test below, not a test"]
    fn victim() {
        let Ok(plan) = std::env::var("GGUF_CORE_TEST_SHARED_VICTIM") else { return };
        let [point, number, dir] = *plan.splitn(3, ' ').collect::<Vec<_>>() else { panic!("{plan}") };
        fault::arm(Some((point.parse().unwrap(), fault::Fault::Kill)));
        run(Path::new(dir), number.parse().unwrap()).unwrap();
        fault::arm(None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn whoever_is_killed_anywhere_and_started_again_ends_in_the_right_file() {
        let (mut n_killed, mut n_named) = (0, 0);
        // Before it: nothing, another run, all other runs, a whole file of this plan, one of nobody's.
        let before: [fn(&Path); 5] = [
            |_| {},
            |dir| drop(run(dir, 1).unwrap()),
            |dir| [1, 2].iter().for_each(|&number| drop(run(dir, number).unwrap())),
            |dir| {
                (1..=COUNT).for_each(|number| drop(run(dir, number).unwrap()));
                fs_err::remove_file(dir.join("m.gguf")).unwrap();
                run(dir, 1).unwrap();
                run(dir, 2).unwrap();
            },
            |dir| {
                fs_err::write(dir.join("m.gguf"), "older!").unwrap();
                run(dir, 2).unwrap();
                run(dir, 1).unwrap();
            },
        ];
        for (state, before) in before.iter().enumerate() {
            for point in 0.. {
                let dir = tempfile::tempdir().unwrap();
                let dir = dir.path();
                before(dir);
                let status = std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "output::shared::tests::victim", "--ignored"])
                    .env("GGUF_CORE_TEST_SHARED_VICTIM", format!("{point} 3 {}", dir.display()))
                    .stdout(std::process::Stdio::null())
                    .status()
                    .unwrap();
                if status.success() {
                    break;
                }
                n_killed += 1;
                n_named += usize::from(whole(dir) == WHOLE);
                // The scheduler starts it again; then the others, which it takes for lost, too.
                for number in [3, 1, 2, 3] {
                    run(dir, number).unwrap();
                    let found = whole(dir);
                    assert!(
                        found == WHOLE || found.is_empty() || found == b"older!",
                        "state {state}, point {point}, then {number}: {found:?}"
                    );
                }
                assert_eq!(whole(dir), WHOLE, "state {state}, point {point}: {:?}", names(dir));
                assert_eq!(names(dir).len(), 2, "state {state}, point {point}: {:?}", names(dir));
            }
        }
        assert!(n_killed > 25 && n_named > 8, "{n_killed} {n_named}");
    }
}
