//! Keys of a `[graph]` table about a part that the rest of the table rules out.

use crate::graph::{
    GraphFeatures, Positions, QkNorm, ResidualRule, RopeFeatures, RopeOn, WindowFeatures, WindowKind,
    WindowRope,
};

/// Returns the first key without effect, and the condition that it needs.
pub(super) fn without_effect(features: &GraphFeatures) -> Option<(&'static str, &'static str)> {
    const ROTATION: &str = "`positions` of `rope`, `rope_2d` or `by_depth`";
    let default = GraphFeatures::default();
    let GraphFeatures { rope, window, attention, norms, .. } = features;
    let rotates = matches!(features.positions, Positions::Rope | Positions::ByDepth | Positions::Rope2d);
    let rotates_windows = window.rope != WindowRope::Same || window.rope_base.is_some();
    let has_norm_weights = matches!(attention.qk_norm, QkNorm::BeforeRope | QkNorm::AfterRope);
    let is_post = features.residual == ResidualRule::Post;
    [
        ("rope", !rotates && *rope != RopeFeatures::default(), ROTATION),
        ("window.rope", !rotates && rotates_windows, ROTATION),
        ("window", window.kind == WindowKind::None && *window != WindowFeatures::default(), "`window.kind`"),
        (
            "attention.qk_norm_kind",
            !has_norm_weights && attention.qk_norm_kind != default.attention.qk_norm_kind,
            "a `qk_norm` with weights",
        ),
        (
            "attention.qk_norm_eps",
            !has_norm_weights && attention.qk_norm_eps.is_some(),
            "a `qk_norm` with weights",
        ),
        (
            "attention.qk_norm_not_at_experts",
            attention.qk_norm != QkNorm::FreeAfterRope && !attention.qk_norm_not_at_experts.is_empty(),
            "a `qk_norm` without weights",
        ),
        (
            "attention.temperature",
            rope.on == RopeOn::All && attention.temperature.is_some(),
            "a `rope.on` other than `all`",
        ),
        (
            "norms.pre_ffn",
            is_post && norms.pre_ffn != default.norms.pre_ffn,
            "a `residual` other than `post`",
        ),
    ]
    .into_iter()
    .find(|&(_, is_idle, _)| is_idle)
    .map(|(key, _, needs)| (key, needs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_effect_are_refused() {
        for (text, expected) in [
            (
                "positions = 'alibi'\nwindow = { kind = 'sliding', rope = 'unscaled' }",
                "`window.rope` has no effect without `positions` of `rope`",
            ),
            (
                "positions = 'alibi'\nrope.pairs = 'half'",
                "`rope` has no effect without `positions` of `rope`",
            ),
            ("window.size = 4096", "`window` has no effect without `window.kind`"),
            ("window.rope_base = 10000", "`window` has no effect without `window.kind`"),
            (
                "attention = { qk_norm = 'free_after_rope', qk_norm_kind = 'layer' }",
                "`attention.qk_norm_kind` has no effect",
            ),
            ("attention.qk_norm_not_at_experts = [128]", "`attention.qk_norm_not_at_experts` has no effect"),
            (
                "attention.temperature = { growth = 0.1, length = 8192 }",
                "`attention.temperature` has no effect",
            ),
            ("residual = 'post'\nnorms.pre_ffn = 'attn_output_norm'", "`norms.pre_ffn` has no effect"),
        ] {
            let error = GraphFeatures::from_toml(&text.parse().unwrap()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
