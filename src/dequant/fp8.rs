//! FP8: one byte a weight, E4M3 or E5M2, with scales per block, row, or tensor.
//!
//! The value is `code · scale` in F32, rounded once. `docs/formats.md`
//! lists who writes which form; despite its name `weight_scale_inv` multiplies.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::ops::Range;

use serde_json::Value as Json;

use crate::core::simd::{SimdLevel, VectorLoop};
use crate::core::{ElementType, GgmlType, Packing, Shape, WeightSource};
use crate::dequant::encoding::along_rows;
use crate::dequant::values::{SCALE_TYPES, Values, with_bytes};
use crate::dequant::{Decoder, DequantError, Settings, Tensors};

/// The value of every code.
pub(super) type Table = [f32; 256];

/// E4M3 "fn": no infinities, `0x7f` and `0xff` are NaN, the largest number is 448.
static E4M3: Table = table(4, 3);
/// E5M2: IEEE with infinities, the largest number is 57344.
static E5M2: Table = table(5, 2);

/// Values of a small float format with these many exponent and mantissa bits.
const fn table(exp_bits: u32, man_bits: u32) -> Table {
    let bias = (1 << (exp_bits - 1)) - 1;
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let exp = (code >> man_bits) & ((1 << exp_bits) - 1);
        let man = code & ((1 << man_bits) - 1);
        let is_top = exp == (1 << exp_bits) - 1;
        let magnitude = if is_top && exp_bits == 5 {
            if man == 0 { f32::INFINITY } else { f32::NAN }
        } else if is_top && man == (1 << man_bits) - 1 {
            f32::NAN
        } else if exp == 0 {
            man as f32 * power_of_two(1 - bias - man_bits as i32)
        } else {
            ((1 << man_bits) + man) as f32 * power_of_two(exp - bias - man_bits as i32)
        };
        values[code as usize] = if code >= 128 { -magnitude } else { magnitude };
        code += 1;
    }
    values
}

const fn power_of_two(exp: i32) -> f32 {
    f32::from_bits(((exp + 127) as u32) << 23)
}

/// How scales lie over a matrix of `[n_mats · n_rows, n_cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grid {
    /// One for the tensor.
    Tensor,
    /// One for each row.
    Row,
    /// One for each block of so many rows and columns; blocks at the edges are partial.
    Block {
        /// Rows of a block.
        rows: u64,
        /// Columns of a block.
        cols: u64,
    },
}

/// A matrix of FP8 codes.
pub(super) struct Fp8 {
    table: &'static Table,
    scales: Values,
    grid: Grid,
    /// Rows of one matrix; a stack of experts has several.
    n_rows: u64,
    n_cols: u64,
    members: [usize; 2],
}

/// The table of an element type; `None` for other types.
pub(super) fn table_of(ty: ElementType) -> Option<&'static Table> {
    match ty {
        ElementType::F8E4M3 => Some(&E4M3),
        ElementType::F8E5M2 => Some(&E5M2),
        _ => None,
    }
}

impl Fp8 {
    /// The matrix `codes` with the scales `scale`, which lie as `grid` says.
    ///
    /// # Errors
    /// Element types that are not FP8 and float, a number of scales that does not fit the grid.
    pub(super) fn new(
        tensors: &Tensors<'_>,
        codes: usize,
        scale: usize,
        grid: Grid,
    ) -> Result<Self, DequantError> {
        Self::with_scales(tensors, codes, Values::new(tensors, scale, &SCALE_TYPES)?, grid)
    }

    /// As [`Fp8::new`], with scales of any form.
    ///
    /// # Errors
    /// As [`Fp8::new`].
    pub(super) fn with_scales(
        tensors: &Tensors<'_>,
        codes: usize,
        scales: Values,
        grid: Grid,
    ) -> Result<Self, DequantError> {
        let (meta, scale) = (tensors.meta(codes), scales.index);
        let table = table_of(meta.ty).ok_or_else(|| DequantError::DtypeMismatch {
            tensor: meta.name.clone(),
            found: meta.ty,
            expected: "F8_E4M3 or F8_E5M2".to_owned(),
        })?;
        let dims = meta.shape.dims();
        let n_cols = meta.shape.n_cols();
        let n_rows = if dims.len() >= 2 { dims[dims.len() - 2] } else { 1 };
        let this = Self { table, scales, grid, n_rows, n_cols, members: [codes, scale] };
        let n_mats = meta.shape.n_rows().checked_div(n_rows).unwrap_or(0);
        let (per_mat, expected) = match grid {
            Grid::Tensor => (1, "1 element".to_owned()),
            Grid::Row => (n_rows, format!("{} elements, one for each row", meta.shape.n_rows())),
            Grid::Block { rows, cols } => {
                let grid = (n_rows.div_ceil(rows), n_cols.div_ceil(cols));
                let text = format!("[{}, {}]: {} in blocks of {rows}x{cols}", grid.0, grid.1, meta.shape);
                (grid.0.saturating_mul(grid.1), text)
            }
        };
        let n_wanted = if grid == Grid::Tensor { 1 } else { per_mat.saturating_mul(n_mats) };
        if scales.n != n_wanted || !this.grid_fits(&tensors.meta(scale).shape) {
            let found = tensors.meta(scale).shape.clone();
            let tensor = tensors.meta(scale).name.clone();
            return Err(DequantError::ShapeMismatch { tensor, found, expected });
        }
        Ok(this)
    }

    /// Whether a shape with the right number of elements is that of the grid. Some writers leave out dimensions of 1.
    fn grid_fits(&self, shape: &Shape) -> bool {
        let Grid::Block { rows, cols } = self.grid else { return true };
        let grid = (self.n_rows.div_ceil(rows), self.n_cols.div_ceil(cols));
        let dims = shape.dims();
        dims.ends_with(&[grid.0, grid.1]) || grid.0 == 1 || grid.1 == 1
    }

    /// The scales of a row, one for each of its runs of `Fp8::run` columns.
    fn row_scales(
        &self,
        source: &dyn WeightSource,
        row: u64,
        out: &mut Vec<f32>,
    ) -> Result<(), DequantError> {
        out.clear();
        let range = match self.grid {
            Grid::Tensor => 0..1,
            Grid::Row => row..row + 1,
            Grid::Block { rows, cols } => {
                let (grid_rows, grid_cols) = (self.n_rows.div_ceil(rows), self.n_cols.div_ceil(cols));
                let grid_row = row / self.n_rows * grid_rows + row % self.n_rows / rows;
                grid_row * grid_cols..(grid_row + 1) * grid_cols
            }
        };
        self.scales.read(source, range, out)
    }

    /// Columns that share a scale.
    fn run(&self) -> u64 {
        match self.grid {
            Grid::Block { cols, .. } => cols,
            Grid::Tensor | Grid::Row => self.n_cols.max(1),
        }
    }

    fn is_e5(&self) -> bool {
        std::ptr::eq(self.table, &raw const E5M2)
    }
}

/// A row of codes; each `run` of columns has a scale.
struct Row<'a> {
    codes: &'a [u8],
    scales: &'a [f32],
    cols: Range<u64>,
    run: u64,
    out: &'a mut [f32],
}

struct E4M3Row<'a>(Row<'a>);
struct E5M2Row<'a>(Row<'a>);

impl VectorLoop for E4M3Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.decode::<4, 3>();
    }
}

impl VectorLoop for E5M2Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.decode::<5, 2>();
    }
}

impl Row<'_> {
    #[inline(always)]
    fn decode<const EXP: u32, const MAN: u32>(self) {
        let Self { mut codes, scales, cols, run, mut out } = self;
        let mut at = cols.start;
        while at < cols.end {
            let end = cols.end.min((at / run + 1).saturating_mul(run));
            let scale = scales[(at / run) as usize];
            let (head, rest) = out.split_at_mut((end - at) as usize);
            let (head_codes, rest_codes) = codes.split_at((end - at) as usize);
            for (out, &code) in head.iter_mut().zip(head_codes) {
                *out = widen::<EXP, MAN>(code) * scale;
            }
            (out, codes, at) = (rest, rest_codes, end);
        }
    }
}

/// The value of a code, as [`table`] has it, without a look-up: vectors do not gather well. No step meets a
/// subnormal, which some processors are slow at.
#[inline(always)]
fn widen<const EXP: u32, const MAN: u32>(code: u8) -> f32 {
    let bias = (1 << (EXP - 1)) - 1;
    let magnitude = u32::from(code & 0x7f);
    // Codes without an exponent are multiples of the smallest number.
    let small = (magnitude as f32 * power_of_two(1 - bias - MAN as i32)).to_bits();
    let normal = (magnitude << (23 - MAN)) + (((127 - bias) as u32) << 23);
    let bits = if magnitude < 1 << MAN { small } else { normal };
    let infinite = if EXP == 5 { 0x7c } else { 0x7f };
    let special = if EXP == 5 && magnitude == infinite { f32::INFINITY } else { f32::NAN };
    let bits = if magnitude >= infinite { special.to_bits() } else { bits };
    f32::from_bits(bits | u32::from(code & 0x80) << 24)
}

impl Decoder for Fp8 {
    fn decode(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let (level, run, is_e5) = (SimdLevel::detect(), self.run(), self.is_e5());
        let width = (cols.end - cols.start) as usize;
        let mut scales = Vec::new();
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            self.row_scales(source, row, &mut scales)?;
            let first = row * self.n_cols;
            with_bytes(source, self.members[0], 1, first + cols.start..first + cols.end, |codes| {
                let row = Row { codes, scales: &scales, cols: cols.clone(), run, out };
                if is_e5 {
                    level.vectorize(E5M2Row(row));
                } else {
                    level.vectorize(E4M3Row(row));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Four significant bits times a power of two fit half the width, as long as the exponent does.
    fn packings(&self, source: &dyn WeightSource) -> Result<Vec<Packing>, DequantError> {
        let in_range = |low: i32, high: i32| {
            let test = move |scale: f32| {
                let exp = (scale.to_bits() >> 23) as i32 - 127;
                scale.to_bits() & 0x807f_ffff == 0 && (low..=high).contains(&exp)
            };
            self.scales.all(source, test)
        };
        // Least and greatest steps of the codes: 2^-9 to 448 for E4M3, 2^-16 to 57344 for E5M2.
        let (step, top) = if self.is_e5() { (-16, 16) } else { (-9, 9) };
        let mut found = Vec::new();
        if in_range(-126 - step, 127 - top)? {
            found.push(Packing::exact(GgmlType::Bf16));
        }
        if in_range(-24 - step, 15 - top)? {
            found.push(Packing::exact(GgmlType::F16));
        }
        Ok(found)
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let kind = if self.scales.is_exponent() { "MXFP8" } else { "FP8" };
        let code = if std::ptr::eq(self.table, &raw const E5M2) { "E5M2" } else { "E4M3" };
        let scales = match self.grid {
            Grid::Tensor => "one scale".to_owned(),
            Grid::Row => "scales by row".to_owned(),
            Grid::Block { rows: 1, cols } => along_rows(cols, self.n_cols),
            Grid::Block { rows, cols } => format!("blocks of {rows}x{cols}"),
        };
        format!("{kind} {code}, {scales}")
    }
}

/// `fp8` and `fbgemm_fp8`.
///
/// # Errors
/// [`DequantError`]: block sizes, scales, ignore lists that do not fit the tensors.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<(), DequantError> {
    let block = block_size(settings)?;
    for suffix in ["_scale_inv", "_scale"] {
        for (base, scale) in tensors.ending(suffix) {
            let Some(codes) = tensors.find(base).filter(|&codes| tensors.is_free(codes)) else { continue };
            if table_of(tensors.meta(codes).ty).is_none() {
                continue;
            }
            put(settings, tensors, codes, scale, block)?;
        }
    }
    // Mistral's own names.
    for (module, scale) in tensors.ending(".qscale_weight") {
        let codes = tensors.member(module, ".weight")?;
        put(settings, tensors, codes, scale, block)?;
    }
    Ok(())
}

fn put(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    codes: usize,
    scale: usize,
    block: Option<Grid>,
) -> Result<(), DequantError> {
    let meta = tensors.meta(codes);
    settings.check_not_ignored(&meta.name)?;
    let n_scales = tensors.meta(scale).shape.n_elems();
    let is_rows = n_scales == meta.shape.n_rows() && meta.shape.n_rows() != 1;
    // Without blocks the number of scales tells what they belong to.
    let grid = block.unwrap_or(if is_rows { Grid::Row } else { Grid::Tensor });
    // A tensor that a block writer quantized as a whole.
    let grid = if n_scales == 1 && tensors.meta(scale).shape.rank() == 0 { single(grid, meta) } else { grid };
    let decoder = Fp8::new(tensors, codes, scale, grid)?;
    tensors.take(scale);
    tensors.replace(codes, meta.name.clone(), meta.shape.clone(), Box::new(decoder));
    Ok(())
}

/// A lone scale is a grid of one block if the matrix is no larger than that, else it is the tensor's.
fn single(grid: Grid, meta: &crate::core::WeightMeta) -> Grid {
    match grid {
        Grid::Block { rows, cols } if meta.shape.n_rows() <= rows && meta.shape.n_cols() <= cols => grid,
        _ => Grid::Tensor,
    }
}

/// `weight_block_size`, two sizes of at least one.
fn block_size(settings: &Settings) -> Result<Option<Grid>, DequantError> {
    const KEY: &str = "weight_block_size";
    let Some(value) = settings.map.get(KEY).filter(|value| !value.is_null()) else { return Ok(None) };
    let sizes: Option<Vec<u64>> =
        value.as_array().map(|sizes| sizes.iter().filter_map(Json::as_u64).filter(|&n| n > 0).collect());
    match sizes.as_deref() {
        Some(&[rows, cols]) if value.as_array().is_some_and(|sizes| sizes.len() == 2) => {
            Ok(Some(Grid::Block { rows, cols }))
        }
        _ => Err(settings.bad(KEY, &format!("must be two positive numbers, found {value}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_formats_values() {
        for (code, value) in
            [(0x00, 0.0), (0x01, 0.001953125), (0x08, 0.015625), (0x38, 1.0), (0x7e, 448.0), (0xc0, -2.0)]
        {
            assert_eq!(E4M3[code], value, "{code:#x}");
        }
        assert!(E4M3[0x80].is_sign_negative() && E4M3[0x80] == 0.0);
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!(E4M3.iter().filter(|value| value.is_nan()).count(), 2);
        for (code, value) in [(0x01, 1.52587890625e-5), (0x3c, 1.0), (0x7b, 57344.0), (0x7c, f32::INFINITY)] {
            assert_eq!(E5M2[code], value, "{code:#x}");
        }
        assert_eq!(E5M2.iter().filter(|value| value.is_nan()).count(), 6);
    }

    #[test]
    fn arithmetic_gives_the_values_of_the_tables() {
        for code in 0..=255u8 {
            assert_eq!(widen::<4, 3>(code).to_bits(), E4M3[usize::from(code)].to_bits(), "{code:#x}");
            assert_eq!(widen::<5, 2>(code).to_bits(), E5M2[usize::from(code)].to_bits(), "{code:#x}");
        }
    }
}
