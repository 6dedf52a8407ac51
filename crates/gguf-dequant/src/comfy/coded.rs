//! Values of a weight that is stored as codes with factors.

use std::sync::{Arc, Mutex};

use super::description::{Description, FORMATS, Format, Scales};
use super::{decode, wrong_type};
use crate::{DequantError, Result};
use gguf_blocks::{NotANumber, decode_elements};
use gguf_core::simd::SimdLevel;
use gguf_core::small_float::{E2M1, E4M3};
use gguf_core::sync::Unpoisoned;
use gguf_core::{ElementType, Shape, WeightMeta, WeightSource};

/// Rows and blocks of a tile of factors, and the rows that lie 16 bytes apart in it.
const TILE: (u64, u64, u64) = (128, 4, 32);

/// Tensors that make up a weight, as indices into the source.
pub(super) struct Members {
    pub(super) codes: usize,
    pub(super) factor: Option<usize>,
    pub(super) second: Option<usize>,
    pub(super) columns: Option<usize>,
    pub(super) low_rank: Option<[usize; 2]>,
    /// Elements of the bias, one for each row.
    pub(super) n_bias: Option<u64>,
    pub(super) description: Option<Description>,
}

impl Members {
    /// Tensors that are no weights of their own.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        let ranks = self.low_rank.into_iter().flatten();
        [self.factor, self.second, self.columns].into_iter().flatten().chain(ranks)
    }
}

/// Weight of codes and factors.
pub(super) struct Coded {
    members: Members,
    format: &'static Format,
    shape: Shape,
    /// Columns as they are stored, padded ones included.
    n_stored: u64,
    factors: Factors,
    /// None, one, or one for each column.
    columns: Vec<f32>,
    /// What is read when rows are read, and dropped with the last of them.
    loaded: Mutex<Option<Arc<Loaded>>>,
}

enum Factors {
    /// Numbers of blocks of these rows and columns, in rows of `n_across`.
    Grid { values: Vec<f32>, rows: u64, cols: u64, n_across: u64 },
    /// Bytes in tiles, `n_across` in a row of tiles; each is multiplied by `factor`.
    Tiles { n_across: u64, factor: f32 },
}

#[derive(Default)]
struct Loaded {
    tiles: Vec<u8>,
    /// Left and right matrix of the part of low rank, and the rank.
    low_rank: Option<(Vec<f32>, Vec<f32>, usize)>,
}

impl Coded {
    /// Describes a weight; reads factors of tensors, rows and square blocks, and those of columns.
    pub(super) fn new(source: &dyn WeightSource, level: SimdLevel, members: Members) -> Result<Self> {
        let meta = &source.weights()[members.codes];
        let described = members.description.as_ref();
        let format = described.map_or(&FORMATS[0], |own| own.format);
        // Older files have factors of floats, too, and no description.
        let is_known = format.codes.contains(&meta.ty) || described.is_none() && meta.ty.is_plain_float();
        if !is_known {
            let names: Vec<String> = format.codes.iter().map(ToString::to_string).collect();
            let expected = match described {
                Some(_) => format!("{} as `{}` has them", names.join(" or "), format.name),
                None => format!("{} or floats, next to factors", names.join(", ")),
            };
            return Err(DequantError::DtypeMismatch { tensor: meta.name.clone(), found: meta.ty, expected });
        }
        let (shape, n_stored) = shape_of(meta, format, &members)?;
        let read = Reader { source, level };
        let factors = match format.scales {
            Scales::Grid => read.grid(&members, format, &shape)?,
            Scales::TilesE4M3 | Scales::TilesE8M0 => read.tiles(&members, format, meta, n_stored)?,
        };
        let n_cols = shape.n_cols();
        let columns =
            members.columns.map(|at| read.numbers(at, &[(1, ""), (n_cols, "column")])).transpose()?;
        let this = Self {
            members,
            format,
            shape,
            n_stored,
            factors,
            columns: columns.unwrap_or_default(),
            loaded: Mutex::default(),
        };
        this.check(source)?;
        Ok(this)
    }

    /// Checks the parts that are read later, and combinations without a known meaning.
    fn check(&self, source: &dyn WeightSource) -> Result<()> {
        let metas = source.weights();
        let rotated = self.rotated();
        let is_row_wise = matches!(&self.factors, Factors::Grid { cols, .. } if *cols >= self.shape.n_cols());
        let name = &metas[self.members.codes].name;
        if rotated.is_some_and(|group| !is_row_wise || !self.shape.n_cols().is_multiple_of(group)) {
            return Err(DequantError::ShapeMismatch {
                tensor: name.clone(),
                found: self.shape.clone(),
                expected: format!(
                    "whole groups of {} columns, with a factor for each row",
                    rotated.unwrap_or(0)
                ),
            });
        }
        let Some([up, down]) = self.members.low_rank else { return Ok(()) };
        if !self.columns.is_empty() || rotated.is_some() {
            return Err(DequantError::UnsupportedVariant {
                place: format!("tensor `{}`", metas[up].name),
                found: "svd_up".to_owned(),
                reason: "next to factors of the columns or a rotation its meaning is not certain".to_owned(),
            });
        }
        let rank = metas[down].shape.dims().first().copied().unwrap_or(0);
        for (at, expected) in [(up, [self.shape.n_rows(), rank]), (down, [rank, self.shape.n_cols()])] {
            if self.shape.rank() != 2 || metas[at].shape.dims() != expected {
                return Err(DequantError::ShapeMismatch {
                    tensor: metas[at].name.clone(),
                    found: metas[at].shape.clone(),
                    expected: format!("{expected:?}, for a weight of {}", self.shape),
                });
            }
            if !metas[at].ty.is_plain_float() {
                let (tensor, expected) = (metas[at].name.clone(), "floats".to_owned());
                return Err(DequantError::DtypeMismatch { tensor, found: metas[at].ty, expected });
            }
        }
        Ok(())
    }

    pub(super) fn index(&self) -> usize {
        self.members.codes
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    fn rotated(&self) -> Option<u64> {
        self.members.description.as_ref()?.rotated
    }

    /// Returns true for FP8 with a factor for the tensor or each row, whose values are rounded to BF16.
    pub(super) fn is_narrow(&self) -> bool {
        let is_row_wise = matches!(&self.factors, Factors::Grid { cols, .. } if *cols >= self.shape.n_cols());
        std::ptr::eq(self.format.codes, FORMATS[0].codes)
            && is_row_wise
            && self.columns.is_empty()
            && self.members.low_rank.is_none()
    }

    /// Name of the format, if its values are not rounded.
    pub(super) fn format(&self) -> Option<&'static str> {
        (!self.is_narrow()).then_some(self.format.name)
    }

    /// Reads values from element `first` on.
    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        level: SimdLevel,
        first: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let read = Reader { source, level };
        let loaded = self.loaded(&read)?;
        let n_cols = self.shape.n_cols().max(1);
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let (row, col) = (at / n_cols, at % n_cols);
            let n = usize::try_from(n_cols - col).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = rest.split_at_mut(n);
            self.read_row(&read, &loaded, row, col, piece)?;
            (at, rest) = (at + n as u64, after);
        }
        Ok(())
    }

    fn read_row(
        &self,
        read: &Reader<'_>,
        loaded: &Loaded,
        row: u64,
        col: u64,
        out: &mut [f32],
    ) -> Result<()> {
        if let Some(group) = self.rotated() {
            let (first, end) = (col / group * group, (col + out.len() as u64).next_multiple_of(group));
            let mut codes = vec![0.0; usize::try_from(end - first).unwrap_or(0)];
            self.codes(read, row, first, &mut codes)?;
            let factor = f64::from(self.factor(loaded, row, 0));
            let skipped = usize::try_from(col - first).unwrap_or(0);
            let rotated = codes.chunks(usize::try_from(group).unwrap_or(1)).flat_map(rotated);
            for (out, value) in out.iter_mut().zip(rotated.skip(skipped)) {
                *out = (value * factor) as f32;
            }
        } else {
            self.codes(read, row, col, out)?;
            for (value, col) in out.iter_mut().zip(col..) {
                *value *= self.factor(loaded, row, col);
            }
        }
        match self.columns.as_slice() {
            [] => {}
            [one] => out.iter_mut().for_each(|value| *value *= one),
            columns => {
                let columns = &columns[usize::try_from(col).unwrap_or(0)..];
                out.iter_mut().zip(columns).for_each(|(value, column)| *value *= column);
            }
        }
        if let Some((up, down, rank)) = &loaded.low_rank {
            let [row, col, n_cols] = [row, col, self.shape.n_cols()].map(|n| usize::try_from(n).unwrap_or(0));
            let up = &up[row * rank..][..*rank];
            for (value, col) in out.iter_mut().zip(col..) {
                let terms =
                    up.iter().enumerate().map(|(at, up)| f64::from(*up) * f64::from(down[at * n_cols + col]));
                *value = (f64::from(*value) + terms.sum::<f64>()) as f32;
            }
        }
        Ok(())
    }

    /// Reads the codes of a part of a row, as numbers.
    fn codes(&self, read: &Reader<'_>, row: u64, col: u64, out: &mut [f32]) -> Result<()> {
        let (first, n) = (row * self.n_stored + col, out.len());
        let meta = &read.source.weights()[self.members.codes];
        if self.format.per_byte() == 1 {
            let mut bytes = vec![0; n * meta.ty.bytes().unwrap_or(1)];
            read.source.read_elems(self.members.codes, first, &mut bytes)?;
            return decode(meta.ty, read.level, &bytes, out).map_err(|NotANumber| wrong_type(meta));
        }
        let (start, end) = (first / 2, (first + n as u64).div_ceil(2));
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        read.source.read_elems(self.members.codes, start, &mut bytes)?;
        // The first of two codes is in the high half of a byte.
        let codes = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        for (out, code) in out.iter_mut().zip(codes.skip(usize::from(first % 2 == 1))) {
            *out = E2M1[usize::from(code)];
        }
        Ok(())
    }

    fn factor(&self, loaded: &Loaded, row: u64, col: u64) -> f32 {
        match &self.factors {
            Factors::Grid { values, rows, cols, n_across } => {
                values[usize::try_from(row / rows * n_across + col / cols).unwrap_or(0)]
            }
            Factors::Tiles { n_across, factor } => {
                let byte = loaded.tiles
                    [usize::try_from(place(row, col / self.format.block, *n_across)).unwrap_or(0)];
                match self.format.scales {
                    Scales::TilesE4M3 => factor * E4M3[usize::from(byte)],
                    // ref: ComfyUI takes the exponent's bits, so that 0 means 0 and 255 is infinite.
                    _ => f32::from_bits(u32::from(byte) << 23),
                }
            }
        }
    }

    fn loaded(&self, read: &Reader<'_>) -> Result<Arc<Loaded>> {
        let mut held = self.loaded.lock().unpoisoned();
        if let Some(loaded) = &*held {
            return Ok(Arc::clone(loaded));
        }
        let mut loaded = Loaded::default();
        if let (Factors::Tiles { .. }, Some(factor)) = (&self.factors, self.members.factor) {
            loaded.tiles = read.bytes(factor)?;
        }
        if let Some([up, down]) = self.members.low_rank {
            let rank = read.source.weights()[down].shape.n_rows();
            loaded.low_rank =
                Some((read.floats(up)?, read.floats(down)?, usize::try_from(rank).unwrap_or(0)));
        }
        let loaded = Arc::new(loaded);
        *held = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Lets the source forget elements, and with the last of them what else was read.
    pub(super) fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        if first + n >= self.shape.n_elems() {
            *self.loaded.lock().unpoisoned() = None;
        }
        if self.n_stored == self.shape.n_cols() {
            let per_byte = self.format.per_byte();
            source.release_elems(self.members.codes, first / per_byte, n / per_byte);
        }
    }
}

/// Returns the shape of the values, and the number of columns that are stored.
fn shape_of(meta: &WeightMeta, format: &Format, members: &Members) -> Result<(Shape, u64)> {
    let wrong = |expected: String| DequantError::ShapeMismatch {
        tensor: meta.name.clone(),
        found: meta.shape.clone(),
        expected,
    };
    if format.scales == Scales::Grid {
        return Ok((meta.shape.clone(), meta.shape.n_cols()));
    }
    let &[n_rows, n_bytes] = meta.shape.dims() else { return Err(wrong("two dimensions".to_owned())) };
    let n_stored = n_bytes.checked_mul(format.per_byte()).filter(|n| n.is_multiple_of(format.block));
    let Some(n_stored) = n_stored else {
        return Err(wrong(format!("rows of whole blocks of {}", format.block)));
    };
    let given = members.description.as_ref().and_then(|own| own.shape.clone());
    // Rows that only fill up have no bias.
    let n_bias = members.n_bias.filter(|n| *n < n_rows && n.next_multiple_of(format.padded) == n_rows);
    let dims = given.unwrap_or_else(|| vec![n_bias.unwrap_or(n_rows), n_stored]);
    let is_padded = |own: u64, stored: u64| own > 0 && own <= stored && stored - own < format.padded;
    let [own_rows, own_cols] = dims[..] else {
        return Err(wrong("the padded shape of `orig_shape`".to_owned()));
    };
    if !is_padded(own_rows, n_rows) || !is_padded(own_cols, n_stored) {
        return Err(wrong(format!(
            "{dims:?} as `orig_shape` says, padded to multiples of {}",
            format.padded
        )));
    }
    Ok((Shape::new(dims).ok_or_else(|| wrong("fewer values".to_owned()))?, n_stored))
}

/// Position of the factor of a block in tiles of 128 rows and 4 blocks.
///
/// # Layout
/// Tiles follow each other in a row of tiles. In a tile, row `r` and block `b` are at `(r % 32)·16 + (r / 32)·4 + b`.
fn place(row: u64, block: u64, n_across: u64) -> u64 {
    let (rows, blocks, apart) = TILE;
    let (tile, own) = (row / rows * n_across + block / blocks, row % rows);
    tile * rows * blocks + own % apart * 16 + own / apart * blocks + block % blocks
}

/// Rotates a group by the regular Hadamard matrix, the product of as many matrices of four as the size has factors of
/// four: of four numbers, each becomes half the sum of all less its opposite.
fn rotated(codes: &[f32]) -> Vec<f64> {
    let mut values: Vec<f64> = codes.iter().map(|&code| f64::from(code)).collect();
    let mut step = 1;
    while step < values.len() {
        for start in (0..values.len()).filter(|at| at / step % 4 == 0) {
            let four = [0, 1, 2, 3].map(|at| values[start + at * step]);
            let half = four.iter().sum::<f64>() / 2.0;
            (0..4).for_each(|at| values[start + at * step] = half - four[3 - at]);
        }
        step *= 4;
    }
    values
}

/// Access to the stored tensors.
struct Reader<'a> {
    source: &'a dyn WeightSource,
    level: SimdLevel,
}

impl Reader<'_> {
    fn meta(&self, index: usize) -> &WeightMeta {
        &self.source.weights()[index]
    }

    fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        let meta = self.meta(index);
        let n = usize::try_from(meta.shape.n_elems()).unwrap_or(0);
        let mut bytes = vec![0; n * meta.ty.bytes().unwrap_or(4)];
        self.source.read_elems(index, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn floats(&self, index: usize) -> Result<Vec<f32>> {
        let meta = self.meta(index);
        let bytes = self.bytes(index)?;
        let mut values = vec![0.0; bytes.len() / meta.ty.bytes().unwrap_or(4)];
        decode_elements(meta.ty, self.level, &bytes, &mut values).map_err(|NotANumber| wrong_type(meta))?;
        Ok(values)
    }

    /// Reads a tensor of finite numbers that has one of these lengths.
    fn numbers(&self, index: usize, lengths: &[(u64, &str)]) -> Result<Vec<f32>> {
        let meta = self.meta(index);
        if !meta.ty.is_plain_float() {
            let (tensor, expected) = (meta.name.clone(), "floats".to_owned());
            return Err(DequantError::DtypeMismatch { tensor, found: meta.ty, expected });
        }
        if !lengths.iter().any(|(n, _)| *n == meta.shape.n_elems()) {
            let others = lengths.iter().filter(|(n, _)| *n != 1);
            let others: Vec<String> = others.map(|(n, each)| format!("{n}, one for each {each}")).collect();
            let expected = [vec!["1 element".to_owned()], others].concat().join(", or ");
            return Err(DequantError::ShapeMismatch {
                tensor: meta.name.clone(),
                found: meta.shape.clone(),
                expected,
            });
        }
        let values = self.floats(index)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(DequantError::NonFinite {
                tensor: meta.name.clone(),
                index: at as u64,
                found: values[at].to_string(),
            }),
        }
    }

    /// Factors of the tensor, of rows, of the first dimension, or of square blocks.
    fn grid(&self, members: &Members, format: &Format, shape: &Shape) -> Result<Factors> {
        let (n_rows, n_cols) = (shape.n_rows().max(1), shape.n_cols().max(1));
        let whole = |values: Vec<f32>, rows| Factors::Grid { values, rows, cols: n_cols, n_across: 1 };
        let Some(factor) = members.factor else { return Ok(whole(vec![1.0], n_rows)) };
        let edge = members.description.as_ref().and_then(|own| own.block).unwrap_or(format.block);
        if format.block > 0 && self.meta(factor).shape.n_elems() != 1 {
            let fits = shape.rank() == 2 && n_rows.is_multiple_of(edge) && n_cols.is_multiple_of(edge);
            let (down, across) = if fits { (n_rows / edge, n_cols / edge) } else { (0, 0) };
            let block = format!("block of {edge} x {edge}");
            let values = self.numbers(factor, &[(1, ""), (down * across, &block)])?;
            return Ok(Factors::Grid { values, rows: edge, cols: edge, n_across: across });
        }
        let n_outer = shape.dims().first().copied().unwrap_or(1).max(1);
        let mut lengths = vec![(1, ""), (n_rows, "row"), (n_outer, "output")];
        lengths.dedup_by_key(|(n, _)| *n);
        let values = self.numbers(factor, &lengths)?;
        let rows = if values.len() == 1 { n_rows } else { n_rows / values.len() as u64 };
        Ok(whole(values, rows))
    }

    fn tiles(
        &self,
        members: &Members,
        format: &Format,
        codes: &WeightMeta,
        n_stored: u64,
    ) -> Result<Factors> {
        let missing =
            DequantError::MissingTensor { module: codes.name.clone(), tensor: "weight_scale".to_owned() };
        let Some(factor) = members.factor else { return Err(missing) };
        let meta = self.meta(factor);
        let own = if format.has_second() { ElementType::F8E4M3 } else { ElementType::F8E8M0 };
        if meta.ty != own && meta.ty != ElementType::U8 {
            let (tensor, expected) = (meta.name.clone(), format!("{own} or U8"));
            return Err(DequantError::DtypeMismatch { tensor, found: meta.ty, expected });
        }
        let (rows, blocks, _) = TILE;
        let n_across = (n_stored / format.block).div_ceil(blocks);
        let n_down = codes.shape.n_rows().div_ceil(rows);
        let n = n_down.checked_mul(n_across).and_then(|n| n.checked_mul(rows * blocks));
        if n != Some(meta.shape.n_elems()) {
            return Err(DequantError::ShapeMismatch {
                tensor: meta.name.clone(),
                found: meta.shape.clone(),
                expected: format!(
                    "[{}, {}], whole tiles of {rows} rows and {blocks} blocks",
                    n_down * rows,
                    n_across * blocks
                ),
            });
        }
        let second = members.second.map(|at| self.numbers(at, &[(1, "")])).transpose()?;
        Ok(Factors::Tiles { n_across, factor: second.map_or(1.0, |values| values[0]) })
    }
}
