//! The `rope` of a graph: the rotation of queries and keys.

use serde::Deserialize;

names! {
    /// Layout of the pairs of values that are rotated together.
    RopePairs { Interleaved, Half, HalfIfSections, InterleavedWhole }
    /// Magnitude rule of YaRN.
    YarnMu { None, Tenth, Plain }
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
