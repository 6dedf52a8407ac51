//! Rate and remaining time of a stage, smoothed so that neither jumps.

/// Seconds before rate and time are reported.
const PATIENCE: f64 = 3.0;
/// Minimum number of seconds between two samples.
const STEP: f64 = 0.5;
/// Minimum number of seconds over which the rate is averaged. In a long stage it is the last third.
const WINDOW: f64 = 10.0;

/// Rate and remaining time of a stage. Times are seconds since it began.
#[derive(Debug, Default)]
pub(super) struct Pace {
    at: f64,
    done: f64,
    rate: f64,
    left: Option<f64>,
}

impl Pace {
    /// Records how much is done at a time.
    pub(super) fn look(&mut self, at: f64, done: u64, total: u64) {
        let (span, done, total) = (at - self.at, done as f64, total as f64);
        if span < STEP {
            return;
        }
        let now = (done - self.done) / span;
        let weight = 1.0 - (-span / (at / 3.0).max(WINDOW)).exp();
        self.rate = if at <= WINDOW { done / at } else { self.rate + weight * (now - self.rate) };
        (self.at, self.done) = (at, done);
        if self.rate <= 0.0 || at < PATIENCE {
            return;
        }
        let found = (total - done).max(0.0) / self.rate;
        self.left = Some(match self.left {
            None => found,
            // The last estimate counts down and is moved towards the new one.
            Some(shown) => {
                let shown = (shown - span).max(0.0);
                shown + (found - shown) * (1.0 - (-span / (found / 10.0).clamp(2.0, 30.0)).exp())
            }
        });
    }

    /// Amount per second, once it is known.
    pub(super) fn rate(&self) -> Option<f64> {
        Some(self.rate).filter(|&rate| rate > 0.0 && self.at >= PATIENCE)
    }

    /// Remaining seconds, once they are known.
    pub(super) fn left(&self) -> Option<f64> {
        self.left
    }
}

/// Rounds a time span for people: `a few seconds`, `about 40 s`, `about 3 min`, `about 1 h 20 min`, `about 30 h`.
pub(super) fn rough(seconds: f64) -> String {
    let up_to = |unit: f64| (seconds / unit).ceil() * unit;
    match seconds {
        ..10.0 => "a few seconds".to_owned(),
        ..50.0 => format!("about {} s", up_to(10.0)),
        ..1_140.0 => format!("about {} min", up_to(60.0) / 60.0),
        ..3_300.0 => format!("about {} min", up_to(300.0) / 60.0),
        ..36_000.0 => {
            let minutes = (up_to(600.0) / 60.0) as u64;
            match minutes % 60 {
                0 => format!("about {} h", minutes / 60),
                rest => format!("about {} h {rest} min", minutes / 60),
            }
        }
        _ => format!("about {:.0} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_round() {
        for (seconds, expected) in [
            (0.0, "a few seconds"),
            (12.0, "about 20 s"),
            (49.0, "about 50 s"),
            (51.0, "about 1 min"),
            (170.0, "about 3 min"),
            (1_500.0, "about 25 min"),
            (3_500.0, "about 1 h"),
            (4_300.0, "about 1 h 20 min"),
            (100_000.0, "about 28 h"),
        ] {
            assert_eq!(rough(seconds), expected);
        }
    }

    #[test]
    fn nothing_is_said_before_it_is_known() {
        let mut pace = Pace::default();
        pace.look(1.0, 0, 100);
        pace.look(2.0, 10, 100);
        assert_eq!((pace.rate(), pace.left()), (None, None));
        pace.look(4.0, 20, 100);
        assert_eq!(pace.left(), Some(16.0));
        // A stage in which nothing is done yet has no rate, rather than a rate of zero.
        let mut idle = Pace::default();
        idle.look(60.0, 0, 100);
        assert_eq!((idle.rate(), idle.left()), (None, None));
    }

    #[test]
    fn a_halt_does_not_make_the_time_jump() {
        let mut pace = Pace::default();
        let mut done = 0;
        let mut before: Option<f64> = None;
        for second in 1..120u32 {
            // Nothing is done during five of every 20 seconds.
            if second % 20 < 15 {
                done += 10;
            }
            pace.look(f64::from(second), done, 1500);
            if let (Some(shown), Some(left)) = (before, pace.left()) {
                let counted = (shown - 1.0).max(0.0);
                assert!((left - counted).abs() < 0.1 * counted + 5.0, "{second}: {shown} then {left}");
            }
            before = pace.left();
        }
    }
}
