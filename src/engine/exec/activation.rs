//! Activations of feed-forward networks and functions of gates.

use crate::engine::exec::weights::Matrix;

/// An activation of one projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlainActivation {
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// `max(u, 0)`.
    Relu,
    /// `max(u, 0)²`.
    Relu2,
    /// xIELU (Huang and Schlag 2024).
    Xielu(Xielu),
}

/// An activation of a gate, which is multiplied with the up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// `silu(g) u`.
    Swiglu,
    /// GELU of the gate in its tanh form.
    GegluTanh,
    /// GELU of the gate by the error function.
    GegluErf,
    /// `max(g, 0) u`.
    Reglu,
    /// `g' sig(1.702 g') (u' + 1)` with `g' = min(g, 7)` and `u'` clamped to ± 7.
    SwigluOai,
    /// `silu(min(g, c)) u'` with `u'` clamped to ± c.
    SwigluLimitBefore(f32),
    /// `min(silu(g), c) u'` with `u'` clamped to ± c.
    SwigluLimitAfter(f32),
    /// `b tanh(g / b) sig(g) l tanh(u / l)`; the last factor is `u` where `l` is 0.
    Situ {
        /// b.
        beta: f32,
        /// l.
        linear_beta: f32,
    },
}

/// What becomes of the up projection.
#[derive(Clone, Debug, PartialEq)]
pub enum Activation {
    /// `act(up x)`.
    Plain(PlainActivation),
    /// `act(gate x, up x)`.
    Gated {
        /// The formula.
        act: GatedActivation,
        /// Gate projection, of the size of the up projection.
        gate: Matrix,
    },
}

impl Activation {
    /// The gate projection, if there is one.
    #[must_use]
    pub fn gate(&self) -> Option<&Matrix> {
        match self {
            Self::Plain(_) => None,
            Self::Gated { gate, .. } => Some(gate),
        }
    }
}

/// Function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// The logistic function.
    Sigmoid,
    /// `ln(1 + e^a)`.
    Softplus,
}

/// Parameters of xIELU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor of the square of positive values.
    pub positive: f32,
    /// Factor of the exponential part of the others.
    pub negative: f32,
    /// Factor of the linear part.
    pub beta: f32,
    /// Largest exponent.
    pub eps: f32,
}
