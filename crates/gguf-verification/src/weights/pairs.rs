//! Pairs of a tensor of the file and the baseline's tensor that it was made from.

use std::collections::{HashMap, HashSet};

use crate::weights::tensor::split_name;
use crate::weights::tensor_reader::TensorReader;
use crate::{Check, Finding, Model, drafts};
use gguf_arch::diffusion::DiffusionRules;
use gguf_core::TensorMeta;
use gguf_core::simd::SimdLevel;
use gguf_core::text::{escape, plural};
use gguf_engine::{EngineError, fits};

const CHECK: Check = Check::Weights;
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
/// Suffixes of tensors with factors: `.scale` is multiplied into the weights, `.input_scale` is for runtimes that
/// quantize activations.
const SCALE: &str = ".scale";
const INPUT_SCALE: &str = ".input_scale";
const SHOWN: usize = 8;

/// Tensor of the file and the one that it was made from.
pub(crate) struct TensorPair<'a> {
    /// Name of the tensor in the file, or in the baseline for a head that the file takes from its embedding.
    pub(crate) name: String,
    pub(crate) file: TensorReader<'a>,
    pub(crate) baseline: TensorReader<'a>,
}

/// Pairs of tensors, and findings about tensors without a partner.
pub(crate) struct TensorPairs<'a> {
    pub(crate) pairs: Vec<TensorPair<'a>>,
    pub(crate) findings: Vec<Finding>,
}

/// Tensors of a model by name.
struct TensorIndex<'a> {
    model: &'a Model<'a>,
    index: HashMap<&'a str, usize>,
    /// Rules of an image or video model, whose names may have a prefix.
    rules: Option<DiffusionRules>,
}

impl<'a> TensorIndex<'a> {
    fn new(model: &'a Model<'a>) -> Self {
        let tensors = model.source.tensors();
        let rules = DiffusionRules::of_file(model.metadata, tensors).ok().flatten();
        let mut own = Self { model, index: HashMap::new(), rules };
        let names = tensors.iter().enumerate().map(|(at, meta)| (own.name(meta), at));
        own.index = names.collect();
        own
    }

    /// Name by which tensors are paired.
    fn name(&self, meta: &'a TensorMeta) -> &'a str {
        self.rules.as_ref().map_or(&meta.name, |rules| rules.own_name(&meta.name))
    }

    fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    fn metas(&self) -> &'a [TensorMeta] {
        self.model.source.tensors()
    }

    /// Returns true if a tensor holds factors of another one.
    fn is_companion(&self, name: &str) -> bool {
        let base = name.strip_suffix(INPUT_SCALE).or_else(|| name.strip_suffix(SCALE));
        base.is_some_and(|base| self.has(&format!("{base}.weight")))
    }

    /// Opens a tensor, with its factors unless the other model has them too.
    fn reader(
        &self,
        name: &str,
        other: &TensorIndex<'_>,
        level: SimdLevel,
    ) -> Result<Option<TensorReader<'a>>, EngineError> {
        let Some(&at) = self.index.get(name) else { return Ok(None) };
        let mut reader = TensorReader::new(self.model.source, at, level);
        let Some(scale) = name.strip_suffix(".weight").map(|base| format!("{base}{SCALE}")) else {
            return Ok(Some(reader));
        };
        if let Some(&at) = self.index.get(scale.as_str()).filter(|_| !other.has(&scale)) {
            let scale_tensor = TensorReader::new(self.model.source, at, level);
            let mut factors = Vec::new();
            scale_tensor.floats(0, scale_tensor.n_rows(), &mut Vec::new(), &mut factors)?;
            reader.factors = factors;
        }
        Ok(Some(reader))
    }
}

impl<'a> TensorPairs<'a> {
    /// Pairs the tensors of both models. If one model uses its embedding as its head, the embedding is paired with the
    /// other's head.
    pub(crate) fn of(
        file: &'a Model<'a>,
        baseline: &'a Model<'a>,
        level: SimdLevel,
    ) -> Result<Self, EngineError> {
        let (own, other) = (TensorIndex::new(file), TensorIndex::new(baseline));
        let mut found = Self { pairs: Vec::new(), findings: Vec::new() };
        let (mut extra, mut missing) = (Vec::new(), Vec::new());
        for meta in own.metas() {
            let name = own.name(meta);
            let partner = match name {
                OUTPUT if !other.has(OUTPUT) => EMBEDDING,
                _ => name,
            };
            match (own.reader(name, &other, level)?, other.reader(partner, &own, level)?) {
                (Some(file), Some(baseline)) => found.pair(name, file, baseline),
                _ if own.is_companion(name) => {}
                _ => extra.push(meta),
            }
        }
        for meta in other.metas().iter().filter(|meta| !own.has(other.name(meta))) {
            let name = other.name(meta);
            let partner = if name == OUTPUT { own.reader(EMBEDDING, &other, level)? } else { None };
            match (partner, other.reader(name, &own, level)?) {
                (Some(file), Some(baseline)) => found.pair(name, file, baseline),
                _ if other.is_companion(name) => {}
                _ => missing.push(meta),
            }
        }
        let unused = |model: &Model<'_>, meta: &&TensorMeta| {
            let patterns = model.features.map(|features| features.unused.as_slice()).unwrap_or_default();
            let stripped = meta.name.strip_suffix(".weight").unwrap_or(&meta.name);
            let (_, local) = split_name(stripped);
            patterns.iter().any(|pattern| fits(pattern, local) || fits(pattern, &meta.name))
        };
        extra.retain(|meta| !unused(file, meta));
        missing.retain(|meta| !unused(baseline, meta));
        if drafts::are_alone(file.metadata, own.metas()) {
            missing.retain(|meta| !drafts::is_of_model(file.metadata, meta));
        }
        found.other_layout(&mut extra, &mut missing);
        found.left("the baseline has no such tensor", &extra);
        found.left("missing; the baseline has it", &missing);
        Ok(found)
    }

    fn pair(&mut self, name: &str, file: TensorReader<'a>, baseline: TensorReader<'a>) {
        let shapes = (&file.meta().shape, &baseline.meta().shape);
        let sizes = shapes.0.n_cols() == shapes.1.n_cols() && shapes.0.n_rows() == shapes.1.n_rows();
        if sizes {
            self.pairs.push(TensorPair { name: name.to_owned(), file, baseline });
            return;
        }
        let mut reversed = shapes.1.dims().to_vec();
        reversed.reverse();
        let transposed = if shapes.0.dims() == reversed { ": transposed" } else { "" };
        let message = format!("shape {}, the baseline's is {}{transposed}", shapes.0, shapes.1);
        self.findings.push(Finding::error(CHECK, message).of(name));
    }

    /// Removes tensors that one model has in parts and the other as a whole, such as the projections of an attention or
    /// the experts of a layer. They hold the same number of values under other names.
    fn other_layout(&mut self, extra: &mut Vec<&TensorMeta>, missing: &mut Vec<&TensorMeta>) {
        let elems = |metas: &[&TensorMeta]| {
            let mut sums: HashMap<(Option<usize>, &'static str), u64> = HashMap::new();
            for meta in metas {
                let (layer, role) = split_name(&meta.name);
                let part = if role.contains("attn") { "attn" } else { "ffn" };
                let sum = sums.entry((layer, part)).or_default();
                *sum = sum.saturating_add(meta.shape.n_elems());
            }
            sums
        };
        let (own, other) = (elems(extra), elems(missing));
        let alike: HashSet<_> =
            own.into_iter().filter(|(key, n)| other.get(key) == Some(n)).map(|(key, _)| key).collect();
        let is_alike = |meta: &&TensorMeta| {
            let (layer, role) = split_name(&meta.name);
            alike.contains(&(layer, if role.contains("attn") { "attn" } else { "ffn" }))
        };
        let names: Vec<String> = extra.iter().copied().filter(|meta| is_alike(meta)).map(quoted).collect();
        if names.is_empty() {
            return;
        }
        let message = format!(
            "{} that the baseline has under other names, not compared: {}",
            plural(names.len() as u64, "tensor"),
            shown(&names)
        );
        self.findings.push(Finding::unchecked(CHECK, message));
        extra.retain(|meta| !is_alike(meta));
        missing.retain(|meta| !is_alike(meta));
    }

    fn left(&mut self, what: &str, metas: &[&TensorMeta]) {
        if let [meta] = metas {
            self.findings.push(Finding::error(CHECK, what).of(&meta.name));
        } else if !metas.is_empty() {
            let names: Vec<String> = metas.iter().copied().map(quoted).collect();
            let message = format!("{}: {what}: {}", plural(names.len() as u64, "tensor"), shown(&names));
            self.findings.push(Finding::error(CHECK, message));
        }
    }
}

fn quoted(meta: &TensorMeta) -> String {
    format!("`{}`", escape(&meta.name))
}

fn shown(names: &[String]) -> String {
    let more = if names.len() > SHOWN { ", …" } else { "" };
    names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ") + more
}
