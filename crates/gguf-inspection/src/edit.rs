//! Edits of a file's metadata and tensor list: planned and checked for objections first, then written.

mod apply;
mod error;
mod objection;
mod tensors;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::template::PLAIN;
use apply::{role_key, role_names};
use gguf_core::output::{EditLock, OutputKind};
use gguf_core::progress::Progress;
use gguf_core::text::escape;
use gguf_core::{TensorMeta, TensorSource, input};
use gguf_format::split::part_suffix;
use gguf_format::split_keys::{SPLIT_COUNT, SPLIT_NO};
use gguf_format::{
    Assignment, GgufError, GgufFile, Metadata, OpenOptions, PlannedOutput, Strictness, Value, WriteError,
    WriteOptions, WriteReport, output_kind, write_files,
};
use objection::ChangedModel;
use tensors::EditedTensors;

pub use tensors::TensorChange;

pub use error::EditError;
pub use objection::{Objection, remarks_on};

/// Maximum wait for another program that edits the same file, and the time after which the user is told.
const WAIT: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_secs(1);

/// A requested change.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Sets a key, in place if it exists, else at the end.
    ///
    /// The type is the one given, else that of the old value, else that of the well-known key.
    Set(Assignment),
    /// Removes a key.
    Remove(String),
    /// Sets the id of a special token, given its key and the token's text, which is looked up in the vocabulary.
    Special {
        /// Key of the token's role.
        key: &'static str,
        /// Text of the token in the vocabulary.
        token: String,
    },
    /// Renames a tensor.
    Rename {
        /// Old name.
        from: String,
        /// New name.
        to: String,
    },
    /// Leaves out the tensors whose names match the expression.
    Drop(regex::Regex),
    /// Replaces all chat templates by these, as returned by [`crate::read_templates`].
    Templates(Metadata),
}

impl Edit {
    /// Parses `KEY=VALUE` or `KEY=TYPE:VALUE`.
    ///
    /// A value `@FILE` is the content of that file, without one line feed at its end. A value that itself begins with
    /// `@` is written with `@@`.
    pub fn set(text: &str) -> Result<Self, EditError> {
        let mut assignment = Assignment::parse(text)?;
        let value = match assignment.text.as_slice() {
            [b'@', b'@', ..] => Some(assignment.text[1..].to_vec()),
            _ => match Self::value_file(text) {
                Some(path) => {
                    let failed = |error| EditError::ValueFile { key: assignment.key.clone(), error };
                    let mut bytes = gguf_core::input::read(&path).map_err(failed)?;
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

    /// Returns the file from which an assignment takes its value.
    pub fn value_file(text: &str) -> Option<PathBuf> {
        match Assignment::parse(text).ok()?.text.as_slice() {
            [b'@', b'@', ..] => None,
            [b'@', name @ ..] if !name.is_empty() => Some(String::from_utf8_lossy(name).into_owned().into()),
            _ => None,
        }
    }

    /// Parses `ROLE=TOKEN`: `eos=<|im_end|>`.
    pub fn special(text: &str) -> Result<Self, EditError> {
        let form = || EditError::SpecialForm { text: text.to_owned() };
        let (role, token) = text.split_once('=').filter(|(_, token)| !token.is_empty()).ok_or_else(form)?;
        let unknown = || EditError::Role { found: role.to_owned(), known: role_names() };
        Ok(Self::Special { key: role_key(role).ok_or_else(unknown)?, token: token.to_owned() })
    }

    /// Parses `OLD=NEW`.
    pub fn rename(text: &str) -> Result<Self, EditError> {
        let form = || EditError::RenameForm { text: text.to_owned() };
        let (from, to) =
            text.split_once('=').filter(|(from, to)| !from.is_empty() && !to.is_empty()).ok_or_else(form)?;
        Ok(Self::Rename { from: from.to_owned(), to: to.to_owned() })
    }

    /// Parses the expression of [`Edit::Drop`].
    pub fn drop(pattern: &str) -> Result<Self, EditError> {
        let bad = |error| EditError::Pattern { pattern: pattern.to_owned(), error: Box::new(error) };
        regex::Regex::new(pattern).map(Self::Drop).map_err(bad)
    }

    fn is_of_tensors(&self) -> bool {
        matches!(self, Self::Rename { .. } | Self::Drop(_))
    }

    /// Returns the key that determines the part of a split model; `None` for a change of tensors.
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

/// Change of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Value in the input; `None` for a new key.
    pub before: Option<Value>,
    /// Value in the output; `None` for a removed key.
    pub after: Option<Value>,
}

/// Planned changes to one file that are not written yet.
#[derive(Debug)]
pub struct EditPlan {
    file: GgufFile,
    metadata: Metadata,
    changes: Vec<Change>,
    tensors: EditedTensors,
    objections: Vec<Objection>,
    target: PathBuf,
    file_bytes: u64,
    /// Lock of the file, if it is edited in place.
    lock: Option<EditLock>,
    inputs: Vec<PathBuf>,
}

impl EditPlan {
    /// Plans edits of `input`; they are written to `output`, or to the file itself, which is replaced when the new
    /// one is complete.
    ///
    /// A file that will be replaced is locked (advisory, `flock`) before it is read, for the lifetime of the plan. So
    /// if two programs edit it at the same time, the second sees the changes of the first. It waits for half a
    /// minute, then gives up.
    ///
    /// Of a split model only one part is rewritten: the given one if it has all the keys, else the first, where
    /// readers look for them.
    ///
    /// # Errors
    /// [`EditError`]; objections are not errors.
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
        // Without the other parts, or if they do not fit, only the keys can be checked, not the model as a whole.
        let whole = match GgufFile::open_foreign(file.path()) {
            Err(error @ (GgufError::Io(_) | GgufError::Header { .. })) => return Err(error.into()),
            opened => opened.ok(),
        };
        let tensors = whole.as_ref().map(TensorSource::tensors);
        let inputs = whole.as_ref().map_or_else(|| file.paths(), GgufFile::paths);
        let tensors_after = if edited.changes().is_empty() { tensors } else { Some(edited.metas()) };
        let case = ChangedModel { before, after: &metadata, tensors, tensors_after, changes: &changes };
        let objections = case.objections();
        // The target of a link is edited; the link itself is kept.
        let target = output.unwrap_or(file.path());
        let target = match fs_err::canonicalize(target) {
            Err(error) if input::is_absence(&error) => target.to_owned(),
            found => found.map_err(WriteError::from)?,
        };
        let planned = edited.plan(&target, &metadata, &file)?;
        let file_bytes = planned.plan.file_bytes;
        Ok(Self { file, metadata, changes, tensors: edited, objections, target, file_bytes, lock, inputs })
    }

    /// Returns the kind of the output.
    pub fn kind(&self) -> OutputKind {
        output_kind(&self.metadata)
    }

    /// Input files: of a split model, all existing parts.
    pub fn inputs(&self) -> &[PathBuf] {
        &self.inputs
    }

    /// Path of the output file.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the report that [`EditPlan::write`] would return.
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

    /// Keys of the input.
    pub fn metadata_before(&self) -> &Metadata {
        self.file.metadata()
    }

    /// Keys of the output.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Changes of keys, in the order of the edits, without keys that keep their values.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Changes of tensors, in the order of the edits.
    pub fn tensor_changes(&self) -> &[TensorChange] {
        self.tensors.changes()
    }

    /// Objections to the edit.
    pub fn objections(&self) -> &[Objection] {
        &self.objections
    }

    /// Adds an objection that the caller found.
    pub fn object(&mut self, objection: Objection) {
        self.objections.push(objection);
    }

    /// Returns the plan if there are no objections.
    ///
    /// # Errors
    /// [`EditError::Refused`] with all objections.
    pub fn agreed(self) -> Result<Self, EditError> {
        if self.objections.is_empty() {
            return Ok(self);
        }
        Err(EditError::Refused { path: self.file.path().to_owned(), objections: self.objections })
    }

    /// Writes the file, regardless of objections.
    ///
    /// The mapped input stays readable while it is replaced.
    ///
    /// # Errors
    /// [`EditError::Write`], [`EditError::Changed`]; the input is then unchanged.
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
        let output =
            PlannedOutput { target: &self.target, files: vec![planned], kind: self.kind(), id: None };
        let report = write_files(output, &source, &options, progress)?;
        if let Ok(permissions) = permissions {
            // Keep the permissions, so that the new file is not more readable. This fails, harmlessly, for another
            // user's file.
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
    ChangedModel { before, after: &after, tensors, tensors_after: tensors, changes: &changes }.objections()
}

/// Returns the differences, each key once.
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

/// Opens the file, or the part of a split model that the keys belong to.
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
        // The other parts cannot be found; opening them together reports the reason.
        GgufFile::open(input)?;
        return Ok(file);
    };
    if output.is_some() {
        return Err(EditError::OtherPart { path: input.to_owned(), key: key.to_owned(), home });
    }
    Ok(open_alone(&home)?)
}

/// Opens the file like [`home_of`] and locks it.
///
/// It is found and read again under the lock: another edit may have come first.
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

/// Returns the path of the first part, given that of another one.
fn first_part(path: &Path, part: u64, n_parts: u64) -> Option<PathBuf> {
    let stem = path.file_name()?.to_str()?.strip_suffix(&part_suffix(part, n_parts))?;
    Some(path.with_file_name(format!("{stem}{}", part_suffix(1, n_parts))))
}

fn open_alone(input: &Path) -> Result<GgufFile, GgufError> {
    let strictness = Strictness::Foreign;
    GgufFile::open_with(input, &OpenOptions { join_parts: false, strictness, ..OpenOptions::default() })
}
