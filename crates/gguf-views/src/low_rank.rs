//! Low-rank matrices of adapters: operations of cards are applied to the two factors instead of the product.

use crate::{ShapeError, View, apply};
use gguf_arch::{JoinKind, MathOp, Op, OpStep, TensorContent};

/// A matrix, or a stack of them, as a product `B · A` that is never computed. B has its rows, A its columns, and the
/// rank is between them.
///
/// # Shapes
/// `b` is `[.., n_rows, rank]`, `a` is `[.., rank, n_cols]`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// The left factor.
    pub b: View,
    /// The right factor.
    pub a: View,
}

/// Reason why an operation cannot be applied to the factors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FactorError {
    #[error("`{0}` cannot be carried out on the two matrices of an adapter")]
    Op(&'static str),
    #[error("matrices of an adapter cannot be joined to one tensor this way")]
    Join,
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Meaning of an axis of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProductAxis {
    /// Rows of the product, which are those of B.
    Rows,
    /// Columns of the product, which are those of A.
    Columns,
    /// Index into a stack of matrices; both factors have it.
    Stack,
}

impl LowRank {
    /// Returns the shape of the product.
    pub fn shape(&self) -> Vec<u64> {
        let mut shape = self.b.shape().to_vec();
        if let (Some(last), Some(n_cols)) = (shape.last_mut(), self.a.shape().last()) {
            *last = *n_cols;
        }
        shape
    }

    /// Returns the same matrices with rows and columns swapped: (B · A)ᵀ = Aᵀ · Bᵀ.
    ///
    /// # Errors
    /// Factors that are not matrices.
    pub fn transposed(&self) -> Result<Self, ShapeError> {
        let turn = |view: &View| {
            let rank = view.shape().len();
            let (row, column) = (rank.checked_sub(2), rank.checked_sub(1));
            row.zip(column).ok_or(ShapeError::Empty).and_then(|(row, column)| view.transpose(row, column))
        };
        Ok(Self { b: turn(&self.a)?, a: turn(&self.b)? })
    }

    /// Returns the product times a number.
    pub fn scaled(&self, by: f64) -> Self {
        Self { b: self.b.math(MathOp::Scale(by)), a: self.a.clone() }
    }

    /// Stacks products of one shape and rank on a new outermost axis.
    fn stack(parts: &[Self]) -> Result<Self, ShapeError> {
        let views = |side: fn(&Self) -> &View| parts.iter().map(|part| side(part).clone()).collect();
        Ok(Self { b: View::stack(views(|part| &part.b))?, a: View::stack(views(|part| &part.a))? })
    }

    /// Joins products whose rows follow each other: their B are along a diagonal. Runtimes divide the strength by the rank, which
    /// grows, so each B grows as much.
    fn below(parts: &[Self], rows: usize) -> Result<Self, FactorError> {
        let rank = |part: &Self| part.a.shape().get(rows).copied().unwrap_or(0);
        let total: u64 = parts.iter().map(rank).sum();
        let mut first = 0;
        let mut block = |part: &Self| {
            let own = rank(part);
            if part.b.shape().len() != rows + 2 || own == 0 {
                return Err(FactorError::Join);
            }
            let zeros = |n: u64| View::fill(0.0, [&part.b.shape()[..=rows], &[n]].concat());
            let b = part.b.math(MathOp::Scale(total as f64 / own as f64));
            let blocks = [(first, zeros(first)), (own, b), (total - first - own, zeros(total - first - own))];
            first += own;
            let blocks = blocks.into_iter().filter(|block| block.0 > 0).map(|block| block.1).collect();
            Ok(View::concat(blocks, rows + 1)?)
        };
        let b = parts.iter().map(&mut block).collect::<Result<_, _>>()?;
        let a = parts.iter().map(|part| part.a.clone()).collect();
        Ok(Self { b: View::concat(b, rows)?, a: View::concat(a, rows)? })
    }

    /// Applies an operation: to B if it concerns rows, to A if it concerns columns.
    ///
    /// # Errors
    /// [`FactorError`]: the result is no such product, or the operation does not fit the shape.
    pub fn apply(&self, op: &Op) -> Result<Vec<Self>, FactorError> {
        let n_axes = self.b.shape().len();
        let side = |axis: usize| match n_axes.checked_sub(axis + 1) {
            Some(0) => ProductAxis::Columns,
            Some(1) => ProductAxis::Rows,
            _ => ProductAxis::Stack,
        };
        match op {
            Op::PermuteAxis { axis, .. }
            | Op::Split { axis, .. }
            | Op::Unzip { axis, .. }
            | Op::Slice { axis, .. } => self.on(side(*axis), op),
            Op::Ungroup { .. }
            | Op::Regroup { .. }
            | Op::Deinterleave { .. }
            | Op::Interleave { .. }
            | Op::PadRows { .. }
            | Op::Gather { .. }
            | Op::GatherBlocks { .. } => self.on(side(0), op),
            // The factor of a product must be applied once.
            Op::Negate { .. } | Op::ScaleRows { .. } if side(0) == ProductAxis::Rows => {
                self.on(ProductAxis::Rows, op)
            }
            Op::Math(MathOp::Scale(by)) => Ok(vec![self.scaled(*by)]),
            Op::Transpose { a, b } => match (side(*a), side(*b)) {
                (ProductAxis::Rows, ProductAxis::Columns) | (ProductAxis::Columns, ProductAxis::Rows) => {
                    Ok(vec![self.transposed()?])
                }
                (one, other) if one == other => self.on(one, op),
                _ => Err(FactorError::Op(op.name())),
            },
            Op::Reshape { dims } if *dims == self.shape() => Ok(vec![self.clone()]),
            _ => Err(FactorError::Op(op.name())),
        }
    }

    fn on(&self, side: ProductAxis, op: &Op) -> Result<Vec<Self>, FactorError> {
        Ok(match side {
            ProductAxis::Rows => {
                apply(op, &self.b)?.into_iter().map(|b| Self { b, a: self.a.clone() }).collect()
            }
            ProductAxis::Columns => {
                apply(op, &self.a)?.into_iter().map(|a| Self { b: self.b.clone(), a }).collect()
            }
            ProductAxis::Stack => {
                apply(op, &self.b)?.into_iter().zip(apply(op, &self.a)?).map(|(b, a)| Self { b, a }).collect()
            }
        })
    }

    fn run(self, steps: &[OpStep]) -> Result<Self, FactorError> {
        steps.iter().try_fold(self, |product, step| {
            let result = product.apply(&step.op)?.into_iter().nth(step.result);
            result.ok_or(FactorError::Shape(ShapeError::Empty))
        })
    }
}

/// Returns the factors of a planned tensor whose sources are products; `of` returns the product of a weight.
pub fn factors(
    content: &TensorContent,
    of: &dyn Fn(usize) -> Result<LowRank, FactorError>,
) -> Result<LowRank, FactorError> {
    let assembly = match content {
        TensorContent::Sources(assembly) => assembly,
        TensorContent::Joined { parts, axis } => {
            let parts = parts.iter().map(|part| factors(part, of)).collect::<Result<Vec<_>, _>>()?;
            return LowRank::below(&parts, *axis);
        }
        _ => return Err(FactorError::Join),
    };
    let parts = assembly.sources.iter().map(|source| of(source.weight)?.run(&source.ops));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let joined = match (assembly.join, parts.as_slice()) {
        (None, [one]) => one.clone(),
        (Some(JoinKind::Stack), parts) => LowRank::stack(parts)?,
        _ => return Err(FactorError::Join),
    };
    joined.run(&assembly.ops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::floats;
    use gguf_testkit::noise::Noise;

    /// Returns small integers, so that products are exact in any order.
    fn values(dims: &[u64], seed: u64) -> View {
        let (n, mut noise): (u64, _) = (dims.iter().product(), Noise::new(seed));
        let values: Vec<f32> = (0..n).map(|_| noise.below(11) as f32 - 5.0).collect();
        View::values(values.into(), dims.to_vec()).unwrap()
    }

    fn product_of(lead: &[u64], n_rows: u64, rank: u64, n_cols: u64) -> LowRank {
        let dims = |tail: [u64; 2]| [lead, &tail].concat();
        LowRank { b: values(&dims([n_rows, rank]), 1), a: values(&dims([rank, n_cols]), 2) }
    }

    /// Multiplies the matrices with a plain triple loop.
    fn multiplied(product: &LowRank) -> View {
        let shape = product.shape();
        let [.., n_rows, n_cols] = shape[..] else { panic!("no matrix") };
        let rank = *product.b.shape().last().unwrap();
        let (b, a) = (floats(&product.b), floats(&product.a));
        let n: u64 = shape.iter().product();
        let one = |at: u64| {
            let (stack, within) = (at / (n_rows * n_cols), at % (n_rows * n_cols));
            let (row, column) = (within / n_cols, within % n_cols);
            let left = |k: u64| b[((stack * n_rows + row) * rank + k) as usize];
            let right = |k: u64| a[((stack * rank + k) * n_cols + column) as usize];
            (0..rank).map(|k| left(k) * right(k)).sum()
        };
        View::values((0..n).map(one).collect(), shape).unwrap()
    }

    fn ops_on_matrices() -> Vec<Op> {
        vec![
            Op::PermuteAxis { axis: 0, factors: vec![2, 2, 3], order: vec![0, 2, 1] },
            Op::PermuteAxis { axis: 1, factors: vec![2, 4], order: vec![1, 0] },
            Op::Ungroup { groups: 3, sizes: vec![2, 1, 1] },
            Op::Regroup { groups: 3, sizes: vec![2, 1, 1] },
            Op::Split { axis: 0, sizes: vec![8, 4] },
            Op::Split { axis: 1, sizes: vec![3, 5] },
            Op::Unzip { axis: 0, n: 2 },
            Op::Unzip { axis: 1, n: 2 },
            Op::Transpose { a: 0, b: 1 },
            Op::Transpose { a: 1, b: 0 },
            Op::Reshape { dims: vec![12, 8] },
            Op::Slice { axis: 0, start: 1, end: 7 },
            Op::Slice { axis: 1, start: 2, end: 8 },
            Op::Gather { indices: vec![11, 0, 3] },
            Op::GatherBlocks { n: 3, index: vec![2, 0, 1] },
            Op::Deinterleave { group: 6, rot: 4 },
            Op::Interleave { group: 6, rot: 6 },
            Op::PadRows { rows: 16 },
            Op::Negate { group: 6, from: 3 },
            Op::ScaleRows { by: 0.5, start: 2, end: 5 },
            Op::Math(MathOp::Scale(-2.0)),
        ]
    }

    #[test]
    fn an_operation_on_the_factors_is_the_operation_on_the_product() {
        let product = product_of(&[], 12, 2, 8);
        let whole = multiplied(&product);
        for op in ops_on_matrices() {
            let found = product.apply(&op).unwrap();
            let want = apply(&op, &whole).unwrap();
            assert_eq!(found.len(), want.len(), "{op:?}");
            for (found, want) in found.iter().zip(&want) {
                assert_eq!(found.shape(), want.shape(), "{op:?}");
                assert_eq!(floats(&multiplied(found)), floats(want), "{op:?}");
            }
        }
    }

    #[test]
    fn stacks_are_cut_and_turned_matrix_by_matrix() {
        let product = product_of(&[3], 4, 2, 6);
        let whole = multiplied(&product);
        for op in [
            Op::Transpose { a: 1, b: 2 },
            Op::Slice { axis: 0, start: 1, end: 3 },
            Op::Split { axis: 1, sizes: vec![1, 3] },
            Op::Split { axis: 2, sizes: vec![2, 4] },
            Op::Unzip { axis: 1, n: 2 },
            Op::Gather { indices: vec![2, 0] },
            Op::PermuteAxis { axis: 2, factors: vec![3, 2], order: vec![1, 0] },
            Op::Math(MathOp::Scale(3.0)),
        ] {
            let found = product.apply(&op).unwrap();
            for (found, want) in found.iter().zip(apply(&op, &whole).unwrap()) {
                assert_eq!(found.shape(), want.shape(), "{op:?}");
                assert_eq!(floats(&multiplied(found)), floats(&want), "{op:?}");
            }
        }
        for op in [
            Op::Negate { group: 3, from: 1 },
            Op::ScaleRows { by: 2.0, start: 0, end: 1 },
            Op::Transpose { a: 0, b: 1 },
        ] {
            assert_eq!(product.apply(&op).unwrap_err(), FactorError::Op(op.name()), "{op:?}");
        }
    }

    #[test]
    fn products_below_each_other_are_one_of_all_ranks() {
        let parts = [product_of(&[3], 4, 2, 6), product_of(&[3], 5, 1, 6)];
        let found = LowRank::below(&parts, 1).unwrap();
        assert_eq!((found.a.shape(), found.b.shape()), (&[3, 3, 6][..], &[3, 9, 3][..]));
        let own =
            [(&parts[0], 1.5), (&parts[1], 3.0)].map(|(part, by)| multiplied(part).math(MathOp::Scale(by)));
        assert_eq!(floats(&multiplied(&found)), floats(&View::concat(own.to_vec(), 1).unwrap()));
        assert_eq!(LowRank::below(&parts, 2).unwrap_err(), FactorError::Join);
    }

    #[test]
    fn what_leaves_no_product_is_refused() {
        let product = product_of(&[], 12, 2, 8);
        for op in [
            Op::Math(MathOp::Add(1.0)),
            Op::Math(MathOp::NegExp),
            Op::Whole(gguf_arch::WholeOp::SubMean),
            Op::Reshape { dims: vec![3, 4, 8] },
            Op::Repeat { axis: 0, n: 2 },
            Op::PrependZero { rows: 1 },
            Op::AddIndex { below: 9 },
        ] {
            assert_eq!(product.apply(&op).unwrap_err(), FactorError::Op(op.name()), "{op:?}");
        }
        let parts = [product.clone(), product_of(&[], 12, 3, 8)];
        assert!(matches!(LowRank::stack(&parts), Err(ShapeError::Join { .. })));
        let stacked = LowRank::stack(&[product.clone(), product]).unwrap();
        assert_eq!(stacked.shape(), [2, 12, 8]);
    }
}
