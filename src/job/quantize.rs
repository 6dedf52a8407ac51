//! Quantization of a GGUF file or of a conversion, in one pass: its plan, and the run.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::core::{GgmlType, TensorSource};
use crate::gguf::{Imatrix, WriteOptions, plan_files};
use crate::job::input::OpenedInput;
use crate::job::plan::{IntegerCodes, JobPlan, QuantizationPlan};
use crate::job::report::{QuantizationReport, SmallTensorRows};
use crate::job::run::JobRun;
use crate::job::size::{self, SizeChoice, TargetReport, write_types};
use crate::job::stored::StoredWeights;
use crate::job::{Contradiction, LikeReport, OutputFiles, Result, in_parts, like, overrides, remark};
use crate::quantize::{Allocation, FileType, Input, QuantizeOptions, QuantizePlan};

/// Quantization whose output has been checked.
pub(super) struct CheckedQuantization<'a> {
    pub(super) run: &'a JobRun<'a>,
    pub(super) opened: &'a OpenedInput,
    pub(super) input: Input<'a>,
    pub(super) options: QuantizeOptions,
    /// Size or divergence that decides the types, if one does.
    pub(super) size: Option<SizeChoice<'a>>,
    /// Types of a file, if they are used.
    like: Option<LikeReport>,
    pub(super) target: PathBuf,
    imatrix: Option<Imatrix>,
    write: WriteOptions,
}

impl<'a> CheckedQuantization<'a> {
    pub(super) fn new(run: &'a JobRun<'a>, opened: &'a mut OpenedInput) -> Result<Self> {
        let job = run.job;
        let mut options = QuantizeOptions {
            // The type is arbitrary if a size or a file decides.
            file_type: job.types.asked().unwrap_or(FileType::Q4KM),
            keep_split: job.output.files == OutputFiles::AsInput,
            ..job.quantize.clone()
        };
        let like = like::set_types(run, opened, &mut options)?;
        let word = job.types.target().map_or_else(|| options.file_type.name().to_owned(), size::word);
        let target = job.output.target(&job.input, opened, &word);
        let write = job.write_options(opened);
        let mut guard = run.guard(opened)?;
        job.output.guard(&mut guard, &target, opened, None)?;
        let imatrix = job.importance.open(run.progress())?;
        if let Some(ty) = job.types.kept(options.file_type)
            && opened.conversion().is_some()
        {
            // Tensors that the mixture brings to the type of the checkpoint's integers keep these integers.
            let is_calibrated = job.calibration.is_some();
            let names = names_of_type(ty, opened, &options, imatrix.as_ref(), is_calibrated)?;
            opened.keep(ty, |name| names.contains(name))?;
        }
        let opened = &*opened;
        let input = opened.input();
        overrides::check(&input, &options, run.progress())?;
        if job.calibration.is_some() {
            crate::quantize::must_be_weights(input.metadata)?;
            Contradiction::of_calibrated(opened)?;
        }
        let size = SizeChoice::of(&job.types)?;
        Ok(Self { run, opened, input, options, size, like, target, imatrix, write })
    }

    /// Plans a run that may lack something.
    pub(super) fn plan(self) -> Result<QuantizationPlan> {
        if let Some(calibration) = &self.run.job.calibration {
            return calibration.plan(&self);
        }
        let allocation = self.allocate()?;
        let options = allocation.as_ref().map_or(&self.options, |found| &found.options);
        let plan = QuantizePlan::draft(&self.input, options, self.imatrix.as_ref())?;
        JobRun::check_pruned(self.opened, options, &plan)?;
        self.note_share(&plan)?;
        self.remark(&plan);
        if self.opened.file().is_some() {
            self.warn_of_obstacles(&plan);
        }
        self.run.free_bytes(&self.target);
        self.write_types(&plan)?;
        Ok(self.described(&plan, allocation.as_ref()))
    }

    pub(super) fn write(self) -> Result<QuantizationReport> {
        if let Some(calibration) = &self.run.job.calibration {
            return calibration.run(&self);
        }
        let allocation = self.allocate()?;
        let options = allocation.as_ref().map_or(&self.options, |found| &found.options);
        let plan = QuantizePlan::new(&self.input, options, self.imatrix.as_ref())?;
        JobRun::check_pruned(self.opened, options, &plan)?;
        self.note_share(&plan)?;
        self.remark(&plan);
        self.report_plan(self.described(&plan, allocation.as_ref()))?;
        let report = self.written(&plan, options.file_type)?;
        Ok(QuantizationReport { target: allocation.as_ref().map(TargetReport::from), ..report })
    }

    pub(super) fn directory(&self) -> &Path {
        let parent = self.target.parent().filter(|dir| *dir != Path::new(""));
        parent.unwrap_or(Path::new("."))
    }

    /// Chooses types by estimated costs, if a size decides.
    fn allocate(&self) -> Result<Option<Allocation>> {
        let Some(size) = self.size else { return Ok(None) };
        if !self.run.is_dry {
            self.run.progress().steps(2);
        }
        size.allocate(self.run.progress(), &self.input, &self.options, self.imatrix.as_ref()).map(Some)
    }

    fn note_share(&self, plan: &QuantizePlan<'_>) -> Result<()> {
        let output = &self.run.job.output;
        Ok(output.note_share(self.run.events, plan.metadata(), plan, &self.write)?)
    }

    /// Reports unexpected decisions of the plan.
    pub(super) fn remark(&self, plan: &QuantizePlan<'_>) {
        let job = self.run.job;
        let has_matrix = job.importance.path.is_some();
        for remark in remark::of_plan(plan, job.types.asked(), self.options.coverage, has_matrix) {
            self.run.events.remark(&remark);
        }
        let (layout, split) = (&self.write.layout, self.write.split.as_ref());
        if let Ok(files) = plan_files(&self.target, plan.metadata(), plan.tensors(), layout, split) {
            let paths: Vec<PathBuf> = files.into_iter().map(|file| file.path).collect();
            self.run.remark_files(&paths, self.opened, plan.tensors());
            self.run.remark_label(&paths, plan.metadata(), plan.tensors());
        }
        if self.options.keep_split
            && let Some(text) =
                self.opened.file().and_then(|file| in_parts(&file.paths(), plan.metadata(), plan.tensors()))
        {
            self.run.progress().warn(&text);
        }
        self.run.remark_source(self.opened, plan.metadata(), plan.tensors());
    }

    /// Warns of everything at which a run would stop.
    pub(super) fn warn_of_obstacles(&self, plan: &QuantizePlan<'_>) {
        for obstacle in plan.obstacles() {
            self.run.stops_here(obstacle);
        }
    }

    /// Writes the types of the plan, if a file is given.
    pub(super) fn write_types(&self, plan: &QuantizePlan<'_>) -> Result<()> {
        let job = self.run.job;
        job.write_types.as_ref().map_or(Ok(()), |path| Ok(write_types(path, plan, job.sync)?))
    }

    /// Describes the plan, with the fate of a quantized checkpoint's weights.
    pub(super) fn described(
        &self,
        plan: &QuantizePlan<'_>,
        allocation: Option<&Allocation>,
    ) -> QuantizationPlan {
        let described =
            QuantizationPlan { like: self.like.clone(), ..QuantizationPlan::of(plan, allocation) };
        let Some(conversion) = self.opened.conversion() else { return described };
        QuantizationPlan {
            codes: IntegerCodes::of(conversion),
            stored: StoredWeights::of(conversion, plan.tensors(), self.run.job.suggests_native),
            account: conversion.account(),
            ..described
        }
    }

    /// Reports a plan before it is used.
    pub(super) fn report_plan(&self, plan: QuantizationPlan) -> Result<()> {
        Ok(self.run.events.planned(&JobPlan::Quantize(Box::new(plan)))?)
    }

    /// Writes the files and the types of the plan, and reports what was found on the way.
    pub(super) fn written(&self, plan: &QuantizePlan<'_>, file_type: FileType) -> Result<QuantizationReport> {
        let (run, job) = (self.run, self.run.job);
        let written = plan.write(&self.target, &self.write, run.progress())?;
        job.output.note_rest(run.events, &written);
        self.write_types(plan)?;
        if self.opened.file().is_some() {
            run.remark_zeros(plan.all_zero().map(|tensor| tensor.name.as_str()));
        }
        let small = plan.small_rows();
        if let Some(text) = remark::of_small_rows(&small) {
            run.progress().warn(&text);
        }
        let summary = plan.summary_of(written.tensors);
        let seconds = run.start.elapsed().as_secs_f64();
        Ok(QuantizationReport {
            mb_per_second: summary.total.bytes_before as f64 / 1e6 / seconds.max(1e-9),
            summary,
            files: written.paths,
            file_type,
            file_bytes: written.file_bytes,
            missing_parts: written.missing,
            n_fallbacks: plan.n_fallbacks(),
            small_rows: SmallTensorRows::of(&small),
            seconds,
            calibration: None,
            target: None,
            like: self.like.clone(),
            account: self.opened.account(),
        })
    }
}

/// Returns the names of the tensors that a quantization brings to a type.
fn names_of_type(
    ty: GgmlType,
    opened: &OpenedInput,
    options: &QuantizeOptions,
    imatrix: Option<&Imatrix>,
    is_calibrated: bool,
) -> Result<HashSet<String>> {
    let input = opened.input();
    if is_calibrated {
        let types = QuantizePlan::types_to_come(&input, options)?.into_iter();
        let wanted = types.filter(|(_, to_come)| *to_come == ty);
        return Ok(wanted.map(|(at, _)| input.source.tensors()[at].name.clone()).collect());
    }
    let draft = QuantizePlan::draft(&input, options, imatrix)?;
    let wanted = draft.tensors().iter().filter(|tensor| tensor.ty == ty);
    Ok(wanted.map(|tensor| tensor.name.clone()).collect())
}
