//! Merge of an adapter into the weights of its base, at the level of the checkpoint: cards see the sums.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::lora::AdapterError;
use crate::lora::config::AdapterConfig;
use crate::lora::parts::{AdapterParts, MatrixPair, ProductForm, WholeTensor};
use crate::lora::{adapter_vocabulary, tokenizer};
use crate::{ConvertError, ConvertOptions, ModelSource};
use gguf_checkpoint::AdapterDir;
use gguf_core::{WeightMeta, WeightSource};
use gguf_dequant::{LoraPair, Replaced, ReplacedRows, with_adapter};

impl ModelSource {
    /// Merges a PEFT adapter into the weights of this model as they are read.
    ///
    /// A pair changes a weight to W + scale · B · A; whole tensors of the adapter replace the model's.
    ///
    /// # Errors
    /// An adapter that cannot be read or merged, or that belongs to another model.
    pub fn merged(mut self, path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let Some(base) = self.weights.take() else { return Ok(self) };
        let adapter = AdapterDir::open(path, &options.limits)?;
        let config = AdapterConfig::of(&adapter)?;
        let parts = AdapterParts::of(adapter.weights(), |_| true)?;
        parts.check(&config, &adapter)?;
        if parts.is_empty() {
            return Err(AdapterError::Empty { path: path.to_owned() }.into());
        }
        let names = WeightNames::of(base.weights());
        let found = parts.pairs.iter().map(|pair| names.find(&pair.name).map(|at| (pair, at)));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let transposes_layers = transposes_layers(&config, &found, base.weights());
        let mut pairs = Vec::with_capacity(found.len());
        for (pair, at) in found {
            let meta = &base.weights()[at];
            pairs.push(LoraPair {
                base: at,
                a: pair.a,
                b: pair.b,
                scale: (config.effective_alpha(pair.module(), pair.rank) / pair.rank as f64) as f32,
                is_transposed: is_transposed(pair, meta, transposes_layers),
            });
        }
        let tensor = |whole: &WholeTensor| {
            let base = names.find(&whole.name)?;
            Ok::<_, AdapterError>(Replaced { base, by: whole.index, resizes: false })
        };
        let mut replaced = parts.whole.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        // If tokens were added, the base tensors used in training differ from the base model's.
        let bases = parts.bases.iter().filter_map(|whole| tensor(whole).ok()).collect::<Vec<_>>();
        let shape = |row: &Replaced| (&base.weights()[row.base].shape, &adapter.weights()[row.by].shape);
        replaced.extend(bases.into_iter().filter(|row| {
            let (own, by) = shape(row);
            own != by && own.dims().get(1..) == by.dims().get(1..)
        }));
        let mut rows = Vec::with_capacity(parts.tokens.len());
        for tokens in &parts.tokens {
            let found = config.token_rows(tokens.name.trim_end_matches(".weight"));
            let found = found.ok_or_else(|| AdapterError::NoTokens {
                path: adapter.config_path(),
                tensor: adapter.weights()[tokens.index].name.clone(),
            })?;
            rows.push(ReplacedRows {
                base: names.find(&tokens.name)?,
                by: tokens.index,
                rows: found.to_vec(),
            });
        }
        let is_tied = self.dir.config().get("tie_word_embeddings") == Some(&Json::Bool(true));
        let resized = adapter_vocabulary::resize(&mut replaced, base.weights(), adapter.weights(), is_tied)?;
        if let Some(resized) = resized {
            self.dir = resized.configured(self.dir);
            self.warnings.push(resized.to_string());
        }

        self.warnings.extend_from_slice(adapter.warnings());
        self.warnings.extend(parts.other_ranks(&config));
        if let Some(own) = tokenizer::of_adapter(&self.dir, &adapter)? {
            self.paths.extend(own.paths());
            self.warnings.push(own.warning);
            self.dir = self.dir.with_others(own.files);
        }
        self.warn_of_shared_embeddings(&parts, base.weights());
        self.paths.extend(adapter.paths());
        if let Some(quantization) = &mut self.quantization {
            // A sum is not one of the checkpoint's codes.
            let changed = pairs.iter().map(|pair| pair.base).chain(replaced.iter().map(|row| row.base));
            let changed = changed.chain(rows.iter().map(|row| row.base));
            for at in changed {
                quantization.encodings.remove(&base.weights()[at].name);
            }
        }
        // If all quantized weights were changed, the result is plain floats.
        self.quantization =
            self.quantization.take().filter(|quantization| !quantization.encodings.is_empty());
        let adapter: Arc<dyn WeightSource + Send> = Arc::new(adapter);
        self.weights = Some(with_adapter(base, &adapter, &pairs, &replaced, &rows, options.level)?);
        Ok(self)
    }

    /// Warns if a change of the embeddings also changes the output.
    fn warn_of_shared_embeddings(&mut self, parts: &AdapterParts, weights: &[WeightMeta]) {
        let has_output = weights.iter().any(|meta| meta.name.ends_with("lm_head.weight"));
        let is_shared = self.dir.config().get("tie_word_embeddings") == Some(&Json::Bool(true));
        let is_changed = parts.pairs.iter().any(|pair| pair.form == ProductForm::Embedding);
        if is_changed && (is_shared || !has_output) {
            self.warnings.push(
                "the model's output is its embeddings: with the embeddings the adapter changes the output as well"
                    .to_owned(),
            );
        }
    }
}

/// Returns true if the model's square linear layers are stored transposed: if any non-square layer is, or else by
/// `fan_in_fan_out`.
fn transposes_layers(config: &AdapterConfig, found: &[(&MatrixPair, usize)], weights: &[WeightMeta]) -> bool {
    let shown = found.iter().filter(|(pair, _)| pair.form == ProductForm::Linear).find_map(|(pair, at)| {
        let (dims, own) = (weights[*at].shape.dims(), pair.meta.shape.dims());
        let is_open = own.iter().rev().eq(own.iter());
        (!is_open && own.iter().rev().eq(dims.iter())).then_some(true)
    });
    shown.unwrap_or(config.fan_in_fan_out)
}

fn is_transposed(pair: &MatrixPair, meta: &WeightMeta, transposes_layers: bool) -> bool {
    let (dims, own) = (meta.shape.dims(), pair.meta.shape.dims());
    match pair.form {
        ProductForm::Embedding => true,
        ProductForm::Linear if own.iter().rev().eq(own.iter()) => transposes_layers,
        ProductForm::Linear => dims != own && own.iter().rev().eq(dims.iter()),
    }
}

/// Names of a model's weights. A checkpoint may omit the name of the model's inner part, or have it in another place.
struct WeightNames<'a> {
    weights: &'a [WeightMeta],
    /// Indices of weights by the part that all spellings of a name have in common.
    by_core: HashMap<String, Vec<usize>>,
}

impl<'a> WeightNames<'a> {
    fn of(weights: &'a [WeightMeta]) -> Self {
        let mut by_core: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, meta) in weights.iter().enumerate() {
            by_core.entry(core_of(&meta.name)).or_default().push(at);
        }
        Self { weights, by_core }
    }

    fn find(&self, name: &str) -> Result<usize, AdapterError> {
        let alike = self.by_core.get(&core_of(name)).map(Vec::as_slice).unwrap_or_default();
        if let Some(exact) = alike.iter().find(|at| self.weights[**at].name == name) {
            return Ok(*exact);
        }
        match *alike {
            [] => Err(AdapterError::NotInBase { tensor: name.to_owned() }),
            [one] => Ok(one),
            [first, second, ..] => Err(AdapterError::Ambiguous {
                tensor: name.to_owned(),
                first: self.weights[first].name.clone(),
                second: self.weights[second].name.clone(),
            }),
        }
    }
}

/// Removes the names of the modules that contain a language model.
fn core_of(name: &str) -> String {
    let name = name.replace("language_model.", "").replace(".base_layer.", ".");
    let mut rest = name.as_str();
    while let Some(inner) = ["model.", "transformer."].iter().find_map(|head| rest.strip_prefix(head)) {
        rest = inner;
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    fn metas(names: &[&str]) -> Vec<WeightMeta> {
        let shape = Shape::new(vec![1]).unwrap();
        let meta =
            |name: &&str| WeightMeta { name: (*name).to_owned(), shape: shape.clone(), ty: ElementType::F32 };
        names.iter().map(meta).collect()
    }

    #[test]
    fn names_are_found_under_other_heads() {
        let weights = metas(&[
            "h.0.attn.c_attn.weight",
            "language_model.model.layers.0.q.weight",
            "model.layers.1.q.weight",
            "vision.model.layers.0.q.weight",
            "model.wte.weight",
            "transformer.wte.weight",
        ]);
        let names = WeightNames::of(&weights);
        for (name, want) in [
            ("transformer.h.0.attn.c_attn.weight", 0),
            ("model.language_model.layers.0.q.weight", 1),
            ("model.layers.1.q.weight", 2),
            ("transformer.wte.weight", 5),
        ] {
            assert_eq!(names.find(name).unwrap(), want, "{name}");
        }
        assert_eq!(
            names.find("lm_head.weight").unwrap_err().to_string(),
            "the base model has no tensor `lm_head.weight`, which the adapter changes"
        );
        assert_eq!(
            names.find("wte.weight").unwrap_err().to_string(),
            "tensors `model.wte.weight` and `transformer.wte.weight` of the base model may both be what the adapter calls \
             `wte.weight`"
        );
    }
}
