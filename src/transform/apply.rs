//! Carries out a mapping: from the operations that a card names to a view of the checkpoint.

use crate::arch::{Assembly, Content, JoinKind, MathOp, Op, OutputSpec, Step};
use crate::core::WeightMeta;
use crate::transform::generated::rope_freqs_llama3;
use crate::transform::math::Math;
use crate::transform::recipe::Recipe;
use crate::transform::view::{ShapeError, View};

/// Why a mapping cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor `{tensor}`: {source}")]
pub struct ApplyError {
    /// The output.
    pub tensor: String,
    /// The operation that does not fit.
    pub source: ShapeError,
}

/// Makes one planned output readable.
///
/// # Errors
/// [`ApplyError`] if an operation does not fit its tensor, or the result is not of the planned shape.
pub fn recipe(output: &OutputSpec, weights: &[WeightMeta]) -> Result<Recipe, ApplyError> {
    let failed = |source| ApplyError { tensor: output.name.clone(), source };
    let view = match &output.content {
        Content::Sources(assembly) => assemble(assembly, weights),
        Content::RopeFreqsLlama3(params) => {
            let values = rope_freqs_llama3(params);
            let n = values.len() as u64;
            View::values(values.into(), vec![n])
        }
    }
    .map_err(failed)?;
    let reshaped = || ShapeError::Reshape { from: view.shape().to_vec(), to: output.shape.dims().to_vec() };
    match Recipe::new(&view) {
        Some(recipe) if recipe.shape() == &output.shape => Ok(recipe),
        _ => Err(failed(reshaped())),
    }
}

fn assemble(assembly: &Assembly, weights: &[WeightMeta]) -> Result<View, ShapeError> {
    let mut parts = Vec::with_capacity(assembly.sources.len());
    for source in &assembly.sources {
        let weight = weights.get(source.weight).ok_or(ShapeError::Empty)?;
        parts.push(run(&source.ops, View::weight(source.weight, weight))?);
    }
    let joined = match assembly.join {
        Some(JoinKind::Stack) => View::stack(parts)?,
        Some(JoinKind::Concat { axis }) => View::concat(parts, axis)?,
        None => parts.into_iter().next().ok_or(ShapeError::Empty)?,
    };
    run(&assembly.ops, joined)
}

fn run(steps: &[Step], view: View) -> Result<View, ShapeError> {
    steps.iter().try_fold(view, |view, step| {
        let results = apply(&step.op, &view)?;
        results.into_iter().nth(step.result).ok_or(ShapeError::Empty)
    })
}

/// Applies one operation; `split` and `unzip` give several views, every other operation one.
///
/// # Errors
/// [`ShapeError`] if the operation does not fit the view.
pub fn apply(op: &Op, view: &View) -> Result<Vec<View>, ShapeError> {
    let one = match op {
        Op::Split { axis, sizes } => return view.split(*axis, sizes),
        Op::Unzip { axis, n } => return view.unzip(*axis, *n),
        Op::PermuteAxis { axis, factors, order } => view.permute_axis(*axis, factors, order)?,
        Op::Ungroup { groups, sizes } => view.ungroup(*groups, sizes)?,
        Op::Regroup { groups, sizes } => view.regroup(*groups, sizes)?,
        Op::Transpose { a, b } => view.transpose(*a, *b)?,
        Op::Reshape { dims } => view.reshape(dims)?,
        Op::Slice { axis, start, end } => view.slice(*axis, *start, *end)?,
        Op::Gather { indices } => view.gather(indices)?,
        // The reference rounds the number to the precision it computes in.
        Op::Math(MathOp::Add(v)) => view.math(Math::Add(*v as f32)),
        Op::Math(MathOp::Scale(v)) => view.math(Math::Scale(*v as f32)),
        Op::Math(MathOp::NegExp) => view.math(Math::NegExp),
        Op::Math(MathOp::Exp) => view.math(Math::Exp),
    };
    Ok(vec![one])
}
