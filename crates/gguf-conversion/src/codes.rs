//! Conversion of weights stored as integer codes: the output tensors that keep the codes, and the loss.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::companions::{Companions, has_slot};
use gguf_arch::{EntryType, Mapping, OutType, OutputSpec};
use gguf_core::written::as_text;
use gguf_core::{ElementType, GgmlType, Packing, SourceError, TensorMeta, WeightSource};
use gguf_views::Recipe;

/// Treatment of integer codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codes {
    /// Codes become floats, like any other weight, unless the card's entry keeps blocks (`type = "blocks"`).
    #[default]
    Card,
    /// Codes become floats.
    Float,
    /// Codes are kept in block types that hold the values. Other weights are written in the narrowest float type that
    /// is exact. With `allow_rounding`, scales may be rounded to the values that a block can store.
    Native {
        /// True to accept rounded scales.
        allow_rounding: bool,
    },
    /// Codes are kept if blocks of this type can hold them, with rounded scales, and in entries for which the card
    /// declares blocks.
    Keep(GgmlType),
}

/// Tensors of one role that keep their codes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeptRole {
    /// Name with `*` for the layer.
    pub role: String,
    /// Type of the tensors.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Largest relative error of a scale; 0 if every value is exact.
    pub scale_error: f32,
}

/// Replaces the layer of a name by `*`: tensors of one role are treated alike.
fn role(name: &str) -> String {
    let inside = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    inside.map_or_else(|| name.to_owned(), |(_, rest)| format!("blk.*.{rest}"))
}

/// Reasons for converting codes to floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatReason {
    /// No block type has such codes, scales or groups.
    NoBlocks,
    /// Columns or operations do not align with block boundaries.
    Cut,
    /// The joined parts have different factors, but a tensor can have only one.
    Factors,
    /// The runtime reads no factor for this tensor.
    NoSlot,
    /// Blocks would round the scales.
    Rounding,
    /// Blocks of the given type, but not of the requested one, hold the codes.
    OtherType(GgmlType),
    /// Another tensor of the role does not fit.
    Role,
}

impl fmt::Display for FloatReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBlocks => f.write_str("no block type holds such codes and scales"),
            Self::Cut => f.write_str("blocks would be cut"),
            Self::Factors => f.write_str("its parts have factors of their own"),
            Self::NoSlot => f.write_str("the runtime has no place for its factor"),
            Self::Rounding => f.write_str("scales would be rounded"),
            Self::OtherType(ty) => write!(f, "codes are not those of {ty}"),
            Self::Role => f.write_str("not all tensors of the role fit"),
        }
    }
}

/// Tensors of one role whose codes become floats, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FloatRole {
    /// Name with `*` for the layer.
    pub role: String,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Reason why no block type keeps the codes.
    #[serde(serialize_with = "as_text")]
    pub reason: FloatReason,
}

/// A type that can store a whole tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FittingType {
    pub(super) ty: GgmlType,
    scale_error: f32,
    /// Factors stored next to the blocks.
    pub(super) companions: Companions,
    /// True if activations stay floats, as the checkpoint declares.
    pub(super) float_activations: bool,
}

impl FittingType {
    fn is_exact(&self) -> bool {
        self.scale_error == 0.0
    }
}

/// Types that can store a whole tensor, shared by all its weights, best first. If no block type is among them, `reason`
/// explains it.
struct FittingTypes {
    found: Vec<FittingType>,
    reason: FloatReason,
}

/// Storage chosen for a tensor.
#[derive(Clone, Debug)]
pub(super) struct ChosenStorage {
    pub(super) ty: GgmlType,
    /// Storage of the codes, if they are kept.
    pub(super) fit: Option<FittingType>,
    /// Reason why they are not, if the tensor has codes.
    pub(super) reason: Option<FloatReason>,
}

/// Packings of a weight, as from [`WeightSource::packings`].
pub(super) type PackingsOf<'a> = &'a dyn Fn(usize) -> Result<Vec<Packing>, SourceError>;

/// Finds the types that can store the whole of tensor `name`.
fn fits(
    name: &str,
    mapping: &Mapping,
    recipe: &Recipe,
    packings: PackingsOf<'_>,
) -> Result<FittingTypes, SourceError> {
    let weights = recipe.weights();
    let packings: Vec<_> = weights.iter().map(|&weight| packings(weight)).collect::<Result<_, _>>()?;
    let mut fits = FittingTypes { found: Vec::new(), reason: FloatReason::NoBlocks };
    for first in packings.first().into_iter().flatten() {
        let same = |own: &Vec<Packing>| own.iter().find(|packing| packing.ty == first.ty).cloned();
        let Some(all) = packings.iter().map(same).collect::<Option<Vec<_>>>() else { continue };
        if !recipe.keeps_blocks(first.ty) {
            fits.reason = FloatReason::Cut;
            continue;
        }
        let Some(companions) = Companions::of(recipe, &all) else {
            fits.reason = FloatReason::Factors;
            continue;
        };
        if !companions.is_empty() && !has_slot(mapping, name) {
            fits.reason = FloatReason::NoSlot;
            continue;
        }
        fits.found.push(FittingType {
            ty: first.ty,
            scale_error: all.iter().map(|packing| packing.scale_error).fold(0.0, f32::max),
            companions,
            float_activations: all.iter().all(|packing| packing.float_activations),
        });
    }
    Ok(fits)
}

/// Chooses the storage of every tensor under `codes`: blocks of its codes, or a plain type.
pub(super) fn choose(
    codes: Codes,
    mapping: &Mapping,
    recipes: &[Recipe],
    source: &dyn WeightSource,
    packings: PackingsOf<'_>,
) -> Result<Vec<ChosenStorage>, SourceError> {
    let keeps_blocks =
        |output: &OutputSpec| codes != Codes::Float && output.type_rule.entry == EntryType::Blocks;
    let outputs = mapping.outputs.iter().zip(recipes);
    // Scales are read only for tensors that may keep their codes.
    let is_open = |output: &OutputSpec| match codes {
        Codes::Card | Codes::Float => keeps_blocks(output),
        Codes::Native { .. } | Codes::Keep(_) => true,
    };
    let found: Vec<Option<FittingTypes>> = outputs
        .clone()
        .map(|(output, recipe)| {
            is_open(output).then(|| fits(&output.name, mapping, recipe, packings)).transpose()
        })
        .collect::<Result<_, _>>()?;
    let is_wanted = |output: &OutputSpec, fit: &FittingType| {
        let by_codes = match codes {
            Codes::Card | Codes::Float => false,
            Codes::Native { allow_rounding } => fit.ty.is_quantized() && (allow_rounding || fit.is_exact()),
            Codes::Keep(ty) => fit.ty == ty,
        };
        by_codes || (keeps_blocks(output) && fit.ty.is_quantized() && fit.is_exact())
    };
    // A role is written in one type: the first that all its tensors share.
    let mut by_role: BTreeMap<String, Vec<GgmlType>> = BTreeMap::new();
    for (output, fits) in mapping.outputs.iter().zip(&found) {
        let own = fits.iter().flat_map(|fits| &fits.found).filter(|fit| is_wanted(output, fit));
        let own: Vec<GgmlType> = own.map(|fit| fit.ty).collect();
        by_role
            .entry(role(&output.name))
            .and_modify(|shared| shared.retain(|ty| own.contains(ty)))
            .or_insert(own);
    }
    let choice = |((output, recipe), fits): ((&OutputSpec, &Recipe), Option<FittingTypes>)| {
        let ty = by_role.get(&role(&output.name)).and_then(|types| types.first());
        let Some(fits) = fits else {
            return ChosenStorage { ty: output.ggml_type(mapping.file_type), fit: None, reason: None };
        };
        let fit = ty.and_then(|ty| fits.found.iter().find(|fit| fit.ty == *ty)).cloned();
        if let Some(fit) = fit {
            return ChosenStorage { ty: fit.ty, fit: Some(fit), reason: None };
        }
        let ty = match codes {
            Codes::Native { .. } => narrowest(output.ggml_type(OutType::F16), recipe, &fits.found),
            Codes::Card | Codes::Float | Codes::Keep(_) => output.ggml_type(mapping.file_type),
        };
        let has_blocks = fits.found.iter().any(|fit| fit.ty.is_quantized());
        let reason = match codes {
            _ if fits.found.iter().any(|fit| is_wanted(output, fit)) => FloatReason::Role,
            Codes::Keep(ty) if has_blocks => FloatReason::OtherType(ty),
            _ if has_blocks => FloatReason::Rounding,
            _ => fits.reason,
        };
        let counted = if matches!(codes, Codes::Native { .. }) { Counted::All } else { Counted::Integers };
        ChosenStorage { ty, fit: None, reason: has_codes(recipe, source, counted).then_some(reason) }
    };
    Ok(outputs.zip(found).map(choice).collect())
}

/// Element types that count as codes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Integers.
    Integers,
    /// Integers and 8-bit floats.
    All,
}

/// Returns true if a tensor is made of codes.
fn has_codes(recipe: &Recipe, source: &dyn WeightSource, counted: Counted) -> bool {
    let is_code = |ty: ElementType| counted == Counted::All || !is_fp8(ty);
    recipe.weights().into_iter().any(|weight| source.code_type(weight).is_some_and(is_code))
}

fn is_fp8(ty: ElementType) -> bool {
    matches!(ty, ElementType::F8E4M3 | ElementType::F8E5M2)
}

/// Returns the storage of a tensor's codes in blocks of `ty`, or the reason against it; `None` without codes.
pub(super) fn keep(
    ty: GgmlType,
    name: &str,
    mapping: &Mapping,
    recipe: &Recipe,
    source: &dyn WeightSource,
) -> Result<Option<Result<FittingType, FloatReason>>, SourceError> {
    if !has_codes(recipe, source, Counted::Integers) {
        return Ok(None);
    }
    let FittingTypes { found, reason } = fits(name, mapping, recipe, &|weight| source.packings(weight))?;
    let has_blocks = found.iter().any(|fit| fit.ty.is_quantized());
    let reason = if has_blocks { FloatReason::OtherType(ty) } else { reason };
    Ok(Some(found.into_iter().find(|fit| fit.ty == ty).ok_or(reason)))
}

/// Returns the type of a tensor made of 8-bit floats under `--fp8-as-q8`; `None` if the card sets the type. Its last
/// weight decides.
///
/// # Exactness
/// `--fp8-as-q8` of llama.cpp 0.5.0: vectors and norms stay F32; rows that are not whole blocks become F16.
pub(super) fn fp8_as_q8(output: &OutputSpec, recipe: &Recipe, source: &dyn WeightSource) -> Option<GgmlType> {
    let last = recipe.weights().into_iter().max()?;
    let is_fp8 = source.code_type(last).is_some_and(is_fp8);
    let is_free = output.type_rule.entry == EntryType::Auto
        && output.shape.rank() > 1
        && !output.name.ends_with("_norm.weight");
    let fits = GgmlType::Q8_0.row_bytes(output.shape.n_cols()).is_some();
    (is_fp8 && is_free).then_some(if fits { GgmlType::Q8_0 } else { GgmlType::F16 })
}

/// Order of the tensors in the file: NVFP4 before all others, by the position of their last weight.
///
/// # Exactness
/// llama.cpp 0.5.0 writes NVFP4 tensors while it reads the checkpoint, before it maps anything else.
pub(super) fn file_order(choices: &[ChosenStorage], recipes: &[Recipe]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by_cached_key(|&at| match choices[at].fit {
        Some(FittingType { ty: GgmlType::Nvfp4, .. }) => (0, recipes[at].weights().into_iter().max()),
        _ => (1, None),
    });
    order
}

/// Returns the narrowest type that holds every value, for a tensor that becomes `as_f16` in an F16 file.
fn narrowest(as_f16: GgmlType, recipe: &Recipe, found: &[FittingType]) -> GgmlType {
    if as_f16 != GgmlType::F16 {
        return as_f16;
    }
    match recipe.native_type() {
        Some(ElementType::Bf16) => GgmlType::Bf16,
        Some(ElementType::F16) => GgmlType::F16,
        _ => {
            let exact = |ty| found.iter().any(|fit| fit.ty == ty && fit.is_exact());
            [GgmlType::Bf16, GgmlType::F16].into_iter().find(|&ty| exact(ty)).unwrap_or(GgmlType::F32)
        }
    }
}

/// Summarizes the kept codes by role.
pub(super) fn kept<'a>(tensors: impl Iterator<Item = (&'a TensorMeta, &'a FittingType)>) -> Vec<KeptRole> {
    let mut roles: Vec<KeptRole> = Vec::new();
    for (tensor, fit) in tensors {
        let role = role(&tensor.name);
        match roles.iter_mut().find(|kept| kept.role == role && kept.ty == fit.ty) {
            Some(kept) => {
                kept.n_tensors += 1;
                kept.scale_error = kept.scale_error.max(fit.scale_error);
            }
            None => roles.push(KeptRole { role, ty: fit.ty, n_tensors: 1, scale_error: fit.scale_error }),
        }
    }
    roles
}

/// Summarizes the codes that become floats by role and reason.
pub(super) fn floats<'a>(tensors: impl Iterator<Item = (&'a TensorMeta, FloatReason)>) -> Vec<FloatRole> {
    let mut roles: Vec<FloatRole> = Vec::new();
    for (tensor, reason) in tensors {
        let role = role(&tensor.name);
        match roles.iter_mut().find(|row| row.role == role && row.reason == reason) {
            Some(row) => row.n_tensors += 1,
            None => roles.push(FloatRole { role, n_tensors: 1, reason }),
        }
    }
    roles
}

/// Returns the declared type of the file if it differs from the requested one.
///
/// # Exactness
/// With [`Codes::Card`] equals llama.cpp 0.5.0: blocks of 4-bit floats give a file of floats a type of its own.
pub(super) fn counts_as<'f>(
    codes: Codes,
    asked: OutType,
    tensors: &[TensorMeta],
    mut fits: impl Iterator<Item = &'f FittingType>,
) -> Option<GgmlType> {
    match codes {
        Codes::Float | Codes::Keep(_) => None,
        Codes::Native { .. } => Some(largest(tensors)),
        Codes::Card => {
            let is_float = matches!(asked, OutType::F32 | OutType::F16 | OutType::Bf16);
            fits.next().filter(|_| is_float).map(|fit| fit.ty)
        }
    }
}

fn largest(tensors: &[TensorMeta]) -> GgmlType {
    let mut sizes: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for tensor in tensors {
        let size = sizes.entry(tensor.ty).or_default();
        *size = size.saturating_add(tensor.n_bytes().unwrap_or(0));
    }
    sizes.into_iter().max_by_key(|&(_, n_bytes)| n_bytes).map_or(GgmlType::F32, |(ty, _)| ty)
}
