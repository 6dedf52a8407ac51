//! Groups of matrices that are multiplied with the same rows. They are found while a model runs, by the rows and not by
//! the names. Matrices that have met the same rows in every batch share their sums. A matrix that meets other rows
//! continues with a copy.

use std::collections::{BTreeMap, BTreeSet};

use crate::MomentSums;
use gguf_engine::Matrix;

/// Matrix of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MatrixKey {
    /// Index of its tensor.
    pub(super) tensor: usize,
    /// Index in a stack of experts.
    pub(super) expert: Option<usize>,
}

impl MatrixKey {
    pub(super) fn of(matrix: &Matrix) -> Self {
        Self { tensor: matrix.tensor, expert: matrix.expert }
    }
}

type RowsDigest = [u64; 4];

/// Digest of rows: it always changes if one number changes, and almost certainly if several do.
fn digest(x: &[f32]) -> RowsDigest {
    const FACTORS: [u64; 4] =
        [0x517c_c1b7_2722_0a95, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
    let mut lanes = [x.len() as u64; 4];
    let (eights, rest) = x.as_chunks::<8>();
    let mut take = |eight: &[f32; 8]| {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let word = u64::from(eight[2 * at].to_bits()) << 32 | u64::from(eight[2 * at + 1].to_bits());
            *lane = (lane.rotate_left(5) ^ word).wrapping_mul(FACTORS[at]);
        }
    };
    eights.iter().for_each(&mut take);
    let mut last = [0.0; 8];
    last[..rest.len()].copy_from_slice(rest);
    take(&last);
    lanes
}

/// Matrices that share their sums.
#[derive(Debug)]
struct SumGroup {
    members: Vec<MatrixKey>,
    moments: MomentSums,
}

/// Rows that only some matrices of a group have met so far in this batch.
#[derive(Debug)]
struct Pending {
    digest: RowsDigest,
    moments: MomentSums,
    seen: Vec<MatrixKey>,
}

/// Rows that matrices are multiplied with.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'x> {
    /// `[n, n_cols]`.
    pub(super) x: &'x [f32],
    pub(super) n_cols: usize,
    /// Number of rows of each batch: the sums must not depend on how batches are combined into one call.
    pub(super) batches: &'x [usize],
}

impl InputRows<'_> {
    fn add_to(&self, moments: &mut MomentSums) {
        let mut rest = self.x;
        for n_rows in self.batches {
            let (batch, later) = rest.split_at(n_rows * self.n_cols);
            rest = later;
            moments.add_batch(batch);
        }
    }
}

/// Sums of one kind of text.
#[derive(Debug, Default)]
pub(super) struct SumGroups {
    all: Vec<SumGroup>,
    of: BTreeMap<MatrixKey, usize>,
    /// Groups that began in this batch and have met one set of rows; other matrices may still join them.
    fresh: Vec<(RowsDigest, usize)>,
    pending: Vec<Pending>,
}

impl SumGroups {
    /// Adds rows that matrices are multiplied with.
    pub(super) fn add(&mut self, matrices: &[MatrixKey], rows: InputRows<'_>) {
        let mut known: BTreeMap<usize, Vec<MatrixKey>> = BTreeMap::new();
        let mut new = Vec::new();
        for &matrix in matrices {
            match self.of.get(&matrix) {
                Some(&group) => known.entry(group).or_default().push(matrix),
                None => new.push(matrix),
            }
        }
        for (at, seen) in known {
            // A group that meets a second set of rows is closed to matrices that have met only the first.
            self.fresh.retain(|(_, fresh)| *fresh != at);
            let group = &mut self.all[at];
            if group.members.len() == seen.len() {
                rows.add_to(&mut group.moments);
            } else {
                self.wait(seen, rows);
            }
        }
        if !new.is_empty() {
            self.begin(new, rows);
        }
    }

    /// Keeps rows until the end of the batch shows which matrices have met them.
    fn wait(&mut self, mut seen: Vec<MatrixKey>, rows: InputRows<'_>) {
        let (digest, n_cols) = (digest(rows.x), rows.n_cols);
        let is_same = |pending: &&mut Pending| {
            // A matrix that meets equal rows twice counts them twice.
            pending.digest == digest
                && pending.moments.n_cols() == n_cols
                && !seen.iter().any(|matrix| pending.seen.contains(matrix))
        };
        if let Some(pending) = self.pending.iter_mut().find(is_same) {
            pending.seen.append(&mut seen);
            return;
        }
        let mut moments = MomentSums::zero(n_cols);
        rows.add_to(&mut moments);
        self.pending.push(Pending { digest, moments, seen });
    }

    /// Adds matrices that are seen for the first time.
    fn begin(&mut self, new: Vec<MatrixKey>, rows: InputRows<'_>) {
        let (digest, n_cols) = (digest(rows.x), rows.n_cols);
        let is_same = |&&(other, group): &&(RowsDigest, usize)| {
            other == digest && self.all[group].moments.n_cols() == n_cols
        };
        let at = match self.fresh.iter().find(is_same) {
            Some(&(_, group)) => group,
            None => {
                let mut moments = MomentSums::zero(n_cols);
                rows.add_to(&mut moments);
                self.all.push(SumGroup { members: Vec::new(), moments });
                let at = self.all.len() - 1;
                self.fresh.push((digest, at));
                at
            }
        };
        self.of.extend(new.iter().map(|&matrix| (matrix, at)));
        self.all[at].members.extend(new);
    }

    /// Ends a batch: adds rows that a whole group has met, and splits off matrices that have met other rows.
    pub(super) fn end_batch(&mut self) {
        self.fresh.clear();
        let pending = std::mem::take(&mut self.pending);
        let touched: BTreeSet<usize> =
            pending.iter().flat_map(|rows| &rows.seen).map(|matrix| self.of[matrix]).collect();
        for at in touched {
            let mut parts: Vec<(Vec<usize>, Vec<MatrixKey>)> = Vec::new();
            for &member in &self.all[at].members {
                let has_met = |&rows: &usize| pending[rows].seen.contains(&member);
                let met: Vec<usize> = (0..pending.len()).filter(has_met).collect();
                match parts.iter_mut().find(|(other, _)| *other == met) {
                    Some((_, members)) => members.push(member),
                    None => parts.push((met, vec![member])),
                }
            }
            let copies = parts.len() - 1;
            let mut before = vec![self.all[at].moments.clone(); copies];
            for (number, (met, members)) in parts.into_iter().enumerate() {
                let own = if number == 0 {
                    at
                } else if let Some(moments) = before.pop() {
                    self.all.push(SumGroup { members: Vec::new(), moments });
                    self.all.len() - 1
                } else {
                    continue;
                };
                self.of.extend(members.iter().map(|&matrix| (matrix, own)));
                let group = &mut self.all[own];
                group.members = members;
                for rows in met {
                    group.moments.add(&pending[rows].moments);
                }
            }
        }
    }

    /// Takes the sums out of all groups whose matrices are done. Must be called between batches.
    pub(super) fn take(&mut self, is_done: impl Fn(MatrixKey) -> bool) -> Vec<(Vec<MatrixKey>, MomentSums)> {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for group in std::mem::take(&mut self.all) {
            if group.members.iter().all(|&matrix| is_done(matrix)) {
                taken.push((group.members, group.moments));
            } else {
                left.push(group);
            }
        }
        self.all = left;
        let groups = self.all.iter().enumerate();
        self.of =
            groups.flat_map(|(at, group)| group.members.iter().map(move |&matrix| (matrix, at))).collect();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const N: usize>(tensors: [usize; N]) -> [MatrixKey; N] {
        tensors.map(|tensor| MatrixKey { tensor, expert: None })
    }

    /// Adds rows of one batch.
    fn add(groups: &mut SumGroups, matrices: &[MatrixKey], n_cols: usize, x: &[f32]) {
        groups.add(matrices, InputRows { x, n_cols, batches: &[x.len() / n_cols] });
    }

    /// Matrices of each group with its number of rows and first sum.
    fn shown(groups: &mut SumGroups) -> Vec<(Vec<usize>, u64, f32)> {
        let taken = groups.take(|_| true);
        let show = |(members, moments): (Vec<MatrixKey>, MomentSums)| {
            let tensors = members.into_iter().map(|matrix| matrix.tensor).collect();
            {
                let moments = moments.round();
                (tensors, moments.n_rows(), moments.sums().row(0)[0])
            }
        };
        taken.into_iter().map(show).collect()
    }

    #[test]
    fn equal_rows_of_several_calls_are_shared() {
        let mut groups = SumGroups::default();
        for x in [[1.0, 2.0], [3.0, 4.0]] {
            add(&mut groups, &keys([1, 2]), 2, &x);
            add(&mut groups, &keys([5]), 2, &[7.0, x[0]]);
            add(&mut groups, &keys([3]), 2, &x);
            groups.end_batch();
        }
        let expected = [(vec![1, 2, 3], 2, 10.0), (vec![5], 2, 98.0)];
        assert_eq!(shown(&mut groups), expected);
        assert_eq!(shown(&mut groups), []);
    }

    #[test]
    fn who_meets_other_rows_goes_on_alone() {
        let mut groups = SumGroups::default();
        let mut batch = |calls: &[(&[usize], f32)]| {
            for (tensors, x) in calls {
                let keys: Vec<MatrixKey> =
                    tensors.iter().map(|&tensor| MatrixKey { tensor, expert: None }).collect();
                add(&mut groups, &keys, 1, &[*x]);
            }
            groups.end_batch();
        };
        batch(&[(&[1], 1.0), (&[2], 1.0), (&[3], 1.0)]);
        // 3 meets nothing, 4 comes in.
        batch(&[(&[1], 2.0), (&[2], 2.0), (&[4], 2.0)]);
        // 1 and 2 are separated.
        batch(&[(&[1, 4], 3.0), (&[2], 5.0), (&[3], 3.0)]);
        let mut found = shown(&mut groups);
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [(vec![1], 3, 14.0), (vec![2], 3, 30.0), (vec![3], 2, 10.0), (vec![4], 2, 13.0)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_matrix_may_meet_several_rows_in_a_batch() {
        let mut groups = SumGroups::default();
        let [a, b] = keys([1, 2]);
        // Experts may share one matrix: equal rows count as often as they come.
        add(&mut groups, &[a], 1, &[2.0]);
        add(&mut groups, &[a], 1, &[2.0]);
        add(&mut groups, &[b], 1, &[2.0]);
        groups.end_batch();
        assert_eq!(shown(&mut groups), [(vec![1], 2, 8.0), (vec![2], 1, 4.0)]);
        add(&mut groups, &[a, b], 1, &[1.0]);
        groups.end_batch();
        add(&mut groups, &[a], 1, &[3.0]);
        add(&mut groups, &[a], 1, &[3.0]);
        add(&mut groups, &[b], 1, &[3.0]);
        groups.end_batch();
        assert_eq!(shown(&mut groups), [(vec![1], 3, 19.0), (vec![2], 2, 10.0)]);
    }

    #[test]
    fn rows_of_several_batches_are_told_apart_by_all_of_them_and_summed_one_by_one() {
        let (x, batches) = ([2f32.powi(12), 1.0, 3.0], [1, 2]);
        let rows = InputRows { x: &x, n_cols: 1, batches: &batches };
        let mut groups = SumGroups::default();
        let [a, b, c] = keys([1, 2, 3]);
        groups.add(&[a], rows);
        groups.add(&[b], rows);
        groups.add(&[c], InputRows { x: &[2f32.powi(12), 1.0, 4.0], ..rows });
        groups.end_batch();
        let expected = [(vec![1, 2], 3, 16_777_226.0), (vec![3], 3, 16_777_232.0)];
        assert_eq!(shown(&mut groups), expected);
    }

    #[test]
    fn what_goes_on_is_not_taken() {
        let mut groups = SumGroups::default();
        let [a, b, c] = keys([1, 2, 3]);
        add(&mut groups, &[a, b], 1, &[1.0]);
        add(&mut groups, &[c], 1, &[2.0]);
        groups.end_batch();
        assert_eq!(groups.take(|matrix| matrix.tensor != 2).len(), 1);
        add(&mut groups, &[a, b], 1, &[1.0]);
        add(&mut groups, &[c], 1, &[3.0]);
        groups.end_batch();
        assert_eq!(shown(&mut groups), [(vec![1, 2], 2, 2.0), (vec![3], 1, 9.0)]);
    }

    #[test]
    fn every_number_and_every_length_has_its_digest() {
        let x: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let mut seen = vec![digest(&x), digest(&x[..36]), digest(&[]), digest(&[0.0])];
        for at in 0..37 {
            let mut other = x.clone();
            other[at] = -1.0;
            seen.push(digest(&other));
        }
        assert!((0..seen.len()).all(|at| !seen[..at].contains(&seen[at])));
    }
}
