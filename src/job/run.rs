//! Common steps of planning and running a job: opening the input, checking the output.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::arch::loader_faults;
use crate::core::output::{Destination, OutputKind};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::Metadata;
use crate::job::input::OpenedInput;
use crate::job::templates::TemplateFindings;
use crate::job::{Contradiction, Events, Guard, Job, JobInput, JobTypes, Result};
use crate::job::{beside_text, overrides, remark};
use crate::quantize::{QuantizeError, QuantizeOptions, QuantizePlan};
use crate::verify::{header_errors, label_findings};

/// Job that is planned or run.
pub(super) struct JobRun<'a> {
    pub(super) job: &'a Job,
    pub(super) events: &'a dyn Events,
    /// True if only the plan is wanted.
    pub(super) is_dry: bool,
    pub(super) start: Instant,
}

impl<'a> JobRun<'a> {
    pub(super) fn new(job: &'a Job, events: &'a dyn Events, is_dry: bool) -> Self {
        Self { job, events, is_dry, start: Instant::now() }
    }

    pub(super) fn progress(&self) -> &'a dyn Progress {
        self.events.progress()
    }

    /// Opens the input and reports its oddities.
    pub(super) fn open(&self) -> Result<OpenedInput> {
        let Job { input, types, .. } = self.job;
        if matches!(input, JobInput::Gguf(_)) && !types.is_quantized() {
            return Err(Contradiction::NotConverted.into());
        }
        let mut options = self.job.convert.clone();
        options.file_type = types.converted();
        options.codes = types.codes();
        options.then_quantized = types.is_quantized();
        let opened = input.open(&options)?;
        let warnings = match &opened {
            OpenedInput::File(_) => &[],
            OpenedInput::Conversion(conversion) => conversion.warnings(),
            OpenedInput::Adapter(adapter) => adapter.warnings(),
            OpenedInput::Diffusion(conversion) => conversion.warnings(),
        };
        for warning in warnings {
            self.events.oddity(&escape(warning));
        }
        if !matches!(opened, OpenedInput::File(_)) {
            overrides::check_set(&opened, &options.set, self.progress())?;
        }
        if let OpenedInput::Diffusion(conversion) = &opened {
            conversion.notes().iter().for_each(|note| self.events.note(note));
        }
        let Some(conversion) = opened.conversion() else { return Ok(opened) };
        let templates = TemplateFindings::of(conversion.metadata());
        for (name, why) in templates.faults {
            self.events.oddity(&format!(
                "chat template `{}` is written as it is, and no runtime will render it: {why}",
                escape(&name)
            ));
        }
        templates.warnings.iter().for_each(|warning| self.events.oddity(warning));
        for (name, why) in conversion.dropped() {
            self.events.detail(&format!("`{}` is left out: {why}", escape(name)));
        }
        if let (true, [first, others @ ..]) = (self.is_dry, conversion.mapping().read.as_slice()) {
            let others = match others.len() {
                0 => String::new(),
                n => format!(" and {n} more tensors"),
            };
            self.events.note(&format!("the plan depends on the content of `{}`{others}", escape(first)));
        }
        Ok(opened)
    }

    /// Registers everything that is read, whatever the options, and the list of types, so that outputs are checked
    /// before any weight is read.
    pub(super) fn guard(&self, opened: &OpenedInput) -> Result<Guard<'a>> {
        let job = self.job;
        // A list of types is written even with a plan.
        let mut guard = Guard::new(self.progress(), self.is_dry && job.write_types.is_none());
        job.input.guard(&mut guard, opened, &job.convert)?;
        guard.read_all("the importance matrix", &job.importance.path)?;
        guard.read_all("rules of types", &job.rule_files)?;
        if let JobTypes::Like { file, .. } = &job.types {
            guard.model("--like", file)?;
        }
        if let Some(calibration) = &job.calibration {
            calibration.guard(&mut guard)?;
        }
        if let Some(path) = &job.write_types {
            Destination::of(path)?;
            guard.write("--write-types", path, OutputKind::TypeRules)?;
        }
        Ok(guard)
    }

    /// Warns of files that their runtimes do not find or read.
    pub(super) fn remark_files(&self, paths: &[PathBuf], opened: &OpenedInput, tensors: &[TensorMeta]) {
        let is_image = opened.image_rules().is_some();
        for text in remark::of_files(paths, opened.metadata(), tensors, is_image) {
            self.progress().warn(&text);
        }
    }

    /// Warns of an output whose label contradicts its tensors: rules of types leave nothing of the type that it is
    /// called after, or its name is of another type.
    pub(super) fn remark_label(&self, paths: &[PathBuf], metadata: &Metadata, tensors: &[TensorMeta]) {
        let Some(path) = paths.first() else { return };
        for finding in label_findings(metadata, tensors, path) {
            self.progress().warn(&format!("{}: {}", path.display(), finding.message));
        }
    }

    /// Warns of a source that its runtime does not load: what is made of it would not be loaded, either.
    pub(super) fn remark_source(&self, opened: &OpenedInput, metadata: &Metadata, tensors: &[TensorMeta]) {
        let Some(file) = opened.file() else { return };
        let nothing = beside_text::without_weights(file.path(), metadata, tensors);
        for text in
            remark::of_source(file.path(), &header_errors(metadata, tensors)).into_iter().chain(nothing)
        {
            self.progress().warn(&text);
        }
    }

    /// Refuses pruned layers without which the runtime no longer loads the model.
    pub(super) fn check_pruned(
        opened: &OpenedInput,
        options: &QuantizeOptions,
        plan: &QuantizePlan<'_>,
    ) -> Result<()> {
        if options.prune_layers.is_empty() {
            return Ok(());
        }
        let fault = |metadata: &Metadata, tensors: &[TensorMeta]| {
            let error = header_errors(metadata, tensors).first().map(remark::located);
            error.or_else(|| loader_faults(metadata, tensors).first().map(ToString::to_string))
        };
        let Some(left) = fault(plan.metadata(), plan.tensors()) else { return Ok(()) };
        // With the dimensions that a written file keeps.
        let own = opened.source().tensors().iter();
        let own: Vec<TensorMeta> =
            own.map(|meta| TensorMeta { shape: meta.shape.of_ggml(), ..meta.clone() }).collect();
        match fault(opened.metadata(), &own) {
            None => Err(QuantizeError::LeftUnfit { fault: left }.into()),
            Some(_) => Ok(()),
        }
    }

    /// Returns the free bytes where a planned output goes. If nothing can be written there, this warns: the plan is
    /// valid nevertheless.
    pub(super) fn free_bytes(&self, target: &Path) -> Option<u64> {
        match Destination::of(target) {
            Ok(destination) => destination.free_bytes(),
            Err(error) => {
                self.stops_here(&error);
                None
            }
        }
    }

    /// Warns that a run would stop where the plan goes on.
    pub(super) fn stops_here(&self, error: &dyn std::error::Error) {
        self.progress().warn(&format!("a run would stop here: {error}"));
    }

    /// Reports tensors that contain only zeros.
    pub(super) fn remark_zeros<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let names: Vec<_> = names.map(ToOwned::to_owned).collect();
        if let Some(remark) = remark::of_zeros(&names) {
            self.events.remark(&remark);
        }
    }

    /// Reports tensors of a conversion that contain only zeros; known once all of it was read.
    pub(super) fn remark_converted_zeros(&self, opened: &OpenedInput) {
        match opened {
            OpenedInput::Conversion(conversion) => self.remark_zeros(conversion.zero_tensors()),
            OpenedInput::Diffusion(conversion) => self.remark_zeros(conversion.zero_tensors()),
            OpenedInput::File(_) | OpenedInput::Adapter(_) => {}
        }
    }
}
