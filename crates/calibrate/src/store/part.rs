//! Part of statistics: those of a share of the text, with sums as they were in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::calibration_run::BatchRange;
use crate::program::program;
use crate::store::folder::{Folder, TensorWriters, digest_of, meta};
use crate::store::manifest::{LayerEntry, PartEntry, StatisticsCounts, StatisticsManifest};
use crate::store::read::read_manifest;
use crate::store::tensor_file::{OTHER_DIGEST, TensorFile};
use crate::store::write::push_columns;
use crate::store::{
    IMPORTANCE, MANIFEST, SUMS, StatisticsError, moments_file, moments_name, places_name, rests_name,
    triangle,
};
use crate::{CalibrationText, ImportanceSums, LayerSums, MomentSums};
use gguf_core::ElementType;
use gguf_core::limits::Limits;
use gguf_core::text::hex;
use gguf_format::Share;
use gguf_verification::{ExactColumns, Model};

/// Share of a text, and the batches that its run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextShare {
    /// Number of the share, and number of shares.
    pub share: Share,
    /// Batches of the share ([`crate::CalibrationRun::batches`]).
    pub batches: BatchRange,
}

/// Part that is being written into a directory. If dropped before [`PartWriter::commit`], nothing remains of it.
#[derive(Debug)]
pub struct PartWriter {
    folder: Folder,
}

impl PartWriter {
    /// Begins a directory that is new or empty, for a share of a text; `seed` is that of sampled text. With `sync`, files reach the disk before they get their names.
    ///
    /// # Errors
    /// A path that exists and is not an empty directory; a model that cannot be read; file system errors.
    pub fn create(
        path: &Path,
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
        own: TextShare,
        sync: bool,
    ) -> Result<Self, StatisticsError> {
        let manifest = manifest(model, text, seed, own)?;
        Ok(Self { folder: Folder::create(path, manifest, Folder::n_files(model), sync)? })
    }

    /// Adds a layer: a consumer of [`crate::CalibrationRun::run_share`].
    pub fn add(&mut self, layer: &LayerSums) -> Result<(), StatisticsError> {
        let name = moments_file(self.folder.manifest.layers.len());
        let path = self.folder.path(&name);
        let mut tensors: TensorWriters<'_> = Vec::new();
        for (kind, own) in layer.kinds.iter().enumerate() {
            for (at, own) in own.iter().enumerate() {
                push_sums(&mut tensors, &path, &moments_name(kind, at), own)?;
            }
        }
        self.folder.add(&name, &tensors)?;
        self.folder.enter(layer, MomentSums::n_rows);
        Ok(())
    }

    /// Adds the importance sums, and gives the directory its name.
    ///
    /// # Errors
    /// File system errors; then there is no directory.
    pub fn commit(mut self, importance: &ImportanceSums) -> Result<(), StatisticsError> {
        let path = self.folder.path(IMPORTANCE);
        let mut tensors: TensorWriters<'_> = Vec::new();
        for (kind, sums) in importance.kinds.iter().enumerate() {
            for (name, exact) in sums {
                let (name, columns) = (format!("kind{kind}/{name}"), &exact.columns);
                push_columns(&mut tensors, &path, &name, columns)?;
                let dims = vec![columns.counts.len() as u64, columns.n_cols as u64];
                let meta = meta(&path, rests_name(&name), dims, ElementType::F64)?;
                tensors.push((
                    meta,
                    Box::new(|pieces| {
                        exact.rests.iter().try_for_each(|rest| pieces.push(&rest.to_le_bytes()))
                    }),
                ));
            }
        }
        self.folder.add(IMPORTANCE, &tensors)?;
        self.folder.commit()
    }
}

/// Manifest of a part before it has any layers.
fn manifest(
    model: &Model<'_>,
    text: &CalibrationText,
    seed: Option<u64>,
    own: TextShare,
) -> Result<StatisticsManifest, StatisticsError> {
    let TextShare { share, batches } = own;
    let mut manifest = Folder::manifest(model, text, seed)?;
    manifest.part = Some(PartEntry {
        number: share.number(),
        count: share.count(),
        program: program(),
        text: digest_of(text),
        first_batch: batches.first,
        batches: batches.n,
        all_batches: batches.of,
    });
    Ok(manifest)
}

/// Adds the tensors of sums, and of their rests if there are any.
fn push_sums<'a>(
    tensors: &mut TensorWriters<'a>,
    path: &Path,
    name: &str,
    own: &'a MomentSums,
) -> Result<(), StatisticsError> {
    let dims = vec![triangle(own.n_cols()).unwrap_or(u64::MAX)];
    let sums = meta(path, name.to_owned(), dims, ElementType::F64)?;
    tensors.push((
        sums,
        Box::new(|pieces| {
            let mut sums = (0..own.n_cols()).flat_map(|row| own.sums().row(row));
            sums.try_for_each(|sum| pieces.push(&sum.to_le_bytes()))
        }),
    ));
    let n_rests = own.sums().rests().count() as u64;
    if n_rests == 0 {
        return Ok(());
    }
    let rests = meta(path, rests_name(name), vec![n_rests], ElementType::F64)?;
    tensors.push((
        rests,
        Box::new(|pieces| own.sums().rests().try_for_each(|(_, _, rest)| pieces.push(&rest.to_le_bytes()))),
    ));
    let places = meta(path, places_name(name), vec![n_rests, 2], ElementType::I64)?;
    tensors.push((
        places,
        Box::new(|pieces| {
            own.sums().rests().try_for_each(|(row, column, _)| {
                pieces.push(&(row as i64).to_le_bytes())?;
                pieces.push(&(column as i64).to_le_bytes())
            })
        }),
    ));
    Ok(())
}

/// Part of statistics in a directory.
#[derive(Clone, Debug)]
pub struct StatisticsPart {
    path: PathBuf,
    manifest: StatisticsManifest,
    part: PartEntry,
    /// Digests by file name.
    digests: BTreeMap<String, String>,
    limits: Limits,
}

impl StatisticsPart {
    /// Returns true if a path is a directory of statistics, whole or a part.
    pub fn is_one(path: &Path) -> bool {
        path.join(MANIFEST).is_file()
    }

    /// Opens a directory and reads its manifest.
    ///
    /// # Errors
    /// [`StatisticsError`]: no statistics, whole ones, a broken or changed manifest, another version.
    pub fn open(path: &Path) -> Result<Self, StatisticsError> {
        let limits = Limits::default();
        let manifest = read_manifest(path, &limits)?;
        let Some(part) = manifest.part.clone() else {
            return Err(StatisticsError::NoPart { path: path.to_owned() });
        };
        let sums = path.join(SUMS);
        let damaged = |file: &Path, reason| StatisticsError::DamagedPart { file: file.to_owned(), reason };
        if !sums.is_file() || fs_err::metadata(&sums)?.len() > limits.text_file_bytes {
            return Err(damaged(&sums, "no list of the files' digests"));
        }
        let text = gguf_core::input::read(&sums)?;
        let line =
            |line: &str| line.split_once("  ").map(|(digest, name)| (name.to_owned(), digest.to_owned()));
        let lines = std::str::from_utf8(&text).ok();
        let digests = lines.and_then(|text| text.lines().map(line).collect::<Option<BTreeMap<_, _>>>());
        let digests = digests.ok_or_else(|| damaged(&sums, "a line that is no digest and no name"))?;
        let found = Self { path: path.to_owned(), manifest, part, digests, limits };
        let bytes = gguf_core::input::read(&path.join(MANIFEST))?;
        if hex(&Sha256::digest(&bytes)) != found.digest(MANIFEST)? {
            return Err(damaged(&path.join(MANIFEST), OTHER_DIGEST));
        }
        Ok(found)
    }

    /// Returns true if it is the complete part that a run with these arguments would write.
    ///
    /// # Errors
    /// A model or files that cannot be read.
    /// A damaged part is incomplete.
    pub fn is_of(
        &self,
        model: &Model<'_>,
        text: &CalibrationText,
        seed: Option<u64>,
        own: TextShare,
    ) -> Result<bool, StatisticsError> {
        let found = StatisticsManifest { layers: Vec::new(), ..self.manifest.clone() };
        if found != manifest(model, text, seed, own)? {
            return Ok(false);
        }
        let moments = (0..self.manifest.layers.len()).map(moments_file);
        for name in moments.chain([IMPORTANCE.to_owned()]) {
            match self.file(&name) {
                Ok(_) => {}
                Err(StatisticsError::DamagedPart { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Numbers of layers and matrices with moments.
    pub fn counts(&self) -> StatisticsCounts {
        self.manifest.counts()
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn manifest(&self) -> &StatisticsManifest {
        &self.manifest
    }

    pub(super) fn part(&self) -> &PartEntry {
        &self.part
    }

    fn digest(&self, name: &str) -> Result<&str, StatisticsError> {
        let (file, reason) = (self.path.join(name), "it is not in `SHA256SUMS`");
        self.digests.get(name).map(String::as_str).ok_or(StatisticsError::DamagedPart { file, reason })
    }

    /// Opens a file and checks its digest.
    fn file(&self, name: &str) -> Result<TensorFile, StatisticsError> {
        TensorFile::open_known(self.path.join(name), self.digest(name)?, &self.limits)
    }

    /// Entry of a layer with its open file; `None` if the part has no moments of the layer.
    pub(super) fn layer(
        &self,
        layer: Option<usize>,
    ) -> Result<Option<(&LayerEntry, TensorFile)>, StatisticsError> {
        let mut entries = self.manifest.layers.iter().enumerate().filter(|(_, entry)| entry.layer == layer);
        let Some((at, entry)) = entries.next() else { return Ok(None) };
        if entries.next().is_some() {
            let (file, reason) = (self.path.join(MANIFEST), "a layer is there twice");
            return Err(StatisticsError::DamagedPart { file, reason });
        }
        Ok(Some((entry, self.file(&moments_file(at))?)))
    }

    /// Number of bytes of the files of moments.
    pub(super) fn n_bytes(&self) -> u64 {
        let files = (0..self.manifest.layers.len()).map(|at| self.path.join(moments_file(at)));
        files.map(|path| path.metadata().map_or(0, |found| found.len())).fold(0, u64::saturating_add)
    }

    /// Importance sums of each kind.
    pub(super) fn importance(&self) -> Result<Vec<BTreeMap<String, ExactColumns>>, StatisticsError> {
        let mut file = self.file(IMPORTANCE)?;
        let mut kinds = Vec::with_capacity(self.manifest.kinds.len());
        for kind in 0..self.manifest.kinds.len() {
            let mut sums = BTreeMap::new();
            let prefix = format!("kind{kind}/");
            for name in file.names(&prefix) {
                let columns = file.exact_columns(&format!("{prefix}{name}"))?;
                sums.insert(name, columns);
            }
            kinds.push(sums);
        }
        file.check_empty()?;
        Ok(kinds)
    }
}
