//! Guard against outputs that would replace a file that the run reads, another output of the run, or a file of another
//! kind.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::edit_lock::FileState;
use super::link::follow;
use super::{OutputError, named, parent, same_file};
use crate::Hint;
use crate::platform::{self, FileId};

mod kind;

pub use kind::{CARD_DRAFT, CHART, FoundKind, LADDER_PAGE, MODELFILE, OutputKind};

/// Bytes read to detect the kind of a file.
const HEAD_BYTES: u64 = 64 << 10;
/// Maximum number of directory entries that are checked; files beyond them are protected by their kind alone.
const MAX_ENTRIES: usize = 20_000;

/// Reason why an output may not replace an existing file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum GuardError {
    #[error("{}: output is the same file as input {}{}", output.display(), input.display(), in_brackets(role))]
    SameFile { output: PathBuf, input: PathBuf, role: &'static str },
    #[error("{}: {first} and {second} are the same file", output.display())]
    Twice { output: PathBuf, first: &'static str, second: &'static str },
    #[error("{}: this is {found}, which {kind} does not replace", output.display())]
    OtherKind { output: PathBuf, found: FoundKind, kind: OutputKind },
    #[error("{}: {found} took this name while the output was written, and is not replaced", output.display())]
    Taken { output: PathBuf, found: &'static str },
    #[error("{}: the file that it would replace is read-only", output.display())]
    ReadOnly { output: PathBuf },
    #[error("{}: what it would replace cannot be read: {error}", output.display())]
    Unreadable { output: PathBuf, error: io::Error },
}

fn in_brackets(role: &str) -> String {
    if role.is_empty() { String::new() } else { format!(" ({role})") }
}

impl GuardError {
    /// Returns true if the arguments contradict each other, whatever the files contain.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::SameFile { .. } | Self::Twice { .. })
    }
}

impl Hint for GuardError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::SameFile { .. } | Self::Twice { .. } => "give the output another name",
            Self::OtherKind { .. } | Self::Unreadable { .. } => {
                "give the output another name, or remove that file first"
            }
            Self::ReadOnly { .. } => "give the output another name, or allow it with `chmod u+w`",
            Self::Taken { .. } => "move it away and run the command again, or give the output another name",
        };
        vec![hint.to_owned()]
    }
}

/// The inputs and outputs of a run, registered in any order. Each is checked against the earlier ones, so that nothing
/// has to be undone when one is refused.
#[derive(Debug, Default)]
pub struct OutputGuard {
    inputs: Vec<GuardedInput>,
    outputs: Vec<GuardedOutput>,
}

#[derive(Debug)]
struct GuardedInput {
    identity: FileIdentity,
    role: &'static str,
    /// True for a file in a directory that is read, which is perhaps not read itself.
    is_in_directory: bool,
}

#[derive(Debug)]
struct GuardedOutput {
    identity: FileIdentity,
    option: &'static str,
    /// True if there is a file of that kind, which may be replaced unless it is named as an input.
    is_own_kind: bool,
}

impl OutputGuard {
    /// Registers an input: a file, or a directory whose files are read. A missing path is no input; devices and FIFOs
    /// cannot be replaced. `role` names its purpose: `the card`.
    ///
    /// Files in a directory are no inputs if they are of the kind of the output: an output of an earlier run may be
    /// replaced there.
    ///
    /// # Errors
    /// [`GuardError::SameFile`] for an output that was registered before. The input is registered all the same.
    pub fn read(&mut self, role: &'static str, path: &Path) -> Result<(), GuardError> {
        let mut found = Vec::new();
        if path.is_dir() {
            // A directory that cannot be listed cannot be read either; opening it reports that.
            let entries = fs_err::read_dir(path).into_iter().flatten().flatten();
            found.extend(entries.take(MAX_ENTRIES).map(|entry| (entry.path(), true)));
        } else {
            found.push((path.to_owned(), false));
        }
        let first = self.inputs.len();
        for (path, is_in_directory) in found {
            if let Some(identity) = FileIdentity::of_file(&path) {
                self.inputs.push(GuardedInput { identity, role, is_in_directory });
            }
        }
        let mut pairs =
            self.outputs.iter().flat_map(|output| self.inputs[first..].iter().map(move |i| (output, i)));
        pairs.try_for_each(|(output, input)| apart(output, input))
    }

    /// Registers an output, with the option that names it.
    ///
    /// # Errors
    /// [`GuardError`]. The output is registered all the same.
    pub fn write(&mut self, option: &'static str, path: &Path, kind: OutputKind) -> Result<(), GuardError> {
        // Without a file, existing or possible, nothing can be lost; the destination reports the reason.
        let Some(identity) = FileIdentity::of(path) else { return Ok(()) };
        let found = kind_of(path);
        let is_own_kind =
            matches!(found, Ok(Some(found)) if found != FoundKind::Empty && kind.replaces(found));
        let output = GuardedOutput { identity, option, is_own_kind };
        let checked = self.check(&output, found, kind);
        self.outputs.push(output);
        checked
    }

    fn check(
        &self,
        output: &GuardedOutput,
        found: io::Result<Option<FoundKind>>,
        kind: OutputKind,
    ) -> Result<(), GuardError> {
        for input in &self.inputs {
            apart(output, input)?;
        }
        if let Some(other) = self.outputs.iter().find(|other| other.identity.is(&output.identity)) {
            let (first, second) = (other.option, output.option);
            return Err(GuardError::Twice { output: output.identity.path.clone(), first, second });
        }
        replaceable(&output.identity.path, found, kind)
    }
}

fn apart(output: &GuardedOutput, input: &GuardedInput) -> Result<(), GuardError> {
    if output.identity.is(&input.identity) && !(input.is_in_directory && output.is_own_kind) {
        let (output, input, role) = (output.identity.path.clone(), input.identity.path.clone(), input.role);
        return Err(GuardError::SameFile { output, input, role });
    }
    Ok(())
}

/// Refuses an output that would replace a file of another kind. Empty files pass, and so do paths that are not files.
pub fn check_kind(target: &Path, kind: OutputKind) -> Result<(), GuardError> {
    replaceable(target, kind_of(target), kind)
}

fn replaceable(
    target: &Path,
    found: io::Result<Option<FoundKind>>,
    kind: OutputKind,
) -> Result<(), GuardError> {
    match found {
        Ok(Some(found)) if !kind.replaces(found) => {
            Err(GuardError::OtherKind { output: target.to_owned(), found, kind })
        }
        // A rename would replace it, whatever its owner wanted.
        Ok(Some(_)) if target.metadata().is_ok_and(|found| found.permissions().readonly()) => {
            Err(GuardError::ReadOnly { output: target.to_owned() })
        }
        Ok(_) => Ok(()),
        Err(error) => Err(GuardError::Unreadable { output: target.to_owned(), error }),
    }
}

/// Refuses to replace what took the name of a written file in the meantime: anything but a file of the same kind.
/// `before` is the state of the file of that name when the written file was begun, which an edit may replace.
pub(super) fn look_again(
    own: &File,
    path: &Path,
    before: Option<&FileState>,
    is_edit: bool,
) -> io::Result<()> {
    let refused = |error| Err(io::Error::other(OutputError::Guard(error)));
    let taken = |found| refused(GuardError::Taken { output: path.to_owned(), found });
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if found.is_file() => {}
        Ok(found) if found.is_dir() => return taken("a directory"),
        Ok(found) if found.is_symlink() => return taken("a symbolic link"),
        Ok(_) => return taken("a device, FIFO or socket"),
        Err(error) => return Err(named(path, &error)),
    }
    let own = kind_of_file(own)?;
    // Whole files of these kinds may be begun at the end of a run only.
    let is_judged = is_edit || !matches!(own, FoundKind::Output(_));
    if is_judged && before.is_some() && FileState::at(path).as_ref() == before {
        return Ok(());
    }
    match (kind_of(path), own) {
        (Ok(Some(found)), FoundKind::Output(kind)) if kind.replaces(found) => Ok(()),
        (Ok(Some(found)), own) if found == own || found == FoundKind::Empty => Ok(()),
        (Ok(Some(_)), _) => taken("another file"),
        (Ok(None), _) => Ok(()),
        // It is gone again.
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        (Err(error), _) => refused(GuardError::Unreadable { output: path.to_owned(), error }),
    }
}

/// Returns the kind of the file at a path; `None` if it is not a regular file.
fn kind_of(path: &Path) -> io::Result<Option<FoundKind>> {
    match path.metadata() {
        Ok(found) if found.is_file() => {}
        _ => return Ok(None),
    }
    kind_of_file(&File::options().read(true).open(path)?).map(Some)
}

fn kind_of_file(file: &File) -> io::Result<FoundKind> {
    let file_bytes = file.metadata()?.len();
    let mut head = vec![0; usize::try_from(file_bytes.min(HEAD_BYTES)).unwrap_or(0)];
    platform::read_exact_at(file, &mut head, 0)?;
    Ok(FoundKind::of(&head, file_bytes))
}

/// Identity of a file, whatever its name.
#[derive(Debug)]
struct FileIdentity {
    path: PathBuf,
    /// Identity of an existing file on its file system.
    id: Option<FileId>,
    /// Path after following links, for a file that may not exist yet.
    name: Option<PathBuf>,
}

impl FileIdentity {
    /// Returns the identity of an existing regular file.
    fn of_file(path: &Path) -> Option<Self> {
        path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { path: path.to_owned(), id: FileId::at(path).ok(), name: path.canonicalize().ok() })
    }

    /// Returns the identity of a regular file that exists or may be created.
    fn of(path: &Path) -> Option<Self> {
        if path.metadata().is_ok() {
            return Self::of_file(path);
        }
        let target = follow(path).ok()?;
        let name = parent(&target).canonicalize().ok()?.join(target.file_name()?);
        Some(Self { path: path.to_owned(), id: None, name: Some(name) })
    }

    fn is(&self, other: &Self) -> bool {
        // Another program may have replaced one file since, and the other may have got its number.
        let has_id = self.id.is_some() && self.id == other.id && same_file(&self.path, &other.path);
        has_id || (self.name.is_some() && self.name == other.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(done: Result<(), GuardError>) -> String {
        done.unwrap_err().to_string()
    }

    #[test]
    fn a_number_that_another_file_had_before_is_no_identity() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first.gguf", "second.gguf"].map(|name| dir.path().join(name));
        fs_err::write(&first, "GGUF").unwrap();
        fs_err::write(&second, "GGUF").unwrap();
        let before = FileIdentity::of(&second).unwrap();
        // As if the first file were replaced and the second got its number.
        let reused = FileIdentity { id: FileIdentity::of(&first).unwrap().id, ..before };
        assert!(!FileIdentity::of(&first).unwrap().is(&reused));
        fs_err::remove_file(&second).unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        assert!(FileIdentity::of(&first).unwrap().is(&FileIdentity::of(&second).unwrap()));
    }

    #[test]
    fn a_file_that_is_read_only_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.gguf");
        fs_err::write(&path, "GGUF").unwrap();
        let write = || OutputGuard::default().write("-o", &path, OutputKind::Model);
        write().unwrap();
        let mut mode = fs_err::metadata(&path).unwrap().permissions();
        mode.set_readonly(true);
        fs_err::set_permissions(&path, mode).unwrap();
        assert!(refusal(write()).ends_with("o.gguf: the file that it would replace is read-only"));
    }

    #[cfg(unix)]
    #[test]
    fn an_input_is_no_output_by_any_name_and_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::write(at("in"), b"GGUF").unwrap();
        fs_err::hard_link(at("in"), at("hard")).unwrap();
        std::os::unix::fs::symlink("in", at("soft")).unwrap();
        for name in ["in", "hard", "soft", "../x/in"] {
            let path = if name.contains('/') { dir.path().join("./in") } else { at(name) };
            let mut guard = OutputGuard::default();
            guard.read("the model", &at("in")).unwrap();
            let text = refusal(guard.write("-o", &path, OutputKind::Model));
            let expected = "output is the same file as input";
            assert!(text.contains(expected) && text.ends_with("in (the model)"), "{text}");
            let mut guard = OutputGuard::default();
            guard.write("-o", &path, OutputKind::Model).unwrap();
            assert!(refusal(guard.read("the model", &at("in"))).contains(expected));
        }
    }

    #[cfg(unix)]
    #[test]
    fn two_outputs_are_two_files_also_where_none_is_yet() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::create_dir(at("sub")).unwrap();
        std::os::unix::fs::symlink("a.json", at("link")).unwrap();
        std::os::unix::fs::symlink("sub", at("other")).unwrap();
        for (one, two) in [("a.json", "link"), ("sub/b", "other/b"), ("c", "./c")] {
            let mut guard = OutputGuard::default();
            guard.write("--report", &at(one), OutputKind::Json).unwrap();
            let text = refusal(guard.write("--per-token", &at(two), OutputKind::PerToken));
            assert!(text.ends_with("--report and --per-token are the same file"), "{text}");
        }
        let mut guard = OutputGuard::default();
        guard.write("--report", &at("a"), OutputKind::Json).unwrap();
        guard.write("--per-token", &at("b"), OutputKind::PerToken).unwrap();
        // A device holds no file that could be replaced.
        for option in ["--report", "--per-token"] {
            guard.write(option, Path::new("/dev/null"), OutputKind::Json).unwrap();
        }
        guard.read("the prompts", Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn files_in_a_directory_that_is_read_stay_unless_a_run_wrote_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::write(at("config.json"), b"{}").unwrap();
        fs_err::write(at("empty.json"), b"").unwrap();
        fs_err::write(at("old.gguf"), b"GGUF").unwrap();
        let mut guard = OutputGuard::default();
        guard.read("the checkpoint", dir.path()).unwrap();
        for name in ["config.json", "empty.json"] {
            let text = refusal(guard.write("-o", &at(name), OutputKind::Model));
            assert!(text.contains("output is the same file as input"), "{text}");
        }
        guard.write("-o", &at("old.gguf"), OutputKind::Model).unwrap();
        guard.write("-o", &at("new.gguf"), OutputKind::Model).unwrap();
        // Named by itself, it is an input.
        assert!(refusal(guard.read("the model", &at("old.gguf"))).contains("same file"));
    }

    #[test]
    fn only_its_own_kind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("card.toml");
        fs_err::write(&path, "name = \"x\"\n").unwrap();
        let error = check_kind(&path, OutputKind::Model).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{}: this is a text file, which a GGUF model does not replace", path.display())
        );
        assert!(!error.is_usage() && error.hints()[0].contains("remove that file first"));
        fs_err::write(&path, "").unwrap();
        check_kind(&path, OutputKind::Model).unwrap();
        check_kind(&dir.path().join("new"), OutputKind::Model).unwrap();
        check_kind(dir.path(), OutputKind::Model).unwrap();
    }

    #[cfg(unix)]
    type Taker<'a> = &'a dyn Fn(&Path);

    #[cfg(unix)]
    #[test]
    fn what_takes_a_name_while_the_file_is_written_is_kept() {
        use super::super::OutputFile;
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("out"), dir.path().join("other"));
        let gguf = b"GGUF\x03\0\0\0";
        let page = b"## a: verification\n\n**Verdict: pass.**";
        let text = b"mine";
        let at = |bytes: &'static [u8]| move |path: &Path| fs_err::write(path, bytes).unwrap();
        let link = |path: &Path| std::os::unix::fs::symlink("elsewhere", path).unwrap();
        let fifo = |path: &Path| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        };
        let directory = |path: &Path| fs_err::create_dir(path).unwrap();
        let cases: [(&[u8], Taker<'_>, Option<&str>); 11] = [
            (gguf, &at(text), Some("another file")),
            (gguf, &at(page), Some("another file")),
            (gguf, &at(gguf), None),
            (gguf, &at(b""), None),
            (page, &at(text), Some("another file")),
            (page, &at(page), None),
            (text, &at(b"theirs"), None),
            (text, &at(gguf), Some("another file")),
            (gguf, &link, Some("a symbolic link")),
            (gguf, &fifo, Some("a device, FIFO or socket")),
            (text, &directory, Some("a directory")),
        ];
        for (own, take, expected) in cases {
            // Alone, and as the second of a set.
            for with_other in [false, true] {
                let begun = [Some(&path), Some(&other).filter(|_| with_other)];
                let outputs = begun.into_iter().flatten().map(|path| {
                    let output = OutputFile::create(path).unwrap();
                    output.write_at(0, own).unwrap();
                    output
                });
                let outputs: Vec<_> = outputs.collect();
                take(&path);
                let before = path.symlink_metadata().unwrap();
                let done = OutputFile::commit_all(outputs, false).map_err(|error| error.to_string());
                let n_names = 1 + usize::from(with_other && expected.is_none());
                assert_eq!(dir.path().read_dir().unwrap().count(), n_names);
                match expected {
                    None => assert_eq!(fs_err::read(&path).unwrap(), own),
                    Some(found) => {
                        let text = format!("{}: {found} took this name while", path.display());
                        assert!(done.unwrap_err().starts_with(&text));
                        assert_eq!(path.symlink_metadata().unwrap().file_type(), before.file_type());
                    }
                }
                drop(fs_err::remove_file(&path).or_else(|_| fs_err::remove_dir(&path)));
                drop(fs_err::remove_file(&other));
            }
        }
        // A file that was there from the beginning has been judged before.
        fs_err::write(&path, [0; 9]).unwrap();
        OutputFile::write(&path, b"notes", false).unwrap();
        assert_eq!(fs_err::read(&path).unwrap(), b"notes");
    }
}
