//! `--target-size` with `--calibrate`: types chosen by their cost on the text, and the standard mix for comparison.

use crate::calibrate::{
    CalibrateError, CalibrationText, ChosenTypes, Solver, TypesOptions, choose_types, measure_mix,
};
use crate::cli::Session;
use crate::cli::quantize::job::CalibrateJob;
use crate::cli::quantize::report;
use crate::cli::quantize::target::warn_if_small;
use crate::cli::verify::engine_options;
use crate::quantize::{Allocation, QuantizeOptions, QuantizePlan, StandardMix};
use crate::verify::Model;

/// Chooses types if a target size is given, and prints them before they are used.
///
/// # Errors
/// A model that cannot be run; a size that cannot be reached.
pub(super) fn choose(
    session: &Session,
    job: &CalibrateJob<'_>,
    solver: Solver,
    model: &Model<'_>,
    text: &CalibrationText,
) -> anyhow::Result<Option<ChosenTypes>> {
    let Some(target) = job.types.target() else { return Ok(None) };
    let types = job.types.types()?;
    let engine = engine_options(&session.common);
    let options =
        TypesOptions { quantize: job.options, types: &types, target, solver, engine, dir: job.output };
    let chosen = choose_types(model, job.input, text, &options, &session.progress)?;
    warn_if_small(session, &chosen.allocation);
    if !session.common.json && !session.common.quiet {
        let plan = QuantizePlan::new(job.input, &chosen.allocation.options, Some(&chosen.imatrix))?;
        report::print_plan(session, &plan, Some(&chosen.allocation), None)?;
    }
    Ok(Some(chosen))
}

/// Completes the choice with the plan's file size and the standard mix's measured divergence on the held-back text.
///
/// # Errors
/// A plan that is larger than asked for; models that cannot be run.
pub(super) fn finish(
    session: &Session,
    job: &CalibrateJob<'_>,
    model: &Model<'_>,
    text: &CalibrationText,
    chosen: &ChosenTypes,
    plan: &QuantizePlan<'_>,
) -> anyhow::Result<Allocation> {
    let mut allocation = chosen.allocation.clone().held_against(plan).map_err(CalibrateError::from)?;
    let Some(mix) = allocation.mix else { return Ok(allocation) };
    let engine = engine_options(&session.common);
    let options = QuantizeOptions { file_type: mix.file_type, pure: false, ..job.options.clone() };
    let of_mix =
        QuantizePlan::new(job.input, &options, Some(&chosen.imatrix)).map_err(CalibrateError::from)?;
    let found = measure_mix(&of_mix, model, text, engine, &session.progress)?;
    let measured = Some((found.mean.value, found.mean.stderr));
    allocation.mix = Some(StandardMix { measured, ..mix });
    Ok(allocation)
}
