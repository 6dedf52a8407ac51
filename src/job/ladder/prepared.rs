//! Files of a ladder, checked and planned before a weight is read, and their writing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::convert::ConvertOptions;
use crate::core::output::OutputKind;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{
    FilePlan, Imatrix, LayoutOptions, PlannedFile, SplitSpec, VariantOutput, VariantReport, WriteError,
    forget_notes, plan_files, write_variants,
};
use crate::job::default_name::Unnamed;
use crate::job::input::OpenedInput;
use crate::job::ladder::sums;
use crate::job::ladder::{Ladder, LadderFile, LadderFilePlan, LadderPlan, LadderReport, Rung};
use crate::job::run::JobRun;
use crate::job::{JobError, JobTypes, Remark, overrides, remark};
use crate::quantize::{JointPlans, QuantizePlan, RungTypes};

/// Files of a ladder that are planned.
pub(super) struct PreparedLadder<'a> {
    ladder: &'a Ladder,
    run: &'a JobRun<'a>,
    opened: &'a OpenedInput,
    /// Plans of all files, in the order of the rungs; also of those that are written alone, for their sizes.
    plans: JointPlans<'a>,
    files: Vec<PreparedFile>,
}

/// One file of a ladder.
struct PreparedFile {
    rung: Rung,
    /// Path of the file, or the path that its parts are named after.
    target: PathBuf,
    split: Option<SplitSpec>,
    /// Planned files.
    planned: Vec<PlannedFile>,
    /// True if a run of its own writes it.
    is_alone: bool,
}

impl<'a> PreparedLadder<'a> {
    /// Plans all files and checks their paths.
    pub(super) fn new(
        ladder: &'a Ladder,
        run: &'a JobRun<'a>,
        opened: &'a OpenedInput,
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Self, JobError> {
        let input = opened.input();
        overrides::check(&input, &ladder.quantize)?;
        let types: Vec<RungTypes> = ladder.rungs.iter().map(|rung| rung.types).collect();
        let plans = JointPlans::draft(&input, &ladder.quantize, &types, imatrix)?;
        let mut guard = run.guard(opened)?;
        let mut files = Vec::with_capacity(ladder.rungs.len());
        for (rung, plan) in ladder.rungs.iter().zip(plans.plans()) {
            let target = run.job.output.target(&ladder.input, opened, &rung.name);
            let tensor_bytes: u64 = plan.tensors().iter().filter_map(TensorMeta::n_bytes).sum();
            let split = (tensor_bytes > ladder.max_part_bytes)
                .then(|| SplitSpec { max_bytes: Some(ladder.max_part_bytes), ..SplitSpec::default() });
            let layout = LayoutOptions::default();
            let planned = plan_files(&target, plan.metadata(), plan.tensors(), &layout, split.as_ref())?;
            for file in &planned {
                guard.write("a file of the ladder", &file.path, OutputKind::Model)?;
                guard
                    .unnamed(&file.path, Unnamed { metadata: opened.metadata(), source: opened.source() })?;
            }
            let is_alone = is_alone(ladder, opened, rung, plan)?;
            files.push(PreparedFile { rung: rung.clone(), target, split, planned, is_alone });
        }
        let this = Self { ladder, run, opened, plans, files };
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
            made_bytes: self.plans.made_bytes(),
            free_bytes: self.free_bytes(),
            obstacles,
        }
    }

    /// Returns the free bytes where the folder is or will be.
    fn free_bytes(&self) -> Option<u64> {
        let folder = self.ladder.directory.ancestors().find(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let name = self.files.first().and_then(|file| file.target.file_name())?;
        self.run.free_bytes(&folder.join(name))
    }

    /// Writes all files, those of the common reading first.
    pub(super) fn write(mut self) -> Result<LadderReport, JobError> {
        if let Some(obstacle) = self.plans.take_obstacle() {
            return Err(obstacle.into());
        }
        fs_err::create_dir_all(&self.ladder.directory)?;
        let joint: Vec<usize> = (0..self.files.len()).filter(|&at| !self.files[at].is_alone).collect();
        let mut written: Vec<Option<VariantReport>> = vec![None; self.files.len()];
        for (&at, report) in joint.iter().zip(self.write_joint(&joint)?) {
            written[at] = Some(report);
        }
        self.remark_after(&joint);
        for at in (0..self.files.len()).filter(|&at| self.files[at].is_alone) {
            let (rung, target) = (&self.files[at].rung, self.files[at].target.clone());
            self.ladder.alone(rung, target)?.run(self.run.events)?;
        }
        self.finish(written)
    }

    fn write_joint(&self, joint: &[usize]) -> Result<Vec<VariantReport>, JobError> {
        let outputs: Vec<VariantOutput<'_>> = joint
            .iter()
            .map(|&at| VariantOutput {
                target: &self.files[at].target,
                metadata: self.plans.plans()[at].metadata(),
                variants: self.plans.of_plan(at),
                split: self.files[at].split.as_ref(),
            })
            .collect();
        let options = self.run.job.write_options(self.opened);
        Ok(write_variants(&outputs, &self.plans, &options, self.run.progress())?)
    }

    /// Computes the checksums that are not known yet, and removes what only a resumed run needs.
    fn finish(self, written: Vec<Option<VariantReport>>) -> Result<LadderReport, JobError> {
        let paths = |file: &PreparedFile| -> Vec<PathBuf> {
            file.planned.iter().map(|file| file.path.clone()).collect()
        };
        let mut files = Vec::with_capacity(self.files.len());
        for (at, (file, written)) in self.files.iter().zip(written).enumerate() {
            let was_there = written.as_ref().is_some_and(|report| report.written.was_there);
            let sha256 = match written {
                Some(report) if !report.sha256.is_empty() => report.sha256,
                _ => sums::of_files(&paths(file), self.run.progress())?,
            };
            files.push(LadderFile { plan: self.described(at), sha256, was_there });
        }
        let report = LadderReport {
            file_bytes: files.iter().map(|file| file.plan.file_bytes).sum(),
            files,
            projector: None,
            made_bytes: self.plans.made_bytes(),
            n_weights: self.plans.plans().first().map_or(0, |plan| n_weights(plan)),
            metadata: self.opened.metadata().clone(),
            seconds: self.run.start.elapsed().as_secs_f64(),
        };
        for path in report.files.iter().flat_map(|file| &file.plan.paths) {
            forget_notes(path)?;
        }
        Ok(report)
    }

    fn described(&self, at: usize) -> LadderFilePlan {
        let (file, plan) = (&self.files[at], &self.plans.plans()[at]);
        let tensor_bytes: u64 = plan.tensors().iter().filter_map(TensorMeta::n_bytes).sum();
        LadderFilePlan {
            name: file.rung.name.clone(),
            paths: file.planned.iter().map(|file| file.path.clone()).collect(),
            file_bytes: file.planned.iter().map(|file| file.plan.file_bytes).sum(),
            bits_per_weight: tensor_bytes as f64 * 8.0 / n_weights(plan).max(1) as f64,
            n_fallbacks: plan.n_fallbacks(),
            is_alone: file.is_alone,
        }
    }

    /// Reports unexpected decisions, each once with the types that it is about.
    fn remark(&self) {
        let mut found: Vec<(Remark, Vec<&str>)> = Vec::new();
        for (file, plan) in self.files.iter().zip(self.plans.plans()) {
            let own = remark::of_plan(plan, Some(file.rung.types.file_type), self.ladder.quantize.coverage);
            for remark in own {
                match found.iter_mut().find(|(known, _)| *known == remark) {
                    Some((_, names)) => names.push(&file.rung.name),
                    None => found.push((remark, vec![&file.rung.name])),
                }
            }
        }
        for (mut remark, names) in found {
            if names.len() < self.files.len() {
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
    fn remark_after(&self, joint: &[usize]) {
        if self.opened.file().is_some() {
            let zeros = self.plans.plans().iter().flat_map(QuantizePlan::all_zero);
            let zeros: BTreeSet<&str> = zeros.map(|tensor| tensor.name.as_str()).collect();
            self.run.remark_zeros(zeros.into_iter());
        }
        for &at in joint {
            if let Some(text) = remark::of_small_rows(&self.plans.small_rows(at)) {
                self.run.progress().warn(&format!("{}: {text}", self.files[at].rung));
            }
        }
    }
}

fn n_weights(plan: &QuantizePlan<'_>) -> u64 {
    plan.tensors().iter().map(|tensor| tensor.shape.n_elems()).sum()
}

/// Returns true for a type that the converter writes otherwise than a quantization of the floats: the integers of a
/// checkpoint are kept, or other tensors get the type.
fn is_alone(
    ladder: &Ladder,
    opened: &OpenedInput,
    rung: &Rung,
    plan: &QuantizePlan<'_>,
) -> Result<bool, JobError> {
    let Some(conversion) = opened.conversion() else { return Ok(false) };
    let types: JobTypes = rung.types.file_type.name().parse()?;
    let is_quantized = conversion.quantization().is_some();
    match types {
        JobTypes::Mixture { keep: None, .. } => return Ok(false),
        JobTypes::Mixture { keep: Some(_), .. } => return Ok(is_quantized),
        _ if is_quantized => return Ok(true),
        _ => {}
    }
    let options =
        ConvertOptions { file_type: types.converted(), codes: types.codes(), ..ladder.convert.clone() };
    let own = ladder.input.open(&options)?;
    let layout = LayoutOptions::default();
    let header = |metadata, tensors: &[TensorMeta]| {
        let plan = FilePlan::new(metadata, tensors, &layout);
        plan.map(|plan| plan.header)
            .map_err(|error| WriteError::Plan { path: ladder.directory.clone(), error })
    };
    Ok(header(own.metadata(), own.source().tensors())? != header(plan.metadata(), plan.tensors())?)
}
