//! quanto: one byte per weight with a scale for each row, or 2 and 4 bits in groups with a float shift.
//!
//! # Layout
//! int8 and float8 by rows: `W = scale · code`. int4 and int2: field k *from the low end* holds rows `k·r` to
//! `(k+1)·r`; `W = scale · code - shift`, two roundings. Files with an integer shift: `scale · (code - shift)`.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::fp8::{Fp8, ScaleLayout};
use crate::linear_shape::{NoShape, linear_shape};
use crate::rectangle::Rectangle;
use crate::values::{NumberTensor, SCALE_TYPES, ScaleLines, each_stretch};
use crate::{CodedWeight, InnerSource, Result, Settings, Tensors, int8};
use gguf_core::{ElementType, Shape};

/// Plans all modules of `quanto`; `config` is the model's configuration.
///
/// # Errors
/// [`DequantError`]: tensors that are missing or do not fit, matrices whose shape cannot be determined.
pub(super) fn plan(
    settings: &Settings,
    config: &Map<String, Value>,
    tensors: &mut Tensors<'_>,
) -> Result<()> {
    for (module, codes) in tensors.ending(".weight._data") {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        bytes(tensors, module, codes)?;
    }
    for (module, codes) in tensors.ending(".weight._data._data") {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        packed(settings, config, tensors, module, codes)?;
    }
    Ok(())
}

fn bytes(tensors: &mut Tensors<'_>, module: &str, codes: usize) -> Result<()> {
    let scale = tensors.member(module, ".weight._scale")?;
    let (n_rows, _) = tensors.matrix(codes)?;
    let name = format!("{module}.weight");
    let shape = tensors.meta(codes).shape.clone();
    NumberTensor::by_row(tensors, scale, &SCALE_TYPES, n_rows)?;
    let coded: Box<dyn CodedWeight> = if tensors.meta(codes).ty == ElementType::I8 {
        Box::new(int8::matrix(tensors, codes, scale, ScaleLayout::Row)?)
    } else {
        Box::new(Fp8::new(tensors, codes, scale, ScaleLayout::Row)?)
    };
    tensors.replace(codes, name, shape, coded);
    Ok(())
}

/// Codes packed by blocks of rows of a grouped matrix `[n_groups, group]`: block `k` is in field `k` from the low
/// end.
struct QuantoWeight {
    codes: usize,
    bits: u32,
    n_packed: u64,
    group: u64,
    scale: NumberTensor,
    shift: NumberTensor,
    /// True if shifts are integers: these are subtracted before the product, float shifts after it.
    is_int_shift: bool,
    n_cols: u64,
    members: [usize; 3],
}

fn packed(
    settings: &Settings,
    config: &Map<String, Value>,
    tensors: &mut Tensors<'_>,
    module: &str,
    codes: usize,
) -> Result<()> {
    let (scale, shift) =
        (tensors.member(module, ".weight._scale")?, tensors.member(module, ".weight._shift")?);
    tensors.check_type(codes, &[ElementType::U8])?;
    let bits: u32 = match width(settings, module) {
        Some("int4" | "qint4") => 4,
        Some("int2" | "qint2") => 2,
        found => return Err(settings.variant("weights", found.unwrap_or("none"), "expected int2 or int4")),
    };
    let scales = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
    let types = [SCALE_TYPES.as_slice(), &[ElementType::I8, ElementType::U8]].concat();
    let shifts = NumberTensor::new(tensors, shift, &types)?;
    let (n_packed, group) = tensors.matrix(codes)?;
    let per_byte = u64::from(8 / bits);
    let n_groups = scales.n;
    if n_groups.div_ceil(per_byte) != n_packed || shifts.n != n_groups {
        let expected = format!("one for each of {n_packed} times {per_byte} groups");
        return Err(tensors.shape_error(scale, expected));
    }
    let too_large = || tensors.shape_error(codes, "a size that fits 63 bits");
    let n = n_groups.checked_mul(group).ok_or_else(too_large)?;
    let bias = tensors.find(&format!("{module}.bias")).map(|bias| tensors.meta(bias).shape.n_elems());
    let dims = linear_shape(config, module, n, bias).map_err(|unknown| {
        let reason = match unknown {
            NoShape::None => "neither the file nor the configuration tells its shape".to_owned(),
            NoShape::Ambiguous(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
                format!("its shape may be {}, and nothing tells which", shapes.join(" or "))
            }
        };
        settings.variant("weights", module, &reason)
    })?;
    let shape = Shape::new(dims.to_vec()).ok_or_else(too_large)?;
    let name = format!("{module}.weight");
    let coded = QuantoWeight {
        codes,
        bits,
        n_packed,
        group,
        scale: scales,
        shift: shifts,
        is_int_shift: !SCALE_TYPES.contains(&tensors.meta(shift).ty),
        n_cols: shape.n_cols(),
        members: [codes, scale, shift],
    };
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

/// Returns the type of a module's codes, from the map of modules or from `config.json`.
fn width<'a>(settings: &'a Settings, module: &str) -> Option<&'a str> {
    let of_module = settings.map.get(module).and_then(|entry| entry.get("weights"));
    of_module.or(settings.map.get("weights")).and_then(Value::as_str)
}

impl QuantoWeight {
    fn stretch(&self, inner: InnerSource<'_>, row: u64, cols: Range<u64>, out: &mut [f32]) -> Result<()> {
        let shift_bits = self.bits * (row / self.n_packed) as u32;
        let mask = (1u8 << self.bits) - 1;
        let (mut scale, mut shift) = (Vec::with_capacity(1), Vec::with_capacity(1));
        self.scale.read(inner, row..row + 1, &mut scale)?;
        self.shift.read(inner, row..row + 1, &mut shift)?;
        let (scale, shift) = (scale[0], shift[0]);
        let first = row % self.n_packed * self.group;
        inner.with_elems(self.codes, first + cols.start..first + cols.end, |bytes| {
            for (out, &byte) in out.iter_mut().zip(bytes) {
                let code = f32::from(byte >> shift_bits & mask);
                *out = if self.is_int_shift { scale * (code - shift) } else { scale * code - shift };
            }
        })?;
        Ok(())
    }
}

impl CodedWeight for QuantoWeight {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let lines = ScaleLines { n_cols: self.n_cols, width: self.group };
        each_stretch(lines, part, out, |line, cols, out| self.stretch(inner, line, cols, out))
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let shift = if self.is_int_shift { "integer" } else { "float" };
        format!("{} bit, groups of {}, {shift} shift", self.bits, self.group)
    }
}
