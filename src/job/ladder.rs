//! Ladder: many quantizations of one model, written from one reading of it.
//!
//! Every file has the bytes of its own single run. A tensor that several files hold in the same type is quantized once.
//! Types that a checkpoint's integers can keep, or that the converter writes differently, are written by runs of their
//! own after the others.
//!
//! | file | subject |
//! |---|---|
//! | `rung` | names and presets of types |
//! | `shares` `part` | division among machines, and the record of what each has written |
//! | `prepared` | files of the ladder, checked and planned before a weight is read |
//! | `sums` | checksums of the files |
//! | `report` | data for the caller |

mod part;
mod prepared;
mod report;
mod rung;
mod shares;
mod sums;

use std::path::PathBuf;

use crate::arch::{CardKind, OutType};
use crate::convert::{Codes, Conversion, ConvertOptions};
use crate::core::progress::Progress;
use crate::gguf::{Imatrix, Share, WriteError, output_id};
use crate::job::input::OpenedInput;
use crate::job::run::JobRun;
use crate::job::{
    Contradiction, Events, Importance, Job, JobError, JobInput, JobOutput, JobPlan, JobReport, JobTypes,
    OutputFiles, OutputPath, Remark,
};
use crate::quantize::{FileType, QuantizeOptions};

pub use part::{LadderPartRecord, RecordedFile, RecordedPart, record_path};
pub use report::{LadderFile, LadderFilePlan, LadderPlan, LadderReport};
pub use rung::{Preset, Rung, UnknownRung};

use part::Records;
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
            share: None,
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
        let (own, _) = self.own(&opened, imatrix.as_ref())?;
        Ok(PreparedLadder::new(&own, &run, &opened, imatrix.as_ref())?.plan())
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
        let (own, has_projector) = self.own(&opened, imatrix.as_ref())?;
        let prepared = PreparedLadder::new(&own, &run, &opened, imatrix.as_ref())?;
        if self.share.is_some() {
            events.note(&own.described());
        }
        let mut records = Records::open(self, run.progress())?;
        let report = prepared.write(&mut records)?;
        run.remark_converted_zeros(&opened);
        let options = job.write_options(&opened);
        let id = output_id(&[], &options.inputs, &options.identity).map_err(WriteError::Io)?;
        let projector = has_projector.then(|| self.projector(events, &id, &mut records)).transpose()?;
        let part = records.finish()?;
        Ok(LadderReport { projector, part, ..report })
    }

    /// Removes the records of all parts, once nothing needs them any more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn forget_parts(&self) -> Result<(), JobError> {
        Ok(part::forget(&self.directory)?)
    }

    /// Returns the ladder with the files of the share, and whether the share has the towers of the model.
    fn own(&self, opened: &OpenedInput, imatrix: Option<&Imatrix>) -> Result<(Self, bool), JobError> {
        let has_towers = opened.conversion().is_some_and(Conversion::has_towers);
        let Some(share) = self.share else { return Ok((self.clone(), has_towers)) };
        let (machines, idlest) = prepared::division(self, opened, imatrix, share.count())?;
        let number = share.number() - 1;
        let rungs = self.rungs.iter().zip(machines).filter(|(_, machine)| *machine == number);
        let rungs = rungs.map(|(rung, _)| rung.clone()).collect();
        Ok((Self { rungs, ..self.clone() }, has_towers && idlest == number))
    }

    /// Describes the files of a part.
    fn described(&self) -> String {
        let share = self.share.map_or_else(String::new, |share| share.to_string());
        let names: Vec<String> = self.rungs.iter().map(ToString::to_string).collect();
        match names.as_slice() {
            [] => format!("part {share}: no file is left for this machine"),
            names => format!("part {share}: {}", names.join(", ")),
        }
    }

    /// Writes the towers of the model.
    fn projector(
        &self,
        events: &dyn Events,
        id: &str,
        records: &mut Records,
    ) -> Result<LadderFile, JobError> {
        let common = self.common();
        let convert = ConvertOptions { kind: CardKind::Mmproj, ..common.convert.clone() };
        let types = JobTypes::Plain { file_type: Some(OutType::F16), codes: Codes::Card };
        let job = Job { types, convert, ..common };
        if let Some(file) = Self::recorded_projector(&job, events, id, records)? {
            records.add(id, &file)?;
            return Ok(file);
        }
        let JobReport::Convert(report) = job.run(events)? else {
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
        let file = LadderFile { plan, sha256, was_there: false };
        records.add(id, &file)?;
        Ok(file)
    }

    /// Returns the towers of the model if a part has written them.
    fn recorded_projector(
        job: &Job,
        events: &dyn Events,
        id: &str,
        records: &Records,
    ) -> Result<Option<LadderFile>, JobError> {
        if records.is_empty() {
            return Ok(None);
        }
        let JobPlan::Convert(planned) = job.plan(&Quiet(events.progress()))? else { return Ok(None) };
        let Some(sha256) = records.finished(&planned.encoding, id, &planned.files, events.progress())? else {
            return Ok(None);
        };
        let n_elems: u64 = planned.tensors.iter().map(|tensor| tensor.shape.n_elems()).sum();
        let n_bytes: u64 = planned.tensors.iter().filter_map(|tensor| tensor.n_bytes).sum();
        let plan = LadderFilePlan {
            name: planned.encoding.clone(),
            paths: planned.files.clone(),
            file_bytes: planned.file_bytes,
            bits_per_weight: n_bytes as f64 * 8.0 / n_elems.max(1) as f64,
            n_fallbacks: 0,
            is_alone: true,
        };
        Ok(Some(LadderFile { plan, sha256, was_there: true }))
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
        let files = OutputFiles::File { resume: self.resume || self.share.is_some() };
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

/// Receiver of a plan that was reported before: only its progress counts.
struct Quiet<'a>(&'a dyn Progress);

impl Events for Quiet<'_> {
    fn progress(&self) -> &dyn Progress {
        self.0
    }

    fn oddity(&self, _: &str) {}

    fn remark(&self, _: &Remark) {}
}
