//! The tensor list of an edited file, with renamed tensors and without dropped ones.

use std::path::Path;

use crate::{Edit, EditError};
use gguf_core::similar::nearest;
use gguf_core::{SourceError, TensorMeta, TensorSource};
use gguf_format::{FilePlan, GgufFile, Metadata, PlannedFile, TensorLimits, WriteError};
use serde::Serialize;

/// Change of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorChange {
    /// Name in the input.
    pub before: String,
    /// Name in the output; null if the tensor is left out.
    pub after: Option<String>,
}

/// The tensors of an edited file.
#[derive(Clone, Debug)]
pub(super) struct EditedTensors {
    /// Names and types, in file order.
    metas: Vec<TensorMeta>,
    places: Vec<usize>,
    changes: Vec<TensorChange>,
}

impl EditedTensors {
    pub(super) fn of(file: &GgufFile) -> Self {
        let metas = file.tensors().to_vec();
        Self { places: (0..metas.len()).collect(), metas, changes: Vec::new() }
    }

    /// Names and types of the tensors.
    pub(super) fn metas(&self) -> &[TensorMeta] {
        &self.metas
    }

    /// Renamed and dropped tensors, in the order of the edits.
    pub(super) fn changes(&self) -> &[TensorChange] {
        &self.changes
    }

    /// Returns the total bytes of all tensors.
    pub(super) fn n_bytes(&self, file: &GgufFile) -> u64 {
        self.places.iter().map(|&tensor| file.place(tensor).n_bytes).sum()
    }

    /// Applies an edit of tensors.
    ///
    /// # Errors
    /// A name that no tensor has, or that another one has already; an expression that matches none.
    pub(super) fn apply(&mut self, edit: &Edit, file: &GgufFile) -> Result<(), EditError> {
        let path = || file.path().to_owned();
        match edit {
            Edit::Rename { from, to } => {
                let Some(at) = self.metas.iter().position(|meta| meta.name == *from) else {
                    let names = self.metas.iter().map(|meta| meta.name.as_str());
                    let near = nearest(from, names).map(str::to_owned);
                    return Err(EditError::NoTensor { path: path(), tensor: from.clone(), nearest: near });
                };
                let most = TensorLimits::of(file.metadata()).name_bytes;
                if to.len() as u64 > most {
                    return Err(EditError::NameLength { path: path(), tensor: to.clone(), most });
                }
                if self.metas.iter().any(|meta| meta.name == *to) {
                    return Err(EditError::TensorTwice { path: path(), tensor: to.clone() });
                }
                self.metas[at].name.clone_from(to);
                self.changes.push(TensorChange { before: from.clone(), after: Some(to.clone()) });
            }
            Edit::Drop(pattern) => {
                let n_before = self.metas.len();
                for at in (0..n_before)
                    .rev()
                    .filter(|&at| pattern.is_match(&self.metas[at].name))
                    .collect::<Vec<_>>()
                {
                    self.places.remove(at);
                    self.changes.push(TensorChange { before: self.metas.remove(at).name, after: None });
                }
                let n_dropped = n_before - self.metas.len();
                if n_dropped == 0 {
                    return Err(EditError::NoMatch { path: path(), pattern: pattern.as_str().to_owned() });
                }
                let first = self.changes.len() - n_dropped;
                self.changes[first..].reverse();
            }
            Edit::Set(_) | Edit::Remove(_) | Edit::Special { .. } | Edit::Templates(_) => {}
        }
        Ok(())
    }

    /// Plans the file with these tensors.
    pub(super) fn plan(
        &self,
        target: &Path,
        metadata: &Metadata,
        file: &GgufFile,
    ) -> Result<PlannedFile, WriteError> {
        let entry = |(meta, &tensor): (&TensorMeta, &usize)| {
            let mut entry = file.entry(tensor);
            entry.name.clone_from(&meta.name);
            entry
        };
        let entries: Vec<_> = self.metas.iter().zip(&self.places).map(entry).collect();
        let plan = FilePlan::of_entries(metadata, &entries, file.layout())
            .map_err(|error| WriteError::Plan { path: target.to_owned(), error })?;
        Ok(PlannedFile { path: target.to_owned(), tensors: 0..entries.len(), plan, id_offset: None })
    }

    /// Returns a source of the tensors' data, read from the input.
    pub(super) fn source<'a>(&'a self, file: &'a GgufFile) -> impl TensorSource + 'a {
        EditedSource { edited: self, file }
    }
}

struct EditedSource<'a> {
    edited: &'a EditedTensors,
    file: &'a GgufFile,
}

impl TensorSource for EditedSource<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.edited.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.file.read_rows(self.edited.places[tensor], first_row, out)
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        self.file.borrow_rows(self.edited.places[tensor], first_row, n_rows)
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.file.release_rows(self.edited.places[tensor], first_row, n_rows);
    }
}
