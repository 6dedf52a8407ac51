//! Exponentials, activations and reductions over slices. They are written so that the compiler vectorizes them at every
//! SIMD level with the same bits: no fused multiply-add, and reductions in sixteen fixed lanes. Lanes are indexed,
//! because iterator adapters may stay calls inside the level's function, which costs more than the arithmetic.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use crate::exec::activation::{GateFunction, GatedActivation, PlainActivation, Xielu};
use crate::exec::scalar::{exp, exp_m1, gelu_erf, gelu_tanh, relu, sigmoid, softplus, tanh};
use gguf_core::simd::{SimdLevel, VectorLoop};

const LANES: usize = 16;

#[inline(always)]
fn sum_lanes(lanes: [f32; LANES]) -> f64 {
    let mut sum = 0.0;
    for lane in lanes {
        sum += f64::from(lane);
    }
    sum
}

/// Defines loops as closures over the fields of a struct: `name { fields } -> output { body }`.
macro_rules! vector_loops {
    ($( $name:ident <$life:lifetime> { $( $field:ident : $ty:ty ),* } -> $out:ty $body:block )*) => {
        $(
            struct $name<$life> { $( $field: $ty ),* }
            impl<$life> VectorLoop for $name<$life> {
                type Output = $out;
                #[inline(always)]
                fn run(self) -> $out {
                    let Self { $( $field ),* } = self;
                    $body
                }
            }
        )*
    };
}

/// The map `(x - shift) * scale * weight + bias` of the values of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineMap<'a> {
    pub(crate) shift: f32,
    pub(crate) scale: f32,
    /// Factor of each value.
    pub(crate) weight: Option<&'a [f32]>,
    /// Term of each value.
    pub(crate) bias: Option<&'a [f32]>,
}

/// Transformations of a row of attention scores before its softmax.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SoftmaxRow<'a> {
    /// Scale and cap: scores become `cap * tanh(scale * s / cap)`.
    pub(crate) cap: Option<(f32, f32)>,
    /// Penalty per position of distance from the query, to either side.
    pub(crate) slope: Option<f32>,
    /// Index of the query's own key, relative to the first score.
    pub(crate) own: isize,
    /// Bias that is added to the scores.
    pub(crate) bias: Option<&'a [f32]>,
    /// Attention sink: a score that takes probability and has no value.
    pub(crate) sink: Option<f32>,
}

/// Softmax whose scores arrive in parts (online softmax).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningSoftmax {
    max: f32,
    /// Sum of `e^(s - max)`.
    pub(crate) sum: f64,
}

impl RunningSoftmax {
    /// Returns the state before the first score; of [`SoftmaxRow`], only the sink matters here.
    pub(crate) fn new(sink: Option<f32>) -> Self {
        match sink {
            Some(sink) => Self { max: sink, sum: 1.0 },
            None => Self { max: f32::NEG_INFINITY, sum: 0.0 },
        }
    }

    /// Adds scores: replaces each by `e^(s - max)`, where `max` is the maximum of all scores so far. Returns the factor
    /// that rescales sums of earlier powers to the same maximum.
    pub(crate) fn add(&mut self, level: SimdLevel, x: &mut [f32], options: SoftmaxRow<'_>) -> f32 {
        level.vectorize(RunningLoop { x, options, running: self })
    }
}

vector_loops! {
    GatedLoop<'a> { act: GatedActivation, gate: &'a [f32], up: &'a mut [f32] } -> () {
        let pairs = up.iter_mut().zip(gate);
        match act {
            GatedActivation::Swiglu => pairs.for_each(|(u, &g)| *u *= g * sigmoid(g)),
            GatedActivation::GegluTanh => pairs.for_each(|(u, &g)| *u *= gelu_tanh(g)),
            GatedActivation::GegluErf => pairs.for_each(|(u, &g)| *u *= gelu_erf(g)),
            GatedActivation::Reglu => pairs.for_each(|(u, &g)| *u *= relu(g)),
            GatedActivation::SwigluOai => pairs.for_each(|(u, &g)| {
                let g = if g > 7.0 { 7.0 } else { g };
                *u = (u.clamp(-7.0, 7.0) + 1.0) * (g * sigmoid(1.702 * g));
            }),
            GatedActivation::SwigluLimitBefore(c) => pairs.for_each(|(u, &g)| {
                let g = if g > c { c } else { g };
                *u = u.clamp(-c, c) * (g * sigmoid(g));
            }),
            GatedActivation::SwigluLimitAfter(c) => pairs.for_each(|(u, &g)| {
                let a = g * sigmoid(g);
                *u = u.clamp(-c, c) * if a > c { c } else { a };
            }),
            GatedActivation::Situ { beta, linear_beta } => pairs.for_each(|(u, &g)| {
                let up = if linear_beta == 0.0 { *u } else { linear_beta * tanh(*u / linear_beta) };
                *u = up * (beta * tanh(g / beta) * sigmoid(g));
            }),
        }
    }
    PlainLoop<'a> { act: PlainActivation, x: &'a mut [f32] } -> () {
        match act {
            PlainActivation::GeluTanh => x.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
            PlainActivation::GeluErf => x.iter_mut().for_each(|x| *x = gelu_erf(*x)),
            PlainActivation::Relu => x.iter_mut().for_each(|x| *x = relu(*x)),
            PlainActivation::Relu2 => x.iter_mut().for_each(|x| *x = relu(*x) * relu(*x)),
            PlainActivation::Xielu(Xielu { positive, negative, beta, eps }) => x.iter_mut().for_each(|x| {
                let low = if *x < eps { *x } else { eps };
                let bent = if *x > 0.0 { positive * *x * *x } else { negative * (exp_m1(low) - *x) };
                *x = bent + beta * *x;
            }),
        }
    }
    GateLoop<'a> { function: GateFunction, x: &'a mut [f32] } -> () {
        match function {
            GateFunction::Sigmoid => x.iter_mut().for_each(|x| *x = sigmoid(*x)),
            GateFunction::Softplus => x.iter_mut().for_each(|x| *x = softplus(*x)),
        }
    }
    TimesSigmoid<'a> { y: &'a mut [f32], gates: &'a [f32] } -> () {
        y.iter_mut().zip(gates).for_each(|(y, &g)| *y *= sigmoid(g));
    }
    MaxLoop<'a> { x: &'a [f32] } -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for at in 0..LANES {
                lanes[at] = if chunk[at] > lanes[at] { chunk[at] } else { lanes[at] };
            }
        }
        let mut peak = f32::NEG_INFINITY;
        for &lane in &lanes {
            peak = if lane > peak { lane } else { peak };
        }
        for &x in rest {
            peak = if x > peak { x } else { peak };
        }
        peak
    }
    ShapeLoop<'a> { x: &'a mut [f32], options: SoftmaxRow<'a> } -> f32 {
        if let Some((scale, cap)) = options.cap {
            for x in x.iter_mut() {
                *x = cap * tanh(*x * scale / cap);
            }
        }
        if let Some(slope) = options.slope {
            let own = options.own;
            x.iter_mut().enumerate().for_each(|(at, x)| *x -= slope * (own - at as isize).abs() as f32);
        }
        if let Some(bias) = options.bias {
            x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        MaxLoop { x }.run()
    }
    SoftmaxLoop<'a> { x: &'a mut [f32], options: SoftmaxRow<'a> } -> f64 {
        let peak = ShapeLoop { x: &mut *x, options }.run();
        let peak = match options.sink {
            Some(sink) if sink > peak => sink,
            _ => peak,
        };
        let total = ExpSum { x, max: peak }.run();
        total + options.sink.map_or(0.0, |sink| f64::from(exp(sink - peak)))
    }
    RunningLoop<'a> { x: &'a mut [f32], options: SoftmaxRow<'a>, running: &'a mut RunningSoftmax } -> f32 {
        let peak = ShapeLoop { x: &mut *x, options }.run();
        let max = if peak > running.max { peak } else { running.max };
        let shrink = if max == running.max { 1.0 } else { f64::from(running.max - max).exp() };
        // Without any finite score there is no maximum to subtract; such scores give zeros.
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let sum = ExpSum { x, max: base }.run();
        *running = RunningSoftmax { max, sum: running.sum * shrink + sum };
        shrink as f32
    }
    ExpSum<'a> { x: &'a mut [f32], max: f32 } -> f64 {
        let mut total = 0.0f64;
        for block in x.chunks_mut(64 * LANES) {
            let mut lanes = [0.0f32; LANES];
            let (chunks, rest) = block.as_chunks_mut::<LANES>();
            for chunk in chunks {
                for at in 0..LANES {
                    chunk[at] = exp(chunk[at] - max);
                    lanes[at] += chunk[at];
                }
            }
            for x in rest {
                *x = exp(*x - max);
                total += f64::from(*x);
            }
            total += sum_lanes(lanes);
        }
        total
    }
    SumOfExpLoop<'a> { x: &'a [f32], max: f32 } -> f64 {
        let mut total = 0.0f64;
        for block in x.chunks(64 * LANES) {
            let mut lanes = [0.0f32; LANES];
            let (chunks, rest) = block.as_chunks::<LANES>();
            for chunk in chunks {
                for at in 0..LANES {
                    lanes[at] += exp(chunk[at] - max);
                }
            }
            for &x in rest {
                total += f64::from(exp(x - max));
            }
            total += sum_lanes(lanes);
        }
        total
    }
    WeightedDifference<'a> { a: &'a [f32], b: &'a [f32], max: f32 } -> f64 {
        let mut total = 0.0f64;
        for (a, b) in a.chunks(64 * LANES).zip(b.chunks(64 * LANES)) {
            let mut lanes = [0.0f64; LANES];
            let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for at in 0..LANES {
                    lanes[at] += f64::from(exp(a[at] - max)) * f64::from(a[at] - b[at]);
                }
            }
            for (&a, &b) in a_rest.iter().zip(b_rest) {
                total += f64::from(exp(a - max)) * f64::from(a - b);
            }
            for lane in lanes {
                total += lane;
            }
        }
        total
    }
    Moments<'a> { x: &'a [f32], mean: f64 } -> (f64, f64) {
        let (mut sums, mut squares) = ([0.0f64; LANES], [0.0f64; LANES]);
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for at in 0..LANES {
                let x = f64::from(chunk[at]) - mean;
                sums[at] += x;
                squares[at] += x * x;
            }
        }
        for (at, &x) in rest.iter().enumerate() {
            let x = f64::from(x) - mean;
            sums[at] += x;
            squares[at] += x * x;
        }
        let (mut sum, mut square) = (0.0, 0.0);
        for at in 0..LANES {
            sum += sums[at];
            square += squares[at];
        }
        (sum, square)
    }
    CapLoop<'a> { x: &'a mut [f32], scale: f32, cap: Option<f32> } -> () {
        match cap {
            Some(cap) => x.iter_mut().for_each(|x| *x = cap * tanh(*x * scale / cap)),
            None => x.iter_mut().for_each(|x| *x *= scale),
        }
    }
    AddSquares<'a> { sums: &'a mut [f64], rests: &'a mut [f64], x: &'a [f32] } -> () {
        for ((sum, rest), &x) in sums.iter_mut().zip(rests).zip(x) {
            // Exact: a square of an f32 has 48 bits.
            let square = f64::from(x) * f64::from(x);
            let total = *sum + square;
            let part = total - *sum;
            *rest += (*sum - (total - part)) + (square - part);
            *sum = total;
        }
    }
    AffineLoop<'a> { x: &'a [f32], out: &'a mut [f32], map: AffineMap<'a> } -> () {
        let AffineMap { shift, scale, weight, bias } = map;
        match weight {
            Some(weight) => {
                for ((y, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                    *y = (x - shift) * scale * w;
                }
            }
            None => out.iter_mut().zip(x).for_each(|(y, &x)| *y = (x - shift) * scale),
        }
        if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(y, &b)| *y += b);
        }
    }
    AddScaled<'a> { out: &'a mut [f32], x: &'a [f32], scale: f32 } -> () {
        out.iter_mut().zip(x).for_each(|(y, &x)| *y += scale * x);
    }
}

/// Applies a gated activation: `up[i] = act(gate[i]) * up[i]`.
pub(crate) fn gated(level: SimdLevel, act: GatedActivation, gate: &[f32], up: &mut [f32]) {
    level.vectorize(GatedLoop { act, gate, up });
}

/// Applies the function of a gate: `x[i] = f(x[i])`.
pub(crate) fn gate(level: SimdLevel, function: GateFunction, x: &mut [f32]) {
    level.vectorize(GateLoop { function, x });
}

/// Multiplies values by the logistic function of their gates.
pub(crate) fn times_sigmoid(level: SimdLevel, y: &mut [f32], gates: &[f32]) {
    level.vectorize(TimesSigmoid { y, gates });
}

/// Applies an activation without a gate.
pub(crate) fn activate(level: SimdLevel, act: PlainActivation, x: &mut [f32]) {
    level.vectorize(PlainLoop { act, x });
}

/// Returns the largest value; negative infinity if there are none.
pub(crate) fn max(level: SimdLevel, x: &[f32]) -> f32 {
    level.vectorize(MaxLoop { x })
}

/// Replaces each score by `e^(s - max)` and returns the sum; the quotients are the softmax.
pub(crate) fn softmax(level: SimdLevel, x: &mut [f32], options: SoftmaxRow<'_>) -> f64 {
    level.vectorize(SoftmaxLoop { x, options })
}

pub(crate) fn sum_of_exp(level: SimdLevel, x: &[f32], max: f32) -> f64 {
    level.vectorize(SumOfExpLoop { x, max })
}

/// Returns the sum of `e^(a - max) (a - b)`.
pub(crate) fn weighted_difference(level: SimdLevel, a: &[f32], b: &[f32], max: f32) -> f64 {
    level.vectorize(WeightedDifference { a, b, max })
}

/// Returns the sum and the sum of squares of `x - mean`.
pub(crate) fn moments(level: SimdLevel, x: &[f32], mean: f64) -> (f64, f64) {
    level.vectorize(Moments { x, mean })
}

/// Multiplies by `scale`, then caps: `cap * tanh(x / cap)`.
pub(crate) fn scale_and_cap(level: SimdLevel, x: &mut [f32], scale: f32, cap: Option<f32>) {
    if scale != 1.0 || cap.is_some() {
        level.vectorize(CapLoop { x, scale, cap });
    }
}

/// Adds the squares of `x` to `sums`, element by element, and the rounding error of each addition to `rests`.
pub fn add_squares(level: SimdLevel, sums: &mut [f64], rests: &mut [f64], x: &[f32]) {
    level.vectorize(AddSquares { sums, rests, x });
}

/// Computes the map of every value of `x` into `out`.
pub(crate) fn affine(level: SimdLevel, map: AffineMap<'_>, x: &[f32], out: &mut [f32]) {
    level.vectorize(AffineLoop { x, out, map });
}

pub(crate) fn add_scaled(level: SimdLevel, out: &mut [f32], x: &[f32], scale: f32) {
    level.vectorize(AddScaled { out, x, scale });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::scalar::erf;

    #[test]
    fn exp_is_good_to_two_ulp_over_its_range() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -87.0 + 175.5 * (i as f32 / 200_000.0);
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) / expected - 1.0).abs());
        }
        assert!(worst < 2.0 * 1.2e-7, "{worst:e}");
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn activations_equal_their_formulas() {
        for i in -800..=800 {
            let x = i as f32 / 100.0;
            let d = f64::from(x);
            assert!((f64::from(tanh(x)) - d.tanh()).abs() < 2e-7, "tanh {x}");
            let inner = 0.797_884_560_8 * (d + 0.044_715 * d * d * d);
            assert!((f64::from(gelu_tanh(x)) - 0.5 * d * (1.0 + inner.tanh())).abs() < 2e-6, "gelu {x}");
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-d).exp())).abs() < 2e-7, "sigmoid {x}");
        }
        // Abramowitz and Stegun, table 7.1.
        for (x, expected) in [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((erf(x) - expected).abs() < 1.2e-7, "erf {x}");
            assert!((erf(-x) + expected).abs() < 1.2e-7, "erf -{x}");
        }
    }

    #[test]
    fn activations_with_parameters_equal_their_formulas() {
        let level = SimdLevel::detect();
        let x: Vec<f32> = (-600..=600).map(|i| i as f32 / 50.0).collect();
        let sigmoid = |a: f64| 1.0 / (1.0 + (-a).exp());
        let xielu = Xielu { positive: 0.7, negative: 0.9, beta: 0.5, eps: -1e-6 };
        let mut y = x.clone();
        activate(level, PlainActivation::Xielu(xielu), &mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let d = f64::from(x);
            let bent = if d > 0.0 { 0.7 * d * d } else { 0.9 * (d.min(-1e-6).exp_m1() - d) };
            assert!((f64::from(y) - bent - 0.5 * d).abs() < 1e-5 * (1.0 + d * d), "xielu {x}");
        }
        let mut plus = x.clone();
        gate(level, GateFunction::Softplus, &mut plus);
        for (&x, &y) in x.iter().zip(&plus) {
            assert!((f64::from(y) - f64::from(x).exp().ln_1p()).abs() < 2e-6, "softplus {x}");
        }
        let up = 3.5f64;
        let silu = |g: f64| g * sigmoid(g);
        let tests: [(GatedActivation, &dyn Fn(f64) -> f64); 3] = [
            (GatedActivation::SwigluLimitBefore(2.0), &|g| silu(g.min(2.0)) * 2.0),
            (GatedActivation::SwigluLimitAfter(2.0), &|g| silu(g).min(2.0) * 2.0),
            (GatedActivation::Situ { beta: 4.0, linear_beta: 3.0 }, &|g| {
                4.0 * (g / 4.0).tanh() * sigmoid(g) * 3.0 * (up / 3.0).tanh()
            }),
        ];
        for (act, formula) in tests {
            let mut y = vec![up as f32; x.len()];
            gated(level, act, &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                assert!((f64::from(y) - formula(f64::from(x))).abs() < 1e-5, "{act:?} {x}");
            }
        }
    }

    #[test]
    fn softmax_with_cap_slope_and_sink_equals_its_formula() {
        let x: Vec<f32> = (0..45).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
        let options =
            SoftmaxRow { cap: Some((0.5, 3.0)), slope: Some(0.25), own: 30, bias: None, sink: Some(1.5) };
        let score =
            |at: usize| 3.0 * (f64::from(x[at]) * 0.5 / 3.0).tanh() - 0.25 * (30 - at as isize).abs() as f64;
        let total = (0..45).map(|at| score(at).exp()).sum::<f64>() + 1.5f64.exp();
        let mut powers = x.clone();
        let sum = softmax(SimdLevel::detect(), &mut powers, options);
        for (at, power) in powers.iter().enumerate() {
            assert!((f64::from(*power) / sum - score(at).exp() / total).abs() < 1e-6, "{at}");
        }
        // The same softmax in parts: the second part has the largest score, and one part is empty.
        let mut parts = x.clone();
        let mut running = RunningSoftmax::new(options.sink);
        let mut done: Vec<f32> = Vec::new();
        for part in [0..7, 7..7, 7..20, 20..45] {
            let own = 30 - part.start as isize;
            let powers = &mut parts[part];
            let shrink = running.add(SimdLevel::detect(), powers, SoftmaxRow { own, ..options });
            for power in &mut done {
                *power *= shrink;
            }
            done.extend_from_slice(powers);
        }
        for (at, power) in done.iter().enumerate() {
            assert!((f64::from(*power) / running.sum - score(at).exp() / total).abs() < 1e-6, "part {at}");
        }
    }

    #[test]
    fn a_softmax_in_parts_takes_scores_that_are_infinite_or_no_numbers() {
        let level = SimdLevel::detect();
        let mut running = RunningSoftmax::new(None);
        let mut none = [f32::NEG_INFINITY; 3];
        assert_eq!(running.add(level, &mut none, SoftmaxRow::default()), 1.0);
        assert_eq!((none, running.sum), ([0.0; 3], 0.0));
        assert_eq!(running.add(level, &mut [2.0], SoftmaxRow::default()), 0.0);
        assert_eq!(running.sum, 1.0);
        running.add(level, &mut [f32::NAN], SoftmaxRow::default());
        assert!(running.sum.is_nan());
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let x: Vec<f32> = (0..1237).map(|i| ((i * 7919) % 4001) as f32 / 300.0 - 6.0).collect();
        let run = |level| {
            let mut up = x.clone();
            gated(level, GatedActivation::Swiglu, &x, &mut up);
            let mut soft = x.clone();
            let peak = max(level, &soft);
            let sum = softmax(level, &mut soft, SoftmaxRow::default());
            assert_eq!(sum, sum_of_exp(level, &x, peak));
            scale_and_cap(level, &mut soft, 0.5, Some(3.0));
            (up, soft, sum.to_bits(), moments(level, &x, 0.25))
        };
        let scalar = run(SimdLevel::Scalar);
        for level in SimdLevel::available() {
            assert_eq!(run(level), scalar, "{level}");
        }
    }
}
