//! Types for a size: which type each tensor gets so that the file has at most so many bytes and is expected to diverge least.
//!
//! [`Survey`] looks at headers and says what there is to choose. Costs of types come from a sample of the weights
//! ([`Survey::estimate`]), or from running the model (the room `calibrate` fills [`TensorCost::measured`] in).
//! [`Survey::choose`] makes the choice: an [`Allocation`], whose options plan the run.
//!
//! | file | subject |
//! |---|---|
//! | `survey` | what can be chosen, and the choice |
//! | `rounding` | errors of a sample of a tensor's rows |
//! | `sensitivity` | what an error costs, by role and place of the tensor |
//! | `costs` | the table of tensors and types |
//! | `greedy` | the best choice from a table for a number of bytes |
//! | `rules` | types as rules for single tensors |

mod costs;
mod error;
mod greedy;
mod rounding;
mod rules;
mod sensitivity;
mod survey;

use crate::core::{GgmlType, TensorSource};
use crate::gguf::{FilePlan, LayoutOptions};
use crate::quantize::{FileType, QuantizeOptions, QuantizePlan};

pub use costs::TensorCost;
pub use error::AllocateError;
pub use greedy::Candidate;
pub use rules::type_rules;
pub use survey::{AllocateOptions, DEFAULT_TYPES, OpenTensor, Survey};

/// How large the file may be, header and padding included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeTarget {
    /// So many bytes.
    Bytes(u64),
    /// So many bits for each weight of the model.
    BitsPerWeight(f64),
}

impl SizeTarget {
    /// The bytes of a file with so many weights.
    #[must_use]
    pub fn bytes(self, n_elems: u64) -> u64 {
        match self {
            Self::Bytes(n_bytes) => n_bytes,
            // Negative and too large numbers end at the ends of the range.
            Self::BitsPerWeight(bits) => (bits * n_elems as f64 / 8.0) as u64,
        }
    }
}

/// The type of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenType {
    /// Its name in the output.
    pub name: String,
    /// Its place in the output.
    pub place: usize,
    /// The type.
    pub ty: GgmlType,
    /// Expected increase of the mean KLD (nats) that it brings.
    pub cost: f64,
}

/// A standard mix, to compare with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandardMix {
    /// Its file type.
    pub file_type: FileType,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Its mean KLD (nats) as it is expected by the same costs, rounded as the chosen types are.
    pub expected_kld: f64,
    /// Mean KLD (nats) and its standard error of the mix by the importance matrix alone, where it was measured.
    pub measured: Option<(f64, f64)>,
}

/// Types chosen for a size.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Options that plan the run: those given, with a rule for each tensor and the file type of the nearest standard mix, which
    /// the file says that it has.
    pub options: QuantizeOptions,
    /// The types, in the order of the output.
    pub types: Vec<ChosenType>,
    /// The most bytes that the file may have.
    pub target_bytes: u64,
    /// Bytes that the file will have.
    pub file_bytes: u64,
    /// Weights of the model.
    pub n_elems: u64,
    /// Sum of the expected costs: the mean KLD (nats) that the file is expected to have.
    pub expected_kld: f64,
    /// Each tensor has its largest type: more bytes are of no use.
    pub is_largest: bool,
    /// Runs of the model that costs were measured with; 0 if they are estimates by role.
    pub n_runs: usize,
    /// The standard mix whose file is nearest in size: of those at most half a percent larger than asked for, if there are
    /// any.
    pub mix: Option<StandardMix>,
}

/// Share of the target below which a file is told to be smaller than was asked for.
const SIZE_TOLERANCE: f64 = 0.005;

impl Allocation {
    /// The same with the size of the file that a plan of these types gives, its last keys included.
    ///
    /// # Errors
    /// A plan of a larger file than was asked for; one that cannot be a file.
    pub fn held_against(self, plan: &QuantizePlan<'_>) -> Result<Self, AllocateError> {
        let file = FilePlan::new(plan.metadata(), plan.tensors(), &LayoutOptions::default())?;
        let (target_bytes, file_bytes) = (self.target_bytes, file.file_bytes);
        if file_bytes > target_bytes {
            return Err(AllocateError::TooLarge { target_bytes, file_bytes });
        }
        Ok(Self { file_bytes, ..self })
    }

    /// Bits of the file for each weight.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.file_bytes as f64 * 8.0 / self.n_elems.max(1) as f64
    }

    /// True if the file is at most half a percent smaller than asked for.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.file_bytes as f64 >= self.target_bytes as f64 * (1.0 - SIZE_TOLERANCE)
    }
}
