//! Records of the parts of a ladder: what each machine has written, for the run that puts everything together.
//!
//! A record identifies each file by its header, its sources and the options that decide its bytes. A file counts as
//! finished only if all of these are those of the run that asks, and if the file is unchanged since: by its length and
//! time or, if it was copied, by its checksum.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::core::output::{OutputError, OutputFile};
use crate::core::platform::stamp;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::{Share, WriteError};
use crate::job::JobError;
use crate::job::ladder::{Ladder, LadderFile, sums};

/// Beginning and end of a record's name.
const NAME: (&str, &str) = ("ladder-part-", ".json");
/// Largest record that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Record of the files that one part of a ladder has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LadderPartRecord {
    /// Program and version that wrote the files.
    pub made_by: String,
    /// Number of the part and of all parts: `2/8`.
    pub part: String,
    /// Files that the part has written.
    pub files: Vec<RecordedFile>,
}

/// File that a part of a ladder has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFile {
    /// Name of the types: `Q4_K_M`, `Q4_K_L`.
    #[serde(rename = "type")]
    pub name: String,
    /// Digest of the header, of samples of all sources and of the options that decide the bytes.
    pub id: String,
    /// The file, or its parts.
    pub parts: Vec<RecordedPart>,
}

/// File or part of a file in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPart {
    /// Name of the file, without its folder.
    pub name: String,
    /// Length and modification time.
    pub stamp: String,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// Path of the record of a part.
#[must_use]
pub fn record_path(directory: &Path, share: Share) -> PathBuf {
    directory.join(format!("{}{}-of-{}{}", NAME.0, share.number(), share.count(), NAME.1))
}

/// Program and version, as records and lists begin.
fn made_by() -> String {
    format!("gguf-quantize ladder {}", env!("CARGO_PKG_VERSION"))
}

/// Name of a file without its folder.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Record that a part writes while it goes on.
struct PartLog {
    path: PathBuf,
    record: LadderPartRecord,
    sync: bool,
}

impl PartLog {
    fn new(directory: &Path, share: Share, sync: bool) -> Self {
        let record = LadderPartRecord { made_by: made_by(), part: share.to_string(), files: Vec::new() };
        Self { path: record_path(directory, share), record, sync }
    }

    /// Adds a file that is complete.
    fn add(&mut self, id: &str, file: &LadderFile) -> io::Result<()> {
        let parts = file.plan.paths.iter().zip(&file.sha256).map(|(path, sha256)| {
            let found = fs_err::metadata(path)?;
            Ok(RecordedPart { name: file_name(path), stamp: stamp(&found), sha256: sha256.clone() })
        });
        let parts = parts.collect::<io::Result<_>>()?;
        self.record.files.push(RecordedFile { name: file.plan.name.clone(), id: id.to_owned(), parts });
        Ok(())
    }

    /// Writes the record as it is now.
    fn write(&self) -> Result<(), OutputError> {
        let text = serde_json::to_string_pretty(&self.record).map_err(io::Error::from)?;
        OutputFile::write(&self.path, format!("{text}\n").as_bytes(), self.sync)
    }
}

/// Records that a run finds, and the one that it writes.
#[derive(Default)]
pub(super) struct Records {
    found: PartRecords,
    log: Option<PartLog>,
}

impl Records {
    /// Reads the records of the folder, if finished files may be taken, and begins that of a part. Calibrated files take
    /// long and cannot be recognized by their headers alone, so that a run which can be resumed records them as the only
    /// part.
    pub(super) fn open(ladder: &Ladder, progress: &dyn Progress) -> Result<Self, JobError> {
        let takes = ladder.resume || ladder.share.is_some();
        let found =
            if takes { PartRecords::read(&ladder.directory, progress)? } else { PartRecords::default() };
        let whole = (ladder.resume && ladder.calibration.is_some()).then_some(Share::WHOLE);
        let log = ladder.share.or(whole).map(|share| PartLog::new(&ladder.directory, share, ladder.sync));
        Ok(Self { found, log })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.records.is_empty()
    }

    /// Returns the checksums of a finished file, as [`PartRecords::finished`].
    pub(super) fn finished(
        &self,
        name: &str,
        id: &str,
        wanted: &[PathBuf],
        progress: &dyn Progress,
    ) -> Result<Option<Vec<String>>, WriteError> {
        self.found.finished(name, id, wanted, progress)
    }

    /// Records a file that is complete, if the run writes a part.
    pub(super) fn add(&mut self, id: &str, file: &LadderFile) -> Result<(), JobError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.add(id, file)?;
        Ok(log.write()?)
    }

    /// Writes the record of a part, also of one without files.
    pub(super) fn finish(self) -> Result<Option<LadderPartRecord>, JobError> {
        let Some(log) = self.log else { return Ok(None) };
        log.write()?;
        Ok(Some(log.record))
    }
}

/// Records of all parts in a folder.
#[derive(Default)]
struct PartRecords {
    records: Vec<(PathBuf, LadderPartRecord)>,
}

impl PartRecords {
    /// Reads the records of a folder. One that cannot be read is left out with a warning: its files are made again.
    fn read(directory: &Path, progress: &dyn Progress) -> io::Result<Self> {
        let mut records = Vec::new();
        for path in paths(directory)? {
            match read(&path) {
                Ok(record) if record.made_by == made_by() => records.push((path, record)),
                Ok(record) => progress.warn(&format!(
                    "{}: of `{}`, not taken: its files are made again",
                    path.display(),
                    escape(&record.made_by)
                )),
                Err(error) => progress.warn(&format!("{error}: its files are made again")),
            }
        }
        Ok(Self { records })
    }

    /// Returns the checksums of a file that a part has written and that nobody has changed since; `None` if there is no
    /// such file. A file of another source or of other options, and one that was changed, is named in a warning.
    fn finished(
        &self,
        name: &str,
        id: &str,
        wanted: &[PathBuf],
        progress: &dyn Progress,
    ) -> Result<Option<Vec<String>>, WriteError> {
        let mut reason = None;
        for (path, record) in &self.records {
            for file in record.files.iter().filter(|file| file.name == name) {
                let names = file.parts.iter().map(|part| part.name.clone());
                let is_alike = names.eq(wanted.iter().map(|path| file_name(path)));
                if file.id != id || !is_alike {
                    reason = Some((path, "was made of another source or with other options"));
                } else if is_unchanged(file, wanted, progress)? {
                    return Ok(Some(file.parts.iter().map(|part| part.sha256.clone()).collect()));
                } else {
                    reason = Some((path, "is not there any more, or was changed"));
                }
            }
        }
        if let Some((path, why)) = reason {
            let text = format!("{name} of {} {why}: it is made again", path.display());
            progress.warn(&text);
        }
        Ok(None)
    }
}

/// Returns true if the files are those of a record: by length and time, otherwise by their checksums.
fn is_unchanged(file: &RecordedFile, paths: &[PathBuf], progress: &dyn Progress) -> Result<bool, WriteError> {
    let found = paths.iter().map(|path| match fs_err::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    });
    let Some(found) = found.collect::<io::Result<Option<Vec<Metadata>>>>()? else { return Ok(false) };
    let is_stamped = |(part, found): (&RecordedPart, &Metadata)| part.stamp == stamp(found);
    if file.parts.iter().zip(&found).all(is_stamped) {
        return Ok(true);
    }
    // A copy has another time, but never another length.
    let length = |stamp: &str| stamp.split_once(' ').map(|(length, _)| length.to_owned());
    let has_length = |(part, found): (&RecordedPart, &Metadata)| length(&part.stamp) == length(&stamp(found));
    if !file.parts.iter().zip(&found).all(has_length) {
        return Ok(false);
    }
    let sums = sums::of_files(paths, progress)?;
    Ok(sums.iter().eq(file.parts.iter().map(|part| &part.sha256)))
}

/// Removes the records of all parts: the folder is complete.
///
/// # Errors
/// I/O errors.
pub(super) fn forget(directory: &Path) -> io::Result<()> {
    for path in paths(directory)? {
        if read(&path).is_ok() {
            fs_err::remove_file(path)?;
        }
    }
    Ok(())
}

/// Paths of all records, in the order of their names.
fn paths(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs_err::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = file_name(&path);
        let middle = name.strip_prefix(NAME.0).and_then(|rest| rest.strip_suffix(NAME.1));
        let is_share = |text: &str| text.replacen("-of-", "/", 1).parse::<Share>().is_ok();
        if middle.is_some_and(is_share) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> io::Result<LadderPartRecord> {
    let n_bytes = fs_err::metadata(path)?.len();
    let named =
        |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()));
    if n_bytes > MAX_BYTES {
        return Err(named(format!("{n_bytes} bytes, at most {MAX_BYTES} expected of a record of a part")));
    }
    let text = fs_err::read_to_string(path)?;
    serde_json::from_str(&text).map_err(|error| named(format!("no record of a part of a ladder: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::progress::Silent;
    use crate::job::ladder::LadderFilePlan;

    fn written(directory: &Path, name: &str, content: &str) -> LadderFile {
        let path = directory.join(format!("m-{name}.gguf"));
        fs_err::write(&path, content).unwrap();
        let plan = LadderFilePlan {
            name: name.to_owned(),
            paths: vec![path],
            file_bytes: content.len() as u64,
            bits_per_weight: 4.0,
            n_fallbacks: 0,
            is_alone: false,
            is_calibrated: false,
        };
        let sha256 = sums::of_files(&plan.paths, &Silent).unwrap();
        LadderFile { plan, sha256, was_there: false }
    }

    #[test]
    fn a_file_is_taken_only_if_it_is_the_one_that_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let file = written(dir, "Q4_0", "weights");
        let mut log = PartLog::new(dir, "2/3".parse().unwrap(), false);
        log.add("id", &file).unwrap();
        log.write().unwrap();
        assert!(dir.join("ladder-part-2-of-3.json").exists());
        let finished = |name: &str, id: &str| {
            let records = PartRecords::read(dir, &Silent).unwrap();
            records.finished(name, id, &file.plan.paths, &Silent).unwrap()
        };
        assert_eq!(finished("Q4_0", "id"), Some(file.sha256.clone()));
        assert_eq!((finished("Q4_0", "other"), finished("Q4_1", "id")), (None, None));
        let path = &file.plan.paths[0];
        // Copied: another time, the same bytes. Then changed, cut, gone.
        std::thread::sleep(std::time::Duration::from_millis(5));
        fs_err::write(path, "weights").unwrap();
        assert_eq!(finished("Q4_0", "id"), Some(file.sha256.clone()));
        fs_err::write(path, "Weights").unwrap();
        assert_eq!(finished("Q4_0", "id"), None);
        fs_err::write(path, "weight").unwrap();
        assert_eq!(finished("Q4_0", "id"), None);
        fs_err::remove_file(path).unwrap();
        assert_eq!(finished("Q4_0", "id"), None);
        forget(dir).unwrap();
        assert!(PartRecords::read(dir, &Silent).unwrap().records.is_empty());
        assert!(!dir.join("ladder-part-2-of-3.json").exists());
    }

    #[test]
    fn what_is_no_record_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for name in
            ["ladder-part-2-of-1.json", "ladder-part-1-of-2.json", "ladder-part-x.json", "ladder.json"]
        {
            fs_err::write(dir.join(name), "{}").unwrap();
        }
        assert!(PartRecords::read(dir, &Silent).unwrap().records.is_empty());
        forget(dir).unwrap();
        assert_eq!(fs_err::read_dir(dir).unwrap().count(), 4);
        assert!(PartRecords::read(&dir.join("none"), &Silent).unwrap().records.is_empty());
    }
}
