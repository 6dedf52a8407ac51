//! Records of files of a ladder: what each was made of, its checksums, and its figures.
//!
//! They are in a hidden file of the folder while a run goes on, in `ladder.json` once the folder is finished, and in a file
//! for each machine of a shared ladder. A file counts as finished only if source, options and types are those of the run
//! that asks, and if it is unchanged: by its length and time or, if it was copied, by its checksum.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::core::platform::stamp;
use crate::core::progress::Progress;
use crate::gguf::WriteError;
use crate::job::ladder::{LadderFile, LadderFilePlan, sums};

/// Largest record that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// File of a ladder, as records and `ladder.json` describe it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedFile {
    /// Name of the types: `Q4_K_M`, `Q4_K_L`.
    #[serde(rename = "type")]
    pub name: String,
    /// What the file was made of.
    #[serde(flatten, default)]
    pub origin: FileOrigin,
    /// The file, or its parts.
    pub parts: Vec<RecordedPart>,
    /// Size of all parts in bytes.
    #[serde(default)]
    pub file_bytes: u64,
    /// Bits per weight over all tensors.
    #[serde(default)]
    pub bits_per_weight: f64,
    /// Number of tensors whose type was replaced because of their columns.
    #[serde(default)]
    pub fallbacks: usize,
    /// True if a run of its own wrote the file.
    #[serde(default)]
    pub alone: bool,
    /// True if the rounding is calibrated.
    #[serde(default)]
    pub calibrated: bool,
}

/// What a file was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileOrigin {
    /// Digest of the header, of samples of all sources and of the options that decide the bytes.
    pub id: String,
    /// Digest of samples of the model alone.
    pub source: String,
    /// Program and version that wrote the file.
    pub made_by: String,
    /// Command that wrote the file, as a shell reads it.
    pub command: String,
    /// Name of the importance matrix; null without one.
    pub imatrix: Option<String>,
}

/// File or part of a file in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPart {
    /// Name of the file, without its folder.
    pub name: String,
    /// Length and modification time, while a run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// Name of a file without its folder.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl RecordedFile {
    /// Describes a written file. With `is_stamped` the record has the length and time of each part.
    pub fn of(file: &LadderFile, is_stamped: bool) -> io::Result<Self> {
        let parts = file.plan.paths.iter().zip(&file.sha256).map(|(path, sha256)| {
            let stamp = is_stamped.then(|| fs_err::metadata(path).map(|found| stamp(&found))).transpose()?;
            Ok(RecordedPart { name: file_name(path), stamp, sha256: sha256.clone() })
        });
        Ok(Self {
            name: file.plan.name.clone(),
            origin: file.origin.clone(),
            parts: parts.collect::<io::Result<_>>()?,
            file_bytes: file.plan.file_bytes,
            bits_per_weight: file.plan.bits_per_weight,
            fallbacks: file.plan.n_fallbacks,
            alone: file.plan.is_alone,
            calibrated: file.plan.is_calibrated,
        })
    }

    /// Returns the file in a folder, as a run reports one that was there.
    pub(super) fn in_folder(self, folder: &Path) -> LadderFile {
        let (paths, sha256) =
            self.parts.iter().map(|part| (folder.join(&part.name), part.sha256.clone())).unzip();
        let plan = LadderFilePlan {
            name: self.name,
            paths,
            file_bytes: self.file_bytes,
            bits_per_weight: self.bits_per_weight,
            n_fallbacks: self.fallbacks,
            is_alone: self.alone,
            is_calibrated: self.calibrated,
            most_kld: None,
        };
        LadderFile { plan, sha256, was_there: true, origin: self.origin, figures: None, figures_id: None }
    }

    /// Returns true if the record is about a file of this name, or about its parts, and of this type.
    pub(super) fn is_of(&self, name: &str, paths: &[PathBuf]) -> bool {
        let stem = |name: &str| name.trim_end_matches(".gguf").to_owned();
        let whole = |name: &str| match stem(name).rsplitn(4, '-').collect::<Vec<_>>().as_slice() {
            [count, "of", number, whole] if [count, number].iter().all(|n| n.parse::<u32>().is_ok()) => {
                (*whole).to_owned()
            }
            _ => stem(name),
        };
        let own = self.parts.first().map(|part| whole(&part.name));
        self.name == name && own.is_some() && own == paths.first().map(|path| whole(&file_name(path)))
    }

    /// Returns true if no part of the file is in the folder.
    pub(super) fn is_gone(&self, folder: &Path) -> bool {
        self.parts.iter().all(|part| !folder.join(&part.name).exists())
    }

    /// Returns true if the files in the folder are those of the record, which was written at `time`: by length and time,
    /// otherwise by their checksums.
    pub(super) fn is_unchanged(
        &self,
        folder: &Path,
        time: Option<SystemTime>,
        progress: &dyn Progress,
    ) -> Result<bool, WriteError> {
        let paths: Vec<PathBuf> = self.parts.iter().map(|part| folder.join(&part.name)).collect();
        let found = paths.iter().map(|path| match fs_err::metadata(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        });
        let Some(found) = found.collect::<io::Result<Option<Vec<Metadata>>>>()? else { return Ok(false) };
        let is_older = |found: &Metadata| {
            time.zip(found.modified().ok()).is_some_and(|(time, modified)| modified <= time)
        };
        let is_stamped = |(part, found): (&RecordedPart, &Metadata)| match &part.stamp {
            Some(noted) => *noted == stamp(found),
            None => is_older(found),
        };
        // A copy has another time, but never another length.
        let length = |stamp: &str| stamp.split_once(' ').map(|(length, _)| length.to_owned());
        let has_length = |(part, found): (&RecordedPart, &Metadata)| {
            part.stamp.as_ref().is_none_or(|noted| length(noted) == length(&stamp(found)))
        };
        let n_bytes: u64 = found.iter().map(Metadata::len).sum();
        let has_stamps = self.parts.iter().all(|part| part.stamp.is_some());
        let is_whole = has_stamps || n_bytes == self.file_bytes;
        if !is_whole || !self.parts.iter().zip(&found).all(has_length) {
            return Ok(false);
        }
        if self.parts.iter().zip(&found).all(is_stamped) {
            return Ok(true);
        }
        let sums = sums::of_files(&paths, progress)?;
        Ok(sums.iter().eq(self.parts.iter().map(|part| &part.sha256)))
    }
}

pub(super) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<T> {
    let n_bytes = fs_err::metadata(path)?.len();
    let named =
        |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()));
    if n_bytes > MAX_BYTES {
        return Err(named(format!("{n_bytes} bytes, at most {MAX_BYTES} expected of a record of a part")));
    }
    let text = fs_err::read_to_string(path)?;
    serde_json::from_str(&text).map_err(|error| named(format!("no record of a part of a ladder: {error}")))
}
