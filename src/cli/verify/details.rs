//! Per-position results of a run, reduced to what a page shows.

use serde::Serialize;

use crate::core::text::{escape, escape_bytes};
use crate::gguf::Value;
use crate::verify::{Model, Position, Prompt, Verification};

/// Number of histogram bars per factor of ten.
const BINS_PER_DECADE: i32 = 4;
/// Power of ten below which divergences are rounding errors and get no bar.
const LOWEST_DECADE: i32 = -9;
/// Number of tokens shown before a worst token.
const CONTEXT_TOKENS: usize = 24;

/// Quantiles that are shown: name and share of the tokens.
const QUANTILES: [(&str, f64); 8] = [
    ("10 %", 0.1),
    ("25 %", 0.25),
    ("50 %", 0.5),
    ("75 %", 0.75),
    ("90 %", 0.9),
    ("95 %", 0.95),
    ("99 %", 0.99),
    ("99.9 %", 0.999),
];

/// Data of one model that are kept for the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    /// `general.name`.
    pub(super) name: Option<String>,
    pub(super) spread: Option<DivergenceSpread>,
    pub(super) worst: Vec<Worst>,
}

/// Distribution of the divergence over the tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DivergenceSpread {
    /// Quantiles in ascending order, the largest value last.
    pub(super) quantiles: Vec<Quantile>,
    /// Histogram bars in ascending order.
    pub(super) bins: Vec<Bin>,
    /// Number of tokens in no bar: divergence below the first bar (rounding), or not finite.
    pub(super) below: usize,
    pub(super) tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Quantile {
    pub(super) name: &'static str,
    pub(super) kld: f64,
}

/// Number of tokens with a divergence from `10^from` to `10^to`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Bin {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) tokens: usize,
}

/// Token at which model and baseline differ most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Worst {
    pub(super) prompt: usize,
    pub(super) at: usize,
    pub(super) kld: f64,
    /// Text before it.
    pub(super) context: String,
    /// Token that follows in the text.
    pub(super) token: String,
    pub(super) baseline_top: String,
    pub(super) model_top: String,
    /// Probability that the baseline gives to `token`, 0 to 1.
    pub(super) baseline_p: Option<f64>,
    pub(super) model_p: Option<f64>,
}

impl Details {
    /// Collects the details of a model that was verified.
    pub(super) fn of(model: &Model<'_>, verification: &Verification) -> Self {
        let Verification { report, prompts, positions, .. } = verification;
        let text = |tokens: &[u32]| match model.encoder {
            Ok(encoder) => escape_bytes(&encoder.decode(tokens)),
            Err(_) => tokens.iter().map(|token| format!("[{token}]")).collect::<Vec<_>>().concat(),
        };
        let worst = report.divergence.iter().flat_map(|divergence| &divergence.worst).map(|worst| {
            let position = positions.iter().find(|p| p.prompt == worst.prompt && p.at == worst.at);
            Worst {
                prompt: worst.prompt,
                at: worst.at,
                kld: worst.kld,
                context: text(before(prompts, worst.prompt, worst.at)),
                token: text(&[worst.token]),
                baseline_top: text(&[worst.baseline_top]),
                model_top: text(&[worst.model_top]),
                baseline_p: position.and_then(|p| p.reference).map(|r| (-r.score.nll).exp()),
                model_p: position.map(|p| (-p.score.nll).exp()),
            }
        });
        Self {
            name: model
                .metadata
                .get("general.name")
                .and_then(Value::as_str)
                .map(|name| escape(name).into_owned()),
            spread: DivergenceSpread::of(positions),
            worst: worst.collect(),
        }
    }
}

fn before(prompts: &[Prompt], prompt: usize, at: usize) -> &[u32] {
    let tokens = prompts.get(prompt).map(|prompt| prompt.tokens.as_slice()).unwrap_or_default();
    tokens.get(at.saturating_sub(CONTEXT_TOKENS)..at).unwrap_or_default()
}

impl DivergenceSpread {
    /// Distribution over the scored positions that have a reference; `None` if there are none.
    fn of(positions: &[Position]) -> Option<Self> {
        let scored = positions.iter().filter(|position| position.is_scored);
        Self::of_values(scored.filter_map(|position| Some(position.reference?.kld)).collect())
    }

    pub(super) fn of_values(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let largest = *values.last()?;
        let tokens = values.len();
        let mut quantiles: Vec<Quantile> =
            QUANTILES.iter().map(|&(name, share)| Quantile { name, kld: quantile(&values, share) }).collect();
        quantiles.push(Quantile { name: "largest", kld: largest });
        let index = |kld: f64| (kld.log10() * f64::from(BINS_PER_DECADE)).floor() as i32;
        let lowest = LOWEST_DECADE * BINS_PER_DECADE;
        // NaN, infinities, zero and negative values are in no bar.
        let indices: Vec<i32> = values
            .iter()
            .filter(|kld| kld.is_finite() && **kld > 0.0)
            .map(|&kld| index(kld))
            .filter(|&at| at >= lowest)
            .collect();
        let bins = match (indices.first(), indices.last()) {
            (Some(&first), Some(&last)) => (first..=last)
                .map(|at| Bin {
                    from: f64::from(at) / f64::from(BINS_PER_DECADE),
                    to: f64::from(at + 1) / f64::from(BINS_PER_DECADE),
                    tokens: indices.iter().filter(|&&own| own == at).count(),
                })
                .collect(),
            _ => Vec::new(),
        };
        Some(Self { quantiles, below: tokens - indices.len(), bins, tokens })
    }

    pub(super) fn quantile(&self, name: &str) -> Option<f64> {
        self.quantiles.iter().find(|quantile| quantile.name == name).map(|quantile| quantile.kld)
    }
}

/// Value at a share of sorted values, interpolated between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let low = at.floor() as usize;
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(a), Some(b)) => a + (at - low as f64) * (b - a),
        (Some(&a), None) => a,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_in_one_bar_or_below_all() {
        let values = vec![0.0, -1e-12, 1e-12, 1e-4, 2e-4, 0.03, 0.5, f64::NAN];
        let spread = DivergenceSpread::of_values(values).unwrap();
        let counted: usize = spread.bins.iter().map(|bin| bin.tokens).sum();
        assert_eq!((counted, spread.below, spread.tokens), (4, 4, 8));
        for pair in spread.bins.windows(2) {
            assert_eq!(pair[0].to, pair[1].from);
        }
        let (first, last) = (spread.bins.first().unwrap(), spread.bins.last().unwrap());
        assert!(first.from <= -4.0 && last.to > 0.5f64.log10(), "{first:?} {last:?}");
        assert!(DivergenceSpread::of_values(Vec::new()).is_none());
    }

    #[test]
    fn equal_values_are_one_bar_and_zeros_none() {
        assert_eq!(DivergenceSpread::of_values(vec![0.5; 3]).unwrap().bins.len(), 1);
        let zeros = DivergenceSpread::of_values(vec![0.0; 3]).unwrap();
        assert_eq!((zeros.bins.len(), zeros.below, zeros.quantile("50 %")), (0, 3, Some(0.0)));
    }
}
