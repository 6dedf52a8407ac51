//! BitNet: ternary weights, four rows per byte, one scale for the tensor; or floats that are rounded when they are used.
//!
//! # Layout
//! `weight` U8 `[out/4, in]`: bits 2k of row r are row `k·out/4 + r`, value - 1. `bitlinear`: `W = value /
//! weight_scale`; `autobitlinear`: `value · weight_scale`. With `quantization_mode` = `online`, `weight` is floats, and
//! `W = clamp(round(weight / s), -1, 1) · s` with the mean magnitude `s` of the matrix.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::compressed::is_embedding;
use crate::encoding::tensor_class;
use crate::rectangle::Rectangle;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{CodedWeight, InnerSource, Result, Settings, Tensors};
use gguf_blocks::pack::{f16_error, pack_tq2_0};
use gguf_core::{ElementType, GgmlType, Packing};

struct Ternary {
    codes: usize,
    scale: NumberTensor,
    /// True if the scale divides instead of multiplying.
    is_divisor: bool,
    /// Number of byte rows: weight row `k · n_packed + r` is in bits `2k` of byte row `r`.
    n_packed: u64,
    n_cols: u64,
    members: [usize; 2],
}

/// Floats of a linear layer that rounds them when it is used.
struct Rounded {
    weights: NumberTensor,
    n_cols: u64,
    /// Mean magnitude of all elements; the first reader computes it.
    mean: OnceLock<f32>,
    members: [usize; 1],
}

/// Plans all modules of `bitnet`.
pub(super) fn plan(
    settings: &Settings,
    config: &Map<String, Value>,
    tensors: &mut Tensors<'_>,
) -> Result<()> {
    if settings.is_set_to("use_rms_norm", true) {
        let reason = "every linear layer normalizes its input, which no runtime does";
        return Err(settings.variant("use_rms_norm", "true", reason));
    }
    if settings.text("quantization_mode")? == Some("online") && !is_rounded_by_its_card(config) {
        round_floats(settings, tensors)?;
    }
    let is_divisor = match settings.text("linear_class")? {
        None | Some("bitlinear") => true,
        Some("autobitlinear") => false,
        Some(name) => {
            return Err(settings.variant("linear_class", name, "expected bitlinear or autobitlinear"));
        }
    };
    let packed: Vec<(&str, usize)> = tensors
        .ending(".weight")
        .into_iter()
        .filter(|row| tensors.meta(row.1).ty == ElementType::U8)
        .collect();
    for (module, codes) in packed {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        let scale = tensors.member(module, ".weight_scale")?;
        let values = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
        if values.n != 1 {
            return Err(tensors.shape_error(scale, "1 element"));
        }
        if is_divisor && values.get(tensors.inner(), 0)? == 0.0 {
            return Err(tensors.zero_divisor(scale));
        }
        let (n_packed, n_cols) = tensors.matrix(codes)?;
        let shape = tensors.weight_shape(codes, n_packed.checked_mul(4).map(|rows| vec![rows, n_cols]))?;
        let name = tensors.meta(codes).name.clone();
        let members = [codes, scale];
        let coded = Ternary { codes, scale: values, is_divisor, n_packed, n_cols, members };
        tensors.replace(codes, name, shape, Box::new(coded));
    }
    Ok(())
}

/// Returns true for the class BitNet, whose card rounds floats with the last bits of llama.cpp's converter.
fn is_rounded_by_its_card(config: &Map<String, Value>) -> bool {
    let classes = config.get("architectures").and_then(Value::as_array);
    let mut classes = classes.into_iter().flatten().filter_map(Value::as_str);
    classes.any(|class| class.eq_ignore_ascii_case("BitNetForCausalLM"))
}

/// Rounds the floats of all linear layers: matrices of the model's layers, but for the modules to skip.
fn round_floats(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let is_skipped = settings.skip_test()?;
    for (module, index) in tensors.ending(".weight") {
        let meta = tensors.meta(index);
        let is_linear = tensor_class(module) != module && meta.shape.rank() == 2 && !is_embedding(module);
        if is_linear && SCALE_TYPES.contains(&meta.ty) && !is_skipped(module) {
            let weights = NumberTensor::new(tensors, index, &SCALE_TYPES)?;
            let n_cols = meta.shape.n_cols();
            let rounded = Rounded { weights, n_cols, mean: OnceLock::new(), members: [index] };
            tensors.decode_in_place(index, Box::new(rounded));
        }
    }
    Ok(())
}

impl Rounded {
    /// Returns the mean magnitude of all elements.
    fn mean(&self, inner: InnerSource<'_>) -> Result<f32> {
        if let Some(mean) = self.mean.get() {
            return Ok(*mean);
        }
        let mut sum = 0.0;
        self.weights.all(inner, |value| {
            sum += f64::from(value.abs());
            true
        })?;
        // As the class does, so that zeros have no mean of 0.
        let mean = ((sum / self.weights.n as f64) as f32).max(1e-5);
        Ok(*self.mean.get_or_init(|| mean))
    }
}

impl CodedWeight for Rounded {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let (mean, mut values) = (self.mean(inner)?, Vec::new());
        for (row, out) in part.split_rows(out, part.width()) {
            values.clear();
            self.weights.read(inner, part.elems(row, self.n_cols), &mut values)?;
            for (out, value) in out.iter_mut().zip(&values) {
                *out = (value / mean).round_ties_even().clamp(-1.0, 1.0) * mean;
            }
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        "floats rounded to three values".to_owned()
    }
}

impl Ternary {
    /// Returns the value of a code of +1.
    fn value_of_one(&self, inner: InnerSource<'_>) -> Result<f32> {
        let scale = self.scale.get(inner, 0)?;
        Ok(if self.is_divisor { 1.0 / scale } else { scale })
    }

    /// Reads codes 0, 1 and 2 of a rectangle's columns of a row.
    fn read_codes(&self, inner: InnerSource<'_>, part: &Rectangle, row: u64, out: &mut [u8]) -> Result<()> {
        let (shift, packed) = (2 * (row / self.n_packed), row % self.n_packed);
        let elems = part.elems(packed, self.n_cols);
        inner.try_with_elems(self.codes, elems.clone(), |bytes| {
            let mut is_bad = false;
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = byte >> shift & 3;
                is_bad |= *out == 3;
            }
            // The loop has no exit so that it is vectorized; the search runs only if a bad code was found.
            match out.iter().position(|&code| is_bad && code == 3) {
                None => Ok(()),
                Some(at) => {
                    Err(inner.out_of_range(self.codes, elems.start + at as u64, 3, "a code of 0, 1 or 2"))
                }
            }
        })
    }
}

impl CodedWeight for Ternary {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let one = self.value_of_one(inner)?;
        let mut codes = vec![0; part.width()];
        for (row, out) in part.split_rows(out, part.width()) {
            self.read_codes(inner, part, row, &mut codes)?;
            for (out, &code) in out.iter_mut().zip(&codes) {
                *out = f32::from(code.cast_signed() - 1) * one;
            }
        }
        Ok(())
    }

    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if !self.n_cols.is_multiple_of(GgmlType::Tq2_0.block_elems() as u64) {
            return Ok(Vec::new());
        }
        let one = self.value_of_one(inner)?;
        let error = f16_error(one);
        let packing = Packing::rounded(GgmlType::Tq2_0, error);
        Ok(if error.is_finite() { vec![packing] } else { Vec::new() })
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        assert_eq!(ty, GgmlType::Tq2_0, "the only packing");
        let one = self.value_of_one(inner)?;
        let mut codes = vec![0; part.width()];
        let (block_elems, block_bytes) = (GgmlType::Tq2_0.block_elems(), GgmlType::Tq2_0.block_bytes());
        for (row, out) in part.split_rows(out, codes.len() / block_elems * block_bytes) {
            self.read_codes(inner, part, row, &mut codes)?;
            for (codes, out) in codes.as_chunks().0.iter().zip(out.chunks_exact_mut(block_bytes)) {
                pack_tq2_0(codes, one, out);
            }
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        "ternary, one scale".to_owned()
    }
}
