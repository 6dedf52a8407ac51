//! The `rope` of a graph: the rotation of queries and keys.

use serde::Deserialize;

names! {
    /// Layout of the pairs of values that are rotated together.
    RopePairs { Interleaved, Half, HalfIfSections, InterleavedWhole }
    /// Rule for the magnitudes of a rope scaling: what `rope.scaling.yarn_log_multiplier` does, and whether they scale the
    /// scores, too. `none`: the key is not read. `plain`: it divides the angles' magnitude. The others scale the scores:
    /// `tenth` has a tenth of the multiplier, which cancels that of the angles; `tenth_divides` divides it; `scores`: the
    /// key is not read.
    YarnMu { None, Tenth, Plain, TenthDivides, Scores }
}

/// Factors that come with a scaling of rotations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitudes {
    /// Factor of sine and cosine.
    pub angles: f64,
    /// Factor whose square multiplies the scores.
    pub scores: f64,
}

/// Returns YaRN's magnitude with a multiplier of the logarithm.
pub fn log_magnitude(factor: f64, mu: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mu * factor.ln() + 1.0 }
}

/// Returns the multiplier with which [`log_magnitude`] is `magnitude`.
pub fn log_multiplier(factor: f64, magnitude: f64) -> f64 {
    if factor <= 1.0 { 0.0 } else { (magnitude - 1.0) / (0.1 * factor.ln()) }
}

impl YarnMu {
    /// Returns true if the magnitudes scale the scores, too.
    pub fn scales_scores(self) -> bool {
        !matches!(self, Self::None | Self::Plain)
    }

    /// Returns what the runtime computes under a linear scaling or under YaRN, by the keys
    /// `rope.scaling.yarn_log_multiplier` and `rope.scaling.attn_factor`.
    pub fn magnitudes(self, is_yarn: bool, factor: f64, key: Option<f64>, attn_factor: f64) -> Magnitudes {
        let of = |mu| log_magnitude(factor, mu);
        let mu = match self {
            Self::None | Self::Scores => 0.0,
            Self::Plain => key.unwrap_or(0.0),
            Self::Tenth | Self::TenthDivides => key.unwrap_or(0.0) * 10.0,
        };
        let angles = match self {
            _ if !is_yarn => attn_factor,
            Self::Tenth if mu != 0.0 => attn_factor,
            _ => attn_factor * of(1.0) / of(mu),
        };
        // The runtime takes back a factor that only YaRN has.
        let taken_back = if is_yarn { angles } else { angles * of(1.0) };
        Magnitudes { angles, scores: if self.scales_scores() { taken_back * of(mu) } else { 1.0 } }
    }

    /// Returns the value of `rope.scaling.yarn_log_multiplier` with which the runtime computes these magnitudes; `None` if
    /// no key is needed, or none helps.
    pub fn key_for(self, is_yarn: bool, factor: f64, wanted: Magnitudes) -> Option<f64> {
        let own = if is_yarn { wanted.angles } else { wanted.angles * log_magnitude(factor, 1.0) };
        let mu = log_multiplier(factor, wanted.scores / own);
        let reads = matches!(self, Self::Tenth | Self::TenthDivides);
        (reads && mu.abs() > 1e-6).then_some(mu / 10.0)
    }
}

/// Layers that rotate their queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeOn {
    /// All layers.
    #[default]
    All,
    /// Layers with a window.
    Windowed,
    /// Layers with a window, and the leading dense layers.
    WindowedOrDenseLead,
    /// Layers that the array `attention.rope_pattern` marks.
    Pattern,
    /// All layers, or none if `rope.scaling.finetuned` is false.
    Key,
    /// All layers but those with `(layer + 1) % n == 0`.
    SkipEvery(u32),
    /// All layers, but if the model has windows not those with `layer % n == 0`.
    SkipFirstOf(u32),
}

/// Rotation of queries and keys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RopeFeatures {
    pub pairs: RopePairs,
    pub on: RopeOn,
    /// True if the ends of YaRN's ramp are rounded; the key `rope.scaling.yarn_truncate` overrides it.
    pub yarn_truncate: bool,
    pub yarn_mu: YarnMu,
}

impl Default for RopeFeatures {
    fn default() -> Self {
        Self {
            pairs: RopePairs::default(),
            on: RopeOn::default(),
            yarn_truncate: true,
            yarn_mu: YarnMu::default(),
        }
    }
}
