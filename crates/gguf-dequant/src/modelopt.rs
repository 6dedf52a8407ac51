//! ModelOpt: FP8, NVFP4 with a scale for each 16 columns and a factor, MXFP8, MXFP4, integers, or several in one
//! checkpoint.
//!
//! The experts of Llama 4 and gpt-oss are stacks that are not modules: `experts.down_proj`,
//! `experts.down_proj_weight_scale`, `experts.down_proj_weight_scale_2`, `experts.down_proj_input_scale`.
//!
//! # Layout
//! NVFP4: `weight` U8, `weight_scale` E4M3 for 16 columns, `weight_scale_2` *multiplies*: `W = e2m1 · (weight_scale ·
//! weight_scale_2)`. A GGUF file stores the bytes of `weight_scale` and the factor separately, so `(e2m1 · scale) ·
//! factor`, which differs by one rounding at most. Stacks: `X` U8 `[E, rows, in/2]` with `X_weight_scale` `[E, rows,
//! in/16]`, or transposed, `[E, in/2, out]` with `[E, in/16, out]` (the low nibble is the even input);
//! `X_weight_scale_2` is one number or `[E]`.

use serde_json::Value;

use crate::fp4::{Factor, Fp4, Nvfp4Params};
use crate::fp4_transposed::TransposedFp4;
use crate::fp8::{self, Fp8, ScaleLayout};
use crate::tensors::CodedModule;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{CodedWeight, DequantError, Result, Settings, Tensors, int8, stack};
use gguf_core::{ElementType, Shape};

/// Plans all modules of `modelopt`.
///
/// The tensors determine the form of a module; the configuration declares the possible forms.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    check_algorithm(settings)?;
    if let Some((module, _)) = tensors.ending(".pre_quant_scale").first() {
        let reason = "inputs are scaled at run time";
        return Err(settings.variant("quant_algo", &format!("{module}.pre_quant_scale"), reason));
    }
    for (module, scale) in tensors.ending(".weight_scale") {
        let codes = tensors.member(module, ".weight")?;
        settings.check_no_glob(module)?;
        put(settings, tensors, module, [codes, scale])?;
    }
    stacks(settings, tensors)?;
    if let Some((module, index)) =
        tensors.ending(".weight_scale_2").into_iter().find(|row| tensors.is_free(row.1))
    {
        return Err(DequantError::MissingTensor {
            module: module.to_owned(),
            tensor: format!("{module}.weight_scale (beside {})", tensors.meta(index).name),
        });
    }
    Ok(())
}

/// Assembles one module in the form that its tensors have.
fn put(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    [codes, scale]: [usize; 2],
) -> Result<()> {
    let name = tensors.meta(codes).name.clone();
    match (tensors.meta(codes).ty, tensors.meta(scale).ty) {
        (ElementType::U8, ElementType::U8 | ElementType::F8E8M0) => {
            let shape = stack::unpacked(tensors, codes)?;
            let coded = Fp4::mx(tensors, codes, scale, &shape)?;
            tensors.replace(codes, name, shape, Box::new(coded));
        }
        (ElementType::U8, ty) if SCALE_TYPES.contains(&ty) => {
            let coded = int8::row_pairs(tensors, codes, scale)?;
            let shape = tensors.weight_shape(codes, Some(vec![coded.n_rows, coded.n_cols]))?;
            tensors.replace(codes, name, shape, Box::new(coded));
        }
        (ElementType::U8, _) => {
            let factor = tensors.member(module, ".weight_scale_2")?;
            nvfp4(settings, tensors, module, [codes, scale, factor])?;
        }
        (ElementType::I8, _) => {
            let coded = int8::matrix(tensors, codes, scale, ScaleLayout::Row)?;
            tensors.decode_in_place(codes, Box::new(coded));
        }
        _ => {
            let coded = Fp8::new(tensors, codes, scale, fp8::grid(tensors, codes, scale))?;
            tensors.decode_in_place(codes, Box::new(coded));
        }
    }
    Ok(())
}

/// Plans stacks of experts that are parameters, not modules: the names of their scales extend the name of the stack.
fn stacks(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let is_code = |ty| ty == ElementType::U8 || fp8::is_fp8(ty);
    for CodedModule { name, codes, scale } in tensors.coded_modules("_weight_scale", "", is_code) {
        settings.check_no_glob(name)?;
        let meta = tensors.meta(codes);
        if meta.shape.rank() != 3 {
            return Err(tensors.shape_error(codes, "a stack: three dimensions"));
        }
        if meta.ty != ElementType::U8 {
            let coded = Fp8::new(tensors, codes, scale, stack_layout(tensors, codes, scale)?)?;
            tensors.decode_in_place(codes, Box::new(coded));
            continue;
        }
        let factor = tensors.member(name, "_weight_scale_2")?;
        let params = nvfp4_params(
            settings,
            tensors,
            name,
            [Some(factor), tensors.find(&format!("{name}_input_scale"))],
        )?;
        let (shape, coded) = nvfp4_stack(tensors, [codes, scale], params)?;
        tensors.replace(codes, meta.name.clone(), shape, coded);
    }
    Ok(())
}

/// Returns the layout of the scales of a stack in FP8; such as `[E, out]` belong to the rows or to the columns.
fn stack_layout(tensors: &Tensors<'_>, codes: usize, scale: usize) -> Result<ScaleLayout> {
    let (dims, found) = (tensors.meta(codes).shape.dims(), tensors.meta(scale).shape.dims());
    let &[n_mats, n_rows, n_cols] = dims else { return Ok(fp8::layout(tensors, codes, scale)) };
    if found != [n_mats, n_cols] {
        return Ok(fp8::layout(tensors, codes, scale));
    }
    if n_rows == n_cols && n_mats > 1 {
        let expected = format!("[{n_mats}, {n_rows}, 1] for rows or [{n_mats}, 1, {n_cols}] for columns");
        return Err(tensors.shape_error(scale, expected));
    }
    Ok(ScaleLayout::Column)
}

/// Assembles a stack whose bytes hold two codes of a row or two of a column, depending on the shape of the scales.
fn nvfp4_stack(
    tensors: &Tensors<'_>,
    [codes, scale]: [usize; 2],
    params: Nvfp4Params,
) -> Result<(Shape, Box<dyn CodedWeight>)> {
    let rows = stack::unpacked(tensors, codes)?;
    let (dims, found) = (rows.dims(), &tensors.meta(scale).shape);
    let &[n_mats, n_rows, n_cols] = dims else {
        return Err(tensors.shape_error(codes, "a stack: three dimensions"));
    };
    let by_rows = [n_mats, n_rows, n_cols.div_ceil(16)];
    let transposed = TransposedFp4::shape(&tensors.meta(codes).shape, found);
    match (found.dims() == by_rows, transposed) {
        (true, None) => {
            let coded = Fp4::nv(tensors, codes, scale, params, &rows)?;
            Ok((rows, Box::new(coded)))
        }
        (false, Some(transposed)) => {
            let coded = TransposedFp4::new(tensors, codes, scale, params, &transposed)?;
            Ok((transposed, Box::new(coded)))
        }
        // With one byte and one scale per matrix, either layout is possible.
        (true, Some(_)) => Err(tensors.shape_error(codes, "more than one byte in each matrix")),
        (false, None) => {
            let by_cols = [n_mats, n_rows.saturating_mul(2).div_ceil(16), n_cols / 2];
            let expected = format!("{by_rows:?} where rows are packed, or {by_cols:?} where columns are");
            Err(tensors.shape_error(scale, expected))
        }
    }
}

/// Returns the factor of an NVFP4 matrix or stack, and that of its input, if there is one.
fn nvfp4_params(
    settings: &Settings,
    tensors: &Tensors<'_>,
    module: &str,
    [factor, input]: [Option<usize>; 2],
) -> Result<Nvfp4Params> {
    let times = |index: Option<usize>, types: &[ElementType]| match index {
        Some(index) => NumberTensor::new(tensors, index, types).map(Factor::Times),
        None => Ok(Factor::None),
    };
    let (factor, input) = (times(factor, &[ElementType::F32])?, times(input, &SCALE_TYPES)?);
    let float_activations =
        algorithm(settings, module).is_some_and(|name| name.eq_ignore_ascii_case("W4A16_NVFP4"));
    Ok(Nvfp4Params { factor, input, float_activations })
}

fn nvfp4(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    [codes, scale, factor]: [usize; 3],
) -> Result<()> {
    let shape = stack::unpacked(tensors, codes)?;
    let input = tensors.find(&format!("{module}.input_scale"));
    let params = nvfp4_params(settings, tensors, module, [Some(factor), input])?;
    let coded = Fp4::nv(tensors, codes, scale, params, &shape)?;
    tensors.replace(codes, tensors.meta(codes).name.clone(), shape, Box::new(coded));
    Ok(())
}

const ALGORITHM: &str = "quant_algo";

/// Returns a setting: at the top level in `config.json`, one level down in ModelOpt's own file.
fn described<'a>(settings: &'a Settings, key: &str) -> Option<&'a Value> {
    let nested = settings.map.get("quantization").and_then(|quantization| quantization.get(key));
    settings.map.get(key).or(nested)
}

/// Returns the algorithm of a module: its own, that of an enclosing module, or that of the checkpoint.
fn algorithm<'a>(settings: &'a Settings, module: &str) -> Option<&'a str> {
    let layers = described(settings, "quantized_layers");
    let mut around = Some(module);
    while let Some(name) = around {
        if let Some(found) = layers.and_then(|layers| layers.get(name)?.get(ALGORITHM)?.as_str()) {
            return Some(found);
        }
        around = name.rsplit_once('.').map(|(outer, _)| outer);
    }
    described(settings, ALGORITHM).and_then(Value::as_str)
}

/// Algorithms whose layouts are read. Of FP8 in blocks, of 128 × 128, scales may be `[⌈out/128⌉, 1, ⌈in/128⌉, 1]`; 4-bit
/// integers lie in pairs of rows.
const ALGORITHMS: [&str; 15] = [
    "NVFP4",
    "NVFP4_AWQ",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "MXFP8",
    "MXFP4",
    "W4A8_MXFP4_FP8",
    "W8A8_SQ_PER_CHANNEL",
    "W8A16",
    "W4A16_AWQ",
    "INT4_AWQ",
    "MIXED_PRECISION",
];

/// Checks that the checkpoint's algorithm is supported; without one only the cache is quantized.
fn check_algorithm(settings: &Settings) -> Result<()> {
    let Some(value) = described(settings, ALGORITHM).filter(|value| !value.is_null()) else { return Ok(()) };
    let Some(name) = value.as_str() else { return Err(settings.bad(ALGORITHM, "must be a string")) };
    if ALGORITHMS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(settings.variant(ALGORITHM, name, "its layout is not known well enough to read"))
}
