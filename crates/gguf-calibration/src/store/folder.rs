//! Directory of statistics that is being written: one file of tensors after the other, and the manifest at the end.

use std::path::{Path, PathBuf};

use crate::store::manifest::{
    FORMAT, InputEntry, KindEntry, LayerEntry, MatrixEntry, MomentsEntry, StatisticsManifest, VERSION,
    WindowEntry,
};
use crate::store::{MANIFEST, StatisticsError, identity};
use crate::{CalibrationText, LayerMoments, Moments, SharedInput};
use gguf_checkpoint::safetensors_writer::plan_shards;
use gguf_core::output::{NewDirectory, OutputFile};
use gguf_core::{ElementType, Shape, WeightMeta};
use gguf_verification::{Fingerprint, Model};

/// Number of bytes that are written at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Statistics that are being written into a directory. If dropped before [`Folder::commit`], nothing remains of them.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    dir: NewDirectory,
    files: Vec<OutputFile>,
    pub(super) manifest: StatisticsManifest,
    sync: bool,
}

/// Writer of a file in pieces.
pub(super) struct PieceWriter<'a> {
    file: &'a OutputFile,
    offset: u64,
    buffer: Vec<u8>,
}

impl PieceWriter<'_> {
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), StatisticsError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StatisticsError> {
        self.file.write_at(self.offset, &self.buffer)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Tensors of a file, each with a function that writes its bytes in order.
pub(super) type TensorWriters<'a> =
    Vec<(WeightMeta, Box<dyn Fn(&mut PieceWriter<'_>) -> Result<(), StatisticsError> + 'a>)>;

/// Builds the metadata of a tensor.
///
/// # Errors
/// A size that overflows.
pub(super) fn meta(
    path: &Path,
    name: String,
    dims: Vec<u64>,
    ty: ElementType,
) -> Result<WeightMeta, StatisticsError> {
    let too_large = || StatisticsError::Plan {
        file: path.to_owned(),
        reason: format!("tensor `{name}`: size overflows"),
    };
    let shape = Shape::new(dims).ok_or_else(too_large)?;
    Ok(WeightMeta { name, shape, ty })
}

/// Writes a safetensors file into an open file.
pub(super) fn write_tensors(
    file: &OutputFile,
    path: &Path,
    tensors: &TensorWriters<'_>,
) -> Result<(), StatisticsError> {
    let failed = |reason: String| StatisticsError::Plan { file: path.to_owned(), reason };
    let metas: Vec<WeightMeta> = tensors.iter().map(|(meta, _)| meta.clone()).collect();
    let plans = plan_shards(&metas, u64::MAX).map_err(|error| failed(error.to_string()))?;
    let [plan] = plans.as_slice() else { return Err(failed(format!("{} parts", plans.len()))) };
    file.reserve(plan.n_bytes)?;
    let mut pieces = PieceWriter { file, offset: 0, buffer: Vec::new() };
    pieces.push(&plan.header)?;
    for (_, write) in tensors {
        write(&mut pieces)?;
    }
    pieces.flush()?;
    if pieces.offset != plan.n_bytes {
        return Err(failed(format!("{} bytes written of {}", pieces.offset, plan.n_bytes)));
    }
    Ok(())
}

impl Folder {
    /// Manifest of a model and a text, without layers; `seed` is that of sampled text.
    ///
    /// # Errors
    /// A model that cannot be read.
    pub(super) fn manifest(
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
    ) -> Result<StatisticsManifest, StatisticsError> {
        let (digest, tokenizer) = identity(model)?;
        let architecture = model.metadata.get("general.architecture").and_then(gguf_format::Value::as_str);
        let kinds = text.kinds.iter().map(|kind| KindEntry {
            name: kind.name.clone(),
            tokens: kind.n_tokens() as u64,
            sequences: kind.windows.len() as u64,
            weight: kind.weight,
            seed: kind.seed,
            held_out: kind.held_out.iter().map(WindowEntry::of).collect(),
        });
        Ok(StatisticsManifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: digest,
            tokenizer,
            architecture: architecture.unwrap_or_default().to_owned(),
            n_ctx: text.n_ctx,
            seed,
            kinds: kinds.collect(),
            text: digest_of(text),
            layers: Vec::new(),
        })
    }

    /// Estimate of the number of files: at most one for each layer, and a few more.
    pub(super) fn n_files(model: &Model<'_>) -> usize {
        model.source.tensors().len() / 2 + 4
    }

    /// Begins a directory that is new or empty, for about `n_files`. With `sync`, files reach the disk before they get
    /// their names.
    ///
    /// # Errors
    /// A path that exists and is not an empty directory; file system errors.
    pub(super) fn create(
        path: &Path,
        manifest: StatisticsManifest,
        n_files: usize,
        sync: bool,
    ) -> Result<Self, StatisticsError> {
        let mut dir = NewDirectory::of(path)?;
        dir.begin()?;
        dir.expect(n_files, sync);
        Ok(Self { path: path.to_owned(), dir, files: Vec::new(), manifest, sync })
    }

    /// Path of a file of this name.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Adds a file of tensors.
    ///
    /// # Errors
    /// A tensor that is larger than a file can hold; file system errors.
    pub(super) fn add(&mut self, name: &str, tensors: &TensorWriters<'_>) -> Result<(), StatisticsError> {
        let file = self.dir.create(name)?;
        write_tensors(&file, &self.path(name), tensors)?;
        self.files.push(file);
        Ok(())
    }

    /// Adds the contents of a layer's file to the manifest.
    pub(super) fn enter(&mut self, layer: &LayerMoments) {
        let inputs = layer.inputs.iter().map(|input| entry(layer, input)).collect();
        self.manifest.layers.push(LayerEntry { layer: layer.layer, inputs });
    }

    /// Writes the manifest, and gives the directory its name.
    ///
    /// # Errors
    /// File system errors; then there is no directory.
    pub(super) fn commit(mut self) -> Result<(), StatisticsError> {
        let mut json = serde_json::to_vec_pretty(&self.manifest).map_err(std::io::Error::from)?;
        json.push(b'\n');
        let file = self.dir.create(MANIFEST)?;
        file.write_at(0, &json)?;
        self.files.push(file);
        self.dir.commit(self.files, self.sync)?;
        Ok(())
    }
}

/// Digest of all sequences of a text.
pub(super) fn digest_of(text: &CalibrationText) -> String {
    let mut digest = Fingerprint::default();
    for kind in &text.kinds {
        digest.number(kind.windows.len() as u64);
        digest.windows(&kind.windows);
    }
    digest.hex()
}

fn entry(layer: &LayerMoments, input: &SharedInput) -> InputEntry {
    let matrix =
        |matrix: &crate::MatrixName| MatrixEntry { tensor: matrix.tensor.clone(), expert: matrix.expert };
    let moments = |(kind, at): (usize, &Option<usize>)| {
        Some(MomentsEntry { at: (*at)?, rows: Moments::n_rows(layer.moments(input, kind)?) })
    };
    InputEntry {
        columns: input.n_cols,
        matrices: input.matrices.iter().map(matrix).collect(),
        moments: input.moments.iter().enumerate().map(moments).collect(),
    }
}
