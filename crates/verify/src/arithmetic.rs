//! Arithmetic as part of what a figure means: figures of different arithmetic are not put together.

use serde::{Deserialize, Serialize};

use crate::Model;
use gguf_core::TensorMeta;
use gguf_engine::Arithmetic;

/// Returns the arithmetic that decides a model's figures; `None` if its weights are multiplied alike in every one.
pub(super) fn deciding(chosen: Arithmetic, tensors: &[TensorMeta]) -> Option<Arithmetic> {
    (Arithmetic::Integer.of_tensors(tensors) == Arithmetic::Integer).then_some(chosen)
}

/// Arithmetic that the weights of a verification's models get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunArithmetic {
    /// Products with the weights of the model.
    pub(super) model: Arithmetic,
    /// Products with the weights of the baseline, if there is one.
    pub(super) baseline: Arithmetic,
}

impl RunArithmetic {
    /// Arithmetic of a run in which `chosen` was asked for.
    pub(super) fn of(chosen: Arithmetic, model: &Model<'_>, baseline: Option<&Model<'_>>) -> Self {
        let own = |model: &Model<'_>| chosen.of_tensors(model.source.tensors());
        Self { model: own(model), baseline: baseline.map_or_else(Arithmetic::default, own) }
    }

    /// Returns what is computed in another arithmetic than in another run: the model's or the baseline's products, with
    /// the names of both arithmetics.
    pub(super) fn difference(self, other: Self) -> Option<(&'static str, &'static str, &'static str)> {
        let pairs = [("model", self.model, other.model), ("baseline", self.baseline, other.baseline)];
        let found = pairs.into_iter().find(|(_, own, other)| own != other);
        found.map(|(what, own, other)| (what, own.name(), other.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_engine::ArithmeticChoice;

    #[test]
    fn names_are_those_of_reports_and_options() {
        for arithmetic in [Arithmetic::F32, Arithmetic::Integer] {
            let name = arithmetic.name();
            assert_eq!(serde_json::to_value(arithmetic).unwrap(), name);
            assert_eq!(name.parse::<ArithmeticChoice>().map(Arithmetic::from), Ok(arithmetic));
        }
    }

    #[test]
    fn a_difference_names_the_model_first() {
        let (exact, fast) = (RunArithmetic::default(), Arithmetic::Integer);
        assert_eq!(exact.difference(exact), None);
        let baseline = RunArithmetic { baseline: fast, ..exact };
        assert_eq!(exact.difference(baseline), Some(("baseline", "f32", "integer")));
        let both = RunArithmetic { model: fast, baseline: fast };
        assert_eq!(both.difference(exact), Some(("model", "integer", "f32")));
    }
}
