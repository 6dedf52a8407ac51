//! Experts that the tokens of a run chose, layer by layer: coverage and evenness.
//!
//! For a layer with `E` experts of which expert `e` got `n_e` tokens, the share is `p_e = n_e / Σ n`. The evenness is
//! the normalized entropy `-Σ p_e ln p_e / ln E`: 1 if all experts got the same number of tokens, 0 if one got all.

pub(super) mod watch;

use serde::Serialize;

/// Routing of the tokens of a run by one layer's router.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerRouting {
    /// Layer number; none for a router outside the layers.
    pub layer: Option<usize>,
    /// Name of the router's tensor.
    pub router: String,
    /// Number of experts.
    #[serde(rename = "experts")]
    pub n_experts: usize,
    /// Number of experts of each token.
    #[serde(rename = "used")]
    pub n_used: u64,
    /// Number of tokens that were routed, scored or not; a layer that runs several times counts them each time.
    pub routed: u64,
    /// Number of tokens of each expert, in the order of experts.
    pub tokens: Vec<u64>,
    /// Experts that got no token.
    pub unseen: Vec<usize>,
    /// Share of the choices for the expert with the most tokens, 0 to 1.
    pub busiest: f64,
    /// Share of the choices for the expert with the fewest tokens.
    pub least: f64,
    /// Normalized entropy of the shares, 0 to 1; none for a single expert or no token.
    pub evenness: Option<f64>,
    /// Share of the choices that the baseline made too, 0 to 1; none unless it was run and has as many experts.
    pub agreement: Option<f64>,
}

/// Routing of all layers with experts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutingReport {
    /// Routing per layer, in the order of layers.
    pub layers: Vec<LayerRouting>,
}

impl LayerRouting {
    /// Computes the coverage of the experts from the number of tokens of each.
    pub fn new(
        layer: Option<usize>,
        router: String,
        routed: u64,
        tokens: Vec<u64>,
        agreement: Option<f64>,
    ) -> Self {
        let n_choices: u64 = tokens.iter().sum();
        let share = |n_tokens: Option<&u64>| n_tokens.copied().unwrap_or(0) as f64 / n_choices.max(1) as f64;
        let unseen = tokens.iter().enumerate().filter(|(_, n)| **n == 0).map(|(expert, _)| expert);
        Self {
            layer,
            router,
            n_experts: tokens.len(),
            n_used: n_choices.checked_div(routed).unwrap_or(0),
            routed,
            unseen: unseen.collect(),
            busiest: share(tokens.iter().max()),
            least: share(tokens.iter().min()),
            evenness: evenness(&tokens),
            agreement,
            tokens,
        }
    }

    fn n_choices(&self) -> u64 {
        self.tokens.iter().sum()
    }
}

/// Returns the normalized entropy of the shares; `None` for a single expert or no token.
fn evenness(tokens: &[u64]) -> Option<f64> {
    let all = tokens.iter().sum::<u64>() as f64;
    let entropy = tokens.iter().filter(|&&n| n > 0).fold(0.0, |entropy, &n| {
        let share = n as f64 / all;
        entropy - share * share.ln()
    });
    (tokens.len() > 1 && all > 0.0).then(|| entropy / (tokens.len() as f64).ln())
}

impl RoutingReport {
    /// Returns the number of experts of all layers.
    pub fn n_experts(&self) -> usize {
        self.layers.iter().map(|layer| layer.n_experts).sum()
    }

    /// Returns the number of experts of all layers that got no token.
    pub fn n_unseen(&self) -> usize {
        self.layers.iter().map(|layer| layer.unseen.len()).sum()
    }

    /// Returns the share of the choices of all layers that the baseline made too.
    pub fn agreement(&self) -> Option<f64> {
        let compared: Vec<(f64, f64)> = self
            .layers
            .iter()
            .filter_map(|layer| Some((layer.agreement?, layer.n_choices() as f64)))
            .collect();
        let all: f64 = compared.iter().map(|(_, n)| n).sum();
        (all > 0.0).then(|| compared.iter().map(|(share, n)| share * n).sum::<f64>() / all)
    }

    /// Returns the layer whose choices agree least with the baseline's.
    pub fn least_agreeing(&self) -> Option<&LayerRouting> {
        let compared = self.layers.iter().filter(|layer| layer.agreement.is_some());
        compared.min_by(|a, b| a.agreement.unwrap_or(1.0).total_cmp(&b.agreement.unwrap_or(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(tokens: &[u64], agreement: Option<f64>) -> LayerRouting {
        let routed = tokens.iter().sum::<u64>() / 2;
        LayerRouting::new(Some(0), String::new(), routed, tokens.to_vec(), agreement)
    }

    #[test]
    fn shares_and_evenness_of_known_counts() {
        let even = layer(&[5, 5, 5, 5], None);
        assert_eq!((even.busiest, even.least, even.n_used), (0.25, 0.25, 2));
        assert!((even.evenness.unwrap() - 1.0).abs() < 1e-12);
        let half = layer(&[10, 0, 10, 0], None);
        // Two of four: ln 2 / ln 4.
        assert!((half.evenness.unwrap() - 0.5).abs() < 1e-12);
        assert_eq!((half.unseen, half.least), (vec![1, 3], 0.0));
        assert_eq!(layer(&[8, 0], None).evenness, Some(0.0));
        assert_eq!((layer(&[8], None).evenness, layer(&[0, 0], None).evenness), (None, None));
    }

    #[test]
    fn agreement_is_weighed_by_choices() {
        let report = RoutingReport {
            layers: vec![layer(&[3, 3], Some(1.0)), layer(&[1, 1], Some(0.5)), layer(&[9, 0], None)],
        };
        assert_eq!(report.agreement(), Some(7.0 / 8.0));
        assert_eq!(report.least_agreeing().and_then(|layer| layer.agreement), Some(0.5));
        assert_eq!((report.n_experts(), report.n_unseen()), (6, 1));
        assert_eq!(RoutingReport { layers: vec![layer(&[9, 0], None)] }.agreement(), None);
    }
}
