//! Derivatives of activations.

use crate::exec::activation::{GatedActivation, PlainActivation, Xielu};
use crate::exec::scalar::{erf, exp, exp_m1, gelu_erf, gelu_tanh, relu, sigmoid, tanh};

/// Value and derivative of a function of one number.
type Slope = (f32, f32);

fn silu(x: f32) -> Slope {
    let s = sigmoid(x);
    (x * s, s * (1.0 + x * (1.0 - s)))
}

fn gelu_tanh_slope(x: f32) -> Slope {
    const C: f32 = 0.797_884_560_8;
    let s = sigmoid(2.0 * C * x * (1.0 + 0.044_715 * x * x));
    (gelu_tanh(x), s + x * s * (1.0 - s) * 2.0 * C * (1.0 + 3.0 * 0.044_715 * x * x))
}

fn gelu_erf_slope(x: f32) -> Slope {
    let phi = 0.5 * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32);
    (gelu_erf(x), phi + x * exp(-0.5 * x * x) * 0.398_942_28)
}

fn step(is_on: bool) -> f32 {
    f32::from(u8::from(is_on))
}

impl PlainActivation {
    /// Derivative at `x`.
    fn slope(self, x: f32) -> f32 {
        match self {
            Self::GeluTanh => gelu_tanh_slope(x).1,
            Self::GeluErf => gelu_erf_slope(x).1,
            Self::Relu => step(x > 0.0),
            Self::Relu2 => 2.0 * relu(x),
            Self::Xielu(Xielu { positive, beta, .. }) if x > 0.0 => 2.0 * positive * x + beta,
            Self::Xielu(Xielu { negative, beta, eps, .. }) => {
                let bent = if x < eps { exp_m1(x) } else { -1.0 };
                negative * bent + beta
            }
        }
    }

    /// Multiplies gradients `d` of the activations of `x` by the derivatives.
    pub(crate) fn gradient(self, x: &[f32], d: &mut [f32]) {
        d.iter_mut().zip(x).for_each(|(d, &x)| *d *= self.slope(x));
    }
}

impl GatedActivation {
    /// The factor of the gate and that of the up projection, whose product is the activation.
    fn factors(self, g: f32, u: f32) -> (Slope, Slope) {
        let cut = |u: f32, c: f32| (u.clamp(-c, c), step(u.abs() < c));
        match self {
            Self::Swiglu => (silu(g), (u, 1.0)),
            Self::GegluTanh => (gelu_tanh_slope(g), (u, 1.0)),
            Self::GegluErf => (gelu_erf_slope(g), (u, 1.0)),
            Self::Reglu => ((relu(g), step(g > 0.0)), (u, 1.0)),
            Self::SwigluOai => {
                let (low, s) = (g.min(7.0), sigmoid(1.702 * g.min(7.0)));
                let slope = step(g < 7.0) * s * (1.0 + 1.702 * low * (1.0 - s));
                let (cut, is_free) = cut(u, 7.0);
                ((low * s, slope), (cut + 1.0, is_free))
            }
            Self::SwigluLimitBefore(c) => {
                let (value, slope) = silu(g.min(c));
                ((value, step(g < c) * slope), cut(u, c))
            }
            Self::SwigluLimitAfter(c) => {
                let (value, slope) = silu(g);
                ((value.min(c), step(value < c) * slope), cut(u, c))
            }
            Self::Situ { beta, linear_beta } => {
                let (t, s) = (tanh(g / beta), sigmoid(g));
                let gate = (beta * t * s, (1.0 - t * t) * s + beta * t * s * (1.0 - s));
                if linear_beta == 0.0 {
                    return (gate, (u, 1.0));
                }
                let bent = tanh(u / linear_beta);
                (gate, (linear_beta * bent, 1.0 - bent * bent))
            }
        }
    }

    /// Replaces gates and up projections by their gradients; `d` is the gradient of the activations.
    pub(crate) fn gradient(self, gates: &mut [f32], ups: &mut [f32], d: &[f32]) {
        for ((gate, up), &d) in gates.iter_mut().zip(ups).zip(d) {
            let ((of_gate, gate_slope), (of_up, up_slope)) = self.factors(*gate, *up);
            (*gate, *up) = (d * gate_slope * of_up, d * of_gate * up_slope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::math;
    use gguf_core::simd::SimdLevel;

    /// Derivative of values in f32, at the best step for that precision.
    fn difference(f: impl Fn(f32) -> f32, x: f32) -> f32 {
        (f(x + 0.01) - f(x - 0.01)) / 0.02
    }

    #[test]
    fn derivatives_are_those_of_the_activations() {
        let level = SimdLevel::detect();
        // No number near a kink of any of them.
        let values: Vec<f32> = (-40..=40).map(|i| i as f32 * 0.23 + 0.05).collect();
        let xielu = Xielu { positive: 0.7, negative: 0.9, beta: 0.5, eps: -1e-6 };
        for act in [
            PlainActivation::GeluTanh,
            PlainActivation::GeluErf,
            PlainActivation::Relu,
            PlainActivation::Relu2,
            PlainActivation::Xielu(xielu),
        ] {
            let value = |x: f32| {
                let mut x = [x];
                math::activate(level, act, &mut x);
                x[0]
            };
            for &x in &values {
                let mut d = [1.0];
                act.gradient(&[x], &mut d);
                let expected = difference(value, x);
                assert!((d[0] - expected).abs() < 2e-3 * (1.0 + x * x), "{act:?} {x}: {}, {expected}", d[0]);
            }
        }
        for act in [
            GatedActivation::Swiglu,
            GatedActivation::GegluTanh,
            GatedActivation::GegluErf,
            GatedActivation::Reglu,
            GatedActivation::SwigluOai,
            GatedActivation::SwigluLimitBefore(2.5),
            GatedActivation::SwigluLimitAfter(2.5),
            GatedActivation::Situ { beta: 4.0, linear_beta: 3.0 },
            GatedActivation::Situ { beta: 4.0, linear_beta: 0.0 },
        ] {
            let value = |g: f32, u: f32| {
                let mut up = [u];
                math::gated(level, act, &[g], &mut up);
                up[0]
            };
            for (at, &g) in values.iter().enumerate() {
                let u = values[at * 7 % values.len()] * 0.9;
                let (mut gate, mut up) = ([g], [u]);
                act.gradient(&mut gate, &mut up, &[1.0]);
                let expected = (difference(|g| value(g, u), g), difference(|u| value(g, u), u));
                let tolerance = 3e-3 * (1.0 + g.abs() + u.abs());
                assert!((gate[0] - expected.0).abs() < tolerance, "{act:?} {g} {u}: {gate:?}, {expected:?}");
                assert!((up[0] - expected.1).abs() < tolerance, "{act:?} {g} {u}: {up:?}, {expected:?}");
            }
        }
    }
}
