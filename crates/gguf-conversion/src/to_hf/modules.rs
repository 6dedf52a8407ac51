//! Files of sentence-transformers for an embedding model: its pooling, and the dense layers after it.

use serde_json::json;

use crate::modules::{MODULES, WITH_DENSE};
use gguf_arch::{OutputSpec, Pooling};
use gguf_checkpoint::safetensors_writer::{SideFile, WriteCheckpointError, plan_shards};
use gguf_core::{WeightMeta, WeightSource};
use gguf_format::{Metadata, Value};
use gguf_views::decoded::Decoded;

use super::weights::HfWeights;
use super::{ToHfError, ToHfOptions};

/// Module with a dense layer, and the names of its files.
struct DenseModule {
    /// Name among the model's weights.
    weight: &'static str,
    folder: &'static str,
    config: &'static str,
    weights: &'static str,
    ty: &'static str,
}

/// Upper bound of a layer's size.
const MAX_LAYER_BYTES: u64 = 1 << 30;

const DENSE: &str = "sentence_transformers.models.Dense";

const DENSE_MODULES: [DenseModule; 2] = [
    DenseModule {
        weight: "dense_2.weight",
        folder: "2_Dense",
        config: "2_Dense/config.json",
        weights: "2_Dense/model.safetensors",
        ty: DENSE,
    },
    DenseModule {
        weight: "dense_3.weight",
        folder: "3_Dense",
        config: "3_Dense/config.json",
        weights: "3_Dense/model.safetensors",
        ty: DENSE,
    },
];

/// Layer that is applied to each token.
const OF_TOKENS: DenseModule = DenseModule {
    weight: "dense_2.weight",
    folder: "1_Dense",
    config: "1_Dense/config.json",
    weights: "1_Dense/model.safetensors",
    ty: "pylate.models.Dense.Dense",
};

/// Returns true for a weight that is stored in the file of a module.
pub(super) fn is_dense(output: &OutputSpec) -> bool {
    DENSE_MODULES.iter().any(|module| is_at(module, &output.name))
}

fn is_at(module: &DenseModule, name: &str) -> bool {
    name.strip_prefix("model.").unwrap_or(name) == module.weight
}

/// Returns `modules.json` and the files of its modules, whose layers are read from `source`; empty for a model without
/// pooling or dense layers.
pub(super) fn files(
    class: &str,
    metadata: &Metadata,
    source: Decoded<'_>,
    dense: &[OutputSpec],
    options: &ToHfOptions,
) -> Result<Vec<SideFile>, ToHfError> {
    let mut files = Vec::new();
    let mut modules = vec![("", "sentence_transformers.models.Transformer")];
    if let Some(config) = pooling(metadata) {
        modules.push(("1_Pooling", "sentence_transformers.models.Pooling"));
        files.push(SideFile { name: "1_Pooling/config.json", bytes: text(&config) });
    }
    if !dense.is_empty() {
        let weights = HfWeights::new(source, dense, options.level)?;
        let of_tokens = [OF_TOKENS];
        let dense_modules: &[DenseModule] =
            if WITH_DENSE.contains(&class) { &of_tokens } else { &DENSE_MODULES };
        for module in dense_modules {
            let Some(at) = weights.weights().iter().position(|weight| is_at(module, &weight.name)) else {
                continue;
            };
            modules.push((module.folder, module.ty));
            let dims = weights.weights()[at].shape.dims();
            files.push(SideFile {
                name: module.config,
                bytes: text(&json!({
                    "in_features": dims.get(1), "out_features": dims.first(), "bias": false,
                    "activation_function": "torch.nn.modules.linear.Identity",
                })),
            });
            files.push(SideFile { name: module.weights, bytes: layer(&weights, at)? });
        }
    }
    if modules.len() > 1 {
        let list = modules.iter().enumerate().map(
            |(idx, (path, ty))| json!({ "idx": idx, "name": idx.to_string(), "path": path, "type": ty }),
        );
        files.push(SideFile { name: MODULES, bytes: text(&list.collect()) });
    }
    Ok(files)
}

fn text(json: &serde_json::Value) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// Returns the configuration of the file's pooling, if sentence-transformers supports it.
fn pooling(metadata: &Metadata) -> Option<serde_json::Value> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str)?;
    let number = |key: &str| metadata.get(&format!("{arch}.{key}")).and_then(Value::as_u64);
    let found = number("pooling_type")?;
    let is = |pooling: Pooling| found == pooling as u64;
    if !is(Pooling::Mean) && !is(Pooling::Cls) && !is(Pooling::Last) {
        return None;
    }
    Some(json!({
        "word_embedding_dimension": number("embedding_length"),
        "pooling_mode_cls_token": is(Pooling::Cls),
        "pooling_mode_mean_tokens": is(Pooling::Mean),
        "pooling_mode_max_tokens": false,
        "pooling_mode_mean_sqrt_len_tokens": false,
        "pooling_mode_weightedmean_tokens": false,
        "pooling_mode_lasttoken": is(Pooling::Last),
        "include_prompt": true,
    }))
}

/// Returns the safetensors file of a module's layer.
fn layer(weights: &HfWeights<'_>, at: usize) -> Result<Vec<u8>, ToHfError> {
    let meta = WeightMeta { name: "linear.weight".to_owned(), ..weights.weights()[at].clone() };
    let overflow = || WriteCheckpointError::Overflow { tensor: meta.name.clone() };
    let shards = plan_shards(std::slice::from_ref(&meta), u64::MAX)?;
    let shard = shards.into_iter().next().ok_or_else(overflow)?;
    let n_bytes = usize::try_from(shard.n_bytes).map_err(|_| overflow())?;
    // The file is assembled in memory: such layers have a few megabytes.
    if shard.n_bytes > MAX_LAYER_BYTES {
        return Err(overflow().into());
    }
    let mut file = shard.header;
    let start = file.len();
    file.resize(n_bytes, 0);
    weights.read_elems(at, 0, &mut file[start..])?;
    Ok(file)
}
