//! The `head` of a graph: logits, and the heads that score texts or masked tokens.

use serde::Deserialize;

use super::Cap;

names! {
    /// Named scales of the logits.
    LogitScaleName { None, Multiply, Divide, RsqrtEmbdIfTied }
    /// Activation after the first matrix of a text-scoring head.
    HeadAct { Tanh, GeluErf }
}

/// Scale of the logits.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum LogitScale {
    /// By rule; `multiply` and `divide` read the key `logit_scale`.
    Named(LogitScaleName),
    /// Constant divided by the embedding length; the key `logit_scale`, if present, holds the inverse.
    BaseOverEmbd {
        /// The constant.
        base_over_embd: f64,
    },
    /// A constant.
    Number(f64),
}

impl Default for LogitScale {
    fn default() -> Self {
        Self::Named(LogitScaleName::None)
    }
}

/// Output of the model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeadFeatures {
    pub scale: LogitScale,
    pub cap: Cap,
    /// Token ids that are never generated: the first, and one past the last.
    pub unsaid: Option<[u32; 2]>,
    pub act: HeadAct,
    /// True if text scores are probabilities (softmax over the labels).
    pub softmax: bool,
    /// True if a head `cls` without `cls.output` transforms the hidden state before the embedding scores masked tokens.
    pub masked: bool,
}
