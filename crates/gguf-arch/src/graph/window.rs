//! The `window` of a graph: layers in which attention sees a window of keys.

use serde::Deserialize;

names! {
    /// Shape of the attention window.
    WindowKind { None, Sliding, Chunked, Symmetric }
    /// Rope scaling on windowed layers.
    WindowRope { Same, Unscaled }
    /// Part of the rotated dimensions that layers without a window rotate.
    GlobalRope { Whole, Half }
}

/// Windowed layers, if the file does not declare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum WindowPattern {
    /// The last of every n layers is full; 0 windows all layers, 1 none.
    DenseLast(u32),
    /// The first of every n layers is full.
    DenseFirst {
        /// The period.
        dense_first: u32,
    },
}

impl WindowPattern {
    /// True if a layer has the window. A period of 0 windows all layers.
    pub fn is_windowed(self, layer: usize) -> bool {
        match self {
            Self::DenseLast(n) => n == 0 || layer % (n as usize) < n as usize - 1,
            Self::DenseFirst { dense_first: n } => n == 0 || !layer.is_multiple_of(n as usize),
        }
    }

    /// Returns the rule with another period.
    pub fn with_period(self, n: u32) -> Self {
        match self {
            Self::DenseLast(_) => Self::DenseLast(n),
            Self::DenseFirst { .. } => Self::DenseFirst { dense_first: n },
        }
    }
}

/// Attention windows, and the rotation of the layers that have one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowFeatures {
    pub kind: WindowKind,
    pub pattern: Option<WindowPattern>,
    /// Number of keys, if the file does not declare it.
    pub size: Option<u32>,
    pub rope: WindowRope,
    /// Rope base of windowed layers if `rope.freq_base_swa` is absent; without it that of the other layers.
    pub rope_base: Option<f64>,
    pub global_rope: GlobalRope,
}
