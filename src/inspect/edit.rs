//! Changes to the metadata of a file: planned first, with what speaks against them, then written.

mod apply;
mod error;
mod objection;
mod tensors;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::core::output::{EditLock, OutputKind};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::split::{SPLIT_COUNT, SPLIT_NO, part_suffix};
use crate::gguf::{
    Assignment, GgufError, GgufFile, Metadata, OpenOptions, Strictness, Value, WriteOptions, WriteReport,
    output_kind, write_files,
};
use crate::inspect::template::PLAIN;
use apply::{role_key, role_names};
use objection::Case;
use tensors::EditedTensors;

pub use error::EditError;
pub use objection::Objection;

/// How long another program that changes the same file is waited for, and when the user is told.
const WAIT: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_secs(1);

/// A wish.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Set a key: in place where it is there, at the end where it is not. The type is the one that is named, else that
    /// of the value before, else that of the well-known key.
    Set(Assignment),
    /// Remove a key.
    Remove(String),
    /// Set the id of a special token: its key, and the token's text, which is looked up in the vocabulary.
    Special {
        /// The key of its role.
        key: &'static str,
        /// The text, as it stands in the vocabulary.
        token: String,
    },
    /// Give a tensor another name.
    Rename {
        /// Its name.
        from: String,
        /// The name that it gets.
        to: String,
    },
    /// Leave out the tensors in whose names the expression is found.
    Drop(regex::Regex),
    /// Put these chat templates, as [`crate::inspect::read_templates`] gives them, in the place of all that there are.
    Templates(Metadata),
}

impl Edit {
    /// Reads `KEY=VALUE` or `KEY=TYPE:VALUE`. A value `@FILE` is the content of that file, less one line feed at its
    /// end; one that itself begins with `@` is written with two.
    ///
    /// # Errors
    /// [`EditError::Assign`] and [`EditError::ValueFile`].
    pub fn set(text: &str) -> Result<Self, EditError> {
        let mut assignment = Assignment::parse(text)?;
        let value = match assignment.text.as_slice() {
            [b'@', b'@', ..] => Some(assignment.text[1..].to_vec()),
            _ => match Self::value_file(text) {
                Some(path) => {
                    let failed = |error| EditError::ValueFile { key: assignment.key.clone(), error };
                    let mut bytes = crate::core::input::read(&path).map_err(failed)?;
                    if bytes.last() == Some(&b'\n') {
                        bytes.pop();
                    }
                    Some(bytes)
                }
                None => None,
            },
        };
        if let Some(value) = value {
            assignment.text = value;
        }
        Ok(Self::Set(assignment))
    }

    /// The file that an assignment takes its value from.
    #[must_use]
    pub fn value_file(text: &str) -> Option<PathBuf> {
        match Assignment::parse(text).ok()?.text.as_slice() {
            [b'@', b'@', ..] => None,
            [b'@', name @ ..] if !name.is_empty() => Some(String::from_utf8_lossy(name).into_owned().into()),
            _ => None,
        }
    }

    /// Reads `ROLE=TOKEN`: `eos=<|im_end|>`.
    ///
    /// # Errors
    /// [`EditError::SpecialForm`] and [`EditError::Role`].
    pub fn special(text: &str) -> Result<Self, EditError> {
        let form = || EditError::SpecialForm { text: text.to_owned() };
        let (role, token) = text.split_once('=').filter(|(_, token)| !token.is_empty()).ok_or_else(form)?;
        let unknown = || EditError::Role { found: role.to_owned(), known: role_names() };
        Ok(Self::Special { key: role_key(role).ok_or_else(unknown)?, token: token.to_owned() })
    }

    /// Reads `OLD=NEW`.
    ///
    /// # Errors
    /// [`EditError::RenameForm`].
    pub fn rename(text: &str) -> Result<Self, EditError> {
        let form = || EditError::RenameForm { text: text.to_owned() };
        let (from, to) =
            text.split_once('=').filter(|(from, to)| !from.is_empty() && !to.is_empty()).ok_or_else(form)?;
        Ok(Self::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    /// Reads the expression of [`Edit::Drop`].
    ///
    /// # Errors
    /// [`EditError::Pattern`].
    pub fn drop(pattern: &str) -> Result<Self, EditError> {
        let bad = |error| EditError::Pattern { pattern: pattern.to_owned(), error: Box::new(error) };
        regex::Regex::new(pattern).map(Self::Drop).map_err(bad)
    }

    /// True for a change of the list of tensors.
    fn is_of_tensors(&self) -> bool {
        matches!(self, Self::Rename { .. } | Self::Drop(_))
    }

    /// The key that says where it belongs; `None` for a change of tensors.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Set(assignment) => Some(&assignment.key),
            Self::Remove(key) => Some(key),
            Self::Special { key, .. } => Some(key),
            Self::Templates(_) => Some(PLAIN),
            Self::Rename { .. } | Self::Drop(_) => None,
        }
    }
}

/// What happens to one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value in the input; `None` for a new key.
    pub before: Option<Value>,
    /// Its value in the output; `None` for a key that goes.
    pub after: Option<Value>,
}

/// Changes to one file that are worked out and not made.
#[derive(Debug)]
pub struct EditPlan {
    file: GgufFile,
    metadata: Metadata,
    changes: Vec<Change>,
    tensors: EditedTensors,
    objections: Vec<Objection>,
    target: PathBuf,
    file_bytes: u64,
    /// On the file, if it is the one that is replaced.
    lock: Option<EditLock>,
    inputs: Vec<PathBuf>,
}

impl EditPlan {
    /// Works out what edits do to `input`. The output is `output`, or the file itself, which is replaced when the new
    /// one is complete.
    ///
    /// A file that is to be replaced is locked (advisory, `flock`) before it is read, as long as the plan lives, so that
    /// of two programs that edit it at the same time the second sees what the first wrote. It waits for half a minute,
    /// then gives up.
    ///
    /// Of a split model only one part is rewritten: the one given if it has all the keys, else the first, which is
    /// where readers look for them.
    ///
    /// # Errors
    /// [`EditError`]; objections are none.
    pub fn new(
        input: &Path,
        output: Option<&Path>,
        edits: &[Edit],
        progress: &dyn Progress,
    ) -> Result<Self, EditError> {
        let (file, lock) = match output {
            Some(_) => (home_of(input, output, edits)?, None),
            None => locked_home_of(input, edits, progress).map(|(file, lock)| (file, Some(lock)))?,
        };
        let before = file.metadata();
        let mut metadata = before.clone();
        let mut keys = Vec::new();
        let mut edited = EditedTensors::of(&file);
        for edit in edits {
            keys.extend(edit.apply(&mut metadata, file.path(), progress)?);
            edited.apply(edit, &file)?;
        }
        let changes = changes(before, &metadata, &keys);
        // Without the other parts the model as a whole cannot be judged; its keys can.
        let whole = GgufFile::open_foreign(file.path()).ok();
        let tensors = whole.as_ref().map(TensorSource::tensors);
        let inputs = whole.as_ref().map_or_else(|| file.paths(), GgufFile::paths);
        let tensors_after = if edited.changes().is_empty() { tensors } else { Some(edited.metas()) };
        let case = Case { before, after: &metadata, tensors, tensors_after, changes: &changes };
        let objections = case.objections();
        // A link is edited where it leads, not replaced by a file.
        let target = output.unwrap_or(file.path());
        let target = fs_err::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let planned = edited.plan(&target, &metadata, &file)?;
        let file_bytes = planned.plan.file_bytes;
        Ok(Self { file, metadata, changes, tensors: edited, objections, target, file_bytes, lock, inputs })
    }

    /// What the output will be.
    #[must_use]
    pub fn kind(&self) -> OutputKind {
        output_kind(&self.metadata)
    }

    /// The files that are read: of a split model all parts that are there.
    #[must_use]
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }

    /// The file that would be written.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// What [`EditPlan::write`] would report.
    #[must_use]
    pub fn report(&self) -> WriteReport {
        WriteReport {
            paths: vec![self.target.clone()],
            tensors: 0..self.tensors.metas().len(),
            tensor_bytes: self.tensors.n_bytes(&self.file),
            file_bytes: self.file_bytes,
            missing: Vec::new(),
            resumed_at: 0,
            was_there: false,
        }
    }

    /// What would change, in the order of the edits; nothing for keys that keep their values.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The tensors that get another name, or (`None`) are left out.
    #[must_use]
    pub fn tensor_changes(&self) -> &[(String, Option<String>)] {
        self.tensors.changes()
    }

    /// What speaks against it.
    #[must_use]
    pub fn objections(&self) -> &[Objection] {
        &self.objections
    }

    /// Takes note of what somebody else found to speak against it.
    pub fn object(&mut self, objection: Objection) {
        self.objections.push(objection);
    }

    /// The plan, if nothing speaks against it.
    ///
    /// # Errors
    /// [`EditError::Refused`] with all objections.
    pub fn agreed(self) -> Result<Self, EditError> {
        if self.objections.is_empty() {
            return Ok(self);
        }
        Err(EditError::Refused { path: self.file.path().to_owned(), objections: self.objections })
    }

    /// Writes the file, whatever speaks against it. The mapped input stays readable while the output takes its name.
    ///
    /// # Errors
    /// [`EditError::Write`]; the input is then as it was.
    pub fn write(&self, options: &WriteOptions, progress: &dyn Progress) -> Result<WriteReport, EditError> {
        let n_trailing = self.file.trailing_bytes();
        if n_trailing > 0 {
            let path = self.file.path().display().to_string();
            let path = escape(&path);
            progress.warn(&format!("{path}: {n_trailing} bytes after the last tensor are left out"));
        }
        let permissions = fs_err::metadata(&self.target).map(|metadata| metadata.permissions());
        let in_place = self.lock.is_some();
        let inputs = if in_place { Vec::new() } else { self.inputs.clone() };
        let options = WriteOptions { layout: self.file.layout(), inputs, in_place, ..options.clone() };
        if let Some(lock) = &self.lock {
            if !lock.is_locked() {
                let path = lock.path().display().to_string();
                let path = escape(&path);
                let text = "there are no locks here: another program that edits it now would not be noticed";
                progress.warn(&format!("{path}: {text}"));
            }
            if lock.has_changed() {
                return Err(EditError::Changed { path: lock.path().to_owned() });
            }
        }
        let planned = self.tensors.plan(&self.target, &self.metadata, &self.file)?;
        let source = self.tensors.source(&self.file);
        let kind = (self.kind(), None);
        let report = write_files(&self.target, vec![planned], kind, &source, &options, progress)?;
        if let Ok(permissions) = permissions {
            // Whoever could not read the old file should not read the new one. Not our file: then not our choice.
            let _ = fs_err::set_permissions(&self.target, permissions);
        }
        Ok(report)
    }
}

/// Lists the objections to new `values` of a model's keys, its `tensors` staying as they are.
pub fn objections_to(
    before: &Metadata,
    values: &[(String, Value)],
    tensors: &[TensorMeta],
) -> Vec<Objection> {
    let mut after = before.clone();
    for (key, value) in values {
        after.set(key.as_str(), value.clone());
    }
    let keys: Vec<String> = values.iter().map(|(key, _)| key.clone()).collect();
    let changes = changes(before, &after, &keys);
    let tensors = Some(tensors);
    Case { before, after: &after, tensors, tensors_after: tensors, changes: &changes }.objections()
}

/// What differs, each key once.
fn changes(before: &Metadata, after: &Metadata, keys: &[String]) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        if old != new && changes.iter().all(|change| change.key != *key) {
            changes.push(Change { key: key.clone(), before: old.cloned(), after: new.cloned() });
        }
    }
    changes
}

/// The file, or the part of a split model, that the keys belong to.
fn home_of(input: &Path, output: Option<&Path>, edits: &[Edit]) -> Result<GgufFile, EditError> {
    let file = open_alone(input)?;
    let number = |key| file.metadata().get(key).and_then(Value::as_u64);
    let (part, n_parts) = (number(SPLIT_NO).unwrap_or(0), number(SPLIT_COUNT).unwrap_or(0));
    if n_parts > 1 && edits.iter().any(Edit::is_of_tensors) {
        return Err(EditError::OfParts { path: input.to_owned() });
    }
    let foreign = edits.iter().filter_map(Edit::key).find(|key| !file.metadata().contains(key));
    let (Some(key), true) = (foreign, part > 0 && n_parts > 1) else { return Ok(file) };
    let Some(home) = first_part(input, part.saturating_add(1), n_parts) else {
        // The other parts cannot be found; opening them together says why.
        GgufFile::open(input)?;
        return Ok(file);
    };
    if output.is_some() {
        return Err(EditError::OtherPart { path: input.to_owned(), key: key.to_owned(), home });
    }
    Ok(open_alone(&home)?)
}

/// The same with the file locked. It is found and read anew once the lock is there: another edit may have come first.
fn locked_home_of(
    input: &Path,
    edits: &[Edit],
    progress: &dyn Progress,
) -> Result<(GgufFile, EditLock), EditError> {
    let mut is_told = false;
    loop {
        let path = home_of(input, None, edits)?.path().to_owned();
        let lock = EditLock::of(&path, WAIT, &mut |waited| {
            if waited > QUIET && !is_told {
                let path = path.display().to_string();
                progress.warn(&format!("{}: waiting for another program that changes it", escape(&path)));
                is_told = true;
            }
            !progress.is_cancelled()
        })?;
        let file = home_of(input, None, edits)?;
        if file.path() == path {
            return Ok((file, lock));
        }
    }
}

/// The name of the first part, given that of another one.
fn first_part(path: &Path, part: u64, n_parts: u64) -> Option<PathBuf> {
    let stem = path.file_name()?.to_str()?.strip_suffix(&part_suffix(part, n_parts))?;
    Some(path.with_file_name(format!("{stem}{}", part_suffix(1, n_parts))))
}

fn open_alone(input: &Path) -> Result<GgufFile, GgufError> {
    let strictness = Strictness::Foreign;
    GgufFile::open_with(input, &OpenOptions { join_parts: false, strictness, ..OpenOptions::default() })
}
