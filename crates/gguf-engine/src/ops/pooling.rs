//! Pooling: one vector for each text from its states, then the dense layers and scores of embedding models and
//! rerankers; and the transform of the states that masked tokens are predicted from.

use crate::exec::activation::PlainActivation;
use crate::exec::context::Context;
use crate::exec::math::{self, SoftmaxRow};
use crate::exec::product::Product;
use crate::exec::weights::{Matrix, Norm, NormFormula};
use crate::resolve::features::ModelKind;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::{HeadAct, MaskKind};
use gguf_core::Shape;

/// Row of a text's states that represents the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PooledRow {
    /// Row that the file does not declare.
    #[default]
    Undeclared,
    /// Mean of all rows.
    Mean,
    /// First row.
    First,
    /// Last row.
    Last,
}

/// Activation after the first matrix of a head that scores texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// GELU by the error function.
    GeluErf,
}

/// Head that scores texts: `softmax(out(norm(act(dense x))))`, with the parts that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// First matrix.
    pub dense: Option<Matrix>,
    /// Activation after the first matrix.
    pub act: HeadActivation,
    /// Norm after the activation.
    pub norm: Option<Norm>,
    /// Matrix of the scores.
    pub out: Option<Matrix>,
    /// True if scores are probabilities: a softmax over the labels.
    pub softmax: bool,
}

/// Prediction of masked tokens: a transform of the states before the plan's head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MaskedHead {
    /// Transform `norm(act(dense x))` of a masked token's state, in encoders.
    pub transform: Option<Classifier>,
}

/// Pooling of a text's states, and what follows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pooling {
    /// Row that represents the text.
    pub row: PooledRow,
    /// Matrices that the row is multiplied with, one after another.
    pub dense: Vec<Matrix>,
    /// Head that scores texts, if the model has one.
    pub classifier: Option<Classifier>,
}

/// Returns the row that represents a text's states.
pub(crate) fn pooled(row: PooledRow, states: &[f32], n_embd: usize) -> Vec<f32> {
    let mut rows = states.chunks(n_embd);
    let one = match row {
        PooledRow::First => rows.next(),
        PooledRow::Last => rows.next_back(),
        PooledRow::Mean | PooledRow::Undeclared => {
            let mut sums = vec![0.0f64; n_embd];
            let n = rows.len() as f64;
            for row in rows {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            return sums.into_iter().map(|sum| (sum / n) as f32).collect();
        }
    };
    one.map(<[f32]>::to_vec).unwrap_or_default()
}

/// Returns the product of a matrix and `n_rows` rows.
pub(crate) fn product(run: &Context<'_>, matrix: &Matrix, x: &[f32], n_rows: usize) -> Result<Vec<f32>> {
    let mut out = vec![0.0; n_rows * matrix.n_rows];
    run.products(x, n_rows, vec![Product::plain(matrix, &mut out)])?;
    Ok(out)
}

impl Classifier {
    /// Computes `softmax(out(norm(act(dense x))))` with the parts that the head has; also returns the width of the
    /// result.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        mut x: Vec<f32>,
        n_rows: usize,
        mut width: usize,
    ) -> Result<(Vec<f32>, usize)> {
        if let Some(dense) = &self.dense {
            x = product(cx, dense, &x, n_rows)?;
            width = dense.n_rows;
            match self.act {
                HeadActivation::Tanh => x.iter_mut().for_each(|x| *x = f64::from(*x).tanh() as f32),
                HeadActivation::GeluErf => {
                    math::activate(cx.weights.level, PlainActivation::GeluErf, &mut x);
                }
            }
        }
        if let Some(norm) = &self.norm {
            let raw = x.clone();
            cx.norm_rows(&cx.weights.norm(norm)?, &raw, &mut x, width);
        }
        if let Some(out) = &self.out {
            x = product(cx, out, &x, n_rows)?;
            width = out.n_rows;
        }
        if self.softmax {
            for row in x.chunks_mut(width.max(1)) {
                let sum = math::softmax(cx.weights.level, row, SoftmaxRow::default());
                for x in row.iter_mut() {
                    *x = (f64::from(*x) / sum) as f32;
                }
            }
        }
        Ok((x, width))
    }
}

const POOLING: &str = "pooling_type";
/// Value of [`POOLING`] for models that score texts.
const RANK: usize = 4;

/// Returns the kind of outputs: a decoder whose file declares that it scores texts predicts no tokens.
pub(crate) fn outputs(b: &Resolver<'_>, has_encoder: bool) -> Result<ModelKind> {
    let is_scoring = !has_encoder && b.keys.count(POOLING)? == Some(RANK);
    Ok(match b.built.kind {
        ModelKind::Decoder if is_scoring => ModelKind::Encoder,
        kind => kind,
    })
}

/// Resolves the pooling of a text's states and what follows it, and the prediction of masked tokens.
pub(crate) fn pooling(b: &mut Resolver<'_>) -> Result<(Pooling, Option<MaskedHead>)> {
    let sees_all = b.built.sight == MaskKind::Full;
    let ends = if sees_all { PooledRow::First } else { PooledRow::Last };
    let (row, is_score) = match b.keys.count(POOLING)? {
        None | Some(0) => (PooledRow::Undeclared, false),
        Some(1) => (PooledRow::Mean, false),
        Some(2) => (PooledRow::First, false),
        Some(3) => (PooledRow::Last, false),
        Some(RANK) => (ends, true),
        Some(other) => return Err(b.keys.unknown(POOLING, "0 to 4", &other.to_string())),
    };
    let row = match b.keys.count("classifier.pooling_type")? {
        Some(1) if is_score => PooledRow::Mean,
        _ => row,
    };
    let is_masked = b.features.head.masked && !is_score && !b.tensors.has("cls.output.weight");
    let classifier = if is_masked { masked_transform(b)? } else { Classifier::resolve(b)? };
    if is_score && classifier.is_none() {
        // The head of decoders has no first matrix.
        let tensor = if sees_all { "cls.weight" } else { "cls.output.weight" };
        return Err(EngineError::MissingTensor { tensor: tensor.to_owned() });
    }
    let mut width = b.n_embd;
    let mut dense = Vec::new();
    for name in ["dense_2", "dense_3"] {
        let rows = b.tensors.shape(&format!("{name}.weight")).map(Shape::n_rows);
        let Some(n_rows) = rows.and_then(|n| usize::try_from(n).ok()) else { continue };
        dense.push(b.tensors.need_matrix(name, n_rows, width)?);
        width = n_rows;
    }
    let masked = classifier.clone().filter(|_| is_masked);
    let masked = masked.map(|transform| MaskedHead { transform: Some(transform) });
    Ok((Pooling { row, dense, classifier: classifier.filter(|_| is_score) }, masked))
}

/// Resolves the transform of a masked token's state; its tensors must all be present, or none.
fn masked_transform(b: &mut Resolver<'_>) -> Result<Option<Classifier>> {
    if !b.tensors.has("cls.weight") && !b.tensors.has("cls.norm.weight") {
        return Ok(None);
    }
    let dense = b.tensors.need_matrix("cls", b.n_embd, b.n_embd)?;
    let norm = b.tensors.norm("cls.norm", b.n_embd, NormFormula::Layer, b.eps)?;
    let Some(norm) = norm else {
        return Err(EngineError::MissingTensor { tensor: "cls.norm.weight".to_owned() });
    };
    let (dense, norm) = (Some(dense), Some(norm));
    Ok(Some(Classifier { dense, act: head_act(b), norm, out: None, softmax: false }))
}

/// Returns the activation of the head's first matrix.
pub(crate) fn head_act(b: &Resolver<'_>) -> HeadActivation {
    match b.features.head.act {
        HeadAct::Tanh => HeadActivation::Tanh,
        HeadAct::GeluErf => HeadActivation::GeluErf,
    }
}

impl Classifier {
    /// Resolves the head that scores a text. Its tensors are claimed in any case: a file with them may be an embedding
    /// model.
    pub(crate) fn resolve(b: &mut Resolver<'_>) -> Result<Option<Classifier>> {
        let n_rows = |name: &str| {
            let shape = b.tensors.shape(&format!("{name}.weight"))?;
            usize::try_from(shape.n_rows()).ok()
        };
        let (dense_rows, out_rows) = (n_rows("cls"), n_rows("cls.output"));
        let dense = match dense_rows {
            Some(n_rows) => Some(b.tensors.need_matrix("cls", n_rows, b.n_embd)?),
            None => None,
        };
        let width = dense_rows.unwrap_or(b.n_embd);
        let norm = b.tensors.norm("cls.norm", width, NormFormula::Layer, b.eps)?;
        let out = match out_rows {
            // A row for each label, if the file names the labels.
            Some(n_rows) => {
                let n_rows = b.keys.n_texts("classifier.output_labels")?.unwrap_or(n_rows);
                Some(b.tensors.need_matrix("cls.output", n_rows, width)?)
            }
            None => None,
        };
        if dense.is_none() && out.is_none() {
            return Ok(None);
        }
        let softmax = b.features.head.softmax;
        Ok(Some(Classifier { dense, act: head_act(b), norm, out, softmax }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_pooled_as_said() {
        let states = [1.0, 2.0, 3.0, 4.0, 8.0, 9.0];
        for (row, expected) in [
            (PooledRow::First, [1.0, 2.0]),
            (PooledRow::Last, [8.0, 9.0]),
            (PooledRow::Mean, [4.0, 5.0]),
            (PooledRow::Undeclared, [4.0, 5.0]),
        ] {
            assert_eq!(pooled(row, &states, 2), expected, "{row:?}");
        }
    }
}
