//! Conversion of a card's description of a tensor to a [`Recipe`]: every operation of the vocabulary becomes steps on
//! views.

use crate::rope::{rope_freqs_llama3, rope_freqs_padded};
use crate::sinusoids::sinusoids;
use crate::{Recipe, ShapeError, View};
use gguf_arch::{Assembly, JoinKind, MathOp, Op, OpStep, OutputSpec, TensorContent};
use gguf_core::WeightMeta;

/// Reason why a planned tensor cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RecipeError {
    #[error("tensor `{target}`: {source}")]
    Shape { target: String, source: ShapeError },
    #[error("tensor `{target}`: planned as {planned:?}, comes out as {found:?}")]
    Plan { target: String, planned: Vec<u64>, found: Vec<u64> },
}

/// Builds the recipe of a planned tensor. `weights` are those the plan was made for.
///
/// # Panics
/// If the plan names a weight that does not exist.
pub fn recipe(output: &OutputSpec, weights: &[WeightMeta]) -> Result<Recipe, RecipeError> {
    let shape_error = |source| RecipeError::Shape { target: output.name.clone(), source };
    let view = view_of(&output.content, weights).map_err(shape_error)?;
    let wrong_plan = || RecipeError::Plan {
        target: output.name.clone(),
        planned: output.shape.dims().to_vec(),
        found: view.shape().to_vec(),
    };
    if view.shape() != output.shape.dims() {
        return Err(wrong_plan());
    }
    Recipe::new(&view).ok_or_else(wrong_plan)
}

fn view_of(content: &TensorContent, weights: &[WeightMeta]) -> Result<View, ShapeError> {
    match content {
        TensorContent::Sources(assembly) => assemble(assembly, weights),
        TensorContent::Joined { parts, axis } => {
            let parts: Result<Vec<_>, _> = parts.iter().map(|part| view_of(part, weights)).collect();
            View::concat(parts?, *axis)
        }
        TensorContent::RopeFreqsLlama3(params) => {
            let values = rope_freqs_llama3(params);
            let shape = vec![values.len() as u64];
            View::values(values.into(), shape)
        }
        TensorContent::RopeFreqsPadded(params, n) => {
            let values = rope_freqs_padded(params, usize::try_from(*n).unwrap_or(0));
            let shape = vec![values.len() as u64];
            View::values(values.into(), shape)
        }
        TensorContent::Sinusoids { length, width } => {
            let values = sinusoids(*length, *width);
            View::values(values.into(), vec![*length, width / 2 * 2])
        }
        TensorContent::Values(values) => View::values(values.clone(), vec![values.len() as u64]),
        TensorContent::Fill { value, dims } => Ok(View::fill(*value, dims.clone())),
    }
}

fn assemble(assembly: &Assembly, weights: &[WeightMeta]) -> Result<View, ShapeError> {
    let mut parts = Vec::with_capacity(assembly.sources.len());
    for source in &assembly.sources {
        parts.push(run(View::weight(source.weight, &weights[source.weight]), &source.ops)?);
    }
    let joined = match assembly.join {
        Some(JoinKind::Stack) => View::stack(parts)?,
        Some(JoinKind::Concat { axis }) => View::concat(parts, axis)?,
        Some(JoinKind::Zip { axis }) => View::zip(parts, axis)?,
        Some(JoinKind::Mul) => View::product(&parts)?,
        None => parts.into_iter().next().ok_or(ShapeError::Empty)?,
    };
    run(joined, &assembly.ops)
}

fn run(view: View, steps: &[OpStep]) -> Result<View, ShapeError> {
    steps.iter().try_fold(view, |view, step| {
        apply(&step.op, &view)?.into_iter().nth(step.result).ok_or(ShapeError::Empty)
    })
}

/// Applies one operation.
pub fn apply(op: &Op, view: &View) -> Result<Vec<View>, ShapeError> {
    let one = match op {
        Op::PermuteAxis { axis, factors, order } => view.permute_axis(*axis, factors, order)?,
        Op::Ungroup { groups, sizes } => view.ungroup(*groups, sizes)?,
        Op::Regroup { groups, sizes } => view.regroup(*groups, sizes)?,
        Op::Sum { axis } => view.sum(*axis)?,
        Op::FoldNorm { eps } => return view.fold_norm(*eps),
        Op::ResizeGrid { side } => view.resize_grid(*side)?,
        Op::Split { axis, sizes } => return view.split(*axis, sizes),
        Op::Unzip { axis, n } => return view.unzip(*axis, *n),
        Op::Transpose { a, b } => view.transpose(*a, *b)?,
        Op::Reshape { dims } => view.reshape(dims)?,
        Op::Slice { axis, start, end } => view.slice(*axis, *start, *end)?,
        Op::Deinterleave { group, rot } => view.deinterleave(*group, *rot)?,
        Op::Interleave { group, rot } => view.interleave(*group, *rot)?,
        Op::PadRows { rows } => view.pad_rows((*rows).max(view.shape().first().copied().unwrap_or(0)))?,
        Op::PrependZero { rows } => view.prepend_zeros(*rows)?,
        Op::Gather { indices } => view.gather(indices)?,
        Op::GatherBlocks { n, index } => view.gather_blocks(*n, index)?,
        Op::Repeat { axis, n } => view.repeat(*axis, *n)?,
        Op::Negate { group, from } => view.negate(*group, *from)?,
        Op::ScaleRows { by, start, end } => view.scale_rows(*by, *start, *end)?,
        Op::Math(math) => view.math(*math),
        Op::Whole(whole) => view.whole(*whole)?,
        Op::AddIndex { .. } => view.index_math(MathOp::AddIndex)?,
        Op::SubIndex => view.index_math(MathOp::SubIndex)?,
    };
    Ok(vec![one])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use gguf_core::simd::SimdLevel;
    use gguf_testkit::memory::MemoryWeights;

    /// Returns the result of an operation on 0, 1, 2, … in the given shape, one list per result; shapes agree with the
    /// plan's.
    fn results(op: &Op, dims: &[u64]) -> Vec<Vec<f32>> {
        let n: u64 = dims.iter().product();
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let view = View::values(values.into(), dims.to_vec()).unwrap();
        let views = apply(op, &view).unwrap();
        let shapes: Vec<Vec<u64>> = views.iter().map(|view| view.shape().to_vec()).collect();
        assert_eq!(shapes, op.shapes(dims).unwrap(), "{op:?}");
        views.iter().map(floats).collect()
    }

    pub(crate) fn floats(view: &View) -> Vec<f32> {
        let recipe = Recipe::new(view).unwrap();
        let mut out = vec![0.0; usize::try_from(recipe.shape().n_elems()).unwrap()];
        recipe.read_f32(&MemoryWeights::default(), SimdLevel::Scalar, 0, &mut out).unwrap();
        out
    }

    #[test]
    fn every_operation_moves_elements_as_its_definition_says() {
        let permute = Op::PermuteAxis { axis: 0, factors: vec![1, 2, 3], order: vec![0, 2, 1] };
        for (op, dims, want) in [
            (permute, &[6u64][..], vec![vec![0., 3., 1., 4., 2., 5.]]),
            (Op::Ungroup { groups: 2, sizes: vec![2, 1] }, &[6], vec![vec![0., 1., 3., 4., 2., 5.]]),
            (Op::Regroup { groups: 2, sizes: vec![2, 1] }, &[6], vec![vec![0., 1., 4., 2., 3., 5.]]),
            (Op::Split { axis: 1, sizes: vec![1, 2] }, &[2, 3], vec![vec![0., 3.], vec![1., 2., 4., 5.]]),
            (Op::Unzip { axis: 0, n: 2 }, &[4], vec![vec![0., 2.], vec![1., 3.]]),
            (Op::Transpose { a: 0, b: 1 }, &[2, 3], vec![vec![0., 3., 1., 4., 2., 5.]]),
            (Op::Reshape { dims: vec![3, 2] }, &[2, 3], vec![vec![0., 1., 2., 3., 4., 5.]]),
            (Op::Slice { axis: 0, start: 1, end: 2 }, &[3, 2], vec![vec![2., 3.]]),
            (Op::Gather { indices: vec![2, 0] }, &[3, 2], vec![vec![4., 5., 0., 1.]]),
            (Op::Deinterleave { group: 4, rot: 4 }, &[8], vec![vec![0., 2., 1., 3., 4., 6., 5., 7.]]),
            (Op::Deinterleave { group: 5, rot: 4 }, &[5], vec![vec![0., 2., 1., 3., 4.]]),
            (Op::Interleave { group: 5, rot: 4 }, &[5], vec![vec![0., 2., 1., 3., 4.]]),
            (Op::Interleave { group: 6, rot: 6 }, &[6], vec![vec![0., 3., 1., 4., 2., 5.]]),
            (Op::PadRows { rows: 3 }, &[2, 2], vec![vec![0., 1., 2., 3., 0., 0.]]),
            (Op::PadRows { rows: 1 }, &[2, 2], vec![vec![0., 1., 2., 3.]]),
            (Op::PrependZero { rows: 1 }, &[1, 2], vec![vec![0., 0., 0., 1.]]),
            (Op::GatherBlocks { n: 2, index: vec![1, 0] }, &[4], vec![vec![2., 3., 0., 1.]]),
            (Op::Repeat { axis: 0, n: 2 }, &[2, 2], vec![vec![0., 1., 0., 1.]]),
            (Op::Repeat { axis: 1, n: 3 }, &[2, 1], vec![vec![0., 0., 0., 1., 1., 1.]]),
            (Op::Negate { group: 2, from: 1 }, &[4], vec![vec![0., -1., 2., -3.]]),
            (Op::Negate { group: 2, from: 0 }, &[2], vec![vec![-0., -1.]]),
            (Op::ScaleRows { by: 0.5, start: 1, end: 2 }, &[3], vec![vec![0., 0.5, 2.]]),
            (Op::ScaleRows { by: 0.5, start: 0, end: 3 }, &[3], vec![vec![0., 0.5, 1.]]),
            (Op::Sum { axis: 1 }, &[2, 3], vec![vec![3., 12.]]),
            (Op::Sum { axis: 0 }, &[2, 1, 2], vec![vec![2., 4.]]),
            (Op::FoldNorm { eps: 2.0 }, &[4, 2], vec![vec![0., 1. / 3.], vec![2., 3. - 5. * (1. / 3.)]]),
            (Op::ResizeGrid { side: 1 }, &[4, 2], vec![vec![0., 1.]]),
            (Op::ResizeGrid { side: 3 }, &[4, 1], vec![vec![0., 0.5, 1., 1., 1.5, 2., 2., 2.5, 3.]]),
            (Op::ResizeGrid { side: 2 }, &[4, 1], vec![vec![0., 1., 2., 3.]]),
            (Op::AddIndex { below: 9 }, &[3], vec![vec![0., 2., 4.]]),
            (Op::Math(MathOp::Add(1.0)), &[3], vec![vec![1., 2., 3.]]),
            (Op::Math(MathOp::Scale(-2.0)), &[3], vec![vec![-0., -2., -4.]]),
            (Op::Math(MathOp::NegExp), &[1], vec![vec![-1.]]),
            (Op::Math(MathOp::Exp), &[1], vec![vec![1.]]),
        ] {
            assert_eq!(results(&op, dims), want, "{op:?}");
        }
    }

    #[test]
    fn inverses_bring_the_elements_back() {
        for (op, dims) in [
            (Op::PermuteAxis { axis: 1, factors: vec![2, 3, 4], order: vec![2, 0, 1] }, &[2u64, 24][..]),
            (Op::Ungroup { groups: 3, sizes: vec![2, 1, 1] }, &[12, 2]),
            (Op::Transpose { a: 0, b: 2 }, &[2, 3, 4]),
            (Op::Deinterleave { group: 8, rot: 6 }, &[16, 2]),
            (Op::Interleave { group: 6, rot: 6 }, &[12]),
            (Op::Gather { indices: vec![2, 0, 1] }, &[3, 2]),
            (Op::GatherBlocks { n: 3, index: vec![2, 0, 1] }, &[6]),
            (Op::Negate { group: 4, from: 1 }, &[8, 2]),
            (Op::ScaleRows { by: 2.0, start: 1, end: 2 }, &[3, 2]),
            (Op::AddIndex { below: 99 }, &[5]),
        ] {
            let n: u64 = dims.iter().product();
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let view = View::values(values.clone().into(), dims.to_vec()).unwrap();
            let there = apply(&op, &view).unwrap();
            let back = apply(&op.inverse().unwrap(), &there[0]).unwrap();
            assert_ne!(floats(&there[0]), values, "{op:?}");
            assert_eq!(floats(&back[0]), values, "{op:?}");
        }
    }
}
