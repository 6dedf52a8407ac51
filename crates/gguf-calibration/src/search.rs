//! Search for the smallest choice of types whose measured divergence keeps to a limit.
//!
//! Costs propose, measurement decides. Choices by size form a line on which the limit is enclosed between one that keeps to
//! it and a slightly smaller one that does not. Single tensors of the former then get smaller types until that fails.

use gguf_quantization::TypeSet;

/// Relative difference of size at which the limit is enclosed.
const FINE: f64 = 0.01;
/// Relative difference of size of the result and of a smaller choice that fails.
const NEAR: f64 = 0.03;
/// Smallest saving of a step as a share of the file.
const LEAST_STEP: f64 = 0.001;
/// Choices that costs propose; then the sizes between are halved.
const MOST_GUESSES: usize = 6;
/// Failures without any success after which the largest choice is measured.
const MOST_FAILURES: usize = 3;
/// Maximum number of measured choices.
pub(super) const MOST_TRIES: usize = 24;

/// Choices of types to measure.
pub(super) trait Proposals {
    /// Choice of the least expected divergence for this size; `None` if no file is as small.
    fn within_bytes(&self, most_bytes: u64) -> Option<TypeSet>;
    /// Smallest choice of this expected divergence, or that of the least.
    fn within_kld(&self, most_kld: f64) -> TypeSet;
    /// Choices with a smaller type for one tensor, the best first.
    fn downgrades(&self, from: &TypeSet) -> Vec<TypeSet>;
}

/// Measured choices, in their order.
pub(super) struct Search<'p> {
    proposals: &'p dyn Proposals,
    limit: f64,
    tried: Vec<(TypeSet, f64)>,
    /// Failed choices with one smaller type.
    n_failed_steps: usize,
}

impl<'p> Search<'p> {
    pub(super) fn new(proposals: &'p dyn Proposals, limit: f64) -> Self {
        Self { proposals, limit, tried: Vec::new(), n_failed_steps: 0 }
    }

    /// Measures choices until the result is known: the smallest that keeps to the limit, if one does. `measure` returns
    /// what must not exceed the limit.
    pub(super) fn run<E>(
        mut self,
        measure: &mut dyn FnMut(&TypeSet) -> Result<f64, E>,
    ) -> Result<Option<TypeSet>, E> {
        while let Some(next) = self.next_by_size() {
            let found = measure(&next)?;
            self.tried.push((next, found));
        }
        while let Some(next) = self.next_step() {
            let found = measure(&next)?;
            self.n_failed_steps += usize::from(!self.keeps(found));
            self.tried.push((next, found));
        }
        Ok(self.kept().cloned())
    }

    /// Not a number never keeps to a limit.
    fn keeps(&self, found: f64) -> bool {
        found <= self.limit
    }

    /// Smallest choice that keeps to the limit.
    fn kept(&self) -> Option<&TypeSet> {
        let kept = self.tried.iter().filter(|(_, found)| self.keeps(*found));
        kept.map(|(set, _)| set).min_by_key(|set| set.file_bytes)
    }

    /// Size of the largest failed choice that is smaller than the one kept.
    fn failed_bytes(&self) -> Option<u64> {
        let most = self.kept().map_or(u64::MAX, |set| set.file_bytes);
        let failed = self.tried.iter().filter(|(set, found)| !self.keeps(*found) && set.file_bytes < most);
        failed.map(|(set, _)| set.file_bytes).max()
    }

    fn is_enclosed(&self, share: f64) -> bool {
        let sizes = self.kept().zip(self.failed_bytes());
        sizes.is_some_and(|(kept, failed)| kept.file_bytes as f64 <= failed as f64 * (1.0 + share))
    }

    /// Measured divergence as a multiple of the expected one, of the choice nearest to the limit.
    fn scale(&self) -> f64 {
        let distance = |found: f64| (found / self.limit).ln().abs();
        let known = self.tried.iter().filter(|(set, found)| *found > 0.0 && set.expected_kld > 0.0);
        let nearest = known.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        nearest.map_or(1.0, |(set, found)| found / set.expected_kld)
    }

    /// Next choice between the largest that fails and the smallest that keeps to the limit.
    fn next_by_size(&self) -> Option<TypeSet> {
        if self.is_enclosed(FINE) || self.tried.len() >= MOST_TRIES {
            return None;
        }
        let largest = self.proposals.within_bytes(u64::MAX)?;
        let least = self.proposals.within_kld(f64::INFINITY).file_bytes;
        let (kept, failed) = (self.kept().map(|set| set.file_bytes), self.failed_bytes());
        let low = failed.map_or(least, |n_bytes| n_bytes + 1);
        let high = kept.map_or(largest.file_bytes, |n_bytes| n_bytes - 1);
        if low > high {
            return None;
        }
        if kept.is_none() && self.tried.len() >= MOST_FAILURES {
            return Some(largest);
        }
        let guess = self.proposals.within_kld(self.limit / self.scale()).file_bytes as f64;
        // A guess next to a known choice tries to enclose the limit.
        let guess = kept.map_or(guess, |n_bytes| guess.min(n_bytes as f64 / (1.0 + FINE)));
        let guess = failed.map_or(guess, |n_bytes| guess.max(n_bytes as f64 * (1.0 + FINE))) as u64;
        let is_guessed = self.tried.len() < MOST_GUESSES;
        let wanted = if is_guessed { guess.clamp(low, high) } else { low + (high - low) / 2 };
        let fresh = |most_bytes| {
            let set = self.proposals.within_bytes(most_bytes)?;
            (low..=high).contains(&set.file_bytes).then_some(set)
        };
        fresh(wanted).or_else(|| fresh(high))
    }

    /// Next choice that differs from the one kept by a smaller type of one tensor.
    fn next_step(&self) -> Option<TypeSet> {
        let is_done =
            self.n_failed_steps > 0 && self.is_enclosed(NEAR) || self.n_failed_steps > MOST_FAILURES;
        if is_done || self.tried.len() >= MOST_TRIES {
            return None;
        }
        let kept = self.kept()?;
        let most_bytes = (kept.file_bytes as f64 * (1.0 - LEAST_STEP)) as u64;
        let is_new = |set: &TypeSet| !self.tried.iter().any(|(known, _)| known == set);
        let mut steps = self.proposals.downgrades(kept).into_iter();
        steps.find(|set| set.file_bytes <= most_bytes && is_new(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of the types, by their number.
    const BITS: [u64; 6] = [2, 3, 4, 5, 6, 8];

    /// Tensors with a size for each bit and a sensitivity.
    struct Tensors(Vec<(u64, f64)>);

    impl Tensors {
        fn cost(&self, at: usize, to: usize) -> f64 {
            self.0[at].1 * 0.25_f64.powi(i32::try_from(BITS[to]).unwrap())
        }

        fn set(&self, choice: Vec<usize>) -> TypeSet {
            let sizes = choice.iter().zip(&self.0).map(|(&to, (size, _))| BITS[to] * size);
            let costs = choice.iter().enumerate().map(|(at, &to)| self.cost(at, to));
            TypeSet { file_bytes: 1000 + sizes.sum::<u64>(), expected_kld: costs.sum(), choice }
        }

        /// All choices on the line of the best gains.
        fn line(&self) -> Vec<TypeSet> {
            let mut line = vec![self.set(vec![0; self.0.len()])];
            loop {
                let choice = line.last().unwrap().choice.clone();
                let gain = |&at: &usize| {
                    let to = choice[at] + 1;
                    let bits = BITS[to] - BITS[choice[at]];
                    (self.cost(at, to - 1) - self.cost(at, to)) / (bits * self.0[at].0) as f64
                };
                let rest = (0..self.0.len()).filter(|&at| choice[at] + 1 < BITS.len());
                let Some(best) = rest.max_by(|a, b| gain(a).total_cmp(&gain(b))) else { return line };
                let mut choice = choice.clone();
                choice[best] += 1;
                line.push(self.set(choice));
            }
        }
    }

    impl Proposals for Tensors {
        fn within_bytes(&self, most_bytes: u64) -> Option<TypeSet> {
            self.line().into_iter().rev().find(|set| set.file_bytes <= most_bytes)
        }

        fn within_kld(&self, most_kld: f64) -> TypeSet {
            let line = self.line();
            line.iter().find(|set| set.expected_kld <= most_kld).or(line.last()).cloned().unwrap()
        }

        fn downgrades(&self, from: &TypeSet) -> Vec<TypeSet> {
            let steps = (0..self.0.len()).filter(|&at| from.choice[at] > 0).map(|at| {
                let mut choice = from.choice.clone();
                choice[at] -= 1;
                self.set(choice)
            });
            let mut steps: Vec<TypeSet> = steps.collect();
            let score = |set: &TypeSet| {
                (from.file_bytes - set.file_bytes) as f64 / (set.expected_kld - from.expected_kld)
            };
            steps.sort_by(|a, b| score(b).total_cmp(&score(a)));
            steps
        }
    }

    /// Measured divergence: the expected one times a factor, with noise that depends on the choice.
    fn measured(set: &TypeSet, factor: f64, noise: f64) -> f64 {
        let mix =
            set.choice.iter().fold(7_u64, |mix, &to| mix.wrapping_mul(6_364_136_223_846_793_005) ^ to as u64);
        set.expected_kld * factor * (1.0 + noise * ((mix >> 40) as f64 / f64::from(1 << 24) - 0.5))
    }

    fn models() -> Vec<Tensors> {
        let layers = |n: usize, head: u64| {
            let own = (0..n).map(|at| (10 + (at as u64 * 7919) % 90, 1.0 + (at * 31 % 17) as f64));
            Tensors(own.chain([(head, 3.0)]).collect())
        };
        // Many small tensors, a few, a head as large as the rest, one tensor alone.
        vec![layers(60, 100), layers(8, 50), layers(20, 1500), layers(0, 500)]
    }

    #[test]
    fn a_promise_is_kept_and_hardly_larger_than_what_fails() {
        for model in models() {
            let line = model.line();
            for (factor, noise) in [(1.0, 0.0), (1.0, 0.2), (0.3, 0.1), (4.0, 0.1), (1.0, 0.6)] {
                // Steps between which a limit falls in another place of the line.
                for at in (0..24).step_by(3) {
                    let most = line[0].expected_kld * factor * 0.66_f64.powi(at);
                    let mut tried = Vec::new();
                    let found = Search::new(&model, most).run(&mut |set| {
                        let found = measured(set, factor, noise);
                        tried.push((set.clone(), found));
                        Ok::<_, ()>(found)
                    });
                    assert!(tried.len() <= MOST_TRIES);
                    let Some(found) = found.unwrap() else {
                        let largest = line.last().unwrap();
                        assert!(measured(largest, factor, noise) > most, "the largest keeps to {most}");
                        continue;
                    };
                    assert!(measured(&found, factor, noise) <= most);
                    let size = found.file_bytes;
                    let failed = tried.iter().filter(|(set, kld)| *kld > most && set.file_bytes < size);
                    let failed = failed.map(|(set, _)| set.file_bytes).max().unwrap_or(0);
                    // Sizes of single tensors can be further apart; then no other choice is between.
                    let between = model.within_bytes(size - 1).map_or(0, |set| set.file_bytes);
                    let is_near = size as f64 <= failed as f64 * (1.0 + NEAR);
                    assert!(is_near || failed >= between, "{size} {failed} {between} {factor} {noise} {at}");
                }
            }
        }
    }

    #[test]
    fn good_costs_need_few_measurements() {
        let model = &models()[0];
        for most in [0.02, 0.1, 0.5, 5.0] {
            let mut n_tried = 0;
            let found = Search::new(model, most).run(&mut |set| {
                n_tried += 1;
                Ok::<_, ()>(measured(set, 0.8, 0.05))
            });
            assert!(found.unwrap().is_some() && n_tried <= 12, "{most}: {n_tried}");
        }
    }

    #[test]
    fn what_cannot_be_reached_is_found_out_soon() {
        let mut n_tried = 0;
        let found = Search::new(&models()[0], 1e-9).run(&mut |set| {
            n_tried += 1;
            Ok::<_, ()>(set.expected_kld)
        });
        assert!(found.unwrap().is_none() && n_tried <= MOST_FAILURES + 1, "{n_tried}");
        let found = Search::new(&models()[0], 1.0).run(&mut |_| Ok::<_, ()>(f64::NAN));
        assert_eq!(found, Ok(None), "no number, no promise");
        assert_eq!(Search::new(&models()[0], 1.0).run(&mut |_| Err("stopped")), Err("stopped"));
    }
}
