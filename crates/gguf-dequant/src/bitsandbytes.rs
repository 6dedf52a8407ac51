//! bitsandbytes: 4 bits with a code book and a scale for each block of the flattened matrix, or 8 bits with a scale
//! for each row.
//!
//! # Layout
//! 4 bits: packed bytes in any storage type; element 2k is the *high* nibble of byte k. Blocks run over the flattened
//! matrix and cross rows. `W = quant_map[code] · absmax[block]`; nested: `absmax = nested_map[code] · nested_absmax +
//! offset`, each step rounded. 8 bits: `W = (code · SCB[o]) · 0.0078740157`, in this order.

use std::ops::Range;

use serde_json::Value;

use crate::nibbles::look_up;
use crate::rectangle::Rectangle;
use crate::values::NumberTensor;
use crate::{CodedWeight, DequantError, InnerSource, Result, Settings, Tensors};
use gguf_checkpoint::json::check_keys;
use gguf_core::numeric::held_by_f32;
use gguf_core::{ElementType, Shape};

/// 1/127 as F32: the writer multiplies by it.
const INV_127: f32 = 0.007_874_015_7;

/// Plans all modules of `bitsandbytes`.
///
/// Tensor names determine the form of a module.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    for (ending, kind) in [("nf4", "NF4"), ("fp4", "FP4")] {
        for (weight, state) in tensors.ending(&format!(".quant_state.bitsandbytes__{ending}")) {
            settings.check_not_ignored(weight)?;
            four_bits(tensors, weight, state, kind)?;
        }
    }
    for (module, scale) in tensors.ending(".SCB") {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        eight_bits(tensors, module, scale)?;
    }
    Ok(())
}

struct QuantState {
    block: u64,
    dims: Vec<u64>,
    nested_block: Option<u64>,
    nested_offset: Option<f32>,
}

fn state(tensors: &Tensors<'_>, index: usize) -> Result<QuantState> {
    tensors.check_type(index, &[ElementType::U8])?;
    let meta = tensors.meta(index);
    let bad =
        |problem: &str| DequantError::BadMetadata { tensor: meta.name.clone(), problem: problem.to_owned() };
    let n = meta.shape.n_elems();
    if n > 1 << 16 {
        return Err(bad("too long for a description"));
    }
    let json: Value = tensors.inner().try_with_elems(index, 0..n, |bytes| {
        check_keys(bytes).map_err(|error| bad(&error.to_string()))?;
        serde_json::from_slice(bytes).map_err(|_| bad("not JSON"))
    })?;
    let size = |key: &str| json.get(key).and_then(Value::as_u64).filter(|&n| n > 0);
    let dims = json.get("shape").and_then(Value::as_array);
    let dims: Option<Vec<u64>> = dims.and_then(|dims| dims.iter().map(Value::as_u64).collect());
    Ok(QuantState {
        block: size("blocksize").ok_or_else(|| bad("`blocksize` must be a positive number"))?,
        dims: dims.ok_or_else(|| bad("`shape` must be a list of sizes"))?,
        nested_block: size("nested_blocksize"),
        nested_offset: json.get("nested_offset").and_then(Value::as_f64).and_then(held_by_f32),
    })
}

/// Scales of quantized block scales: `map[code] · absmax + offset`, each step in F32.
struct Nested {
    map: NumberTensor,
    absmax: NumberTensor,
    block: u64,
    offset: f32,
}

struct FourBits {
    /// Name of the code book.
    kind: &'static str,
    codes: usize,
    map: NumberTensor,
    absmax: NumberTensor,
    nested: Option<Nested>,
    block: u64,
    n_cols: u64,
    members: Vec<usize>,
}

fn four_bits(tensors: &mut Tensors<'_>, weight: &str, state_index: usize, kind: &'static str) -> Result<()> {
    let codes = tensors.member(weight, "")?;
    let state = state(tensors, state_index)?;
    let shape = Shape::new(state.dims.clone()).ok_or_else(|| DequantError::BadMetadata {
        tensor: tensors.meta(state_index).name.clone(),
        problem: format!("`shape` {:?} does not fit 63 bits", state.dims),
    })?;
    // Packed bytes may be stored under any element type.
    let meta = tensors.meta(codes);
    let n_bytes = meta.shape.n_elems().checked_mul(meta.ty.bytes().unwrap_or(1) as u64);
    let n = shape.n_elems();
    if n_bytes != Some(n.div_ceil(2)) {
        return Err(tensors.shape_error(codes, format!("{} bytes for {shape}", n.div_ceil(2))));
    }
    let absmax = tensors.member(weight, ".absmax")?;
    let map_index = tensors.member(weight, ".quant_map")?;
    let map = NumberTensor::new(tensors, map_index, &[ElementType::F32])?;
    if map.n != 16 {
        return Err(tensors.shape_error(map_index, "16 elements"));
    }
    let n_blocks = n.div_ceil(state.block);
    let mut members = vec![codes, state_index, absmax, map_index];
    let nested = if tensors.meta(absmax).ty == ElementType::U8 {
        let map_index = tensors.member(weight, ".nested_quant_map")?;
        let absmax_index = tensors.member(weight, ".nested_absmax")?;
        let map = NumberTensor::new(tensors, map_index, &[ElementType::F32])?;
        let nested_absmax = NumberTensor::new(tensors, absmax_index, &[ElementType::F32])?;
        let block = state.nested_block.unwrap_or(256);
        if map.n != 256 {
            return Err(tensors.shape_error(map_index, "256 elements"));
        }
        if nested_absmax.n != n_blocks.div_ceil(block) {
            let expected = format!("{} elements", n_blocks.div_ceil(block));
            return Err(tensors.shape_error(absmax_index, expected));
        }
        let offset = state.nested_offset.ok_or_else(|| DequantError::BadMetadata {
            tensor: tensors.meta(state_index).name.clone(),
            problem: "`nested_offset` must be a 32-bit float".to_owned(),
        })?;
        members.extend([map_index, absmax_index]);
        Some(Nested { map, absmax: nested_absmax, block, offset })
    } else {
        None
    };
    let absmax_values = NumberTensor::new(tensors, absmax, &[ElementType::F32, ElementType::U8])?;
    if absmax_values.n != n_blocks {
        let expected = format!("{n_blocks} elements, one for each block of {}", state.block);
        return Err(tensors.shape_error(absmax, expected));
    }
    let coded = FourBits {
        kind,
        codes,
        map,
        absmax: absmax_values,
        nested,
        block: state.block,
        n_cols: shape.n_cols(),
        members,
    };
    tensors.replace(codes, weight.to_owned(), shape, Box::new(coded));
    Ok(())
}

impl FourBits {
    /// Reads the scales of blocks `range`.
    fn scales(&self, inner: InnerSource<'_>, range: Range<u64>, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        let Some(nested) = &self.nested else { return self.absmax.read(inner, range, out) };
        let mut map = Vec::with_capacity(256);
        nested.map.read(inner, 0..256, &mut map)?;
        let mut outer = Vec::new();
        let first = range.start / nested.block;
        nested.absmax.read(inner, first..range.end.div_ceil(nested.block), &mut outer)?;
        inner.with_elems(self.absmax.index, range.clone(), |bytes| {
            for (block, &code) in range.zip(bytes) {
                let scale = outer[(block / nested.block - first) as usize];
                out.push(map[usize::from(code)] * scale + nested.offset);
            }
        })?;
        Ok(())
    }
}

impl CodedWeight for FourBits {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let elem_bytes = inner.meta(self.codes).ty.bytes().unwrap_or(1) as u64;
        let mut book = Vec::with_capacity(16);
        self.map.read(inner, 0..16, &mut book)?;
        let map: [f32; 16] = std::array::from_fn(|code| book[code]);
        let mut scales = Vec::new();
        for (row, out) in part.split_rows(out, part.width()) {
            let Range { start: first, end } = part.elems(row, self.n_cols);
            let first_block = first / self.block;
            self.scales(inner, first_block..end.div_ceil(self.block), &mut scales)?;
            // Byte positions are converted to elements of the stored type.
            let elems = first / 2 / elem_bytes..end.div_ceil(2).div_ceil(elem_bytes);
            let skip = elems.start * elem_bytes;
            inner.with_elems(self.codes, elems, |bytes| {
                let mut at = first;
                while at < end {
                    let block = at / self.block;
                    let stop = end.min((block + 1).saturating_mul(self.block));
                    let scale = scales[(block - first_block) as usize];
                    let out = &mut out[(at - first) as usize..(stop - first) as usize];
                    look_up::<true>(
                        &map.map(|value| value * scale),
                        &bytes[(at / 2 - skip) as usize..],
                        at,
                        out,
                    );
                    at = stop;
                }
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let nested = if self.nested.is_some() { ", nested scales" } else { "" };
        format!("{}, blocks of {}{nested}", self.kind, self.block)
    }
}

struct EightBits {
    codes: usize,
    scales: NumberTensor,
    n_cols: u64,
    members: Vec<usize>,
}

fn eight_bits(tensors: &mut Tensors<'_>, module: &str, scale: usize) -> Result<()> {
    let codes = tensors.member(module, ".weight")?;
    tensors.check_type(codes, &[ElementType::I8])?;
    let (n_rows, n_cols) = tensors.matrix(codes)?;
    let scales = NumberTensor::by_row(tensors, scale, &[ElementType::F32], n_rows)?;
    let mut members = vec![codes, scale];
    if let Some(format) = tensors.find(&format!("{module}.weight_format")) {
        tensors.check_type(format, &[ElementType::U8])?;
        if tensors.meta(format).shape.n_elems() != 1 {
            return Err(tensors.shape_error(format, "1 element"));
        }
        let found = tensors.inner().with_elems(format, 0..1, |bytes| bytes[0])?;
        if found != 0 {
            return Err(DequantError::UnsupportedVariant {
                place: format!("tensor `{}`", gguf_core::text::escape(&tensors.meta(format).name)),
                found: found.to_string(),
                reason: "weights are stored in a GPU tile order; 0 means rows".to_owned(),
            });
        }
        members.push(format);
    }
    tensors.decode_in_place(codes, Box::new(EightBits { codes, scales, n_cols, members }));
    Ok(())
}

impl CodedWeight for EightBits {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        for (row, out) in part.split_rows(out, part.width()) {
            let scale = self.scales.get(inner, row)?;
            inner.with_elems(self.codes, part.elems(row, self.n_cols), |bytes| {
                for (out, &code) in out.iter_mut().zip(bytes) {
                    *out = f32::from(code.cast_signed()) * scale * INV_127;
                }
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        "INT8, scales by row".to_owned()
    }
}
