//! Types of the tensors of image and video models.

use crate::Result;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::alike::Unlike;
use super::card::DiffusionCard;
use super::common::{ClassTypes, CommonRules, NamePrefix};
use super::layout::{Layout, fewest};
use super::modules;
use super::registry::{DiffusionCards, Recognition};
use gguf_core::text::escape;
use gguf_core::{ElementType, GgmlType, Shape, TensorMeta, TensorSource};
use gguf_format::{FileType, GgufFile, HeaderError, Metadata, Value};

/// Values of a row after a tensor of short rows is written in longer ones.
const ROW: u64 = 256;
/// Fewest values of such a tensor.
const RESHAPED: u64 = 512;
/// Fewest dimensions of tensors that stay F32 because runtimes have no blocks for them.
const F32_DIMS: usize = 5;
/// Dimensions of the weights of convolutions over time.
const OVER_TIME: usize = 3;
/// Ends of the names of a layer's parameters.
const OF_LAYERS: [&str; 2] = [".weight", ".bias"];

/// Returns what readers tolerate in the header of a file. A tensor without elements that shows a setting by its presence is
/// no flaw.
pub fn header_flaws(file: &GgufFile) -> Vec<(&Path, &HeaderError)> {
    let mut flaws: Vec<_> = file.tolerated().collect();
    if flaws.iter().any(|(_, flaw)| matches!(flaw, HeaderError::DimensionZero { .. })) {
        let rules = DiffusionRules::of_file(file.metadata(), file.tensors()).ok().flatten();
        let is_marker = |name: &str| rules.as_ref().is_some_and(|rules| rules.is_marker(name));
        flaws.retain(
            |(_, flaw)| !matches!(flaw, HeaderError::DimensionZero { tensor, .. } if is_marker(tensor)),
        );
    }
    flaws
}

/// Rules for the tensors of one architecture, or of a model that no card knows.
#[derive(Clone, Debug)]
pub struct DiffusionRules {
    common: Arc<CommonRules>,
    card: Option<Arc<DiffusionCard>>,
    /// Prefix of the diffusion model's names in a file of several models, of which only it is quantized.
    prefix: Option<String>,
}

/// Rules are the same if their cards have the same architecture.
impl PartialEq for DiffusionRules {
    fn eq(&self, other: &Self) -> bool {
        self.card.as_ref().map(|card| &card.gguf) == other.card.as_ref().map(|card| &card.gguf)
    }
}

impl Eq for DiffusionRules {}

impl DiffusionRules {
    /// Rules of a card.
    pub fn new(cards: &DiffusionCards, card: &Arc<DiffusionCard>) -> Self {
        Self { common: Arc::clone(cards.common()), card: Some(Arc::clone(card)), prefix: None }
    }

    /// Returns the rules for the tensors of a GGUF file; `None` for a language model.
    ///
    /// The architecture decides. A file without a known one is recognized by its tensor names; one that looks like an
    /// image model and is not recognized gets cautious rules, without a card.
    ///
    /// # Errors
    /// [`Card`](crate::ArchError::Card); never in a program that passes its tests.
    pub fn of_file(metadata: &Metadata, tensors: &[TensorMeta]) -> Result<Option<Self>> {
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let cards = DiffusionCards::embedded()?;
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        // stable-diffusion.cpp writes whole checkpoints, with their prefixes.
        let of_card = |card: &Arc<DiffusionCard>, prefix: NamePrefix<'_>| {
            Some(Self { prefix: prefix.text().map(ToOwned::to_owned), ..Self::new(cards, card) })
        };
        if let Some(card) = cards.by_gguf(arch) {
            return Ok(of_card(card, cards.prefix(&names)));
        }
        let has_keys = metadata.iter().any(|(key, _)| !arch.is_empty() && in_arch(key, arch));
        let is_language = |tensor: &TensorMeta| {
            let name = tensor.name.as_str();
            name.starts_with("blk.") || name.contains(".blk.") || name == "token_embd.weight"
        };
        if has_keys
            || crate::registry::Registry::knows(arch)
            || arch == "clip"
            || tensors.iter().any(is_language)
        {
            return Ok(None);
        }
        let common = cards.common();
        let prefix = cards.prefix(&names);
        let own: Vec<String> = names.iter().filter_map(|name| prefix.strip(name)).collect();
        if let Recognition::Card(card) = cards.recognize(&own.iter().map(String::as_str).collect::<Vec<_>>())
        {
            return Ok(of_card(card, prefix));
        }
        let is_image = names.iter().any(|name| common.is_in_block(name));
        Ok(is_image.then(|| Self { common: Arc::clone(common), card: None, prefix: None }))
    }

    /// Card of the architecture; `None` for a model that no card knows.
    pub fn card(&self) -> Option<&DiffusionCard> {
        self.card.as_deref()
    }

    /// Returns true for the name of a tensor that shows a setting by its presence.
    fn is_marker(&self, name: &str) -> bool {
        self.card().is_some_and(|card| card.settings.iter().any(|row| row.marker == self.own_name(name)))
    }

    /// Returns the name of a tensor without the prefix of the diffusion model.
    pub fn own_name<'n>(&self, name: &'n str) -> &'n str {
        self.prefix.as_deref().and_then(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
    }

    /// Rules that all architectures share.
    pub fn common(&self) -> &CommonRules {
        &self.common
    }

    /// Type of a tensor that is not quantized. `wide` is the type of weights in place of the one that follows from the
    /// source.
    ///
    /// # Exactness
    /// Without `wide`, equals ComfyUI-GGUF's `convert.py`: vectors, small tensors and those on the card's list are F32
    /// only if the source is F32 or BF16; other sources become F16 throughout.
    pub fn plain_type(
        &self,
        tensor: &str,
        shape: &Shape,
        ty: ElementType,
        wide: Option<GgmlType>,
    ) -> GgmlType {
        if shape.rank() >= F32_DIMS || shape.n_elems() == 0 {
            return GgmlType::F32;
        }
        let weights = wide.unwrap_or(if ty == ElementType::Bf16 { GgmlType::Bf16 } else { GgmlType::F16 });
        let is_exact = wide.is_some() || matches!(ty, ElementType::Bf16 | ElementType::F32);
        let is_listed =
            || self.card.iter().flat_map(|card| &card.f32).any(|part| tensor.contains(part.as_str()));
        let is_kept = shape.rank() == 1 || shape.n_elems() <= self.common.small_elems || is_listed();
        // Runtimes do not decode such layers; the reference writes a file that they do not load.
        let is_undecoded = || weights == GgmlType::Bf16 && self.is_undecoded(tensor, shape);
        if is_exact && (is_kept || is_undecoded()) { GgmlType::F32 } else { weights }
    }

    /// Returns true for weights that ComfyUI-GGUF does not decode: it does matrices, convolutions over images and
    /// embeddings, not those over time and the layers on the card's list.
    fn is_undecoded(&self, name: &str, shape: &Shape) -> bool {
        let is_listed =
            |card: &Arc<DiffusionCard>| card.undecoded.iter().any(|part| name.contains(part.as_str()));
        shape.rank() == OVER_TIME && name.ends_with(".weight") || self.card.as_ref().is_some_and(is_listed)
    }

    /// Returns true for a tensor that ComfyUI-GGUF does not load in its type. It loads parameters of two and more
    /// dimensions that belong to no layer from F32 and F16.
    pub fn is_unloadable(&self, tensor: &TensorMeta) -> bool {
        let (name, shape) = (tensor.name.as_str(), &tensor.shape);
        let is_bare = shape.rank() > 1 && !OF_LAYERS.iter().any(|end| name.ends_with(end));
        (tensor.ty == GgmlType::Bf16 || tensor.ty.is_quantized())
            && (is_bare || self.is_undecoded(name, shape))
    }

    /// Describes the tensors of a file that ComfyUI does not load.
    pub fn unloadable(&self, tensors: &[TensorMeta]) -> Vec<String> {
        const AGAIN: &str = "`gguf-convert hf2gguf` of the checkpoint writes what it does";
        let of = |what: &str, is_one: &dyn Fn(&TensorMeta) -> bool| {
            let names = tensors.iter().filter(|tensor| is_one(tensor)).map(|tensor| tensor.name.as_str());
            first_names(names).map(|names| format!("{names}: {what}, which ComfyUI does not load; {AGAIN}"))
        };
        let lacks_dims = |tensor: &TensorMeta| {
            let mut rows = self.card.iter().flat_map(|card| &card.dims);
            rows.any(|(part, n)| tensor.name.contains(part.as_str()) && tensor.shape.rank() < *n)
        };
        let types =
            of("BF16 or blocks outside of the layers that are decoded", &|tensor| self.is_unloadable(tensor));
        let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let foreign = self.layout(&names).zip(names.iter().min()).map(|(layout, name)| {
            format!(
                "`{}`: a name of {program}, which {program} reads, and stable-diffusion.cpp for some models; `gguf-convert \
                 hf2gguf` of the checkpoint writes the names that ComfyUI-GGUF reads",
                escape(name),
                program = layout.program
            )
        });
        types.into_iter().chain(of("a lost dimension of 1", &lacks_dims)).chain(foreign).collect()
    }

    /// Returns the layout of another program that names have.
    fn layout(&self, names: &HashSet<&str>) -> Option<&Layout> {
        self.card()?.layout(|name| names.contains(name.as_str()))
    }

    /// Returns what a model of these names, without their prefix, lacks: first and last layers, and what other blocks
    /// have; and what only a few blocks have.
    pub fn unlike(&self, names: &[&str]) -> Unlike {
        let Some(card) = &self.card else { return Unlike::default() };
        let known: HashSet<&str> = names.iter().copied().collect();
        if self.layout(&known).is_some() {
            return Unlike::default();
        }
        let mut found = card.unlike(names);
        let ends = fewest(&card.needs, |name| known.contains(name)).into_iter().map(ToOwned::to_owned);
        found.missing.splice(0..0, ends);
        let unknown = modules::unknown(&card.gguf, names).into_iter().filter(|name| !card.leaves_out(name));
        found.unknown.extend(unknown.map(str::to_owned));
        found
    }

    /// Returns the same for a file, by the names that the tensors would have in it.
    pub fn unlike_in(&self, tensors: &[TensorMeta]) -> Unlike {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        let names: Vec<&str> = tensors.iter().filter_map(|tensor| tensor.name.strip_prefix(prefix)).collect();
        let whole = |names: Vec<String>| names.into_iter().map(|name| format!("{prefix}{name}")).collect();
        let Unlike { missing, odd, unknown } = self.unlike(&names);
        Unlike { missing: whole(missing), odd: whole(odd), unknown: whole(unknown) }
    }

    /// Returns the shape that a tensor is written in, if it differs.
    ///
    /// # Exactness
    /// ref: tensors of two or more dimensions whose rows are no whole blocks of 256, although all values together are.
    pub fn reshaped(&self, shape: &Shape) -> Option<Shape> {
        let n = shape.n_elems();
        let is_due = self.card.as_ref().is_some_and(|card| card.reshape)
            && (2..F32_DIMS).contains(&shape.rank())
            && n >= RESHAPED
            && n.is_multiple_of(ROW)
            && !shape.n_cols().is_multiple_of(ROW);
        if is_due { Shape::new(vec![n / ROW, ROW]) } else { None }
    }

    /// Returns true for weights that are quantized.
    ///
    /// # Exactness
    /// Equals the patched llama-quantize of ComfyUI-GGUF: matrices, after outer dimensions of 1 are dropped, whose name
    /// ends in `weight` and is on no list.
    pub fn is_quantized(&self, tensor: &TensorMeta) -> bool {
        let dims = tensor.shape.dims();
        let n_dims = dims.len() - dims.iter().take_while(|&&dim| dim == 1).count();
        let (name, prefix) = (tensor.name.as_str(), self.prefix.as_deref().unwrap_or_default());
        let Some(name) = name.strip_prefix(prefix) else { return false };
        let is_kept = || match &self.card {
            Some(card) => card.keeps(name),
            None => self.common.keeps_of_unknown(name),
        };
        n_dims == 2
            && dims.len() < F32_DIMS
            && !self.is_undecoded(name, &tensor.shape)
            && name.ends_with("weight")
            && tensor.shape.n_elems() > 0
            && !self.common.never.iter().any(|part| name.contains(part.as_str()))
            && !is_kept()
    }

    /// Returns the mixture of a file type; `None` if the type is not written for these models.
    pub fn mixture(&self, file_type: FileType) -> Option<DiffusionMixture<'_>> {
        let base = file_type.base()?;
        let row = if base.is_quantized() { Some(self.common.types(file_type)?) } else { None };
        Some(DiffusionMixture { rules: self, file_type, base, row, n_values: 0 })
    }
}

/// Returns the first of several names in backticks; `None` if there are none.
pub fn first_names<'n>(names: impl Iterator<Item = &'n str>) -> Option<String> {
    const SHOWN: usize = 4;
    let names: Vec<&str> = names.collect();
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{}`", escape(name))).collect();
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    (!names.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

fn in_arch(key: &str, arch: &str) -> bool {
    key.strip_prefix(arch).is_some_and(|rest| rest.starts_with('.'))
}

/// Walk over the weights of one model, in the order of the file.
pub struct DiffusionMixture<'a> {
    rules: &'a DiffusionRules,
    file_type: FileType,
    base: GgmlType,
    /// Types of the classes; `None` for a type of plain floats.
    row: Option<&'a ClassTypes>,
    n_values: usize,
}

impl DiffusionMixture<'_> {
    /// Type of the next weight.
    ///
    /// # Exactness
    /// ref: value projections are counted in the order of the file, whatever their block.
    pub fn choose(&mut self, name: &str) -> GgmlType {
        let Some(row) = self.row else { return self.base };
        let class = self.rules.common.class_of(name);
        let ty = row.of(class, self.n_values);
        if class == super::common::Class::Values {
            self.n_values += 1;
        }
        let of_ends = self.rules.card().and_then(|card| card.type_of_ends(self.file_type, name));
        of_ends.unwrap_or(ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(gguf: &str) -> DiffusionRules {
        let cards = DiffusionCards::embedded().unwrap();
        DiffusionRules::new(cards, cards.by_gguf(gguf).unwrap())
    }

    fn tensor(name: &str, dims: &[u64]) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F16 }
    }

    #[test]
    fn types_without_quantization() {
        use ElementType::{Bf16, F8E4M3, F16, F32};
        let wan = rules("wan");
        let plain = |name: &str, dims: &[u64], ty| {
            wan.plain_type(name, &Shape::new(dims.to_vec()).unwrap(), ty, None)
        };
        assert_eq!(plain("a.weight", &[64, 64], Bf16), GgmlType::Bf16);
        assert_eq!(plain("a.weight", &[64, 64], F32), GgmlType::F16);
        assert_eq!(plain("a.weight", &[32, 32], Bf16), GgmlType::F32);
        assert_eq!(plain("a.weight", &[32, 32], F16), GgmlType::F16);
        assert_eq!(plain("a.bias", &[4096], F16), GgmlType::F16);
        assert_eq!(plain("a.bias", &[4096], Bf16), GgmlType::F32);
        assert_eq!(plain("b.modulation", &[1, 6, 5120], Bf16), GgmlType::F32);
        assert_eq!(plain("b.modulation", &[1, 6, 5120], F8E4M3), GgmlType::F16);
        assert_eq!(plain("p.weight", &[5, 16, 1, 2, 2], F16), GgmlType::F32);
        assert_eq!(plain("marker", &[0], F16), GgmlType::F32);
        let shape = Shape::new(vec![64, 64]).unwrap();
        assert_eq!(wan.plain_type("a", &shape, F16, Some(GgmlType::Bf16)), GgmlType::Bf16);
    }

    #[test]
    fn short_rows_are_written_in_longer_ones() {
        let reshaped = |gguf: &str, dims: &[u64]| {
            rules(gguf).reshaped(&Shape::new(dims.to_vec()).unwrap()).map(|shape| shape.dims().to_vec())
        };
        assert_eq!(reshaped("sd1", &[64, 4, 3, 3]), Some(vec![9, 256]));
        assert_eq!(reshaped("sd1", &[64, 256]), None);
        assert_eq!(reshaped("sd1", &[16, 16]), None);
        assert_eq!(reshaped("sd1", &[512]), None);
        assert_eq!(reshaped("flux", &[64, 4, 3, 3]), None);
    }

    #[test]
    fn matrices_are_quantized() {
        let flux = rules("flux");
        let is = |name: &str, dims: &[u64]| flux.is_quantized(&tensor(name, dims));
        assert!(is("double_blocks.0.img_mlp.0.weight", &[8, 256]));
        assert!(is("double_blocks.0.img_mlp.0.weight", &[1, 1, 8, 256]));
        assert!(is("a.weight", &[256, 1]));
        assert!(!is("a.weight", &[1, 256]));
        assert!(!is("a.weight", &[2, 2, 256]));
        assert!(!is("img_in.weight", &[8, 256]));
        assert!(!is("a_norm.weight", &[8, 256]));
        assert!(!is("a.scale", &[8, 256]));
        assert!(!is("a.weight", &[0, 256]));
    }

    #[test]
    fn values_are_counted_and_ends_have_their_own_types() {
        let wan = rules("wan");
        let mut mixture = wan.mixture(FileType::Q4KS).unwrap();
        let types: Vec<GgmlType> =
            (0..6).map(|n| mixture.choose(&format!("blocks.{n}.self_attn.v.weight"))).collect();
        assert_eq!(types[..4], [GgmlType::Q5K; 4]);
        assert_eq!(types[4..], [GgmlType::Q4K; 2]);
        let qwen = rules("qwen_image");
        let mut mixture = qwen.mixture(FileType::Q4KM).unwrap();
        assert_eq!(mixture.choose("transformer_blocks.0.attn.to_v.weight"), GgmlType::Q5K);
        assert_eq!(mixture.choose("transformer_blocks.10.attn.to_v.weight"), GgmlType::Q6K);
        assert_eq!(mixture.choose("transformer_blocks.59.img_mod.1.weight"), GgmlType::Q5K);
        assert!(qwen.mixture(FileType::Iq2Xs).is_none());
        assert_eq!(qwen.mixture(FileType::F16).unwrap().choose("a"), GgmlType::F16);
    }

    #[test]
    fn of_a_whole_checkpoint_the_diffusion_model_is_quantized() {
        const PREFIX: &str = "model.diffusion_model.";
        let block = format!("{PREFIX}double_blocks.0.img_attn.proj.weight");
        let encoder = "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight";
        let tensors = [tensor(&block, &[8, 256]), tensor(encoder, &[8, 256])];
        let rules = DiffusionRules::of_file(&Metadata::new(), &tensors).unwrap().unwrap();
        assert_eq!(rules.card().unwrap().gguf, "flux");
        assert_eq!(tensors.map(|tensor| rules.is_quantized(&tensor)), [true, false]);
        assert!(!rules.is_quantized(&tensor(&format!("{PREFIX}img_in.weight"), &[8, 256])));
        let mut named = Metadata::new();
        named.set("general.architecture", "flux");
        let rules = DiffusionRules::of_file(&named, &[tensor(&block, &[8, 256])]).unwrap().unwrap();
        assert_eq!(rules.own_name(&block), block.strip_prefix(PREFIX).unwrap());
    }

    #[test]
    fn a_file_of_no_known_architecture_is_treated_with_care() {
        let metadata = |arch: &str| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", arch);
            metadata
        };
        let of = |arch: &str, names: &[&str]| {
            let tensors: Vec<_> = names.iter().map(|name| tensor(name, &[8, 256])).collect();
            DiffusionRules::of_file(&metadata(arch), &tensors).unwrap()
        };
        let unknown = of("new", &["transformer_blocks.0.attn.to_q.weight", "proj_out.weight"]).unwrap();
        assert!(unknown.card().is_none());
        assert!(unknown.is_quantized(&tensor("transformer_blocks.0.attn.to_q.weight", &[8, 256])));
        for kept in
            ["proj_out.weight", "transformer_blocks.0.norm1.weight", "blocks.x.a.weight", "time_in.weight"]
        {
            assert!(!unknown.is_quantized(&tensor(kept, &[8, 256])), "{kept}");
        }
        assert_eq!(
            of("pig", &["double_blocks.0.img_attn.proj.weight"]).unwrap().card().unwrap().gguf,
            "flux"
        );
        assert!(of("llama", &["blocks.0.a.weight"]).is_none());
        assert!(of("new", &["blk.0.a.weight"]).is_none());
        assert!(of("new", &["a.weight"]).is_none());
        let mut with_keys = metadata("new");
        with_keys.set("new.block_count", 1u32);
        assert!(
            DiffusionRules::of_file(&with_keys, &[tensor("blocks.0.a.weight", &[8, 256])]).unwrap().is_none()
        );
    }
}
