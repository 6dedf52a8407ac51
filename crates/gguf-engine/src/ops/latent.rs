//! Latent MoE (Nemotron 3; Kimi K3): experts in a space narrower than the stream,
//! `y = up norm(Σ_e w_e E_e(down x)) + shared(x)`. The router and the shared experts read `x` itself.

use crate::Result;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::weights::{Matrix, Norm};
use crate::resolve::resolver::Resolver;

/// Projections to the latent space of routed experts and back.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentExperts {
    /// Projection from the feed-forward's input to the experts' input.
    pub down: Matrix,
    /// Norm of the experts' weighted sum.
    pub norm: Option<Norm>,
    /// Projection back to the width of the stream.
    pub up: Matrix,
}

impl LatentExperts {
    /// Adds the output of the experts for `x` to `out`; both are `[n_tokens, n_embd]`. `add_experts` adds the outputs
    /// for its first argument to its second, in the latent space.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
        add_experts: impl FnOnce(&[f32], &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        let (width, n_embd) = (self.down.n_rows, self.up.n_rows);
        let [mut narrow, mut sum] = [(); 2].map(|()| cx.take(n_tokens * width));
        cx.products(x, n_tokens, vec![Product::plain(&self.down, &mut narrow)])?;
        sum.fill(0.0);
        add_experts(&narrow, &mut sum)?;
        cx.norm_in_place(self.norm.as_ref(), &mut sum, width)?;
        let mut wide = cx.take(n_tokens * n_embd);
        cx.products(&sum, n_tokens, vec![Product::plain(&self.up, &mut wide)])?;
        cx.add_rows(out, &mut wide, None, 1.0, n_embd);
        cx.give([narrow, sum, wide]);
        Ok(())
    }
}

/// Names of the tensors, and of the key that declares the width.
struct LatentNames {
    down: &'static str,
    norm: &'static str,
    up: &'static str,
    width: &'static str,
}

/// Names in the two families of models.
const NAMES: [LatentNames; 2] = [
    LatentNames {
        down: "ffn_latent_down",
        norm: "ffn_latent_norm",
        up: "ffn_latent_up",
        width: "moe_latent_size",
    },
    LatentNames {
        down: "ffn_routed_down",
        norm: "ffn_routed_norm",
        up: "ffn_routed_up",
        width: "expert_latent_length",
    },
];

impl LatentExperts {
    /// Resolves the projections, in layers whose experts have a latent space.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<LatentExperts>> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let found = NAMES.iter().find(|names| {
            [names.down, names.up].iter().any(|name| b.tensors.has(&at(&format!("{name}.weight"))))
        });
        let Some(names) = found else { return Ok(None) };
        let width = b.keys.need_count(names.width)?;
        Ok(Some(LatentExperts {
            down: b.tensors.need_matrix(&at(names.down), width, b.n_embd)?,
            norm: b.norm_of(&at(names.norm), width)?,
            up: b.tensors.need_matrix(&at(names.up), b.n_embd, width)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::testkit::formulas::{assert_near, normed, times};
    use crate::testkit::models::TinyModel;

    const EPS: f64 = 1e-5;
    const GRAPH: &str = "residual = 'single'\nffn = 'relu2'\nmoe.norm_topk = true";
    const D: usize = 10;
    /// Width of the latent space.
    const W: usize = 4;
    const F: usize = 6;
    const E: usize = 5;

    /// Returns a layer of experts in a latent space; `family` is the prefix of its tensors' names.
    fn model(family: &str, key: &str) -> TinyModel {
        let sizes = [("block_count", 1), ("embedding_length", D), ("expert_count", E)];
        let mut model = TinyModel::new("x", &sizes, EPS as f32);
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

    /// Returns the result of the formula, token by token and expert by expert.
    fn by_formula(model: &TinyModel, family: &str, has_norm: bool, tokens: &[u32]) -> Vec<f64> {
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
        let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
        // The key of the other family is not read here.
        let mut model = model("latent", "expert_latent_length");
        assert_eq!(error(&model), "key `x.moe_latent_size` is missing");
        model.metadata.set("x.moe_latent_size", W as u32 + 1);
        assert_eq!(
            error(&model),
            "tensor `blk.0.ffn_latent_down.weight`: expected shape [5, 10], found [4, 10]"
        );
        model.metadata.set("x.moe_latent_size", W as u32);
        model.tensors.retain(|meta| !meta.name.contains("latent_up"));
        assert_eq!(error(&model), "tensor `blk.0.ffn_latent_up.weight` is missing");
    }
}
