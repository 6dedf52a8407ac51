//! Recipe of a file: the llama.cpp file type whose mixture its tensors match.
//!
//! A file declares its type in `general.file_type`, and users put it in the file name. [`Recipe`] ignores both. It runs
//! the mixture of every file type over the tensors and counts the differences.

use std::collections::BTreeMap;

use crate::choice::choose_types_of;
use crate::class::TensorRole;
use crate::{FileType, ModelFacts, QuantizeOptions, TensorClass};
use gguf_core::{GgmlType, TensorMeta};
use gguf_format::Metadata;

/// Maximum share of the values that deviate for a file to count as "near" a file type.
const NEAR: f64 = 0.4;
/// Maximum share of the values for deviations to count as single tensors and not as another mixture.
const FEW: f64 = 0.05;
/// Maximum ratio between the bits per weight of a custom mixture and those of the file type it is named after.
const BITS_RATIO: f64 = 1.34;

/// Deviations of the tensors from the mixture of one file type.
#[derive(Clone, Debug)]
struct MixtureDeviations {
    file_type: FileType,
    /// True if every matrix has the base type (`--pure`).
    is_pure: bool,
    /// Number of tensors with another type, by role and actual type.
    deviations: BTreeMap<(TensorClass, String), usize>,
    /// Share of the deviating tensors in the values of all matrices.
    share: f64,
    /// Bits per weight of the unchanged mixture.
    bits_per_weight: f64,
}

impl MixtureDeviations {
    /// Compares the tensors with one mixture; `None` if it cannot be applied to them.
    fn of(
        tensors: &[TensorMeta],
        facts: &ModelFacts,
        roles: &[TensorRole],
        options: &QuantizeOptions,
        imatrix: bool,
    ) -> Option<Self> {
        let base = options.file_type.base()?;
        let choices = choose_types_of(facts, tensors, roles, options, imatrix).ok()?;
        let mut deviations = BTreeMap::new();
        let (mut n_all, mut n_other, mut n_bits) = (0.0, 0.0, 0.0);
        for ((tensor, role), choice) in tensors.iter().zip(roles).zip(choices) {
            let n_elems = tensor.shape.n_elems() as f64;
            n_bits += n_elems * choice.ty.bits_per_weight();
            if !role.is_matrix {
                continue;
            }
            n_all += n_elems;
            if tensor.ty != choice.ty && !is_native(base, tensor) {
                n_other += n_elems;
                *deviations.entry((choice.class, tensor.ty.name().to_owned())).or_default() += 1;
            }
        }
        let n_elems: f64 = tensors.iter().map(|tensor| tensor.shape.n_elems() as f64).sum();
        Some(Self {
            file_type: options.file_type,
            is_pure: options.pure,
            deviations,
            share: if n_all > 0.0 { n_other / n_all } else { 0.0 },
            bits_per_weight: n_bits / n_elems.max(1.0),
        })
    }

    fn is_exact(&self) -> bool {
        self.deviations.is_empty()
    }

    /// Returns true if only the embeddings and the output deviate, which have separate options.
    fn is_variant(&self) -> bool {
        let is_free = |class: TensorClass| matches!(class, TensorClass::TokenEmbd | TensorClass::Output);
        self.deviations.keys().all(|(class, _)| is_free(*class)) && self.share < 1.0
    }

    /// Describes the candidate, as in `Q4_K_M with Q6_K embeddings`.
    fn describe(&self, n_matrices: usize) -> String {
        let name = self.file_type.name();
        let pure = if self.is_pure { ", pure" } else { "" };
        if self.is_exact() {
            let is_float = self.file_type.base().is_some_and(|base| !base.is_quantized());
            return if is_float { name.to_owned() } else { format!("{name} of llama.cpp{pure}") };
        }
        let n: usize = self.deviations.values().sum();
        if self.is_variant() || (self.share <= FEW && self.deviations.len() <= 3) {
            let named = self.deviations.keys().map(|(class, ty)| match class {
                TensorClass::TokenEmbd => format!("{ty} embeddings"),
                TensorClass::Output => format!("{ty} output"),
                TensorClass::Other => format!("other tensors in {ty}"),
                class => format!("{class} in {ty}"),
            });
            return format!("{name}{pure} with {}", named.collect::<Vec<_>>().join(", "));
        }
        format!("own mixture near {name} ({n} of {n_matrices} matrices have another type)")
    }
}

/// Returns true for blocks of the original checkpoint, which a file of another type keeps: experts in any file, other
/// weights among floats. Such a file is named after its other tensors.
fn is_native(base: GgmlType, tensor: &TensorMeta) -> bool {
    tensor.ty != base
        && is_of_checkpoints(tensor.ty)
        && (!base.is_quantized() || tensor.name.contains("_exps"))
}

fn is_of_checkpoints(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Mxfp4 | GgmlType::Nvfp4)
}

/// Recipe that the types of a file's tensors match.
#[derive(Clone, Debug)]
pub struct Recipe {
    candidates: Vec<MixtureDeviations>,
    n_matrices: usize,
    /// Types of the matrices.
    types: Vec<GgmlType>,
    /// Types of blocks of the original checkpoint that experts or most matrices have: a file may be named after them,
    /// whatever the others are.
    native: Vec<GgmlType>,
    /// True if no matrix was quantized, except for blocks of the original checkpoint.
    is_of_floats: bool,
    /// Type of most values of the matrices, without embeddings and output.
    most: Option<GgmlType>,
    /// Type with the most bytes: the label of a file that keeps the blocks of its checkpoint.
    largest: Option<GgmlType>,
    bits_per_weight: f64,
}

impl Recipe {
    /// Compares the tensors, in file order, with the mixtures of all file types, both with and without an importance
    /// matrix. Uses only names, shapes and types.
    pub fn of(metadata: &Metadata, tensors: &[TensorMeta]) -> Self {
        let facts = ModelFacts::new(metadata, &[], tensors);
        let roles = facts.roles(tensors);
        let ways = [(false, false), (false, true), (true, false)];
        let types = || FileType::all().filter(|file_type| *file_type != FileType::Copy);
        let candidate = |file_type: FileType, (pure, imatrix): (bool, bool)| {
            let options = QuantizeOptions { pure, ..QuantizeOptions::new(file_type) };
            MixtureDeviations::of(tensors, &facts, &roles, &options, imatrix)
        };
        let candidates = ways.into_iter().flat_map(|way| types().map(move |file_type| (file_type, way)));
        let candidates = candidates.filter_map(|(file_type, way)| candidate(file_type, way)).collect();
        let matrices =
            || tensors.iter().zip(&roles).filter(|(_, role)| role.is_matrix).map(|(tensor, _)| tensor);
        let most = most_common(matrices());
        let (mut n_bits, mut n_elems) = (0.0, 0.0);
        for tensor in tensors {
            n_elems += tensor.shape.n_elems() as f64;
            n_bits += tensor.shape.n_elems() as f64 * tensor.ty.bits_per_weight();
        }
        Self {
            candidates,
            n_matrices: matrices().count(),
            types: matrices().map(|tensor| tensor.ty).collect(),
            native: matrices()
                .filter(|tensor| is_native(GgmlType::Q8_0, tensor))
                .map(|tensor| tensor.ty)
                .chain(most.filter(|ty| is_of_checkpoints(*ty)))
                .collect(),
            is_of_floats: matrices().all(|tensor| !tensor.ty.is_quantized() || is_of_checkpoints(tensor.ty)),
            most,
            largest: largest(tensors),
            bits_per_weight: n_bits / f64::max(n_elems, 1.0),
        }
    }

    /// Bits per weight of all tensors.
    pub fn bits_per_weight(&self) -> f64 {
        self.bits_per_weight
    }

    /// Bits per weight of this model in a file type; `None` if the model cannot have it.
    pub fn bits_per_weight_as(&self, file_type: FileType) -> Option<f64> {
        self.as_type(file_type).next().map(|candidate| candidate.bits_per_weight)
    }

    /// Describes the recipe: `Q4_K_M of llama.cpp`, `Q4_K_M with Q6_K embeddings`, `own mixture near Q3_K_M (…)`. If
    /// several file types fit equally well, `claimed` is preferred.
    pub fn describe(&self, claimed: Option<FileType>) -> String {
        if self.n_matrices == 0 {
            return "no matrices to quantize".to_owned();
        }
        match self.nearest(claimed) {
            Some(nearest) if nearest.share <= NEAR => nearest.describe(self.n_matrices),
            _ => {
                let most = self.most.map(|ty| format!(", mostly {ty}")).unwrap_or_default();
                format!("own mixture{most}")
            }
        }
    }

    /// File type that the tensors match, possibly except for embeddings and output; `claimed` if it is one of several.
    pub fn file_type(&self, claimed: Option<FileType>) -> Option<FileType> {
        self.nearest(claimed).filter(|nearest| nearest.is_variant()).map(|nearest| nearest.file_type)
    }

    /// Returns true if a file with these tensors may have the name of a file type. The tensors match it (except for
    /// embeddings and output), or they are a custom mixture with the base type or the size of the file type.
    pub fn may_be_called(&self, file_type: FileType) -> bool {
        let is_it = |candidate: &MixtureDeviations| {
            candidate.is_exact() || (!candidate.is_pure && candidate.is_variant())
        };
        let is_native = file_type.base().is_some_and(|base| self.native.contains(&base));
        if self.n_matrices == 0 || is_native || self.as_type(file_type).any(is_it) {
            return true;
        }
        if self.candidates.iter().any(MixtureDeviations::is_exact) {
            return false;
        }
        if self.largest.is_some() && self.largest == file_type.base() {
            return true;
        }
        // In files named after one float type, some tensors stay in finer ones.
        let is_float = file_type.base().is_some_and(|base| !base.is_quantized());
        if is_float && self.is_of_floats && file_type.base().is_some_and(|base| self.types.contains(&base)) {
            return true;
        }
        let has_base = file_type.base().is_some() && self.most == file_type.base();
        let nearest = self.nearest(None);
        let is_other = nearest
            .is_some_and(|nearest| nearest.share <= FEW && nearest.file_type.base() != file_type.base());
        has_base || (!is_other && self.has_bits_of(file_type, BITS_RATIO))
    }

    /// File type that a file with these tensors is named after: the first of `wanted` if it may be, else that of the
    /// tensors, else another one that it may be named after; `None` if there is none.
    pub fn label(&self, wanted: &[FileType]) -> Option<FileType> {
        let (first, others) = wanted.split_at(wanted.len().min(1));
        let all = first.iter().copied().chain(self.file_type(None)).chain(others.iter().copied());
        let named = FileType::all().filter(|file_type| *file_type != FileType::Copy);
        all.chain(named).find(|&file_type| self.may_be_called(file_type))
    }

    /// Returns true if the bits per weight are those of a file type, within a factor.
    pub fn has_bits_of(&self, file_type: FileType, factor: f64) -> bool {
        let Some(expected) = self.bits_per_weight_as(file_type) else { return false };
        let ratio = self.bits_per_weight / expected;
        (1.0 / factor..=factor).contains(&ratio)
    }

    fn as_type(&self, file_type: FileType) -> impl Iterator<Item = &MixtureDeviations> {
        self.candidates.iter().filter(move |candidate| candidate.file_type == file_type)
    }

    /// Candidate with the fewest deviations; of equal ones the claimed type, then one that is not pure.
    fn nearest(&self, claimed: Option<FileType>) -> Option<&MixtureDeviations> {
        let rank = |candidate: &MixtureDeviations| {
            let is_claimed = Some(candidate.file_type) == claimed;
            (candidate.share, !candidate.is_exact(), !is_claimed, candidate.is_pure)
        };
        self.candidates.iter().min_by(|a, b| {
            let (a, b) = (rank(a), rank(b));
            a.0.total_cmp(&b.0).then_with(|| (a.1, a.2, a.3).cmp(&(b.1, b.2, b.3)))
        })
    }
}

fn largest(tensors: &[TensorMeta]) -> Option<GgmlType> {
    let mut sizes: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for tensor in tensors {
        let size = sizes.entry(tensor.ty).or_default();
        *size = size.saturating_add(tensor.n_bytes().unwrap_or(0));
    }
    sizes.into_iter().max_by_key(|&(_, n_bytes)| n_bytes).map(|(ty, _)| ty)
}

/// Type of most values of the matrices other than embeddings and output; of all matrices if there are no others.
fn most_common<'a>(matrices: impl Iterator<Item = &'a TensorMeta>) -> Option<GgmlType> {
    let mut counts: BTreeMap<(bool, String), (f64, GgmlType)> = BTreeMap::new();
    for tensor in matrices {
        let is_inner = !matches!(TensorClass::of(&tensor.name), TensorClass::TokenEmbd | TensorClass::Output);
        let count = counts.entry((is_inner, tensor.ty.name().to_owned())).or_insert((0.0, tensor.ty));
        count.0 += tensor.shape.n_elems() as f64;
    }
    let inner = counts.keys().any(|(is_inner, _)| *is_inner);
    let own = counts.iter().filter(|((is_inner, _), _)| *is_inner == inner).map(|(_, count)| *count);
    own.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, ty)| ty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose_types;
    use gguf_core::Shape;

    fn tensors(
        file_type: FileType,
        change: impl Fn(&str) -> Option<GgmlType>,
    ) -> (Metadata, Vec<TensorMeta>) {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.block_count", 8u32);
        metadata.set("llama.attention.head_count", 8u32);
        metadata.set("llama.attention.head_count_kv", 4u32);
        let mut names = vec!["token_embd.weight".to_owned(), "output.weight".to_owned()];
        for layer in 0..8 {
            let roles = ["attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up"];
            names.extend(roles.map(|role| format!("blk.{layer}.{role}.weight")));
        }
        let meta = |name| TensorMeta { name, shape: Shape::new(vec![512, 512]).unwrap(), ty: GgmlType::F16 };
        let plain: Vec<TensorMeta> = names.into_iter().map(meta).collect();
        let facts = ModelFacts::new(&metadata, &[], &plain);
        let choices = choose_types(&facts, &plain, &QuantizeOptions::new(file_type), false).unwrap();
        let made = plain.into_iter().zip(choices).map(|(meta, choice)| {
            let ty = change(&meta.name).unwrap_or(choice.ty);
            TensorMeta { ty, ..meta }
        });
        let made = made.collect();
        (metadata, made)
    }

    fn recipe(file_type: FileType, change: impl Fn(&str) -> Option<GgmlType>) -> Recipe {
        let (metadata, tensors) = tensors(file_type, change);
        Recipe::of(&metadata, &tensors)
    }

    #[test]
    fn every_file_type_is_told_by_its_tensors() {
        for file_type in FileType::all().filter(|file_type| file_type.base().is_some()) {
            let found = recipe(file_type, |_| None);
            assert!(found.may_be_called(file_type), "{file_type}: {}", found.describe(None));
            assert_eq!(found.file_type(Some(file_type)), Some(file_type));
            assert!(found.describe(Some(file_type)).starts_with(file_type.name()));
            let others = FileType::all().filter(|other| *other != file_type && other.base().is_some());
            for other in others.filter(|other| !alike(file_type, *other)) {
                assert!(!found.may_be_called(other), "{file_type} is called {other}");
            }
        }
    }

    /// Returns true for file types that give a model without experts the same types.
    fn alike(a: FileType, b: FileType) -> bool {
        let pairs = [(FileType::Mxfp4Moe, FileType::Q8_0)];
        pairs.contains(&(a, b)) || pairs.contains(&(b, a))
    }

    #[test]
    fn what_options_change_is_said_and_allowed() {
        let embeddings =
            recipe(FileType::Q4KM, |name| (name == "token_embd.weight").then_some(GgmlType::Q8_0));
        assert_eq!(embeddings.describe(None), "Q4_K_M with Q8_0 embeddings");
        assert!(embeddings.may_be_called(FileType::Q4KM) && !embeddings.may_be_called(FileType::Q8_0));
        let pure = recipe(FileType::Q4KM, |_| Some(GgmlType::Q4K));
        assert_eq!(pure.describe(Some(FileType::Q4KM)), "Q4_K_M of llama.cpp, pure");
        assert!(pure.may_be_called(FileType::Q4KM) && !pure.may_be_called(FileType::Q5KM));
        let own = recipe(FileType::Q3KM, |name| name.contains("attn_q").then_some(GgmlType::Q6K));
        assert!(
            own.describe(None).starts_with("own mixture near Q3_K_M (8 of 58 matrices"),
            "{}",
            own.describe(None)
        );
        assert!(own.may_be_called(FileType::Q3KM) && !own.may_be_called(FileType::Q8_0));
        let one = recipe(FileType::Q3KM, |name| (name == "blk.3.attn_q.weight").then_some(GgmlType::Q6K));
        assert_eq!(one.describe(None), "Q3_K_M with attn_q in Q6_K");
        assert!(!one.may_be_called(FileType::Q4KS));
    }

    #[test]
    fn a_label_is_the_first_that_the_tensors_do_not_contradict() {
        let sizes = [FileType::Q3KL, FileType::Q4KS, FileType::Q3KM];
        for ty in [GgmlType::Q4K, GgmlType::Iq4Nl, GgmlType::Q4_1] {
            let pure = recipe(FileType::Q4KM, |_| Some(ty));
            assert!(!pure.may_be_called(sizes[0]), "{ty}");
            assert!(
                pure.label(&sizes).is_some_and(|label| label.base() == Some(ty) && pure.may_be_called(label))
            );
        }
        let own = recipe(FileType::Q3KL, |name| name.contains("attn_q").then_some(GgmlType::Q6K));
        assert_eq!(own.label(&sizes), Some(FileType::Q3KL));
    }

    #[test]
    fn floats_of_several_types_may_be_called_after_one_of_them() {
        let mixed = recipe(FileType::F16, |name| name.contains("ffn").then_some(GgmlType::F32));
        assert!(mixed.may_be_called(FileType::F16) && mixed.may_be_called(FileType::F32));
        assert!(!mixed.may_be_called(FileType::Bf16) && !mixed.may_be_called(FileType::Q8_0));
        let plain = recipe(FileType::F16, |_| None);
        assert!(!plain.may_be_called(FileType::F32));
    }

    #[test]
    fn blocks_of_the_checkpoint_may_stand_between_floats() {
        let native = recipe(FileType::Bf16, |name| name.contains("ffn").then_some(GgmlType::Mxfp4));
        assert!(native.may_be_called(FileType::Bf16) && !native.may_be_called(FileType::Q8_0));
        let mostly = recipe(FileType::Bf16, |name| (!name.contains("attn_q")).then_some(GgmlType::Mxfp4));
        assert!(mostly.may_be_called(FileType::Mxfp4Moe) && !mostly.may_be_called(FileType::Q8_0));
    }

    #[test]
    fn experts_of_the_checkpoint_may_stand_in_any_file() {
        for file_type in [FileType::Q8_0, FileType::F16, FileType::Q4KM] {
            let (metadata, mut tensors) = tensors(file_type, |_| None);
            for tensor in &mut tensors {
                if tensor.name.contains("ffn") {
                    tensor.name = tensor.name.replace(".weight", "_exps.weight");
                    tensor.ty = GgmlType::Mxfp4;
                    tensor.shape = Shape::new(vec![64, 512, 512]).unwrap();
                }
            }
            let found = Recipe::of(&metadata, &tensors);
            for (other, may_be) in [
                (file_type, true),
                (FileType::Mxfp4Moe, true),
                (FileType::Q2K, false),
                (FileType::Q4_0, false),
            ] {
                assert_eq!(found.may_be_called(other), may_be, "{file_type} as {other}");
            }
        }
    }
}
