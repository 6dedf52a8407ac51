//! FP8: one byte per weight, E4M3 or E5M2, with scales per block, row, or tensor.
//!
//! The value is `code · scale` in F32, rounded once. Despite its name, `weight_scale_inv` is a multiplier.
//!
//! # Layout
//! E4M3 is "fn": no infinity, `0x7f` and `0xff` are NaN, the largest value is 448. Scales by writer:
//!
//! | writer | scale |
//! |---|---|
//! | `fp8` with `weight_block_size` R × C | `weight_scale_inv` `[⌈out/R⌉, ⌈in/C⌉]`, edge blocks partial; transformers drops a dimension of 1 |
//! | `fp8` without a block size (AutoFP8, Mistral) | `weight_scale`, `weight_scale_inv` or `qscale_weight`: one number, or one a row |
//! | `fbgemm_fp8` | `weight_scale` `[out, 1]`; stacks `[E, in, out]` with `*_scale` `[E, 1, out]` or `[E, out, 1]` |
//! | ModelOpt | `weight_scale`, one number or one a row; stacks also `[E]` and `[E, 1, out]` (`fp8` too) |
//! | compressed-tensors | `weight_scale`: tensor, channel, group, or block; MXFP8: a byte `e` for 32 columns, `2^(e - 127)` |

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::ops::Range;

use serde_json::{Map, Value as Json, json};

use crate::encoding::along_rows;
use crate::fp4::Fp4;
use crate::rectangle::Rectangle;
use crate::stack::{is_by_matrix, matrices};
use crate::tensors::CodedModule;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{CodedWeight, InnerSource, Method, Result, Settings, Tensors};
use gguf_core::little_endian::u32s;
use gguf_core::simd::VectorLoop;
use gguf_core::small_float::widen;
use gguf_core::{ElementType, GgmlType, Packing, Shape};

/// Float format of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fp8Format {
    E4M3,
    E5M2,
}

impl Fp8Format {
    /// Returns the format of an element type; `None` if it is not FP8.
    fn of(ty: ElementType) -> Option<Self> {
        match ty {
            ElementType::F8E4M3 => Some(Self::E4M3),
            ElementType::F8E5M2 => Some(Self::E5M2),
            _ => None,
        }
    }

    /// Returns two exponents: that of the codes' smallest step (2^-9 or 2^-16), and of the power of two above the
    /// greatest code (448 or 57344).
    fn exponents(self) -> (i32, i32) {
        match self {
            Self::E4M3 => (-9, 9),
            Self::E5M2 => (-16, 16),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::E4M3 => "E4M3",
            Self::E5M2 => "E5M2",
        }
    }
}

pub(super) fn is_fp8(ty: ElementType) -> bool {
    Fp8Format::of(ty).is_some()
}

/// Key of the settings with rows and columns of a block.
pub(super) const BLOCK_SIZE: &str = "weight_block_size";

/// Numbers of ranks among which writers split a matrix.
const RANKS: [u64; 3] = [8, 4, 2];

/// Layout of the scales of a matrix `[n_mats · n_rows, n_cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleLayout {
    /// No scales: the codes are the values.
    Absent,
    /// One scale for the tensor.
    Tensor,
    /// One scale for each matrix of a stack.
    Matrix,
    /// One scale for each row.
    Row,
    /// One scale for each column of each matrix.
    Column,
    /// One scale for each block of `rows` x `cols`; blocks at the edges are partial.
    Block {
        /// Rows per block.
        rows: u64,
        /// Columns per block.
        cols: u64,
    },
}

/// A matrix of FP8 codes.
pub(super) struct Fp8 {
    format: Fp8Format,
    scales: NumberTensor,
    grid: ScaleLayout,
    /// Rows of one matrix; a stack of experts has several.
    n_rows: u64,
    n_cols: u64,
    /// Tensor with the group of each column, where columns have an order of their own.
    order: Option<usize>,
    members: Vec<usize>,
}

impl Fp8 {
    /// Creates the matrix of tensor `codes` with the scales of tensor `scale` in layout `grid`.
    ///
    /// # Errors
    /// Element types that are not FP8 and float, a number of scales that does not fit the grid.
    pub(super) fn new(tensors: &Tensors<'_>, codes: usize, scale: usize, grid: ScaleLayout) -> Result<Self> {
        let scales = match tensors.meta(scale).ty {
            // transformers saves the exponents of MXFP8 as bytes.
            ElementType::F8E8M0 | ElementType::U8 => NumberTensor::exponents(tensors, scale),
            _ => NumberTensor::new(tensors, scale, &SCALE_TYPES)?,
        };
        Self::with_scales(tensors, codes, scales, grid)
    }

    /// Creates the matrix as [`Fp8::new`] does, with scales of any kind.
    pub(super) fn with_scales(
        tensors: &Tensors<'_>,
        codes: usize,
        scales: NumberTensor,
        grid: ScaleLayout,
    ) -> Result<Self> {
        let (meta, scale) = (tensors.meta(codes), scales.index);
        let format =
            Fp8Format::of(meta.ty).ok_or_else(|| tensors.inner().wrong_type(codes, "F8_E4M3 or F8_E5M2"))?;
        let dims = meta.shape.dims();
        let n_cols = meta.shape.n_cols();
        let n_rows = if dims.len() >= 2 { dims[dims.len() - 2] } else { 1 };
        let ranked =
            rows_per_rank(grid, n_rows, n_cols, &tensors.meta(scale).shape).filter(|_| dims.len() == 2);
        let n_rows = ranked.unwrap_or(n_rows);
        let this = Self { format, scales, grid, n_rows, n_cols, order: None, members: vec![codes, scale] };
        let n_mats = meta.shape.n_rows().checked_div(n_rows).unwrap_or(0);
        let (per_mat, expected) = match grid {
            ScaleLayout::Absent | ScaleLayout::Tensor => (1, "1 element".to_owned()),
            ScaleLayout::Matrix => (1, format!("{n_mats} elements, one for each matrix")),
            ScaleLayout::Row => (n_rows, format!("{} elements, one for each row", meta.shape.n_rows())),
            ScaleLayout::Column => {
                (n_cols, format!("[{n_mats}, 1, {n_cols}], one for each column of each matrix"))
            }
            ScaleLayout::Block { rows, cols } => {
                let grid = (n_rows.div_ceil(rows), n_cols.div_ceil(cols));
                let text = format!("[{}, {}]: {} in blocks of {rows}x{cols}", grid.0, grid.1, meta.shape);
                (grid.0.saturating_mul(grid.1), text)
            }
        };
        let n_wanted = if grid == ScaleLayout::Tensor { 1 } else { per_mat.saturating_mul(n_mats) };
        if scales.n != n_wanted || (ranked.is_none() && !this.grid_fits(&tensors.meta(scale).shape)) {
            return Err(tensors.shape_error(scale, expected));
        }
        Ok(this)
    }

    /// Creates the matrix or vector whose codes are its values.
    fn without_scales(tensors: &Tensors<'_>, codes: usize, format: Fp8Format) -> Self {
        let shape = &tensors.meta(codes).shape;
        let (scales, grid) = (NumberTensor::e4m3(tensors, codes), ScaleLayout::Absent);
        let (n_rows, n_cols) = (matrices(shape).1, shape.n_cols());
        Self { format, scales, grid, n_rows, n_cols, order: None, members: vec![codes] }
    }

    /// Creates the MXFP8 matrix whose codes MLX packs in words: `shape` is that of the matrix, whose scales fit.
    pub(super) fn in_words(tensors: &Tensors<'_>, codes: usize, scale: usize, shape: &Shape) -> Self {
        let grid = ScaleLayout::Block { rows: 1, cols: 32 };
        let (n_rows, n_cols) = (matrices(shape).1, shape.n_cols());
        let scales = NumberTensor::exponents(tensors, scale);
        let members = vec![codes, scale];
        Self { format: Fp8Format::E4M3, scales, grid, n_rows, n_cols, order: None, members }
    }

    /// Returns the matrix with the scale of each column by a tensor of groups, which are all there.
    pub(super) fn ordered_by(mut self, index: usize) -> Self {
        self.order = Some(index);
        self.members.push(index);
        self
    }

    /// Returns true if `shape`, whose number of elements is right, is that of the grid.
    ///
    /// Some writers leave out dimensions of 1.
    fn grid_fits(&self, shape: &Shape) -> bool {
        let ScaleLayout::Block { rows, cols } = self.grid else { return true };
        let grid = (self.n_rows.div_ceil(rows), self.n_cols.div_ceil(cols));
        let dims = shape.dims();
        dims.ends_with(&[grid.0, grid.1]) || dims == [grid.0, 1, grid.1, 1] || grid.0 == 1 || grid.1 == 1
    }

    /// Reads the scales of a row, one for each run of [`Fp8::run`] columns.
    fn row_scales(&self, inner: InnerSource<'_>, row: u64, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        let range = match self.grid {
            ScaleLayout::Absent => {
                out.push(1.0);
                return Ok(());
            }
            ScaleLayout::Tensor => 0..1,
            ScaleLayout::Matrix => row / self.n_rows..row / self.n_rows + 1,
            ScaleLayout::Row => row..row + 1,
            ScaleLayout::Column => {
                let first = row / self.n_rows * self.n_cols;
                first..first + self.n_cols
            }
            ScaleLayout::Block { rows, cols } => {
                let (grid_rows, grid_cols) = (self.n_rows.div_ceil(rows), self.n_cols.div_ceil(cols));
                let grid_row = row / self.n_rows * grid_rows + row % self.n_rows / rows;
                grid_row * grid_cols..(grid_row + 1) * grid_cols
            }
        };
        self.scales.read(inner, range, out)
    }

    /// Number of columns that share a scale.
    fn run(&self) -> u64 {
        match self.grid {
            ScaleLayout::Block { cols, .. } => cols,
            ScaleLayout::Column => 1,
            ScaleLayout::Absent | ScaleLayout::Tensor | ScaleLayout::Matrix | ScaleLayout::Row => {
                self.n_cols.max(1)
            }
        }
    }
}

/// Returns the rows per rank of a matrix that several ranks quantized separately; `None` for all other matrices.
///
/// Each rank has its part of the rows, with a partial last block, so there are more rows of scales than the whole
/// matrix has blocks.
fn rows_per_rank(grid: ScaleLayout, n_rows: u64, n_cols: u64, scales: &Shape) -> Option<u64> {
    let ScaleLayout::Block { rows, cols } = grid else { return None };
    let &[scale_rows, scale_cols] = scales.dims() else { return None };
    if scale_cols != n_cols.div_ceil(cols) || scale_rows == n_rows.div_ceil(rows) {
        return None;
    }
    RANKS.into_iter().find_map(|ranks| {
        let per_rank = n_rows / ranks;
        let fits = n_rows.is_multiple_of(ranks) && scale_rows == ranks * per_rank.div_ceil(rows);
        fits.then_some(per_rank)
    })
}

/// A row of codes with one scale for each `run` columns.
struct CodeRow<'a> {
    codes: &'a [u8],
    scales: &'a [f32],
    cols: Range<u64>,
    run: u64,
    out: &'a mut [f32],
}

/// A row of codes with `EXP` bits of exponent and `MAN` of mantissa.
struct RowOf<'a, const EXP: u32, const MAN: u32>(CodeRow<'a>);

impl<const EXP: u32, const MAN: u32> VectorLoop for RowOf<'_, EXP, MAN> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.decode::<EXP, MAN>();
    }
}

impl CodeRow<'_> {
    #[inline(always)]
    fn decode<const EXP: u32, const MAN: u32>(self) {
        let Self { mut codes, scales, cols, run, mut out } = self;
        if run == 1 {
            let scales = &scales[cols.start as usize..cols.end as usize];
            for ((out, &code), &scale) in out.iter_mut().zip(codes).zip(scales) {
                *out = widen::<EXP, MAN>(code) * scale;
            }
            return;
        }
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

impl CodedWeight for Fp8 {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let order = match self.order {
            Some(index) => inner.with_elems(index, part.cols.clone(), |bytes| u32s(bytes).collect())?,
            None => Vec::new(),
        };
        let (mut scales, mut by_column) = (Vec::new(), Vec::new());
        for (row, out) in part.split_rows(out, part.width()) {
            self.row_scales(inner, row, &mut scales)?;
            by_column.clear();
            by_column.extend(order.iter().map(|&group: &u32| scales[group as usize]));
            inner.with_bytes(self.members[0], part.elems(row, self.n_cols), |codes| {
                let row = match self.order {
                    Some(_) => CodeRow {
                        codes,
                        scales: &by_column,
                        cols: 0..part.cols.end - part.cols.start,
                        run: 1,
                        out,
                    },
                    None => CodeRow { codes, scales: &scales, cols: part.cols.clone(), run: self.run(), out },
                };
                match self.format {
                    Fp8Format::E4M3 => inner.level.vectorize(RowOf::<4, 3>(row)),
                    Fp8Format::E5M2 => inner.level.vectorize(RowOf::<5, 2>(row)),
                }
            })?;
        }
        Ok(())
    }

    /// Returns the half-width float types that hold all values: the few significant bits fit if the scale is a power
    /// of two and the exponent is in range.
    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if self.grid == ScaleLayout::Absent {
            return Ok([GgmlType::Bf16, GgmlType::F16].map(Packing::exact).to_vec());
        }
        let in_range = |low: i32, high: i32| {
            let test = move |scale: f32| {
                let exp = (scale.to_bits() >> 23) as i32 - 127;
                scale.to_bits() & 0x807f_ffff == 0 && (low..=high).contains(&exp)
            };
            self.scales.all(inner, test)
        };
        let (step, top) = self.format.exponents();
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
        let is_mx = self.scales.is_exponent() && matches!(self.grid, ScaleLayout::Block { rows: 1, .. });
        let kind = if is_mx { "MXFP8" } else { "FP8" };
        let code = self.format.name();
        let scales = match self.grid {
            ScaleLayout::Absent => "no scales".to_owned(),
            ScaleLayout::Tensor => "one scale".to_owned(),
            ScaleLayout::Matrix => "scales by matrix".to_owned(),
            ScaleLayout::Row => "scales by row".to_owned(),
            ScaleLayout::Column => "scales by column".to_owned(),
            ScaleLayout::Block { rows: 1, cols } => along_rows(cols, self.n_cols),
            ScaleLayout::Block { rows, cols } => format!("blocks of {rows}x{cols}"),
        };
        let order = if self.order.is_some() { ", activation order" } else { "" };
        format!("{kind} {code}, {scales}{order}")
    }
}

/// Plans all modules of `fp8` and `fbgemm_fp8`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    let block = block_size(settings)?;
    for suffix in ["_scale_inv", "_scale"] {
        for CodedModule { codes, scale, .. } in tensors.coded_modules(suffix, "", is_fp8) {
            put(settings, tensors, codes, scale, block)?;
        }
    }
    // Tensor names of Mistral's own format.
    for (module, scale) in tensors.ending(".qscale_weight") {
        let codes = tensors.member(module, ".weight")?;
        put(settings, tensors, codes, scale, block)?;
    }
    for found in exponents(tensors) {
        put_exponents(settings, tensors, &found, block)?;
    }
    for codes in unscaled(tensors).into_iter().filter(|_| settings.map.is_empty()) {
        if let Some(format) = Fp8Format::of(tensors.meta(codes).ty) {
            let plain = Fp8::without_scales(tensors, codes, format);
            tensors.decode_in_place(codes, Box::new(plain));
        }
    }
    if settings.text("store_dtype")? == Some("mxfp4") {
        if settings.int("mxfp4_block_size")?.is_some_and(|size| size != 32) {
            let reason = "MXFP4 has scales of 32 columns";
            return Err(settings.variant("mxfp4_block_size", "other than 32", reason));
        }
        for found in modules_with(tensors, ".weight_scale") {
            put_exponents(settings, tensors, &found, block)?;
        }
    }
    Ok(())
}

/// Returns the modules whose scales have this suffix, with a `weight` of bytes or FP8.
fn modules_with<'a>(tensors: &Tensors<'a>, suffix: &str) -> Vec<CodedModule<'a>> {
    tensors
        .coded_modules(suffix, ".weight", |ty| is_fp8(ty) || matches!(ty, ElementType::I8 | ElementType::U8))
}

/// Returns the modules with DeepSeek V4's tensor names: a `weight` in FP8, or in FP4 with two codes per byte, and
/// power-of-two scales named `scale`.
fn exponents<'a>(tensors: &Tensors<'a>) -> Vec<CodedModule<'a>> {
    let mut all = modules_with(tensors, ".scale");
    all.retain(|module| tensors.meta(module.scale).ty == ElementType::F8E8M0);
    all
}

/// Returns the FP8 tensors of a checkpoint that has no scales at all: somebody stored its floats so.
pub(super) fn unscaled(tensors: &Tensors<'_>) -> Vec<usize> {
    let all = tensors.inner().source.weights();
    let is_of_scales = |name: &str| name.contains("scale") || name.contains("amax");
    if all.iter().any(|meta| is_of_scales(&meta.name)) {
        return Vec::new();
    }
    (0..all.len()).filter(|&at| is_fp8(all[at].ty)).collect()
}

/// Returns true for DeepSeek V4's tensors, whose element types contain all the required information.
pub(super) fn has_exponents(tensors: &Tensors<'_>) -> bool {
    !exponents(tensors).is_empty()
}

/// Returns settings for FP8 weights beside their scales, and the first scale; `None` if there are none. Scales that are
/// neither one number nor one a row are of blocks, of which all known writers use the same.
pub(super) fn undescribed(tensors: &Tensors<'_>) -> Option<(Map<String, Json>, String)> {
    let mut found = ["_scale_inv", "_scale"].map(|suffix| tensors.coded_modules(suffix, "", is_fp8)).concat();
    found.extend(tensors.coded_modules(".qscale_weight", ".weight", is_fp8));
    let first = tensors.meta(found.first()?.scale).name.clone();
    let is_block = |module: &CodedModule<'_>| {
        let grid = grid(tensors, module.codes, module.scale);
        let is_mx = matches!(grid, ScaleLayout::Block { rows: 1, .. });
        let n_scales = tensors.meta(module.scale).shape.n_elems();
        n_scales != 1 && !is_mx && layout(tensors, module.codes, module.scale) == ScaleLayout::Tensor
    };
    let mut map = Map::new();
    if found.iter().any(is_block) {
        map.insert(BLOCK_SIZE.to_owned(), json!([128, 128]));
    }
    Some((map, first))
}

/// Assembles a matrix with power-of-two scales: FP8 in blocks of 128x128 by default, or FP4 in groups of 32 columns.
fn put_exponents(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    &CodedModule { name, codes, scale }: &CodedModule<'_>,
    block: Option<ScaleLayout>,
) -> Result<()> {
    let meta = tensors.meta(codes);
    settings.check_not_ignored(&meta.name)?;
    if is_fp8(meta.ty) {
        let grid = block.unwrap_or(ScaleLayout::Block { rows: 128, cols: 128 });
        let coded = Fp8::with_scales(tensors, codes, NumberTensor::exponents(tensors, scale), grid)?;
        tensors.decode_in_place(codes, Box::new(coded));
        return Ok(());
    }
    let (n_rows, n_bytes) = tensors.matrix(codes)?;
    let shape = tensors.weight_shape(codes, n_bytes.checked_mul(2).map(|n_cols| vec![n_rows, n_cols]))?;
    tensors.check_shape(scale, &[n_rows, shape.n_cols().div_ceil(32)])?;
    let coded = Fp4::mx(tensors, codes, scale, &shape)?;
    tensors.replace(codes, format!("{name}.weight"), shape, Box::new(coded));
    Ok(())
}

fn put(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    codes: usize,
    scale: usize,
    block: Option<ScaleLayout>,
) -> Result<()> {
    let meta = tensors.meta(codes);
    settings.check_not_ignored(&meta.name)?;
    let n_scales = tensors.meta(scale).shape.n_elems();
    let by_shape = match settings.method {
        Method::FbgemmFp8 if meta.shape.rank() == 3 => fbgemm_stack(tensors, codes, scale)?,
        _ => layout(tensors, codes, scale),
    };
    let grid = match (block, settings.method) {
        (Some(block), _) => block,
        (None, Method::FbgemmFp8) => by_shape,
        (None, _) => by_size(tensors, codes, scale, by_shape),
    };
    // A block-quantizing writer may quantize a tensor as a whole.
    let grid = if n_scales == 1 && tensors.meta(scale).shape.rank() == 0 { single(grid, meta) } else { grid };
    let coded = Fp8::new(tensors, codes, scale, grid)?;
    tensors.decode_in_place(codes, Box::new(coded));
    Ok(())
}

/// Returns the layout of scales without blocks, by their number and, for a stack, by their shape.
pub(super) fn layout(tensors: &Tensors<'_>, codes: usize, scale: usize) -> ScaleLayout {
    let (shape, scales) = (&tensors.meta(codes).shape, &tensors.meta(scale).shape);
    let n_mats = matrices(shape).0;
    if shape.rank() > 2 && scales.n_elems() != 1 {
        let by_column = |outer: &[u64], cols: u64| scales.dims() == [outer, &[1, cols]].concat();
        match shape.dims() {
            _ if is_by_matrix(scales, n_mats) => return ScaleLayout::Matrix,
            [outer @ .., _, cols] if by_column(outer, *cols) => return ScaleLayout::Column,
            _ => {}
        }
    }
    // As many blocks as rows are no scales of rows.
    let is_grid = shape.rank() == 2 && scales.dims().iter().filter(|&&dim| dim != 1).count() > 1;
    let is_rows = scales.n_elems() == shape.n_rows() && shape.n_rows() != 1 && !is_grid;
    if is_rows { ScaleLayout::Row } else { ScaleLayout::Tensor }
}

/// Blocks of writers that do not say their size: transformers' default, and those of MXFP8, whose scales are exponents.
const UNSAID: [(u64, u64); 2] = [(128, 128), (1, 32)];

/// Returns the layout of scales whose blocks nobody describes.
pub(super) fn grid(tensors: &Tensors<'_>, codes: usize, scale: usize) -> ScaleLayout {
    by_size(tensors, codes, scale, layout(tensors, codes, scale))
}

/// Returns the blocks that scales without a described size are of, if they are neither one number nor one a row.
fn by_size(tensors: &Tensors<'_>, codes: usize, scale: usize, by_shape: ScaleLayout) -> ScaleLayout {
    let (shape, scales) = (&tensors.meta(codes).shape, &tensors.meta(scale).shape);
    let is_one = scales.n_elems() == 1 || by_shape != ScaleLayout::Tensor || shape.rank() != 2;
    let are_exponents = matches!(tensors.meta(scale).ty, ElementType::F8E8M0 | ElementType::U8);
    let fits = |&&(rows, cols): &&(u64, u64)| {
        let grid = [shape.n_rows().div_ceil(rows), shape.n_cols().div_ceil(cols)];
        (rows > 1 || are_exponents) && (scales.dims() == grid || scales.dims() == [grid[0], 1, grid[1], 1])
    };
    match UNSAID.iter().find(fits).filter(|_| !is_one) {
        Some(&(rows, cols)) => ScaleLayout::Block { rows, cols },
        None => by_shape,
    }
}

/// Checks the scales of an FBGEMM stack of experts and returns their layout.
///
/// Such stacks are those of Llama 4, `[experts, inputs, outputs]`, with a scale per output: `[experts, 1, outputs]`
/// for `gate_up_proj`, `[experts, outputs, 1]` for `down_proj`.
fn fbgemm_stack(tensors: &Tensors<'_>, codes: usize, scale: usize) -> Result<ScaleLayout> {
    let &[n_mats, _, n_cols] = tensors.meta(codes).shape.dims() else { return Ok(ScaleLayout::Column) };
    let found = tensors.meta(scale).shape.dims();
    if found == [n_mats, 1, n_cols] || found == [n_mats, n_cols, 1] {
        return Ok(ScaleLayout::Column);
    }
    let expected = format!("[{n_mats}, 1, {n_cols}] or [{n_mats}, {n_cols}, 1], one for each output");
    Err(tensors.shape_error(scale, expected))
}

/// Returns the layout of a lone scale: a grid of one block if the matrix is no larger than a block, else the whole
/// tensor.
fn single(grid: ScaleLayout, meta: &gguf_core::WeightMeta) -> ScaleLayout {
    match grid {
        ScaleLayout::Block { rows, cols } if meta.shape.n_rows() <= rows && meta.shape.n_cols() <= cols => {
            grid
        }
        _ => ScaleLayout::Tensor,
    }
}

/// Reads `weight_block_size`, two sizes of at least one.
pub(super) fn block_size(settings: &Settings) -> Result<Option<ScaleLayout>> {
    let Some(value) = settings.map.get(BLOCK_SIZE).filter(|value| !value.is_null()) else { return Ok(None) };
    let sizes: Option<Vec<u64>> =
        value.as_array().map(|sizes| sizes.iter().filter_map(Json::as_u64).filter(|&n| n > 0).collect());
    match sizes.as_deref() {
        Some(&[rows, cols]) if value.as_array().is_some_and(|sizes| sizes.len() == 2) => {
            Ok(Some(ScaleLayout::Block { rows, cols }))
        }
        _ => Err(settings.bad(BLOCK_SIZE, &format!("must be two positive numbers, found {value}"))),
    }
}
