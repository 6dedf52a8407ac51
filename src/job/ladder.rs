//! Ladder: many quantizations of one model, written from one reading of it.
//!
//! Every file has the bytes of its own single run. A tensor that several files hold in the same type is quantized once.
//! Types that a checkpoint's integers can keep, that the converter writes differently, or whose rounding is calibrated, are
//! written by runs of their own after the others.
//!
//! | file | subject |
//! |---|---|
//! | `rung` | names and presets of types |
//! | `naming` | names of the files |
//! | `shares` `part` | division among machines, and the record of what each has written |
//! | `record` `folder` | what each file of a folder was made of; files that earlier runs have written |
//! | `prepared` | files of the ladder, checked and planned before a weight is read |
//! | `beside` | towers and draft heads, in files of their own |
//! | `sums` | checksums of the files |
//! | `report` | data for the caller |

mod beside;
mod folder;
mod naming;
mod part;
mod prepared;
mod record;
mod report;
mod rung;
mod shares;
mod sums;

use std::path::PathBuf;

use crate::convert::ConvertOptions;
use crate::core::output::sweep;
use crate::core::{GgmlType, ImatrixNeed};
use crate::gguf::{Imatrix, Metadata, Share, WriteError, output_id};
use crate::job::input::OpenedInput;
use crate::job::run::JobRun;
use crate::job::{
    Calibration, Events, FileTarget, Importance, Job, JobInput, JobOutput, JobTypes, OutputFiles, OutputPath,
    Result,
};
use crate::quantize::{FileType, QuantizeOptions};

pub use folder::FolderError;
pub use naming::{NAME_PATTERN, check_pattern};
pub use part::{LadderPartRecord, record_path};
pub use record::{FileOrigin, RecordedFile, RecordedPart};
pub use report::{LadderFile, LadderFilePlan, LadderPlan, LadderReport};
pub use rung::{Preset, Rung, UnknownRung};

use beside::Companion;
use folder::FolderRecords;
use prepared::PreparedLadder;

/// Largest file in bytes; a larger one is written in parts. The hub takes no larger ones.
pub const MAX_PART_BYTES: u64 = 50_000_000_000;

/// Many quantizations of one model.
#[derive(Clone, Debug)]
pub struct Ladder {
    /// Model to read.
    pub input: JobInput,
    /// Types, one for each file.
    pub rungs: Vec<Rung>,
    /// Folder for the files, which are named after the model.
    pub directory: PathBuf,
    /// Name of the model, in the files and their names; by default the model's own.
    pub name: Option<String>,
    /// Pattern of the file names, with `{name}` and `{type}`.
    pub name_pattern: String,
    /// Command that makes the files, for their records.
    pub command: String,
    /// True to make a file again that is there with other options.
    pub replace: bool,
    /// Options of the conversion of a checkpoint.
    pub convert: ConvertOptions,
    /// Options of all quantizations. The file types are those of the rungs.
    pub quantize: QuantizeOptions,
    /// Importance matrix of all quantizations.
    pub importance: Importance,
    /// Calibration of the rounding, for types that are quantized to. The folder that keeps the work has one folder for each
    /// type.
    pub calibration: Option<Calibration>,
    /// Files that rules of types were read from; no output may replace them.
    pub rule_files: Vec<PathBuf>,
    /// Largest file in bytes; a larger one is written in parts.
    pub max_part_bytes: u64,
    /// True to keep what an interrupted run has written, and to continue it on the next start. What parts have written is
    /// taken over.
    pub resume: bool,
    /// Part of the files that is written; all of them if `None`. A part is always resumed.
    pub share: Option<Share>,
    /// True to sync the files to disk before they get their final names.
    pub sync: bool,
    /// Memory for chunks in flight in bytes, over all threads and files.
    pub memory_bytes: u64,
}

/// Returns the keys of the tokenizer as a text. The files that they come from may change while the weights stay.
fn tokenizer(metadata: &Metadata) -> String {
    let own = metadata.iter().filter(|(key, _)| key.starts_with("tokenizer."));
    own.map(|(key, value)| format!("{key}={value:?}\n")).collect::<Vec<_>>().concat()
}

impl Ladder {
    /// Ladder with default options.
    pub fn new(input: JobInput, rungs: Vec<Rung>, directory: PathBuf) -> Self {
        Self {
            input,
            rungs,
            directory,
            name: None,
            name_pattern: NAME_PATTERN.to_owned(),
            command: String::new(),
            replace: false,
            convert: ConvertOptions::default(),
            quantize: QuantizeOptions::new(FileType::Q4KM),
            importance: Importance::default(),
            calibration: None,
            rule_files: Vec::new(),
            max_part_bytes: MAX_PART_BYTES,
            resume: false,
            share: None,
            sync: true,
            memory_bytes: 128 << 20,
        }
    }

    /// Plans the ladder. Only headers are read.
    pub fn plan(&self, events: &dyn Events) -> Result<LadderPlan> {
        let job = self.common();
        let run = JobRun::new(&job, events, true);
        let opened = run.open()?;
        let imatrix = job.importance.open(run.progress())?;
        let (own, _) = self.own(&opened, imatrix.as_ref())?;
        Ok(PreparedLadder::new(&own, &run, &opened, imatrix.as_ref(), "")?.plan())
    }

    /// Writes all files. The folder is created if it does not exist.
    ///
    /// # Errors
    /// Anything that stops the run. A file has its final name only if it is complete.
    pub fn run(&self, events: &dyn Events) -> Result<LadderReport> {
        let job = self.common();
        let run = JobRun::new(&job, events, false);
        let opened = run.open()?;
        let imatrix = job.importance.open(run.progress())?;
        let (own, companions) = self.own(&opened, imatrix.as_ref())?;
        let source =
            output_id(&[], &opened.paths(), &tokenizer(opened.metadata())).map_err(WriteError::Io)?;
        let prepared = PreparedLadder::new(&own, &run, &opened, imatrix.as_ref(), &source)?;
        if self.share.is_some() {
            events.note(&own.described());
        }
        let mut records = FolderRecords::open(self, run.progress())?;
        let beside = companions.iter().map(|companion| companion.planned(self, events));
        let beside = beside.collect::<Result<Vec<_>, _>>()?.concat();
        let paths = [prepared.paths(), beside.clone()].concat();
        let others = match self.share {
            None => records.others(&paths, &source, run.progress())?,
            Some(_) => Vec::new(),
        };
        let report = prepared.write(&mut records, beside)?;
        run.remark_converted_zeros(&opened);
        let mut beside = |companion: Companion| {
            let is_own = companions.contains(&companion);
            is_own.then(|| companion.write(self, events, &source, &mut records)).transpose()
        };
        let (projector, draft_heads) = (beside(Companion::Towers)?, beside(Companion::DraftHeads)?);
        let part = records.finish()?;
        self.sweep(&[])?;
        let seconds = run.start.elapsed().as_secs_f64();
        Ok(LadderReport { others, projector, draft_heads, seconds, part, ..report })
    }

    /// Removes what dead runs have left in the folder, except unfinished files that this run continues. The folder of a
    /// shared ladder is left alone: other machines write there.
    fn sweep(&self, kept: &[PathBuf]) -> Result<()> {
        let kept = if self.resume { kept } else { &[] };
        if self.share.is_none() && self.directory.is_dir() {
            sweep(&self.directory, kept)?;
        }
        Ok(())
    }

    /// Describes what the files of this run are made of.
    fn origin(&self, source: &str) -> FileOrigin {
        FileOrigin {
            id: String::new(),
            source: source.to_owned(),
            made_by: part::made_by(),
            command: self.command.clone(),
            imatrix: None,
        }
    }

    /// Records the figures of a file, so that a run that is stopped later need not measure them again. `id` identifies
    /// what they were measured with.
    pub fn keep_figures(&self, file: &LadderFile, id: &str, figures: &serde_json::Value) -> Result<()> {
        folder::keep_figures(&self.directory, file, id, figures, self.sync)
    }

    /// Removes the records of unfinished runs, once nothing needs them any more.
    pub fn forget_runs(&self) -> Result<()> {
        part::forget(&self.directory)?;
        Ok(folder::forget(&self.directory)?)
    }

    /// Returns the ladder with the files of the share, and the companions that the share has.
    fn own(&self, opened: &OpenedInput, imatrix: Option<&Imatrix>) -> Result<(Self, Vec<Companion>)> {
        let companions = Companion::of(opened);
        let Some(share) = self.share else { return Ok((self.clone(), companions)) };
        let (machines, idlest) = prepared::division(self, opened, imatrix, share.count())?;
        let number = share.number() - 1;
        let rungs = self.rungs.iter().zip(machines).filter(|(_, machine)| *machine == number);
        let rungs = rungs.map(|(rung, _)| rung.clone()).collect();
        let companions = if idlest == number { companions } else { Vec::new() };
        Ok((Self { rungs, ..self.clone() }, companions))
    }

    fn described(&self) -> String {
        let share = self.share.map_or_else(String::new, |share| share.to_string());
        let names: Vec<String> = self.rungs.iter().map(ToString::to_string).collect();
        match names.as_slice() {
            [] => format!("part {share}: no file is left for this machine"),
            names => format!("part {share}: {}", names.join(", ")),
        }
    }

    /// Options of a conversion that writes a type by itself, with the keys that a quantization sets. `metadata` has the keys
    /// before.
    fn converted(&self, types: &JobTypes, metadata: &Metadata) -> Result<ConvertOptions> {
        let mut options = self.convert.clone();
        if !matches!(types, JobTypes::Mixture { .. } | JobTypes::Size { .. }) {
            for set in &self.quantize.overrides {
                options.set.push((set.key.clone(), set.value_in(metadata)?));
            }
        }
        Ok(options)
    }

    /// Job that reads the same model with the same options, for a file of its own; in parts if `is_split`. `metadata` has the
    /// model's keys.
    fn alone(&self, rung: &Rung, target: PathBuf, is_split: bool, metadata: &Metadata) -> Result<Job> {
        let types = match (rung.most_kld, &self.input) {
            (Some(kld), _) => JobTypes::Size { target: FileTarget::Kld(kld), candidates: Vec::new() },
            (None, JobInput::Gguf(_)) => JobTypes::mixture(rung.types.file_type),
            (None, _) => rung.types.file_type.name().parse()?,
        };
        let common = self.common();
        let files = if is_split {
            let max_bytes = Some(self.max_part_bytes);
            OutputFiles::Set { max_bytes, max_tensors: None, no_tensor_first: false }
        } else {
            common.output.files
        };
        let output = JobOutput { path: OutputPath::File(target), files, ..common.output.clone() };
        let calibration = self.calibration.as_ref().filter(|_| self.is_calibrated(rung)).map(|calibration| {
            let work_dir = calibration.work_dir.as_ref().map(|folder| folder.join(&rung.name));
            Calibration { work_dir, ..calibration.clone() }
        });
        let convert = self.converted(&types, metadata)?;
        Ok(Job {
            types,
            output,
            calibration,
            convert,
            quantize: rung.types.options(&self.quantize),
            ..common
        })
    }

    /// Returns true if the rounding of a type is calibrated: that of types that only quantization gives, and that are chosen.
    fn is_calibrated(&self, rung: &Rung) -> bool {
        let file_type = rung.types.file_type;
        let is_mixture = || file_type.name().parse().is_ok_and(|types: JobTypes| types.is_quantized());
        if rung.most_kld.is_some() {
            return true;
        }
        let has_choice = |base: GgmlType| base.info().imatrix != ImatrixNeed::Ignored;
        self.calibration.is_some() && file_type.base().is_some_and(has_choice) && is_mixture()
    }

    /// Job with what all files have in common; its types are those of any rung.
    fn common(&self) -> Job {
        let path = OutputPath::Directory(self.directory.clone());
        let files = OutputFiles::File { resume: self.resume || self.share.is_some() };
        Job {
            convert: self.convert.clone(),
            quantize: self.quantize.clone(),
            // The files are for others, who need no path of this machine.
            importance: Importance { names_only: true, ..self.importance.clone() },
            rule_files: self.rule_files.clone(),
            sync: self.sync,
            memory_bytes: self.memory_bytes,
            ..Job::new(
                self.input.clone(),
                JobTypes::mixture(FileType::Q4KM),
                JobOutput { files, ..JobOutput::at(path) },
            )
        }
    }
}
