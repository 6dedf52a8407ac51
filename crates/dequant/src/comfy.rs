//! FP8 weights of image and video models: with ComfyUI's scales, or without any.
//!
//! A scaled weight `x.weight` has a factor `x.scale_weight` in older files, next to an empty tensor `scaled_fp8`, and
//! `x.weight_scale` with the description `x.comfy_quant` (JSON in bytes) in newer ones. The value is `code · factor` in
//! F32, rounded to BF16: the type that the weights had before. A weight without a factor becomes F16, which holds
//! every FP8 value exactly. `x.pre_quant_scale` has factors of the columns, by which runtimes multiply the input.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::DequantError;
use crate::fp8::is_fp8;
use gguf_checkpoint::json::check_keys;
use gguf_core::numeric::{f32_to_bf16, f32_to_f16};
use gguf_core::scratch::with_bytes;
use gguf_core::simd::SimdLevel;
use gguf_core::small_float::{E4M3, E5M2, FloatTable};
use gguf_core::{ElementType, SourceError, WeightMeta, WeightSource};
use gguf_quant::{NotANumber, decode_elements};

const WEIGHT: &str = ".weight";
const FACTORS: [&str; 2] = [".scale_weight", ".weight_scale"];
/// Factors of inputs, which runtimes do not apply to blocks.
const INPUTS: [&str; 2] = [".scale_input", ".input_scale"];
/// Factors of the columns of a weight: runtimes multiply its input with them.
const COLUMNS: &str = ".pre_quant_scale";
/// Parameters of a layer that keep their own values beside a factor.
const PARAMETERS: [&str; 2] = ["weight", "bias"];
/// Parts of a layer that change its values, in ways that are not computed here.
const CHANGES: [&str; 6] =
    [COLUMNS, ".smooth_scale", ".smooth_factor", ".svd_up", ".svd_down", ".weight_zero_point"];
/// Description of a weight's storage.
const DESCRIPTION: &str = ".comfy_quant";
/// Marker of a file with factors.
const MARKER: &str = "scaled_fp8";
const FORMATS: [&str; 2] = ["float8_e4m3fn", "float8_e5m2"];
const OTHER_FACTORS: [&str; 3] = [".weight_scale_inv", ".weight_scale_2", ".scale_inv"];
/// Maximum length of a description in bytes.
const MAX_DESCRIPTION: u64 = 64 << 10;
/// Elements that are decoded at a time.
const STEP: usize = 1 << 14;

/// Weights of an image or video model as floats.
pub struct ImageWeights {
    source: Arc<dyn WeightSource + Send>,
    level: SimdLevel,
    weights: Vec<WeightMeta>,
    origins: Vec<Origin>,
    n_scaled: usize,
    /// Names of FP8 matrices without a factor, in a checkpoint that has factors.
    without_factors: Vec<String>,
    stored: Vec<ElementType>,
}

enum Origin {
    /// Tensor of the source, unchanged.
    Plain(usize),
    /// FP8 codes without a factor: their values in F16, by code.
    Wide(usize, Box<[u16; 256]>),
    /// Tensor with factors.
    Scaled(usize, Factors),
}

struct Factors {
    /// One, or one for each row.
    rows: Vec<f32>,
    /// None, one, or one for each column.
    columns: Vec<f32>,
}

impl Factors {
    fn apply(&self, value: f32, row: usize, column: usize) -> f32 {
        let of = |factors: &[f32], at: usize| if factors.len() == 1 { factors[0] } else { factors[at] };
        let value = value * of(&self.rows, row);
        if self.columns.is_empty() { value } else { value * of(&self.columns, column) }
    }
}

impl Origin {
    fn index(&self) -> usize {
        match self {
            Self::Plain(index) | Self::Wide(index, _) | Self::Scaled(index, _) => *index,
        }
    }
}

impl ImageWeights {
    /// Joins weights with their factors; only factors and descriptions are read.
    ///
    /// # Errors
    /// [`DequantError`]: another storage, factors that do not fit, element types without a value.
    pub fn open(source: Arc<dyn WeightSource + Send>, level: SimdLevel) -> Result<Self, DequantError> {
        let metas = source.weights().to_vec();
        let at: HashMap<&str, usize> =
            metas.iter().enumerate().map(|(at, meta)| (meta.name.as_str(), at)).collect();
        if let Some(orphan) = metas.iter().find(|meta| is_orphan(&meta.name, &at)) {
            let (tensor, problem) = (orphan.name.clone(), "a factor or description without its weight");
            return Err(DequantError::OrphanTensor { tensor, problem: problem.to_owned() });
        }
        let mut members: HashSet<usize> = HashSet::new();
        members.extend(at.get(MARKER).filter(|&&at| metas[at].shape.n_elems() <= 2));
        let is_marked = !members.is_empty();
        let mut factors: HashMap<usize, Factors> = HashMap::new();
        for (index, meta) in metas.iter().enumerate() {
            let Some(module) = meta.name.strip_suffix(WEIGHT) else { continue };
            let member = |suffix: &str| at.get(format!("{module}{suffix}").as_str()).copied();
            if let Some(description) = member(DESCRIPTION) {
                check_description(&*source, description)?;
                members.insert(description);
            }
            if let Some(other) = OTHER_FACTORS.iter().find_map(|suffix| member(suffix)) {
                return Err(DequantError::UnsupportedVariant {
                    place: format!("tensor `{}`", metas[other].name),
                    found: "factors by block".to_owned(),
                    reason:
                        "of the weights that are stored with factors, FP8 with one per tensor or row is read"
                            .to_owned(),
                });
            }
            match FACTORS.iter().find_map(|suffix| member(suffix)) {
                Some(factor) => {
                    let columns = member(COLUMNS).filter(|_| meta.shape.rank() == 2);
                    let read = |factor: usize, of: (u64, &str)| {
                        read_factors(&*source, level, meta, &metas[factor], factor, of)
                    };
                    let rows = read(factor, (meta.shape.n_rows(), "row"))?;
                    let of_columns =
                        columns.map(|at| read(at, (meta.shape.n_cols(), "column"))).transpose()?;
                    factors.insert(index, Factors { rows, columns: of_columns.unwrap_or_default() });
                    members.extend(columns.into_iter().chain([factor]));
                    members.extend(INPUTS.iter().filter_map(|suffix| member(suffix)));
                }
                None if member(DESCRIPTION).is_some() => {
                    let tensor = format!("{module}{}", FACTORS[1]);
                    return Err(DequantError::MissingTensor { module: module.to_owned(), tensor });
                }
                None => {}
            }
        }
        let is_scaled = |module: &str| {
            at.get(format!("{module}{WEIGHT}").as_str()).is_some_and(|at| factors.contains_key(at))
        };
        let rest = metas.iter().enumerate().filter(|(index, _)| !members.contains(index));
        for (_, meta) in rest {
            check_unknown(&meta.name, is_scaled)?;
        }
        let mut this = Self {
            source,
            level,
            weights: Vec::new(),
            origins: Vec::new(),
            n_scaled: factors.len(),
            without_factors: Vec::new(),
            stored: Vec::new(),
        };
        if is_marked || this.n_scaled > 0 {
            let rows = metas.iter().enumerate();
            let rows = rows.filter(|(index, meta)| {
                is_fp8(meta.ty)
                    && meta.shape.rank() > 1
                    && meta.name.ends_with(WEIGHT)
                    && !factors.contains_key(index)
            });
            this.without_factors = rows.map(|(_, meta)| meta.name.clone()).collect();
        }
        for (index, meta) in metas.iter().enumerate().filter(|(index, _)| !members.contains(index)) {
            let (ty, origin) = match (factors.remove(&index), table(meta.ty)) {
                (Some(factors), _) => (ElementType::Bf16, Origin::Scaled(index, factors)),
                (None, Some(table)) => {
                    let halves = std::array::from_fn(|code| f32_to_f16(table[code]));
                    (ElementType::F16, Origin::Wide(index, Box::new(halves)))
                }
                (None, None) => (meta.ty, Origin::Plain(index)),
            };
            check_type(meta, ty)?;
            this.stored.push(if matches!(origin, Origin::Scaled(..)) { ty } else { meta.ty });
            this.weights.push(WeightMeta { ty, ..meta.clone() });
            this.origins.push(origin);
        }
        if this.n_scaled > 0 {
            this.sort_as_saved();
        }
        Ok(this)
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

    /// Number of weights with factors.
    pub fn n_scaled(&self) -> usize {
        self.n_scaled
    }

    /// Names of FP8 matrices without a factor, in a checkpoint that has factors.
    pub fn without_factors(&self) -> &[String] {
        &self.without_factors
    }

    /// Element type in which a weight is stored; that of the float weight if it has factors.
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

    fn read_scaled(
        &self,
        weight: usize,
        index: usize,
        factors: &Factors,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let meta = &self.source.weights()[index];
        let elem_bytes = meta.ty.bytes().unwrap_or(1);
        let n_cols = self.weights[weight].shape.n_cols().max(1);
        let mut floats = vec![0.0f32; STEP.min(out.len() / 2)];
        let mut at = first;
        for out in out.chunks_mut(2 * STEP) {
            let floats = &mut floats[..out.len() / 2];
            let decoded = with_bytes(floats.len() * elem_bytes, |codes| {
                self.source.read_elems(index, at, codes)?;
                let decoded = decode(meta.ty, self.level, codes, floats);
                decoded.map_err(|NotANumber| wrong_type(meta).reading(&meta.name))
            });
            decoded?;
            for (i, (value, out)) in floats.iter().zip(out.as_chunks_mut::<2>().0).enumerate() {
                let at = at + i as u64;
                let [row, column] =
                    [at / n_cols, at % n_cols].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
                *out = f32_to_bf16(factors.apply(*value, row, column)).to_le_bytes();
            }
            at += floats.len() as u64;
        }
        Ok(())
    }
}

/// Returns true for the factor or the description of a weight that does not exist.
fn is_orphan(name: &str, at: &HashMap<&str, usize>) -> bool {
    let module = FACTORS.iter().chain([&DESCRIPTION]).find_map(|suffix| name.strip_suffix(suffix));
    module.is_some_and(|module| !at.contains_key(format!("{module}{WEIGHT}").as_str()))
}

/// Refuses a tensor that changes the values of a layer in an unknown way: one of a kind that does, or any beside a weight
/// with a factor.
fn check_unknown(name: &str, is_scaled: impl Fn(&str) -> bool) -> Result<(), DequantError> {
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

/// Checks that the elements of a weight have values.
fn check_type(meta: &WeightMeta, ty: ElementType) -> Result<(), DequantError> {
    // An empty list of elements is decoded like any other.
    let has_values = ty == ElementType::Bf16 && is_fp8(meta.ty);
    if has_values || decode_elements(ty, SimdLevel::Scalar, &[], &mut []).is_ok() {
        return Ok(());
    }
    Err(wrong_type(meta))
}

/// Reads the factors of a weight: one, or one for each of its rows or columns.
fn read_factors(
    source: &dyn WeightSource,
    level: SimdLevel,
    weight: &WeightMeta,
    factor: &WeightMeta,
    index: usize,
    (n_most, each): (u64, &str),
) -> Result<Vec<f32>, DequantError> {
    if !(is_fp8(weight.ty) || weight.ty.is_plain_float()) {
        let expected = "F8_E4M3, F8_E5M2 or floats, next to factors".to_owned();
        return Err(DequantError::DtypeMismatch { tensor: weight.name.clone(), found: weight.ty, expected });
    }
    if !factor.ty.is_plain_float() {
        let expected = "floats".to_owned();
        return Err(DequantError::DtypeMismatch { tensor: factor.name.clone(), found: factor.ty, expected });
    }
    let n = factor.shape.n_elems();
    if n != 1 && n != n_most {
        return Err(DequantError::ShapeMismatch {
            tensor: factor.name.clone(),
            found: factor.shape.clone(),
            expected: format!("1 element, or {n_most}, one for each {each}"),
        });
    }
    let n = usize::try_from(n).unwrap_or(0);
    let mut bytes = vec![0; n * factor.ty.bytes().unwrap_or(4)];
    source.read_elems(index, 0, &mut bytes)?;
    let mut values = vec![0.0; n];
    decode_elements(factor.ty, level, &bytes, &mut values).map_err(|NotANumber| wrong_type(factor))?;
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(at) => Err(DequantError::NonFinite {
            tensor: factor.name.clone(),
            index: at as u64,
            found: values[at].to_string(),
        }),
    }
}

/// Checks that a description names a storage that is read.
fn check_description(source: &dyn WeightSource, index: usize) -> Result<(), DequantError> {
    let meta = &source.weights()[index];
    let broken = |problem: String| DequantError::BadMetadata { tensor: meta.name.clone(), problem };
    let n = meta.shape.n_elems();
    if !matches!(meta.ty, ElementType::U8 | ElementType::I8) || n > MAX_DESCRIPTION {
        return Err(broken(format!("{} {} in place of a description in JSON", meta.ty, meta.shape)));
    }
    let mut text = vec![0; usize::try_from(n).unwrap_or(0)];
    source.read_elems(index, 0, &mut text)?;
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let described: Json =
        serde_json::from_slice(text).map_err(|error| broken(format!("no JSON: {error}")))?;
    check_keys(text).map_err(|error| broken(error.to_string()))?;
    let unsupported = |found: &str| DequantError::UnsupportedVariant {
        place: format!("tensor `{}`", meta.name),
        found: found.to_owned(),
        reason: format!("of ComfyUI's formats, {} are read", FORMATS.join(" and ")),
    };
    let Some(format) = described.get("format").and_then(Json::as_str) else {
        return Err(broken("no `format`".to_owned()));
    };
    if !FORMATS.contains(&format) {
        return Err(unsupported(format));
    }
    // Rotated weights need a rotation of the inputs.
    let members = described.as_object().into_iter().flatten();
    let is_set = |value: &Json| !matches!(value, Json::Null | Json::Bool(false));
    match members.into_iter().find(|(key, value)| key.contains("rot") && is_set(value)) {
        Some((key, _)) => Err(unsupported(&format!("{format}, {key}"))),
        None => Ok(()),
    }
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
            Origin::Scaled(index, factors) => self.read_scaled(weight, *index, factors, first, out),
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
        self.source.release_elems(self.origins[weight].index(), first, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_testkit::memory::{MemoryWeights, f32_bytes, weight_bytes};

    fn opened(weights: MemoryWeights) -> Result<ImageWeights, String> {
        ImageWeights::open(Arc::new(weights), SimdLevel::Scalar).map_err(|error| error.to_string())
    }

    fn names(weights: &ImageWeights) -> Vec<(&str, ElementType)> {
        weights.weights().iter().map(|meta| (meta.name.as_str(), meta.ty)).collect()
    }

    fn halves(weights: &ImageWeights, weight: usize) -> Vec<u16> {
        weight_bytes(weights, weight).as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect()
    }

    #[test]
    fn older_factors_are_applied_and_left_out() {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[2, 2], ElementType::F8E4M3, vec![0x38, 0x40, 0xb8, 0x01]);
        weights.add("a.scale_weight", &[], ElementType::F32, f32_bytes(&[0.3]));
        weights.add("a.scale_input", &[], ElementType::F32, f32_bytes(&[7.0]));
        weights.add("scaled_fp8", &[0], ElementType::F8E4M3, Vec::new());
        weights.add("b.weight", &[2], ElementType::F8E5M2, vec![0x3c, 0x7b]);
        weights.add("c.weight", &[1], ElementType::F32, f32_bytes(&[1.0]));
        let weights = opened(weights).unwrap();
        // In the order in which the floats would be saved.
        let expected =
            [("c.weight", ElementType::F32), ("a.weight", ElementType::Bf16), ("b.weight", ElementType::F16)];
        assert_eq!(names(&weights), expected);
        assert_eq!(weights.n_scaled(), 1);
        let expected = [0.3, 0.6, -0.3, 0.3 * 0.001_953_125].map(f32_to_bf16);
        assert_eq!(halves(&weights, 1), expected);
        assert_eq!(halves(&weights, 2), [1.0, 57344.0].map(f32_to_f16));
        assert_eq!(
            (weights.stored_type(1), weights.stored_type(2)),
            (ElementType::Bf16, ElementType::F8E5M2)
        );
        let mut part = [0; 4];
        weights.read_elems(1, 1, &mut part).unwrap();
        assert_eq!(part[..2], f32_to_bf16(0.6).to_le_bytes());
    }

    /// A weight of two rows with a factor, and further tensors.
    fn with_others(others: &[(&str, &[f32])]) -> Result<ImageWeights, String> {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[2, 2], ElementType::F8E4M3, vec![0x38, 0x40, 0xb8, 0x38]);
        weights.add("a.weight_scale", &[], ElementType::F32, f32_bytes(&[0.5]));
        weights.add("a.bias", &[2], ElementType::F32, f32_bytes(&[1.0, 1.0]));
        for (name, values) in others {
            weights.add(name, &[values.len() as u64], ElementType::F32, f32_bytes(values));
        }
        opened(weights)
    }

    #[test]
    fn factors_of_columns_are_applied() {
        let weights = with_others(&[("a.pre_quant_scale", &[3.0, 5.0])]).unwrap();
        assert_eq!(names(&weights).len(), 2);
        let at = names(&weights).iter().position(|(name, _)| *name == "a.weight").unwrap();
        assert_eq!(halves(&weights, at), [1.5, 5.0, -1.5, 2.5].map(f32_to_bf16));
        let error = with_others(&[("a.pre_quant_scale", &[3.0, 5.0, 1.0])]).err().unwrap();
        assert!(error.contains("a.pre_quant_scale") && error.contains("one for each column"), "{error}");
    }

    #[test]
    fn what_changes_a_layer_in_an_unknown_way_is_refused() {
        for name in [
            "a.smooth_scale",
            "a.svd_up",
            "a.weight_offset",
            "a.lora.down.weight",
            "b.pre_quant_scale",
            "b.smooth_factor",
        ] {
            let error = with_others(&[(name, &[1.0])]).err().unwrap();
            assert!(error.contains(name) && error.contains("may change the values"), "{error}");
        }
        // Beside weights without a factor, and not of a layer's own names, parameters keep their names.
        for name in ["b.alpha", "ab.x", "c"] {
            assert!(with_others(&[(name, &[1.0])]).is_ok(), "{name}");
        }
    }

    #[test]
    fn newer_factors_may_be_by_row() {
        let description = br#"{"format": "float8_e4m3fn"}"#.to_vec();
        let with = |description: &[u8], factors: &[f32]| {
            let mut weights = MemoryWeights::default();
            weights.add("a.weight", &[2, 1], ElementType::F8E4M3, vec![0x38, 0x38]);
            weights.add("a.comfy_quant", &[description.len() as u64], ElementType::U8, description.to_vec());
            if !factors.is_empty() {
                weights.add(
                    "a.weight_scale",
                    &[factors.len() as u64, 1],
                    ElementType::F32,
                    f32_bytes(factors),
                );
            }
            opened(weights)
        };
        let weights = with(&description, &[2.0, 3.0]).unwrap();
        assert_eq!(halves(&weights, 0), [2.0, 3.0].map(f32_to_bf16));
        assert_eq!(names(&weights).len(), 1);
        let message = |description: &[u8], factors: &[f32]| with(description, factors).err().unwrap();
        assert!(message(&description, &[]).contains("`a.weight_scale` is missing"));
        assert!(message(&description, &[1.0, 2.0, 3.0]).contains("1 element, or 2"));
        assert!(message(&description, &[f32::NAN]).contains("NaN"));
        assert!(message(br#"{"format": "nvfp4"}"#, &[1.0]).contains("`nvfp4`"));
        assert!(message(br#"{"format": "float8_e4m3fn", "convrot": true}"#, &[1.0]).contains("convrot"));
        assert!(message(b"{", &[1.0]).contains("no JSON"));
    }

    #[test]
    fn types_without_values_are_refused() {
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[2], ElementType::F8E8M0, vec![1, 2]);
        assert!(opened(weights).err().unwrap().contains("F8_E8M0"));
        let mut weights = MemoryWeights::default();
        weights.add("a.weight", &[1, 1], ElementType::F8E4M3, vec![0x38]);
        weights.add("a.weight_scale_inv", &[1], ElementType::F32, f32_bytes(&[1.0]));
        assert!(opened(weights).err().unwrap().contains("factors by block"));
    }
}
