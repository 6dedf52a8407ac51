//! Text encoders of image models as ComfyUI's quantizers store them: language models, which have a configuration.

use std::collections::HashMap;
use std::sync::Arc;

use super::{DESCRIBED, warnings};
use crate::ConvertError;
use gguf_checkpoint::Part;
use gguf_core::WeightSource;
use gguf_core::simd::SimdLevel;
use gguf_dequant::{ImageWeights, has_comfy_marks, layers_of_header};
use serde_json::Value as Json;

/// Returns the layers that the headers of a model's files describe.
pub(crate) fn described(parts: &[Part<'_>]) -> Result<HashMap<String, Json>, ConvertError> {
    let mut all = HashMap::new();
    for (_, text) in parts.iter().flat_map(|part| part.metadata).filter(|entry| entry.0 == DESCRIBED) {
        all.extend(layers_of_header(text, |name| Some(name.to_owned()))?);
    }
    Ok(all)
}

/// Returns weights with their factors, and adds warnings; other weights as they are.
pub(crate) fn decoded(
    stored: Box<dyn WeightSource + Send>,
    described: &HashMap<String, Json>,
    level: SimdLevel,
    said: &mut Vec<String>,
) -> Result<Box<dyn WeightSource + Send>, ConvertError> {
    if described.is_empty() && !has_comfy_marks(stored.weights()) {
        return Ok(stored);
    }
    let weights = ImageWeights::open(Arc::from(stored), level, described)?;
    said.extend(warnings::of_factors(&weights));
    said.extend(warnings::without_factors(&weights));
    Ok(Box::new(weights))
}
