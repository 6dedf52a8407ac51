//! Types for a size or a divergence chosen by their cost on a text, and the standard mix for comparison.

use crate::calibrate::{
    CalibrateError, CalibrationText, ChosenTypes, Fidelity, KeptPromise, TypesOptions, WorkFolder,
    choose_types, expected_types, keep_promise, measure_mix,
};
use crate::job::calibration::Calibration;
use crate::job::plan::QuantizationPlan;
use crate::job::quantize::CheckedQuantization;
use crate::job::size::{PromiseReport, SizeChoice, TargetReport, option, warn_if_small};
use crate::job::{Contradiction, FileTarget, Result};
use crate::quantize::{Allocation, MeasuredKld, QuantizeOptions, QuantizePlan, StandardMix};
use crate::verify::Model;

/// Chosen types, with the blocks and figures of the file if they are known.
pub(super) struct SizedTypes {
    pub(super) chosen: ChosenTypes,
    pub(super) fidelity: Option<Fidelity>,
    promise: Option<PromiseReport>,
}

/// Chooses types if a size or a divergence decides, and reports them before they are used.
pub(super) fn choose(
    quantization: &CheckedQuantization<'_>,
    calibration: &Calibration,
    model: &Model<'_>,
    text: &CalibrationText,
    work: Option<&WorkFolder>,
) -> Result<Option<SizedTypes>> {
    let Some(size) = quantization.size else { return Ok(None) };
    let (input, progress) = (&quantization.input, quantization.run.progress());
    let options = options(quantization, calibration, size);
    let sized = match size.target {
        FileTarget::Size(target) => {
            let chosen = choose_types(model, input, text, &options, target, progress)?;
            warn_if_small(progress, &chosen.allocation);
            SizedTypes { chosen, fidelity: None, promise: None }
        }
        FileTarget::Kld(most_kld) => {
            let KeptPromise { chosen, fidelity, figures, tried } =
                keep_promise(model, input, text, &options, most_kld, work, progress)?;
            let promise = Some(PromiseReport::of(most_kld, &figures, tried));
            SizedTypes { chosen, fidelity: Some(fidelity), promise }
        }
    };
    let ChosenTypes { allocation, imatrix } = &sized.chosen;
    let plan = QuantizePlan::new(input, &allocation.options, Some(imatrix))?;
    let described = QuantizationPlan::of(&plan, Some(allocation));
    quantization.report_plan(sized.described(described))?;
    Ok(Some(sized))
}

/// Plans types for a divergence by estimates, for a run that would measure them.
pub(super) fn expect(
    quantization: &CheckedQuantization<'_>,
    calibration: &Calibration,
    text: &CalibrationText,
) -> Result<Option<(Allocation, PromiseReport)>> {
    let Some(size) = quantization.size else { return Ok(None) };
    let FileTarget::Kld(most_kld) = size.target else {
        return Err(Contradiction::PlanOfMeasuredTypes { option: option(size.target) }.into());
    };
    let (options, progress) = (options(quantization, calibration, size), quantization.run.progress());
    let allocation = expected_types(&quantization.input, text, &options, most_kld, progress)?;
    Ok(Some((allocation, PromiseReport::to_come(most_kld))))
}

fn options<'a>(
    quantization: &'a CheckedQuantization<'_>,
    calibration: &Calibration,
    size: SizeChoice<'a>,
) -> TypesOptions<'a> {
    TypesOptions {
        quantize: &quantization.options,
        types: size.candidates,
        solver: calibration.solver,
        engine: calibration.engine(),
        dir: quantization.directory(),
    }
}

impl SizedTypes {
    fn described(&self, plan: QuantizationPlan) -> QuantizationPlan {
        let target = plan.target.map(|target| TargetReport { promise: self.promise.clone(), ..target });
        QuantizationPlan { target, ..plan }
    }

    /// Report of the choice, with the plan's file size and the standard mix's measured divergence on held-out text.
    pub(super) fn report(
        &self,
        quantization: &CheckedQuantization<'_>,
        calibration: &Calibration,
        model: &Model<'_>,
        text: &CalibrationText,
        plan: &QuantizePlan<'_>,
    ) -> Result<TargetReport, CalibrateError> {
        let allocation = finish(quantization, calibration, model, text, &self.chosen, plan)?;
        Ok(TargetReport { promise: self.promise.clone(), ..TargetReport::from(&allocation) })
    }
}

/// Completes the choice with the plan's file size and the standard mix's measured divergence on held-out text.
fn finish(
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
    let measured = Some(MeasuredKld { mean_kld: found.kld.mean, stderr: found.kld.stderr });
    allocation.mix = Some(StandardMix { measured, ..mix });
    Ok(allocation)
}
