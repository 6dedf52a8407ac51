//! Rotary positions: which layers rotate, the angles, the rotation.
//!
//! Angles are computed in f64 and rounded once, as cos and sin in f32: the error at position 4096 stays below one
//! unit in the last place of the table.

use crate::arch::graph::{Positions, RopeLocal, RopeLocalBase, RopeOn, RopePairs, YarnMu};
use crate::core::simd::{SimdLevel, VectorLoop};
use crate::engine::EngineError;
use crate::engine::build::model::Builder;
use crate::engine::plan::{Mask, Rope, RopeScaling};

impl Builder<'_> {
    /// The rotation of a layer, as an index into the plan's rotations.
    pub(crate) fn rope(&mut self, layer: usize, mask: Mask, dk: usize) -> Result<Option<usize>, EngineError> {
        let features = self.features;
        match features.positions {
            Positions::Rope => {}
            // Each position rotates its half of a head.
            Positions::Rope2d => return self.rope_index(layer, false, dk / 2).map(Some),
            // The depth tells the two sizes of Baichuan apart: nothing in the file does.
            Positions::ByDepth if self.hparams.need_count("block_count")? < 40 => {}
            _ => return Ok(None),
        }
        let windowed = mask != Mask::Causal;
        let on = match features.rope_on {
            RopeOn::All => true,
            RopeOn::Windowed | RopeOn::WindowedOrDenseLead => {
                let windows = self.hparams.count("attention.sliding_window")?.is_some_and(|n| n > 0);
                windowed || !windows
            }
            RopeOn::Pattern => self.hparams.layer_flag("attention.rope_pattern", layer)?.unwrap_or(true),
            RopeOn::Key => self.hparams.flag("rope.scaling.finetuned")?.unwrap_or(true),
            RopeOn::SkipEvery(n) => n == 0 || !(layer + 1).is_multiple_of(n as usize),
            RopeOn::SkipFirstOf(n) => n == 0 || !layer.is_multiple_of(n as usize),
        };
        if !on {
            return Ok(None);
        }
        self.rope_index(layer, windowed, dk).map(Some)
    }

    fn rope_index(&mut self, layer: usize, windowed: bool, dk: usize) -> Result<usize, EngineError> {
        let rope = self.rope_of(layer, windowed, dk)?;
        Ok(self.ropes.iter().position(|known| *known == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        }))
    }

    fn rope_of(&mut self, layer: usize, windowed: bool, dk: usize) -> Result<Rope, EngineError> {
        let features = self.features;
        let h = &self.hparams;
        let n_dims = h.count("rope.dimension_count")?.filter(|&n| n > 0).unwrap_or(dk);
        if n_dims > dk || n_dims % 2 != 0 {
            return Err(h.unknown(
                "rope.dimension_count",
                "even, at most the head's width",
                &n_dims.to_string(),
            ));
        }
        let sections = h.get("rope.dimension_sections").and_then(|v| v.as_array());
        let section = |at: usize| sections.and_then(|s| s.get(at)).and_then(|v| v.as_u64()).unwrap_or(0);
        let interleaved = match features.rope {
            RopePairs::Interleaved => true,
            RopePairs::Half => false,
            RopePairs::HalfIfSections => !(section(0) > 0 && section(1) > 0),
        };
        let mut base = h.nonzero("rope.freq_base")?.unwrap_or(10000.0);
        if windowed {
            base = match (h.nonzero("rope.freq_base_swa")?, features.rope_local_base) {
                (Some(local), _) | (None, RopeLocalBase::Number(local)) => local,
                (None, RopeLocalBase::Named(_)) => base,
            };
        }
        if let Some(alpha) = h.number("rope.scaling.alpha")?.filter(|&a| a > 0.0) {
            base *= alpha.powf(dk as f64 / (dk as f64 - 2.0));
        }
        let scaled = !windowed || features.rope_local == RopeLocal::Same;
        let factor = match h.nonzero("rope.scaling.factor")? {
            Some(factor) => factor,
            None => h.nonzero("rope.scale_linear")?.unwrap_or(1.0),
        };
        let trained = match h.count("rope.scaling.original_context_length")?.filter(|&n| n > 0) {
            Some(n) => Some(n),
            None => h.count("context_length")?.filter(|&n| n > 0),
        };
        let mut magnitude = h.nonzero("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let scaling = match (h.text("rope.scaling.type")?.unwrap_or("linear"), scaled) {
            (_, false) => {
                magnitude = 1.0;
                RopeScaling::Linear(1.0)
            }
            ("none" | "longrope", _) => RopeScaling::Linear(1.0),
            ("linear", _) => RopeScaling::Linear(factor),
            ("yarn", _) => {
                let length = trained.ok_or_else(|| EngineError::MissingKey {
                    key: h.key("rope.scaling.original_context_length"),
                })?;
                let fast = h.nonzero("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
                let slow = h.nonzero("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
                let mu = h.nonzero("rope.scaling.yarn_log_multiplier")?;
                let ms = |mu: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mu * factor.ln() + 1.0 };
                magnitude *= match (mu, features.yarn_mu) {
                    (None, _) | (_, YarnMu::None) => ms(1.0),
                    (Some(key), YarnMu::Tenth) => {
                        let mu = key / 0.1;
                        if mu == 1.0 { 1.0 } else { ms(mu) / ms(mu) }
                    }
                    (Some(mu), YarnMu::Plain) => ms(1.0) / ms(mu),
                };
                let truncate = h.flag("rope.scaling.yarn_truncate")?.unwrap_or(features.yarn_truncate);
                RopeScaling::Yarn {
                    factor,
                    ramp: yarn_ramp(n_dims, base, length, (fast, slow), truncate),
                    ext_factor: h
                        .number("rope.scaling.yarn_ext_factor")?
                        .filter(|&e| e >= 0.0)
                        .unwrap_or(1.0),
                }
            }
            (other, _) => {
                return Err(h.unknown("rope.scaling.type", "none, linear, yarn or longrope", other));
            }
        };
        let half = n_dims / 2;
        let own = format!("blk.{layer}.rope_freqs.weight");
        let (own_short, own_long) = (
            format!("blk.{layer}.rope_factors_short.weight"),
            format!("blk.{layer}.rope_factors_long.weight"),
        );
        let pick = |this: &Self, own: String, shared: &str| {
            if this.tensors.has(&own) { own } else { shared.to_owned() }
        };
        let freqs = pick(self, own, "rope_freqs.weight");
        let short = pick(self, own_short, "rope_factors_short.weight");
        let long = pick(self, own_long, "rope_factors_long.weight");
        let mut factors = self.tensors.vector(&freqs, half)?;
        let mut long_factors = None;
        if let Some(vector) = self.tensors.vector(&short, half)? {
            factors = Some(vector);
        }
        if let Some(vector) = self.tensors.vector(&long, half)? {
            let missing =
                || EngineError::MissingKey { key: self.hparams.key("rope.scaling.original_context_length") };
            long_factors = Some((trained.ok_or_else(missing)?, vector));
        }
        if !scaled {
            factors = None;
            long_factors = None;
        }
        Ok(Rope { n_dims, interleaved, base, scaling, factors, long_factors, magnitude })
    }
}

/// First and last dimension of yarn's ramp (Peng et al. 2023, equation 17 ff.).
fn yarn_ramp(n_dims: usize, base: f64, length: usize, betas: (f64, f64), truncate: bool) -> (f64, f64) {
    let n = n_dims as f64;
    let dim = |beta: f64| n * (length as f64 / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
    let (low, high) = (dim(betas.0), dim(betas.1));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    (low.max(0.0), high.min(n - 1.0))
}

/// cos and sin of every position and pair.
#[derive(Clone, Debug)]
pub(crate) struct RopeTable {
    half: usize,
    interleaved: bool,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Angle per position of every pair. `factors` are the divisors in force.
    fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let n = self.n_dims as f64;
        (0..self.n_dims / 2)
            .map(|i| {
                let factor = factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
                let theta = self.base.powf(-2.0 * i as f64 / n) / factor;
                match self.scaling {
                    RopeScaling::Linear(by) => theta / by,
                    RopeScaling::Yarn { factor, ramp: (low, high), ext_factor } => {
                        let ramp = (i as f64 - low) / (high - low).max(0.001);
                        let kept = (1.0 - ramp.clamp(0.0, 1.0)) * ext_factor;
                        theta * (kept + (1.0 - kept) / factor)
                    }
                }
            })
            .collect()
    }

    /// The table for positions `0 .. n_positions`.
    pub(crate) fn table(&self, n_positions: usize, factors: Option<&[f32]>) -> RopeTable {
        let frequencies = self.frequencies(factors);
        let half = frequencies.len();
        let mut cos = Vec::with_capacity(n_positions * half);
        let mut sin = Vec::with_capacity(n_positions * half);
        for position in 0..n_positions {
            for frequency in &frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push((c * self.magnitude) as f32);
                sin.push((s * self.magnitude) as f32);
            }
        }
        RopeTable { half, interleaved: self.interleaved, cos, sin }
    }
}

impl RopeTable {
    /// Rotates all heads of a row, `dk` wide each, in place. `position` must be below the table's length.
    pub(crate) fn rotate(&self, level: SimdLevel, row: &mut [f32], dk: usize, position: usize) {
        let angles = position * self.half..(position + 1) * self.half;
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        level.vectorize(Rotation { interleaved: self.interleaved, cos, sin, row, dk });
    }
}

/// The rotation of one token's heads.
struct Rotation<'a> {
    interleaved: bool,
    cos: &'a [f32],
    sin: &'a [f32],
    row: &'a mut [f32],
    dk: usize,
}

impl VectorLoop for Rotation<'_> {
    type Output = ();

    #[expect(clippy::inline_always, reason = "the loop must be compiled inside the level's function")]
    #[inline(always)]
    fn run(self) {
        let Self { interleaved, cos, sin, row, dk } = self;
        for head in row.chunks_mut(dk) {
            if interleaved {
                for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    let [a, b] = *pair;
                    *pair = [a * c - b * s, a * s + b * c];
                }
            } else {
                let (first, rest) = head.split_at_mut(cos.len());
                for (((a, b), &c), &s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(interleaved: bool, scaling: RopeScaling) -> Rope {
        let (factors, long_factors) = (None, None);
        Rope { n_dims: 8, interleaved, base: 10000.0, scaling, factors, long_factors, magnitude: 1.0 }
    }

    #[test]
    fn the_two_layouts_are_permutations_of_each_other_and_leave_the_tail() {
        let head: Vec<f32> = (0..10).map(|i| i as f32 - 3.5).collect();
        let mut pairs = head.clone();
        rope(true, RopeScaling::Linear(1.0)).table(6, None).rotate(SimdLevel::detect(), &mut pairs, 10, 5);
        let mut halves: Vec<f32> = [0, 2, 4, 6, 1, 3, 5, 7, 8, 9].map(|i| head[i]).to_vec();
        rope(false, RopeScaling::Linear(1.0)).table(6, None).rotate(SimdLevel::detect(), &mut halves, 10, 5);
        let back: Vec<f32> = [0, 4, 1, 5, 2, 6, 3, 7, 8, 9].map(|i| halves[i]).to_vec();
        assert_eq!(pairs, back);
        assert_eq!(pairs[8..], head[8..]);
        let angle = 5.0f64;
        let expected = f64::from(head[0]) * angle.cos() - f64::from(head[1]) * angle.sin();
        assert!((f64::from(pairs[0]) - expected).abs() < 1e-6);
    }

    #[test]
    fn scalings_at_their_ends() {
        let plain = rope(true, RopeScaling::Linear(1.0)).frequencies(None);
        let linear = rope(true, RopeScaling::Linear(4.0)).frequencies(None);
        let yarn = RopeScaling::Yarn { factor: 4.0, ramp: (1.0, 2.0), ext_factor: 1.0 };
        let yarn = rope(true, yarn).frequencies(None);
        assert_eq!(yarn[..2], plain[..2], "high frequencies are kept");
        assert_eq!(yarn[2..], linear[2..], "low ones are interpolated");
        let divided = rope(true, RopeScaling::Linear(1.0)).frequencies(Some(&[2.0; 4]));
        assert_eq!(divided[3], plain[3] / 2.0);
    }

    #[test]
    fn the_ramp_of_a_known_model() {
        // 32 dimensions of a head of 64 rotated over a trained length of 4096 at base 150000.
        let (low, high) = yarn_ramp(64, 150_000.0, 4096, (32.0, 1.0), false);
        assert!((low - 8.092_779).abs() < 1e-5, "{low}");
        assert!((high - 17.397_976).abs() < 1e-4, "{high}");
    }
}
