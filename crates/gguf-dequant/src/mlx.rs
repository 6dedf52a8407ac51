//! MLX: codes in words of 32 bits, recognized by the tensors of a module.
//!
//! # Layout
//! `X.weight` U32 `[.., rows, words]`: the codes of a row are one stream of bits, lowest first, without gaps. `X.scales` has
//! a column for each group. `affine`: scales and `X.biases` are floats, `W = code · scale + bias`. `mxfp4`, `mxfp8`: scales
//! are E8M0 bytes. `nvfp4`: E4M3 bytes, and `X.global_scale` if the tensor has a factor. `X.bias` is the layer's own.
//!
//! The configuration has bits, groups and mode under `quantization` (again under `quantization_config`, without
//! `quant_method`), and under the name of a module where that one differs. mlx-lm takes them from the shapes where no name
//! does.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::affine::Affine;
use crate::bits::{CodeStream, WordLayout};
use crate::fp4::{Factor, Fp4, Nvfp4Params};
use crate::fp8::Fp8;
use crate::settings::CONFIG;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{CodedWeight, Configurations, DequantError, Method, Result, Settings, Tensors};
use gguf_core::text::escape;
use gguf_core::{ElementType, Shape, WeightMeta};

/// Configuration key of MLX's settings.
pub(super) const KEY: &str = "quantization";
/// The keys that may have them.
const KEYS: [&str; 2] = [KEY, "quantization_config"];
/// Configuration key of models that quantize the inputs of layers, too.
const ACTIVATIONS: &str = "quantize_activations";
/// Suffixes of the tensors that accompany words.
const COMPANIONS: [&str; 3] = [".scales", ".biases", ".global_scale"];

/// Arithmetic of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// Storage of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    mode: Mode,
    bits: u64,
    group: u64,
}

/// True if the inputs of layers stay floats.
#[derive(Clone, Copy)]
struct FloatActivations(bool);

/// Names of the modes, with the bits and groups that each has; the first are MLX's defaults.
const MODES: [(&str, Mode, &[u64], &[u64]); 4] = [
    ("affine", Mode::Affine, &[4, 2, 3, 5, 6, 8], &[64, 32, 128]),
    ("mxfp4", Mode::Mxfp4, &[4], &[32]),
    ("mxfp8", Mode::Mxfp8, &[8], &[32]),
    ("nvfp4", Mode::Nvfp4, &[4], &[16]),
];

impl Form {
    /// Reads a description; `key` is the one under which it is.
    fn of(map: &Map<String, Value>, key: &str) -> Result<Self> {
        let bad = |part: &str, problem: String| DequantError::BadConfig {
            file: CONFIG.to_owned(),
            key: format!("{key}.{part}"),
            problem,
        };
        let name = match map.get("mode") {
            None | Some(Value::Null) => "affine",
            Some(mode) => mode.as_str().ok_or_else(|| bad("mode", "must be a string".to_owned()))?,
        };
        let (_, mode, bits, groups) = MODES.iter().find(|row| row.0 == name).ok_or_else(|| {
            let known = MODES.map(|row| format!("`{}`", row.0)).join(", ");
            bad("mode", format!("is `{}`, known are {known}", escape(name)))
        })?;
        let number = |part: &str, known: &[u64]| match map.get(part) {
            None | Some(Value::Null) => Ok(known[0]),
            Some(value) => value.as_u64().filter(|value| known.contains(value)).ok_or_else(|| {
                let mut known = known.to_vec();
                known.sort_unstable();
                let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                bad(part, format!("is {}, `{name}` has {known}", escape(&value.to_string())))
            }),
        };
        Ok(Self { mode: *mode, bits: number("bits", bits)?, group: number("group_size", groups)? })
    }

    /// Returns all forms whose scales have the type of this tensor.
    fn all(scales: &WeightMeta) -> Vec<Self> {
        let is_float = scales.ty != ElementType::U8;
        let modes = MODES.into_iter().filter(|row| (row.1 == Mode::Affine) == is_float);
        modes
            .flat_map(|(_, mode, bits, groups)| {
                bits.iter().flat_map(move |&bits| groups.iter().map(move |&group| Self { mode, bits, group }))
            })
            .collect()
    }

    /// Returns the number of columns that so many words hold, if they are whole codes.
    fn columns(self, words: u64) -> Option<u64> {
        words.checked_mul(32).filter(|bits| bits.is_multiple_of(self.bits)).map(|bits| bits / self.bits)
    }

    /// Returns true if words and scales of a row belong together.
    fn fits(self, words: &WeightMeta, scales: &WeightMeta) -> bool {
        let n_groups = scales.shape.n_cols();
        let is_of_type = (scales.ty == ElementType::U8) != (self.mode == Mode::Affine);
        let columns = self.columns(words.shape.n_cols());
        is_of_type && columns.is_some() && columns == n_groups.checked_mul(self.group)
    }

    /// Returns the form for a message: `4 bits in groups of 64`.
    fn text(self) -> String {
        let mode = MODES.iter().find(|row| row.1 == self.mode && row.1 != Mode::Affine);
        let mode = mode.map(|row| format!("{}, ", row.0)).unwrap_or_default();
        format!("{mode}{} bits in groups of {}", self.bits, self.group)
    }
}

/// Returns true if weights are words of integers with scales, as MLX stores them.
pub fn has_words(weights: &[WeightMeta]) -> bool {
    let scaled: BTreeSet<&str> =
        weights.iter().filter_map(|meta| meta.name.strip_suffix(".scales")).collect();
    let mut words = weights.iter().filter(|meta| meta.ty == ElementType::U32);
    words.any(|meta| meta.name.strip_suffix(".weight").is_some_and(|module| scaled.contains(module)))
}

/// Returns the settings of weights that MLX quantized; `None` for others.
pub(super) fn find(files: &Configurations, weights: &[WeightMeta]) -> Option<Settings> {
    let described = description(&files.config);
    // Without words, the settings may have stayed behind; without settings, only both tensors of a module are evidence.
    let is_part = |meta: &WeightMeta| {
        (meta.ty == ElementType::U32 && meta.name.ends_with(".weight"))
            || COMPANIONS.iter().any(|suffix| meta.name.ends_with(suffix))
    };
    let is_of_others = weights.iter().any(|meta| meta.name.ends_with(".qweight"));
    let is_of_mlx =
        has_words(weights) || (described.is_some() && !is_of_others && weights.iter().any(is_part));
    let map = described.cloned().unwrap_or_default();
    is_of_mlx.then_some(Settings { file: CONFIG, method: Method::Mlx, map })
}

/// Returns a warning if MLX's settings remain in the configuration of a model whose weights are floats again.
pub(super) fn passed_over(files: &Configurations, weights: &[WeightMeta]) -> Option<String> {
    let map = files.config.get("quantization_config")?.as_object()?;
    let is_plain = weights.iter().all(|meta| meta.ty.is_plain_float());
    (is_description(map) && is_plain).then(|| {
        "config.json: `quantization_config` of MLX is passed over, the weights are plain floats".to_owned()
    })
}

fn is_description(map: &Map<String, Value>) -> bool {
    let is_of_mlx = map.get("quant_method").is_none_or(|method| method == "mlx");
    map.contains_key("bits") && map.contains_key("group_size") && is_of_mlx
}

/// Returns MLX's settings in the configuration of the model or of its text part.
fn description(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let text = config.get("text_config").and_then(Value::as_object);
    let maps = || [Some(config), text].into_iter().flatten();
    let found = maps().find_map(|map| KEYS.into_iter().find_map(|key| map.get(key)?.as_object()));
    found.filter(|map| is_description(map))
}

/// Plans all modules of MLX.
pub(super) fn plan(
    settings: &Settings,
    config: &Map<String, Value>,
    tensors: &mut Tensors<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let (widths, floats) =
        (widths(config), FloatActivations(config.get(ACTIVATIONS) != Some(&Value::Bool(true))));
    let mut others = Vec::new();
    for (module, scales) in tensors.ending(".scales") {
        let codes = tensors.member(module, ".weight")?;
        tensors.check_type(codes, &[ElementType::U32])?;
        tensors.check_type(scales, &[&SCALE_TYPES[..], &[ElementType::U8]].concat())?;
        let form = form(settings, tensors, module, [codes, scales], &widths)?;
        if form.is_other {
            others.push((tensors.meta(codes).name.clone(), form.form));
        }
        put(tensors, module, [codes, scales], form.form, floats)?;
    }
    let bare = tensors.ending(".weight").into_iter();
    let bare = bare.filter(|&(_, at)| tensors.meta(at).ty == ElementType::U32);
    let others_free = COMPANIONS.iter().flat_map(|suffix| tensors.ending(suffix)).chain(bare);
    if let Some((module, index)) = others_free.into_iter().find(|row| tensors.is_free(row.1)) {
        let tensor = format!("{module}.scales (beside {})", tensors.meta(index).name);
        return Err(DequantError::MissingTensor { module: module.to_owned(), tensor });
    }
    if let Some((tensor, form)) = others.first() {
        let more = if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
        warnings.push(format!(
            "config.json: `{KEY}` is not that of tensor `{}`{more}: read as {}, by its shape and the sizes there",
            escape(tensor),
            form.text()
        ));
    }
    Ok(())
}

/// Storage of a module, and whether the configuration says another one.
struct Found {
    form: Form,
    is_other: bool,
}

/// Finds the storage of a module: its own description, that of the model, or what the shapes leave open.
///
/// # Exactness
/// mlx-lm 0.32 takes the storage of modules without a description from their shapes and the model's sizes.
fn form(
    settings: &Settings,
    tensors: &Tensors<'_>,
    module: &str,
    [codes, scales]: [usize; 2],
    widths: &BTreeSet<u64>,
) -> Result<Found> {
    let (words, groups) = (tensors.meta(codes), tensors.meta(scales));
    let key = format!("{KEY}.{module}");
    let wrong = |form: Form| match form.columns(words.shape.n_cols()) {
        Some(n) if n.is_multiple_of(form.group) => {
            let outer = groups.shape.dims().split_last().map_or(&[][..], |row| row.1);
            let expected = [outer, &[n / form.group]].concat();
            tensors.shape_error(scales, format!("{expected:?}: {n} columns of {}", form.text()))
        }
        _ => tensors.shape_error(codes, format!("rows of whole groups: {}", form.text())),
    };
    match settings.map.get(module) {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(Value::Object(own)) => {
            let form = Form::of(own, &key)?;
            if (groups.ty == ElementType::U8) == (form.mode == Mode::Affine) {
                return Err(settings.conflict(
                    &key,
                    form.text(),
                    &groups.name,
                    format!("{} scales", groups.ty),
                ));
            }
            return if form.fits(words, groups) {
                Ok(Found { form, is_other: false })
            } else {
                Err(wrong(form))
            };
        }
        Some(Value::Bool(false)) => {
            return Err(settings.conflict(&key, "false", &words.name, "words of integers, and scales"));
        }
        Some(_) => return Err(settings.bad(&key, "must be an object or false")),
    }
    let default = if settings.map.is_empty() { None } else { Some(Form::of(&settings.map, KEY)?) };
    if let Some(form) = default.filter(|form| form.fits(words, groups)) {
        return Ok(Found { form, is_other: false });
    }
    // Where every module has the form of the model, another one is damage.
    let is_mixed = settings.map.values().any(Value::is_object);
    if let Some(form) = default.filter(|_| !is_mixed) {
        return Err(wrong(form));
    }
    let fitting: Vec<Form> = Form::all(groups).into_iter().filter(|form| form.fits(words, groups)).collect();
    let is_known = |form: &&Form| form.columns(words.shape.n_cols()).is_some_and(|n| widths.contains(&n));
    let known: Vec<&Form> = fitting.iter().filter(is_known).collect();
    match (known.as_slice(), fitting.as_slice(), default) {
        ([form], ..) => Ok(Found { form: **form, is_other: default.is_some() }),
        ([], [form], _) => Ok(Found { form: *form, is_other: default.is_some() }),
        (.., Some(form)) => Err(wrong(form)),
        (.., None) => {
            Err(settings.bad(KEY, &format!("is missing, which tensor `{}` needs", escape(&words.name))))
        }
    }
}

/// Returns the sizes of a configuration that may be the columns of a matrix: its numbers, and heads times their size.
fn widths(config: &Map<String, Value>) -> BTreeSet<u64> {
    let (mut all, mut maps) = (BTreeSet::new(), vec![config]);
    while let Some(map) = maps.pop() {
        let own: Vec<(&String, u64)> =
            map.iter().filter_map(|(key, value)| Some((key, value.as_u64()?))).collect();
        all.extend(own.iter().map(|row| row.1));
        for heads in own.iter().filter(|row| row.0.contains("heads")) {
            let sizes = own.iter().filter(|row| row.0.contains("head_dim"));
            all.extend(sizes.filter_map(|size| heads.1.checked_mul(size.1)));
        }
        maps.extend(
            map.iter().filter(|row| !KEYS.contains(&row.0.as_str())).filter_map(|row| row.1.as_object()),
        );
    }
    all
}

fn put(
    tensors: &mut Tensors<'_>,
    module: &str,
    [codes, scales]: [usize; 2],
    form: Form,
    floats: FloatActivations,
) -> Result<()> {
    let (words, groups) = (tensors.meta(codes), tensors.meta(scales));
    let Some((&n_words, outer)) = words.shape.dims().split_last().filter(|row| !row.1.is_empty()) else {
        return Err(tensors.shape_error(codes, "two dimensions, or a stack of those"));
    };
    let dims = form.columns(n_words).map(|n| [outer, &[n]].concat());
    let shape = tensors.weight_shape(codes, dims)?;
    tensors.check_shape(scales, &[outer, &[groups.shape.n_cols()]].concat())?;
    let coded: Box<dyn CodedWeight> = match form.mode {
        Mode::Affine => Box::new(affine(tensors, module, [codes, scales], form, &shape)?),
        Mode::Mxfp4 => Box::new(Fp4::in_words(tensors, codes, scales, None, &shape)?),
        Mode::Mxfp8 => Box::new(Fp8::in_words(tensors, codes, scales, &shape)),
        Mode::Nvfp4 => {
            let factor = match tensors.find(&format!("{module}.global_scale")) {
                Some(index) => Factor::Largest(NumberTensor::new(tensors, index, &[ElementType::F32])?),
                None => Factor::None,
            };
            let params = Nvfp4Params { factor, float_activations: floats.0, ..Nvfp4Params::default() };
            Box::new(Fp4::in_words(tensors, codes, scales, Some(params), &shape)?)
        }
    };
    tensors.replace(codes, words.name.clone(), shape, coded);
    if let Some(other) = COMPANIONS
        .iter()
        .find_map(|suffix| tensors.find(&format!("{module}{suffix}")).filter(|&index| tensors.is_free(index)))
    {
        return Err(DequantError::OrphanTensor {
            tensor: tensors.meta(other).name.clone(),
            problem: format!("`{}` has none in its mode: {}", escape(module), form.text()),
        });
    }
    Ok(())
}

fn affine(
    tensors: &Tensors<'_>,
    module: &str,
    [codes, scales]: [usize; 2],
    form: Form,
    shape: &Shape,
) -> Result<Affine> {
    let biases = tensors.member(module, ".biases")?;
    tensors.check_shape(biases, tensors.meta(scales).shape.dims())?;
    let stride = tensors.meta(codes).shape.n_cols();
    let bits = form.bits as u32;
    Ok(Affine {
        codes: CodeStream { index: codes, bits, layout: WordLayout::Dense, step: 1, stride },
        scales: NumberTensor::new(tensors, scales, &SCALE_TYPES)?,
        biases: NumberTensor::new(tensors, biases, &SCALE_TYPES)?,
        group: form.group,
        n_cols: shape.n_cols(),
        members: [codes, scales, biases],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msmodelslim::OffsetSign;
    use crate::{DequantOptions, Opened, open};
    use gguf_core::simd::SimdLevel;
    use gguf_testkit::memory::MemoryWeights;
    use serde_json::json;

    /// Opens tensors of zeros.
    fn opened(config: &Value, rows: &[(&str, ElementType, &[u64])]) -> Result<Opened> {
        let add = |all: MemoryWeights, (name, ty, dims): &(&str, ElementType, &[u64])| {
            let n = dims.iter().product::<u64>() as usize * ty.bytes().unwrap();
            all.with(name, dims, *ty, vec![0; n])
        };
        let weights = rows.iter().fold(MemoryWeights::default(), add);
        let files =
            Configurations { config: config.as_object().unwrap().clone(), ..Configurations::default() };
        let options = DequantOptions { offset_sign: OffsetSign::Auto, level: SimdLevel::Scalar };
        open(&files, Box::new(weights), options)
    }

    use ElementType::{Bf16, F32, U8, U32};

    #[test]
    fn descriptions_of_modules_count_and_shapes_where_there_is_none() {
        let config = |quantization: Value| json!({ "hidden_size": 64, "quantization": quantization });
        for (quantization, own, form, warns) in [
            (json!({"bits": 4, "group_size": 32}), [8, 2], "4 bit, groups of 32, with biases", false),
            // An older file, with what is usual.
            (json!({"bits": 4, "group_size": 64}), [8, 1], "4 bit, scales by row, with biases", false),
            (
                json!({"bits": 4, "group_size": 64, "q": {"bits": 8, "group_size": 32}}),
                [16, 2],
                "8 bit, groups of 32, with biases",
                false,
            ),
            // Not named, and another one: 64 columns are a size of the model.
            (
                json!({"bits": 4, "group_size": 64, "k": {"bits": 8, "group_size": 64}}),
                [16, 1],
                "8 bit, scales by row, with biases",
                true,
            ),
        ] {
            let rows = [
                ("q.weight", U32, &[3, own[0]][..]),
                ("q.scales", Bf16, &[3, own[1]]),
                ("q.biases", Bf16, &[3, own[1]]),
            ];
            let opened = opened(&config(quantization.clone()), &rows).unwrap();
            assert_eq!(opened.source.weights()[0].shape.dims(), [3, 64], "{quantization}");
            let encodings = opened.quantization.unwrap().encodings;
            assert_eq!(encodings["q.weight"].form, form, "{quantization}");
            assert_eq!(!opened.warnings.is_empty(), warns, "{quantization}: {:?}", opened.warnings);
        }
        // A module of another mode, which the type of its scales tells; the bias of the layer is a plain float.
        let rows =
            [("e.weight", U32, &[2, 3, 8][..]), ("e.scales", U8, &[2, 3, 2]), ("e.bias", Bf16, &[2, 3])];
        let opened =
            opened(&json!({"quantization_config": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}), &rows);
        let opened = opened.unwrap();
        assert_eq!(opened.quantization.unwrap().encodings["e.weight"].form, "MXFP4, groups of 32");
        assert_eq!(opened.source.weights().len(), 2);
    }

    #[test]
    fn what_does_not_belong_together_is_refused_by_name() {
        let affine = json!({"bits": 4, "group_size": 64});
        let words = ("q.weight", U32, &[3, 8][..]);
        let scales = ("q.scales", Bf16, &[3, 1][..]);
        let biases = ("q.biases", Bf16, &[3, 1][..]);
        let with = |own: Value| {
            let mut all = affine.clone();
            all["q"] = own;
            all
        };
        for (quantization, rows, want) in [
            (affine.clone(), vec![words, scales], "module `q`: tensor `q.biases` is missing"),
            (affine.clone(), vec![words], "module `q`: tensor `q.scales (beside q.weight)` is missing"),
            (affine.clone(), vec![scales], "module `q`: tensor `q.weight` is missing"),
            (
                affine.clone(),
                vec![words, biases],
                "module `q`: tensor `q.scales (beside q.biases)` is missing",
            ),
            (
                affine.clone(),
                vec![("q.weight", F32, &[3, 8]), scales],
                "`q.weight`: elements are F32, expected U32",
            ),
            (
                affine.clone(),
                vec![words, ("q.scales", Bf16, &[3, 3]), biases],
                "`q.scales`: shape is [3, 3], expected [3, 1]: 64 columns of 4 bits in groups of 64",
            ),
            (
                affine.clone(),
                vec![("q.weight", U32, &[3, 16]), scales, biases],
                "`q.scales`: shape is [3, 1], expected [3, 2]: 128 columns of 4 bits in groups of 64",
            ),
            (
                affine.clone(),
                vec![("q.weight", U32, &[3, 7]), scales, biases],
                "`q.weight`: shape is [3, 7], expected rows of whole groups: 4 bits in groups of 64",
            ),
            (
                affine.clone(),
                vec![words, scales, ("q.biases", Bf16, &[3, 2])],
                "`q.biases`: shape is [3, 2], expected [3, 1]",
            ),
            (affine.clone(), vec![words, scales, ("q.biases", U8, &[3, 1])], "`q.biases`: elements are U8"),
            (
                affine.clone(),
                vec![words, ("q.scales", Bf16, &[2, 1]), biases],
                "`q.scales`: shape is [2, 1], expected [3, 1]",
            ),
            (
                with(json!(false)),
                vec![words, scales, biases],
                "`quantization.q` is false, but tensor `q.weight` has words",
            ),
            (with(json!(3)), vec![words, scales, biases], "`quantization.q` must be an object or false"),
            (
                with(json!({"mode": "mxfp4", "bits": 4, "group_size": 32})),
                vec![words, scales, biases],
                "`quantization.q` is mxfp4, 4 bits in groups of 32, but tensor `q.scales` has BF16 scales",
            ),
            (
                json!({"bits": 7, "group_size": 64}),
                vec![words, scales, biases],
                "`quantization.bits` is 7, `affine` has 2, 3, 4",
            ),
            (
                json!({"bits": 4, "group_size": 64, "mode": "mxfp5"}),
                vec![words, scales, biases],
                "`quantization.mode` is `mxfp5`, known are `affine`",
            ),
            (
                json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}),
                vec![words, ("q.scales", U8, &[3, 2]), ("q.biases", Bf16, &[3, 2])],
                "tensor `q.biases`: `q` has none in its mode: mxfp4, 4 bits in groups of 32",
            ),
            (
                json!({"bits": 4, "group_size": 16, "mode": "nvfp4"}),
                vec![
                    ("q.weight", U32, &[2, 3, 2]),
                    ("q.scales", U8, &[2, 3, 1]),
                    ("q.global_scale", F32, &[3]),
                ],
                "`q.global_scale`: shape is [3], expected 1 element, or [2]",
            ),
        ] {
            let error =
                opened(&json!({"quantization": quantization}), &rows).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}, not {want}");
        }
        let error = opened(&json!({}), &[words, scales, biases]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("`quantization` is missing, which tensor `q.weight` needs"), "{error}");
    }

    #[test]
    fn a_description_that_stayed_behind_is_passed_over() {
        let own = json!({"bits": 4, "group_size": 64});
        // The second is what `mlx_lm.fuse --dequantize` left of gpt-oss (ml-explore/mlx-lm#659).
        for stale in
            [json!({"quantization": own, "quantization_config": own}), json!({"quantization_config": own})]
        {
            let opened = opened(&stale, &[("m.q.weight", Bf16, &[2, 2])]).unwrap();
            assert!(opened.quantization.is_none() && opened.warnings.len() == 1, "{:?}", opened.warnings);
        }
    }
}
