//! JSON form of the comparison; names are stable.

use serde_json::{Value, json};

use crate::weights::{RatioHistogram, TensorWeights, WeightOutcome, WeightReport};

impl WeightReport {
    /// Returns all tensors with their figures as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let count = |outcome| self.with(outcome).count();
        json!({
            "reproduced": count(WeightOutcome::Reproduced),
            "within": count(WeightOutcome::Within),
            "damaged": count(WeightOutcome::Damaged),
            "unjudged": count(WeightOutcome::Unjudged),
            "histogram_ends": RatioHistogram::ends(),
            "tensors": self.tensors.iter().map(TensorWeights::to_json).collect::<Vec<_>>(),
        })
    }
}

impl TensorWeights {
    fn to_json(&self) -> Value {
        let blocks = self.bad_blocks.first.iter().map(|block| {
            json!({ "row": block.row, "block": block.block, "error": block.error, "ratio": block.ratio })
        });
        let rows = self.bad_rows.first.iter().map(
            |row| json!({ "row": row.row, "error": row.error, "ratio": row.ratio, "factor": row.factor }),
        );
        json!({
            "name": self.name,
            "baseline_name": self.baseline_name,
            "layer": self.layer,
            "role": self.role,
            "type": self.ty.name(),
            "baseline_type": self.baseline_ty.name(),
            "outcome": self.outcome.name(),
            "error": self.error,
            "own_error": self.own_error,
            "ratio": self.ratio,
            "blocks": self.blocks,
            "equal_blocks": self.equal_blocks,
            "histogram": self.ty.is_quantized().then_some(self.histogram.counts),
            "bad_blocks": self.bad_blocks.count,
            "first_bad_blocks": blocks.collect::<Vec<_>>(),
            "bad_rows": self.bad_rows.count,
            "first_bad_rows": rows.collect::<Vec<_>>(),
            "cause": self.cause.as_ref().map(|cause| json!({ "kind": cause.name(), "text": cause.to_string() })),
        })
    }
}
