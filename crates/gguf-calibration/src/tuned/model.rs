//! Weights of a model that is tuned: blocks as a file would have them, and blocks that move.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::{CalibrateError, Result};
use gguf_blocks::states::StateError;
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_engine::{EngineError, Gradients, Matrix, Vector};
use gguf_quantization::QuantizePlan;
use gguf_solve::{MovingBlocks, MovingStep};

/// Number of elements that move together. The rates of a block's floats are by the mean of so many.
const SLAB_ELEMS: usize = 1 << 16;

/// Model of a plan with all tensors that change their type in memory.
#[derive(Clone)]
pub(super) struct HeldModel<'a> {
    plan: &'a QuantizePlan<'a>,
    blocks: BTreeMap<usize, Arc<[u8]>>,
}

impl<'a> HeldModel<'a> {
    /// Reads the tensors that `is_held` chooses.
    pub(super) fn read(plan: &'a QuantizePlan<'a>, is_held: impl Fn(&TensorMeta) -> bool) -> Result<Self> {
        let mut blocks = BTreeMap::new();
        for (tensor, meta) in plan.tensors().iter().enumerate().filter(|(_, meta)| is_held(meta)) {
            let n_bytes = meta.n_bytes().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let mut bytes = vec![0; n_bytes];
            plan.read_rows(tensor, 0, &mut bytes).map_err(EngineError::from)?;
            blocks.insert(tensor, bytes.into());
        }
        Ok(Self { plan, blocks })
    }

    pub(super) fn blocks(&self, tensor: usize) -> Option<&[u8]> {
        self.blocks.get(&tensor).map(|blocks| &**blocks)
    }
}

impl TensorSource for HeldModel<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        self.plan.tensors()
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.plan.read_rows(tensor, first_row, out)
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let row_bytes = self.plan.tensors()[tensor].row_bytes()?;
        let range = usize::try_from(first_row * row_bytes).ok()?
            ..usize::try_from((first_row + n_rows) * row_bytes).ok()?;
        self.blocks.get(&tensor)?.get(range)
    }
}

/// Rows of a matrix that move.
struct MovingTensor {
    ty: GgmlType,
    n_cols: usize,
    rows_per_slab: usize,
    slabs: Vec<MovingBlocks>,
}

impl MovingTensor {
    /// Returns `None` if the elements of the type have no codes of their own.
    fn new(meta: &TensorMeta, blocks: &[u8]) -> Option<Result<Self, StateError>> {
        let n_cols = usize::try_from(meta.shape.n_cols()).ok()?;
        let row_bytes = usize::try_from(meta.row_bytes()?).ok()?;
        let rows_per_slab = (SLAB_ELEMS / n_cols.max(1)).max(1);
        let slabs = blocks.chunks(rows_per_slab * row_bytes).map(|part| MovingBlocks::new(meta.ty, part));
        let slabs: Option<Result<Vec<_>, _>> = slabs.collect();
        Some(slabs?.map(|slabs| Self { ty: meta.ty, n_cols, rows_per_slab, slabs }))
    }

    fn read(&self, first_row: usize, out: &mut [u8]) {
        let (row_bytes, mut row, mut rest) = (4 * self.n_cols, first_row, out);
        while !rest.is_empty() {
            let (slab, inner) = (row / self.rows_per_slab, row % self.rows_per_slab);
            let n = (self.rows_per_slab - inner).min(rest.len() / row_bytes);
            let (own, later) = std::mem::take(&mut rest).split_at_mut(n * row_bytes);
            self.slabs[slab].read(inner * self.n_cols, own);
            (row, rest) = (row + n, later);
        }
    }
}

/// Sums of gradients by tensor.
pub(super) struct GradientSums(BTreeMap<usize, Vec<f32>>);

impl Gradients for GradientSums {
    fn rows(&mut self, matrix: &Matrix, first: usize, gradient: &[f32]) {
        let Some(sums) = self.0.get_mut(&matrix.tensor) else { return };
        let first = (matrix.first_row + first) * matrix.n_cols;
        sums[first..].iter_mut().zip(gradient).for_each(|(sum, &part)| *sum += part);
    }

    fn vector(&mut self, _: &Vector, _: &[f32]) {}
}

/// Model some of whose tensors move; these are read in F32.
pub(super) struct MovingModel<'a> {
    start: HeldModel<'a>,
    tensors: Vec<TensorMeta>,
    moving: BTreeMap<usize, MovingTensor>,
}

impl<'a> MovingModel<'a> {
    /// Lets all blocks of a model move that have codes.
    pub(super) fn new(start: &HeldModel<'a>) -> Result<Self> {
        let (mut tensors, mut moving) = (start.tensors().to_vec(), BTreeMap::new());
        for (&tensor, blocks) in &start.blocks {
            let meta = &mut tensors[tensor];
            if let Some(own) = MovingTensor::new(meta, blocks) {
                let own = own.map_err(|error| broken(meta, error))?;
                moving.insert(tensor, own);
                meta.ty = GgmlType::F32;
            }
        }
        Ok(Self { start: start.clone(), tensors, moving })
    }

    /// Sums of 0 for all that moves.
    pub(super) fn sums(&self) -> GradientSums {
        let zeros = |own: &MovingTensor| vec![0.0; own.slabs.iter().map(MovingBlocks::n_elems).sum()];
        GradientSums(self.moving.iter().map(|(&tensor, own)| (tensor, zeros(own))).collect())
    }

    /// Moves by gradients, and clears them. Runs on the threads of the current pool.
    pub(super) fn step(&mut self, step: MovingStep, sums: &mut GradientSums) {
        self.moving.par_iter_mut().for_each(|(tensor, own)| {
            let Some(sums) = sums.0.get(tensor) else { return };
            let len = own.rows_per_slab * own.n_cols;
            own.slabs.par_iter_mut().zip(sums.par_chunks(len)).for_each(|(slab, sums)| slab.step(step, sums));
        });
        sums.0.par_iter_mut().for_each(|(_, sums)| sums.fill(0.0));
    }

    /// Packs all blocks as a file would have them. Runs on the threads of the current pool.
    pub(super) fn packed(&self) -> Result<HeldModel<'a>> {
        let mut held = self.start.clone();
        for (&tensor, own) in &self.moving {
            let meta = &held.plan.tensors()[tensor];
            let mut blocks = vec![0; held.blocks.get(&tensor).map_or(0, |blocks| blocks.len())];
            let row_bytes = own.ty.row_bytes(own.n_cols as u64).and_then(|n| usize::try_from(n).ok());
            let len = own.rows_per_slab * row_bytes.unwrap_or(1).max(1);
            let pairs = own.slabs.par_iter().zip(blocks.par_chunks_mut(len));
            pairs.try_for_each(|(slab, blocks)| slab.pack(blocks)).map_err(|error| broken(meta, error))?;
            held.blocks.insert(tensor, blocks.into());
        }
        Ok(held)
    }
}

fn broken(meta: &TensorMeta, error: StateError) -> CalibrateError {
    EngineError::from(SourceError { tensor: meta.name.clone(), source: Box::new(error) }).into()
}

impl TensorSource for MovingModel<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match self.moving.get(&tensor) {
            Some(own) => own.read(usize::try_from(first_row).unwrap_or(usize::MAX), out),
            None => self.start.read_rows(tensor, first_row, out)?,
        }
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let is_moving = self.moving.contains_key(&tensor);
        if is_moving { None } else { self.start.borrow_rows(tensor, first_row, n_rows) }
    }
}
