//! Reader of statistics: the whole manifest, then one layer after the other. Every size is checked against the bytes of
//! the file before memory is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::moments::KindMoments;
use crate::store::folder::Folder;
use crate::store::manifest::{
    FORMAT, LayerEntry, MatrixEntry, StatisticsCounts, StatisticsManifest, VERSION, WindowEntry,
};
use crate::store::tensor_file::TensorFile;
use crate::store::{IMPORTANCE, MANIFEST, StatisticsError, identity, moments_file, moments_name};
use crate::{CalibrationText, LayerMoments, MatrixName};
use gguf_checkpoint::parse_object;
use gguf_core::TensorMeta;
use gguf_core::limits::Limits;
use gguf_engine::Gram;
use gguf_format::{ColumnSums, ImatrixSums};
use gguf_verification::{Model, Window};

/// Kind of text that statistics were collected over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsKind {
    /// Name of the kind.
    pub name: String,
    /// Number of tokens that were run.
    pub n_tokens: u64,
    /// Number of sequences that were run.
    pub n_sequences: u64,
    /// Weight in the mean over kinds, in numbers of ordinary kinds.
    pub weight: u32,
    /// Seed of text that a model wrote.
    pub seed: Option<u64>,
    /// Windows that are held out.
    pub held_out: Vec<Window>,
}

/// Statistics in a directory.
#[derive(Clone, Debug)]
pub struct Statistics {
    path: PathBuf,
    manifest: StatisticsManifest,
    limits: Limits,
}

impl Statistics {
    /// Returns true if a path is a directory of statistics.
    pub fn are_in(path: &Path) -> bool {
        path.join(MANIFEST).is_file()
    }

    /// Opens a directory and reads its manifest.
    ///
    /// # Errors
    /// [`StatisticsError`]: no statistics, a broken manifest, another version.
    pub fn open(path: &Path) -> Result<Self, StatisticsError> {
        let limits = Limits::default();
        let manifest = read_manifest(path, &limits)?;
        Ok(Self { path: path.to_owned(), manifest, limits })
    }

    /// Checks that the statistics are of this model, as it is stored here, and its tokenizer.
    ///
    /// # Errors
    /// [`StatisticsError::OtherModel`] with both digests; [`StatisticsError::Matrix`] for inputs that the model does
    /// not have, even if the digests match; a model that cannot be read.
    pub fn check(&self, model: &Model<'_>) -> Result<(), StatisticsError> {
        let (digest, tokenizer) = identity(model)?;
        let pairs =
            [("tokenizer", &self.manifest.tokenizer, tokenizer), ("model", &self.manifest.model, digest)];
        for (what, found, expected) in pairs {
            if *found != expected {
                let (path, found) = (self.path.clone(), found.clone());
                return Err(StatisticsError::OtherModel { path, what, found, expected });
            }
        }
        let metas: BTreeMap<&str, &TensorMeta> =
            model.source.tensors().iter().map(|meta| (meta.name.as_str(), meta)).collect();
        for input in self.manifest.layers.iter().flat_map(|layer| &layer.inputs) {
            for matrix in &input.matrices {
                self.check_matrix(matrix, input.columns, metas.get(matrix.tensor.as_str()).copied())?;
            }
        }
        Ok(())
    }

    /// Returns true if these are the complete statistics that a run over this text would write.
    ///
    /// # Errors
    /// A model that cannot be read.
    pub fn are_of(
        &self,
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
    ) -> Result<bool, StatisticsError> {
        let found = StatisticsManifest { layers: Vec::new(), ..self.manifest.clone() };
        if found != Folder::manifest(model, text, seed)? {
            return Ok(false);
        }
        let moments = (0..self.manifest.layers.len()).map(moments_file);
        let is_whole = |name: String| TensorFile::open(self.path.join(name), &self.limits).is_ok();
        Ok(moments.chain([IMPORTANCE.to_owned()]).all(is_whole))
    }

    /// Numbers of layers and matrices with moments.
    pub fn counts(&self) -> StatisticsCounts {
        self.manifest.counts()
    }

    fn check_matrix(
        &self,
        matrix: &MatrixEntry,
        columns: usize,
        meta: Option<&TensorMeta>,
    ) -> Result<(), StatisticsError> {
        let n_matrices = meta.and_then(|meta| match meta.shape.dims() {
            [n, _, _] => usize::try_from(*n).ok(),
            _ => None,
        });
        let is_stacked = matrix.expert.is_none_or(|expert| n_matrices.is_some_and(|n| expert < n));
        if is_stacked && meta.is_some_and(|meta| meta.shape.n_cols() == columns as u64) {
            return Ok(());
        }
        let of = |expert: Option<usize>| expert.map(|at| format!(" of matrix {at}")).unwrap_or_default();
        let found = format!("{columns} columns{}", of(matrix.expert));
        let expected = match (meta, n_matrices) {
            (None, _) => "no such tensor".to_owned(),
            (Some(meta), Some(n)) => format!("{} columns of {n} matrices", meta.shape.n_cols()),
            (Some(meta), None) => format!("{} columns", meta.shape.n_cols()),
        };
        let file = self.path.join(MANIFEST);
        Err(StatisticsError::Matrix { file, tensor: matrix.tensor.clone(), found, expected })
    }

    /// Digest of `statistics.json`, which identifies the model and every sum.
    pub fn digest(&self) -> String {
        let json = serde_json::to_vec(&self.manifest).unwrap_or_default();
        let mut digest = gguf_verification::Fingerprint::default();
        digest.bytes(&json);
        digest.hex()
    }

    /// Number of bytes of moments file `at`; 0 if it does not exist.
    pub(crate) fn file_bytes(&self, at: usize) -> u64 {
        self.path.join(moments_file(at)).metadata().map_or(0, |found| found.len())
    }

    /// Maximum bytes that the moments of one layer and their factors take.
    pub fn layer_bytes(&self) -> u64 {
        let square = |columns: usize| (columns as u64).saturating_mul(columns as u64);
        let bytes = |layer: &LayerEntry| {
            let inputs = layer.inputs.iter();
            let widest = inputs.clone().map(|input| square(input.columns)).max().unwrap_or(0);
            let moments = inputs.map(|input| {
                let n_kinds = input.moments.iter().flatten().count() as u64;
                Gram::bytes(input.columns).saturating_mul(n_kinds)
            });
            // The mean over kinds, the mean over experts, and a factor in f64.
            moments.fold(widest.saturating_mul(16), u64::saturating_add)
        };
        self.manifest.layers.iter().map(bytes).max().unwrap_or(0)
    }

    /// Kinds of text.
    pub fn kinds(&self) -> Vec<StatisticsKind> {
        let kinds = self.manifest.kinds.iter().map(|kind| StatisticsKind {
            name: kind.name.clone(),
            n_tokens: kind.tokens,
            n_sequences: kind.sequences,
            weight: kind.weight,
            seed: kind.seed,
            held_out: kind.held_out.iter().filter_map(WindowEntry::window).collect(),
        });
        kinds.collect()
    }

    /// Tokens of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.manifest.n_ctx
    }

    /// Seed of sampled text.
    pub fn seed(&self) -> Option<u64> {
        self.manifest.seed
    }

    /// Number of layer entries, see [`Statistics::layer`].
    pub fn n_layers(&self) -> usize {
        self.manifest.layers.len()
    }

    /// Index of the layer entry with the moments of a matrix, for [`Statistics::layer`].
    pub fn layer_of(&self, tensor: &str, expert: Option<usize>) -> Option<usize> {
        let is_own = |matrix: &MatrixEntry| matrix.tensor == tensor && matrix.expert == expert;
        let has = |layer: &LayerEntry| layer.inputs.iter().any(|input| input.matrices.iter().any(is_own));
        self.manifest.layers.iter().position(has)
    }

    /// Moments of layer entry `at`, in the order of collection; `None` if there are fewer entries.
    ///
    /// # Errors
    /// [`StatisticsError`]: a truncated or broken file; a tensor that is missing, has another size, or has values that
    /// no sum can have.
    pub fn layer(&self, at: usize) -> Result<Option<LayerMoments>, StatisticsError> {
        let Some(entry) = self.manifest.layers.get(at) else { return Ok(None) };
        let mut file = TensorFile::open(self.path.join(moments_file(at)), &self.limits)?;
        let mut kinds: Vec<KindMoments> = Vec::with_capacity(self.manifest.kinds.len());
        for kind in 0..self.manifest.kinds.len() {
            // Moments of one kind may belong to several inputs that differ in another kind.
            let mut own: BTreeMap<usize, (Vec<MatrixName>, usize, u64)> = BTreeMap::new();
            for input in &entry.inputs {
                let Some(moments) = input.moments.get(kind).copied().flatten() else { continue };
                let found = own.entry(moments.at).or_insert((Vec::new(), input.columns, moments.rows));
                if (found.1, found.2) != (input.columns, moments.rows) {
                    let reason = format!(
                        "`{}` of layer entry {at} has {} columns and {} rows here, {} and {} there",
                        moments_name(kind, moments.at),
                        input.columns,
                        moments.rows,
                        found.1,
                        found.2
                    );
                    return Err(StatisticsError::Manifest { file: self.path.join(MANIFEST), reason });
                }
                found.0.extend(
                    input
                        .matrices
                        .iter()
                        .map(|matrix| MatrixName { tensor: matrix.tensor.clone(), expert: matrix.expert }),
                );
            }
            let mut moments = Vec::with_capacity(own.len());
            for (number, (matrices, n_cols, n_rows)) in own {
                moments.push((matrices, file.moments(&moments_name(kind, number), n_cols, n_rows)?));
            }
            kinds.push(moments);
        }
        file.check_empty()?;
        Ok(Some(LayerMoments::of(entry.layer, kinds)))
    }

    /// Importance sums of each kind.
    pub fn importance(&self) -> Result<Vec<ImatrixSums>, StatisticsError> {
        let mut file = TensorFile::open(self.path.join(IMPORTANCE), &self.limits)?;
        let mut kinds = Vec::with_capacity(self.manifest.kinds.len());
        for (at, kind) in self.manifest.kinds.iter().enumerate() {
            let mut tensors = BTreeMap::new();
            let prefix = format!("kind{at}/");
            for name in file.names(&prefix) {
                let columns = file.columns(&format!("{prefix}{name}"))?;
                tensors.insert(name, columns);
            }
            kinds.push(ImatrixSums {
                tensors,
                datasets: vec![kind.name.as_bytes().to_vec()],
                n_chunks: usize::try_from(kind.sequences).unwrap_or(usize::MAX),
                chunk_size: self.manifest.n_ctx,
            });
        }
        file.check_empty()?;
        Ok(kinds)
    }
}

/// Reads and checks the manifest of a directory.
pub(super) fn read_manifest(path: &Path, limits: &Limits) -> Result<StatisticsManifest, StatisticsError> {
    let file = path.join(MANIFEST);
    if !file.is_file() {
        return Err(StatisticsError::NotStatistics { path: path.to_owned() });
    }
    let broken = |reason: String| StatisticsError::Manifest { file: file.clone(), reason };
    let n_bytes = fs_err::metadata(&file)?.len();
    if n_bytes > limits.text_file_bytes {
        let limit = limits.text_file_bytes;
        return Err(broken(format!("{n_bytes} bytes to read whole, at most {limit} allowed")));
    }
    let text = gguf_core::input::read(&file)?;
    let json = parse_object(&text, limits).map_err(|error| broken(error.to_string()))?;
    let format = json.get("format").and_then(serde_json::Value::as_str);
    if format != Some(FORMAT) {
        return Err(broken(format!("`format` is not `{FORMAT}`")));
    }
    let version = json.get("version").and_then(serde_json::Value::as_u64);
    match version {
        Some(VERSION) => {}
        Some(found) => return Err(StatisticsError::Version { file, found, expected: VERSION }),
        None => return Err(broken("`version` is missing or no number".to_owned())),
    }
    let manifest: StatisticsManifest =
        serde_json::from_value(json.into()).map_err(|error| broken(error.to_string()))?;
    let n_kinds = manifest.kinds.len();
    for (at, kind) in manifest.kinds.iter().enumerate() {
        if let Some(window) = kind.held_out.iter().position(|window| window.window().is_none()) {
            let place = format!("`kinds[{at}].check[{window}]`");
            return Err(broken(format!("{place}: rows that are not in its tokens, or not in their order")));
        }
    }
    for (at, layer) in manifest.layers.iter().enumerate() {
        let mut matrices = BTreeSet::new();
        for matrix in layer.inputs.iter().flat_map(|input| &input.matrices) {
            if !matrices.insert((&matrix.tensor, matrix.expert)) {
                let of = matrix.expert.map_or_else(String::new, |expert| format!(", matrix {expert}"));
                return Err(broken(format!("`layers[{at}]`: `{}`{of} is there twice", matrix.tensor)));
            }
        }
        for input in &layer.inputs {
            if input.moments.len() != n_kinds || input.matrices.is_empty() {
                let found = input.moments.len();
                return Err(broken(format!(
                    "`layers[{at}]`: an input of {} matrices with statistics of {found} kinds; expected {n_kinds}",
                    input.matrices.len()
                )));
            }
        }
    }
    Ok(manifest)
}

/// Reads a file that [`super::write_importance`] wrote.
pub(crate) fn read_importance(path: &Path) -> Result<BTreeMap<String, ColumnSums>, StatisticsError> {
    let mut file = TensorFile::open(path.to_owned(), &Limits::default())?;
    let mut tensors = BTreeMap::new();
    for name in file.names("") {
        let columns = file.columns(&name)?;
        tensors.insert(name, columns);
    }
    file.check_empty()?;
    Ok(tensors)
}
