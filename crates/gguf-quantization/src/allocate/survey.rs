//! Survey of the tensors to choose for, the types they may have, and their costs.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::allocate::costs::TensorCost;
use crate::allocate::greedy::TypeCandidate;
use crate::allocate::rounding::Sampled;
use crate::allocate::rules::rule;
use crate::allocate::sensitivity::{NamedTensor, logit_power, sensitivities};
use crate::allocate::{AllocateError, SizeTarget, StandardMix};
use crate::choice::{fit_columns, needs_imatrix};
use crate::importance::{Lookup, STACK, lookup};
use crate::{
    ChoiceError, Input, ModelFacts, QuantizeError, QuantizeOptions, QuantizePlan, Reason, Recipe, TensorClass,
};
use gguf_blocks::can_quantize;
use gguf_core::progress::Progress;
use gguf_core::{GgmlType, ImatrixNeed, SourceError, TensorMeta, TensorSource};
use gguf_format::{FilePlan, FileType, Imatrix, LayoutOptions, Value, WriteError};

/// Default types to choose from: one code per weight, from 2 to 8 bits.
pub static DEFAULT_TYPES: &[GgmlType] = &[
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Iq4Xs,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
    GgmlType::Q8_0,
];

/// Mixes to compare a choice with: those of the K types, and plain 8 bits.
static MIXES: &[FileType] = &[
    FileType::Q2K,
    FileType::Q3KS,
    FileType::Q3KM,
    FileType::Q3KL,
    FileType::Q4KS,
    FileType::Q4KM,
    FileType::Q5KS,
    FileType::Q5KM,
    FileType::Q6K,
    FileType::Q8_0,
];

/// Options of the choice, other than the size.
#[derive(Clone, Copy, Debug)]
pub struct AllocateOptions<'o> {
    /// Options of the quantization. Types that they name are kept; their file type and `pure` are ignored.
    pub quantize: &'o QuantizeOptions,
    /// Types to choose from; if empty, [`DEFAULT_TYPES`]. A type whose blocks do not fit the columns is replaced by its
    /// usual fallback.
    pub types: &'o [GgmlType],
    /// Keys that the file will have in addition to those of its plan, at their largest size.
    pub keys: &'o [(String, Value)],
}

/// Tensor whose type is to be chosen, or is named by an option and so the only one.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTensor {
    /// Name in the output.
    pub name: String,
    /// Index in the source.
    pub source: usize,
    /// Index in the output.
    pub place: usize,
    /// Role of the tensor.
    pub class: TensorClass,
    /// Types it may have, in the order in which they are listed.
    pub types: Vec<GgmlType>,
}

impl OpenTensor {
    /// Returns true for a stack of experts, of which a token uses a few.
    pub(super) fn is_of_experts(&self) -> bool {
        self.name.contains(STACK)
    }
}

/// Survey of a model, made from headers alone.
pub struct Survey<'a> {
    input: Input<'a>,
    imatrix: Option<&'a Imatrix>,
    options: QuantizeOptions,
    facts: ModelFacts,
    /// True if the embeddings are also the output.
    is_tied: bool,
    /// Tensors to choose for, in the order of the output.
    tensors: Vec<OpenTensor>,
    /// Bytes of the file without those tensors.
    fixed_bytes: u64,
    alignment: u64,
    /// Number of weights of all tensors of the output.
    n_elems: u64,
}

impl<'a> Survey<'a> {
    /// Surveys a model.
    ///
    /// Tensors that a quantization does not change stay as they are; tensors whose types options name keep those.
    ///
    /// # Errors
    /// As [`QuantizePlan::draft`]; types that nothing can be quantized to, or that need an importance matrix if none is
    /// given; a tensor that none of the types fits; no tensor to choose for.
    pub fn new(
        input: &Input<'a>,
        imatrix: Option<&'a Imatrix>,
        asked: &AllocateOptions<'_>,
    ) -> Result<Self, AllocateError> {
        let imatrix = imatrix.filter(|imatrix| !imatrix.is_empty());
        let types = if asked.types.is_empty() { DEFAULT_TYPES } else { asked.types };
        for &ty in types {
            if !can_quantize(ty) {
                return Err(AllocateError::NotATarget { ty });
            }
            if imatrix.is_none() && needs_imatrix(TensorClass::Other, ty, FileType::Q4KM) {
                return Err(AllocateError::NeedsImatrix { ty });
            }
        }
        // Any mix of block types will do: it does not affect which tensors are quantized.
        let options = QuantizeOptions {
            file_type: FileType::Q4KM,
            pure: false,
            no_fallback: false,
            ..asked.quantize.clone()
        };
        let plan = QuantizePlan::draft(input, &options, imatrix)?.with_keys(asked.keys);
        let found = input.source.tensors();
        let is_tied =
            plan.tensors().iter().all(|tensor| TensorClass::of(&tensor.name) != TensorClass::Output);
        let (mut tensors, mut n_chosen) = (Vec::new(), 0);
        for (place, (step, tensor)) in plan.steps().iter().zip(plan.tensors()).enumerate() {
            let class = step.choice.class;
            if step.choice.reason == Reason::Kept {
                continue;
            }
            let before = &found[step.source];
            let has_weights = imatrix.is_some_and(|imatrix| {
                matches!(
                    lookup(imatrix, before, options.share_importance),
                    Lookup::Found(_) | Lookup::OtherSize(_)
                )
            });
            // A tensor whose type is named has only this one: it is not chosen, but it costs something.
            let types = if is_named(&options, tensor, class, is_tied) {
                if !has_weights && tensor.ty.info().imatrix == ImatrixNeed::Required {
                    continue;
                }
                vec![tensor.ty]
            } else {
                n_chosen += 1;
                fitting(types, tensor, class, has_weights, asked.quantize.no_fallback)?
            };
            if before.ty.is_quantized() && !options.allow_requantize {
                let to = types.first().copied().unwrap_or(before.ty);
                return Err(
                    QuantizeError::Requantize { tensor: tensor.name.clone(), from: before.ty, to }.into()
                );
            }
            tensors.push(OpenTensor { name: tensor.name.clone(), source: step.source, place, class, types });
        }
        if n_chosen == 0 {
            return Err(AllocateError::NothingToChoose);
        }
        let file = FilePlan::new(plan.metadata(), plan.tensors(), &LayoutOptions::default())?;
        let padded =
            |tensor: &OpenTensor| file.tensors[tensor.place].n_bytes.next_multiple_of(file.alignment);
        let open_bytes: u64 = tensors.iter().map(padded).sum();
        Ok(Self {
            facts: input.facts(&options.overrides),
            fixed_bytes: file.file_bytes.saturating_sub(open_bytes),
            alignment: file.alignment,
            n_elems: plan.summary().total.n_elems,
            is_tied,
            tensors,
            input: input.clone(),
            imatrix,
            options,
        })
    }

    /// Tensors to choose for, in the order of the output.
    pub fn tensors(&self) -> &[OpenTensor] {
        &self.tensors
    }

    /// Estimates the costs of types without running the model.
    ///
    /// They are the errors of a sample of each tensor's rows, weighted by the importance matrix, times a sensitivity by
    /// role and place. The types of the standard mixes are included. The result is the same for any number of threads
    /// and any level of vector instructions.
    ///
    /// # Errors
    /// Tensors that cannot be read or quantized, an importance matrix of another model; cancellation.
    pub fn estimate(&self, progress: &dyn Progress) -> Result<Vec<TensorCost>, AllocateError> {
        let found = self.input.source.tensors();
        let total = self.tensors.iter().map(|tensor| found[tensor.source].n_bytes().unwrap_or(0)).sum();
        progress.begin("measuring what types cost", total);
        let look = |tensor: &OpenTensor| {
            if progress.is_cancelled() {
                return Ok(None);
            }
            let errors = self.errors(tensor);
            progress.advance(found[tensor.source].n_bytes().unwrap_or(0));
            errors.map(Some)
        };
        let errors: Result<Vec<Option<Vec<_>>>, SourceError> = self.tensors.par_iter().map(look).collect();
        progress.end();
        let errors: Option<Vec<_>> = errors?.into_iter().collect();
        let errors = errors.ok_or(QuantizeError::from(WriteError::Cancelled))?;
        let power = logit_power(self.input.source, self.options.simd)?;
        let places =
            self.tensors.iter().map(|tensor| NamedTensor { name: &tensor.name, class: tensor.class });
        let sensitivities = sensitivities(places, power, self.facts.n_layers, self.is_tied);
        let costs = self.tensors.iter().zip(errors).zip(sensitivities);
        let cost = |((tensor, errors), sensitivity): ((&OpenTensor, _), f64)| TensorCost {
            name: tensor.name.clone(),
            errors,
            sensitivity,
            measured: Vec::new(),
        };
        Ok(costs.map(cost).collect())
    }

    /// Importance of the columns of a tensor, if it has the right size.
    fn weights(&self, tensor: &OpenTensor) -> Option<Cow<'a, [f32]>> {
        let shared = self.options.share_importance;
        match lookup(self.imatrix?, &self.input.source.tensors()[tensor.source], shared) {
            Lookup::Found(importance) => Some(importance.weights),
            Lookup::OtherSize(_) | Lookup::Elsewhere(_) | Lookup::Absent => None,
        }
    }

    /// Errors of a tensor for its types, and for those that standard mixes may give it.
    fn errors(&self, tensor: &OpenTensor) -> Result<Vec<(GgmlType, f64)>, SourceError> {
        let meta = &self.input.source.tensors()[tensor.source];
        let weights = self.weights(tensor);
        let mut types = tensor.types.clone();
        let is_useful = |ty: &GgmlType| weights.is_some() || ty.info().imatrix != ImatrixNeed::Required;
        for ty in DEFAULT_TYPES.iter().filter_map(|&ty| fit_columns(meta.shape.n_cols(), ty)) {
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
        types.retain(is_useful);
        let (source, weights) = (self.input.source, weights.as_deref());
        Sampled { source, tensor: tensor.source, weights, level: self.options.simd }.errors(&types)
    }

    /// Plans with one type for each tensor to choose for.
    pub fn plan(&self, file_type: FileType, types: &[GgmlType]) -> Result<QuantizePlan<'a>, AllocateError> {
        let options = self.options_with(file_type, types)?;
        Ok(QuantizePlan::new(&self.input, &options, self.imatrix)?)
    }

    /// Options with a rule for each tensor to choose for, and the first of these file types, or, if the tensors
    /// contradict it, one that they do not contradict.
    pub(super) fn labelled(
        &self,
        wanted: &[FileType],
        types: &[GgmlType],
    ) -> Result<QuantizeOptions, AllocateError> {
        let file_type = wanted.first().copied().unwrap_or(FileType::Q4KM);
        let options = self.options_with(file_type, types)?;
        let plan = QuantizePlan::draft(&self.input, &options, self.imatrix)?;
        let file_type = Recipe::of(plan.metadata(), plan.tensors()).label(wanted).unwrap_or(file_type);
        Ok(QuantizeOptions { file_type, ..options })
    }

    /// Options with a rule for each tensor to choose for.
    fn options_with(
        &self,
        file_type: FileType,
        types: &[GgmlType],
    ) -> Result<QuantizeOptions, AllocateError> {
        let mut options = QuantizeOptions { file_type, ..self.options.clone() };
        for (tensor, &ty) in self.tensors.iter().zip(types) {
            options.tensor_types.push(rule(&tensor.name, ty)?);
        }
        Ok(options)
    }

    /// Bytes of the file with these types; `None` if one does not fit.
    fn file_bytes(&self, types: impl IntoIterator<Item = GgmlType>) -> Option<u64> {
        let bytes = self.tensors.iter().zip(types).map(|(tensor, ty)| self.padded_bytes(tensor, ty));
        bytes.sum::<Option<u64>>()?.checked_add(self.fixed_bytes)
    }

    fn padded_bytes(&self, tensor: &OpenTensor, ty: GgmlType) -> Option<u64> {
        let meta = &self.input.source.tensors()[tensor.source];
        TensorMeta { ty, ..meta.clone() }.n_bytes()?.checked_next_multiple_of(self.alignment)
    }

    /// Checks whether a size can be reached, before costs are known.
    ///
    /// # Errors
    /// A size below that with the smallest types.
    pub fn check(&self, target: SizeTarget) -> Result<(), AllocateError> {
        let smallest =
            |tensor: &OpenTensor| tensor.types.iter().filter_map(|&ty| self.padded_bytes(tensor, ty)).min();
        let open_bytes = self.tensors.iter().filter_map(smallest).fold(0u64, u64::saturating_add);
        let least_bytes = self.fixed_bytes.saturating_add(open_bytes);
        if least_bytes > target.bytes(self.n_elems) {
            return Err(self.too_small(least_bytes, target));
        }
        Ok(())
    }

    pub(super) fn too_small(&self, least_bytes: u64, target: SizeTarget) -> AllocateError {
        let bits_per_weight = least_bytes as f64 * 8.0 / self.n_elems.max(1) as f64;
        AllocateError::TooSmall { target_bytes: target.bytes(self.n_elems), least_bytes, bits_per_weight }
    }

    pub(super) fn fixed_bytes(&self) -> u64 {
        self.fixed_bytes
    }

    pub(super) fn n_elems(&self) -> u64 {
        self.n_elems
    }

    pub(super) fn candidates(&self, tensor: &OpenTensor, cost: &TensorCost) -> Vec<TypeCandidate> {
        let candidate = |&ty: &GgmlType| {
            Some(TypeCandidate { ty, n_bytes: self.padded_bytes(tensor, ty)?, cost: cost.of(ty)? })
        };
        tensor.types.iter().filter_map(candidate).collect()
    }

    /// Standard mixes, with the sizes of their files and their expected costs.
    pub(super) fn mixes(&self, costs: &[TensorCost]) -> Vec<StandardMix> {
        let mix = |&file_type: &FileType| {
            let options = QuantizeOptions { file_type, ..self.options.clone() };
            let plan = QuantizePlan::draft(&self.input, &options, self.imatrix).ok()?;
            let types: Vec<GgmlType> =
                self.tensors.iter().map(|tensor| plan.tensors()[tensor.place].ty).collect();
            let file_bytes = self.file_bytes(types.iter().copied())?;
            let expected_kld = costs.iter().zip(&types).filter_map(|(cost, &ty)| cost.of(ty)).sum();
            Some(StandardMix { file_type, file_bytes, expected_kld, measured: None })
        };
        MIXES.iter().filter_map(mix).collect()
    }
}

/// Returns true if an option names the type of this tensor.
fn is_named(options: &QuantizeOptions, tensor: &TensorMeta, class: TensorClass, is_tied: bool) -> bool {
    let by_class = match class {
        TensorClass::TokenEmbd => {
            options.token_embedding_type.is_some() || (is_tied && options.output_tensor_type.is_some())
        }
        TensorClass::Output => options.output_tensor_type.is_some(),
        _ => false,
    };
    by_class || options.tensor_types.iter().any(|rule| rule.matches(&tensor.name))
}

/// Types that a tensor may have.
fn fitting(
    types: &[GgmlType],
    tensor: &TensorMeta,
    class: TensorClass,
    has_weights: bool,
    no_fallback: bool,
) -> Result<Vec<GgmlType>, AllocateError> {
    let n_cols = tensor.shape.n_cols();
    let mut found: Vec<GgmlType> = Vec::new();
    let mut refused = None;
    for &wanted in types {
        let Some(ty) = fit_columns(n_cols, wanted) else { continue };
        if ty != wanted && no_fallback {
            let tensor = tensor.name.clone();
            refused = refused.or(Some(ChoiceError::FallbackRefused { tensor, n_cols, wanted, instead: ty }));
        } else if !found.contains(&ty) && (has_weights || !needs_imatrix(class, ty, FileType::Q4KM)) {
            found.push(ty);
        }
    }
    match refused {
        _ if !found.is_empty() => Ok(found),
        Some(refused) => Err(QuantizeError::from(refused).into()),
        None => Err(AllocateError::NoType { tensor: tensor.name.clone(), n_cols }),
    }
}
