//! Type of every tensor: options that name it, then the mixture, then the fit to its columns.

use crate::class::{PER_LAYER_TOKEN_EMBD, TensorRole};
use crate::mixture::Mixture;
use crate::prune::split_at_layer;
use crate::{FileType, ModelFacts, QuantizeOptions, TensorClass, TensorTypeRule};
use gguf_arch::diffusion::{DiffusionMixture, DiffusionRules};
use gguf_core::{GgmlType, Hint, ImatrixNeed, TensorMeta, text::escape};

/// Reason for the type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Unquantized tensor: a vector, a norm, a small or sensitive weight, or a copied file.
    Kept,
    /// An option names the type.
    Option,
    /// The file after which the types are chosen has this type.
    Like,
    /// A rule of the mixture, or the base type.
    Mixture,
    /// The number of columns is not a multiple of the wanted type's block size.
    Fallback {
        /// Type that was wanted.
        wanted: GgmlType,
    },
}

/// Type chosen for one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeChoice {
    /// Role of the tensor.
    pub class: TensorClass,
    /// Type in the output.
    pub ty: GgmlType,
    /// Reason for the type.
    pub reason: Reason,
    /// True if the result would be useless without importance data; it is then refused.
    pub needs_imatrix: bool,
}

/// Chooses the type of every tensor from names, shapes and types.
///
/// `tensors` are in the order of the output, under their names there; `has_imatrix` is true if there is an importance
/// matrix.
///
/// # Exactness
/// Equals llama-quantize's choice for all its file types, options and architectures, with one exception: an output in
/// NVFP4 that has scale tensors stays as it is.
///
/// # Errors
/// [`ChoiceError`]: columns that no type fits, or a fallback where [`QuantizeOptions::no_fallback`] forbids it.
pub fn choose_types(
    facts: &ModelFacts,
    tensors: &[TensorMeta],
    options: &QuantizeOptions,
    has_imatrix: bool,
) -> Result<Vec<TypeChoice>, ChoiceError> {
    choose_types_of(facts, tensors, &facts.roles(tensors), options, has_imatrix)
}

/// Chooses the type of every tensor whose role is known.
pub(crate) fn choose_types_of(
    facts: &ModelFacts,
    tensors: &[TensorMeta],
    roles: &[TensorRole],
    options: &QuantizeOptions,
    has_imatrix: bool,
) -> Result<Vec<TypeChoice>, ChoiceError> {
    if let Some(rules) = &facts.diffusion {
        return diffusion_types(rules, tensors, roles, options);
    }
    let classes = roles.iter().map(|role| role.class);
    let mut mixture = options.file_type.base().map(|base| {
        let mixture = Mixture::new(base, facts, options, has_imatrix, classes);
        (base, mixture)
    });
    // The runtime reads the scale tensors of an output only for NVFP4, and does not load other files that have them.
    let has_factor = tensors.iter().any(|t| matches!(t.name.as_str(), "output.scale" | "output.input_scale"));
    let choose = |(tensor, &TensorRole { class, is_matrix }): (&TensorMeta, &TensorRole)| {
        let is_bound = has_factor && tensor.ty == GgmlType::Nvfp4;
        let is_left = (options.leave_output_tensor || is_bound) && class == TensorClass::Output;
        let given = options.given.types.get(&tensor.name).filter(|&&ty| ty != tensor.ty);
        let (ty, reason) = match (&mut mixture, given) {
            (Some((base, mixture)), _) if is_matrix && !is_left => {
                choose_type(*base, mixture, tensor, class, options)?
            }
            (_, Some(&ty)) if !is_left => fitted(tensor, ty, Reason::Like, options)?,
            _ => (tensor.ty, Reason::Kept),
        };
        let needs_imatrix =
            reason != Reason::Kept && ty != tensor.ty && needs_imatrix(class, ty, options.file_type);
        Ok(TypeChoice { class, ty, reason, needs_imatrix })
    };
    tensors.iter().zip(roles).map(choose).collect()
}

/// Chooses the type of every tensor of an image or video model. Options for the embeddings and the output of language
/// models have no effect.
///
/// # Exactness
/// Equals the patched llama-quantize of ComfyUI-GGUF for the file types that it has, except for rows that are no whole
/// blocks of 32: they stay F16, where the reference stops or writes broken blocks.
fn diffusion_types(
    rules: &DiffusionRules,
    tensors: &[TensorMeta],
    roles: &[TensorRole],
    options: &QuantizeOptions,
) -> Result<Vec<TypeChoice>, ChoiceError> {
    let base = options.file_type.base();
    let mut mixture = match base {
        None => None,
        Some(_) => Some(rules.mixture(options.file_type).ok_or_else(|| ChoiceError::NotOfImages {
            file_type: options.file_type,
            known: rules.common().type_names().map(ToOwned::to_owned).collect(),
        })?),
    };
    let choose = |(tensor, &TensorRole { class, is_matrix }): (&TensorMeta, &TensorRole)| {
        let given = options.given.types.get(&tensor.name).filter(|&&ty| ty != tensor.ty);
        let (ty, reason) = match (&mut mixture, given) {
            (Some(mixture), given) if is_matrix => diffusion_type(mixture, tensor, given.copied(), options)?,
            (_, Some(&ty)) => fitted_to_f16(tensor, ty, Reason::Like, options)?,
            _ => (tensor.ty, Reason::Kept),
        };
        let needs_imatrix = ty != tensor.ty && ty.info().imatrix == ImatrixNeed::Required;
        Ok(TypeChoice { class, ty, reason, needs_imatrix })
    };
    tensors.iter().zip(roles).map(choose).collect()
}

fn diffusion_type(
    mixture: &mut DiffusionMixture<'_>,
    tensor: &TensorMeta,
    given: Option<GgmlType>,
    options: &QuantizeOptions,
) -> Result<(GgmlType, Reason), ChoiceError> {
    let rule = rule_of(tensor, options).map(|rule| rule.ty);
    let (wanted, reason) = match (rule, given) {
        (Some(ty), _) => (ty, Reason::Option),
        (None, Some(ty)) => (ty, Reason::Like),
        (None, None) if options.pure => (options.file_type.base().unwrap_or(tensor.ty), Reason::Mixture),
        (None, None) => (mixture.choose(&tensor.name), Reason::Mixture),
    };
    fitted_to_f16(tensor, wanted, reason, options)
}

/// Fits a wanted type to the columns of a tensor; the only replacement is F16.
fn fitted_to_f16(
    tensor: &TensorMeta,
    wanted: GgmlType,
    reason: Reason,
    options: &QuantizeOptions,
) -> Result<(GgmlType, Reason), ChoiceError> {
    let is_whole = wanted.row_bytes(tensor.shape.n_cols()).is_some();
    settled(tensor, wanted, if is_whole { wanted } else { GgmlType::F16 }, reason, options)
}

fn choose_type(
    base: GgmlType,
    mixture: &mut Mixture<'_>,
    tensor: &TensorMeta,
    class: TensorClass,
    options: &QuantizeOptions,
) -> Result<(GgmlType, Reason), ChoiceError> {
    let rule = || rule_of(tensor, options).map(|rule| rule.ty);
    match class {
        TensorClass::TokenEmbd => {
            // The per-layer table is large and separate: a rule may name it.
            let is_named = tensor.name == PER_LAYER_TOKEN_EMBD && rule().is_some();
            if let Some(ty) = options.token_embedding_type.filter(|_| !is_named) {
                return Ok((ty, Reason::Option));
            }
        }
        TensorClass::Output => {
            if let Some(ty) = options.output_tensor_type {
                return Ok((ty, Reason::Option));
            }
        }
        _ => {}
    }
    let given = options.given.types.get(&tensor.name);
    if !base.is_quantized() && given.is_none() {
        return Ok((base, Reason::Mixture));
    }
    // ref: a tensor with its own rule is not counted by the mixture, which shifts the places of later ones.
    let (wanted, reason) = match (rule(), given) {
        (Some(ty), _) => (ty, Reason::Option),
        (None, Some(&ty)) => (ty, Reason::Like),
        (None, None) if options.pure => (base, Reason::Mixture),
        (None, None) => (mixture.choose(tensor, class), Reason::Mixture),
    };
    fitted(tensor, wanted, reason, options)
}

/// Returns the rule that decides about a tensor: the first that matches its name.
fn rule_of<'o>(tensor: &TensorMeta, options: &'o QuantizeOptions) -> Option<&'o TensorTypeRule> {
    options.tensor_types.iter().find(|rule| rule.matches(&tensor.name))
}

/// Fits a wanted type to the columns of a tensor.
fn fitted(
    tensor: &TensorMeta,
    wanted: GgmlType,
    reason: Reason,
    options: &QuantizeOptions,
) -> Result<(GgmlType, Reason), ChoiceError> {
    let n_cols = tensor.shape.n_cols();
    let ty = fit_columns(n_cols, wanted).ok_or_else(|| ChoiceError::NoFallback {
        tensor: tensor.name.clone(),
        n_cols,
        wanted,
        rule: rule_of(tensor, options).filter(|_| reason == Reason::Option).map(|rule| rule.pattern.clone()),
    })?;
    settled(tensor, wanted, ty, reason, options)
}

/// Returns the type with its reason, unless it replaces the wanted one and that is refused.
fn settled(
    tensor: &TensorMeta,
    wanted: GgmlType,
    ty: GgmlType,
    reason: Reason,
    options: &QuantizeOptions,
) -> Result<(GgmlType, Reason), ChoiceError> {
    if ty == wanted {
        return Ok((ty, reason));
    }
    if options.no_fallback {
        let (tensor, n_cols) = (tensor.name.clone(), tensor.shape.n_cols());
        return Err(ChoiceError::FallbackRefused { tensor, n_cols, wanted, instead: ty });
    }
    Ok((ty, Reason::Fallback { wanted }))
}

/// Replacements for types whose blocks are too long for the columns.
static FALLBACKS: &[(GgmlType, GgmlType)] = &[
    (GgmlType::Iq1S, GgmlType::Iq4Nl),
    (GgmlType::Iq1M, GgmlType::Iq4Nl),
    (GgmlType::Iq2Xxs, GgmlType::Iq4Nl),
    (GgmlType::Iq2Xs, GgmlType::Iq4Nl),
    (GgmlType::Iq2S, GgmlType::Iq4Nl),
    (GgmlType::Iq3Xxs, GgmlType::Iq4Nl),
    (GgmlType::Iq3S, GgmlType::Iq4Nl),
    (GgmlType::Iq4Xs, GgmlType::Iq4Nl),
    (GgmlType::Q2_0, GgmlType::Q4_0),
    (GgmlType::Q2K, GgmlType::Q4_0),
    (GgmlType::Q3K, GgmlType::Q4_0),
    (GgmlType::Tq1_0, GgmlType::Q4_0),
    (GgmlType::Tq2_0, GgmlType::Q4_0),
    (GgmlType::Q4K, GgmlType::Q5_0),
    (GgmlType::Q5K, GgmlType::Q5_1),
    (GgmlType::Q6K, GgmlType::Q8_0),
];

/// Returns the wanted type if the columns are whole blocks of it, otherwise one with shorter blocks, finally F16; `None` for
/// types that nothing stands in for.
pub(crate) fn fit_columns(n_cols: u64, wanted: GgmlType) -> Option<GgmlType> {
    let fits = |ty: GgmlType| n_cols.is_multiple_of(ty.block_elems() as u64);
    if fits(wanted) {
        return Some(wanted);
    }
    match FALLBACKS.iter().find(|row| row.0 == wanted) {
        Some(&(_, instead)) if fits(instead) => Some(instead),
        None if wanted.block_elems() > 32 => None,
        _ => Some(GgmlType::F16),
    }
}

/// Returns true for types that are useless without importance weights, except for the embeddings and the output, and
/// for types whose quantizer requires importance weights.
pub(crate) fn needs_imatrix(class: TensorClass, ty: GgmlType, file_type: FileType) -> bool {
    use GgmlType::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3Xxs, Q2K};
    let is_poor = match ty {
        Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq3Xxs => true,
        Q2K => file_type == FileType::Q2KS,
        _ => false,
    };
    let is_exempt = matches!(class, TensorClass::TokenEmbd | TensorClass::Output);
    (is_poor && !is_exempt) || ty.info().imatrix == ImatrixNeed::Required
}

/// Errors that prevent the choice of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ChoiceError {
    #[error(
        "tensor `{}`: {n_cols} columns are not a multiple of {}, and nothing stands in for {wanted}",
        escape(tensor),
        wanted.block_elems()
    )]
    NoFallback { tensor: String, n_cols: u64, wanted: GgmlType, rule: Option<String> },
    #[error("{file_type} is no type of image and video models")]
    NotOfImages { file_type: FileType, known: Vec<String> },
    #[error(
        "tensor `{}`: {n_cols} columns are not a multiple of {} as {wanted} needs, and falling back to {instead} \
         is not allowed",
        escape(tensor),
        wanted.block_elems()
    )]
    FallbackRefused { tensor: String, n_cols: u64, wanted: GgmlType, instead: GgmlType },
}

impl Hint for ChoiceError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NoFallback { rule: Some(rule), .. } => {
                vec![format!("give this rule a type that fits: `--tensor-type {}=q4_0`", escape(rule))]
            }
            Self::NoFallback { tensor, .. } => {
                let kind = split_at_layer(tensor).map_or(tensor.as_str(), |(.., kind)| &kind[1..]);
                vec![
                    format!("name a type for it, in all layers: `--tensor-type {}=q4_0`", escape(kind)),
                    "choose a file type of shorter blocks, such as q4_0".to_owned(),
                ]
            }
            Self::NotOfImages { known, .. } => vec![format!("their types are {}", known.join(", "))],
            Self::FallbackRefused { tensor, instead, .. } => vec![
                format!(
                    "name it yourself: `--tensor-type {}={}`",
                    escape(tensor),
                    instead.name().to_lowercase()
                ),
                "leave out --no-fallback".to_owned(),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_choose_the_stand_in() {
        let fit = fit_columns;
        assert_eq!(fit(256, GgmlType::Q4K), Some(GgmlType::Q4K));
        assert_eq!(fit(576, GgmlType::Q4K), Some(GgmlType::Q5_0));
        assert_eq!(fit(100, GgmlType::Q4K), Some(GgmlType::F16));
        assert_eq!(fit(100, GgmlType::Q8_0), Some(GgmlType::F16));
        assert_eq!(fit(96, GgmlType::Q2_0), Some(GgmlType::Q4_0));
        assert_eq!(fit(64, GgmlType::Q1_0), None);
        assert_eq!(fit(96, GgmlType::Nvfp4), None);
    }

    #[test]
    fn a_replaced_type_is_an_error_if_asked_for() {
        use gguf_core::Shape;
        let shape = Shape::new(vec![8, 576]).unwrap();
        let tensors = [TensorMeta { name: "blk.0.attn_q.weight".to_owned(), shape, ty: GgmlType::F16 }];
        let mut options = QuantizeOptions::new(FileType::Q6K);
        let facts = ModelFacts::default();
        let choice = choose_types(&facts, &tensors, &options, false).unwrap()[0];
        assert_eq!(choice.reason, Reason::Fallback { wanted: GgmlType::Q6K });
        options.no_fallback = true;
        let error = choose_types(&facts, &tensors, &options, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `blk.0.attn_q.weight`: 576 columns are not a multiple of 256 as Q6_K needs, and falling back \
             to Q8_0 is not allowed"
        );
        assert_eq!(error.hints()[0], "name it yourself: `--tensor-type blk.0.attn_q.weight=q8_0`");
    }
}
