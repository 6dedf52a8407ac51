//! Types chosen for a size, and the file that lists the types.

use std::path::Path;

use serde::Serialize;

use crate::core::GgmlType;
use crate::core::output::{OutputError, OutputFile};
use crate::core::progress::Progress;
use crate::core::text::bytes;
use crate::gguf::Imatrix;
use crate::job::{Contradiction, JobError, JobTypes};
use crate::quantize::{
    AllocateOptions, Allocation, Input, QuantizeOptions, QuantizePlan, SizeTarget, StandardMix, Survey,
    type_rules,
};

/// Returns the option that sets a size.
pub(crate) fn option(target: SizeTarget) -> &'static str {
    match target {
        SizeTarget::Bytes(_) => "--target-size",
        SizeTarget::BitsPerWeight(_) => "--target-bpw",
    }
}

/// Returns a word for a size, for the default name of an output.
pub(crate) fn word(target: SizeTarget) -> String {
    match target {
        SizeTarget::Bytes(n_bytes) => format!("{n_bytes}-bytes"),
        SizeTarget::BitsPerWeight(bits) => format!("{bits}bpw"),
    }
}

/// Size with the types to choose from, checked.
#[derive(Clone, Copy)]
pub(super) struct SizeChoice<'a> {
    pub(super) target: SizeTarget,
    pub(super) candidates: &'a [GgmlType],
}

impl<'a> SizeChoice<'a> {
    /// Returns the size that decides the types, if one does.
    pub(super) fn of(types: &'a JobTypes) -> Result<Option<Self>, Contradiction> {
        let JobTypes::Size { target, candidates } = types else { return Ok(None) };
        let target = *target;
        if target == SizeTarget::Bytes(0) || target == SizeTarget::BitsPerWeight(0.0) {
            return Err(Contradiction::NoSize { option: option(target) });
        }
        Ok(Some(Self { target, candidates }))
    }

    /// Chooses types by estimated costs.
    pub(super) fn allocate(
        self,
        progress: &dyn Progress,
        input: &Input<'_>,
        options: &QuantizeOptions,
        imatrix: Option<&Imatrix>,
    ) -> Result<Allocation, JobError> {
        let asked = AllocateOptions { quantize: options, types: self.candidates, keys: &[] };
        let survey = Survey::new(input, imatrix, &asked)?;
        let costs = survey.estimate(progress)?;
        let allocation = survey.choose(&costs, self.target)?;
        warn_if_small(progress, &allocation);
        Ok(allocation)
    }
}

/// Choice of types for a size, in figures.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Maximum size of the file in bytes.
    #[serde(rename = "bytes")]
    pub target_bytes: u64,
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
            file_bytes: allocation.file_bytes,
            bits_per_weight: allocation.bits_per_weight(),
            expected_kld: allocation.expected_kld,
            n_runs: allocation.n_runs,
            is_near: allocation.is_near(),
            mix: allocation.mix,
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
