//! Keys of a `[graph]` table about a part that the rest of the table rules out.

use crate::arch::graph::{
    GraphFeatures, GraphKind, MixerRule, Positions, QkNorm, ResidualRule, RopeOn, WindowKind,
};

/// Condition under which a key that differs from its default has an effect.
struct EffectRule {
    key: &'static str,
    is_set: fn(&GraphFeatures, &GraphFeatures) -> bool,
    needs: &'static str,
    has_effect: fn(&GraphFeatures) -> bool,
}

macro_rules! rules {
    ($( $needs:literal, $has_effect:expr => $( $key:ident ),+; )*) => {
        &[$($( EffectRule {
            key: stringify!($key),
            is_set: |features, default| features.$key != default.$key,
            needs: $needs,
            has_effect: $has_effect,
        } ),+),*]
    };
}

fn rotates(features: &GraphFeatures) -> bool {
    matches!(features.positions, Positions::Rope | Positions::ByDepth | Positions::Rope2d)
}

fn mixes_with(features: &GraphFeatures, mixer: &str) -> bool {
    match &features.mixer {
        MixerRule::All(all) => all.0 == mixer,
        MixerRule::Every { full, rest, .. } | MixerRule::By { full, rest, .. } => {
            full.0 == mixer || rest.0 == mixer
        }
    }
}

const RULES: &[EffectRule] = rules! {
    "`kind = \"none\"`", |f| f.kind == GraphKind::None => reason;
    "`positions` of `rope`, `rope_2d` or `by_depth`", rotates =>
        rope, rope_on, rope_local, rope_local_base, yarn_truncate, yarn_mu;
    "`positions` of `alibi` or `by_depth`",
        |f| matches!(f.positions, Positions::Alibi | Positions::ByDepth) => alibi_bias;
    "a `window`", |f| f.window != WindowKind::None => window_pattern, window_size, rope_local, rope_local_base,
        rope_global_part;
    "a `qk_norm` with weights", |f| matches!(f.qk_norm, QkNorm::BeforeRope | QkNorm::AfterRope) => qk_norm_kind, qk_norm_eps;
    "a `qk_norm` without weights", |f| f.qk_norm == QkNorm::FreeAfterRope => qk_norm_not_at_experts;
    "a `rope_on` other than `all`", |f| f.rope_on != RopeOn::All => temperature;
    "a `residual` other than `post`", |f| f.residual != ResidualRule::Post => pre_ffn;
    "a `mixer` of `gdn`", |f| mixes_with(f, "gdn") => gdn_gate;
};

/// Returns the first key without effect, and the condition that it needs.
pub(super) fn without_effect(features: &GraphFeatures) -> Option<(&'static str, &'static str)> {
    let default = GraphFeatures::default();
    let idle = |rule: &&EffectRule| (rule.is_set)(features, &default) && !(rule.has_effect)(features);
    RULES.iter().find(idle).map(|rule| (rule.key, rule.needs))
}
