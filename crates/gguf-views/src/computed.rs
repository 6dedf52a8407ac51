//! Elements that depend on more than one read of their sources: on a number taken from the whole tensor, or on two
//! sources at once. The numbers are computed when the first element is read, in one pass and bounded memory.

use std::sync::{Arc, Mutex};

use crate::elems::StridedRange;
use crate::grid::Resize;
use crate::node::{ViewNode, compile};
use crate::origin::{Computation, Reader};
use crate::sum::TorchSum;
use crate::view::View;
use crate::{ShapeError, ViewError};
use gguf_arch::WholeOp;
use gguf_core::numeric::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use gguf_core::scratch::with_floats;
use gguf_core::sync::Unpoisoned;
use gguf_core::{ElementType, WeightSource};

const STEP_ELEMS: u64 = 1 << 15;
/// Maximum number of values that a pass may keep: one per column.
const MAX_COLS: u64 = 1 << 24;

/// A tensor computed from others with the same number of elements.
#[derive(Debug)]
struct Computed {
    /// One source, or the factors of a product.
    parts: Vec<ViewNode>,
    n_elems: u64,
    /// Number of elements of one index of the first axis.
    n_cols: u64,
    kind: ComputedKind,
    /// Type to which results are rounded, as the reference computes in it.
    rounded: Option<ElementType>,
    /// Result of the pass over all elements.
    found: Mutex<Option<Arc<[f32]>>>,
}

#[derive(Clone, Copy, Debug)]
enum ComputedKind {
    Whole(WholeOp),
    Product,
    Sum,
    /// Factors of a batch norm, from its weight and variance.
    NormFactor(f32),
    /// Shifts of a batch norm, from its weight, variance, bias and mean.
    NormShift(f32),
    /// Rows interpolated from four rows of a grid.
    Grid(Resize),
}

impl View {
    /// Applies an operation with numbers that depend on all elements.
    ///
    /// # Errors
    /// A view without columns, or with more columns than fit in memory, for operations by column.
    pub(super) fn whole(&self, op: WholeOp) -> Result<Self, ShapeError> {
        let n_elems: u64 = self.shape().iter().product();
        let n_cols = self.shape().get(1..).unwrap_or(&[]).iter().product();
        if matches!(op, WholeOp::L2Normalize { .. }) && (self.shape().is_empty() || n_cols > MAX_COLS) {
            return Err(ShapeError::Axis { axis: 0, rank: self.shape().len() });
        }
        let node = compile(self);
        // The reference widens BF16 to F32 before it processes a tensor, but takes the mean of the stored values.
        let rounded = match (op, node.element_type()) {
            (WholeOp::Ternary | WholeOp::SubMean, Some(ElementType::F16)) => Some(ElementType::F16),
            (WholeOp::SubMean, Some(ElementType::Bf16)) => Some(ElementType::Bf16),
            _ => None,
        };
        let found = Mutex::new(None);
        let computed =
            Computed { parts: vec![node], n_elems, n_cols, kind: ComputedKind::Whole(op), rounded, found };
        Ok(Self::computed(Arc::new(computed), self.shape().to_vec()))
    }

    /// Returns the element-wise product of views with the same number of elements, as one list.
    ///
    /// # Exactness
    /// In F32, whatever type the sources store.
    pub(super) fn product(parts: &[Self]) -> Result<Self, ShapeError> {
        let size = |part: &Self| part.shape().iter().product::<u64>();
        let n_elems = parts.first().map(size).ok_or(ShapeError::Empty)?;
        if let Some(other) = parts.iter().find(|part| size(part) != n_elems) {
            let first = parts.first().map(|part| part.shape().to_vec()).unwrap_or_default();
            return Err(ShapeError::Join { first, other: other.shape().to_vec(), axis: 0 });
        }
        let parts = parts.iter().map(compile).collect();
        let computed = Computed {
            parts,
            n_elems,
            n_cols: 1,
            kind: ComputedKind::Product,
            rounded: None,
            found: Mutex::new(None),
        };
        Ok(Self::computed(Arc::new(computed), vec![n_elems]))
    }

    /// Returns the sum along an axis.
    ///
    /// # Exactness
    /// Added one after the other. Torch does the same for two summands; for more, its order differs.
    pub(super) fn sum(&self, axis: usize) -> Result<Self, ShapeError> {
        self.known_axis(axis)?;
        let summand = |at| self.slice(axis, at, at + 1)?.squeeze(axis);
        let summands: Vec<Self> = (0..self.shape()[axis]).map(summand).collect::<Result<_, _>>()?;
        Self::of_parts(&summands, ComputedKind::Sum)
    }

    /// Returns factors and shifts of a batch norm, whose weight, bias, mean and variance are the rows.
    ///
    /// # Exactness
    /// `weight / sqrt(variance + eps)` and `bias - mean * factor`, in the type the checkpoint stores if that is F16,
    /// and in F32 otherwise.
    pub(super) fn fold_norm(&self, eps: f64) -> Result<Vec<Self>, ShapeError> {
        let row = |at: u64| self.slice(0, at, at + 1)?.squeeze(0);
        let (weight, bias, mean, variance) = (row(0)?, row(1)?, row(2)?, row(3)?);
        let eps = eps as f32;
        Ok(vec![
            Self::of_parts(&[weight.clone(), variance.clone()], ComputedKind::NormFactor(eps))?,
            Self::of_parts(&[weight, variance, bias, mean], ComputedKind::NormShift(eps))?,
        ])
    }

    /// Resizes the rows, positions of a square grid in reading order, to a grid with side `side`; the same side changes
    /// nothing.
    ///
    /// # Errors
    /// A number of dimensions other than two; a number of rows that is not a square.
    pub(super) fn resize_grid(&self, side: u64) -> Result<Self, ShapeError> {
        let wrong = || ShapeError::Reshape { from: self.shape().to_vec(), to: vec![side, side] };
        let [n_rows, _] = *self.shape() else { return Err(wrong()) };
        let from = n_rows.isqrt();
        if from == 0 || side == 0 || from * from != n_rows {
            return Err(wrong());
        }
        if from == side {
            return Ok(self.clone());
        }
        let resize = Resize::new(from, side);
        let corners = resize.corners().iter().map(|rows| self.gather(rows)).collect::<Result<Vec<_>, _>>()?;
        Self::of_parts(&corners, ComputedKind::Grid(resize))
    }

    /// Builds the element-wise computation of views of one shape.
    fn of_parts(parts: &[Self], kind: ComputedKind) -> Result<Self, ShapeError> {
        let shape = parts.first().ok_or(ShapeError::Empty)?.shape().to_vec();
        let parts: Vec<ViewNode> = parts.iter().map(compile).collect();
        let is_f16 = parts.iter().all(|part| part.element_type() == Some(ElementType::F16));
        let computed = Computed {
            parts,
            n_elems: shape.iter().product(),
            n_cols: shape.get(1..).unwrap_or(&[]).iter().product(),
            kind,
            rounded: is_f16.then_some(ElementType::F16),
            found: Mutex::new(None),
        };
        Ok(Self::computed(Arc::new(computed), shape))
    }
}

impl Computation for Computed {
    fn element_type(&self) -> Option<ElementType> {
        self.rounded
    }

    fn read(&self, reader: Reader<'_>, stretch: &StridedRange, out: &mut [f32]) -> Result<(), ViewError> {
        if stretch.stride == 1 {
            return self.read_run(reader, stretch.start, out);
        }
        for (i, value) in out.iter_mut().enumerate() {
            let at = stretch.start + i as u64 * stretch.stride;
            self.read_run(reader, at, std::slice::from_mut(value))?;
        }
        Ok(())
    }

    fn each_weight(&self, visit: &mut dyn FnMut(usize)) {
        self.parts.iter().for_each(|part| part.each_weight(visit));
    }

    fn locate(&self, index: u64) -> Option<(usize, u64)> {
        self.parts.iter().find_map(|part| part.locate(index))
    }

    fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        self.parts.iter().for_each(|part| part.release(source, first, n));
    }
}

impl Computed {
    fn read_run(&self, reader: Reader<'_>, first: u64, out: &mut [f32]) -> Result<(), ViewError> {
        let Some((main, others)) = self.parts.split_first() else { return Ok(()) };
        let op = match self.kind {
            ComputedKind::Product => {
                main.read(reader, first, out)?;
                return others.iter().try_for_each(|part| {
                    with_floats(out.len(), |factors| {
                        part.read(reader, first, factors)?;
                        out.iter_mut().zip(factors.iter()).for_each(|(x, factor)| *x *= *factor);
                        Ok(())
                    })
                });
            }
            ComputedKind::Whole(op) => op,
            ComputedKind::Sum => {
                main.read(reader, first, out)?;
                return others.iter().try_for_each(|part| {
                    with_floats(out.len(), |summands| {
                        part.read(reader, first, summands)?;
                        out.iter_mut()
                            .zip(summands.iter())
                            .for_each(|(x, other)| *x = self.round(*x + *other));
                        Ok(())
                    })
                });
            }
            ComputedKind::Grid(resize) => return self.read_grid(resize, reader, first, out),
            ComputedKind::NormFactor(eps) | ComputedKind::NormShift(eps) => {
                return self.read_norm(eps, reader, first, out);
            }
        };
        let found = self.found(op, main, reader)?;
        main.read(reader, first, out)?;
        match op {
            WholeOp::Ternary => {
                let inverse = 1.0 / found.first().copied().unwrap_or(1.0);
                for x in out.iter_mut() {
                    *x = (*x * inverse).round_ties_even().clamp(-1.0, 1.0) / inverse;
                }
            }
            WholeOp::SubMean => {
                let mean = self.round(found.first().copied().unwrap_or(0.0));
                for x in out.iter_mut() {
                    *x -= mean;
                }
            }
            WholeOp::L2Normalize { .. } => {
                let lengths = found.iter().cycle().skip((first % self.n_cols.max(1)) as usize);
                for (x, length) in out.iter_mut().zip(lengths) {
                    *x /= length;
                }
            }
        }
        if self.rounded.is_some() {
            for x in out {
                *x = self.round(*x);
            }
        }
        Ok(())
    }

    /// Reads a stretch of a batch norm's factors, or of its shifts.
    fn read_norm(&self, eps: f32, reader: Reader<'_>, first: u64, out: &mut [f32]) -> Result<(), ViewError> {
        let [weight, variance, shift @ ..] = self.parts.as_slice() else { return Ok(()) };
        let mut other = vec![0.0; out.len()];
        weight.read(reader, first, out)?;
        variance.read(reader, first, &mut other)?;
        for (x, variance) in out.iter_mut().zip(&other) {
            *x = self.round(*x / self.round(self.round(variance + eps).sqrt()));
        }
        if let [bias, mean] = shift {
            mean.read(reader, first, &mut other)?;
            out.iter_mut().zip(&other).for_each(|(x, mean)| *x = self.round(mean * *x));
            bias.read(reader, first, &mut other)?;
            out.iter_mut().zip(&other).for_each(|(x, bias)| *x = self.round(bias - *x));
        }
        Ok(())
    }

    /// Reads a stretch of a resized grid.
    fn read_grid(
        &self,
        resize: Resize,
        reader: Reader<'_>,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ViewError> {
        let mut corners = [const { Vec::new() }; 4];
        for (corner, part) in corners.iter_mut().zip(&self.parts) {
            corner.resize(out.len(), 0.0);
            part.read(reader, first, corner)?;
        }
        let n_cols = self.n_cols.max(1);
        let (mut row, mut weights) = (u64::MAX, [0.0; 4]);
        for (i, x) in out.iter_mut().enumerate() {
            let own = (first + i as u64) / n_cols;
            if own != row {
                (row, weights) = (own, resize.weights(own));
            }
            *x = Resize::blend(std::array::from_fn(|corner| corners[corner][i]), weights);
        }
        Ok(())
    }

    fn round(&self, value: f32) -> f32 {
        match self.rounded {
            Some(ElementType::F16) => f16_to_f32(f32_to_f16(value)),
            Some(ElementType::Bf16) => bf16_to_f32(f32_to_bf16(value)),
            _ => value,
        }
    }

    /// Returns the numbers that depend on all elements; the first caller computes them.
    fn found(&self, op: WholeOp, main: &ViewNode, reader: Reader<'_>) -> Result<Arc<[f32]>, ViewError> {
        let mut found = self.found.lock().unpoisoned();
        if let Some(found) = &*found {
            return Ok(found.clone());
        }
        let numbers: Arc<[f32]> = match op {
            WholeOp::Ternary => {
                let magnitudes = |values: &mut [f32]| values.iter_mut().for_each(|x| *x = x.abs());
                [self.mean(main, reader, magnitudes)?.max(1e-5)].into()
            }
            WholeOp::SubMean => [self.mean(main, reader, |_| {})?].into(),
            WholeOp::L2Normalize { eps } => self.lengths(main, eps, reader)?.into(),
        };
        *found = Some(numbers.clone());
        Ok(numbers)
    }

    fn mean(
        &self,
        main: &ViewNode,
        reader: Reader<'_>,
        change: impl Fn(&mut [f32]),
    ) -> Result<f32, ViewError> {
        let mut sum = TorchSum::new(self.n_elems);
        self.pass(main, reader, |_, values| {
            change(values);
            sum.add(values);
        })?;
        Ok(sum.finish() / self.n_elems as f32)
    }

    /// Returns the lengths of the columns, each plus `eps`.
    ///
    /// # Exactness
    /// Squares are added row by row in F32, as torch does along an axis that is not the last.
    fn lengths(&self, main: &ViewNode, eps: f64, reader: Reader<'_>) -> Result<Vec<f32>, ViewError> {
        let mut lengths = vec![0f32; self.n_cols as usize];
        self.pass(main, reader, |first, values| {
            let mut column = (first % self.n_cols.max(1)) as usize;
            for value in values {
                lengths[column] += *value * *value;
                column = if column + 1 == lengths.len() { 0 } else { column + 1 };
            }
        })?;
        for length in &mut lengths {
            *length = length.sqrt() + eps as f32;
        }
        Ok(lengths)
    }

    /// Passes on all elements, in order.
    fn pass(
        &self,
        main: &ViewNode,
        reader: Reader<'_>,
        mut visit: impl FnMut(u64, &mut [f32]),
    ) -> Result<(), ViewError> {
        let mut first = 0;
        while first < self.n_elems {
            let n = STEP_ELEMS.min(self.n_elems - first);
            with_floats(n as usize, |values| {
                main.read(reader, first, values)?;
                visit(first, values);
                Ok::<_, ViewError>(())
            })?;
            main.release(reader.source, first, n);
            first += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
