//! Types of an image or video model: what a name of a type means where the types of a language model do not apply.

use crate::arch::OutType;
use crate::convert::{Codes, DiffusionConversion};
use crate::job::{Contradiction, Job, JobInput, JobTypes, Result};
use crate::quantize::FileType;

/// Returns the job with the types that an image or video model gets; `None` for other inputs, and for types that mean the
/// same.
///
/// # Errors
/// The model cannot be read; types or a calibration that such a model cannot have.
pub(super) fn settled(job: &Job) -> Result<Option<Job>> {
    let JobInput::Checkpoint(path) = &job.input else { return Ok(None) };
    let is_settled = match &job.types {
        JobTypes::Plain { file_type, codes: Codes::Card } => {
            matches!(file_type, None | Some(OutType::F32 | OutType::F16 | OutType::Bf16))
        }
        JobTypes::Mixture { keep: None, .. } | JobTypes::Like { .. } | JobTypes::Size { .. } => true,
        JobTypes::Plain { .. } | JobTypes::Mixture { .. } | JobTypes::Native { .. } => false,
    };
    if is_settled && job.calibration.is_none() {
        return Ok(None);
    }
    if DiffusionConversion::find(path, &job.convert)?.is_none() {
        return Ok(None);
    }
    if job.calibration.is_some() {
        return Err(Contradiction::CALIBRATED_IMAGES.into());
    }
    let types = match &job.types {
        JobTypes::Native { .. } => return Err(Contradiction::NativeImageModel.into()),
        JobTypes::Mixture { file_type, .. } => JobTypes::mixture(*file_type),
        JobTypes::Plain { file_type, .. } => {
            let quantized = file_type.filter(|ty| ty.ggml_type().is_quantized());
            match quantized.and_then(|ty| FileType::parse(ty.name())) {
                Some(file_type) => JobTypes::mixture(file_type),
                None => JobTypes::Plain { file_type: *file_type, codes: Codes::Card },
            }
        }
        types => types.clone(),
    };
    Ok(Some(Job { types, ..job.clone() }))
}
