//! FastLLM's codes: value ranges (minimum and maximum) per row or group, and integers of eight or four bits.
//!
//! # Exactness
//! Scale and zero point are derived from a range as FastLLM's loader derives them, in F32 at every step; minimum and
//! product are added in F64 and rounded once.
//!
//! | codes | value | scale, zero point, minimum |
//! |---|---|---|
//! | INT8, INT4 | scale · (code - zero) | range widened to hold 0; (max - min) / (2^bits - 1); -min / scale, rounded half away from zero; |
//! | INT4_NOZERO, INT4_GROUP | minimum + scale · code | the same, minimum = -scale · zero |
//! | INT8 as the Python exporter meant it | scale · (code - 128) | max / 127 |
//! | INT4_NOZERO until July 2023 | minimum + scale · code | (max - min) / 15, minimum as stored |

mod affine;

use std::borrow::Cow;

use crate::core::{ElementType, GgmlType, Packing, Shape, SourceError, WeightMeta, WeightSource};
use crate::dequant::encoding::{along_rows, n_bytes};
use crate::dequant::flm::affine::{Affine, is_present, split};
use crate::dequant::{Encoding, Encodings};
use crate::quant::pack::{BLOCK_ELEMS, f16_error, pack_q4_0, pack_q4_1, pack_q8_0};

/// Ranges that are looked at in one go.
const RANGES_PER_STEP: u64 = 1 << 12;
/// Codes that are looked at in one go.
const CODES_PER_STEP: u64 = 1 << 16;
/// Below this share of rows that fit the present writers, a file is taken for one of July 2023.
const PRESENT_SHARE: f64 = 0.9;

/// Which codes a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlmCoding {
    /// Eight bits.
    Int8,
    /// Four bits with a zero point.
    Int4,
    /// Four bits with a minimum per row.
    Int4NoZero,
    /// Four bits with a minimum per group.
    Int4Group,
}

impl FlmCoding {
    /// FastLLM's name for it.
    fn name(self) -> &'static str {
        match self {
            Self::Int8 => "INT8",
            Self::Int4 => "INT4",
            Self::Int4NoZero => "INT4_NOZERO",
            Self::Int4Group => "INT4_GROUP",
        }
    }

    fn bits(self) -> u64 {
        if self == Self::Int8 { 8 } else { 4 }
    }

    /// The largest code.
    fn top(self) -> f32 {
        if self == Self::Int8 { 255.0 } else { 15.0 }
    }
}

/// A tensor of codes behind two weights of a source.
#[derive(Clone, Debug)]
pub struct FlmCodes {
    /// Name of the tensor.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// What the codes mean.
    pub coding: FlmCoding,
    /// The weight that holds the codes, as bytes; of two codes of four bits the first is the upper one.
    pub codes: usize,
    /// The weight that holds minima and maxima, as F32, `[n, 2]`.
    pub ranges: usize,
    /// Elements of a row.
    pub cols: u64,
    /// Ranges of a row.
    pub n_groups: u64,
    /// Elements that share a range; the last of a row may be fewer.
    pub group_cols: u64,
}

/// One tensor.
#[derive(Clone, Debug)]
pub enum FlmTensor {
    /// Floats, by the index of their weight.
    Plain(usize),
    /// Codes.
    Codes(FlmCodes),
}

/// Whose reading of a range counts, where they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlmMeaning {
    /// FastLLM's loader.
    #[default]
    Reader,
    /// The program that wrote the file.
    Writer,
}

/// What the ranges of a file say about its origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlmSurvey {
    /// Ranges whose minimum is NaN because all their values are zero, by tensor.
    pub zeroed: Vec<(String, u64)>,
    /// Whether there are INT8 codes and all their ranges are symmetric, as only the Python exporter writes them.
    pub symmetric_int8: bool,
    /// Share of INT4_NOZERO rows whose range the present writers could have written; `None` without such rows.
    pub present_int4: Option<f64>,
}

impl FlmSurvey {
    /// Whether INT4_NOZERO ranges look like those of July 2023: the raw extremes of a row.
    #[must_use]
    pub fn raw_int4(&self) -> bool {
        self.present_int4.is_some_and(|share| share < PRESENT_SHARE)
    }
}

/// Why a range has no meaning.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("value range {index} is {min} to {max}, which gives no finite scale")]
pub struct RangeError {
    /// Which of the tensor's ranges.
    pub index: u64,
    /// Minimum.
    pub min: f32,
    /// Maximum.
    pub max: f32,
}

/// The tensors of a file as floats.
pub struct FlmWeights {
    inner: Box<dyn WeightSource + Send>,
    tensors: Vec<FlmTensor>,
    metas: Vec<WeightMeta>,
    survey: FlmSurvey,
    meaning: FlmMeaning,
}

impl FlmWeights {
    /// Puts the layer over a source, after a look at all ranges.
    ///
    /// # Errors
    /// A range that is not finite; the source failed.
    ///
    /// # Panics
    /// If a tensor names weights that the source lacks, or of another size.
    pub fn new(
        inner: Box<dyn WeightSource + Send>,
        tensors: Vec<FlmTensor>,
        meaning: FlmMeaning,
    ) -> Result<Self, SourceError> {
        let meta = |tensor: &FlmTensor| match tensor {
            FlmTensor::Plain(weight) => inner.weights()[*weight].clone(),
            FlmTensor::Codes(codes) => {
                WeightMeta { name: codes.name.clone(), shape: codes.shape.clone(), ty: ElementType::F32 }
            }
        };
        let metas = tensors.iter().map(meta).collect();
        let mut layer = Self { inner, tensors, metas, survey: FlmSurvey::default(), meaning };
        layer.survey = layer.look()?;
        Ok(layer)
    }

    /// How the tensors of codes are stored.
    #[must_use]
    pub fn encodings(&self) -> Encodings {
        let encoding = |tensor: &FlmTensor| {
            let FlmTensor::Codes(codes) = tensor else { return None };
            let form = format!("{}, {}", codes.coding.name(), along_rows(codes.group_cols, codes.cols));
            let n_bytes = n_bytes(&*self.inner, &[codes.codes, codes.ranges]);
            Some((codes.name.clone(), Encoding { method: "FastLLM", form, n_bytes }))
        };
        self.tensors.iter().filter_map(encoding).collect()
    }

    /// What the ranges say.
    #[must_use]
    pub fn survey(&self) -> &FlmSurvey {
        &self.survey
    }

    /// Reads every range once, and makes sure that each has a meaning.
    fn look(&self) -> Result<FlmSurvey, SourceError> {
        let mut survey = FlmSurvey::default();
        let (mut n_int8, mut n_symmetric) = (0u64, 0u64);
        let (mut n_rows, mut n_present) = (0u64, 0u64);
        for tensor in &self.tensors {
            let FlmTensor::Codes(tensor) = tensor else { continue };
            let mut n_zeroed = 0;
            self.each_range(tensor, &mut |index, min, max| {
                if min.is_nan() {
                    n_zeroed += 1;
                }
                match tensor.coding {
                    FlmCoding::Int8 => {
                        n_int8 += 1;
                        n_symmetric += u64::from(min == -max);
                    }
                    FlmCoding::Int4NoZero if min < 0.0 => {
                        n_rows += 1;
                        n_present += u64::from(is_present(min, max));
                    }
                    _ => {}
                }
                self.affine_of(tensor, index, min, max).map(drop)
            })?;
            if n_zeroed > 0 {
                survey.zeroed.push((tensor.name.clone(), n_zeroed));
            }
        }
        survey.symmetric_int8 = n_int8 > 0 && n_symmetric == n_int8;
        survey.present_int4 = (n_rows > 0).then(|| n_present as f64 / n_rows as f64);
        Ok(survey)
    }

    /// Visits every range of a tensor.
    fn each_range(
        &self,
        tensor: &FlmCodes,
        visit: &mut dyn FnMut(u64, f32, f32) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let n = self.inner.weights()[tensor.ranges].shape.n_rows();
        let mut first = 0;
        while first < n {
            let count = (n - first).min(RANGES_PER_STEP);
            let bytes = self.bytes(tensor.ranges, first * 2, count * 2, 4)?;
            for (index, &pair) in (first..).zip(bytes.as_chunks::<8>().0) {
                let (min, max) = split(pair);
                visit(index, min, max)?;
            }
            drop(bytes);
            self.inner.release_elems(tensor.ranges, first * 2, count * 2);
            first += count;
        }
        Ok(())
    }

    /// Elements of a weight behind this layer, from the mapping or through memory.
    fn bytes(
        &self,
        weight: usize,
        first: u64,
        n: u64,
        elem_bytes: u64,
    ) -> Result<Cow<'_, [u8]>, SourceError> {
        let (start, len) = ((first * elem_bytes) as usize, (n * elem_bytes) as usize);
        if let Some(all) = self.inner.borrow(weight) {
            return Ok(Cow::Borrowed(&all[start..start + len]));
        }
        let mut bytes = vec![0; len];
        self.inner.read_elems(weight, first, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// The range of an element, ready to use.
    fn affine(&self, tensor: &FlmCodes, index: u64) -> Result<Affine, SourceError> {
        let bytes = self.bytes(tensor.ranges, index * 2, 2, 4)?;
        let pair = bytes.first_chunk::<8>().copied().unwrap_or_default();
        let (min, max) = split(pair);
        self.affine_of(tensor, index, min, max)
    }

    fn affine_of(&self, tensor: &FlmCodes, index: u64, min: f32, max: f32) -> Result<Affine, SourceError> {
        let broken =
            || SourceError { tensor: tensor.name.clone(), source: RangeError { index, min, max }.into() };
        if min.is_nan() {
            // The Python exporter divides by zero where all values are zero; it stores zeros as codes, too.
            let is_nothing = max == 0.0 && tensor.coding != FlmCoding::Int8 && self.is_zero(tensor, index)?;
            return if is_nothing { Ok(Affine::NOTHING) } else { Err(broken()) };
        }
        let by_writer = self.meaning == FlmMeaning::Writer;
        let affine = match tensor.coding {
            FlmCoding::Int8 if by_writer && self.survey.symmetric_int8 => {
                let scale = max / 127.0;
                Affine { scale, zero: 128.0, min: -128.0 * scale }
            }
            FlmCoding::Int4NoZero if by_writer && self.survey.raw_int4() => {
                Affine { scale: (max - min) / 15.0, zero: 0.0, min }
            }
            coding => Affine::reader(min, max, coding.top()),
        };
        if min.is_finite() && max.is_finite() && affine.is_finite() { Ok(affine) } else { Err(broken()) }
    }

    /// Whether all codes of a range are zero.
    fn is_zero(&self, tensor: &FlmCodes, index: u64) -> Result<bool, SourceError> {
        let (first, n) = tensor.elems_of(index);
        Ok(self.codes(tensor, first, n)?.iter().all(|code| code == 0))
    }

    /// Codes of elements `first .. first + n`.
    fn codes(&self, tensor: &FlmCodes, first: u64, n: u64) -> Result<Codes<'_>, SourceError> {
        let bits = tensor.coding.bits();
        let (begin, end) = (first * bits / 8, ((first + n) * bits).div_ceil(8));
        let bytes = self.bytes(tensor.codes, begin, end - begin, 1)?;
        Ok(Codes { bytes, is_byte: bits == 8, skip: (first * bits / 4 % 2) as usize, n: n as usize })
    }

    /// Visits elements `first .. first + n`, one range at a time: its first element's place among them, and its codes.
    fn each_span(
        &self,
        tensor: &FlmCodes,
        first: u64,
        n: u64,
        visit: &mut dyn FnMut(usize, Affine, Codes<'_>),
    ) -> Result<(), SourceError> {
        let mut at = first;
        while at < first + n {
            let index = tensor.range_of(at);
            let (begin, len) = tensor.elems_of(index);
            let count = (begin + len).min(first + n) - at;
            visit((at - first) as usize, self.affine(tensor, index)?, self.codes(tensor, at, count)?);
            at += count;
        }
        Ok(())
    }

    /// Whether the codes of a range, less its zero point, fit one byte with a sign.
    fn fits_i8(&self, tensor: &FlmCodes, index: u64, affine: Affine) -> Result<bool, SourceError> {
        // 0 - 128 and 255 - 128 fit, so no code needs to be looked at.
        if affine.zero == 128.0 || affine.scale == 0.0 {
            return Ok(true);
        }
        let (begin, len) = tensor.elems_of(index);
        let mut done = 0;
        while done < len {
            let n = (len - done).min(CODES_PER_STEP);
            let fits = self
                .codes(tensor, begin + done, n)?
                .iter()
                .all(|code| (-128.0..=127.0).contains(&(f32::from(code) - affine.zero)));
            self.inner.release_elems(tensor.codes, begin + done, n);
            if !fits {
                return Ok(false);
            }
            done += n;
        }
        Ok(true)
    }
}

impl FlmCodes {
    /// The range of an element.
    fn range_of(&self, elem: u64) -> u64 {
        elem / self.cols * self.n_groups + elem % self.cols / self.group_cols
    }

    /// First element and number of elements of a range.
    fn elems_of(&self, index: u64) -> (u64, u64) {
        let (row, group) = (index / self.n_groups, index % self.n_groups);
        let begin = group * self.group_cols;
        (row * self.cols + begin, self.group_cols.min(self.cols - begin))
    }

    /// Whether every range covers whole blocks of a row.
    fn has_whole_blocks(&self) -> bool {
        let blocks = BLOCK_ELEMS as u64;
        self.shape.n_elems() > 0
            && self.shape.n_cols().is_multiple_of(blocks)
            && self.cols.is_multiple_of(blocks)
            && (self.n_groups == 1 || self.group_cols.is_multiple_of(blocks))
    }
}

/// Codes of neighbouring elements.
struct Codes<'a> {
    bytes: Cow<'a, [u8]>,
    is_byte: bool,
    /// Codes in front of the first one, in its byte.
    skip: usize,
    n: usize,
}

impl Codes<'_> {
    fn get(&self, at: usize) -> u8 {
        if self.is_byte {
            return self.bytes[at];
        }
        let at = at + self.skip;
        let pair = self.bytes[at / 2];
        if at.is_multiple_of(2) { pair >> 4 } else { pair & 15 }
    }

    fn iter(&self) -> impl Iterator<Item = u8> {
        (0..self.n).map(|at| self.get(at))
    }
}

impl WeightSource for FlmWeights {
    fn weights(&self) -> &[WeightMeta] {
        &self.metas
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let tensor = match &self.tensors[weight] {
            FlmTensor::Plain(inner) => return self.inner.read_elems(*inner, first, out),
            FlmTensor::Codes(tensor) => tensor,
        };
        let out = out.as_chunks_mut::<4>().0;
        let n = out.len() as u64;
        assert!(first + n <= tensor.shape.n_elems(), "elements {first}..+{n} lie outside weight {weight}");
        let has_min = matches!(tensor.coding, FlmCoding::Int4NoZero | FlmCoding::Int4Group);
        self.each_span(tensor, first, n, &mut |at, affine, codes| {
            let out = &mut out[at..at + codes.n];
            if codes.is_byte {
                for (value, &code) in out.iter_mut().zip(codes.bytes.iter()) {
                    *value = affine.value(code, has_min).to_le_bytes();
                }
            } else {
                let values: [[u8; 4]; 16] =
                    std::array::from_fn(|code| affine.value(code as u8, has_min).to_le_bytes());
                for (value, code) in out.iter_mut().zip(codes.iter()) {
                    *value = values[usize::from(code)];
                }
            }
        })
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        match &self.tensors[weight] {
            FlmTensor::Plain(inner) => self.inner.borrow(*inner),
            FlmTensor::Codes(_) => None,
        }
    }

    fn code_type(&self, weight: usize) -> Option<ElementType> {
        match &self.tensors[weight] {
            FlmTensor::Plain(inner) => self.inner.code_type(*inner),
            FlmTensor::Codes(tensor) => Some(self.inner.weights()[tensor.codes].ty),
        }
    }

    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        let tensor = match &self.tensors[weight] {
            FlmTensor::Plain(inner) => return self.inner.packings(*inner),
            FlmTensor::Codes(tensor) => tensor,
        };
        if !tensor.has_whole_blocks() {
            return Ok(Vec::new());
        }
        let (mut scale_error, mut min_error) = (0.0f32, 0.0f32);
        let (mut is_q8_0, mut is_q4_0) = (true, true);
        self.each_range(tensor, &mut |index, min, max| {
            let affine = self.affine_of(tensor, index, min, max)?;
            scale_error = scale_error.max(f16_error(affine.scale));
            min_error = min_error.max(f16_error(affine.min));
            // The minimum is -8 · scale exactly, or the row is nothing.
            is_q4_0 &= affine.min == -8.0 * affine.scale;
            if tensor.coding == FlmCoding::Int8 && is_q8_0 {
                is_q8_0 = self.fits_i8(tensor, index, affine)?;
            }
            Ok(())
        })?;
        let mut packings = Vec::new();
        let mut offer = |ty, error: f32| {
            if error.is_finite() {
                packings.push(Packing::rounded(ty, error));
            }
        };
        if tensor.coding == FlmCoding::Int8 {
            if is_q8_0 {
                offer(GgmlType::Q8_0, scale_error);
            }
        } else {
            if is_q4_0 {
                offer(GgmlType::Q4_0, scale_error);
            }
            offer(GgmlType::Q4_1, scale_error.max(min_error));
        }
        Ok(packings)
    }

    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let tensor = match &self.tensors[weight] {
            FlmTensor::Plain(inner) => return self.inner.read_packed(*inner, ty, first, out),
            FlmTensor::Codes(tensor) => tensor,
        };
        let block_bytes = ty.block_bytes();
        let n = (out.len() / block_bytes * BLOCK_ELEMS) as u64;
        assert!(first + n <= tensor.shape.n_elems(), "elements {first}..+{n} lie outside weight {weight}");
        self.each_span(tensor, first, n, &mut |at, affine, codes| {
            let blocks = out[at / BLOCK_ELEMS * block_bytes..].chunks_exact_mut(block_bytes);
            for (begin, block) in (0..codes.n).step_by(BLOCK_ELEMS).zip(blocks) {
                let code = |i: usize| codes.get(begin + i);
                match ty {
                    GgmlType::Q8_0 if affine.scale == 0.0 => block.fill(0),
                    GgmlType::Q8_0 => {
                        let codes: [i8; BLOCK_ELEMS] =
                            std::array::from_fn(|i| (f32::from(code(i)) - affine.zero) as i8);
                        pack_q8_0(&codes, affine.scale, block);
                    }
                    GgmlType::Q4_0 => {
                        pack_q4_0(&std::array::from_fn::<_, BLOCK_ELEMS, _>(code), affine.scale, block);
                    }
                    GgmlType::Q4_1 => {
                        let codes: [u8; BLOCK_ELEMS] = std::array::from_fn(code);
                        pack_q4_1(&codes, affine.scale, affine.min, block);
                    }
                    _ => panic!("weight {weight} has no packing as {ty}"),
                }
            }
        })
    }

    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        match &self.tensors[weight] {
            FlmTensor::Plain(inner) => self.inner.release_elems(*inner, first, n),
            FlmTensor::Codes(tensor) if n > 0 => {
                let bits = tensor.coding.bits();
                let (begin, end) = (first * bits / 8, (first + n) * bits / 8);
                self.inner.release_elems(tensor.codes, begin, end - begin);
                let (begin, end) = (tensor.range_of(first), tensor.range_of(first + n - 1));
                self.inner.release_elems(tensor.ranges, begin * 2, (end - begin) * 2);
            }
            FlmTensor::Codes(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_four_bits_start_anywhere() {
        let codes = Codes { bytes: Cow::Borrowed(&[0x12, 0x34]), is_byte: false, skip: 1, n: 3 };
        assert_eq!(codes.iter().collect::<Vec<_>>(), [2, 3, 4]);
    }
}
