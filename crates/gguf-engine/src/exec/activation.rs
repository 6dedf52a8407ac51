//! Activations of feed-forward networks, and functions of gates.

mod gradient;

use crate::exec::weights::Matrix;

/// Activation of one projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlainActivation {
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// ReLU, `max(u, 0)`.
    Relu,
    /// Squared ReLU, `max(u, 0)²`.
    Relu2,
    /// xIELU (Huang and Schlag 2024).
    Xielu(Xielu),
}

/// Activation of a gate, multiplied with the up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// SwiGLU, `silu(g) u`.
    Swiglu,
    /// GELU of the gate in its tanh form.
    GegluTanh,
    /// GELU of the gate by the error function.
    GegluErf,
    /// ReGLU, `max(g, 0) u`.
    Reglu,
    /// SwiGLU of gpt-oss, `g' sig(1.702 g') (u' + 1)` with `g' = min(g, 7)` and `u'` clamped to ± 7.
    SwigluOai,
    /// SwiGLU with a limit before its function, `silu(min(g, c)) u'` with `u'` clamped to ± c.
    SwigluLimitBefore(f32),
    /// SwiGLU with a limit after its function, `min(silu(g), c) u'` with `u'` clamped to ± c.
    SwigluLimitAfter(f32),
    /// SiTU, `b tanh(g / b) sig(g) l tanh(u / l)`; the last factor is `u` if `l` is 0.
    Situ {
        /// Bound `b` of the gate.
        beta: f32,
        /// Bound `l` of the up projection; 0 for no bound.
        linear_beta: f32,
    },
}

/// Activation between the up and the down projection.
#[derive(Clone, Debug, PartialEq)]
pub enum Activation {
    /// Activation without a gate, `act(up x)`.
    Plain(PlainActivation),
    /// Activation with a gate, `act(gate x, up x)`.
    Gated {
        /// Formula.
        act: GatedActivation,
        /// Gate projection, of the shape of the up projection.
        gate: Matrix,
    },
}

impl Activation {
    /// Returns the gate projection, if there is one.
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
    /// Softplus, `ln(1 + e^a)`.
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
