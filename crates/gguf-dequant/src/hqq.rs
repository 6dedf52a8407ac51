//! HQQ: groups along rows or columns of a reshaped matrix, packed by blocks of rows, with float zero points.
//!
//! The value is `(code - zero) · scale`, each step rounded to F32.
//!
//! # Layout
//! `W_q`, `scale`, `zero`, `shape`, `packing`, `axis`. With v fields in a word and r packed rows, field k *from the top*
//! holds rows `k·r` to `(k+1)·r`; `3bit_32` has ten fields in 30 bits.

use std::ops::Range;

use crate::integers::{integers, sizes};
use crate::rectangle::Rectangle;
use crate::values::{NumberTensor, SCALE_TYPES, ScaleLines, each_stretch};
use crate::{CodedWeight, InnerSource, Result, Settings, Tensors};
use gguf_core::ElementType;
use gguf_core::little_endian::u32s;

/// Suffixes of the tensors of a module in addition to its codes; they are consumed with the module.
const PARTS: &[&str] = &[
    ".scale",
    ".zero",
    ".nbits",
    ".group_size",
    ".axis",
    ".shape",
    ".packing",
    ".view_as_float",
    ".quant_scale",
    ".quant_zero",
    ".channel_wise",
    ".compute_dtype",
    ".encoded_state_dict",
    ".offload_meta",
    ".optimize",
    ".round_zero",
    ".stores_quant_config",
    ".unpack_view_dtype",
];

struct Hqq {
    words: usize,
    word_bytes: u64,
    bits: u32,
    /// Number of codes per word, from the high bits down.
    per_word: u64,
    /// Number of rows of words.
    n_packed: u64,
    /// Number of columns of the reshaped matrix.
    width: u64,
    /// True for a scale per row of the reshaped matrix, false for one per column.
    by_row: bool,
    /// Elements per group.
    group: u64,
    scale: NumberTensor,
    zero: NumberTensor,
    n_cols: u64,
    members: Vec<usize>,
}

/// Plans all modules of `hqq`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    for (module, words) in tensors.ending(".W_q") {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        put(settings, tensors, module, words)?;
    }
    Ok(())
}

/// Checks that a tensor of integers has an element `at`.
fn check_integers(tensors: &Tensors<'_>, index: usize, at: u64) -> Result<()> {
    tensors.check_type(index, &[ElementType::I64, ElementType::I32, ElementType::U8, ElementType::Bool])?;
    if at >= tensors.meta(index).shape.n_elems() {
        return Err(tensors.shape_error(index, format!("{} elements", at + 1)));
    }
    Ok(())
}

/// Reads the first element of a tensor of integers.
fn integer(tensors: &Tensors<'_>, index: usize) -> Result<i64> {
    check_integers(tensors, index, 0)?;
    Ok(integers(tensors, index, 0..1)?[0])
}

fn put(settings: &Settings, tensors: &mut Tensors<'_>, module: &str, words: usize) -> Result<()> {
    let (scale_index, zero_index) = (tensors.member(module, ".scale")?, tensors.member(module, ".zero")?);
    let one = |suffix: &str| integer(tensors, tensors.member(module, suffix)?);
    for suffix in [".quant_scale", ".quant_zero"] {
        if let Some(index) = tensors.find(&format!("{module}{suffix}"))
            && integer(tensors, index)? != 0
        {
            let place = format!("{module}{suffix}");
            return Err(settings.variant("quant_config", &place, "scales and zero points are quantized"));
        }
    }
    let nbits_index = tensors.member(module, ".nbits")?;
    let (bits, per_word, types): (u32, u64, &[ElementType]) = match one(".nbits")? {
        8 => (8, 1, &[ElementType::U8]),
        4 => (4, 2, &[ElementType::U8]),
        3 => (3, 10, &[ElementType::I32]),
        2 => (2, 4, &[ElementType::U8]),
        1 => (1, 8, &[ElementType::U8]),
        found => {
            return Err(tensors.inner().out_of_range(nbits_index, 0, found, "1, 2, 3, 4 or 8"));
        }
    };
    let views_as_float = match tensors.find(&format!("{module}.view_as_float")) {
        Some(index) => integer(tensors, index)? != 0,
        None => false,
    };
    if !views_as_float {
        tensors.check_type(words, types)?;
    }
    let shape_index = tensors.member(module, ".shape")?;
    let size = |at| -> Result<u64> {
        check_integers(tensors, shape_index, at)?;
        Ok(sizes(tensors, shape_index, at..at + 1, "a size")?[0])
    };
    let shape = tensors.weight_shape(words, Some(vec![size(0)?, size(1)?]))?;
    let by_row = one(".axis")? == 1;
    let scale = NumberTensor::new(tensors, scale_index, &SCALE_TYPES)?;
    let zero = NumberTensor::new(tensors, zero_index, &SCALE_TYPES)?;
    let n = shape.n_elems();
    // There is one group per scale: a row or a column of the reshaped matrix.
    let fits = scale.n > 0 && n % scale.n == 0 && zero.n == scale.n;
    if !fits {
        return Err(tensors.shape_error(scale_index, format!("a number of groups that {n} elements fill")));
    }
    let (height, width) = if by_row { (scale.n, n / scale.n) } else { (n / scale.n, scale.n) };
    let n_packed = height.div_ceil(per_word);
    let word_bytes: u64 = if bits == 3 { 4 } else { 1 };
    let meta = tensors.meta(words);
    let n_bytes = meta.shape.n_elems().checked_mul(meta.ty.bytes().unwrap_or(1) as u64);
    if n_bytes.is_none() || n_bytes != n_packed.checked_mul(width).and_then(|n| n.checked_mul(word_bytes)) {
        let expected = format!("{n_packed} rows of {width} words of {bits}-bit codes");
        return Err(tensors.shape_error(words, expected));
    }
    let mut members = vec![words];
    members.extend(PARTS.iter().filter_map(|suffix| tensors.find(&format!("{module}{suffix}"))));
    let name = format!("{module}.weight");
    let coded = Hqq {
        words,
        word_bytes,
        bits,
        per_word,
        n_packed,
        width,
        by_row,
        group: n / scale.n,
        scale,
        zero,
        n_cols: shape.n_cols(),
        members,
    };
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

impl Hqq {
    /// Decodes a range of columns of one row of the reshaped matrix.
    fn stretch(&self, inner: InnerSource<'_>, row: u64, cols: Range<u64>, out: &mut [f32]) -> Result<()> {
        let (field, packed) = (row / self.n_packed, row % self.n_packed);
        let shift = self.bits * (self.per_word - 1 - field) as u32;
        let mask = (1u32 << self.bits) - 1;
        let groups = if self.by_row { row..row + 1 } else { cols.clone() };
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        self.scale.read(inner, groups.clone(), &mut scales)?;
        self.zero.read(inner, groups, &mut zeros)?;
        // Words may be stored under another element type, so positions are computed in bytes.
        let elem_bytes = inner.meta(self.words).ty.bytes().unwrap_or(1) as u64;
        let first = (packed * self.width + cols.start) * self.word_bytes;
        let end = first + (cols.end - cols.start) * self.word_bytes;
        let elems = first / elem_bytes..end.div_ceil(elem_bytes);
        let skip = (first - elems.start * elem_bytes) as usize;
        inner.with_elems(self.words, elems, |bytes| {
            let bytes = &bytes[skip..];
            let fields = out.iter_mut();
            if self.word_bytes == 4 {
                for (out, word) in fields.zip(u32s(bytes)) {
                    *out = (word >> shift & mask) as f32;
                }
            } else {
                for (out, &byte) in fields.zip(bytes) {
                    *out = (u32::from(byte) >> shift & mask) as f32;
                }
            }
            if self.by_row {
                let (scale, zero) = (scales[0], zeros[0]);
                for out in out.iter_mut() {
                    *out = (*out - zero) * scale;
                }
            } else {
                for ((out, scale), zero) in out.iter_mut().zip(&scales).zip(&zeros) {
                    *out = (*out - zero) * scale;
                }
            }
        })?;
        Ok(())
    }
}

impl CodedWeight for Hqq {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let lines = ScaleLines { n_cols: self.n_cols, width: self.width };
        each_stretch(lines, part, out, |line, cols, out| self.stretch(inner, line, cols, out))
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let axis = u8::from(self.by_row);
        format!("{} bit, groups of {} along axis {axis}", self.bits, self.group)
    }
}
