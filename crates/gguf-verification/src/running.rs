//! Running figures of a measurement.

use std::time::Instant;

use crate::{Position, Window};

/// Maximum number of groups of a long run, and so of updates of the figures.
const GROUPS: usize = 16;

/// Number of tokens of a group that shows figures early without costing time. Groups are full batches, which decode
/// every weight of a layer as often as one large group would. Only the head is read once more per group.
pub(super) fn group_tokens(windows: &[Window], batch_tokens: usize) -> usize {
    let n_tokens: usize = windows.iter().map(|window| window.chunk.tokens.len()).sum();
    (n_tokens / GROUPS).max(1).next_multiple_of(batch_tokens.max(1))
}

/// Sums over the positions so far.
pub(super) struct RunningFigures {
    start: Instant,
    nll: RunningMoments,
    kld: RunningMoments,
}

/// Number of values, their sum and the sum of their squares.
#[derive(Clone, Copy, Debug, Default)]
struct RunningMoments {
    n: f64,
    sum: f64,
    squares: f64,
}

impl RunningMoments {
    fn add(&mut self, x: f64) {
        self.n += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    /// Returns the mean and its standard error.
    fn mean(self) -> (f64, f64) {
        let mean = self.sum / self.n;
        let variance = (self.squares / self.n - mean * mean).max(0.0);
        (mean, if self.n > 1.0 { (variance / (self.n - 1.0)).sqrt() } else { 0.0 })
    }
}

impl RunningFigures {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), nll: RunningMoments::default(), kld: RunningMoments::default() }
    }

    pub(super) fn add(&mut self, positions: &[Position]) {
        for position in positions.iter().filter(|position| position.is_scored) {
            self.nll.add(position.score.nll);
            if let Some(reference) = &position.reference {
                self.kld.add(reference.kld);
            }
        }
    }

    /// Returns the figures as text, after `n_tokens` tokens were run.
    pub(super) fn text(&self, n_tokens: usize) -> String {
        self.text_at(n_tokens, self.start.elapsed().as_secs_f64())
    }

    fn text_at(&self, n_tokens: usize, seconds: f64) -> String {
        let mut parts = Vec::new();
        if self.nll.n > 0.0 {
            let (mean, stderr) = self.nll.mean();
            let ppl = mean.exp();
            parts.push(format!("perplexity {ppl:.4} ± {:.4} over {:.0} tokens", ppl * stderr, self.nll.n));
        }
        if self.kld.n > 0.0 {
            let (mean, stderr) = self.kld.mean();
            parts.push(format!("mean KLD {mean:.6} ± {stderr:.6}"));
        }
        parts.push(format!("{:.0} tokens/s", n_tokens as f64 / seconds.max(1e-9)));
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Divergence, Perplexity, Reference};
    use gguf_engine::{TokenChunk, TokenScore};

    #[test]
    fn figures_so_far_are_those_of_the_report() {
        let score = |nll| TokenScore { nll, top: 0 };
        let position = |at: usize| Position {
            prompt: 0,
            at,
            token: 0,
            score: score(1.0 + at as f64 / 7.0),
            reference: Some(Reference { score: score(1.0), kld: 0.01 * at as f64 }),
            is_scored: at != 3,
        };
        let positions: Vec<Position> = (0..9).map(position).collect();
        let mut running = RunningFigures::new();
        running.add(&positions[..4]);
        running.add(&positions[4..]);
        let p = Perplexity::of(positions.iter()).unwrap();
        let d = Divergence::of(&positions).unwrap().kld.estimate();
        assert_eq!(
            running.text_at(100, 2.0),
            format!(
                "perplexity {:.4} ± {:.4} over 8 tokens, mean KLD {:.6} ± {:.6}, 50 tokens/s",
                p.value, p.stderr, d.value, d.stderr
            )
        );
        assert_eq!(RunningFigures::new().text_at(100, 2.0), "50 tokens/s");
    }

    #[test]
    fn groups_are_full_batches() {
        let windows = |n: usize| {
            let chunk = TokenChunk { tokens: vec![0; 512], rows: 0..511, n_source: 0 };
            let window = Window { prompt: 0, start: 0, chunk, targets: Vec::new(), scored: 0..0 };
            vec![window; n]
        };
        assert_eq!(group_tokens(&windows(3), 8192), 8192);
        assert_eq!(group_tokens(&windows(200), 8192), 8192);
        assert_eq!(group_tokens(&windows(600), 8192), 3 * 8192);
        assert_eq!(group_tokens(&[], 8192), 8192);
    }
}
