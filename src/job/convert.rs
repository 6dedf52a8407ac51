//! Conversion without quantization: types that the converter itself writes.

use std::path::PathBuf;

use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{PlannedFile, WriteError, WriteOptions, plan_files, write_gguf};
use crate::job::input::OpenedInput;
use crate::job::plan::{ConversionPlan, ConvertedTensorPlan, IntegerCodes};
use crate::job::report::{ConversionReport, SmallTensorRows};
use crate::job::run::JobRun;
use crate::job::stored::StoredWeights;
use crate::job::{JobTypes, NativeFloats, OutputFiles, Result, remark};

/// Conversion whose output has been checked.
pub(super) struct CheckedConversion<'a> {
    run: &'a JobRun<'a>,
    opened: &'a OpenedInput,
    /// Name of the file type.
    encoding: String,
    target: PathBuf,
    write: WriteOptions,
    files: Vec<PlannedFile>,
    codes: IntegerCodes,
    stored: Option<StoredWeights>,
}

impl<'a> CheckedConversion<'a> {
    pub(super) fn new(run: &'a JobRun<'a>, opened: &'a OpenedInput) -> Result<Self> {
        let (job, output) = (run.job, &run.job.output);
        let is_native = matches!(job.types, JobTypes::Native { .. });
        let conversion = opened.conversion();
        if let (JobTypes::Native { allow_rounding: false }, Some(conversion)) = (&job.types, conversion) {
            NativeFloats::check(conversion)?;
        }
        let stored = conversion.and_then(|conversion| {
            StoredWeights::of(conversion, conversion.tensors(), job.suggests_native && !is_native)
        });
        let encoding = if is_native { "NATIVE".to_owned() } else { opened.encoding() };
        let target = output.target(&job.input, opened, &encoding);
        let write = job.write_options(opened);
        let (metadata, source) = (opened.metadata(), opened.source());
        output.note_share(run.events, metadata, source, &write)?;
        let mut guard = run.guard(opened)?;
        let files = plan_files(&target, metadata, source.tensors(), &write.layout, write.split.as_ref())?;
        let paths = match output.files {
            OutputFiles::Into { .. } => vec![target.clone()],
            _ => files.iter().map(|file| file.path.clone()).collect(),
        };
        run.remark_files(&paths, opened, source.tensors());
        run.remark_label(&paths, metadata, source.tensors());
        output.guard(&mut guard, &target, opened, Some(paths))?;
        let codes = conversion.map(IntegerCodes::of).unwrap_or_default();
        Ok(Self { run, opened, encoding, target, write, files, codes, stored })
    }

    /// Describes the plan. `free_bytes` is the free space where the files go.
    pub(super) fn plan(&self, free_bytes: Option<u64>) -> ConversionPlan {
        let tensor = |(at, tensor): (usize, &TensorMeta)| ConvertedTensorPlan {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            ty: tensor.ty,
            n_bytes: tensor.n_bytes(),
            sources: self.opened.sources(at),
        };
        let tensors = self.opened.source().tensors();
        let places = self.files.iter().flat_map(|file| file.tensors.clone());
        ConversionPlan {
            files: self.files.iter().map(|file| file.path.clone()).collect(),
            encoding: self.encoding.clone(),
            file_bytes: self.files.iter().map(|file| file.plan.file_bytes).sum(),
            free_bytes,
            n_keys: self.opened.metadata().len(),
            tensors: places.filter_map(|at| Some((at, tensors.get(at)?))).map(tensor).collect(),
            codes: self.codes.clone(),
            stored: self.stored.clone(),
            account: self.opened.account(),
        }
    }

    /// Returns the free bytes where the files go.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.run.free_bytes(&self.target)
    }

    pub(super) fn write(self) -> Result<ConversionReport, WriteError> {
        let Self { run, opened, target, write, .. } = &self;
        let source = opened.source();
        let written = write_gguf(target, opened.metadata(), source, write, run.progress())?;
        run.job.output.note_rest(run.events, &written);
        let small = opened.small_rows();
        if let Some(text) = remark::of_small_rows(&small) {
            run.progress().warn(&text);
        }
        let tensors = source.tensors().get(written.tensors).unwrap_or_default();
        let account = opened.account();
        let n_elems: u64 = tensors.iter().map(|tensor| tensor.shape.n_elems()).sum();
        Ok(ConversionReport {
            files: written.paths,
            n_tensors: tensors.len(),
            n_elems,
            tensor_bytes: written.tensor_bytes,
            file_bytes: written.file_bytes,
            bits_per_weight: written.tensor_bytes as f64 * 8.0 / n_elems.max(1) as f64,
            small_rows: SmallTensorRows::of(&small),
            seconds: run.start.elapsed().as_secs_f64(),
            missing_parts: written.missing,
            encoding: self.encoding,
            codes: self.codes,
            stored: self.stored,
            account,
        })
    }
}
