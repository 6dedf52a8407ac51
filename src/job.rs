//! Whole jobs, from a model to a file: convert, quantize, calibrate, write.
//!
//! A [`Job`] has a model to read, types, an optional calibration and an output. [`Job::plan`] decides everything about
//! the output from headers, and [`Job::run`] writes it. Plan and report are plain data that serialize to what the
//! programs print with `--json`. [`Events`] receives progress, remarks and notes on the way.
//!
//! | file | subject |
//! |---|---|
//! | `input` `types` `output` | model that is read, types of the tensors, path and division of the output |
//! | `run` `guard` `default_name` | common steps: opening, checks of the output against everything that is read |
//! | `convert` `stored` | types that the converter writes; storage of a quantized checkpoint |
//! | `quantize` `importance` `overrides` `size` | quantization, of a file or of a conversion in one pass |
//! | `like` | types that another file has |
//! | `diffusion` | types of image and video models |
//! | `ladder` | many types of one model from one reading |
//! | `recipe` | how a quantized file was made, and making it again |
//! | `type_sizes` | bytes of types that are not made yet |
//! | `calibration` | rounding based on the model's own activations, as a step of the quantization |
//! | `plan` `report` `remark` `events` | data for the caller |

mod beside_text;
pub(crate) mod calibration;
mod convert;
mod default_name;
mod diffusion;
mod error;
mod events;
mod guard;
mod importance;
pub(crate) mod input;
pub mod ladder;
mod like;
mod output;
mod overrides;
mod plan;
mod quantize;
pub mod recipe;
mod remark;
mod report;
mod run;
pub(crate) mod size;
mod stored;
pub(crate) mod templates;
#[cfg(feature = "cli")]
pub(crate) mod type_sizes;
mod types;

use std::path::PathBuf;

use crate::convert::ConvertOptions;
use crate::quantize::{FileType, QuantizeOptions};

pub use beside_text::{beside_text, in_parts, must_be_language_model};
pub use calibration::{
    Calibration, CalibrationPlan, CalibrationReport, HeldOutFacts, KindFacts, OwnText, TextFacts,
};
pub use default_name::NameTaken;
#[cfg(feature = "cli")]
pub(crate) use default_name::is_digest;
pub(crate) use error::Result;
pub use error::{Contradiction, JobError};
pub use events::Events;
pub use guard::Guard;
pub use importance::Importance;
pub use input::JobInput;
pub use like::{LikeReport, NothingAlike};
pub use output::{JobOutput, OutputFiles, OutputPath};
pub use overrides::RefusedOverrides;
pub use plan::{
    ConversionPlan, ConvertedTensorPlan, IntegerCodes, JobPlan, QuantizationPlan, QuantizedTensorPlan,
};
pub use remark::Remark;
pub use report::{ConversionReport, JobReport, QuantizationReport, SmallTensorRows};
pub use size::{PromiseReport, TargetReport};
pub use stored::{ConvertedClass, NativeFloats, StoredWeights};
pub use types::{FileTarget, JobTypes, TypeSwitches};

use convert::CheckedConversion;
use quantize::CheckedQuantization;
use run::JobRun;

/// Job: a model is read, its types are changed, and the result is written.
#[derive(Clone, Debug)]
pub struct Job {
    /// Model to read.
    pub input: JobInput,
    /// Types of the output's tensors.
    pub types: JobTypes,
    /// Calibration of a quantization.
    pub calibration: Option<Calibration>,
    /// Output.
    pub output: JobOutput,
    /// Options of the conversion of a checkpoint. Its type and the treatment of integers follow from
    /// [`types`](Self::types).
    pub convert: ConvertOptions,
    /// Options of a quantization. The file type follows from [`types`](Self::types), and the parts from
    /// [`output`](Self::output).
    pub quantize: QuantizeOptions,
    /// Importance matrix of a quantization.
    pub importance: Importance,
    /// Files that rules of types were read from; no output may replace them.
    pub rule_files: Vec<PathBuf>,
    /// File for the types of a quantization, as rules for single tensors; a plan writes it, too.
    pub write_types: Option<PathBuf>,
    /// True to look for what the type `native` would keep of a quantized checkpoint, as a suggestion.
    pub suggests_native: bool,
    /// True to sync the output to disk before it gets its final name.
    pub sync: bool,
    /// Memory for chunks in flight in bytes, over all threads.
    pub memory_bytes: u64,
}

impl Job {
    /// Job with default options.
    pub fn new(input: JobInput, types: JobTypes, output: JobOutput) -> Self {
        Self {
            input,
            types,
            calibration: None,
            output,
            convert: ConvertOptions::default(),
            quantize: QuantizeOptions::new(FileType::Q4KM),
            importance: Importance::default(),
            rule_files: Vec::new(),
            write_types: None,
            suggests_native: false,
            sync: true,
            memory_bytes: 128 << 20,
        }
    }

    /// Plans the job. Only headers are read, except for types that depend on sampled weights or on a text.
    ///
    /// # Errors
    /// Everything that would stop the run and can be detected beforehand. What is wrong with the output alone is
    /// reported as a warning.
    pub fn plan(&self, events: &dyn Events) -> Result<JobPlan, JobError> {
        let converted = like::converted(self)?;
        let job = converted.as_ref().unwrap_or(self);
        let settled = diffusion::settled(job)?;
        let job = settled.as_ref().unwrap_or(job);
        let run = JobRun::new(job, events, true);
        let mut opened = run.open()?;
        if job.types.is_quantized() {
            let plan = CheckedQuantization::new(&run, &mut opened)?.plan()?;
            return Ok(JobPlan::Quantize(Box::new(plan)));
        }
        let conversion = CheckedConversion::new(&run, &opened)?;
        Ok(JobPlan::Convert(Box::new(conversion.plan(conversion.free_bytes()))))
    }

    /// Runs the job.
    ///
    /// # Errors
    /// Anything that stops the run. No output has its final name then.
    pub fn run(&self, events: &dyn Events) -> Result<JobReport, JobError> {
        let converted = like::converted(self)?;
        let job = converted.as_ref().unwrap_or(self);
        let settled = diffusion::settled(job)?;
        let job = settled.as_ref().unwrap_or(job);
        let run = JobRun::new(job, events, false);
        let mut opened = run.open()?;
        let report = if job.types.is_quantized() {
            JobReport::Quantize(Box::new(CheckedQuantization::new(&run, &mut opened)?.write()?))
        } else {
            let conversion = CheckedConversion::new(&run, &opened)?;
            events.planned(&JobPlan::Convert(Box::new(conversion.plan(None))))?;
            JobReport::Convert(Box::new(conversion.write()?))
        };
        run.remark_converted_zeros(&opened);
        Ok(report)
    }
}
