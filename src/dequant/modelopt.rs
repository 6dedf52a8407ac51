//! ModelOpt: FP8 with one scale a tensor, NVFP4 with scales of 16 columns and a factor, or both in one checkpoint.

use serde_json::Value;

use crate::core::{ElementType, Shape};
use crate::dequant::fp4::{Beside, Factor, Fp4};
use crate::dequant::fp8::{Fp8, ScaleLayout};
use crate::dequant::values::{SCALE_TYPES, Values};
use crate::dequant::{DequantError, Settings, Tensors};

/// `modelopt`. The tensors say which form a module has; the configuration says which forms there may be.
///
/// # Errors
/// [`DequantError`]: algorithms that are not read, parts that are missing or do not fit.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<(), DequantError> {
    check_algorithm(settings)?;
    if let Some((module, _)) = tensors.ending(".pre_quant_scale").first() {
        let reason = "inputs are scaled at run time";
        return Err(settings.variant("quant_algo", &format!("{module}.pre_quant_scale"), reason));
    }
    for (module, scale) in tensors.ending(".weight_scale") {
        let codes = tensors.member(module, ".weight")?;
        settings.check_no_glob(module)?;
        let meta = tensors.meta(codes);
        if meta.ty == ElementType::U8 {
            let factor = tensors.member(module, ".weight_scale_2")?;
            nvfp4(settings, tensors, module, [codes, scale, factor])?;
        } else {
            let n = tensors.meta(scale).shape.n_elems();
            let is_rows = n == meta.shape.n_rows() && n != 1;
            let grid = if is_rows { ScaleLayout::Row } else { ScaleLayout::Tensor };
            let coded = Fp8::new(tensors, codes, scale, grid)?;
            tensors.replace(codes, meta.name.clone(), meta.shape.clone(), Box::new(coded));
        }
    }
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

fn nvfp4(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    [codes, scale, factor]: [usize; 3],
) -> Result<(), DequantError> {
    let meta = tensors.meta(codes);
    let mut dims = meta.shape.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = last.saturating_mul(2);
    }
    let too_large = || tensors.shape_error(codes, "a size that fits 63 bits".to_owned());
    let shape = Shape::new(dims).ok_or_else(too_large)?;
    let input = match tensors.find(&format!("{module}.input_scale")) {
        Some(input) => Factor::Times(Values::new(tensors, input, &SCALE_TYPES)?),
        None => Factor::None,
    };
    let values = Values::new(tensors, factor, &[ElementType::F32])?;
    let float_activations = algorithm(settings, module) == Some("W4A16_NVFP4");
    let beside = Beside { factor: Factor::Times(values), input, float_activations };
    let size = (shape.n_rows(), shape.n_cols());
    let coded = Fp4::nv(tensors, codes, scale, beside, size)?;
    tensors.replace(codes, meta.name.clone(), shape, Box::new(coded));
    Ok(())
}

const ALGORITHM: &str = "quant_algo";

/// A member of the description: at the top in `config.json`, one level down in the file of its own.
fn described<'a>(settings: &'a Settings, key: &str) -> Option<&'a Value> {
    let nested = settings.map.get("quantization").and_then(|quantization| quantization.get(key));
    settings.map.get(key).or(nested)
}

/// The algorithm of a module: its own, that of a module around it, or that of the checkpoint.
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

/// Whether the checkpoint's algorithm is one that is read.
fn check_algorithm(settings: &Settings) -> Result<(), DequantError> {
    match described(settings, ALGORITHM).map(Value::as_str) {
        Some(Some("NVFP4" | "W4A16_NVFP4" | "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "MIXED_PRECISION")) => {
            Ok(())
        }
        Some(Some(name)) => {
            Err(settings.variant(ALGORITHM, name, "its layout is not known well enough to read"))
        }
        Some(None) => Err(settings.bad(ALGORITHM, "must be a string")),
        None => Err(settings.bad(ALGORITHM, "is missing")),
    }
}
