//! Bytes of the weights of a model under types that are not made yet.

use crate::convert::ConvertOptions;
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::Metadata;
use crate::job::ladder::{Preset, Rung};
use crate::job::{JobInput, Result};
use crate::quantize::{FileType, QuantizeOptions, QuantizePlan, RungTypes};

/// A model and what its weights take under types.
pub(crate) struct TypeSizes {
    /// Keys of a file of the model, without a vocabulary.
    pub(crate) metadata: Metadata,
    /// Tensors of a file of the model.
    pub(crate) tensors: Vec<TensorMeta>,
    /// True for an image or video model.
    pub(crate) is_image: bool,
    /// Types, the largest first.
    pub(crate) types: Vec<TypeSize>,
}

/// Bytes of the weights under one type.
pub(crate) struct TypeSize {
    pub(crate) name: String,
    /// Bytes of all tensors.
    pub(crate) weight_bytes: u64,
    pub(crate) needs_importance: bool,
}

impl TypeSizes {
    /// Plans every type of a ladder for a model. Only headers are read.
    pub(crate) fn of(input: &JobInput, convert: &ConvertOptions) -> Result<Self> {
        let options = ConvertOptions { tokenizer: false, then_quantized: true, ..convert.clone() };
        let opened = input.open(&options)?;
        let is_image = opened.image_rules().is_some();
        // Types of a source that are quantized already count, too.
        let base = QuantizeOptions { allow_requantize: true, ..QuantizeOptions::new(FileType::Q4KM) };
        let plain = [FileType::Bf16, FileType::F16].map(|file_type| Rung {
            name: file_type.name().to_owned(),
            types: RungTypes { file_type, output: None, embeddings: None },
            most_kld: None,
        });
        let rungs = plain.into_iter().chain(Preset::Full.rungs());
        let quantized = opened.input();
        let mut types = Vec::new();
        for rung in rungs.filter(|rung| !is_image || rung.is_of_images()) {
            // A type that this model cannot have is no choice.
            let Ok(plan) = QuantizePlan::draft(&quantized, &rung.types.options(&base), None) else {
                continue;
            };
            let weight_bytes =
                plan.tensors().iter().filter_map(TensorMeta::n_bytes).fold(0, u64::saturating_add);
            types.push(TypeSize { needs_importance: rung.needs_importance(), name: rung.name, weight_bytes });
        }
        types.sort_by_key(|ty| std::cmp::Reverse(ty.weight_bytes));
        let (metadata, tensors) = (opened.metadata().clone(), opened.source().tensors().to_vec());
        Ok(Self { metadata, tensors, is_image, types })
    }
}
