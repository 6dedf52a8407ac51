//! Plan and report of a ladder as plain data.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value as Json;

use crate::arch::diffusion::DiffusionRules;
use crate::core::written::as_paths;
use crate::gguf::Metadata;
use crate::job::ladder::LadderPartRecord;
use crate::job::ladder::record::FileOrigin;

/// Plan of a ladder.
#[derive(Clone, Debug, Serialize)]
pub struct LadderPlan {
    /// Files, in the order of the types that were asked for.
    pub files: Vec<LadderFilePlan>,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Size in bytes of the tensors that are quantized or copied: one that several files hold in the same type counts
    /// once.
    pub made_bytes: u64,
    /// Free bytes where the files go, if the system reports them.
    pub free_bytes: Option<u64>,
    /// Errors at which a run would stop.
    pub obstacles: Vec<String>,
}

/// Planned file of a ladder.
#[derive(Clone, Debug, Serialize)]
pub struct LadderFilePlan {
    /// Name of the types: `Q4_K_M`, `Q4_K_L`.
    #[serde(rename = "type")]
    pub name: String,
    /// Paths of the file or of its parts.
    #[serde(serialize_with = "as_paths")]
    pub paths: Vec<PathBuf>,
    /// Size of all parts in bytes.
    pub file_bytes: u64,
    /// Bits per weight over all tensors.
    pub bits_per_weight: f64,
    /// Number of tensors whose type was replaced because of their columns.
    #[serde(rename = "fallbacks")]
    pub n_fallbacks: usize,
    /// True if a run of its own writes the file, because the checkpoint's integers are kept, its own converter makes the
    /// type, or the rounding is calibrated.
    pub is_alone: bool,
    /// True if the rounding is calibrated.
    pub is_calibrated: bool,
    /// Limit of the measured divergence (nats) for which the types are chosen; sizes are upper bounds until then.
    #[serde(rename = "target_kld", skip_serializing_if = "Option::is_none")]
    pub most_kld: Option<f64>,
}

/// Report of a ladder.
#[derive(Clone, Debug, Serialize)]
pub struct LadderReport {
    /// Files, in the order of the types that were asked for.
    pub files: Vec<LadderFile>,
    /// Other files of the folder, which earlier runs have made of the same model.
    pub others: Vec<LadderFile>,
    /// Vision and audio towers in a file of their own, for llama.cpp's `--mmproj`; null if the model has none.
    pub projector: Option<LadderFile>,
    /// Draft heads in a file of their own, for speculative decoding; null if the model has none.
    pub draft_heads: Option<LadderFile>,
    /// Size of all quantizations in bytes.
    pub file_bytes: u64,
    /// Size in bytes of the tensors that were quantized or copied: one that several files hold in the same type counts
    /// once.
    pub made_bytes: u64,
    /// Number of weights of the model.
    #[serde(rename = "weights")]
    pub n_weights: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Digest of samples of the model that was read.
    #[serde(skip)]
    pub source: String,
    /// Record of the part, if only a part was written.
    #[serde(skip)]
    pub part: Option<LadderPartRecord>,
    /// Metadata of the model.
    #[serde(skip)]
    pub metadata: Metadata,
    /// Rules of an image or video model; `None` for a language model.
    #[serde(skip)]
    pub image: Option<DiffusionRules>,
    /// What the model is in place of a language model.
    #[serde(skip)]
    pub beside_text: Option<&'static str>,
}

/// Written file of a ladder.
#[derive(Clone, Debug, Serialize)]
pub struct LadderFile {
    /// File as it was planned.
    #[serde(flatten)]
    pub plan: LadderFilePlan,
    /// SHA-256 of each part, in lower-case hexadecimal.
    pub sha256: Vec<String>,
    /// True if an earlier run had written the file.
    pub was_there: bool,
    /// What the file was made of.
    #[serde(skip)]
    pub origin: FileOrigin,
    /// Figures that an earlier run has measured.
    #[serde(skip)]
    pub figures: Option<Json>,
    /// Digest of what they were measured with.
    #[serde(skip)]
    pub figures_id: Option<String>,
}

impl LadderReport {
    /// Returns all files of the folder: the quantizations, then those beside them.
    pub fn all(&self) -> impl Iterator<Item = &LadderFile> {
        self.quantizations().into_iter().chain(&self.projector).chain(&self.draft_heads)
    }

    /// Returns all quantizations of the folder: in the order of the types that were asked for or, with those of earlier
    /// runs, from large to small.
    pub fn quantizations(&self) -> Vec<&LadderFile> {
        let mut files: Vec<&LadderFile> = self.files.iter().chain(&self.others).collect();
        if !self.others.is_empty() {
            files.sort_by_key(|file| std::cmp::Reverse(file.plan.file_bytes));
        }
        files
    }
}
