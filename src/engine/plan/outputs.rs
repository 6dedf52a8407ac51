//! What a model's outputs are, and the stack that reads what is answered.

use crate::engine::plan::{LayerPlan, Matrix, Norm};

/// A stack of layers whose final states another stack attends to.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderPlan {
    /// Layers.
    pub layers: Vec<LayerPlan>,
    /// Norm of the last layer's output.
    pub final_norm: Option<Norm>,
    /// The token that stands in front of all answers.
    pub start: Option<u32>,
}

/// Which row of a text's states stands for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PooledRow {
    /// The file does not say.
    #[default]
    Unsaid,
    /// The mean of all.
    Mean,
    /// The first.
    First,
    /// The last.
    Last,
}

/// What follows the first matrix of a head that scores texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// GELU by the error function.
    GeluErf,
}

/// A head that scores texts: `softmax(out(norm(act(dense x))))`, as far as it has these parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// The first matrix.
    pub dense: Option<Matrix>,
    /// What follows it.
    pub act: HeadActivation,
    /// Norm of that.
    pub norm: Option<Norm>,
    /// The matrix that scores.
    pub out: Option<Matrix>,
    /// Scores are probabilities: softmax over the labels.
    pub softmax: bool,
}

/// What predicts masked tokens: the plan's head, behind what the states pass through before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MaskedHead {
    /// `norm(act(dense x))` of a masked token's state, of encoders.
    pub transform: Option<Classifier>,
}

/// What becomes of a text's states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pooling {
    /// Which row stands for the text.
    pub row: PooledRow,
    /// Matrices that the row is multiplied with, one after the other.
    pub dense: Vec<Matrix>,
    /// The head, of models that score texts.
    pub classifier: Option<Classifier>,
}

/// What a model's outputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Logits of the next token.
    Decoder,
    /// Vectors or scores of texts; there is no next token to predict. Tokens see one another, but where a decoder was made
    /// to score texts.
    Encoder,
    /// Logits of masked tokens, which see all others.
    Diffusion,
}
