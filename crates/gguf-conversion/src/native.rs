//! Storage of a checkpoint's weights, the tensors that they become, and the plan of `--type native` for them.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::{Codes, Conversion, ConvertError, ConvertOptions, Quantization};
use gguf_arch::OutType;
use gguf_core::{Packing, SourceError, WeightMeta, WeightSource};
use gguf_dequant::{StoredClass, stored_classes, tensor_class};

/// Plan of a conversion to `--type native`, based on the scales of one weight of each kind.
#[derive(Debug)]
pub struct NativePlan {
    /// Plan, without a vocabulary.
    pub conversion: Conversion,
    /// Number of quantized weights.
    pub n_quantized: usize,
    /// Number of weights whose scales were read.
    pub n_read: usize,
}

impl Conversion {
    /// Quantization of the checkpoint's weights, if any.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.source.quantization.as_ref()
    }

    /// Groups the weights that are stored alike and become the same, which is returned with them. `becomes` gets the
    /// output tensors that a weight is part of; none if the card drops it.
    pub fn stored<T: PartialEq>(&self, becomes: impl Fn(&[usize]) -> T) -> Vec<(StoredClass, T)> {
        let Some(quantization) = self.quantization() else { return Vec::new() };
        let weights = self.source.metas();
        let mut outputs: Vec<Vec<usize>> = vec![Vec::new(); weights.len()];
        for (output, part) in self.parts.iter().enumerate() {
            for weight in part.recipe.weights() {
                outputs[weight].push(output);
            }
        }
        stored_classes(weights, &quantization.encodings, |weight| becomes(&outputs[weight]))
    }

    /// Plans the same conversion to `--type native`, with `--allow-rounding` if it is set; `None` for a checkpoint without
    /// quantized weights.
    ///
    /// Of weights that are stored alike, only the scales of one are read; the others are assumed to be like it.
    pub fn native(&self, allow_rounding: bool) -> Result<Option<NativePlan>, ConvertError> {
        let (Some(quantization), Some(weights)) = (self.quantization(), &self.source.weights) else {
            return Ok(None);
        };
        if quantization.encodings.is_empty() {
            return Ok(None);
        }
        let samples = Samples::new(self.source.metas(), quantization);
        let n_quantized = quantization.encodings.len();
        let packings = |weight: usize| samples.packings(&**weights, weight);
        let options = self.native_options(allow_rounding);
        let conversion = Self::with_packings(self.source.clone(), &options, &packings)?;
        Ok(Some(NativePlan { conversion, n_quantized, n_read: samples.n_read() }))
    }

    /// Returns the largest relative error of a scale in a file of `--type native --allow-rounding`; `None` if nothing is kept
    /// then. The scales of all weights are read.
    pub fn rounding_error(&self) -> Result<Option<f32>, ConvertError> {
        let Some(weights) = &self.source.weights else { return Ok(None) };
        let packings = |weight: usize| weights.packings(weight);
        let rounded = Self::with_packings(self.source.clone(), &self.native_options(true), &packings)?;
        Ok(rounded.kept().iter().map(|kept| kept.scale_error).reduce(f32::max))
    }

    fn native_options(&self, allow_rounding: bool) -> ConvertOptions {
        ConvertOptions {
            file_type: Some(OutType::F32),
            codes: Codes::Native { allow_rounding },
            tokenizer: false,
            ..self.options.clone()
        }
    }
}

/// Samples of the weights: the first of each kind represents the others.
struct Samples {
    /// Index of the representative of each weight; `None` for floats.
    first: Vec<Option<usize>>,
    found: Vec<OnceLock<Vec<Packing>>>,
}

impl Samples {
    fn new(weights: &[WeightMeta], quantization: &Quantization) -> Self {
        let mut by_kind = HashMap::new();
        let first = weights.iter().enumerate().map(|(index, weight)| {
            let encoding = quantization.encodings.get(&weight.name)?;
            let kind = (tensor_class(&weight.name), encoding.form.as_str(), weight.shape.dims());
            Some(*by_kind.entry(kind).or_insert(index))
        });
        let first: Vec<_> = first.collect();
        let found = first.iter().map(|_| OnceLock::new()).collect();
        Self { first, found }
    }

    fn n_read(&self) -> usize {
        self.found.iter().filter(|found| found.get().is_some()).count()
    }

    /// Returns the packings of a weight, or of its representative.
    fn packings(&self, source: &dyn WeightSource, weight: usize) -> Result<Vec<Packing>, SourceError> {
        let Some(first) = self.first[weight] else { return source.packings(weight) };
        if let Some(found) = self.found[first].get() {
            return Ok(found.clone());
        }
        let found = source.packings(first)?;
        Ok(self.found[first].get_or_init(|| found).clone())
    }
}
