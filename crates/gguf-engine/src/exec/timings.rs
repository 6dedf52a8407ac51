//! Time of a run by kind of work, summed over all threads as tasks end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Rows of the embedding.
    Embed,
    /// Norms and sums along the residual stream.
    Norm,
    /// Weights read and decoded into panels.
    Decode,
    /// Products with weights.
    Product,
    /// Activations and biases.
    Activation,
    /// Norm and rotation of queries and keys.
    Rotate,
    /// The two products of attention.
    Attention,
    /// Softmax of attention.
    Softmax,
    /// Recurrent states and convolutions.
    Scan,
    /// Routing to experts, gathering and scattering their rows.
    Route,
    /// Reduction of logits to scores.
    Fold,
}

impl WorkKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Embed,
        Self::Norm,
        Self::Decode,
        Self::Product,
        Self::Activation,
        Self::Rotate,
        Self::Attention,
        Self::Softmax,
        Self::Scan,
        Self::Route,
        Self::Fold,
    ];

    /// Returns the name for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Norm => "norms, residual sums",
            Self::Decode => "decoding weights",
            Self::Product => "products with weights",
            Self::Activation => "activations, biases",
            Self::Rotate => "rotation of q and k",
            Self::Attention => "products of attention",
            Self::Softmax => "softmax",
            Self::Scan => "scan",
            Self::Route => "routing",
            Self::Fold => "log-softmax of logits",
        }
    }
}

/// Sum of the time of all threads, by kind of work.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    nanos: [AtomicU64; WorkKind::ALL.len()],
}

impl Clock {
    /// Does a piece of work and adds its time. Pieces should take microseconds, so that reading the clock costs little
    /// in comparison.
    pub(crate) fn time<R>(&self, phase: WorkKind, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos[phase as usize].fetch_add(nanos, Ordering::Relaxed);
        result
    }

    /// Returns the time of every kind of work.
    pub(crate) fn read(&self) -> [(WorkKind, Duration); WorkKind::ALL.len()] {
        WorkKind::ALL
            .map(|phase| (phase, Duration::from_nanos(self.nanos[phase as usize].load(Ordering::Relaxed))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_booked_under_its_phase() {
        let clock = Clock::default();
        let result = clock.time(WorkKind::Softmax, || {
            std::thread::sleep(Duration::from_millis(2));
            7
        });
        assert_eq!(result, 7);
        for (phase, time) in clock.read() {
            assert_eq!(time >= Duration::from_millis(2), phase == WorkKind::Softmax, "{}", phase.name());
        }
    }
}
