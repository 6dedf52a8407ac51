//! What an output must not replace: a file that the run reads, another output of it, and a file that is not of the kind
//! that would take its place.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::destination::follow;
use super::parent;
use crate::Hint;
use crate::platform::FileId;

mod kind;

pub use kind::{CARD_DRAFT, FoundKind, OutputKind};

/// Bytes by which the kind of a file is told.
const HEAD_BYTES: u64 = 64 << 10;
/// Files of a directory that are looked at; those behind them are told by their kind alone.
const MAX_ENTRIES: usize = 20_000;

/// Why an output may not be written where something is already.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The output is a file that the run reads.
    #[error("{}: output is the same file as input {}{}", output.display(), input.display(), in_brackets(role))]
    SameFile {
        /// The output.
        output: PathBuf,
        /// The input.
        input: PathBuf,
        /// What the input is for; may be empty.
        role: &'static str,
    },
    /// Two outputs of one run are one file.
    #[error("{}: {first} and {second} are the same file", output.display())]
    Twice {
        /// The output.
        output: PathBuf,
        /// The option of the one.
        first: &'static str,
        /// The option of the other.
        second: &'static str,
    },
    /// Something else than what would be written.
    #[error("{}: this is {found}, which {kind} does not replace", output.display())]
    OtherKind {
        /// The output.
        output: PathBuf,
        /// What stands there.
        found: FoundKind,
        /// What would be written.
        kind: OutputKind,
    },
    /// What stands there cannot be looked at.
    #[error("{}: what it would replace cannot be read: {error}", output.display())]
    Unreadable {
        /// The output.
        output: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

fn in_brackets(role: &str) -> String {
    if role.is_empty() { String::new() } else { format!(" ({role})") }
}

impl GuardError {
    /// True where arguments contradict one another, whatever the files hold.
    #[must_use]
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
        };
        vec![hint.to_owned()]
    }
}

/// The files of a run: what it reads and what it is going to write, told in any order. Each is held against those that
/// were told before, so that nothing has to be undone when one is refused.
#[derive(Debug, Default)]
pub struct OutputGuard {
    inputs: Vec<Input>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Input {
    path: PathBuf,
    place: Place,
    role: &'static str,
    /// Lies in a directory that is read, and perhaps is not read itself.
    is_guest: bool,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    place: Place,
    option: &'static str,
    /// There is a file of that kind, which may be replaced unless it is named as an input.
    is_own_kind: bool,
}

impl OutputGuard {
    /// Tells of an input: a file, or a directory whose files are read. What is not there is no input; devices and FIFOs
    /// cannot be replaced. `role` says what it is for: `the card`.
    ///
    /// Of the files in a directory those are no inputs that are of the kind of the output: what an earlier run wrote
    /// there may be written anew.
    ///
    /// # Errors
    /// [`GuardError::SameFile`]: an output that was told before. The input is remembered all the same.
    pub fn read(&mut self, role: &'static str, path: &Path) -> Result<(), GuardError> {
        let mut found = Vec::new();
        if path.is_dir() {
            // A directory that cannot be listed cannot be read either: whoever opens it says so.
            let entries = fs_err::read_dir(path).into_iter().flatten().flatten();
            found.extend(entries.take(MAX_ENTRIES).map(|entry| (entry.path(), true)));
        } else {
            found.push((path.to_owned(), false));
        }
        let first = self.inputs.len();
        for (path, is_guest) in found {
            if let Some(place) = Place::of_file(&path) {
                self.inputs.push(Input { path, place, role, is_guest });
            }
        }
        let mut pairs =
            self.outputs.iter().flat_map(|output| self.inputs[first..].iter().map(move |i| (output, i)));
        pairs.try_for_each(|(output, input)| apart(output, input))
    }

    /// Tells of an output, by the option that names it.
    ///
    /// # Errors
    /// [`GuardError`]. The output is remembered all the same.
    pub fn write(&mut self, option: &'static str, path: &Path, kind: OutputKind) -> Result<(), GuardError> {
        // Where no file is and none can be, there is nothing to lose; the destination says why.
        let Some(place) = Place::of(path) else { return Ok(()) };
        let found = kind_of(path);
        let is_own_kind =
            matches!(found, Ok(Some(found)) if found != FoundKind::Empty && kind.replaces(found));
        let output = Output { path: path.to_owned(), place, option, is_own_kind };
        let checked = self.check(&output, found, kind);
        self.outputs.push(output);
        checked
    }

    fn check(
        &self,
        output: &Output,
        found: io::Result<Option<FoundKind>>,
        kind: OutputKind,
    ) -> Result<(), GuardError> {
        for input in &self.inputs {
            apart(output, input)?;
        }
        if let Some(other) = self.outputs.iter().find(|other| other.place.is(&output.place)) {
            let (first, second) = (other.option, output.option);
            return Err(GuardError::Twice { output: output.path.clone(), first, second });
        }
        replaceable(&output.path, found, kind)
    }
}

fn apart(output: &Output, input: &Input) -> Result<(), GuardError> {
    if output.place.is(&input.place) && !(input.is_guest && output.is_own_kind) {
        let (output, input, role) = (output.path.clone(), input.path.clone(), input.role);
        return Err(GuardError::SameFile { output, input, role });
    }
    Ok(())
}

/// Refuses an output that would replace a file of another kind. Empty files, and what is no file, may be replaced or are
/// not.
///
/// # Errors
/// [`GuardError::OtherKind`], [`GuardError::Unreadable`].
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
        Ok(_) => Ok(()),
        Err(error) => Err(GuardError::Unreadable { output: target.to_owned(), error }),
    }
}

/// What stands at a path; `None` if that is no regular file.
fn kind_of(path: &Path) -> io::Result<Option<FoundKind>> {
    match path.metadata() {
        Ok(found) if found.is_file() => {}
        _ => return Ok(None),
    }
    let file = std::fs::File::options().read(true).open(path)?;
    let file_bytes = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(Some(FoundKind::of(&head, file_bytes)))
}

/// What a path stands for, whatever it is called.
#[derive(Debug)]
struct Place {
    /// What a file that is there is on its file system.
    id: Option<FileId>,
    /// The name where links lead, for a file that is to come.
    name: Option<PathBuf>,
}

impl Place {
    /// Of a regular file that is there.
    fn of_file(path: &Path) -> Option<Self> {
        path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { id: FileId::at(path).ok(), name: path.canonicalize().ok() })
    }

    /// Of a regular file that is there or may come.
    fn of(path: &Path) -> Option<Self> {
        if path.metadata().is_ok() {
            return Self::of_file(path);
        }
        let path = follow(path).ok()?;
        let name = parent(&path).canonicalize().ok()?.join(path.file_name()?);
        Some(Self { id: None, name: Some(name) })
    }

    fn is(&self, other: &Self) -> bool {
        (self.id.is_some() && self.id == other.id) || (self.name.is_some() && self.name == other.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(done: Result<(), GuardError>) -> String {
        done.unwrap_err().to_string()
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
        // What is written to a device meets nothing there.
        for option in ["--report", "--per-token"] {
            guard.write(option, Path::new("/dev/null"), OutputKind::Json).unwrap();
        }
        guard.read("the prompts", Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn what_lies_in_a_directory_that_is_read_stays_unless_a_run_wrote_it() {
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
        // Named itself, it is an input.
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
}
