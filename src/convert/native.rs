//! What a conversion knows of the way its weights are stored, what each kind of them becomes, and what `--type native`
//! would make of them.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::arch::OutType;
use crate::convert::{Codes, Conversion, ConvertError, ConvertOptions, Quantization};
use crate::core::{Packing, SourceError, WeightMeta, WeightSource};
use crate::dequant::{StoredClass, stored_classes, tensor_class};

/// A conversion to `--type native`, planned by the scales of one weight of each kind.
#[derive(Debug)]
pub struct NativePlan {
    /// The plan, without a vocabulary.
    pub conversion: Conversion,
    /// How many quantized weights there are.
    pub n_quantized: usize,
    /// The scales of how many of them were read.
    pub n_read: usize,
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
        for (output, part) in self.parts.iter().enumerate() {
            for weight in part.recipe.weights() {
                outputs[weight].push(output);
            }
        }
        stored_classes(weights, &quantization.encodings, |weight| becomes(&outputs[weight]))
    }

    /// Plans the same conversion to `--type native`. Of weights that are stored alike the scales of one are read, all
    /// others are taken to be like it; `None` for a checkpoint without quantized weights.
    ///
    /// # Errors
    /// The source failed.
    pub fn native(&self) -> Result<Option<NativePlan>, ConvertError> {
        let (Some(quantization), Some(weights)) = (self.quantization(), &self.source.weights) else {
            return Ok(None);
        };
        if quantization.encodings.is_empty() {
            return Ok(None);
        }
        let samples = Samples::new(self.source.metas(), quantization);
        let n_quantized = quantization.encodings.len();
        let options = ConvertOptions {
            file_type: Some(OutType::F32),
            codes: Codes::Native { allow_rounding: false },
            tokenizer: false,
            ..self.options.clone()
        };
        let packings = |weight: usize| samples.packings(&**weights, weight);
        let conversion = Self::with_packings(self.source.clone(), &options, &packings)?;
        Ok(Some(NativePlan { conversion, n_quantized, n_read: samples.n_read() }))
    }
}

/// Of weights that are stored alike the first stands for all.
struct Samples {
    /// By weight: the one that stands for it; `None` for floats.
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

    /// The packings of a weight or of the one that stands for it.
    fn packings(&self, source: &dyn WeightSource, weight: usize) -> Result<Vec<Packing>, SourceError> {
        let Some(first) = self.first[weight] else { return source.packings(weight) };
        if let Some(found) = self.found[first].get() {
            return Ok(found.clone());
        }
        let found = source.packings(first)?;
        Ok(self.found[first].get_or_init(|| found).clone())
    }
}
