//! Resolution of the rotary position embeddings: which layers rotate, by which base and scaling, with which divisors.

use crate::exec::mask::Mask;
use crate::exec::rope::{LongFactors, PairLayout, Ramp, Rope, RopeScaling};
use crate::exec::weights::Vector;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::{GlobalRope, Magnitudes, Positions, RopeOn, RopePairs, WindowRope};

/// Smallest number of layers of the large model of a family whose sizes differ in their positions (Baichuan).
const LARGE_DEPTH: usize = 40;

/// Range of keys that a layer sees, all or those of a window; the two may rotate differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Global,
    Local,
}

/// Bounds of YaRN's ramp, in full rotations over the trained length.
#[derive(Clone, Copy, Debug)]
struct YarnBetas {
    fast: f64,
    slow: f64,
}

/// Scaling of a rotation's angles, and the factor of its cos and sin.
struct Scaled {
    scaling: RopeScaling,
    magnitude: f64,
}

/// Divisors of the angles, for chunks of any length and for long ones.
struct Divisors {
    factors: Option<Vector>,
    long_factors: Option<LongFactors>,
}

/// Returns true if the number of layers is that of a large model of a family whose positions depend on size.
pub(crate) fn is_large(n_layers: usize) -> bool {
    n_layers >= LARGE_DEPTH
}

impl Resolver<'_> {
    /// Returns the rotation of a layer with heads of width `dk`, as an index into the plan's rotations.
    pub(crate) fn rope(&mut self, layer: usize, mask: Mask, dk: usize) -> Result<Option<usize>> {
        let reach = if mask.is_global() { Reach::Global } else { Reach::Local };
        match self.built.positions {
            Positions::None
            | Positions::Alibi
            | Positions::AlibiKey
            | Positions::Learned
            | Positions::Relative => {
                return Ok(None);
            }
            // Each of the two positions rotates its half of a head.
            Positions::Rope2d => return self.rotation(layer, Reach::Global, dk / 2).map(Some),
            // Only the depth distinguishes the two sizes of Baichuan; no key of the file does.
            Positions::ByDepth if is_large(self.keys.need_count("block_count")?) => return Ok(None),
            Positions::ByDepth | Positions::Rope => {}
        }
        if !self.rotates(layer, reach)? {
            return Ok(None);
        }
        self.rotation(layer, reach, dk).map(Some)
    }

    /// Returns the rotation of layers with compressed rows, the only ones that are scaled, as an index into the plan's
    /// rotations.
    pub(crate) fn compressed_rope(&mut self, dk: usize) -> Result<usize> {
        let key = "attention.compress_rope_freq_base";
        let base = self.keys.nonzero(key)?.ok_or_else(|| self.keys.missing(key))?;
        let n_dims = self.keys.count("rope.dimension_count")?.filter(|&n| n > 0).unwrap_or(dk);
        if n_dims > dk || n_dims % 2 != 0 {
            let expected = "even, at most the head's width";
            return Err(self.keys.unknown("rope.dimension_count", expected, &n_dims.to_string()));
        }
        let trained = match self.keys.count("rope.scaling.original_context_length")?.filter(|&n| n > 0) {
            Some(n) => Some(n),
            None => self.keys.count("context_length")?.filter(|&n| n > 0),
        };
        let scaling = self.rope_scaling(n_dims, base, trained)?.scaling;
        let pairs = self.pair_layout(n_dims, dk)?;
        // Outputs are rotated back by the angles that rotated the keys, so a magnitude would have no effect here.
        let (factors, long_factors) = (None, None);
        let rope = Rope { n_dims, pairs, base, scaling, factors, long_factors, magnitude: 1.0 };
        Ok(self.index_of(rope))
    }

    fn rotates(&self, layer: usize, reach: Reach) -> Result<bool> {
        let windowed = || {
            let windows = self.window_size()?.is_some();
            Ok::<_, EngineError>(reach == Reach::Local || !windows)
        };
        Ok(match self.features.rope.on {
            RopeOn::All => true,
            RopeOn::Windowed => windowed()?,
            RopeOn::WindowedOrDenseLead => {
                let n_dense = self.keys.count("leading_dense_block_count")?.unwrap_or(0);
                layer < n_dense || windowed()?
            }
            RopeOn::Pattern => self.keys.layer_flag("attention.rope_pattern", layer)?.unwrap_or(true),
            RopeOn::Key => self.keys.flag("rope.scaling.finetuned")?.unwrap_or(true),
            RopeOn::SkipEvery(n) => n == 0 || !(layer + 1).is_multiple_of(n as usize),
            RopeOn::SkipFirstOf(n) => {
                n == 0 || !layer.is_multiple_of(n as usize) || self.window_size()?.is_none()
            }
        })
    }

    fn rotation(&mut self, layer: usize, reach: Reach, dk: usize) -> Result<usize> {
        let rope = self.rope_of(layer, reach, dk)?;
        Ok(self.index_of(rope))
    }

    /// Returns the index of a rotation among the plan's, adding it if it is new.
    pub(crate) fn index_of(&mut self, rope: Rope) -> usize {
        self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        })
    }

    fn rope_of(&mut self, layer: usize, reach: Reach, dk: usize) -> Result<Rope> {
        let local = if reach == Reach::Local { self.keys.count("rope.dimension_count_swa")? } else { None };
        let n_dims = local.or(self.keys.count("rope.dimension_count")?).filter(|&n| n > 0).unwrap_or(dk);
        let n_dims = match (reach, self.features.window.global_rope) {
            (Reach::Global, GlobalRope::Half) => n_dims / 2,
            (Reach::Local, _) | (_, GlobalRope::Whole) => n_dims,
        };
        if n_dims > dk || n_dims % 2 != 0 {
            let expected = "even, at most the head's width";
            return Err(self.keys.unknown("rope.dimension_count", expected, &n_dims.to_string()));
        }
        let base = self.rope_base(reach, dk)?;
        let trained = match self.keys.count("rope.scaling.original_context_length")?.filter(|&n| n > 0) {
            Some(n) => Some(n),
            None => self.keys.count("context_length")?.filter(|&n| n > 0),
        };
        let pairs = self.pair_layout(n_dims, dk)?;
        if reach == Reach::Local && self.features.window.rope == WindowRope::Unscaled {
            // These tensors are claimed here even if only other layers, whose rotation may be wider, use them.
            for name in ["rope_freqs", "rope_factors_short", "rope_factors_long"] {
                for tensor in [format!("blk.{layer}.{name}.weight"), format!("{name}.weight")] {
                    let _ = self.tensors.claim(&tensor);
                }
            }
            let scaling = RopeScaling::Linear(1.0);
            return Ok(Rope {
                n_dims,
                pairs,
                base,
                scaling,
                factors: None,
                long_factors: None,
                magnitude: 1.0,
            });
        }
        let Divisors { factors, long_factors } = self.rope_divisors(layer, n_dims / 2, trained)?;
        let Scaled { scaling, magnitude } = self.rope_scaling(n_dims, base, trained)?;
        Ok(Rope { n_dims, pairs, base, scaling, factors, long_factors, magnitude })
    }

    fn pair_layout(&self, n_dims: usize, dk: usize) -> Result<PairLayout> {
        let sections = self.keys.counts("rope.dimension_sections")?.unwrap_or_default();
        let has_sections = matches!(sections[..], [first, second, ..] if first > 0 && second > 0);
        let is_half = match self.features.rope.pairs {
            RopePairs::InterleavedWhole if n_dims < dk => return Ok(PairLayout::HalfBetween),
            // If all of a head is rotated, the two are the same order.
            RopePairs::Interleaved | RopePairs::InterleavedWhole => false,
            RopePairs::Half => true,
            RopePairs::HalfIfSections => has_sections,
        };
        Ok(if is_half { PairLayout::Half } else { PairLayout::Interleaved })
    }

    fn rope_base(&self, reach: Reach, dk: usize) -> Result<f64> {
        let mut base = self.keys.nonzero("rope.freq_base")?.unwrap_or(10000.0);
        if reach == Reach::Local {
            base = match (self.keys.nonzero("rope.freq_base_swa")?, self.features.window.rope_base) {
                (Some(local), _) | (None, Some(local)) => local,
                (None, None) => base,
            };
        }
        if let Some(alpha) = self.keys.number("rope.scaling.alpha")?.filter(|&a| a > 0.0) {
            base *= alpha.powf(dk as f64 / (dk as f64 - 2.0));
        }
        Ok(base)
    }

    /// Returns the factor by which positions are stretched.
    fn rope_factor(&self) -> Result<f64> {
        match self.keys.nonzero("rope.scaling.factor")? {
            Some(factor) => Ok(factor),
            None => Ok(self.keys.nonzero("rope.scale_linear")?.unwrap_or(1.0)),
        }
    }

    /// Returns the factors of angles and scores that come with the scaling.
    pub(crate) fn rope_magnitudes(&self) -> Result<Magnitudes> {
        let kind = self.keys.text("rope.scaling.type")?.unwrap_or("linear");
        let factor = if matches!(kind, "linear" | "yarn") { self.rope_factor()? } else { 1.0 };
        let attn_factor = self.keys.nonzero("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let key = self.keys.nonzero("rope.scaling.yarn_log_multiplier")?;
        Ok(self.features.rope.yarn_mu.magnitudes(kind == "yarn", factor, key, attn_factor))
    }

    fn rope_scaling(&self, n_dims: usize, base: f64, trained: Option<usize>) -> Result<Scaled> {
        let keys = self.keys;
        let factor = self.rope_factor()?;
        let magnitude = self.rope_magnitudes()?.angles;
        match keys.text("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(Scaled { scaling: RopeScaling::Linear(1.0), magnitude }),
            // The factor of long rope applies beside its factors by frequency.
            "linear" | "longrope" => Ok(Scaled { scaling: RopeScaling::Linear(factor), magnitude }),
            "yarn" => {
                let betas = YarnBetas {
                    fast: keys.nonzero("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    slow: keys.nonzero("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                };
                let length = trained.ok_or_else(|| self.no_trained_length())?;
                let mut ramp = yarn_ramp(n_dims, base, length, betas);
                if keys.flag("rope.scaling.yarn_truncate")?.unwrap_or(self.features.rope.yarn_truncate) {
                    ramp = Ramp { low: ramp.low.floor(), high: ramp.high.ceil() };
                }
                let ramp = Ramp { low: ramp.low.max(0.0), high: ramp.high.min(n_dims as f64 - 1.0) };
                let ext_factor =
                    keys.number("rope.scaling.yarn_ext_factor")?.filter(|&e| e >= 0.0).unwrap_or(1.0);
                let scaling = RopeScaling::Yarn { factor, ramp, ext_factor };
                Ok(Scaled { scaling, magnitude })
            }
            other => Err(keys.unknown("rope.scaling.type", "none, linear, yarn or longrope", other)),
        }
    }

    fn rope_divisors(&mut self, layer: usize, len: usize, trained: Option<usize>) -> Result<Divisors> {
        let mut factors = self.layer_or_file(layer, "rope_freqs", len)?;
        if let Some(short) = self.layer_or_file(layer, "rope_factors_short", len)? {
            factors = Some(short);
        }
        let long_factors = match self.layer_or_file(layer, "rope_factors_long", len)? {
            Some(factors) => {
                let limit = trained.ok_or_else(|| self.no_trained_length())?;
                Some(LongFactors { limit, factors })
            }
            None => None,
        };
        Ok(Divisors { factors, long_factors })
    }

    /// Claims the divisors `blk.<layer>.<name>.weight`, else `<name>.weight`; there may be more than rotated pairs.
    fn layer_or_file(&mut self, layer: usize, name: &str, len: usize) -> Result<Option<Vector>> {
        match self.tensors.padded_vector(&format!("blk.{layer}.{name}.weight"), len)? {
            Some(own) => Ok(Some(own)),
            None => self.tensors.padded_vector(&format!("{name}.weight"), len),
        }
    }

    fn no_trained_length(&self) -> EngineError {
        self.keys.missing("rope.scaling.original_context_length")
    }
}

/// Returns YaRN's ramp (Peng et al. 2023, equation 17 ff.), neither rounded nor clamped to the head.
fn yarn_ramp(n_dims: usize, base: f64, length: usize, betas: YarnBetas) -> Ramp {
    let n = n_dims as f64;
    let dim = |beta: f64| n * (length as f64 / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
    Ramp { low: dim(betas.fast), high: dim(betas.slow) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_of_a_known_model() {
        // 64 rotated dimensions (32 pairs), a trained length of 4096 and base 150000.
        let Ramp { low, high } = yarn_ramp(64, 150_000.0, 4096, YarnBetas { fast: 32.0, slow: 1.0 });
        assert!((low - 8.092_779).abs() < 1e-5, "{low}");
        assert!((high - 17.397_976).abs() < 1e-4, "{high}");
    }
}
