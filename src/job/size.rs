//! Types chosen for a size or a divergence, and the file that lists the types.

use std::path::Path;

use serde::Serialize;

use crate::calibrate::{HeldOutFigures, PROMISE_ERRORS, TriedTypes};
use crate::core::GgmlType;
use crate::core::output::{OutputError, OutputFile};
use crate::core::progress::Progress;
use crate::core::text::bytes;
use crate::gguf::Imatrix;
use crate::job::{Contradiction, FileTarget, JobTypes, Result};
use crate::quantize::{
    AllocateOptions, Allocation, Input, QuantizeOptions, QuantizePlan, SizeTarget, StandardMix, Survey,
    type_rules,
};

/// Returns the option that sets a limit.
pub(crate) fn option(target: FileTarget) -> &'static str {
    match target {
        FileTarget::Size(SizeTarget::Bytes(_)) => "--target-size",
        FileTarget::Size(SizeTarget::BitsPerWeight(_)) => "--target-bpw",
        FileTarget::Kld(_) => "--target-kld",
    }
}

/// Returns a word for a limit, for the default name of an output.
pub(crate) fn word(target: FileTarget) -> String {
    match target {
        FileTarget::Size(SizeTarget::Bytes(n_bytes)) => format!("{n_bytes}-bytes"),
        FileTarget::Size(SizeTarget::BitsPerWeight(bits)) => format!("{bits}bpw"),
        FileTarget::Kld(kld) => format!("KLD-{kld}"),
    }
}

/// Limit with the types to choose from, checked.
#[derive(Clone, Copy)]
pub(super) struct SizeChoice<'a> {
    pub(super) target: FileTarget,
    pub(super) candidates: &'a [GgmlType],
}

impl<'a> SizeChoice<'a> {
    /// Returns the limit that decides the types, if one does.
    pub(super) fn of(types: &'a JobTypes) -> Result<Option<Self>, Contradiction> {
        let JobTypes::Size { target, candidates } = types else { return Ok(None) };
        let target = *target;
        let option = option(target);
        match target {
            FileTarget::Size(SizeTarget::Bytes(0)) => Err(Contradiction::NoSize { option }),
            FileTarget::Size(SizeTarget::BitsPerWeight(bits)) if bits <= 0.0 => {
                Err(Contradiction::NoSize { option })
            }
            FileTarget::Kld(kld) if !(kld > 0.0 && kld.is_finite()) => Err(Contradiction::NoKld { option }),
            _ => Ok(Some(Self { target, candidates })),
        }
    }

    /// Chooses types by estimated costs.
    pub(super) fn allocate(
        self,
        progress: &dyn Progress,
        input: &Input<'_>,
        options: &QuantizeOptions,
        imatrix: Option<&Imatrix>,
    ) -> Result<Allocation> {
        let asked = AllocateOptions { quantize: options, types: self.candidates, keys: &[] };
        let FileTarget::Size(target) = self.target else { return Err(Contradiction::KldWithoutText.into()) };
        let survey = Survey::new(input, imatrix, &asked)?;
        let costs = survey.estimate(progress)?;
        let allocation = survey.choose(&costs, target)?;
        warn_if_small(progress, &allocation);
        Ok(allocation)
    }
}

/// Choice of types for a size or a divergence, in figures.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Maximum size of the file in bytes; that of the file if a divergence decides.
    #[serde(rename = "bytes")]
    pub target_bytes: u64,
    /// Limit of the divergence, if it decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promise: Option<PromiseReport>,
    /// Size of the file in bytes, header and padding included.
    pub file_bytes: u64,
    /// Bits of the file per weight.
    #[serde(rename = "file_bits_per_weight")]
    pub bits_per_weight: f64,
    /// Expected mean KLD (nats) of the file.
    pub expected_kld: f64,
    /// Number of model runs that measured the costs of types; 0 if they are estimates by role.
    #[serde(rename = "runs")]
    pub n_runs: usize,
    /// True if the file is at most 0.5 % smaller than the maximum.
    #[serde(rename = "near")]
    pub is_near: bool,
    /// Standard mix whose file is nearest in size, preferably at most 0.5 % larger than the maximum.
    #[serde(rename = "standard_mix")]
    pub mix: Option<StandardMix>,
}

impl From<&Allocation> for TargetReport {
    fn from(allocation: &Allocation) -> Self {
        Self {
            target_bytes: allocation.target_bytes,
            promise: None,
            file_bytes: allocation.file_bytes,
            bits_per_weight: allocation.bits_per_weight(),
            expected_kld: allocation.expected_kld,
            n_runs: allocation.n_runs,
            is_near: allocation.is_near(),
            mix: allocation.mix,
        }
    }
}

/// Limit of a file's divergence, and what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PromiseReport {
    /// Limit of the mean KLD (nats) on held-out text with its error bound.
    pub most_kld: f64,
    /// Standard errors that are added to the measured mean.
    pub errors: f64,
    /// Measured mean KLD of the file; null before it is measured.
    pub mean_kld: Option<f64>,
    /// Standard error of the mean.
    pub stderr: Option<f64>,
    /// Measured mean with its error bound, at most the limit.
    pub bound: Option<f64>,
    /// Candidates that were solved and measured, in their order.
    pub tried: Vec<TriedTypes>,
}

impl PromiseReport {
    /// Limit before anything is measured.
    pub(super) fn to_come(most_kld: f64) -> Self {
        Self {
            most_kld,
            errors: PROMISE_ERRORS,
            mean_kld: None,
            stderr: None,
            bound: None,
            tried: Vec::new(),
        }
    }

    pub(super) fn of(most_kld: f64, figures: &HeldOutFigures, tried: Vec<TriedTypes>) -> Self {
        let HeldOutFigures { mean_kld, stderr, .. } = *figures;
        Self {
            mean_kld: Some(mean_kld),
            stderr: Some(stderr),
            bound: Some(figures.bound()),
            tried,
            ..Self::to_come(most_kld)
        }
    }
}

/// Warns of a file that is smaller than asked for.
pub(super) fn warn_if_small(progress: &dyn Progress, allocation: &Allocation) {
    if allocation.is_near() {
        return;
    }
    let why = if allocation.is_largest {
        "each tensor has the largest of the types"
    } else {
        "with these tensors and types none comes nearer"
    };
    progress.warn(&format!(
        "the file has {} where {} were asked for: {why}",
        bytes(allocation.file_bytes),
        bytes(allocation.target_bytes),
    ));
}

/// Writes the types of a plan as rules for single tensors.
pub(super) fn write_types(path: &Path, plan: &QuantizePlan<'_>, sync: bool) -> Result<(), OutputError> {
    let file = OutputFile::create(path)?;
    file.write_at(0, type_rules(plan).as_bytes())?;
    file.commit(sync)?;
    Ok(())
}
