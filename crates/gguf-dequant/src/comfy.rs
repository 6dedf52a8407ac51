//! Weights of image and video models as ComfyUI's quantizers store them: FP8 with scales or without any, MXFP8, NVFP4,
//! INT8.
//!
//! | file | subject |
//! |---|---|
//! | `description` | the formats, and the description of a weight (`x.comfy_quant`, JSON in bytes) |
//! | `coded` | values from codes, factors, rotations and low-rank parts |
//!
//! A scaled weight `x.weight` has a factor `x.scale_weight` in older files, next to an empty tensor `scaled_fp8`, and
//! `x.weight_scale` with the description in newer ones. FP8 with such a factor is `code · factor` in F32, rounded to
//! BF16: the type that the weights had before. Values of all other formats stay F32. A weight without a factor becomes
//! F16, which holds every FP8 value exactly. `x.pre_quant_scale` has factors of the columns, by which runtimes multiply
//! the input; `x.svd_up · x.svd_down` is added to the weight.

mod coded;
mod description;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::fp8::is_fp8;
use crate::{DequantError, Result};
use coded::{Coded, Members};
use description::Description;
pub use description::layers_of_header;
use gguf_blocks::{NotANumber, decode_elements};
use gguf_core::numeric::{f32_to_bf16, f32_to_f16};
use gguf_core::scratch::with_bytes;
use gguf_core::simd::SimdLevel;
use gguf_core::small_float::{E4M3, E5M2, FloatTable};
use gguf_core::{ElementType, SourceError, WeightMeta, WeightSource};
use serde_json::Value as Json;

const WEIGHT: &str = ".weight";
const BIAS: &str = ".bias";
const FACTORS: [&str; 2] = [".scale_weight", ".weight_scale"];
/// Factor of a whole tensor of NVFP4, in addition to those of its blocks.
const SECOND: &str = ".weight_scale_2";
/// Factors of inputs, which runtimes do not apply to blocks.
const INPUTS: [&str; 2] = [".scale_input", ".input_scale"];
/// Factors of the columns of a weight: runtimes multiply its input with them.
const COLUMNS: &str = ".pre_quant_scale";
/// Matrices whose product is added to a weight.
const LOW_RANK: [&str; 2] = [".svd_up", ".svd_down"];
/// Parameters of a layer that keep their own values beside a factor.
const PARAMETERS: [&str; 2] = ["weight", "bias"];
/// Parts of a layer that change its values, in ways that are not computed here, or whose weight is missing.
const CHANGES: [&str; 17] = [
    COLUMNS,
    ".smooth_scale",
    ".smooth_factor",
    ".svd_up",
    ".svd_down",
    ".weight_zero_point",
    // What training leaves: magnitudes and differences of adapters, PyTorch's weight norm, spectral norm and pruning.
    ".dora_scale",
    ".diff",
    ".diff_b",
    ".weight_g",
    ".weight_v",
    ".weight_u",
    ".weight_orig",
    ".weight_mask",
    ".bias_orig",
    ".original0",
    ".original1",
];
/// Description of a weight's storage.
const DESCRIPTION: &str = ".comfy_quant";
/// Marker of a file with factors.
const MARKER: &str = "scaled_fp8";
const OTHER_FACTORS: [&str; 3] = [".weight_scale_inv", SECOND, ".scale_inv"];
/// Elements that are decoded at a time.
const STEP: usize = 1 << 14;

/// Returns true if weights have marks that ComfyUI's quantizers alone leave.
pub fn has_comfy_marks(weights: &[WeightMeta]) -> bool {
    let is_mark = |name: &str| name == MARKER || name.ends_with(DESCRIPTION) || name.ends_with(FACTORS[0]);
    weights.iter().any(|meta| is_mark(&meta.name))
}

/// Weights of an image or video model as floats.
pub struct ImageWeights {
    source: Arc<dyn WeightSource + Send>,
    level: SimdLevel,
    weights: Vec<WeightMeta>,
    origins: Vec<Origin>,
    n_scaled: usize,
    formats: BTreeSet<&'static str>,
    unknown_keys: BTreeSet<String>,
    /// Names of FP8 matrices without a factor, in a checkpoint that has factors.
    without_factors: Vec<String>,
    /// Names of tensors beside a weight whose meaning is not known.
    beside: Vec<String>,
    stored: Vec<ElementType>,
}

enum Origin {
    /// Tensor of the source, unchanged.
    Plain(usize),
    /// FP8 codes without a factor: their values in F16, by code.
    Wide(usize, Box<[u16; 256]>),
    /// Codes with factors.
    Coded(Box<Coded>),
}

impl Origin {
    fn index(&self) -> usize {
        match self {
            Self::Plain(index) | Self::Wide(index, _) => *index,
            Self::Coded(coded) => coded.index(),
        }
    }
}

impl ImageWeights {
    /// Joins weights with their factors; only factors and descriptions are read. Layers without a description may have
    /// one in `header`, by their names.
    ///
    /// # Errors
    /// [`DequantError`]: another storage, factors that do not fit, element types without a value.
    pub fn open(
        source: Arc<dyn WeightSource + Send>,
        level: SimdLevel,
        header: &HashMap<String, Json>,
    ) -> Result<Self> {
        let metas = source.weights().to_vec();
        let at: HashMap<&str, usize> =
            metas.iter().enumerate().map(|(at, meta)| (meta.name.as_str(), at)).collect();
        if let Some(orphan) = metas.iter().find(|meta| is_orphan(&meta.name, &at)) {
            let (tensor, problem) = (orphan.name.clone(), "a factor or description without its weight");
            return Err(DequantError::OrphanTensor { tensor, problem: problem.to_owned() });
        }
        let mut used: HashSet<usize> = HashSet::new();
        used.extend(at.get(MARKER).filter(|&&at| metas[at].shape.n_elems() <= 2));
        let is_marked = !used.is_empty();
        let (mut coded, mut unknown_keys) = (HashMap::new(), BTreeSet::new());
        for (index, meta) in metas.iter().enumerate() {
            let Some(module) = meta.name.strip_suffix(WEIGHT) else { continue };
            let member = |suffix: &str| at.get(format!("{module}{suffix}").as_str()).copied();
            let found = members(&*source, module, index, header.get(module), member)?;
            let Some(found) = found else { continue };
            unknown_keys.extend(found.description.iter().flat_map(|own| own.unknown.iter().cloned()));
            used.extend(found.all());
            used.extend([DESCRIPTION].iter().chain(&INPUTS).filter_map(|suffix| member(suffix)));
            coded.insert(index, Coded::new(&*source, level, found)?);
        }
        let is_coded = |module: &str| {
            at.get(format!("{module}{WEIGHT}").as_str()).is_some_and(|at| coded.contains_key(at))
        };
        let is_narrow = |module: &str| {
            at.get(format!("{module}{WEIGHT}").as_str()).is_some_and(|at| is_fp8(metas[*at].ty))
        };
        for (_, meta) in metas.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
            let is_factor = is_factor(&meta.name);
            check_unknown(&meta.name, |module| is_coded(module) || (is_factor && is_narrow(module)))?;
        }
        let is_beside = |name: &str| {
            let (module, part) = name.rsplit_once('.').unwrap_or_default();
            !PARAMETERS.contains(&part) && at.contains_key(format!("{module}{WEIGHT}").as_str())
        };
        let unused = metas.iter().enumerate().filter(|(index, _)| !used.contains(index));
        let beside = unused.map(|(_, meta)| meta.name.clone()).filter(|name| is_beside(name)).collect();
        let mut this = Self {
            source,
            level,
            weights: Vec::new(),
            origins: Vec::new(),
            n_scaled: coded.values().filter(|own: &&Coded| own.is_narrow()).count(),
            formats: coded.values().filter_map(Coded::format).collect(),
            unknown_keys,
            without_factors: Vec::new(),
            beside,
            stored: Vec::new(),
        };
        let is_any = !coded.is_empty();
        if is_marked || this.n_scaled > 0 {
            let rows = metas.iter().enumerate();
            let rows = rows.filter(|(index, meta)| {
                is_fp8(meta.ty)
                    && meta.shape.rank() > 1
                    && meta.name.ends_with(WEIGHT)
                    && !coded.contains_key(index)
            });
            this.without_factors = rows.map(|(_, meta)| meta.name.clone()).collect();
        }
        for (index, meta) in metas.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
            this.add(index, meta, coded.remove(&index))?;
        }
        check_biases(&this.weights)?;
        if is_any {
            this.sort_as_saved();
        }
        Ok(this)
    }

    fn add(&mut self, index: usize, meta: &WeightMeta, coded: Option<Coded>) -> Result<()> {
        let (ty, shape, origin) = match (coded, table(meta.ty)) {
            (Some(coded), _) => {
                let ty = if coded.is_narrow() { ElementType::Bf16 } else { ElementType::F32 };
                (ty, coded.shape().clone(), Origin::Coded(Box::new(coded)))
            }
            (None, Some(table)) => {
                let halves = std::array::from_fn(|code| f32_to_f16(table[code]));
                (ElementType::F16, meta.shape.clone(), Origin::Wide(index, Box::new(halves)))
            }
            (None, None) => {
                check_type(meta)?;
                (meta.ty, meta.shape.clone(), Origin::Plain(index))
            }
        };
        self.stored.push(if matches!(origin, Origin::Coded(_)) { ElementType::Bf16 } else { meta.ty });
        self.weights.push(WeightMeta { ty, shape, name: meta.name.clone() });
        self.origins.push(origin);
        Ok(())
    }

    /// Sorts the weights as the safetensors library saves them: by element type, wide ones first, then by name. The
    /// order in which a file with factors was saved is that of other types.
    fn sort_as_saved(&mut self) {
        let weights = std::mem::take(&mut self.weights).into_iter();
        let mut all: Vec<_> =
            weights.zip(std::mem::take(&mut self.origins)).zip(self.stored.drain(..)).collect();
        all.sort_by(|((one, _), one_type), ((other, _), other_type)| {
            saved_rank(*other_type).cmp(&saved_rank(*one_type)).then_with(|| one.name.cmp(&other.name))
        });
        for ((weight, origin), stored) in all {
            self.weights.push(weight);
            self.origins.push(origin);
            self.stored.push(stored);
        }
    }

    /// Number of weights with factors that are rounded to BF16.
    pub fn n_scaled(&self) -> usize {
        self.n_scaled
    }

    /// Formats of ComfyUI whose values are computed in F32.
    pub fn formats(&self) -> impl Iterator<Item = &'static str> {
        self.formats.iter().copied()
    }

    /// Keys of descriptions whose meaning is not known, and which are not applied.
    pub fn unknown_keys(&self) -> impl Iterator<Item = &str> {
        self.unknown_keys.iter().map(String::as_str)
    }

    /// Names of tensors beside a weight whose meaning is not known.
    pub fn beside(&self) -> impl Iterator<Item = &str> {
        self.beside.iter().map(String::as_str)
    }

    /// Names of FP8 matrices without a factor, in a checkpoint that has factors.
    pub fn without_factors(&self) -> &[String] {
        &self.without_factors
    }

    /// Element type that a weight has in the checkpoint; BF16, the type before the quantization, if it has factors.
    ///
    /// # Panics
    /// If there is no such weight.
    pub fn stored_type(&self, weight: usize) -> ElementType {
        self.stored[weight]
    }

    /// Returns true if the values of a weight are wider than [`stored_type`](Self::stored_type).
    pub fn is_wider(&self, weight: usize) -> bool {
        let (meta, stored) = (&self.weights[weight], self.stored[weight]);
        meta.ty == ElementType::F32 && stored != ElementType::F32
    }

    fn read_coded(
        &self,
        weight: usize,
        coded: &Coded,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let elem_bytes = if coded.is_narrow() { 2 } else { 4 };
        let mut floats = vec![0.0f32; STEP.min(out.len() / elem_bytes)];
        let mut at = first;
        for out in out.chunks_mut(elem_bytes * STEP) {
            let floats = &mut floats[..out.len() / elem_bytes];
            let name = &self.weights[weight].name;
            coded.read(&*self.source, self.level, at, floats).map_err(|error| error.reading(name))?;
            for (value, out) in floats.iter().zip(out.chunks_mut(elem_bytes)) {
                if coded.is_narrow() {
                    out.copy_from_slice(&f32_to_bf16(*value).to_le_bytes());
                } else {
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
            at += floats.len() as u64;
        }
        Ok(())
    }
}

/// Returns the tensors that make up a weight; `None` for a weight that is stored alone.
fn members(
    source: &dyn WeightSource,
    module: &str,
    codes: usize,
    header: Option<&Json>,
    member: impl Fn(&str) -> Option<usize>,
) -> Result<Option<Members>> {
    let metas = source.weights();
    let description = match (member(DESCRIPTION), header) {
        (Some(at), _) => Some(Description::read(source, at)?),
        (None, Some(header)) => Some(Description::parse(header, &format!("{module}{DESCRIPTION}"))?),
        (None, None) => None,
    };
    let is_second = description.as_ref().is_some_and(|own| own.format.has_second());
    let others = OTHER_FACTORS.iter().filter(|suffix| !(is_second && **suffix == SECOND));
    if let Some(other) = others.clone().find_map(|suffix| member(suffix)) {
        return Err(DequantError::UnsupportedVariant {
            place: format!("tensor `{}`", metas[other].name),
            found: "factors by block".to_owned(),
            reason: format!("they are read where `{module}{DESCRIPTION}` names a format that has them"),
        });
    }
    let missing = |suffix: &str| DequantError::MissingTensor {
        module: module.to_owned(),
        tensor: format!("{module}{suffix}"),
    };
    let factor = FACTORS.iter().find_map(|suffix| member(suffix));
    let low_rank = match LOW_RANK.map(&member) {
        [None, None] => None,
        [Some(up), Some(down)] => Some([up, down]),
        [None, _] => return Err(missing(LOW_RANK[0])),
        [_, None] => return Err(missing(LOW_RANK[1])),
    };
    if description.is_some() && factor.is_none() {
        return Err(missing(FACTORS[1]));
    }
    if factor.is_none() && low_rank.is_none() {
        return Ok(None);
    }
    let second = member(SECOND);
    if is_second && second.is_none() {
        return Err(missing(SECOND));
    }
    let columns = member(COLUMNS).filter(|_| factor.is_some() && metas[codes].shape.rank() == 2);
    let n_bias = member(BIAS).map(|at| metas[at].shape.n_elems());
    Ok(Some(Members { codes, factor, second, columns, low_rank, n_bias, description }))
}

/// Returns true for the factor or the description of a weight that does not exist.
fn is_orphan(name: &str, at: &HashMap<&str, usize>) -> bool {
    let module = FACTORS.iter().chain([&DESCRIPTION]).find_map(|suffix| name.strip_suffix(suffix));
    module.is_some_and(|module| !at.contains_key(format!("{module}{WEIGHT}").as_str()))
}

/// Checks that matrices have as many rows as their biases have elements.
fn check_biases(weights: &[WeightMeta]) -> Result<()> {
    let biases: HashMap<&str, u64> = weights
        .iter()
        .filter_map(|meta| Some((meta.name.strip_suffix(BIAS)?, meta.shape.n_elems())))
        .collect();
    for meta in weights.iter().filter(|meta| meta.shape.rank() == 2) {
        let n_bias = meta.name.strip_suffix(WEIGHT).and_then(|module| biases.get(module));
        if let Some(n) = n_bias.filter(|&&n| n != meta.shape.dims()[0]) {
            return Err(DequantError::ShapeMismatch {
                tensor: meta.name.clone(),
                found: meta.shape.clone(),
                expected: format!("{n} rows, as its bias has elements"),
            });
        }
    }
    Ok(())
}

/// Returns true for the name of a factor that is not of a layer's input, under a name that no format has.
fn is_factor(name: &str) -> bool {
    ["scale", "amax"].iter().any(|word| name.contains(word)) && !name.contains("input")
}

/// Refuses a tensor that changes the values of a layer in an unknown way: one of a kind that does, any beside a weight
/// with a factor, or a factor beside 8-bit floats.
fn check_unknown(name: &str, is_scaled: impl Fn(&str) -> bool) -> Result<()> {
    let change = CHANGES.iter().any(|suffix| name.ends_with(suffix));
    let of_scaled = || {
        let mut dots = name.match_indices('.');
        dots.any(|(at, _)| !PARAMETERS.contains(&&name[at + 1..]) && is_scaled(&name[..at]))
    };
    if !change && !of_scaled() {
        return Ok(());
    }
    Err(DequantError::UnsupportedVariant {
        place: format!("tensor `{name}`"),
        found: name.rsplit('.').next().unwrap_or(name).to_owned(),
        reason: "it may change the values of its layer, and how is not known".to_owned(),
    })
}

/// Position of an element type among those of the safetensors library, which saves the last first.
pub fn saved_rank(ty: ElementType) -> usize {
    use ElementType as E;
    const ORDER: [ElementType; 22] = [
        E::Bool,
        E::F4,
        E::F6E2M3,
        E::F6E3M2,
        E::U8,
        E::I8,
        E::F8E5M2,
        E::F8E4M3,
        E::F8E8M0,
        E::F8E4M3Fnuz,
        E::F8E5M2Fnuz,
        E::I16,
        E::U16,
        E::F16,
        E::Bf16,
        E::I32,
        E::U32,
        E::F32,
        E::C64,
        E::F64,
        E::I64,
        E::U64,
    ];
    ORDER.iter().position(|own| *own == ty).unwrap_or(ORDER.len())
}

/// Returns the values of FP8 codes.
fn table(ty: ElementType) -> Option<&'static FloatTable> {
    match ty {
        ElementType::F8E4M3 => Some(&E4M3),
        ElementType::F8E5M2 => Some(&E5M2),
        _ => None,
    }
}

fn decode(ty: ElementType, level: SimdLevel, bytes: &[u8], out: &mut [f32]) -> Result<(), NotANumber> {
    let Some(table) = table(ty) else { return decode_elements(ty, level, bytes, out) };
    for (value, &code) in out.iter_mut().zip(bytes) {
        *value = table[usize::from(code)];
    }
    Ok(())
}

fn wrong_type(meta: &WeightMeta) -> DequantError {
    let expected = "floats, integers, F8_E4M3 or F8_E5M2".to_owned();
    DequantError::DtypeMismatch { tensor: meta.name.clone(), found: meta.ty, expected }
}

fn check_type(meta: &WeightMeta) -> Result<()> {
    // An empty list of elements is decoded like any other.
    decode_elements(meta.ty, SimdLevel::Scalar, &[], &mut []).map_err(|NotANumber| wrong_type(meta))
}

impl WeightSource for ImageWeights {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match &self.origins[weight] {
            Origin::Plain(index) => self.source.read_elems(*index, first, out),
            Origin::Wide(index, halves) => with_bytes(out.len() / 2, |codes| {
                self.source.read_elems(*index, first, codes)?;
                for (out, &code) in out.as_chunks_mut::<2>().0.iter_mut().zip(&*codes) {
                    *out = halves[usize::from(code)].to_le_bytes();
                }
                Ok(())
            }),
            Origin::Coded(coded) => self.read_coded(weight, coded, first, out),
        }
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        match self.origins[weight] {
            Origin::Plain(index) => self.source.borrow(index),
            _ => None,
        }
    }

    fn expect(&self, weight: usize) {
        self.source.expect(self.origins[weight].index());
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        match &self.origins[weight] {
            Origin::Coded(coded) => coded.release(&*self.source, first, n),
            origin => self.source.release_elems(origin.index(), first, n),
        }
    }
}

#[cfg(test)]
mod tests;
