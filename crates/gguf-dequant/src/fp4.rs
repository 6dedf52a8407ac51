//! FP4: E2M1 codes, two per byte, the even column in the low nibble, with a scale for each 16 or 32 columns.
//!
//! MXFP4 has a power-of-two scale for each 32 columns. NVFP4 has an E4M3 scale for each 16 columns and one factor for
//! the tensor: `e2m1 · (scale · factor)`, or `e2m1 · (scale / factor)`, each step rounded to F32. Matrices of a stack
//! may have their own factors. MLX's NVFP4 may have none, and packs the same bytes in words.

use std::ops::Range;

use crate::nibbles::look_up;
use crate::rectangle::Rectangle;
use crate::stack::{check_groups, is_by_matrix, matrices};
use crate::values::NumberTensor;
use crate::{CodedWeight, InnerSource, Result, Tensors};
use gguf_blocks::pack::{BLOCK_ELEMS, pack_mxfp4, pack_nvfp4};
use gguf_core::small_float::E2M1;
use gguf_core::{ElementType, GgmlType, Packing, Shape, StackFactors};

/// Global factor of a tensor, or of each matrix of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Factor {
    /// No factor.
    #[default]
    None,
    /// Scales are multiplied by the factor.
    Times(NumberTensor),
    /// Scales are divided by the factor.
    Over(NumberTensor),
    /// Scales are multiplied by the factor over [`NV_RANGE`]: it is the largest magnitude of the tensor (MLX).
    Largest(NumberTensor),
}

/// Largest product of a code and an E4M3 scale.
const NV_RANGE: f32 = 6.0 * 448.0;

impl Factor {
    /// Checks that the factor is one number, or one per matrix, and not zero if it divides.
    ///
    /// # Errors
    /// Another number of elements; a number that is not finite; a divisor of zero.
    fn check(self, tensors: &Tensors<'_>, n_mats: u64) -> Result<()> {
        let Some(values) = self.values() else { return Ok(()) };
        if values.n != 1 && !is_by_matrix(&tensors.meta(values.index).shape, n_mats) {
            let expected = match n_mats {
                1 => "1 element".to_owned(),
                _ => format!("1 element, or [{n_mats}], one for each matrix of the stack"),
            };
            return Err(tensors.shape_error(values.index, expected));
        }
        let is_zero = matches!(self, Self::Over(_));
        if !values.all(tensors.inner(), |value| value != 0.0 || !is_zero)? {
            return Err(tensors.zero_divisor(values.index));
        }
        Ok(())
    }

    pub(super) fn apply(self, inner: InnerSource<'_>, matrix: u64, scales: &mut [f32]) -> Result<()> {
        let Some(values) = self.values() else { return Ok(()) };
        let factor = values.get(inner, if values.n == 1 { 0 } else { matrix })?;
        match self {
            Self::Over(_) => scales.iter_mut().for_each(|scale| *scale /= factor),
            _ => scales.iter_mut().for_each(|scale| *scale *= self.as_multiplier(factor)),
        }
        Ok(())
    }

    fn values(self) -> Option<NumberTensor> {
        match self {
            Self::None => None,
            Self::Times(values) | Self::Over(values) | Self::Largest(values) => Some(values),
        }
    }

    fn as_multiplier(self, factor: f32) -> f32 {
        match self {
            Self::Over(_) => 1.0 / factor,
            Self::Largest(_) => factor / NV_RANGE,
            Self::None | Self::Times(_) => factor,
        }
    }

    /// Index of the tensor that holds the factor.
    pub(super) fn member(self) -> Option<usize> {
        self.values().map(|values| values.index)
    }

    /// Returns true if every matrix of a stack has its own factor.
    fn is_by_matrix(self) -> bool {
        self.values().is_some_and(|values| values.n != 1)
    }

    fn multiplier(self, inner: InnerSource<'_>) -> Result<Option<f32>> {
        let Some(values) = self.values() else { return Ok(None) };
        Ok(Some(self.as_multiplier(values.get(inner, 0)?)))
    }

    /// Returns the factors of `n_mats` matrices as multipliers; empty without factors.
    fn multipliers(self, inner: InnerSource<'_>, n_mats: u64) -> Result<Vec<f32>> {
        let Some(values) = self.values() else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        values.read(inner, 0..values.n, &mut all)?;
        for value in &mut all {
            *value = self.as_multiplier(*value);
        }
        if let [one] = *all {
            all.resize(usize::try_from(n_mats).unwrap_or(1), one);
        }
        Ok(all)
    }
}

/// Parameters of an NVFP4 matrix in addition to codes and scales.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nvfp4Params {
    /// Factor of the matrix.
    pub(super) factor: Factor,
    /// Factor of the matrix's input, for runtimes that quantize activations.
    pub(super) input: Factor,
    /// True if the checkpoint declares that activations stay floats.
    pub(super) float_activations: bool,
}

impl Nvfp4Params {
    /// Checks the factors of a stack of `n_mats` matrices.
    pub(super) fn check(&self, tensors: &Tensors<'_>, n_mats: u64) -> Result<()> {
        self.factor.check(tensors, n_mats)?;
        self.input.check(tensors, n_mats)
    }
}

/// A matrix of FP4 codes.
pub(super) struct Fp4 {
    codes: usize,
    scales: NumberTensor,
    params: Nvfp4Params,
    /// Columns per scale.
    group: u64,
    /// Rows of one matrix of a stack.
    mat_rows: u64,
    n_cols: u64,
    members: Vec<usize>,
}

impl Fp4 {
    /// Creates an MXFP4 matrix: one exponent byte as scale for each 32 columns.
    pub(super) fn mx(tensors: &Tensors<'_>, codes: usize, scale: usize, shape: &Shape) -> Result<Self> {
        tensors.check_type(scale, &[ElementType::U8, ElementType::F8E8M0])?;
        tensors.check_type(codes, &[ElementType::U8, ElementType::I8])?;
        let scales = NumberTensor::exponents(tensors, scale);
        Self::new(tensors, codes, scales, Nvfp4Params::default(), 32, shape)
    }

    /// Creates an NVFP4 matrix: a scale for each 16 columns, and a factor for the tensor or for each matrix of a
    /// stack.
    ///
    /// # Errors
    /// Types and sizes that do not fit; a factor that is not finite, or a divisor of zero.
    pub(super) fn nv(
        tensors: &Tensors<'_>,
        codes: usize,
        scale: usize,
        params: Nvfp4Params,
        shape: &Shape,
    ) -> Result<Self> {
        let scales = NumberTensor::new(tensors, scale, &[ElementType::F8E4M3])?;
        tensors.check_type(codes, &[ElementType::U8, ElementType::I8])?;
        params.check(tensors, matrices(shape).0)?;
        Self::new(tensors, codes, scales, params, 16, shape)
    }

    /// Creates a matrix whose codes are packed in words, as MLX does: NVFP4 if there are `params`, or MXFP4.
    pub(super) fn in_words(
        tensors: &Tensors<'_>,
        codes: usize,
        scale: usize,
        params: Option<Nvfp4Params>,
        shape: &Shape,
    ) -> Result<Self> {
        tensors.check_type(scale, &[ElementType::U8])?;
        let Some(params) = params else {
            let scales = NumberTensor::exponents(tensors, scale);
            return Self::new(tensors, codes, scales, Nvfp4Params::default(), 32, shape);
        };
        params.check(tensors, matrices(shape).0)?;
        Self::new(tensors, codes, NumberTensor::e4m3(tensors, scale), params, 16, shape)
    }

    fn new(
        tensors: &Tensors<'_>,
        codes: usize,
        scales: NumberTensor,
        params: Nvfp4Params,
        group: u64,
        shape: &Shape,
    ) -> Result<Self> {
        let (n_rows, n_cols) = (shape.n_rows(), shape.n_cols());
        let n_bytes = n_cols.div_ceil(2).checked_mul(n_rows);
        let stored = tensors.meta(codes);
        let n_stored = stored.shape.n_elems().checked_mul(stored.ty.bytes().unwrap_or(1) as u64);
        if n_cols % 2 != 0 || n_stored != n_bytes {
            return Err(tensors.shape_error(codes, format!("{n_rows} rows of {n_cols} columns, two a byte")));
        }
        let n_groups = n_cols.div_ceil(group);
        if Some(scales.n) != n_groups.checked_mul(n_rows) {
            let expected = format!("[{n_rows}, {n_groups}]: {n_cols} columns in groups of {group}");
            return Err(tensors.shape_error(scales.index, expected));
        }
        check_groups(tensors, scales.index, shape, group)?;
        let mut members = vec![codes, scales.index];
        members.extend(params.factor.member());
        Ok(Self { codes, scales, params, group, mat_rows: matrices(shape).1, n_cols, members })
    }

    /// Reads the scales of a row, with the factor applied.
    fn row_scales(&self, inner: InnerSource<'_>, row: u64, out: &mut Vec<f32>) -> Result<()> {
        let n_groups = self.n_cols.div_ceil(self.group);
        out.clear();
        self.scales.read(inner, row * n_groups..(row + 1) * n_groups, out)?;
        self.params.factor.apply(inner, row / self.mat_rows.max(1), out)
    }

    /// Returns the packing as NVFP4, with its factors.
    fn nv_packing(&self, inner: InnerSource<'_>) -> Result<Packing> {
        let Nvfp4Params { factor, input, float_activations } = self.params;
        let packing = Packing { float_activations, ..Packing::exact(GgmlType::Nvfp4) };
        if !factor.is_by_matrix() && !input.is_by_matrix() {
            let (scale, input_scale) = (factor.multiplier(inner)?, input.multiplier(inner)?);
            return Ok(Packing { scale, input_scale, ..packing });
        }
        let n_elems = self.mat_rows * self.n_cols;
        let all_rows = inner.meta(self.codes).shape.n_rows();
        let n_mats = all_rows.checked_div(self.mat_rows).unwrap_or(0);
        let scales = factor.multipliers(inner, n_mats)?;
        let input_scales = input.multipliers(inner, n_mats)?;
        Ok(Packing { stack: Some(StackFactors { n_elems, scales, input_scales }), ..packing })
    }

    /// Reads the codes of some columns of a row, in whole bytes.
    fn read_codes(&self, inner: InnerSource<'_>, row: u64, cols: &Range<u64>, out: &mut [u8]) -> Result<()> {
        let first = row * (self.n_cols / 2);
        inner.with_bytes(self.codes, first + cols.start / 2..first + cols.end / 2, |bytes| {
            for (pair, &byte) in out.as_chunks_mut().0.iter_mut().zip(bytes) {
                *pair = [byte & 15, byte >> 4];
            }
        })?;
        Ok(())
    }
}

impl CodedWeight for Fp4 {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let mut scales = Vec::new();
        for (row, out) in part.split_rows(out, part.width()) {
            self.row_scales(inner, row, &mut scales)?;
            let (first, cols) = (row * (self.n_cols / 2), &part.cols);
            let bytes = first + cols.start / 2..first + cols.end.div_ceil(2);
            inner.with_bytes(self.codes, bytes, |bytes| {
                let mut at = cols.start;
                while at < cols.end {
                    let end = cols.end.min((at / self.group + 1) * self.group);
                    let scale = scales[(at / self.group) as usize];
                    let bytes = &bytes[(at / 2 - cols.start / 2) as usize..];
                    let out = &mut out[(at - cols.start) as usize..(end - cols.start) as usize];
                    look_up::<false>(&E2M1.map(|value| value * scale), bytes, at, out);
                    at = end;
                }
            })?;
        }
        Ok(())
    }

    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        match self.group {
            32 if self.n_cols.is_multiple_of(BLOCK_ELEMS as u64) => {
                // Reading checks that no exponent encodes NaN.
                self.scales.all(inner, |_| true)?;
                Ok(vec![Packing::exact(GgmlType::Mxfp4)])
            }
            16 if self.n_cols.is_multiple_of(GgmlType::Nvfp4.block_elems() as u64) => {
                // Scales of the GGML block are unsigned.
                let is_plain = self.scales.all(inner, f32::is_sign_positive)?;
                Ok(if is_plain { vec![self.nv_packing(inner)?] } else { Vec::new() })
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Writes blocks of a type that stores codes and scale bytes unchanged.
    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let (block_elems, block_bytes) = (ty.block_elems(), ty.block_bytes());
        let (n_groups, n_scales) = (self.n_cols / self.group, block_elems / self.group as usize);
        let mut codes = vec![0; part.width()];
        for (row, out) in part.split_rows(out, codes.len() / block_elems * block_bytes) {
            self.read_codes(inner, row, &part.cols, &mut codes)?;
            let first = row * n_groups;
            let groups = first + part.cols.start / self.group..first + part.cols.end / self.group;
            inner.with_elems(self.scales.index, groups, |scales| {
                let blocks = codes.chunks_exact(block_elems).zip(out.chunks_exact_mut(block_bytes));
                for ((codes, out), scales) in blocks.zip(scales.chunks_exact(n_scales)) {
                    match ty {
                        GgmlType::Mxfp4 => pack_mxfp4(codes, scales[0], out),
                        GgmlType::Nvfp4 => pack_nvfp4(codes, scales, out),
                        _ => panic!("no packing as {ty}"),
                    }
                }
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let kind = if self.group == 32 { "MXFP4" } else { "NVFP4" };
        let factors = if self.params.factor.is_by_matrix() { ", a factor by matrix" } else { "" };
        format!("{kind}, groups of {}{factors}", self.group)
    }
}
