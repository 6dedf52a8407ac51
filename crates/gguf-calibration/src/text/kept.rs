//! Kinds of text with kept statistics: their tokens are not run again.

use crate::{CalibrateError, CalibrationText, Statistics, TextKind};

impl CalibrationText {
    /// Builds the kinds of text that statistics were collected over, without their calibration sequences but with the
    /// held-out ones.
    ///
    /// `chosen` names the kinds to use; all are used if it is empty. Text that the model wrote weighs as much as the
    /// other used kinds together, as in [`CalibrationText::with_self`].
    pub fn of_statistics(statistics: &Statistics, chosen: &[String]) -> Result<Self, CalibrateError> {
        let mut kinds = statistics.kinds();
        if let Some(name) = chosen.iter().find(|name| kinds.iter().all(|kind| kind.name != **name)) {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
            return Err(CalibrateError::NoKind { name: name.clone(), known: names.join("`, `") });
        }
        let n_all = kinds.len();
        kinds.retain(|kind| chosen.is_empty() || chosen.contains(&kind.name));
        let is_whole = kinds.len() == n_all;
        let n_given = kinds.iter().filter(|kind| kind.seed.is_none()).count();
        let weigh = |weight: u32, seed: Option<u64>| match seed {
            Some(_) if !is_whole => u32::try_from(n_given.max(1)).unwrap_or(u32::MAX),
            _ => weight,
        };
        let kind = |kind: crate::StatisticsKind| {
            let n_run = usize::try_from(kind.n_tokens).unwrap_or(usize::MAX);
            TextKind {
                windows: Vec::new(),
                n_run,
                n_available: n_run,
                weight: weigh(kind.weight, kind.seed),
                seed: kind.seed,
                held_out: kind.held_out,
                name: kind.name,
            }
        };
        let mut text = Self::empty(statistics.n_ctx());
        text.kinds = kinds.into_iter().map(kind).collect();
        Ok(text)
    }

    /// Weight of each kind of the statistics: 0 for kinds that this text does not have.
    pub(crate) fn weights_of(&self, statistics: &Statistics) -> Vec<f64> {
        let mut own = self.kinds.iter().peekable();
        let weight = |kind: crate::StatisticsKind| {
            own.next_if(|own| own.name == kind.name).map_or(0.0, |own| f64::from(own.weight))
        };
        statistics.kinds().into_iter().map(weight).collect()
    }
}
