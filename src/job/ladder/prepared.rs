//! Files of a ladder, checked and planned before a weight is read, and their writing.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::convert::ConvertOptions;
use crate::core::output::OutputKind;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{
    FilePlan, GgufFile, Imatrix, LayoutOptions, PlannedFile, SplitSpec, VariantOutput, VariantReport,
    VariantSource, WorkCost, WriteError, output_id, plan_files, write_variants,
};
use crate::job::default_name::Unnamed;
use crate::job::input::OpenedInput;
use crate::job::ladder::folder::{FolderError, FolderRecords};
use crate::job::ladder::record::{self, FileOrigin};
use crate::job::ladder::shares::{Division, FileWork, PROMISE_RUNS, divided};
use crate::job::ladder::{Ladder, LadderFile, LadderFilePlan, LadderPlan, LadderReport, Rung, sums};
use crate::job::run::JobRun;
use crate::job::{Calibration, Contradiction, JobTypes, Remark, Result, beside_text, overrides, remark};
use crate::quantize::{JointPlans, QuantizeError, QuantizePlan, RungTypes};

/// Files of a ladder that are planned.
pub(super) struct PreparedLadder<'a> {
    ladder: &'a Ladder,
    run: &'a JobRun<'a>,
    opened: &'a OpenedInput,
    /// Plans of all files, in the order of the rungs; also of those that are written alone, for their sizes.
    plans: JointPlans<'a>,
    imatrix: Option<&'a Imatrix>,
    /// Identity of the calibration.
    calibration: Option<String>,
    /// Identity of the model that is read.
    source: &'a str,
    files: Vec<PreparedFile>,
}

struct PreparedFile {
    rung: Rung,
    /// Path of the file, or the path that its parts are named after.
    target: PathBuf,
    split: Option<SplitSpec>,
    planned: Vec<PlannedFile>,
    /// True if a run of its own writes it.
    is_alone: bool,
    is_calibrated: bool,
}

impl<'a> PreparedLadder<'a> {
    /// Plans all files and checks their paths.
    pub(super) fn new(
        ladder: &'a Ladder,
        run: &'a JobRun<'a>,
        opened: &'a OpenedInput,
        imatrix: Option<&'a Imatrix>,
        source: &'a str,
    ) -> Result<Self> {
        if ladder.calibration.is_some() {
            Contradiction::of_calibrated(opened)?;
        }
        if ladder.rungs.iter().any(|rung| rung.most_kld.is_some()) {
            ladder.calibration.as_ref().ok_or(Contradiction::KldWithoutText)?;
        }
        let input = opened.input();
        overrides::check(&input, &ladder.quantize, run.progress())?;
        let plans = drafts(ladder, opened, imatrix)?;
        let calibration = ladder.calibration.as_ref().map(Calibration::identity).transpose()?;
        let mut guard = run.guard(opened)?;
        if let Some(calibration) = &ladder.calibration {
            calibration.guard(&mut guard)?;
        }
        let mut files = Vec::with_capacity(ladder.rungs.len());
        for (rung, plan) in ladder.rungs.iter().zip(plans.plans()) {
            let target = ladder.target(opened, &rung.name);
            let tensor_bytes: u64 = plan.tensors().iter().filter_map(TensorMeta::n_bytes).sum();
            let split = (tensor_bytes > ladder.max_part_bytes)
                .then(|| SplitSpec { max_bytes: Some(ladder.max_part_bytes), ..SplitSpec::default() });
            let layout = run.job.write_options(opened).layout;
            let planned = plan_files(&target, plan.metadata(), plan.tensors(), &layout, split.as_ref())?;
            for file in &planned {
                guard.write("a file of the ladder", &file.path, OutputKind::Model)?;
                let own = Unnamed { metadata: plan.metadata(), source: opened.source() };
                guard.unnamed(&file.path, own).map_err(FolderError::Taken)?;
            }
            let is_alone = is_alone(ladder, opened, rung, plan)?;
            let is_calibrated = ladder.is_calibrated(rung);
            files.push(PreparedFile { rung: rung.clone(), target, split, planned, is_alone, is_calibrated });
        }
        let this = Self { ladder, run, opened, plans, imatrix, calibration, source, files };
        for plan in this.plans.plans() {
            JobRun::check_pruned(opened, &ladder.quantize, plan)?;
        }
        this.remark();
        Ok(this)
    }

    pub(super) fn plan(&self) -> LadderPlan {
        let files: Vec<LadderFilePlan> = (0..self.files.len()).map(|at| self.described(at)).collect();
        let mut obstacles: Vec<String> = Vec::new();
        for (file, plan) in self.files.iter().zip(self.plans.plans()) {
            let own = plan.obstacles().iter().map(|obstacle| format!("{}: {obstacle}", file.rung));
            obstacles.extend(own);
        }
        LadderPlan {
            file_bytes: files.iter().map(|file| file.file_bytes).sum(),
            files,
            made_bytes: self.made_bytes(),
            free_bytes: self.free_bytes(),
            obstacles,
        }
    }

    /// Bytes of tensors that are quantized or copied.
    fn made_bytes(&self) -> u64 {
        let is_alone: Vec<bool> = self.files.iter().map(|file| file.is_alone).collect();
        self.plans.made_bytes(&is_alone)
    }

    /// Returns the free bytes where the folder is or will be.
    fn free_bytes(&self) -> Option<u64> {
        let folder = self.ladder.directory.ancestors().find(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let name = self.files.first().and_then(|file| file.target.file_name())?;
        self.run.free_bytes(&folder.join(name))
    }

    /// Writes all files, those of the common reading first. `beside` are files that are written later.
    pub(super) fn write(
        mut self,
        records: &mut FolderRecords<'_>,
        beside: Vec<PathBuf>,
    ) -> Result<LadderReport> {
        if let Some(obstacle) = self.plans.take_obstacle() {
            return Err(obstacle.into());
        }
        let mut written: Vec<Option<LadderFile>> = self.taken(records)?;
        fs_err::create_dir_all(&self.ladder.directory)?;
        self.ladder.sweep(&[self.missing(&written), beside].concat())?;
        for file in written.iter().flatten() {
            records.add(file)?;
        }
        let missing = |written: &[Option<LadderFile>], is_alone: bool| -> Vec<usize> {
            let files = self.files.iter().zip(written).enumerate();
            let files = files.filter(|(_, (file, written))| written.is_none() && file.is_alone == is_alone);
            files.map(|(at, _)| at).collect()
        };
        let joint = missing(&written, false);
        for (&at, report) in joint.iter().zip(self.write_joint(&joint)?) {
            let (paths, was_there) = (self.files[at].paths(), report.written.was_there);
            written[at] = Some(self.finished(at, paths, report.sha256, was_there, records)?);
        }
        for at in missing(&written, true) {
            let PreparedFile { rung, target, split, is_calibrated, .. } = &self.files[at];
            let job = self.ladder.alone(rung, target.clone(), split.is_some(), self.opened.metadata())?;
            if *is_calibrated {
                self.run.events.note(&format!("{rung}: calibrated"));
            }
            // Other tensors may have the type than the plan has, and with them the parts.
            let paths = job.run(self.run.events)?.files().to_vec();
            written[at] = Some(self.finished(at, paths, Vec::new(), false, records)?);
        }
        if let Some(work) = self.ladder.calibration.as_ref().and_then(|own| own.work_dir.as_ref()) {
            // Only an empty folder is removed.
            let _ = fs_err::remove_dir(work);
        }
        Ok(self.report(written.into_iter().flatten().collect()))
    }

    /// Takes over the files that earlier runs have written, and notes them.
    fn taken(&self, records: &FolderRecords<'_>) -> Result<Vec<Option<LadderFile>>> {
        let mut taken = vec![None; self.files.len()];
        for (at, file) in self.files.iter().enumerate() {
            let origin = self.origin(at)?;
            taken[at] = records.finished(&file.rung.name, &origin, &file.paths(), self.run.progress())?;
            if taken[at].is_none() && !self.ladder.replace {
                file.check_unrecorded(records)?;
            }
        }
        let names = |is_there: bool| {
            let files = self.files.iter().zip(&taken).filter(|(_, taken)| taken.is_some() == is_there);
            files.map(|(file, _)| file.rung.name.clone()).collect::<Vec<_>>().join(", ")
        };
        let text = match (names(true).as_str(), names(false).as_str()) {
            ("", _) => return Ok(taken),
            (there, "") => format!("already written: {there}"),
            (there, missing) => format!("already written: {there}; made now: {missing}"),
        };
        self.run.events.note(&text);
        Ok(taken)
    }

    /// Paths of the files that have to be made.
    fn missing(&self, written: &[Option<LadderFile>]) -> Vec<PathBuf> {
        let missing = self.files.iter().zip(written).filter(|(_, written)| written.is_none());
        missing.flat_map(|(file, _)| file.paths()).collect()
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().flat_map(PreparedFile::paths).collect()
    }

    /// Describes what a file is made of.
    fn origin(&self, at: usize) -> Result<FileOrigin> {
        let matrix = self.ladder.importance.path.as_deref().filter(|_| !self.files[at].is_calibrated);
        let imatrix = matrix.map(record::file_name);
        Ok(FileOrigin { id: self.id(at)?, imatrix, ..self.ladder.origin(self.source) })
    }

    /// Identifies a file by its header, its sources and the options that decide its bytes.
    fn id(&self, at: usize) -> Result<String> {
        let mut options = self.run.job.write_options(self.opened);
        let file = &self.files[at];
        options.identity.extend(self.calibration.as_deref().filter(|_| file.is_calibrated));
        // The header is that of the largest file.
        options.identity.extend(file.rung.most_kld.map(|_| file.rung.name.as_str()));
        Ok(output_id(&file.planned, &options.inputs, &options.identity)?)
    }

    fn write_joint(&self, joint: &[usize]) -> Result<Vec<VariantReport>> {
        // Plans of other files would be made, too.
        let types: Vec<RungTypes> = joint.iter().map(|&at| self.files[at].rung.types).collect();
        let plans = JointPlans::draft(&self.opened.input(), &self.ladder.quantize, &types, self.imatrix)?;
        let outputs: Vec<VariantOutput<'_>> = joint
            .iter()
            .enumerate()
            .map(|(number, &at)| VariantOutput {
                target: &self.files[at].target,
                metadata: plans.plans()[number].metadata(),
                variants: plans.of_plan(number),
                split: self.files[at].split.as_ref(),
            })
            .collect();
        let options = self.run.job.write_options(self.opened);
        let written = write_variants(&outputs, &plans, &options, self.run.progress())?;
        self.remark_after(&plans, joint);
        Ok(written)
    }

    /// Describes a file that is complete, with its checksums, and records it.
    fn finished(
        &self,
        at: usize,
        paths: Vec<PathBuf>,
        sha256: Vec<String>,
        was_there: bool,
        records: &mut FolderRecords<'_>,
    ) -> Result<LadderFile> {
        let sha256 = match sha256.as_slice() {
            [] => sums::of_files(&paths, self.run.progress())?,
            _ => sha256,
        };
        let mut plan = LadderFilePlan { paths, ..self.described(at) };
        if plan.is_calibrated || plan.is_alone {
            // Keys about the calibration and types of a conversion, which the plan does not know.
            let sizes = plan.paths.iter().map(|path| Ok(fs_err::metadata(path)?.len()));
            plan.file_bytes = sizes.sum::<io::Result<u64>>()?;
        }
        if let (true, Some(path)) = (plan.is_alone, plan.paths.first()) {
            let n_weights = n_weights(&self.plans.plans()[at]).max(1);
            plan.bits_per_weight = GgufFile::open(path)?.tensor_bytes() as f64 * 8.0 / n_weights as f64;
        }
        let origin = self.origin(at)?;
        let file = LadderFile { plan, sha256, was_there, origin, figures: None, figures_id: None };
        records.add(&file)?;
        Ok(file)
    }

    fn report(self, files: Vec<LadderFile>) -> LadderReport {
        let keys = self.plans.plans().first().map(|plan| plan.metadata().clone());
        LadderReport {
            file_bytes: files.iter().map(|file| file.plan.file_bytes).sum(),
            files,
            others: Vec::new(),
            projector: None,
            draft_heads: None,
            part: None,
            made_bytes: self.made_bytes(),
            n_weights: self.plans.plans().first().map_or(0, |plan| n_weights(plan)),
            metadata: keys.unwrap_or_else(|| self.opened.metadata().clone()),
            image: self.opened.image_rules(),
            beside_text: beside_text(self.opened.metadata(), self.opened.source().tensors()),
            source: self.source.to_owned(),
            seconds: self.run.start.elapsed().as_secs_f64(),
        }
    }

    fn described(&self, at: usize) -> LadderFilePlan {
        let (file, plan) = (&self.files[at], &self.plans.plans()[at]);
        let tensor_bytes: u64 = plan.tensors().iter().filter_map(TensorMeta::n_bytes).sum();
        LadderFilePlan {
            name: file.rung.name.clone(),
            paths: file.paths(),
            file_bytes: file.planned.iter().map(|file| file.plan.file_bytes).sum(),
            is_calibrated: file.is_calibrated,
            bits_per_weight: tensor_bytes as f64 * 8.0 / n_weights(plan).max(1) as f64,
            n_fallbacks: plan.n_fallbacks(),
            is_alone: file.is_alone,
            most_kld: file.rung.most_kld,
        }
    }

    /// Reports unexpected decisions, each once with the types that it is about.
    fn remark(&self) {
        let paths = self.files.iter().map(PreparedFile::paths).max_by_key(Vec::len).unwrap_or_default();
        let (metadata, tensors) = (self.opened.metadata(), self.opened.source().tensors());
        self.run.remark_files(&paths, self.opened, tensors);
        self.run.remark_source(self.opened, metadata, tensors);
        let plans = self.files.iter().zip(self.plans.plans());
        for (file, plan) in plans.clone().filter(|(file, _)| file.rung.most_kld.is_none()) {
            self.run.remark_label(&file.paths(), plan.metadata(), plan.tensors());
        }
        let plans: Vec<_> = plans.map(|(file, plan)| (file.rung.name.as_str(), plan)).collect();
        if let Some(remark) = remark::of_fallbacks(&plans) {
            self.run.events.remark(&remark);
        }
        let mut found: Vec<(Remark, Vec<&str>)> = Vec::new();
        for (file, plan) in self.files.iter().zip(self.plans.plans()) {
            let has_matrix = self.ladder.importance.path.is_some();
            for remark in remark::of_choices(plan, self.ladder.quantize.coverage, has_matrix) {
                match found.iter_mut().find(|(known, _)| *known == remark) {
                    Some((_, names)) => names.push(&file.rung.name),
                    None => found.push((remark, vec![&file.rung.name])),
                }
            }
        }
        for (mut remark, names) in found {
            // A part of a ladder does not know what the others have in common.
            if names.len() < self.files.len() || self.ladder.share.is_some() {
                // Types that ignore importance stand beside others that use it.
                if !remark.names.is_empty() && remark.names.iter().all(|name| name.starts_with("`--imatrix`"))
                {
                    continue;
                }
                remark.text = format!("{}: {}", names.join(", "), remark.text);
            }
            self.run.events.remark(&remark);
        }
    }

    /// Reports what was found while the files of the common reading were written.
    fn remark_after(&self, plans: &JointPlans<'_>, joint: &[usize]) {
        if self.opened.file().is_some() {
            let zeros = plans.plans().iter().flat_map(QuantizePlan::all_zero);
            let zeros: BTreeSet<&str> = zeros.map(|tensor| tensor.name.as_str()).collect();
            self.run.remark_zeros(zeros.into_iter());
        }
        for (number, &at) in joint.iter().enumerate() {
            if let Some(text) = remark::of_small_rows(&plans.small_rows(number)) {
                self.run.progress().warn(&format!("{}: {text}", self.files[at].rung));
            }
        }
    }
}

impl PreparedFile {
    fn paths(&self) -> Vec<PathBuf> {
        self.planned.iter().map(|file| file.path.clone()).collect()
    }

    /// Refuses a file that no record tells of, unless its header is the one that is written now. That of a run of its own
    /// is known only in the end.
    fn check_unrecorded(&self, records: &FolderRecords<'_>) -> Result<()> {
        if self.is_alone || records.has_part_of(&self.rung.name) {
            return Ok(());
        }
        for PlannedFile { path, plan, id_offset, .. } in &self.planned {
            let file = match fs_err::File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let mut header = Vec::new();
            file.take(plan.header.len() as u64).read_to_end(&mut header)?;
            if id_offset.is_none() && header != plan.header && !header.is_empty() {
                return Err(FolderError::Unrecorded { path: path.clone() }.into());
            }
        }
        Ok(())
    }
}

/// Divides the files of a ladder among `count` machines. Returns the machine of each rung and the machine with the
/// least work, both from 0.
pub(super) fn division(
    ladder: &Ladder,
    opened: &OpenedInput,
    imatrix: Option<&Imatrix>,
    count: usize,
) -> Result<(Vec<usize>, usize)> {
    let plans = drafts(ladder, opened, imatrix)?;
    let mut files = Vec::with_capacity(ladder.rungs.len());
    for (at, (rung, plan)) in ladder.rungs.iter().zip(plans.plans()).enumerate() {
        let is_alone = is_alone(ladder, opened, rung, plan)?;
        let n_runs = rung.most_kld.map_or(1, |_| PROMISE_RUNS);
        files.push(FileWork { name: &rung.name, variants: plans.of_plan(at), is_alone, n_runs });
    }
    let costs =
        (0..plans.n_tensors()).map(|tensor| plans.variants(tensor).iter().map(WorkCost::of).collect());
    let Division { machines, idlest } = divided(&files, &costs.collect::<Vec<_>>(), count);
    Ok((machines, idlest))
}

/// Plans all files. A calibration measures its own importance matrix.
fn drafts<'a>(
    ladder: &Ladder,
    opened: &'a OpenedInput,
    imatrix: Option<&'a Imatrix>,
) -> Result<JointPlans<'a>, QuantizeError> {
    let input = opened.input();
    let plans = ladder.rungs.iter().map(|rung| {
        let options = rung.types.options(&ladder.quantize);
        if ladder.is_calibrated(rung) {
            return QuantizePlan::draft_to_come(&input, &options);
        }
        QuantizePlan::draft(&input, &options, imatrix)
    });
    Ok(JointPlans::of(plans.collect::<Result<_, _>>()?))
}

fn n_weights(plan: &QuantizePlan<'_>) -> u64 {
    plan.tensors().iter().map(|tensor| tensor.shape.n_elems()).sum()
}

/// Returns true for a type whose rounding is calibrated, and for one that the converter writes otherwise than a
/// quantization of the floats: the integers of a checkpoint are kept, or other tensors get the type.
fn is_alone(ladder: &Ladder, opened: &OpenedInput, rung: &Rung, plan: &QuantizePlan<'_>) -> Result<bool> {
    if ladder.is_calibrated(rung) {
        return Ok(true);
    }
    if matches!(opened, OpenedInput::Diffusion(_)) {
        // Of an image model, the converter writes the types of floats, and only their names are other.
        return Ok(rung.types.file_type.base().is_some_and(|base| !base.is_quantized()));
    }
    let Some(conversion) = opened.conversion() else { return Ok(false) };
    let types: JobTypes = rung.types.file_type.name().parse()?;
    let is_quantized = conversion.quantization().is_some();
    match types {
        JobTypes::Mixture { keep: None, .. } => return Ok(false),
        JobTypes::Mixture { keep: Some(_), .. } => return Ok(is_quantized),
        _ if is_quantized => return Ok(true),
        _ => {}
    }
    let options = ConvertOptions {
        file_type: types.converted(),
        codes: types.codes(),
        ..ladder.converted(&types, opened.metadata())?
    };
    let own = ladder.input.open(&options)?;
    let layout = LayoutOptions::default();
    let header = |metadata, tensors: &[TensorMeta]| {
        let plan = FilePlan::new(metadata, tensors, &layout);
        plan.map(|plan| plan.header)
            .map_err(|error| WriteError::Plan { path: ladder.directory.clone(), error })
    };
    Ok(header(own.metadata(), own.source().tensors())? != header(plan.metadata(), plan.tensors())?)
}
