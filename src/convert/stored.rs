//! What a conversion knows of the way its weights are stored, and what each kind of them becomes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::arch::OutType;
use crate::convert::{Codes, Conversion, ConvertError, ConvertOptions, Quantization};
use crate::core::{ElementType, GgmlType, Packing, SourceError, WeightMeta, WeightSource};
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
        let sampled = Arc::new(Sampled::new(Arc::clone(weights), quantization));
        let n_quantized = quantization.encodings.len();
        let mut source = self.source.clone();
        source.weights = Some(Arc::clone(&sampled) as Arc<dyn WeightSource + Send>);
        let options = ConvertOptions {
            file_type: Some(OutType::F32),
            codes: Codes::Native { allow_rounding: false },
            tokenizer: false,
            ..self.options.clone()
        };
        let conversion = Self::of(source, &options)?;
        Ok(Some(NativePlan { conversion, n_quantized, n_read: sampled.n_read() }))
    }
}

/// A source whose weights have the packings of the first that is stored like them.
struct Sampled {
    source: Arc<dyn WeightSource + Send>,
    /// By weight: the one that stands for it; `None` for floats.
    first: Vec<Option<usize>>,
    found: Vec<OnceLock<Vec<Packing>>>,
}

impl Sampled {
    fn new(source: Arc<dyn WeightSource + Send>, quantization: &Quantization) -> Self {
        let mut by_kind = HashMap::new();
        let weights = source.weights().iter().enumerate();
        let first = weights.map(|(index, weight)| {
            let encoding = quantization.encodings.get(&weight.name)?;
            let kind = (tensor_class(&weight.name), encoding.form.as_str(), weight.shape.dims());
            Some(*by_kind.entry(kind).or_insert(index))
        });
        let first: Vec<_> = first.collect();
        let found = first.iter().map(|_| OnceLock::new()).collect();
        Self { source, first, found }
    }

    fn n_read(&self) -> usize {
        self.found.iter().filter(|found| found.get().is_some()).count()
    }
}

impl WeightSource for Sampled {
    fn weights(&self) -> &[WeightMeta] {
        self.source.weights()
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.source.read_elems(weight, first, out)
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        self.source.borrow(weight)
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        let Some(first) = self.first[weight] else { return self.source.packings(weight) };
        if let Some(found) = self.found[first].get() {
            return Ok(found.clone());
        }
        let found = self.source.packings(first)?;
        Ok(self.found[first].get_or_init(|| found).clone())
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.source.read_packed(weight, ty, first, out)
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        self.source.code_type(weight)
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        self.source.release_elems(weight, first, n);
    }
}
