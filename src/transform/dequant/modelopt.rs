//! ModelOpt: FP8 with one scale a tensor, NVFP4 with scales of 16 columns and a factor, or both in one checkpoint.

use serde_json::Value;

use crate::core::{ElementType, Shape};
use crate::transform::dequant::fp4::{Factor, Fp4};
use crate::transform::dequant::fp8::{Fp8, Grid};
use crate::transform::dequant::values::Values;
use crate::transform::dequant::{DequantError, Settings, Tensors};

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
            nvfp4(tensors, codes, scale, factor)?;
        } else {
            let n = tensors.meta(scale).shape.n_elems();
            let is_rows = n == meta.shape.n_rows() && n != 1;
            let grid = if is_rows { Grid::Row } else { Grid::Tensor };
            let decoder = Fp8::new(tensors, codes, scale, grid)?;
            tensors.take(scale);
            tensors.replace(codes, meta.name.clone(), meta.shape.clone(), Box::new(decoder));
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

fn nvfp4(tensors: &mut Tensors<'_>, codes: usize, scale: usize, factor: usize) -> Result<(), DequantError> {
    let meta = tensors.meta(codes);
    let mut dims = meta.shape.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = last.saturating_mul(2);
    }
    let too_large = || tensors.shape_error(codes, "a size that fits 63 bits".to_owned());
    let shape = Shape::new(dims).ok_or_else(too_large)?;
    let values = Values::new(tensors, factor, &[ElementType::F32])?;
    let size = (shape.n_rows(), shape.n_cols());
    let decoder = Fp4::nv(tensors, meta.name.clone(), codes, scale, Factor::Times(values), size)?;
    tensors.take(scale);
    tensors.take(factor);
    tensors.replace(codes, meta.name.clone(), shape, Box::new(decoder));
    Ok(())
}

/// The algorithm, in `config.json` or in the file of its own.
fn check_algorithm(settings: &Settings) -> Result<(), DequantError> {
    const KEY: &str = "quant_algo";
    let own = settings.map.get(KEY);
    let nested = settings.map.get("quantization").and_then(|quantization| quantization.get(KEY));
    match own.or(nested).map(Value::as_str) {
        Some(Some("NVFP4" | "W4A16_NVFP4" | "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "MIXED_PRECISION")) => {
            Ok(())
        }
        Some(Some(name)) => Err(settings.variant(KEY, name, "its layout is not known well enough to read")),
        Some(None) => Err(settings.bad(KEY, "must be a string")),
        None => Err(settings.bad(KEY, "is missing")),
    }
}
