//! Weights that a program stores in parts: the rows of each matrix of a stack follow those of the same matrix of another.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::layer::{Weight, WeightOrigin};
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, Dequantized, InnerSource, Result};
use gguf_core::simd::SimdLevel;
use gguf_core::sync::Unpoisoned as _;
use gguf_core::{ElementType, GgmlType, Packing, Shape, WeightMeta, WeightSource};

/// A weight that is made of two stacks of matrices.
#[derive(Clone, Debug)]
pub struct Join {
    /// Name of the weight.
    pub name: String,
    /// Indices of the stacks.
    pub parts: [usize; 2],
    /// True if the matrices of the first stack are transposed.
    pub is_first_turned: bool,
    /// True if the weight is one matrix, all matrices of the stack one after the other.
    pub is_flat: bool,
}

/// Returns a source with weights in place of their parts; parts that do not fit each other stay.
pub fn with_joined(
    base: Arc<dyn WeightSource + Send>,
    joins: &[Join],
    level: SimdLevel,
) -> Arc<dyn WeightSource + Send> {
    let mut weights: Vec<_> =
        (0..base.weights().len()).map(|index| Some(Weight::plain(&*base, index))).collect();
    for join in joins {
        if let Some(joined) = joined(&*base, join) {
            weights[join.parts[1]] = None;
            weights[join.parts[0]] = Some(joined);
        }
    }
    Arc::new(Dequantized::over(base, level, weights.into_iter().flatten().collect()))
}

fn joined(base: &dyn WeightSource, join: &Join) -> Option<Weight> {
    let [first, second] = join.parts.map(|index| &base.weights()[index]);
    let (&[n_mats, a, b], &[n_own, n_second, n_cols]) = (first.shape.dims(), second.shape.dims()) else {
        return None;
    };
    let (n_first, width) = if join.is_first_turned { (b, a) } else { (a, b) };
    let mat_rows = n_first.checked_add(n_second)?;
    let dims = if join.is_flat {
        vec![n_mats.checked_mul(mat_rows)?, n_cols]
    } else {
        vec![n_mats, mat_rows, n_cols]
    };
    let shape =
        Shape::new(dims).filter(|_| n_mats == n_own && width == n_cols && n_first > 0 && n_second > 0)?;
    let part = |index: usize, rows: u64, is_turned: bool| {
        let weight = Weight::plain(base, index);
        let shape = weight.meta.shape.clone();
        Part { of: Operand::of(weight), shape, rows, is_turned, block: Mutex::default() }
    };
    let parts = [part(join.parts[0], n_first, join.is_first_turned), part(join.parts[1], n_second, false)];
    let meta = WeightMeta { name: join.name.clone(), shape, ty: ElementType::F32 };
    let origin = WeightOrigin::Coded(Box::new(Joined { parts, n_cols, mat_rows }));
    Some(Weight { meta, origin })
}

/// A stack whose matrices are parts of those of the weight.
struct Part {
    of: Operand,
    shape: Shape,
    /// Rows that each matrix of the weight has of it.
    rows: u64,
    is_turned: bool,
    /// The transposed matrix that was read last.
    block: Mutex<Option<(u64, Arc<[f32]>)>>,
}

impl Part {
    fn read(
        &self,
        inner: InnerSource<'_>,
        [matrix, row]: [u64; 2],
        (cols, n_cols): (&Range<u64>, u64),
        out: &mut [f32],
    ) -> Result<()> {
        if !self.is_turned {
            let row = matrix * self.rows + row;
            return self.of.read(inner, &Rectangle { rows: row..row + 1, cols: cols.clone() }, out);
        }
        let block = self.matrix(inner, matrix, n_cols)?;
        let column = block.iter().skip((cols.start * self.rows + row) as usize).step_by(self.rows as usize);
        out.iter_mut().zip(column).for_each(|(out, value)| *out = *value);
        Ok(())
    }

    fn matrix(&self, inner: InnerSource<'_>, matrix: u64, n_cols: u64) -> Result<Arc<[f32]>> {
        let mut last = self.block.lock().unpoisoned();
        if let Some((_, block)) = last.as_ref().filter(|(own, _)| *own == matrix) {
            return Ok(block.clone());
        }
        let mut block = vec![0.0; (n_cols * self.rows) as usize];
        let rows = matrix * n_cols..(matrix + 1) * n_cols;
        self.of.read(inner, &Rectangle { rows, cols: 0..self.rows }, &mut block)?;
        let block: Arc<[f32]> = block.into();
        *last = Some((matrix, block.clone()));
        Ok(block)
    }
}

struct Joined {
    parts: [Part; 2],
    n_cols: u64,
    mat_rows: u64,
}

impl Joined {
    /// Returns the part that has a row, and the row's matrix and place there.
    fn place(&self, row: u64) -> (&Part, [u64; 2]) {
        let (matrix, row) = (row / self.mat_rows, row % self.mat_rows);
        match row.checked_sub(self.parts[0].rows) {
            None => (&self.parts[0], [matrix, row]),
            Some(row) => (&self.parts[1], [matrix, row]),
        }
    }
}

impl CodedWeight for Joined {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        for (row, out) in part.split_rows(out, part.width()) {
            let (of, at) = self.place(row);
            of.read(inner, at, (&part.cols, self.n_cols), out)?;
        }
        Ok(())
    }

    /// Returns the types that hold both parts, if neither is transposed or has factors.
    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if self.parts.iter().any(|part| part.is_turned) {
            return Ok(Vec::new());
        }
        let [first, second] = &self.parts;
        let (first, second) = (first.of.packings(inner)?, second.of.packings(inner)?);
        let is_bare = |own: &Packing| own.scale.is_none() && own.input_scale.is_none() && own.stack.is_none();
        let both = first.into_iter().filter(is_bare).filter_map(|own| {
            let other = second.iter().find(|other| other.ty == own.ty && is_bare(other))?;
            let float_activations = own.float_activations && other.float_activations;
            let scale_error = own.scale_error.max(other.scale_error);
            Some(Packing { scale_error, float_activations, ..own })
        });
        Ok(both.collect())
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let row_bytes = part.width() / ty.block_elems() * ty.block_bytes();
        for (row, out) in part.split_rows(out, row_bytes) {
            let (of, [matrix, row]) = self.place(row);
            let row = matrix * of.rows + row;
            of.of.pack(inner, ty, &Rectangle { rows: row..row + 1, cols: part.cols.clone() }, out)?;
        }
        Ok(())
    }

    /// Returns no members: the codes are those of the parts.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "joined".to_owned()
    }

    fn code_type(&self, inner: InnerSource<'_>) -> Option<ElementType> {
        self.parts.iter().find_map(|part| part.of.code_type(inner))
    }

    fn expect(&self, inner: InnerSource<'_>) {
        self.parts.iter().for_each(|part| part.of.expect(inner));
    }

    /// Releases both parts after the last elements were read.
    fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        if elems.end >= shape.n_elems() {
            self.parts.iter().for_each(|part| part.of.release(inner, &part.shape, 0..part.shape.n_elems()));
        }
    }
}
