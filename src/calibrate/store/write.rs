//! Writing: layer by layer, so that no more than one layer's moments are held; the directory appears at the end, whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::calibrate::store::manifest::{
    CheckEntry, FORMAT, InputEntry, KindEntry, LayerEntry, Manifest, MatrixEntry, MomentsEntry, VERSION,
};
use crate::calibrate::store::{
    IMPORTANCE, MANIFEST, StatisticsError, identity, moments_file, moments_name, triangle,
};
use crate::calibrate::{CalibrationText, LayerMoments, Moments, SharedInput};
use crate::checkpoint::safetensors_writer::plan_shards;
use crate::core::output::{NewDirectory, OutputFile};
use crate::core::{ElementType, Shape, WeightMeta};
use crate::gguf::{ColumnSums, ImatrixSums};
use crate::verify::Model;

/// Bytes that are written at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Statistics on their way into a directory. Dropped before [`StatisticsWriter::commit`], nothing is left of them.
#[derive(Debug)]
pub struct StatisticsWriter {
    path: PathBuf,
    dir: NewDirectory,
    files: Vec<OutputFile>,
    manifest: Manifest,
    sync: bool,
}

/// Bytes that go into a file at a place, in pieces.
struct Pieces<'a> {
    file: &'a OutputFile,
    offset: u64,
    buffer: Vec<u8>,
}

impl Pieces<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<(), StatisticsError> {
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

impl StatisticsWriter {
    /// Begins a directory that is new or empty, for statistics of this model and text; `seed` is that of text that was
    /// sampled. With `sync` files reach the disk before they get their names.
    ///
    /// # Errors
    /// A path at which something is; a model that cannot be read; the file system refused.
    pub fn create(
        path: &Path,
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
        sync: bool,
    ) -> Result<Self, StatisticsError> {
        let mut dir = NewDirectory::of(path)?;
        let (digest, tokenizer) = identity(model)?;
        let architecture = model.metadata.get("general.architecture").and_then(crate::gguf::Value::as_str);
        let kinds = text.kinds.iter().map(|kind| KindEntry {
            name: kind.name.clone(),
            tokens: kind.n_tokens() as u64,
            sequences: kind.windows.len() as u64,
            weight: kind.weight,
            seed: kind.seed,
            check: kind.check.iter().map(CheckEntry::of).collect(),
        });
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            model: digest,
            tokenizer,
            architecture: architecture.unwrap_or_default().to_owned(),
            n_ctx: text.n_ctx,
            seed,
            kinds: kinds.collect(),
            layers: Vec::new(),
        };
        dir.begin()?;
        // A file for about each layer, and two.
        let n_blocks = model.source.tensors().len() / 2 + 4;
        dir.expect(n_blocks, sync);
        Ok(Self { path: path.to_owned(), dir, files: Vec::new(), manifest, sync })
    }

    /// Adds a layer: a consumer of [`crate::calibrate::CalibrationRun::run`].
    ///
    /// # Errors
    /// The file system refused.
    pub fn add(&mut self, layer: &LayerMoments) -> Result<(), StatisticsError> {
        let name = moments_file(self.manifest.layers.len());
        let (mut metas, mut moments) = (Vec::new(), Vec::new());
        for (kind, own) in layer.kinds.iter().enumerate() {
            for (at, own) in own.iter().enumerate() {
                let dims = vec![triangle(own.n_cols()).unwrap_or(u64::MAX)];
                metas.push(self.meta(&name, moments_name(kind, at), dims, ElementType::F32)?);
                moments.push(own);
            }
        }
        let file = self.file(&name, &metas, |at, pieces| {
            let own: &Moments = moments[at];
            for row in 0..own.n_cols() {
                for sum in own.sums().row(row) {
                    pieces.push(&sum.to_le_bytes())?;
                }
            }
            Ok(())
        })?;
        self.files.push(file);
        let inputs = layer.inputs.iter().map(|input| entry(layer, input)).collect();
        self.manifest.layers.push(LayerEntry { layer: layer.layer, inputs });
        Ok(())
    }

    /// Adds the importance sums, one for each kind, and gives the directory its name.
    ///
    /// # Errors
    /// The file system refused; then there is no directory.
    pub fn commit(mut self, importance: &[ImatrixSums]) -> Result<(), StatisticsError> {
        let (mut metas, mut numbers) = (Vec::new(), Vec::new());
        for (kind, sums) in importance.iter().enumerate() {
            for (name, columns) in &sums.tensors {
                let (n_matrices, n_cols) = (columns.counts.len() as u64, columns.n_cols as u64);
                let name = |part: &str| format!("kind{kind}/{name}.{part}");
                let dims = vec![n_matrices, n_cols];
                metas.push(self.meta(IMPORTANCE, name("sums"), dims, ElementType::F64)?);
                numbers.push(columns.sums.iter().map(|sum| sum.to_le_bytes()).collect::<Vec<_>>());
                metas.push(self.meta(IMPORTANCE, name("counts"), vec![n_matrices], ElementType::I64)?);
                numbers.push(columns.counts.iter().map(|count| count.to_le_bytes()).collect());
            }
        }
        let file = self.file(IMPORTANCE, &metas, |at, pieces| pieces.push(numbers[at].as_flattened()))?;
        self.files.push(file);
        let mut json = serde_json::to_vec_pretty(&self.manifest).map_err(std::io::Error::from)?;
        json.push(b'\n');
        let manifest = self.dir.create(MANIFEST)?;
        manifest.write_at(0, &json)?;
        self.files.push(manifest);
        self.dir.commit(self.files, self.sync)?;
        Ok(())
    }

    fn meta(
        &self,
        file: &str,
        name: String,
        dims: Vec<u64>,
        ty: ElementType,
    ) -> Result<WeightMeta, StatisticsError> {
        let too_large = || StatisticsError::Plan {
            file: self.path.join(file),
            reason: format!("tensor `{name}`: size overflows"),
        };
        let shape = Shape::new(dims).ok_or_else(too_large)?;
        Ok(WeightMeta { name, shape, ty })
    }

    /// A safetensors file, of which `write` writes one tensor after the other.
    fn file(
        &self,
        name: &str,
        metas: &[WeightMeta],
        write: impl Fn(usize, &mut Pieces<'_>) -> Result<(), StatisticsError>,
    ) -> Result<OutputFile, StatisticsError> {
        let failed = |reason: String| StatisticsError::Plan { file: self.path.join(name), reason };
        let plans = plan_shards(metas, u64::MAX).map_err(|error| failed(error.to_string()))?;
        let [plan] = plans.as_slice() else { return Err(failed(format!("{} parts", plans.len()))) };
        let file = self.dir.create(name)?;
        file.reserve(plan.n_bytes)?;
        file.write_at(0, &plan.header)?;
        for &(at, offset) in &plan.tensors {
            let mut pieces = Pieces { file: &file, offset, buffer: Vec::new() };
            write(at, &mut pieces)?;
            pieces.flush()?;
        }
        Ok(file)
    }
}

/// Writes importance sums alone into a file: `NAME.sums` and `NAME.counts`, as those of a kind.
///
/// # Errors
/// The file system refused.
pub(in crate::calibrate) fn write_importance(
    path: &Path,
    tensors: &BTreeMap<String, ColumnSums>,
    sync: bool,
) -> Result<(), StatisticsError> {
    let failed = |reason: String| StatisticsError::Plan { file: path.to_owned(), reason };
    let meta = |name: String, dims: Vec<u64>, ty: ElementType| {
        let shape = Shape::new(dims).ok_or_else(|| failed(format!("tensor `{name}`: size overflows")))?;
        Ok::<_, StatisticsError>(WeightMeta { name, shape, ty })
    };
    let (mut metas, mut columns) = (Vec::new(), Vec::new());
    for (name, own) in tensors {
        let (n_matrices, n_cols) = (own.counts.len() as u64, own.n_cols as u64);
        metas.push(meta(format!("{name}.sums"), vec![n_matrices, n_cols], ElementType::F64)?);
        metas.push(meta(format!("{name}.counts"), vec![n_matrices], ElementType::I64)?);
        columns.push(own);
    }
    let plans = plan_shards(&metas, u64::MAX).map_err(|error| failed(error.to_string()))?;
    let [plan] = plans.as_slice() else { return Err(failed(format!("{} parts", plans.len()))) };
    let file = OutputFile::create(path)?;
    file.reserve(plan.n_bytes)?;
    file.write_at(0, &plan.header)?;
    for &(at, offset) in &plan.tensors {
        let mut pieces = Pieces { file: &file, offset, buffer: Vec::new() };
        let own = columns[at / 2];
        if at % 2 == 0 {
            own.sums.iter().try_for_each(|sum| pieces.push(&sum.to_le_bytes()))?;
        } else {
            own.counts.iter().try_for_each(|count| pieces.push(&count.to_le_bytes()))?;
        }
        pieces.flush()?;
    }
    file.commit(sync)?;
    Ok(())
}

fn entry(layer: &LayerMoments, input: &SharedInput) -> InputEntry {
    let matrix = |matrix: &crate::calibrate::MatrixName| MatrixEntry {
        tensor: matrix.tensor.clone(),
        expert: matrix.expert,
    };
    let moments = |(kind, at): (usize, &Option<usize>)| {
        Some(MomentsEntry { at: (*at)?, rows: layer.moments(input, kind)?.n_rows() })
    };
    InputEntry {
        columns: input.n_cols,
        matrices: input.matrices.iter().map(matrix).collect(),
        moments: input.moments.iter().enumerate().map(moments).collect(),
    }
}
