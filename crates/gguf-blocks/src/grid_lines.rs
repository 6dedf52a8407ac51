//! Nearest neighbour of a group for a run of scales at once.
//!
//! With odd levels `q`, `sum w (s q - x)^2 = s (s sum w q^2 - sum 2 w x q) + sum w x^2`. The last sum is the same for
//! all neighbours and `s` is positive, so the bracket orders them: each neighbour is a straight line in `s`. A line
//! that is below all others at both ends of a run of scales is also below them in between. A line that is above two
//! others where these cross is nowhere below both. So a run takes two or three evaluations, where the distances take
//! one per scale.
//!
//! # Exactness
//! The reference compares rounded distances. A line is trusted only if it is below all others by more than the sum of
//! all possible roundings ([`doubt`]); otherwise the caller compares the distances as the reference does.

use super::codebook::{CodeBook, LIST_TILE, Neighbours};
use super::grid_search::STEPS;
use super::lanes::{Lanes, MAX_WIDTH};
use gguf_core::numeric::c_max;

/// Tables for one group's lines: four of each kind, one per dimension of 3 bits, or per pair of dimensions of 2 bits.
#[derive(Clone, Copy)]
pub(super) struct LineTables {
    /// `w q^2`, for slopes.
    square: [[f32; 16]; 4],
    /// `2 w x q`, for offsets.
    cross: [[f32; 16]; 4],
    weight: f32,
}

/// Builds a table of odd levels (or their squares) from the bits of an index.
const fn odd(bits: u32, shift: u32, square: bool) -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut index = 0;
    while index < 16 {
        let q = (2 * ((index as u32 >> shift) & ((1 << bits) - 1)) + 1) as f32;
        table[index] = if square { q * q } else { 2.0 * q };
        index += 1;
    }
    table
}

static SQUARE_3: [f32; 16] = odd(3, 0, true);
static TWICE_3: [f32; 16] = odd(3, 0, false);
static SQUARE_2: [[f32; 16]; 2] = [odd(2, 0, true), odd(2, 2, true)];
static TWICE_2: [[f32; 16]; 2] = [odd(2, 0, false), odd(2, 2, false)];

static LANES: [f32; LIST_TILE] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Returns the distance of two lines, per unit of the weights' sum, above which their order is that of the reference's
/// distances.
///
/// Valid for scales from `least` to `most` and magnitudes up to `x_max`. Infinite if the bound is not proved.
///
/// # Exactness
/// Let `e = 2^-24` and `U = sum w (s^2 q_max^2 + x_max^2)`. A rounded distance, over 4 or 8 dimensions, is within
/// `25 e U` of the true one: `7 e U` from rounding `s q - x` and at most `18 e U` from the two products and the sum. A
/// rounded line is within `16 e U / s`, and the limit is rounded by `2 e U / s`. For two points that totals
/// `84 e U / s`; `128 e` are required, at the scales where `U / s` is largest. Scales, magnitudes and weights are
/// limited so that underflow stays within the remaining margin and nothing overflows.
pub(super) fn doubt<const D: usize>(least: f32, most: f32, x_max: f32) -> f32 {
    const SPAN: f32 = (1 << 19) as f32;
    let q_max = (2 * CodeBook::<D>::LEVELS - 1) as f32;
    if least >= 1.0 / (SPAN * 1024.0) && most <= SPAN / q_max && x_max <= SPAN {
        (most * q_max * q_max + x_max * x_max / least) * (1.0 / (1 << 17) as f32)
    } else {
        f32::INFINITY
    }
}

/// Neighbours that may be the nearest at a scale.
#[derive(Clone, Copy)]
pub(super) struct Nearest {
    /// One bit for each candidate, in a list's 16 or fewer positions from `first` on; more than one bit is a doubt.
    bits: u32,
    first: u32,
}

impl Nearest {
    /// Value for no neighbour found.
    pub(super) const UNKNOWN: Self = Self { bits: 0, first: 0 };

    /// Returns the position in the list, if there is no doubt.
    #[inline(always)]
    pub(super) fn position(self) -> Option<usize> {
        self.is_sure().then(|| (self.first + self.bits.trailing_zeros()) as usize)
    }

    #[inline(always)]
    fn is_sure(self) -> bool {
        self.bits.is_power_of_two()
    }
}

/// Returns a mask with one bit for each of the first points.
#[inline(always)]
pub(super) fn first_bits(n_points: usize) -> u32 {
    // At least one point, except if a whole vector is beyond the last.
    if n_points == 0 { 0 } else { u32::MAX >> (u32::BITS as usize - n_points) }
}

/// A run of steps within which the lowest line changes.
pub(super) struct ScaleRun<'a> {
    /// All scales, in descending order.
    pub scales: &'a [f32],
    /// First step of the run.
    pub first: usize,
    /// Last step of the run.
    pub last: usize,
    /// Nearest points at the first and at the last step.
    pub points: [u16; 2],
}

/// Lowest of many lines at one scale: the lowest and the second lowest of each lane.
#[derive(Clone, Copy)]
struct LowestLines<L: Lanes> {
    line: L::F,
    second: L::F,
    at: L::I,
}

impl<L: Lanes> LowestLines<L> {
    #[inline(always)]
    fn see(&mut self, l: L, line: L::F, at: usize) {
        let lower = l.gt(self.line, line);
        self.second = l.c_min(self.second, l.select(lower, self.line, line));
        self.at = l.select_i(lower, l.splat_i(at as i32), self.at);
        self.line = l.select(lower, line, self.line);
    }

    /// Returns the only line up to `limit`, if there is exactly one.
    #[inline(always)]
    fn up_to(&self, l: L, limit: L::F) -> Nearest {
        let bits = l.mask_bits(!l.gt(self.line, limit));
        if !bits.is_power_of_two() || l.any(!l.gt(self.second, limit)) {
            return Nearest::UNKNOWN;
        }
        let mut at = [0; MAX_WIDTH];
        l.store_i(self.at, &mut at);
        let first = at.get(bits.trailing_zeros() as usize).map_or(0, |at| *at as u32);
        Nearest { bits: bits as u32, first }
    }
}

#[inline(always)]
fn sum_of_entries<L: Lanes, const D: usize>(l: L, tables: &[[f32; 16]; 4], index: &[L::I; 4]) -> L::F {
    let mut entries = [l.splat(0.0); 4];
    for t in 0..4 {
        entries[t] = match tables[t].first_chunk() {
            Some(eight) if D == 4 => l.lookup(l.table(eight), index[t]),
            _ => l.lookup_16(&tables[t], index[t]),
        };
    }
    entries[0] + entries[1] + (entries[2] + entries[3])
}

/// Runs [`sum_of_entries`] for one point.
#[inline(always)]
fn sum_at(tables: &[[f32; 16]; 4], index: [usize; 4]) -> f32 {
    let [a, b, c, d] = index;
    tables[0][a] + tables[1][b] + (tables[2][c] + tables[3][d])
}

impl LineTables {
    pub(super) const EMPTY: Self = Self { square: [[0.0; 16]; 4], cross: [[0.0; 16]; 4], weight: 0.0 };

    /// Sets the tables of one group; `roots` are the weights of its distances.
    #[inline(always)]
    pub(super) fn set<L: Lanes, const D: usize>(&mut self, l: L, x: &[f32; D], roots: &[f32; D]) {
        self.weight = roots[0];
        for root in &roots[1..] {
            self.weight += root;
        }
        let n_entries = if D == 8 { 16 } else { 8 };
        for t in 0..4 {
            for at in (0..n_entries).step_by(L::WIDTH) {
                let entries = |table: &[f32; 16]| l.load(&table[at..]);
                let [square, cross] = if D == 8 {
                    let [a, b] = [roots[2 * t], roots[2 * t + 1]];
                    let [ax, bx] = [l.splat(a * x[2 * t]), l.splat(b * x[2 * t + 1])];
                    [
                        l.splat(a) * entries(&SQUARE_2[0]) + l.splat(b) * entries(&SQUARE_2[1]),
                        ax * entries(&TWICE_2[0]) + bx * entries(&TWICE_2[1]),
                    ]
                } else {
                    [l.splat(roots[t]) * entries(&SQUARE_3), l.splat(roots[t] * x[t]) * entries(&TWICE_3)]
                };
                l.store(square, &mut self.square[t][at..]);
                l.store(cross, &mut self.cross[t][at..]);
            }
        }
    }

    /// Returns [`doubt`] for this group; infinite if underflow or overflow could matter, or something is not a number.
    #[inline(always)]
    pub(super) fn doubt(&self, doubt: f32) -> f32 {
        let doubt = self.weight * doubt;
        if doubt >= 1e-27 && self.weight <= 1e18 { doubt } else { f32::INFINITY }
    }

    /// Returns slopes and offsets of the first `WIDTH` points.
    #[inline(always)]
    fn lines<L: Lanes, const D: usize>(&self, l: L, points: &[u16]) -> [L::F; 2] {
        let points = l.load_u16(points);
        let bits = if D == 8 { 4 } else { 3 };
        let index = [points, l.shr(points, bits), l.shr(points, 2 * bits), l.shr(points, 3 * bits)];
        [sum_of_entries::<L, D>(l, &self.square, &index), sum_of_entries::<L, D>(l, &self.cross, &index)]
    }

    /// Returns for each scale the neighbours that may be the nearest; `doubt` is [`LineTables::doubt`] for these
    /// scales.
    #[inline(always)]
    pub(super) fn nearest<L: Lanes, const D: usize, const S: usize>(
        &self,
        l: L,
        neighbours: Neighbours<'_>,
        scales: &[f32; S],
        doubt: f32,
    ) -> [Nearest; S] {
        match neighbours.tiles() {
            // Lines are meaningless then, even that of the only point in a list.
            _ if doubt == f32::INFINITY => [Nearest::UNKNOWN; S],
            [tile] => {
                let bits = self.bits_of_tiles::<L, D, S, 1>(l, &[*tile], scales, doubt);
                bits.map(|bits| Nearest { bits: bits & first_bits(neighbours.n_points()), first: 0 })
            }
            _ => self.nearest_of_many::<L, D, S>(l, neighbours, scales, doubt),
        }
    }

    /// Returns for each scale one bit for each point of a list of `T` tiles that may be the nearest; bits beyond the
    /// last point are arbitrary.
    #[inline(always)]
    pub(super) fn bits_of_tiles<L: Lanes, const D: usize, const S: usize, const T: usize>(
        &self,
        l: L,
        tiles: &[[u16; LIST_TILE]; T],
        scales: &[f32; S],
        doubt: f32,
    ) -> [u32; S] {
        let zero = l.splat(0.0);
        let points = tiles.as_flattened();
        // The number of vectors of two tiles in the narrowest lanes.
        let mut lines = [[zero; 8]; S];
        let mut least = [l.splat(f32::MAX); S];
        for v in 0..T * LIST_TILE / L::WIDTH {
            let [slope, offset] = self.lines::<L, D>(l, &points[v * L::WIDTH..]);
            for s in 0..S {
                lines[s][v] = l.splat(scales[s]) * slope - offset;
                least[s] = if v == 0 { lines[s][v] } else { l.c_min(least[s], lines[s][v]) };
            }
        }
        l.spread_least(&mut least);
        let doubt = l.splat(doubt);
        let mut bits = [0; S];
        for s in 0..S {
            let limit = least[s] + doubt;
            for v in 0..T * LIST_TILE / L::WIDTH {
                bits[s] |= (l.mask_bits(l.gt(limit, lines[s][v])) as u32) << (v * L::WIDTH);
            }
        }
        bits
    }

    /// Returns slope and offset of one point.
    #[inline(always)]
    fn line<const D: usize>(&self, point: u16) -> [f32; 2] {
        let bits = if D == 8 { 4 } else { 3 };
        let mut index = [0; 4];
        for t in 0..4 {
            index[t] = usize::from(point >> (t * bits)) % (1 << bits);
        }
        [sum_at(&self.square, index), sum_at(&self.cross, index)]
    }

    /// Returns the first step of a run at which the second of two lines is below all others, if the first is so before
    /// it.
    ///
    /// The caller knows that both are lowest by more than `doubt`: the first line at the first step, the second at the
    /// last.
    ///
    /// # Exactness
    /// A line that is above both at some scale in between is above the first before it and above the second after it,
    /// because lines are straight. So only these two must be compared at all steps.
    #[inline(always)]
    pub(super) fn turn<L: Lanes, const D: usize>(
        &self,
        l: L,
        neighbours: Neighbours<'_>,
        run: &ScaleRun<'_>,
        doubt: f32,
    ) -> Option<usize> {
        let (a, b) = (self.line::<D>(run.points[0]), self.line::<D>(run.points[1]));
        // Any scale in between would do; the nearer it is to the crossing, the fewer other lines are below.
        let (least, most) = (run.scales[run.last], run.scales[run.first]);
        let scale = c_max((a[1] - b[1]) / (a[0] - b[0]), least);
        let scale = if scale < most { scale } else { most };
        let limit = l.splat(c_max(scale * a[0] - a[1], scale * b[0] - b[1]) + doubt);
        let mut n_low = 0u32;
        let points = neighbours.tiles().as_flattened();
        for at in (0..points.len()).step_by(L::WIDTH) {
            let [slope, offset] = self.lines::<L, D>(l, &points[at..]);
            let low = l.mask_bits(!l.gt(l.splat(scale) * slope - offset, limit)) as u32;
            // Copies of the first point fill the last tile.
            let mut low = low & first_bits(neighbours.n_points().saturating_sub(at).min(LIST_TILE));
            while low != 0 {
                (n_low, low) = (n_low + 1, low & (low - 1));
            }
        }
        let (mut a_below, mut b_below) = (0u32, 0u32);
        let doubt = l.splat(doubt);
        for at in (0..STEPS).step_by(L::WIDTH) {
            let scales = l.load(&run.scales[at..]);
            let a = scales * l.splat(a[0]) - l.splat(a[1]);
            let b = scales * l.splat(b[0]) - l.splat(b[1]);
            a_below |= (l.mask_bits(l.gt(b, a + doubt)) as u32) << at;
            b_below |= (l.mask_bits(l.gt(a, b + doubt)) as u32) << at;
        }
        let steps = (u32::MAX << run.first) & (u32::MAX >> (STEPS - 1 - run.last));
        let is_sure = n_low == 2 && (a_below | b_below) & steps == steps;
        is_sure.then(|| (b_below & steps).trailing_zeros() as usize)
    }

    #[inline(always)]
    fn nearest_of_many<L: Lanes, const D: usize, const S: usize>(
        &self,
        l: L,
        neighbours: Neighbours<'_>,
        scales: &[f32; S],
        doubt: f32,
    ) -> [Nearest; S] {
        let most = l.splat(f32::MAX);
        let mut lowest = [LowestLines::<L> { line: most, second: most, at: l.splat_i(0) }; S];
        let points = neighbours.tiles().as_flattened();
        let whole = neighbours.n_points() / L::WIDTH * L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            let [slope, offset] = self.lines::<L, D>(l, &points[at..]);
            for s in 0..S {
                lowest[s].see(l, l.splat(scales[s]) * slope - offset, at);
            }
        }
        if whole < neighbours.n_points() {
            let [slope, offset] = self.lines::<L, D>(l, &points[whole..]);
            // Copies of the first point fill the vector.
            let is_point = l.gt(l.splat((neighbours.n_points() - whole) as f32), l.load(&LANES));
            for s in 0..S {
                let line = l.splat(scales[s]) * slope - offset;
                lowest[s].see(l, l.select(is_point, line, most), whole);
            }
        }
        let mut least = [most; S];
        for s in 0..S {
            least[s] = lowest[s].line;
        }
        l.spread_least(&mut least);
        let mut nearest = [Nearest::UNKNOWN; S];
        for s in 0..S {
            nearest[s] = lowest[s].up_to(l, least[s] + l.splat(doubt));
        }
        nearest
    }
}

#[cfg(test)]
mod tests {
    use super::super::codebook::{self, GridPosition};
    use super::super::grid_search::{best_neighbour, nearest};
    use super::super::kernel::{Kernel, dispatch};
    use super::*;
    use crate::noise::Noise;
    use gguf_core::simd::SimdLevel;

    /// Vector levels; with the feature `portable` also those of other machines, on portable lanes.
    fn levels() -> impl Iterator<Item = SimdLevel> {
        let runs = |level: &SimdLevel| cfg!(feature = "portable") || level.is_available();
        SimdLevel::ALL.into_iter().filter(|level| *level != SimdLevel::Scalar).filter(runs)
    }

    struct CheckTrusted<'a, const D: usize> {
        book: &'a CodeBook<D>,
        seed: u64,
        /// Trusted results, all evaluations, and runs in which one neighbour replaces another.
        counts: &'a mut [usize; 3],
    }

    impl<const D: usize> Kernel for CheckTrusted<'_, D> {
        fn scalar(self) {}

        #[inline(always)]
        fn lanes<L: Lanes>(self, l: L) {
            let mut noise = Noise::new(self.seed);
            for case in 0..2000 {
                let unit = [1.0, 1e-6, 3e-12, 4e4, 1e-30][case % 5];
                let weight = [1.0, 1e-5, 1e9, 1e-18, 1e30][case / 5 % 5];
                let (mut x, mut roots) = ([0.0; D], [0.0; D]);
                for i in 0..D {
                    // Ties: few values, equal weights; and weights of zero.
                    x[i] = unit * if case % 3 == 0 { (noise.unit() * 4.0).floor() } else { noise.unit() };
                    roots[i] = weight * if case % 4 == 0 { 1.0 } else { (noise.unit() * 1.3 - 0.3).max(0.0) };
                }
                let iscale = (1.0 + 14.0 * noise.unit()) / unit;
                let GridPosition::Near(neighbours) = self.book.position(nearest(&x, iscale)) else {
                    continue;
                };
                let ends = [1.05 / iscale, 0.95 / iscale];
                let mut tables = LineTables::EMPTY;
                tables.set(l, &x, &roots);
                let doubt = tables.doubt(doubt::<D>(ends[1], ends[0], 4.0 * unit));
                let found = tables.nearest::<L, D, 2>(l, neighbours, &ends, doubt).map(Nearest::position);
                let points = found.map(|position| neighbours.at(position));
                let mut scales = [ends[1]; STEPS];
                for (step, scale) in scales[..20].iter_mut().enumerate() {
                    *scale = ends[0] + (ends[1] - ends[0]) * (step as f32 / 19.0);
                }
                let turn = match points {
                    [Some(first), Some(last)] if first != last => {
                        let run = ScaleRun { scales: &scales, first: 0, last: 19, points: [first, last] };
                        tables.turn::<L, D>(l, neighbours, &run, doubt)
                    }
                    _ => None,
                };
                self.counts[2] += usize::from(turn.is_some());
                for (step, scale) in scales[..20].iter().enumerate() {
                    let [alone] = tables.nearest::<L, D, 1>(l, neighbours, &[*scale], doubt);
                    self.counts[1] += 1;
                    let want = best_neighbour(neighbours, &x, &roots, *scale).ok();
                    let common = points[0].filter(|first| points[1] == Some(*first));
                    let turned = turn.and_then(|turn| points[usize::from(step >= turn)]);
                    for point in [common, turned, neighbours.at(alone.position())].into_iter().flatten() {
                        self.counts[0] += 1;
                        assert_eq!(Some(point), want, "{x:?} {roots:?} {scale:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_believed_is_what_distances_say() {
        for level in levels() {
            for seed in 0..4 {
                let (mut of_4, mut of_8) = ([0; 3], [0; 3]);
                dispatch(level, CheckTrusted { book: codebook::iq3_s(), seed, counts: &mut of_4 });
                dispatch(level, CheckTrusted { book: codebook::iq3_xxs(), seed, counts: &mut of_4 });
                dispatch(level, CheckTrusted { book: codebook::iq2_xxs(), seed, counts: &mut of_8 });
                dispatch(level, CheckTrusted { book: codebook::iq2_s(), seed, counts: &mut of_8 });
                for [sure, all, turns] in [of_4, of_8] {
                    assert!(sure > all / 5, "{level}: {sure} beliefs at {all} scales");
                    assert!(turns > 20, "{level}: one neighbour gives way to another in {turns} runs");
                }
            }
        }
    }

    struct CheckUnbounded;

    impl Kernel for CheckUnbounded {
        fn scalar(self) {}

        #[inline(always)]
        fn lanes<L: Lanes>(self, l: L) {
            let book = codebook::iq2_s();
            // A point with one neighbour, which could be trusted without an evaluation.
            let lone = (0..=0xaaaa).find_map(|packed| match book.position(packed) {
                GridPosition::Near(neighbours) if neighbours.points().len() == 1 => Some(neighbours),
                _ => None,
            });
            let lone = lone.expect("IQ2_S has such a point");
            for (x, root, scale) in [
                (1.0, f32::NAN, 1.0),
                (1.0, f32::INFINITY, 1.0),
                (1.0, 1.0, 1e-20),
                (1.0, 1.0, 1e20),
                (f32::NAN, 1.0, 1.0),
                (f32::INFINITY, 1.0, 1.0),
                (1e-3, 1e-30, 1e-3),
                (0.0, 0.0, 1.0),
            ] {
                let mut tables = LineTables::EMPTY;
                tables.set(l, &[x; 8], &[root; 8]);
                let doubt = tables.doubt(doubt::<8>(scale, scale, x));
                let [found] = tables.nearest::<L, 8, 1>(l, lone, &[scale], doubt);
                assert_eq!(found.position(), None, "{x} {root} {scale}");
            }
        }
    }

    #[test]
    fn nothing_is_believed_without_a_bound() {
        levels().for_each(|level| dispatch(level, CheckUnbounded));
    }

    struct CheckSpread;

    impl Kernel for CheckSpread {
        fn scalar(self) {}

        #[inline(always)]
        fn lanes<L: Lanes>(self, l: L) {
            let mut noise = Noise::new(5);
            for _ in 0..200 {
                let mut rows = [[0.0; MAX_WIDTH]; 4];
                rows.as_flattened_mut().iter_mut().for_each(|value| *value = noise.unit() - 0.5);
                let mut vectors = [l.splat(0.0); 4];
                for (vector, row) in vectors.iter_mut().zip(&rows) {
                    *vector = l.load(row);
                }
                let (mut two, mut one) = ([vectors[0], vectors[1]], [vectors[2]]);
                let low = l.c_min(vectors[0], vectors[1]);
                l.spread_least(&mut vectors);
                l.spread_least(&mut two);
                l.spread_least(&mut one);
                let mut all = [0.0; MAX_WIDTH];
                l.store(low, &mut all);
                for lane in 0..L::WIDTH {
                    assert_eq!(all[lane], rows[0][lane].min(rows[1][lane]));
                }
                let spread =
                    vectors.iter().zip(&rows).chain(two.iter().zip(&rows)).chain(one.iter().zip(&rows[2..]));
                for (vector, row) in spread {
                    l.store(*vector, &mut all);
                    let least = row[..L::WIDTH].iter().copied().fold(f32::MAX, f32::min);
                    assert!(all[..L::WIDTH].iter().all(|value| *value == least));
                }
            }
        }
    }

    #[test]
    fn the_least_lane_is_spread() {
        levels().for_each(|level| dispatch(level, CheckSpread));
    }
}
