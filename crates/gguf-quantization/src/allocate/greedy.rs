//! Choice of one candidate per row, within a number of bytes and with the least expected cost. Independent of tensors.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use gguf_core::GgmlType;

/// Candidate type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeCandidate {
    /// Type of the candidate.
    pub ty: GgmlType,
    /// Bytes of the tensor in the file, including padding.
    pub n_bytes: u64,
    /// Expected increase of the mean KLD (nats) with this type.
    pub cost: f64,
}

/// Maximum number of exchanges: each lowers the cost, and few are found after the upgrades.
const MAX_EXCHANGES: usize = 1000;
/// Minimum gain of an exchange as a share of the total cost; below it is rounding noise.
const LEAST_GAIN: f64 = 1e-9;

/// Chooses a candidate of each row, and returns its index.
///
/// Every row begins with the smallest candidate. Then the upgrade with the largest drop of cost per byte that still
/// fits is taken, until none fits. A row may skip candidates that are too costly for their size. The rest of the budget
/// goes to exchanges: one row gives bytes back, and another takes them together with the rest, if that lowers the cost.
/// The choice is deterministic: ties go to the earlier row.
///
/// Costs of a row may be in any order. Candidates whose cost is NaN are never upgraded to.
pub(super) fn choose(rows: &[Vec<TypeCandidate>], budget: u64) -> Result<Vec<usize>, u64> {
    let mut choice: Vec<usize> = rows.iter().map(|row| smallest(row)).collect();
    let used = total(rows, &choice);
    let Some(mut left) = budget.checked_sub(used) else { return Err(used) };
    upgrade(rows, &mut choice, &mut left);
    let all: f64 = rows.iter().zip(&choice).filter_map(|(row, &at)| row.get(at)).map(|c| c.cost).sum();
    for _ in 0..MAX_EXCHANGES {
        let Some((down, up, gain)) = best_exchange(rows, &choice, left) else { break };
        if gain <= all * LEAST_GAIN {
            break;
        }
        for (row, to) in [down, up] {
            // Bytes go back first: `down` comes before `up`.
            left =
                left.saturating_add(n_bytes(&rows[row], choice[row])).saturating_sub(n_bytes(&rows[row], to));
            choice[row] = to;
        }
        upgrade(rows, &mut choice, &mut left);
    }
    Ok(choice)
}

pub(super) fn total(rows: &[Vec<TypeCandidate>], choice: &[usize]) -> u64 {
    rows.iter().zip(choice).fold(0, |sum, (row, &at)| sum.saturating_add(n_bytes(row, at)))
}

fn n_bytes(row: &[TypeCandidate], at: usize) -> u64 {
    row.get(at).map_or(0, |candidate| candidate.n_bytes)
}

/// Index of the smallest candidate; of equal ones the one with the least cost.
fn smallest(row: &[TypeCandidate]) -> usize {
    let by_size =
        |a: &&TypeCandidate, b: &&TypeCandidate| a.n_bytes.cmp(&b.n_bytes).then(a.cost.total_cmp(&b.cost));
    let found = row.iter().min_by(by_size);
    found.and_then(|found| row.iter().position(|candidate| candidate == found)).unwrap_or(0)
}

/// Upgrade that waits for its turn.
struct Upgrade {
    gain: f64,
    row: usize,
    to: usize,
}

impl Ord for Upgrade {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Upgrade {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Upgrade {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Upgrade {}

/// Best upgrade of one row by drop per byte, among those that fit.
fn best_upgrade(rows: &[Vec<TypeCandidate>], row: usize, at: usize, left: u64) -> Option<Upgrade> {
    let now = rows[row].get(at)?;
    let mut best: Option<Upgrade> = None;
    for (to, candidate) in rows[row].iter().enumerate() {
        let more = candidate.n_bytes.saturating_sub(now.n_bytes);
        let drop = now.cost - candidate.cost;
        let is_upgrade = drop > 0.0 && candidate.n_bytes >= now.n_bytes && more <= left;
        let gain = drop / more as f64;
        if is_upgrade && best.as_ref().is_none_or(|best| gain > best.gain) {
            best = Some(Upgrade { gain, row, to });
        }
    }
    best
}

/// Takes upgrades until none fits.
fn upgrade(rows: &[Vec<TypeCandidate>], choice: &mut [usize], left: &mut u64) {
    let waiting = (0..rows.len()).filter_map(|row| best_upgrade(rows, row, choice[row], *left));
    let mut waiting: BinaryHeap<Upgrade> = waiting.collect();
    while let Some(next) = waiting.pop() {
        let more =
            n_bytes(&rows[next.row], next.to).saturating_sub(n_bytes(&rows[next.row], choice[next.row]));
        if let Some(rest) = left.checked_sub(more) {
            *left = rest;
            choice[next.row] = next.to;
        }
        // A row whose upgrade did not fit may have a smaller one.
        waiting.extend(best_upgrade(rows, next.row, choice[next.row], *left));
    }
}

/// Row, and the candidate to which it changes.
type TypeChange = (usize, usize);

/// Change of a row, with its drop of cost and its number of bytes.
struct Offer {
    n_bytes: u64,
    drop: f64,
    change: TypeChange,
}

/// Pair of a downgrade and an upgrade of two rows that fits and lowers the cost most.
fn best_exchange(
    rows: &[Vec<TypeCandidate>],
    choice: &[usize],
    left: u64,
) -> Option<(TypeChange, TypeChange, f64)> {
    let (mut downs, mut ups) = (Vec::new(), Vec::new());
    for (row, candidates) in rows.iter().enumerate() {
        let Some(now) = candidates.get(choice[row]) else { continue };
        for (to, other) in candidates.iter().enumerate() {
            let (drop, change) = (now.cost - other.cost, (row, to));
            if other.n_bytes < now.n_bytes {
                downs.push(Offer { n_bytes: now.n_bytes - other.n_bytes, drop, change });
            } else if drop > 0.0 {
                ups.push(Offer { n_bytes: other.n_bytes - now.n_bytes, drop, change });
            }
        }
    }
    ups.sort_by_key(|offer| offer.n_bytes);
    // For each prefix of the upgrades by size: the two best of different rows.
    let mut best: Vec<[Option<usize>; 2]> = Vec::with_capacity(ups.len());
    for (at, up) in ups.iter().enumerate() {
        let mut two = best.last().copied().unwrap_or([None; 2]);
        let row_of = |at: Option<usize>| at.map(|at| ups[at].change.0);
        let drop_of = |at: Option<usize>| at.map_or(0.0, |at| ups[at].drop);
        if up.drop > drop_of(two[0]) {
            if row_of(two[0]) != Some(up.change.0) {
                two[1] = two[0];
            }
            two[0] = Some(at);
        } else if row_of(two[0]) != Some(up.change.0) && up.drop > drop_of(two[1]) {
            two[1] = Some(at);
        }
        best.push(two);
    }
    let mut found: Option<(TypeChange, TypeChange, f64)> = None;
    for down in &downs {
        let space = left.saturating_add(down.n_bytes);
        let n_fit = ups.partition_point(|up| up.n_bytes <= space);
        let Some(two) = n_fit.checked_sub(1).and_then(|last| best.get(last)) else { continue };
        let other = two.iter().flatten().map(|&at| &ups[at]).find(|up| up.change.0 != down.change.0);
        let Some(up) = other else { continue };
        let gain = up.drop + down.drop;
        if gain > found.map_or(0.0, |found| found.2) {
            found = Some((down.change, up.change, gain));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_testkit::noise::Noise;

    /// Returns a table like that of a model: errors fall by about a factor of four with each bit, and tensors differ in
    /// size and weight.
    fn table(noise: &mut Noise, n_rows: usize) -> Vec<Vec<TypeCandidate>> {
        const TYPES: [(GgmlType, u64, f64); 5] = [
            (GgmlType::Q2K, 21, 70.0),
            (GgmlType::Q3K, 27, 20.0),
            (GgmlType::Q4K, 36, 4.5),
            (GgmlType::Q5K, 44, 1.2),
            (GgmlType::Q6K, 52, 0.3),
        ];
        let mut row = || {
            let (size, weight) = (4 + noise.below(60), 1.0 + noise.below(1000) as f64 / 10.0);
            let mut candidate = |&(ty, bits, error): &(GgmlType, u64, f64)| {
                let cost = weight * error * (0.8 + noise.below(40) as f64 / 100.0);
                TypeCandidate { ty, n_bytes: size * bits, cost }
            };
            TYPES.iter().map(&mut candidate).collect()
        };
        (0..n_rows).map(|_| row()).collect()
    }

    fn cost(rows: &[Vec<TypeCandidate>], choice: &[usize]) -> f64 {
        rows.iter().zip(choice).map(|(row, &at)| row[at].cost).sum()
    }

    /// Least cost of all choices that fit.
    fn brute_force(rows: &[Vec<TypeCandidate>], budget: u64) -> f64 {
        let Some((first, rest)) = rows.split_first() else { return 0.0 };
        let fits = first.iter().filter(|candidate| candidate.n_bytes <= budget);
        let costs = fits.map(|candidate| candidate.cost + brute_force(rest, budget - candidate.n_bytes));
        costs.fold(f64::INFINITY, f64::min)
    }

    fn bounds(rows: &[Vec<TypeCandidate>]) -> (u64, u64) {
        let of = |row: &Vec<TypeCandidate>| {
            row.iter().map(|c| c.n_bytes).min().zip(row.iter().map(|c| c.n_bytes).max())
        };
        rows.iter().filter_map(of).fold((0, 0), |sum, (least, most)| (sum.0 + least, sum.1 + most))
    }

    #[test]
    fn it_comes_near_to_the_best_of_all_choices() {
        let mut noise = Noise::new(1);
        let (mut worst, mut sum, mut n) = (1.0f64, 0.0, 0);
        for _ in 0..60 {
            let rows = table(&mut noise, 6);
            let (least, most) = bounds(&rows);
            for part in 1..8 {
                let budget = least + (most - least) * part / 8;
                let choice = choose(&rows, budget).unwrap();
                let ratio = cost(&rows, &choice) / brute_force(&rows, budget);
                worst = worst.max(ratio);
                sum += ratio;
                n += 1;
            }
        }
        let mean = sum / f64::from(n);
        assert!(worst < 1.5 && mean < 1.02, "worst {worst}, mean {mean}");
    }

    #[test]
    fn it_stays_within_the_budget_and_uses_it_up() {
        let mut noise = Noise::new(2);
        let rows = table(&mut noise, 200);
        let (least, most) = bounds(&rows);
        for part in 0..=50 {
            let budget = least + (most - least) * part / 50;
            let choice = choose(&rows, budget).unwrap();
            let used = total(&rows, &choice);
            assert!(used <= budget, "{used} of {budget}");
            assert!(used as f64 >= budget as f64 * 0.995, "{used} of {budget}");
        }
        let choice = choose(&rows, u64::MAX).unwrap();
        assert!(choice.iter().all(|&at| at == 4));
        assert_eq!(choose(&rows, least - 1), Err(least));
        assert_eq!(choose(&rows, least).unwrap(), vec![0; 200]);
    }

    /// More bytes never cost more, once they exceed the largest step.
    #[test]
    fn more_bytes_cost_less() {
        let mut noise = Noise::new(3);
        for _ in 0..10 {
            let rows = table(&mut noise, 40);
            let (least, most) = bounds(&rows);
            let step = rows.iter().map(|row| row[4].n_bytes - row[0].n_bytes).max().unwrap();
            let mut last = f64::INFINITY;
            for budget in (least..most + step).step_by(usize::try_from(step).unwrap()) {
                let found = cost(&rows, &choose(&rows, budget).unwrap());
                assert!(found <= last, "{found} {last} at {budget}");
                last = found;
            }
        }
    }

    #[test]
    fn useless_candidates_are_passed_over() {
        let candidate = |ty, n_bytes, cost| TypeCandidate { ty, n_bytes, cost };
        // Larger and worse, and one with a cost of NaN.
        let row = vec![
            candidate(GgmlType::Q2K, 10, 8.0),
            candidate(GgmlType::Q3K, 14, 9.0),
            candidate(GgmlType::Q4K, 20, f64::NAN),
            candidate(GgmlType::Q5K, 30, 1.0),
        ];
        assert_eq!(choose(std::slice::from_ref(&row), 29), Ok(vec![0]));
        assert_eq!(choose(std::slice::from_ref(&row), 30), Ok(vec![3]));
        assert_eq!(choose(&[row], 9), Err(10));
        assert_eq!(choose(&[], 0), Ok(vec![]));
        // The better one of the same size costs no bytes.
        let row = vec![candidate(GgmlType::Q4_0, 18, 2.0), candidate(GgmlType::Iq4Nl, 18, 1.0)];
        assert_eq!(choose(&[row], 18), Ok(vec![1]));
    }

    /// Upgrades alone would spend all bytes on the first row. The second row gains more with these bytes and the rest.
    #[test]
    fn exchanges_find_what_upgrades_miss() {
        let candidate = |n_bytes, cost| TypeCandidate { ty: GgmlType::Q4K, n_bytes, cost };
        let rows = [vec![candidate(1, 10.0), candidate(3, 4.0)], vec![candidate(1, 20.0), candidate(8, 1.0)]];
        assert_eq!(choose(&rows, 10), Ok(vec![0, 1]));
    }
}
