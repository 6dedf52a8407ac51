//! Weights that are stored as integer codes: which tensors of the output keep them, and at what price.

use std::collections::BTreeMap;

use crate::arch::{EntryType, FileType, Mapping, OutputSpec};
use crate::core::{ElementType, GgmlType, Packing, SourceError, TensorMeta, WeightSource};
use crate::transform::Recipe;

/// What becomes of integer codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codes {
    /// As the card says: they become floats, as any other weight, unless the entry keeps blocks (`type = "blocks"`).
    #[default]
    Card,
    /// They become floats.
    Float,
    /// They are kept in block types that hold the values; what does not fit is written in the narrowest float type
    /// that is exact. With `allow_rounding` scales may be rounded to what a block stores.
    Native {
        /// Whether a rounded scale is good enough.
        allow_rounding: bool,
    },
    /// They are kept where a block type of this kind holds the codes, with scales rounded to what a block stores, and
    /// where the card says so.
    Keep(GgmlType),
}

/// Tensors of one role that keep their codes.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptRole {
    /// Name with `*` for the layer.
    pub role: String,
    /// Their type.
    pub ty: GgmlType,
    /// How many there are.
    pub n_tensors: usize,
    /// Largest relative error of a scale; 0 if every value is exact.
    pub scale_error: f32,
}

/// The name without its layer: tensors of one role are treated alike.
fn role(name: &str) -> String {
    let inside = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    inside.map_or_else(|| name.to_owned(), |(_, rest)| format!("blk.*.{rest}"))
}

/// Packings that hold the whole of a tensor: those that all its weights share.
///
/// # Errors
/// The source failed.
pub(super) fn packings(recipe: &Recipe, source: &dyn WeightSource) -> Result<Vec<Packing>, SourceError> {
    let mut shared: Option<Vec<Packing>> = None;
    for weight in recipe.weights() {
        let own = source.packings(weight)?;
        shared = Some(match shared {
            None => own,
            Some(shared) => shared.iter().filter_map(|all| join(all, &own)).collect(),
        });
    }
    // A factor beside the blocks needs a companion tensor, which is not written: such weights go through floats.
    let has_companion = |packing: &Packing| packing.scale.is_some() || packing.input_scale.is_some();
    let fits = |packing: &Packing| recipe.keeps_blocks(packing.ty) && !has_companion(packing);
    Ok(shared.unwrap_or_default().into_iter().filter(fits).collect())
}

/// The same packing among those of another weight. Weights with a factor of their own cannot share one tensor.
fn join(all: &Packing, own: &[Packing]) -> Option<Packing> {
    let other = own.iter().find(|other| other.ty == all.ty)?;
    let same = all.scale == other.scale && all.input_scale == other.input_scale;
    same.then(|| Packing { scale_error: all.scale_error.max(other.scale_error), ..all.clone() })
}

/// Decides for every tensor how `codes` is met: a packing, or a plain type in its place.
///
/// # Errors
/// The source failed.
pub(super) fn choose(
    codes: Codes,
    mapping: &Mapping,
    recipes: &[Recipe],
    source: &dyn WeightSource,
) -> Result<Vec<(GgmlType, Option<Packing>)>, SourceError> {
    let keeps_blocks =
        |output: &OutputSpec| codes != Codes::Float && output.type_rule.entry == EntryType::Blocks;
    let mut found = Vec::with_capacity(recipes.len());
    for (output, recipe) in mapping.outputs.iter().zip(recipes) {
        let is_open = match codes {
            Codes::Card | Codes::Float => keeps_blocks(output),
            Codes::Native { .. } | Codes::Keep(_) => true,
        };
        found.push(if is_open { packings(recipe, source)? } else { Vec::new() });
    }
    let is_wanted = |output: &OutputSpec, packing: &Packing| {
        let by_codes = match codes {
            Codes::Card | Codes::Float => false,
            Codes::Native { allow_rounding } => {
                packing.ty.is_quantized() && (allow_rounding || packing.is_exact())
            }
            Codes::Keep(ty) => packing.ty == ty,
        };
        by_codes || (keeps_blocks(output) && packing.ty.is_quantized() && packing.is_exact())
    };
    // A role is written in one type: the first that all its tensors have.
    let mut by_role: BTreeMap<String, Vec<GgmlType>> = BTreeMap::new();
    for (output, found) in mapping.outputs.iter().zip(&found) {
        let own: Vec<GgmlType> = found.iter().filter(|p| is_wanted(output, p)).map(|p| p.ty).collect();
        by_role
            .entry(role(&output.name))
            .and_modify(|shared| shared.retain(|ty| own.contains(ty)))
            .or_insert(own);
    }
    let chosen = mapping.outputs.iter().zip(recipes).zip(found).map(|((output, recipe), found)| {
        let ty = by_role.get(&role(&output.name)).and_then(|types| types.first());
        let packing = ty.and_then(|ty| found.iter().find(|packing| packing.ty == *ty)).cloned();
        let plain = match codes {
            Codes::Native { .. } => narrowest(output.ggml_type(FileType::F16), recipe, &found),
            Codes::Card | Codes::Float | Codes::Keep(_) => output.ggml_type(mapping.file_type),
        };
        packing.map_or((plain, None), |packing| (packing.ty, Some(packing)))
    });
    Ok(chosen.collect())
}

/// The narrowest type that holds every value, for a tensor that becomes `as_f16` in a file of F16.
fn narrowest(as_f16: GgmlType, recipe: &Recipe, found: &[Packing]) -> GgmlType {
    if as_f16 != GgmlType::F16 {
        return as_f16;
    }
    match recipe.native_type() {
        Some(ElementType::Bf16) => GgmlType::Bf16,
        Some(ElementType::F16) => GgmlType::F16,
        _ => {
            let exact = |ty| found.iter().any(|packing| packing.ty == ty && packing.is_exact());
            [GgmlType::Bf16, GgmlType::F16].into_iter().find(|&ty| exact(ty)).unwrap_or(GgmlType::F32)
        }
    }
}

/// Adds up what was kept, by role.
pub(super) fn kept(tensors: &[TensorMeta], packings: &[Option<Packing>]) -> Vec<KeptRole> {
    let mut roles: Vec<KeptRole> = Vec::new();
    for (tensor, packing) in tensors.iter().zip(packings) {
        let Some(packing) = packing else { continue };
        let role = role(&tensor.name);
        match roles.iter_mut().find(|kept| kept.role == role && kept.ty == packing.ty) {
            Some(kept) => {
                kept.n_tensors += 1;
                kept.scale_error = kept.scale_error.max(packing.scale_error);
            }
            None => {
                let scale_error = packing.scale_error;
                roles.push(KeptRole { role, ty: packing.ty, n_tensors: 1, scale_error });
            }
        }
    }
    roles
}

/// The type that a file counts as, where that is not the one it was asked for.
///
/// # Exactness
/// With [`Codes::Card`] equals llama.cpp 0.5.0: blocks of 4-bit floats make a type of their own of a file of floats.
pub(super) fn counts_as(
    codes: Codes,
    asked: FileType,
    tensors: &[TensorMeta],
    packings: &[Option<Packing>],
) -> Option<GgmlType> {
    match codes {
        Codes::Float | Codes::Keep(_) => None,
        Codes::Native { .. } => Some(largest(tensors)),
        Codes::Card => {
            let is_float = matches!(asked, FileType::F32 | FileType::F16 | FileType::Bf16);
            packings.iter().flatten().next().filter(|_| is_float).map(|packing| packing.ty)
        }
    }
}

/// The type with the most bytes.
fn largest(tensors: &[TensorMeta]) -> GgmlType {
    let mut sizes: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for tensor in tensors {
        let size = sizes.entry(tensor.ty).or_default();
        *size = size.saturating_add(tensor.n_bytes().unwrap_or(0));
    }
    sizes.into_iter().max_by_key(|&(_, n_bytes)| n_bytes).map_or(GgmlType::F32, |(ty, _)| ty)
}

/// `general.file_type` of a file that counts as this type.
pub(super) fn file_type_id(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::F16 => 1,
        GgmlType::Q4_0 => 2,
        GgmlType::Q4_1 => 3,
        GgmlType::Q8_0 => 7,
        GgmlType::Q5_0 => 8,
        GgmlType::Q5_1 => 9,
        GgmlType::Bf16 => 32,
        GgmlType::Tq1_0 => 36,
        GgmlType::Tq2_0 => 37,
        GgmlType::Mxfp4 => 38,
        GgmlType::Nvfp4 => 39,
        GgmlType::Q2_0 => 41,
        _ => 0,
    }
}
