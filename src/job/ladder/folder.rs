//! Folder of a ladder: the files that earlier runs have written, and those that a run adds.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::core::Hint;
use crate::core::output::{OutputError, OutputFile};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::job::ladder::part::{PartLog, PartRecords};
use crate::job::ladder::record::{self, RecordedFile, file_name};
use crate::job::ladder::{Ladder, LadderFile, LadderPartRecord};
use crate::job::{NameTaken, Result};

/// Record of an unfinished run.
const LOG: &str = ".ladder.json";
/// Record of a finished folder.
pub(super) const LIST: &str = "ladder.json";

/// Files of a folder, as far as a record needs them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct FolderRecord {
    #[serde(default)]
    files: Vec<LoggedFile>,
    #[serde(default, skip_serializing)]
    projector: Option<LoggedFile>,
    #[serde(default, skip_serializing)]
    draft_heads: Option<LoggedFile>,
}

/// File with its figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LoggedFile {
    #[serde(flatten)]
    file: RecordedFile,
    #[serde(default)]
    figures: Option<Json>,
    #[serde(default)]
    figures_id: Option<String>,
}

impl LoggedFile {
    fn in_folder(&self, folder: &Path) -> LadderFile {
        let Self { file, figures, figures_id } = self.clone();
        LadderFile { figures, figures_id, ..file.in_folder(folder) }
    }

    fn path(&self, folder: &Path) -> PathBuf {
        self.file.parts.first().map_or_else(|| folder.to_owned(), |part| folder.join(&part.name))
    }
}

/// Faults of the files that are in a ladder's folder.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FolderError {
    #[error(
        "{}: it is there, made {how} than this run's: by {}, and now {} is asked for",
        path.display(), command(made), command(asked)
    )]
    Other { path: PathBuf, how: &'static str, made: String, asked: String },
    #[error("{}: it is there with other types or keys, and no record tells how it was made", path.display())]
    Unrecorded { path: PathBuf },
    #[error("{}: it was changed since `gguf-quantize ladder` wrote it", path.display())]
    Changed { path: PathBuf },
    #[error(transparent)]
    Taken(NameTaken),
    #[error("{}: it was made of another source or tokenizer than this run reads, by {}", path.display(), command(made))]
    OtherSource { path: PathBuf, made: String },
}

/// Quotes a command of a record.
fn command(text: &str) -> String {
    if text.is_empty() { "another run".to_owned() } else { format!("`{}`", escape(text)) }
}

impl Hint for FolderError {
    fn hints(&self) -> Vec<String> {
        let text = match self {
            Self::Other { .. } | Self::Unrecorded { .. } => {
                "`--replace` makes it again as this run asks; `-o DIR` names another folder"
            }
            Self::Changed { .. } => {
                "`--replace` makes the types of this run again; a file of another type: remove it, or move it elsewhere"
            }
            Self::Taken(_) => "`-o DIR` or `--name NAME` names others; or remove that file",
            Self::OtherSource { .. } => {
                "list its type in `--types`, too, and `--replace` makes it again; or `-o DIR` names another folder"
            }
        };
        vec![text.to_owned()]
    }
}

/// Record of a file, and the time at which it was written if it has no stamps.
struct FoundFile {
    logged: LoggedFile,
    time: Option<SystemTime>,
}

/// Records that a run finds in its folder, and the one that it writes.
pub(super) struct FolderRecords<'a> {
    ladder: &'a Ladder,
    own: Vec<FoundFile>,
    /// Files that parts have written.
    parts: PartRecords,
    log: Log,
}

/// Record that a run writes while it goes on.
enum Log {
    Part(PartLog),
    Whole(Box<FolderRecord>),
}

impl<'a> FolderRecords<'a> {
    /// Reads the records of the folder, and begins the one of this run.
    pub(super) fn open(ladder: &'a Ladder, progress: &dyn Progress) -> Result<Self> {
        let directory = ladder.directory.as_path();
        let takes = ladder.resume || ladder.share.is_some();
        let parts = if takes { PartRecords::read(directory, progress)? } else { PartRecords::default() };
        let mut own: Vec<FoundFile> = Vec::new();
        for name in [LOG, LIST] {
            let path = directory.join(name);
            let time = match fs_err::metadata(&path) {
                Ok(found) => found.modified().ok(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let FolderRecord { files, projector, draft_heads } = match record::read(&path) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    progress.warn(&format!("{error}: what it lists is not known"));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for logged in files.into_iter().chain(projector).chain(draft_heads) {
                let file = &logged.file;
                let paths: Vec<PathBuf> = file.parts.iter().map(|part| PathBuf::from(&part.name)).collect();
                let is_plain = paths.iter().all(|path| Some(path.as_os_str()) == path.file_name());
                let is_known = own.iter().any(|known| known.logged.file.is_of(&file.name, &paths));
                if is_plain && !is_known && !file.is_gone(directory) {
                    own.push(FoundFile { logged, time });
                }
            }
        }
        let log = match ladder.share {
            Some(share) => Log::Part(PartLog::new(directory, share, ladder.sync)),
            None => Log::Whole(Box::new(FolderRecord {
                files: own.iter().map(|found| found.logged.clone()).collect(),
                ..FolderRecord::default()
            })),
        };
        Ok(Self { ladder, own, parts, log })
    }

    /// Returns a file that is there as this run would write it; `None` if it has to be made.
    ///
    /// # Errors
    /// A file that was made otherwise or changed, unless it may be replaced.
    pub(super) fn finished(
        &self,
        name: &str,
        origin: &record::FileOrigin,
        wanted: &[PathBuf],
        progress: &dyn Progress,
    ) -> Result<Option<LadderFile>> {
        let directory = &self.ladder.directory;
        let Some(FoundFile { logged, time }) =
            self.own.iter().find(|found| found.logged.file.is_of(name, wanted))
        else {
            let found = self.parts.finished(name, &origin.id, wanted, progress)?;
            return Ok(found.map(|found| found.in_folder(directory)));
        };
        let file = &logged.file;
        let names = || wanted.iter().map(|path| file_name(path));
        // The parts of a run of its own are known only in the end; its options are those of the record.
        let is_alike = file.origin.id == origin.id
            && (file.alone || file.parts.iter().map(|part| part.name.clone()).eq(names()));
        if is_alike && file.is_unchanged(directory, *time, progress)? {
            return Ok(Some(logged.in_folder(directory)));
        }
        if self.ladder.replace {
            return Ok(None);
        }
        let path = logged.path(directory);
        if is_alike {
            return Err(FolderError::Changed { path }.into());
        }
        let how = if file.origin.id.is_empty() {
            "by an older version and perhaps otherwise"
        } else if file.origin.source != origin.source {
            "of another source or tokenizer"
        } else {
            "with other options"
        };
        let (made, asked) = (file.origin.command.clone(), origin.command.clone());
        Err(FolderError::Other { path, how, made, asked }.into())
    }

    /// Returns the other files of the folder, which this run does not make. `paths` are those that it makes.
    pub(super) fn others(
        &self,
        paths: &[PathBuf],
        source: &str,
        progress: &dyn Progress,
    ) -> Result<Vec<LadderFile>> {
        let directory = &self.ladder.directory;
        let mut others = Vec::new();
        for FoundFile { logged, time } in &self.own {
            let file = &logged.file;
            if paths.iter().any(|path| file.is_of(&file.name, std::slice::from_ref(path))) {
                continue;
            }
            let path =
                file.parts.first().map_or_else(|| directory.clone(), |part| directory.join(&part.name));
            if file.origin.source != source && !file.origin.source.is_empty() {
                return Err(FolderError::OtherSource { path, made: file.origin.command.clone() }.into());
            }
            if !file.is_unchanged(directory, *time, progress)? {
                return Err(FolderError::Changed { path }.into());
            }
            others.push(logged.in_folder(directory));
        }
        Ok(others)
    }

    /// Returns true if a part has recorded a file of this type, which is made again if it is another.
    pub(super) fn has_part_of(&self, name: &str) -> bool {
        self.parts.has(name)
    }

    /// Records a file that is complete. Parts that it replaces are removed.
    pub(super) fn add(&mut self, file: &LadderFile) -> Result<()> {
        match &mut self.log {
            Log::Part(log) => {
                log.add(file)?;
                Ok(log.write()?)
            }
            Log::Whole(log) => {
                let new = RecordedFile::of(file, true)?;
                let is_old = |old: &LoggedFile| old.file.is_of(&new.name, &file.plan.paths);
                for part in log.files.iter().filter(|old| is_old(old)).flat_map(|old| &old.file.parts) {
                    let path = self.ladder.directory.join(&part.name);
                    let is_model = path.extension().is_some_and(|end| end == "gguf") && path.is_file();
                    if is_model && !new.parts.iter().any(|kept| kept.name == part.name) {
                        fs_err::remove_file(path)?;
                    }
                }
                log.files.retain(|old| !is_old(old));
                let (figures, figures_id) = (file.figures.clone(), file.figures_id.clone());
                log.files.push(LoggedFile { file: new, figures, figures_id });
                Ok(write(&self.ladder.directory, log, self.ladder.sync)?)
            }
        }
    }

    /// Writes the record of a part, also of one without files.
    pub(super) fn finish(self) -> Result<Option<LadderPartRecord>> {
        let Log::Part(log) = self.log else { return Ok(None) };
        log.write()?;
        Ok(Some(log.into_record()))
    }
}

fn write(directory: &Path, record: &FolderRecord, sync: bool) -> Result<(), OutputError> {
    let text = serde_json::to_string_pretty(record).map_err(io::Error::from)?;
    OutputFile::write(&directory.join(LOG), format!("{text}\n").as_bytes(), sync)
}

/// Records the figures of a file that this run has written or found.
pub(super) fn keep_figures(
    directory: &Path,
    file: &LadderFile,
    id: &str,
    figures: &Json,
    sync: bool,
) -> Result<()> {
    let mut log: FolderRecord = record::read(&directory.join(LOG))?;
    for own in log.files.iter_mut().filter(|own| own.file.is_of(&file.plan.name, &file.plan.paths)) {
        own.figures_id = Some(id.to_owned());
        own.figures = Some(figures.clone());
    }
    Ok(write(directory, &log, sync)?)
}

/// Removes the record of an unfinished run: the folder is finished.
pub(super) fn forget(directory: &Path) -> io::Result<()> {
    match fs_err::remove_file(directory.join(LOG)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
