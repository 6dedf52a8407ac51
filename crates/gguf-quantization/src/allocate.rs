//! Types for a target size: each tensor gets a type so that the file has at most that size and diverges least.
//!
//! [`Survey`] reads headers and lists the tensors to choose for. Costs of types come from a sample of the weights
//! ([`Survey::estimate`]), or from running the model (`gguf-calibration` fills in [`TensorCost::measured`]).
//! [`Survey::choose`] returns the choice: an [`Allocation`], whose options plan the run.
//!
//! | file | subject |
//! |---|---|
//! | `survey` | tensors and types to choose from |
//! | `choices` | choices by size, by expected divergence, and one step smaller |
//! | `rounding` | errors of a sample of a tensor's rows |
//! | `sensitivity` | cost of an error, by role and place of the tensor |
//! | `costs` | table of tensors and types |
//! | `greedy` | best choice from a table for a number of bytes |
//! | `rules` | types as rules for single tensors |

mod choices;
mod costs;
mod error;
mod greedy;
mod rounding;
mod rules;
mod sensitivity;
mod survey;

use serde::Serialize;

use crate::{FileType, QuantizeOptions, QuantizePlan};
use gguf_core::written::as_text;
use gguf_core::{GgmlType, TensorSource};
use gguf_format::{FilePlan, LayoutOptions};

pub use choices::{Choices, TypeSet};
pub use costs::TensorCost;
pub use error::AllocateError;
pub use greedy::TypeCandidate;
pub use rules::type_rules;
pub use survey::{AllocateOptions, DEFAULT_TYPES, OpenTensor, Survey};

/// Maximum size of the file, including header and padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeTarget {
    /// Number of bytes.
    Bytes(u64),
    /// Number of bits for each weight of the model.
    BitsPerWeight(f64),
}

impl SizeTarget {
    /// Converts the target to bytes for a file with `n_elems` weights.
    pub fn bytes(self, n_elems: u64) -> u64 {
        match self {
            Self::Bytes(n_bytes) => n_bytes,
            // The conversion saturates at both ends of the range.
            Self::BitsPerWeight(bits) => (bits * n_elems as f64 / 8.0) as u64,
        }
    }
}

/// Type chosen for one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenType {
    /// Name in the output.
    pub name: String,
    /// Index in the output.
    pub place: usize,
    /// Chosen type.
    pub ty: GgmlType,
    /// Expected increase of the mean KLD (nats).
    pub cost: f64,
}

/// Standard mix of types, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StandardMix {
    /// File type of the mix.
    #[serde(rename = "type", serialize_with = "as_text")]
    pub file_type: FileType,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Expected mean KLD (nats), by the same costs and with the same rounding as the chosen types.
    pub expected_kld: f64,
    /// Measured divergence of the mix with the importance matrix alone, on held-out tokens.
    #[serde(rename = "imatrix", skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredKld>,
}

/// Measured divergence from the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredKld {
    /// Mean KLD (nats).
    pub mean_kld: f64,
    /// Standard error of the mean.
    pub stderr: f64,
}

/// Types chosen for a target size.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Options that plan the run: the given ones, with a rule for each tensor and the file's declared type: that of the
    /// nearest standard mix, unless the tensors contradict it.
    pub options: QuantizeOptions,
    /// Chosen types, in the order of the output.
    pub types: Vec<ChosenType>,
    /// Maximum bytes of the file.
    pub target_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Number of weights of the model.
    pub n_elems: u64,
    /// Expected mean KLD (nats) of the file: the sum of the expected costs.
    pub expected_kld: f64,
    /// True if each tensor has its largest type, so that more bytes would have no effect.
    pub is_largest: bool,
    /// Number of model runs that measured the costs; 0 if they are estimates by role.
    pub n_runs: usize,
    /// Standard mix whose file is nearest in size. Mixes at most half a percent larger than the target are preferred.
    pub mix: Option<StandardMix>,
}

/// Relative tolerance of the size; a smaller file is reported as smaller than asked for.
const SIZE_TOLERANCE: f64 = 0.005;

impl Allocation {
    /// Replaces the size by that of the file that this plan gives, including its last keys.
    ///
    /// # Errors
    /// A plan of a file larger than the target, or of an invalid file.
    pub fn held_against(self, plan: &QuantizePlan<'_>) -> Result<Self, AllocateError> {
        let file = FilePlan::new(plan.metadata(), plan.tensors(), &LayoutOptions::default())?;
        let (target_bytes, file_bytes) = (self.target_bytes, file.file_bytes);
        if file_bytes > target_bytes {
            return Err(AllocateError::TooLarge { target_bytes, file_bytes });
        }
        Ok(Self { file_bytes, ..self })
    }

    /// Bits of the file per weight.
    pub fn bits_per_weight(&self) -> f64 {
        self.file_bytes as f64 * 8.0 / self.n_elems.max(1) as f64
    }

    /// Returns true if the file is at most half a percent smaller than the target.
    pub fn is_near(&self) -> bool {
        self.file_bytes as f64 >= self.target_bytes as f64 * (1.0 - SIZE_TOLERANCE)
    }
}
