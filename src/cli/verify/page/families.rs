//! Page data of models that are not dense text predictors: encoders, models with experts.

use serde::Serialize;

use crate::cli::verify::experts;
use crate::core::text::escape;
use crate::verify::{EmbeddingReport, HealthyVectors, LayerRouting, RoutingReport};

/// Figures of an encoder's vectors.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VectorData {
    pub(super) texts: usize,
    pub(super) tokens: usize,
    pub(super) width: usize,
    pub(super) pooling: &'static str,
    /// Cosines with the baseline's vectors.
    pub(super) cosine: Option<CosineData>,
    /// Error of the scores, for models that score texts.
    pub(super) score: Option<ScoreData>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CosineData {
    pub(super) mean: f64,
    pub(super) worst: f64,
    /// Number of the prompt with the worst cosine.
    pub(super) prompt: usize,
    /// Share of texts with the same nearest neighbour, 0 to 1.
    pub(super) same_neighbour: Option<f64>,
    pub(super) rank_correlation: Option<f64>,
    /// Mean cosine of a healthy file of these types.
    pub(super) healthy_mean: Option<f64>,
    pub(super) healthy_worst: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ScoreData {
    /// Error as a share of the spread of the baseline's scores.
    pub(super) error: f64,
    /// Error of a healthy file of these types.
    pub(super) healthy: Option<f64>,
}

impl VectorData {
    pub(super) fn new(report: &EmbeddingReport) -> Self {
        let &EmbeddingReport { texts, tokens, width, pooling, ref against } = report;
        let healthy = |of: fn(&HealthyVectors) -> Option<f64>| {
            against.as_ref().and_then(|against| of(against.healthy.as_ref()?))
        };
        let score = against.as_ref().and_then(|against| against.score_error);
        let score = score.map(|error| ScoreData { error, healthy: healthy(|healthy| healthy.score_error) });
        // The cosine of a single score is only its sign.
        let cosine = against.as_ref().filter(|_| score.is_none()).map(|against| CosineData {
            mean: against.mean_cosine,
            worst: against.worst_cosine,
            prompt: against.worst_prompt,
            same_neighbour: against.same_neighbour,
            rank_correlation: against.rank_correlation,
            healthy_mean: healthy(|healthy| Some(healthy.mean_cosine)),
            healthy_worst: healthy(|healthy| Some(healthy.worst_cosine)),
        });
        Self { texts, tokens, width, pooling, cosine, score }
    }
}

/// Routing of the tokens to experts.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ExpertData {
    /// Summary of the experts that were reached.
    pub(super) summary: String,
    /// Share of the choices that equal the baseline's, 0 to 1.
    pub(super) agreement: Option<f64>,
    pub(super) layers: Vec<ExpertLayer>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ExpertLayer {
    pub(super) name: String,
    pub(super) experts: usize,
    pub(super) used: u64,
    pub(super) routed: u64,
    pub(super) unseen: usize,
    pub(super) busiest: f64,
    pub(super) least: f64,
    pub(super) evenness: Option<f64>,
    pub(super) agreement: Option<f64>,
}

impl ExpertData {
    pub(super) fn new(routing: &RoutingReport) -> Self {
        let layer = |layer: &LayerRouting| ExpertLayer {
            name: layer.layer.map_or_else(|| escape(&layer.router).into_owned(), |layer| layer.to_string()),
            experts: layer.n_experts,
            used: layer.n_used,
            routed: layer.routed,
            unseen: layer.unseen.len(),
            busiest: layer.busiest,
            least: layer.least,
            evenness: layer.evenness,
            agreement: layer.agreement,
        };
        Self {
            summary: escape(&experts::summary(routing)).into_owned(),
            agreement: routing.agreement(),
            layers: routing.layers.iter().map(layer).collect(),
        }
    }
}
