//! What a conversion knows of the way its weights are stored, and what each kind of them becomes.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::convert::codes::{self, Codes};
use crate::convert::{Conversion, ConvertError, Quantization};
use crate::core::{GgmlType, Packing, SourceError, TensorMeta, WeightMeta, WeightSource};
use crate::transform::dequant::{StoredClass, stored_classes, tensor_class};

/// What `--type native` would write, by the scales of one weight of each kind.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeEstimate {
    /// The tensors.
    pub tensors: Vec<TensorMeta>,
    /// Which of them keep their codes, in order.
    pub is_kept: Vec<bool>,
    /// How many quantized weights there are.
    pub n_quantized: usize,
    /// The scales of how many of them were read.
    pub n_read: usize,
}

impl NativeEstimate {
    /// Block types that keep codes, each once, with the number of tensors.
    #[must_use]
    pub fn kept_types(&self) -> Vec<(GgmlType, usize)> {
        let mut types: Vec<(GgmlType, usize)> = Vec::new();
        for tensor in self.tensors.iter().zip(&self.is_kept).filter(|row| *row.1).map(|row| row.0) {
            match types.iter_mut().find(|row| row.0 == tensor.ty) {
                Some((_, n)) => *n += 1,
                None => types.push((tensor.ty, 1)),
            }
        }
        types
    }
}

impl Quantization {
    /// The weights that are stored alike. `weights` are those of the model.
    #[must_use]
    pub fn classes(&self, weights: &[WeightMeta]) -> Vec<StoredClass<()>> {
        stored_classes(weights, &self.encodings, |_| ())
    }

    /// Endings of the tensors that were left out, each once: `input_scale`, `k_scale`.
    #[must_use]
    pub fn left_out_endings(&self) -> Vec<&str> {
        let mut endings: Vec<&str> = Vec::new();
        for name in &self.left_out {
            let ending = name.rsplit('.').next().unwrap_or(name);
            if !endings.contains(&ending) {
                endings.push(ending);
            }
        }
        endings
    }
}

impl Conversion {
    /// How the checkpoint stores its weights, if it is quantized.
    #[must_use]
    pub fn quantization(&self) -> Option<&Quantization> {
        self.source.quantization.as_ref()
    }

    /// The weights that are stored alike and become the same. `becomes` gets the tensors that a weight is part of;
    /// none, if the card leaves it out.
    pub fn stored<T: PartialEq>(&self, becomes: impl Fn(&[usize]) -> T) -> Vec<StoredClass<T>> {
        let Some(quantization) = self.quantization() else { return Vec::new() };
        let weights = self.source.metas();
        let mut outputs: Vec<Vec<usize>> = vec![Vec::new(); weights.len()];
        for (output, recipe) in self.recipes.iter().enumerate() {
            for weight in recipe.weights() {
                outputs[weight].push(output);
            }
        }
        stored_classes(weights, &quantization.encodings, |weight| becomes(&outputs[weight]))
    }

    /// What `--type native` would write. Of weights that are stored alike the scales of one are read, all others are
    /// taken to be like it; `None` for a checkpoint without quantized weights.
    ///
    /// # Errors
    /// The source failed.
    pub fn native_estimate(&self) -> Result<Option<NativeEstimate>, ConvertError> {
        let (Some(quantization), Some(source)) = (self.quantization(), self.source.weights.as_deref()) else {
            return Ok(None);
        };
        if quantization.encodings.is_empty() {
            return Ok(None);
        }
        let sampled = Sampled::new(source, quantization);
        let native = Codes::Native { allow_rounding: false };
        let chosen = codes::choose(native, &self.mapping, &self.recipes, &sampled)?;
        let is_kept = chosen.iter().map(|(_, packing)| packing.is_some()).collect();
        let retyped = self.mapping.outputs.iter().zip(chosen).map(|(output, (ty, _))| TensorMeta {
            name: output.name.clone(),
            shape: output.shape.clone(),
            ty,
        });
        let tensors = retyped.collect();
        let (n_quantized, n_read) = (quantization.encodings.len(), sampled.n_read());
        Ok(Some(NativeEstimate { tensors, is_kept, n_quantized, n_read }))
    }
}

/// A source whose weights have the packings of the first that is stored like them.
struct Sampled<'a> {
    source: &'a dyn WeightSource,
    /// By weight: the one that stands for it; `None` for floats.
    first: Vec<Option<usize>>,
    found: Vec<OnceLock<Vec<Packing>>>,
}

impl<'a> Sampled<'a> {
    fn new(source: &'a dyn WeightSource, quantization: &Quantization) -> Self {
        let mut by_kind = HashMap::new();
        let weights = source.weights();
        let first = weights.iter().enumerate().map(|(index, weight)| {
            let encoding = quantization.encodings.get(&weight.name)?;
            let kind = (tensor_class(&weight.name), encoding.form.as_str(), weight.shape.dims());
            Some(*by_kind.entry(kind).or_insert(index))
        });
        Self { source, first: first.collect(), found: weights.iter().map(|_| OnceLock::new()).collect() }
    }

    fn n_read(&self) -> usize {
        self.found.iter().filter(|found| found.get().is_some()).count()
    }
}

impl WeightSource for Sampled<'_> {
    fn weights(&self) -> &[WeightMeta] {
        self.source.weights()
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.source.read_elems(weight, first, out)
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        let Some(first) = self.first[weight] else { return self.source.packings(weight) };
        if let Some(found) = self.found[first].get() {
            return Ok(found.clone());
        }
        let found = self.source.packings(first)?;
        Ok(self.found[first].get_or_init(|| found).clone())
    }
}
