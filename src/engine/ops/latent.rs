//! Experts in a space narrower than the stream (Nemotron 3; Kimi K3, "latent MoE"):
//! `y = up norm(Σ_e w_e E_e(down x)) + shared(x)`. The router and the shared experts read `x` itself.

use crate::arch::graph::Weigh;
use crate::engine::EngineError;
use crate::engine::ops::moe::ExpertChoice;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Dense, LatentExperts};
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// Adds to `out`, of the rows of `x` (both `[n_tokens, n_embd]`), what the experts make of the tokens that chose them.
    pub(super) fn add_latent_experts(
        &self,
        latent: &LatentExperts,
        (weigh, experts): (Weigh, &[Dense]),
        chosen: &[Vec<ExpertChoice>],
        (x, n_tokens): (&[f32], usize),
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (width, n_embd) = (latent.down.n_rows, latent.up.n_rows);
        let [mut narrow, mut sum] = [(); 2].map(|()| self.take(n_tokens * width));
        self.products(x, n_tokens, vec![Product::plain(&latent.down, &mut narrow)])?;
        sum.fill(0.0);
        self.add_experts(weigh, experts, chosen, &narrow, &mut sum)?;
        self.norm_in_place(latent.norm.as_ref(), &mut sum, width)?;
        let mut wide = self.take(n_tokens * n_embd);
        self.products(&sum, n_tokens, vec![Product::plain(&latent.up, &mut wide)])?;
        self.add_rows(out, &mut wide, None, 1.0, n_embd);
        self.give([narrow, sum, wide]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::ops::noise::{NoiseModel, assert_near, normed, times};

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "residual = 'single'\nffn = 'relu2'\nnorm_topk = true";
    /// Width of the stream.
    const D: usize = 10;
    /// Width of the space.
    const W: usize = 4;
    /// Width of an expert.
    const F: usize = 6;
    /// Experts.
    const E: usize = 5;

    /// A layer of experts in a narrower space; `family` is how its tensors are called.
    fn model(family: &str, key: &str) -> NoiseModel {
        let sizes = [("block_count", 1), ("embedding_length", D), ("expert_count", E)];
        let mut model = NoiseModel::new(&sizes, EPS as f32);
        model.metadata.set("x.expert_used_count", 2u32);
        model.metadata.set(format!("x.{key}"), W as u32);
        model.add(&[
            ("token_embd.weight", &[16, D]),
            ("output_norm.weight", &[D]),
            ("blk.0.attn_norm.weight", &[D]),
            ("blk.0.ffn_gate_inp.weight", &[E, D]),
            ("blk.0.ffn_up_exps.weight", &[E, F, W]),
            ("blk.0.ffn_down_exps.weight", &[E, W, F]),
            ("blk.0.ffn_up_shexp.weight", &[7, D]),
            ("blk.0.ffn_down_shexp.weight", &[D, 7]),
            (&format!("blk.0.ffn_{family}_down.weight"), &[W, D]),
            (&format!("blk.0.ffn_{family}_up.weight"), &[D, W]),
        ]);
        model
    }

    fn two_matrices(up: &[f64], down: &[f64], x: &[f64]) -> Vec<f64> {
        let inner: Vec<f64> = times(up, x).iter().map(|u| u.max(0.0) * u.max(0.0)).collect();
        times(down, &inner)
    }

    /// The formula, token by token and expert by expert.
    fn by_formula(model: &NoiseModel, family: &str, has_norm: bool, tokens: &[u32]) -> Vec<f64> {
        let get = |name: &str| model.get(&format!("blk.0.{name}.weight"));
        let (up, down) = (get("ffn_up_exps"), get("ffn_down_exps"));
        let mut out = Vec::new();
        for &token in tokens {
            let x =
                normed(&model.get("token_embd.weight")[token as usize * D..][..D], &get("attn_norm"), EPS);
            let logits = times(&get("ffn_gate_inp"), &x);
            let mut order: Vec<usize> = (0..E).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let total: f64 = order[..2].iter().map(|&e| logits[e].exp()).sum();
            let narrow = times(&get(&format!("ffn_{family}_down")), &x);
            let mut sum = vec![0.0; W];
            for &e in &order[..2] {
                let y = two_matrices(&up[e * F * W..][..F * W], &down[e * F * W..][..F * W], &narrow);
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += logits[e].exp() / total * y);
            }
            if has_norm {
                sum = normed(&sum, &get(&format!("ffn_{family}_norm")), EPS);
            }
            let shared = two_matrices(&get("ffn_up_shexp"), &get("ffn_down_shexp"), &x);
            let wide = times(&get(&format!("ffn_{family}_up")), &sum);
            out.extend(wide.iter().zip(shared).map(|(wide, shared)| wide + shared));
        }
        out
    }

    #[test]
    fn experts_in_a_narrower_space_equal_the_formula() {
        let tokens: Vec<u32> = (0..13).map(|i| i * 7 % 16).collect();
        let latent = model("latent", "moe_latent_size");
        let expected = by_formula(&latent, "latent", false, &tokens);
        assert_near(&latent.slot(GRAPH, "ffn", &tokens), &expected, 1e-4);
        let mut routed = model("routed", "expert_latent_length");
        routed.add(&[("blk.0.ffn_routed_norm.weight", &[W])]);
        let expected = by_formula(&routed, "routed", true, &tokens);
        assert_near(&routed.slot(GRAPH, "ffn", &tokens), &expected, 1e-4);
    }

    #[test]
    fn the_width_of_the_space_is_the_files() {
        let error = |model: &NoiseModel| model.plan(GRAPH).unwrap_err().to_string();
        // The key of another family is not this one's.
        let mut model = model("latent", "expert_latent_length");
        assert_eq!(error(&model), "key `x.moe_latent_size` is missing");
        model.metadata.set("x.moe_latent_size", W as u32 + 1);
        assert_eq!(
            error(&model),
            "tensor `blk.0.ffn_latent_down.weight`: expected shape [5, 10], found [4, 10]"
        );
        model.metadata.set("x.moe_latent_size", W as u32);
        model.metas.retain(|meta| !meta.name.contains("latent_up"));
        assert_eq!(error(&model), "tensor `blk.0.ffn_latent_up.weight` is missing");
    }
}
