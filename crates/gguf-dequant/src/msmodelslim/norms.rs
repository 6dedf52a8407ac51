//! Norms that smoothing has changed: selection of one of their two forms, and of the layers that absorb their bias.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::NormKind;
use super::bias::{Fold, WeightRows, are_equal};
use super::error::MsModelSlimError;
use super::grid::float;
use super::labelled::Labelled;
use super::linear::Linear;

/// Result for the norms that smoothing may have changed.
#[derive(Debug, Default)]
pub(super) struct Norms {
    /// Tensors of these norms, including those in `kept`.
    pub(super) seen: BTreeSet<usize>,
    /// Output names with the tensors that they refer to.
    pub(super) kept: Vec<(String, usize)>,
    /// Layers that absorb a bias, by the name of their weight.
    pub(super) folds: Vec<(String, Fold)>,
}

/// Names of modules of a block, and of the layers in them.
type BlockLayers = (&'static [&'static str], &'static [&'static str]);

/// Layers after the norm of the attention.
const ATTENTION: BlockLayers = (
    &["self_attn", "attention", "self_attention"],
    &[
        "q_proj",
        "k_proj",
        "v_proj",
        "W_pack",
        "query_key_value",
        "qkv_proj",
        "q_a_proj",
        "kv_a_proj_with_mqa",
    ],
);
const FEED_FORWARD: BlockLayers = (&["mlp"], &["gate_proj", "up_proj", "gate_up_proj", "dense_h_to_4h"]);

/// Returns a text that is the same for layers that have a bias together: those of all blocks, and those behind one norm.
pub(super) fn layers_alike(layer: &str) -> String {
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let shared = |part| {
        let names = [ATTENTION.1, FEED_FORWARD.1].into_iter().find(|names| names.contains(&part));
        names.and_then(<[_]>::first).map_or(part, |first| first)
    };
    let parts: Vec<&str> = layer.split('.').filter(|part| !is_number(part)).map(shared).collect();
    parts.join(".")
}

/// Quantized weights by their name in the float model.
pub(super) type Quantized<'a> = HashMap<&'a str, &'a Arc<Linear>>;

/// Decides which tensors of each norm are kept and which layers absorb its bias.
///
/// # Errors
/// No single norm serves all layers after it, or a bias cannot be absorbed.
pub(super) fn sort_out(
    tensors: &Labelled<'_>,
    quantized: &Quantized<'_>,
    kind: NormKind,
) -> Result<Norms, MsModelSlimError> {
    let mut norms = Norms::default();
    let expert_blocks = expert_blocks(tensors);
    for name in prefixes(tensors) {
        let find = |ending: &str| tensors.find(&format!("{name}.{ending}"));
        let (own, own_bias) = (find("weight"), find("bias"));
        let (module, module_bias) = (find("module.weight"), find("module.bias"));
        let layers = layers(tensors, quantized, &name);
        let (weight, bias) = match (module, own) {
            (None, Some(own)) if module_bias.is_none() => (own, own_bias),
            (Some(module), None) => (module, module_bias.or(own_bias)),
            (Some(module), Some(own)) if are_equal(tensors, module, own)? => {
                (module, module_bias.or(own_bias))
            }
            (Some(module), Some(own)) => {
                match (
                    layers.iter().any(LayerAfterNorm::is_quantized),
                    layers.iter().all(LayerAfterNorm::is_quantized),
                ) {
                    (true, true) => (module, module_bias),
                    (false, false) => (own, own_bias),
                    _ => return Err(MsModelSlimError::MixedNorm { norm: name }),
                }
            }
            _ => {
                let why = "a bias without a weight";
                return Err(MsModelSlimError::NormBias { norm: name, why });
            }
        };
        norms.seen.extend([own, own_bias, module, module_bias].into_iter().flatten());
        norms.kept.push((format!("{name}.weight"), weight));
        let Some(bias) = bias else { continue };
        if kind == NormKind::Biased {
            norms.kept.push((format!("{name}.bias"), bias));
            continue;
        }
        let values: Arc<[f32]> = tensors.floats(bias)?.into();
        if values.iter().all(|&value| value == 0.0) {
            continue;
        }
        if behind(tensors, &name)
            .is_some_and(|(block, to)| to == FEED_FORWARD && expert_blocks.contains(block))
        {
            let why = "its bias is not zero, and experts have no bias that could take it over";
            return Err(MsModelSlimError::NormBias { norm: name, why });
        }
        if layers.is_empty() {
            let why = "its bias is not zero, and no layers are known that could take it over";
            return Err(MsModelSlimError::NormBias { norm: name, why });
        }
        for layer in layers {
            if layer.n_cols != values.len() as u64 {
                let why = "its bias is not as long as the rows of the layers behind it";
                return Err(MsModelSlimError::NormBias { norm: name, why });
            }
            if let WeightRows::Plain(at) = layer.rows {
                float(tensors.meta(at))?;
            }
            let fold = Fold { norm_bias: Arc::clone(&values), weight: layer.rows };
            norms.folds.push((layer.name, fold));
        }
    }
    Ok(norms)
}

/// Returns the names of norms with a bias, or with a separate form for quantized layers, in the order of the
/// checkpoint.
fn prefixes(tensors: &Labelled<'_>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    for weight in tensors.weights() {
        let endings = [".module.weight", ".module.bias", ".bias"];
        let prefix = endings.iter().find_map(|ending| weight.name.strip_suffix(ending));
        let is_norm = |prefix: &&str| prefix.rsplit('.').next().is_some_and(|last| last.contains("norm"));
        if let Some(prefix) = prefix.filter(is_norm)
            && known.insert(prefix)
        {
            found.push(prefix.to_owned());
        }
    }
    found
}

/// A layer that follows a norm.
struct LayerAfterNorm {
    /// Name of the layer's weight.
    name: String,
    rows: WeightRows,
    n_cols: u64,
}

impl LayerAfterNorm {
    fn is_quantized(&self) -> bool {
        matches!(self.rows, WeightRows::Linear(_))
    }
}

/// Returns the block that contains a norm, and the layers that follow the norm.
fn behind<'n>(tensors: &Labelled<'_>, norm: &'n str) -> Option<(&'n str, BlockLayers)> {
    let (block, last) = norm.rsplit_once('.')?;
    let sandwiched = tensors.find(&format!("{block}.pre_feedforward_layernorm.weight")).is_some();
    match last {
        "input_layernorm" => Some((block, ATTENTION)),
        // If the feed-forward part has its own norm before it, this one follows the attention.
        "post_attention_layernorm" if !sandwiched => Some((block, FEED_FORWARD)),
        "pre_feedforward_layernorm" => Some((block, FEED_FORWARD)),
        _ => None,
    }
}

fn layers(tensors: &Labelled<'_>, quantized: &Quantized<'_>, norm: &str) -> Vec<LayerAfterNorm> {
    let Some((block, (parts, names))) = behind(tensors, norm) else { return Vec::new() };
    let mut found = Vec::new();
    for part in parts {
        for layer in names {
            let name = format!("{block}.{part}.{layer}.weight");
            let found_rows = match quantized.get(name.as_str()) {
                Some(&linear) => Some((WeightRows::Linear(Arc::clone(linear)), linear.n_cols())),
                None => {
                    tensors.find(&name).map(|at| (WeightRows::Plain(at), tensors.meta(at).shape.n_cols()))
                }
            };
            found.extend(found_rows.map(|(rows, n_cols)| LayerAfterNorm { name, rows, n_cols }));
        }
    }
    found
}

/// Returns the blocks whose feed-forward part consists of experts.
fn expert_blocks<'a>(tensors: &Labelled<'a>) -> HashSet<&'a str> {
    let block = |name: &'a str| {
        let parts = [".mlp.experts.", ".block_sparse_moe."];
        parts.iter().find_map(|part| name.split_once(part)).map(|(block, _)| block)
    };
    tensors.weights().iter().filter_map(|weight| block(&weight.name)).collect()
}
