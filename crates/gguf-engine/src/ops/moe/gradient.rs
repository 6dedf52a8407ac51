//! Gradient of a mixture of experts. Which experts a token has is fixed; their weights change with the router's logits.

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::gradient::Gradients;
use crate::exec::math;
use crate::exec::product::Product;
use crate::ops::dense::{Dense, FfnInputs};
use crate::ops::experts::ExpertChoice;
use crate::ops::moe::{Moe, RouterSource, choose, probabilities, router_logits, softmax};
use crate::resolve::features::GatingFunction;
use gguf_arch::graph::Weigh;

/// Experts of a token, each with the derivative of the loss with respect to its weight.
type Slopes = Vec<(usize, f32)>;

impl Moe {
    /// Returns a part that has no gradient, if there is one.
    pub(crate) fn without_gradient(&self) -> Option<&'static str> {
        let parts = [
            (self.router_source != RouterSource::Input, "a router that reads the stream"),
            (self.by_token.is_some(), "experts that the token chooses"),
            (self.adjugates.is_some(), "experts that groups share"),
            (self.latent.is_some(), "experts in a narrower space"),
            (self.gating == GatingFunction::Sparsemixer, "a sparse mixer"),
        ];
        let own = parts.into_iter().find_map(|(is_there, what)| is_there.then_some(what));
        own.or_else(|| self.experts.iter().chain(&self.shared).find_map(Dense::without_gradient))
    }

    /// Adds the gradient of the input `x` to `dx`, and hands out those of the weights; `dy` is that of the output.
    pub(crate) fn gradient(
        &self,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        batch: &ChunkBatch,
        (x, dy): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> Result<()> {
        let (n_tokens, n_experts) = (batch.n_tokens(), self.experts.len());
        let inputs = FfnInputs { input: x, stream: &[], entry: &[] };
        let mut own = cx.take(dy.len());
        own.copy_from_slice(dy);
        math::scale_and_cap(cx.weights.level, &mut own, self.sum_scale.unwrap_or(1.0), None);
        let dy = &*own;
        if let Some(shared) = &self.shared {
            self.shared_gradient(shared, cx, to, (x, dy), dx)?;
        }
        let mut slopes: Vec<Slopes> = vec![Vec::new(); n_tokens];
        let chosen = choose(cx, self, inputs, batch)?;
        for (at, choices) in chosen.iter().enumerate().filter(|(_, choices)| !choices.is_empty()) {
            let found = self.expert_gradient(&self.experts[at], choices, cx, to, (x, dy), dx)?;
            for (choice, slope) in choices.iter().zip(found) {
                slopes[choice.token as usize].push((at, slope));
            }
        }
        let (mut logits, mut d_logits) = (cx.take(n_tokens * n_experts), cx.zeros(n_tokens * n_experts));
        router_logits(cx, self, inputs, n_tokens, &mut logits)?;
        cx.workers.install(|| {
            let rows = logits.par_chunks(n_experts).zip(d_logits.par_chunks_mut(n_experts));
            rows.zip(&slopes).for_each(|((logits, d), slopes)| self.route_gradient(logits, slopes, d));
        });
        cx.product_gradient(to, &self.router, x, &d_logits, dx)?;
        cx.give([own, logits, d_logits]);
        Ok(())
    }

    /// As [`Moe::gradient`], of the experts that every token uses.
    fn shared_gradient(
        &self,
        shared: &Dense,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        (x, dy): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> Result<()> {
        let Some(gate) = &self.shared_gate else { return shared.gradient(cx, to, x, dy, dx) };
        let (n_embd, level) = (gate.n_cols, cx.weights.level);
        let n_tokens = dy.len() / n_embd.max(1);
        let (mut output, mut gates) = (cx.take(dy.len()), cx.take(n_tokens));
        shared.run(cx, x, n_tokens, &mut output)?;
        cx.products(x, n_tokens, vec![Product::plain(gate, &mut gates)])?;
        let mut d_shared = cx.take(dy.len());
        let rows = output.chunks(n_embd).zip(dy.chunks(n_embd)).zip(d_shared.chunks_mut(n_embd));
        for (((output, dy), d), gate) in rows.zip(&mut *gates) {
            let open = 1.0 / (1.0 + (-*gate).exp());
            *gate = open * (1.0 - open) * dot(dy, output);
            d.copy_from_slice(dy);
            math::scale_and_cap(level, d, open, None);
        }
        shared.gradient(cx, to, x, &d_shared, dx)?;
        cx.product_gradient(to, gate, x, &gates, dx)?;
        cx.give([output, gates, d_shared]);
        Ok(())
    }

    /// As [`Moe::gradient`], of one expert; returns the derivative with respect to each choice's weight.
    fn expert_gradient(
        &self,
        expert: &Dense,
        choices: &[ExpertChoice],
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        (x, dy): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> Result<Vec<f32>> {
        let (n_embd, level) = (expert.up.n_cols, cx.weights.level);
        let row =
            |choice: &ExpertChoice| choice.token as usize * n_embd..(choice.token as usize + 1) * n_embd;
        let gathered = |from: &[f32], factor: &dyn Fn(&ExpertChoice) -> f32| -> Buffer {
            let mut rows = cx.take(choices.len() * n_embd);
            for (out, choice) in rows.chunks_mut(n_embd).zip(choices) {
                out.copy_from_slice(&from[row(choice)]);
                math::scale_and_cap(level, out, factor(choice), None);
            }
            rows
        };
        let rows = gathered(x, &|choice| choice.factors(self.weigh).0);
        let d_rows = gathered(dy, &|choice| choice.factors(self.weigh).1);
        let (mut output, mut d_x) = (cx.take(rows.len()), cx.zeros(rows.len()));
        if self.weigh == Weigh::After {
            expert.run(cx, &rows, choices.len(), &mut output)?;
        }
        expert.gradient(cx, to, &rows, &d_rows, &mut d_x)?;
        let pairs = choices.iter().zip(output.chunks(n_embd).zip(d_x.chunks(n_embd)));
        let slopes = pairs.map(|(choice, (output, d_x))| {
            math::add_scaled(level, &mut dx[row(choice)], d_x, choice.factors(self.weigh).0);
            match self.weigh {
                Weigh::After => dot(&dy[row(choice)], output),
                Weigh::Before => dot(&x[row(choice)], d_x),
            }
        });
        let slopes = slopes.collect();
        cx.give([rows, d_rows, output, d_x]);
        Ok(slopes)
    }

    /// Fills `d`, all zeros, with the gradient of a token's logits.
    fn route_gradient(&self, logits: &[f32], slopes: &[(usize, f32)], d: &mut [f32]) {
        let of_logits = probabilities(self, logits);
        let chosen: Vec<f32> = slopes.iter().map(|&(at, _)| of_logits[at]).collect();
        let chosen = if self.gating == GatingFunction::SoftmaxWeight { softmax(&chosen) } else { chosen };
        let scale = self.scale.unwrap_or(1.0);
        let (sum, mean) = if self.normalize {
            let sum = chosen.iter().sum::<f32>() + 1e-20;
            (sum, slopes.iter().zip(&chosen).map(|((_, slope), p)| slope * p).sum::<f32>() / sum)
        } else {
            (1.0, 0.0)
        };
        let each: Vec<f32> = slopes.iter().map(|(_, slope)| scale * (slope - mean) / sum).collect();
        let weighted: f32 = each.iter().zip(&chosen).map(|(d, p)| d * p).sum();
        if self.gating == GatingFunction::Softmax {
            d.iter_mut().zip(&of_logits).for_each(|(d, p)| *d = -p * weighted);
        }
        for ((&(at, _), slope), &p) in slopes.iter().zip(each).zip(&chosen) {
            d[at] += match self.gating {
                GatingFunction::Softmax => p * slope,
                GatingFunction::Sigmoid => p * (1.0 - p) * slope,
                GatingFunction::SoftmaxWeight => p * (slope - weighted),
                GatingFunction::SqrtSoftplus => slope / (1.0 + (-logits[at]).exp()) / (2.0 * p),
                // Refused: `without_gradient`.
                GatingFunction::Sparsemixer => 0.0,
            };
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::moe::tests::moe;
    use crate::ops::moe::weighed;

    #[test]
    fn the_gradient_of_the_weights_is_their_change() {
        use GatingFunction::{Sigmoid, Softmax, SoftmaxWeight, SqrtSoftplus};
        let (logits, slopes) = ([0.5f32, 2.0, -1.0, 1.5], [(1, 0.7f32), (3, -0.4)]);
        for gating in [Softmax, Sigmoid, SoftmaxWeight, SqrtSoftplus] {
            for (normalize, scale) in [(false, None), (true, None), (true, Some(2.5)), (false, Some(0.5))] {
                let moe = Moe { normalize, scale, ..moe(2, gating) };
                let loss = |logits: &[f64]| -> f64 {
                    let logits: Vec<f32> = logits.iter().map(|l| *l as f32).collect();
                    let weights = weighed(&moe, &probabilities(&moe, &logits), &[1, 3]);
                    weights.iter().zip(slopes).map(|((_, w), (_, slope))| f64::from(w * slope)).sum()
                };
                let mut found = [0.0; 4];
                moe.route_gradient(&logits, &slopes, &mut found);
                for at in 0..4 {
                    let moved = |by: f64| {
                        let mut logits = logits.map(f64::from);
                        logits[at] += by;
                        loss(&logits)
                    };
                    // Weights are F32, so the step is large.
                    let expected = (moved(0.01) - moved(-0.01)) / 0.02;
                    let error = (f64::from(found[at]) - expected).abs();
                    assert!(error < 2e-4, "{gating:?} {normalize} {scale:?} {at}: {} {expected}", found[at]);
                }
            }
        }
    }
}
