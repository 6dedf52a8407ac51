//! Ladder: many quantizations of one model, written from one reading of it.
//!
//! Every file has the bytes of its own single run. A tensor that several files hold in the same type is quantized once.
//! Types that a checkpoint's integers can keep, or that the converter writes differently, are written by runs of their
//! own after the others.
//!
//! | file | subject |
//! |---|---|
//! | `rung` | names and presets of types |
//! | `prepared` | files of the ladder, checked and planned before a weight is read |
//! | `sums` | checksums of the files |
//! | `report` | data for the caller |

mod prepared;
mod report;
mod rung;
mod sums;

use std::path::PathBuf;

use crate::arch::{CardKind, OutType};
use crate::convert::{Codes, Conversion, ConvertOptions};
use crate::job::run::JobRun;
use crate::job::{
    Contradiction, Events, Importance, Job, JobError, JobInput, JobOutput, JobReport, JobTypes, OutputFiles,
    OutputPath,
};
use crate::quantize::{FileType, QuantizeOptions};

pub use report::{LadderFile, LadderFilePlan, LadderPlan, LadderReport};
pub use rung::{Preset, Rung, UnknownRung};

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
    /// Options of the conversion of a checkpoint.
    pub convert: ConvertOptions,
    /// Options of all quantizations. The file types are those of the rungs.
    pub quantize: QuantizeOptions,
    /// Importance matrix of all quantizations.
    pub importance: Importance,
    /// Files that rules of types were read from; no output may replace them.
    pub rule_files: Vec<PathBuf>,
    /// Largest file in bytes; a larger one is written in parts.
    pub max_part_bytes: u64,
    /// True to keep what an interrupted run has written, and to continue it on the next start.
    pub resume: bool,
    /// True to sync the files to disk before they get their final names.
    pub sync: bool,
    /// Memory for chunks in flight in bytes, over all threads and files.
    pub memory_bytes: u64,
}

impl Ladder {
    /// Ladder with default options.
    #[must_use]
    pub fn new(input: JobInput, rungs: Vec<Rung>, directory: PathBuf) -> Self {
        Self {
            input,
            rungs,
            directory,
            convert: ConvertOptions::default(),
            quantize: QuantizeOptions::new(FileType::Q4KM),
            importance: Importance::default(),
            rule_files: Vec::new(),
            max_part_bytes: MAX_PART_BYTES,
            resume: false,
            sync: true,
            memory_bytes: 128 << 20,
        }
    }

    /// Plans the ladder. Only headers are read.
    ///
    /// # Errors
    /// Everything that would stop the run and can be detected beforehand.
    pub fn plan(&self, events: &dyn Events) -> Result<LadderPlan, JobError> {
        let job = self.common();
        let run = JobRun::new(&job, events, true);
        let opened = run.open()?;
        let imatrix = self.importance.open(run.progress())?;
        Ok(PreparedLadder::new(self, &run, &opened, imatrix.as_ref())?.plan())
    }

    /// Writes all files. The folder is created if it does not exist.
    ///
    /// # Errors
    /// Anything that stops the run. A file has its final name only if it is complete.
    pub fn run(&self, events: &dyn Events) -> Result<LadderReport, JobError> {
        let job = self.common();
        let run = JobRun::new(&job, events, false);
        let opened = run.open()?;
        let imatrix = self.importance.open(run.progress())?;
        let prepared = PreparedLadder::new(self, &run, &opened, imatrix.as_ref())?;
        let report = prepared.write()?;
        run.remark_converted_zeros(&opened);
        let has_towers = opened.conversion().is_some_and(Conversion::has_towers);
        let projector = has_towers.then(|| self.projector(events)).transpose()?;
        Ok(LadderReport { projector, ..report })
    }

    /// Writes the towers of the model.
    fn projector(&self, events: &dyn Events) -> Result<LadderFile, JobError> {
        let common = self.common();
        let convert = ConvertOptions { kind: CardKind::Mmproj, ..common.convert.clone() };
        let types = JobTypes::Plain { file_type: Some(OutType::F16), codes: Codes::Card };
        let JobReport::Convert(report) = (Job { types, convert, ..common }).run(events)? else {
            return Err(Contradiction::NotConverted.into());
        };
        let sha256 = sums::of_files(&report.files, events.progress())?;
        let plan = LadderFilePlan {
            name: report.encoding,
            paths: report.files,
            file_bytes: report.file_bytes,
            bits_per_weight: report.bits_per_weight,
            n_fallbacks: 0,
            is_alone: true,
        };
        Ok(LadderFile { plan, sha256, was_there: false })
    }

    /// Job that reads the same model with the same options, for a file of its own.
    fn alone(&self, rung: &Rung, target: PathBuf) -> Result<Job, JobError> {
        let types = match self.input {
            JobInput::Gguf(_) => JobTypes::mixture(rung.types.file_type),
            _ => rung.types.file_type.name().parse()?,
        };
        let common = self.common();
        let output = JobOutput { path: OutputPath::File(target), ..common.output.clone() };
        Ok(Job { types, output, quantize: rung.types.options(&self.quantize), ..common })
    }

    /// Job with what all files have in common; its types are those of any rung.
    fn common(&self) -> Job {
        let path = OutputPath::Directory(self.directory.clone());
        let files = OutputFiles::File { resume: self.resume };
        Job {
            convert: self.convert.clone(),
            quantize: self.quantize.clone(),
            importance: self.importance.clone(),
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
