//! Facts by which a logit file knows the model that it is of. All quantizations of a model have them in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::imatrix::Fingerprint;
use crate::weights::TensorReader;
use crate::{Check, Finding, Model, VerifyError};
use gguf_core::simd::SimdLevel;
use gguf_core::text::escape;
use gguf_core::{GgmlType, TensorMeta};
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::Value;

/// Largest number of signs of a tensor.
const MAX_SIGNS: usize = 256;
/// Smallest number of signs that are compared: those of two other models agree in half of them, within 2 %.
const MIN_SIGNS: usize = 512;
/// Smallest share of equal signs. A quantization to one bit keeps four of five.
const MIN_EQUAL: f64 = 0.6;

/// Facts of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelMark {
    /// Name of the model, for messages.
    name: String,
    architecture: String,
    layers: usize,
    width: usize,
    /// Digest of the norms of all layers, which are never quantized; `None` if a file has rounded them.
    norms: Option<String>,
    /// By tensor: signs of the weights of a row, `+`, `-` or `0`.
    signs: BTreeMap<String, String>,
}

fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

impl ModelMark {
    /// Reads the facts of a model.
    pub(crate) fn of(model: &Model<'_>, plan: &GraphPlan, level: SimdLevel) -> Result<Self, VerifyError> {
        let name = model.metadata.get("general.name").and_then(Value::as_str).unwrap_or_default();
        let n_layers = plan.layers.len();
        let mut mark = Self {
            name: name.to_owned(),
            architecture: plan.arch.clone(),
            layers: n_layers,
            width: plan.n_embd,
            norms: None,
            signs: BTreeMap::new(),
        };
        let (mut digest, mut is_exact) = (Fingerprint::default(), true);
        for (at, meta) in by_name(model.source.tensors()) {
            let reader = TensorReader::new(model.source, at, level);
            let layer = layer(&meta.name);
            if meta.shape.rank() > 1 {
                let is_at_end = layer.is_none_or(|layer| layer == 0 || layer + 1 == n_layers);
                if is_at_end && reader.n_rows() > 0 {
                    mark.signs.insert(meta.name.clone(), signs(&reader)?);
                }
            } else if meta.name.ends_with("norm.weight") && layer.is_none_or(|layer| layer < n_layers) {
                is_exact &= meta.ty == GgmlType::F32;
                digest.bytes(meta.name.as_bytes());
                digest.bytes(reader.bytes(0, 1, &mut Vec::new())?);
            }
        }
        mark.norms = is_exact.then(|| digest.hex());
        Ok(mark)
    }

    /// Compares the model of a file with this one, the logit file's.
    pub(crate) fn compare(&self, file: &Self) -> Option<Finding> {
        let of = |mark: &Self| format!("{}, {} layers, width {}", mark.architecture, mark.layers, mark.width);
        let (own, other) = (of(file), of(self));
        let reason = if own != other {
            format!("{}, this file {}", escape(&other), escape(&own))
        } else if self.are_other_weights(file) {
            "the weights of this file have nothing to do with it".to_owned()
        } else if self.norms.is_some() && file.norms.is_some() && self.norms != file.norms {
            "the norms of this file are other ones, perhaps those of another fine-tuning".to_owned()
        } else {
            return None;
        };
        let name = if self.name.is_empty() { String::new() } else { format!(" (`{}`)", escape(&self.name)) };
        let message = format!(
            "the logit file is of another model{name}: {reason}; write it again with `--save-baseline` of the right model"
        );
        Some(Finding::error(Check::Baseline, message))
    }

    /// Returns true if the signs of the weights agree by chance only.
    fn are_other_weights(&self, file: &Self) -> bool {
        let pairs = self.signs.iter().filter_map(|(name, own)| Some((own, file.signs.get(name)?)));
        let pairs = pairs.flat_map(|(own, other)| own.bytes().zip(other.bytes()));
        // Quantization makes small weights 0.
        let known: Vec<bool> = pairs
            .filter(|(own, other)| *own != b'0' && *other != b'0')
            .map(|(own, other)| own == other)
            .collect();
        let n_equal = known.iter().filter(|is_equal| **is_equal).count();
        known.len() >= MIN_SIGNS && (n_equal as f64) < MIN_EQUAL * known.len() as f64
    }
}

/// Tensors in the order of their names, each with its index.
fn by_name(tensors: &[TensorMeta]) -> Vec<(usize, &TensorMeta)> {
    let mut found: Vec<_> = tensors.iter().enumerate().collect();
    found.sort_by_key(|(_, meta)| meta.name.as_str());
    found
}

/// Signs of the first weights of a tensor's middle row.
fn signs(reader: &TensorReader<'_>) -> Result<String, EngineError> {
    let mut values = Vec::new();
    reader.floats(reader.n_rows() / 2, 1, &mut Vec::new(), &mut values)?;
    let sign = |value: &f32| match value.partial_cmp(&0.0) {
        Some(std::cmp::Ordering::Greater) => '+',
        Some(std::cmp::Ordering::Less) => '-',
        _ => '0',
    };
    Ok(values.iter().take(MAX_SIGNS).map(sign).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(norms: Option<&str>, signs: impl Iterator<Item = char>) -> ModelMark {
        ModelMark {
            name: "Zebra".to_owned(),
            architecture: "llama".to_owned(),
            layers: 2,
            width: 8,
            norms: norms.map(str::to_owned),
            signs: BTreeMap::from([("output.weight".to_owned(), signs.collect())]),
        }
    }

    #[test]
    fn quantizations_of_a_model_are_the_same_model() {
        let own = || "+-+--+-+".chars().cycle().take(4096);
        let known = mark(Some("a"), own());
        let message = |file: &ModelMark| known.compare(file).map(|finding| finding.message);
        // Every seventh weight has become 0, every fifth another sign; a file without exact norms.
        let rounded = own().enumerate().map(|(at, sign)| match (at % 7, at % 5) {
            (0, _) => '0',
            (_, 0) => '-',
            _ => sign,
        });
        assert_eq!(message(&mark(Some("a"), rounded.clone())), None);
        assert_eq!(message(&mark(None, rounded)), None);
        assert!(message(&mark(Some("b"), own())).unwrap().contains("(`Zebra`): the norms"));
        let other = "+--+".chars().cycle().take(4096);
        assert!(message(&mark(Some("a"), other)).unwrap().contains("nothing to do with it"));
        let deeper = ModelMark { layers: 3, ..known.clone() };
        assert!(message(&deeper).unwrap().contains("2 layers, width 8, this file llama, 3 layers"));
        // Too few to tell.
        let few = "-".chars().cycle().take(100);
        assert_eq!(message(&mark(Some("a"), few)), None);
    }
}
