//! Records of the parts of a ladder: what each machine has written, for the run that puts everything together.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::core::output::{OutputError, OutputFile};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::gguf::{Share, WriteError};
use crate::job::ladder::LadderFile;
use crate::job::ladder::record::{self, RecordedFile, file_name};

/// Beginning and end of a record's name.
const NAME: (&str, &str) = ("ladder-part-", ".json");

/// Record of the files that one part of a ladder has written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LadderPartRecord {
    /// Program and version that wrote the files.
    pub made_by: String,
    /// Number of the part and of all parts: `2/8`.
    pub part: String,
    /// Files that the part has written.
    pub files: Vec<RecordedFile>,
}

/// Path of the record of a part.
pub fn record_path(directory: &Path, share: Share) -> PathBuf {
    directory.join(format!("{}{}-of-{}{}", NAME.0, share.number(), share.count(), NAME.1))
}

/// Program and version, as records and lists begin.
pub(super) fn made_by() -> String {
    format!("gguf-quantize ladder {}", env!("CARGO_PKG_VERSION"))
}

/// Record that a part writes while it goes on.
pub(super) struct PartLog {
    path: PathBuf,
    record: LadderPartRecord,
    sync: bool,
}

impl PartLog {
    pub(super) fn new(directory: &Path, share: Share, sync: bool) -> Self {
        let record = LadderPartRecord { made_by: made_by(), part: share.to_string(), files: Vec::new() };
        Self { path: record_path(directory, share), record, sync }
    }

    pub(super) fn add(&mut self, file: &LadderFile) -> io::Result<()> {
        self.record.files.push(RecordedFile::of(file, true)?);
        Ok(())
    }

    pub(super) fn into_record(self) -> LadderPartRecord {
        self.record
    }

    /// Writes the record as it is now.
    pub(super) fn write(&self) -> Result<(), OutputError> {
        let text = serde_json::to_string_pretty(&self.record).map_err(io::Error::from)?;
        OutputFile::write(&self.path, format!("{text}\n").as_bytes(), self.sync)
    }
}

/// Records of all parts in a folder.
#[derive(Default)]
pub(super) struct PartRecords {
    records: Vec<(PathBuf, LadderPartRecord)>,
}

impl PartRecords {
    /// Reads the records of a folder. One that cannot be read is left out with a warning: its files are made again.
    pub(super) fn read(directory: &Path, progress: &dyn Progress) -> io::Result<Self> {
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

    /// Returns true if a part has written a file of this type.
    pub(super) fn has(&self, name: &str) -> bool {
        self.records.iter().flat_map(|(_, record)| &record.files).any(|file| file.name == name)
    }

    /// Returns the record of a file that a part has written and that nobody has changed since; `None` if there is no such
    /// file. A file of another source or of other options, and one that was changed, is named in a warning.
    pub(super) fn finished(
        &self,
        name: &str,
        id: &str,
        wanted: &[PathBuf],
        progress: &dyn Progress,
    ) -> Result<Option<RecordedFile>, WriteError> {
        let mut reason = None;
        for (path, record) in &self.records {
            for file in record.files.iter().filter(|file| file.name == name) {
                let names = file.parts.iter().map(|part| part.name.clone());
                let is_alike = names.eq(wanted.iter().map(|path| file_name(path)));
                let directory = path.parent().unwrap_or(Path::new("."));
                if file.origin.id != id || !is_alike {
                    reason = Some((path, "was made of another source or with other options"));
                } else if file.is_unchanged(directory, None, progress)? {
                    return Ok(Some(file.clone()));
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

/// Removes the records of all parts: the folder is complete.
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
    record::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::progress::Silent;
    use crate::job::ladder::record::FileOrigin;
    use crate::job::ladder::{LadderFilePlan, sums};

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
            most_kld: None,
        };
        let sha256 = sums::of_files(&plan.paths, &Silent).unwrap();
        let origin = FileOrigin { id: "id".to_owned(), ..FileOrigin::default() };
        LadderFile { plan, sha256, was_there: false, origin, figures: None, figures_id: None }
    }

    #[test]
    fn a_file_is_taken_only_if_it_is_the_one_that_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let file = written(dir, "Q4_0", "weights");
        let mut log = PartLog::new(dir, "2/3".parse().unwrap(), false);
        log.add(&file).unwrap();
        log.write().unwrap();
        assert!(dir.join("ladder-part-2-of-3.json").exists());
        let finished = |name: &str, id: &str| {
            let records = PartRecords::read(dir, &Silent).unwrap();
            let found = records.finished(name, id, &file.plan.paths, &Silent).unwrap();
            found.map(|found| found.parts.into_iter().map(|part| part.sha256).collect())
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
