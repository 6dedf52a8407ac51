//! Writer of statistics, layer by layer, so that only one layer's moments are in memory. The directory gets its name at
//! the end, when it is complete.

use std::collections::BTreeMap;
use std::path::Path;

use crate::store::folder::{Folder, TensorWriters, meta, write_tensors};
use crate::store::{IMPORTANCE, StatisticsError, moments_file, moments_name, triangle};
use crate::{CalibrationText, LayerMoments};
use gguf_core::ElementType;
use gguf_core::output::OutputFile;
use gguf_format::{ColumnSums, ImatrixSums};
use gguf_verification::Model;

/// Statistics that are being written into a directory. If dropped before [`StatisticsWriter::commit`], nothing remains
/// of them.
#[derive(Debug)]
pub struct StatisticsWriter {
    folder: Folder,
}

impl StatisticsWriter {
    /// Begins a directory that is new or empty, for statistics of this model and text; `seed` is that of
    /// sampled text. With `sync`, files reach the disk before they get their names.
    ///
    /// # Errors
    /// A path that exists and is not an empty directory; a model that cannot be read; file system errors.
    pub fn create(
        path: &Path,
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
        sync: bool,
    ) -> Result<Self, StatisticsError> {
        let manifest = Folder::manifest(model, text, seed)?;
        Ok(Self { folder: Folder::create(path, manifest, Folder::n_files(model), sync)? })
    }

    /// Adds a layer: a consumer of [`crate::CalibrationRun::run`].
    pub fn add(&mut self, layer: &LayerMoments) -> Result<(), StatisticsError> {
        let name = moments_file(self.folder.manifest.layers.len());
        let path = self.folder.path(&name);
        let mut tensors: TensorWriters<'_> = Vec::new();
        for (kind, own) in layer.kinds.iter().enumerate() {
            for (at, own) in own.iter().enumerate() {
                let dims = vec![triangle(own.n_cols()).unwrap_or(u64::MAX)];
                let meta = meta(&path, moments_name(kind, at), dims, ElementType::F32)?;
                tensors.push((
                    meta,
                    Box::new(|pieces| {
                        let mut sums = (0..own.n_cols()).flat_map(|row| own.sums().row(row));
                        sums.try_for_each(|sum| pieces.push(&sum.to_le_bytes()))
                    }),
                ));
            }
        }
        self.folder.add(&name, &tensors)?;
        self.folder.enter(layer);
        Ok(())
    }

    /// Adds the importance sums, one for each kind, and gives the directory its name.
    ///
    /// # Errors
    /// File system errors; then there is no directory.
    pub fn commit(mut self, importance: &[ImatrixSums]) -> Result<(), StatisticsError> {
        let path = self.folder.path(IMPORTANCE);
        let mut tensors: TensorWriters<'_> = Vec::new();
        for (kind, sums) in importance.iter().enumerate() {
            for (name, columns) in &sums.tensors {
                push_columns(&mut tensors, &path, &format!("kind{kind}/{name}"), columns)?;
            }
        }
        self.folder.add(IMPORTANCE, &tensors)?;
        self.folder.commit()
    }
}

/// Adds the tensors of importance sums: `NAME.sums` and `NAME.counts`.
fn push_columns<'a>(
    tensors: &mut TensorWriters<'a>,
    path: &Path,
    name: &str,
    columns: &'a ColumnSums,
) -> Result<(), StatisticsError> {
    let (n_matrices, n_cols) = (columns.counts.len() as u64, columns.n_cols as u64);
    let sums = meta(path, format!("{name}.sums"), vec![n_matrices, n_cols], ElementType::F64)?;
    tensors.push((
        sums,
        Box::new(|pieces| columns.sums.iter().try_for_each(|sum| pieces.push(&sum.to_le_bytes()))),
    ));
    let counts = meta(path, format!("{name}.counts"), vec![n_matrices], ElementType::I64)?;
    tensors.push((
        counts,
        Box::new(|pieces| columns.counts.iter().try_for_each(|n| pieces.push(&n.to_le_bytes()))),
    ));
    Ok(())
}

/// Writes importance sums into a file of their own: `NAME.sums` and `NAME.counts`.
pub(crate) fn write_importance(
    path: &Path,
    sums: &BTreeMap<String, ColumnSums>,
    sync: bool,
) -> Result<(), StatisticsError> {
    let mut tensors: TensorWriters<'_> = Vec::new();
    for (name, columns) in sums {
        push_columns(&mut tensors, path, name, columns)?;
    }
    let file = OutputFile::create(path)?;
    write_tensors(&file, path, &tensors)?;
    file.commit(sync)?;
    Ok(())
}
