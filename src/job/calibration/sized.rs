//! Types for a size chosen by their cost on a text, and the standard mix for comparison.

use crate::calibrate::{
    CalibrateError, CalibrationText, ChosenTypes, TypesOptions, choose_types, measure_mix,
};
use crate::job::JobError;
use crate::job::calibration::Calibration;
use crate::job::plan::QuantizationPlan;
use crate::job::quantize::CheckedQuantization;
use crate::job::size::warn_if_small;
use crate::quantize::{Allocation, MeasuredKld, QuantizeOptions, QuantizePlan, StandardMix};
use crate::verify::Model;

/// Chooses types if a size decides, and reports them before they are used.
///
/// # Errors
/// A model that cannot be run; a size that cannot be reached.
pub(super) fn choose(
    quantization: &CheckedQuantization<'_>,
    calibration: &Calibration,
    model: &Model<'_>,
    text: &CalibrationText,
) -> Result<Option<ChosenTypes>, JobError> {
    let Some(size) = quantization.size else { return Ok(None) };
    let options = TypesOptions {
        quantize: &quantization.options,
        types: size.candidates,
        target: size.target,
        solver: calibration.solver,
        engine: calibration.engine(),
        dir: &quantization.target,
    };
    let chosen = choose_types(model, &quantization.input, text, &options, quantization.run.progress())?;
    warn_if_small(quantization.run.progress(), &chosen.allocation);
    let plan = QuantizePlan::new(&quantization.input, &chosen.allocation.options, Some(&chosen.imatrix))?;
    quantization.report_plan(QuantizationPlan::of(&plan, Some(&chosen.allocation)))?;
    Ok(Some(chosen))
}

/// Completes the choice with the plan's file size and the standard mix's measured divergence on held-out text.
///
/// # Errors
/// A plan that is larger than asked for; models that cannot be run.
pub(super) fn finish(
    quantization: &CheckedQuantization<'_>,
    calibration: &Calibration,
    model: &Model<'_>,
    text: &CalibrationText,
    chosen: &ChosenTypes,
    plan: &QuantizePlan<'_>,
) -> Result<Allocation, CalibrateError> {
    let mut allocation = chosen.allocation.clone().held_against(plan)?;
    let Some(mix) = allocation.mix else { return Ok(allocation) };
    let options = QuantizeOptions { file_type: mix.file_type, pure: false, ..quantization.options.clone() };
    let of_mix = QuantizePlan::new(&quantization.input, &options, Some(&chosen.imatrix))?;
    let found = measure_mix(&of_mix, model, text, calibration.engine(), quantization.run.progress())?;
    let measured = Some(MeasuredKld { mean_kld: found.mean.value, stderr: found.mean.stderr });
    allocation.mix = Some(StandardMix { measured, ..mix });
    Ok(allocation)
}
