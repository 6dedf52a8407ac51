//! Second moments `XᵀX` of matrix inputs, for one layer and every kind of text.

use std::collections::BTreeMap;

use gguf_engine::{Gram, GramSum};

/// Sums over the rows of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    n_rows: u64,
    sums: Gram,
}

impl Moments {
    /// Moments of `n_rows` rows.
    pub fn of(n_rows: u64, sums: Gram) -> Self {
        Self { n_rows, sums }
    }

    /// Number of columns of the rows.
    pub fn n_cols(&self) -> usize {
        self.sums.n_cols()
    }

    /// Number of rows that were summed: tokens, or for an expert the tokens that were routed to it.
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// `XᵀX`, not divided by the number of rows.
    pub fn sums(&self) -> &Gram {
        &self.sums
    }

    /// Adds the sums of other rows.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn add(&mut self, other: &Self) {
        self.sums.add(&other.sums);
        self.n_rows += other.n_rows;
    }
}

/// Moments while rows are added; the order does not matter.
#[derive(Clone, Debug)]
pub struct MomentSums {
    n_rows: u64,
    sums: GramSum,
}

impl MomentSums {
    /// Empty sums over rows of `n_cols` columns.
    ///
    /// # Panics
    /// As [`GramSum::zero`].
    pub fn zero(n_cols: usize) -> Self {
        Self { n_rows: 0, sums: GramSum::zero(n_cols) }
    }

    /// Number of columns of the rows.
    pub fn n_cols(&self) -> usize {
        self.sums.n_cols()
    }

    /// Adds a batch of rows, `[n, n_cols]`, as [`GramSum::add_rows`] does.
    pub(super) fn add_batch(&mut self, x: &[f32]) {
        self.sums.add_rows(x);
        self.n_rows += (x.len() / self.n_cols().max(1)) as u64;
    }

    /// Adds the sums of other rows.
    ///
    /// # Panics
    /// If the widths differ.
    pub(super) fn add(&mut self, other: &Self) {
        self.sums.add(&other.sums);
        self.n_rows += other.n_rows;
    }

    /// Rounds each sum once.
    pub fn round(&self) -> Moments {
        Moments { n_rows: self.n_rows, sums: self.sums.round() }
    }

    /// Returns false if a sum is NaN or infinite.
    pub(super) fn is_finite(&self) -> bool {
        self.sums.is_finite()
    }
}

/// A matrix that is multiplied with an input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixName {
    /// Name of its tensor.
    pub tensor: String,
    /// Index among the matrices of a stacked tensor (experts or heads); `None` for a single matrix.
    pub expert: Option<usize>,
}

/// Input with all matrices that are multiplied with its rows; they share the moments and everything computed from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedInput {
    /// Matrices, in order.
    pub matrices: Vec<MatrixName>,
    /// Number of columns of the rows.
    pub n_cols: usize,
    /// Index of its moments among those of each kind of text; `None` if no row of the kind reached it.
    pub(super) moments: Vec<Option<usize>>,
}

/// Mean second moment `H = Σ w (XᵀX / N) / Σ w` over kinds of text.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanMoments {
    /// Number of columns.
    pub n_cols: usize,
    /// Number of rows of all kinds with a weight.
    pub n_rows: u64,
    /// H, `[n_cols, n_cols]`, symmetric.
    pub h: Vec<f32>,
}

/// Moments of a layer for each kind of text and input.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMoments {
    /// Layer number, counted over all stacks, encoder first. `None` is outside of layers: the head, which is multiplied
    /// with the output of the final norm, and everything before or after all layers.
    pub layer: Option<usize>,
    /// Inputs of the layer.
    pub inputs: Vec<SharedInput>,
    /// Moments, by kind of text.
    pub(super) kinds: Vec<Vec<Moments>>,
}

/// Moments of one kind of text, with their matrices.
pub(super) type KindMoments = Vec<(Vec<MatrixName>, Moments)>;

impl LayerMoments {
    /// Builds a layer in which matrices that share their moments in all kinds have one input.
    fn shared(layer: Option<usize>, kinds: Vec<KindMoments>) -> Self {
        let mut places: BTreeMap<MatrixName, (usize, Vec<Option<usize>>)> = BTreeMap::new();
        for (kind, groups) in kinds.iter().enumerate() {
            for (at, (matrices, moments)) in groups.iter().enumerate() {
                for matrix in matrices {
                    let place = places.entry(matrix.clone());
                    let (_, place) = place.or_insert_with(|| (moments.n_cols(), vec![None; kinds.len()]));
                    place[kind] = Some(at);
                }
            }
        }
        let mut inputs: Vec<SharedInput> = Vec::new();
        for (matrix, (n_cols, moments)) in places {
            match inputs.iter_mut().find(|input| input.moments == moments) {
                Some(input) => input.matrices.push(matrix),
                None => inputs.push(SharedInput { matrices: vec![matrix], n_cols, moments }),
            }
        }
        let kinds =
            kinds.into_iter().map(|groups| groups.into_iter().map(|(_, own)| own).collect()).collect();
        Self { layer, inputs, kinds }
    }

    /// Moments of an input of this layer in one kind of text.
    pub fn moments(&self, input: &SharedInput, kind: usize) -> Option<&Moments> {
        self.kinds.get(kind)?.get((*input.moments.get(kind)?)?)
    }

    /// Number of kinds of text.
    pub fn n_kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Input of a matrix. `None` if no row of any text reached it (an expert that no token chose), or if the matrix was
    /// not asked for.
    pub fn input(&self, tensor: &str, expert: Option<usize>) -> Option<&SharedInput> {
        let is_own = |matrix: &MatrixName| matrix.tensor == tensor && matrix.expert == expert;
        self.inputs.iter().find(|input| input.matrices.iter().any(is_own))
    }
}

impl LayerMoments {
    /// Builds the moments of a layer, by kind. Matrices whose moments are equal in all kinds share one input.
    pub(super) fn of(layer: Option<usize>, kinds: Vec<KindMoments>) -> Self {
        Self::shared(layer, kinds.into_iter().map(joined).collect())
    }

    /// Mean moments of an input over kinds, with one weight per kind. A kind without rows does not count. `None` if no
    /// kind is left.
    pub fn mean(&self, input: &SharedInput, weights: &[f64]) -> Option<MeanMoments> {
        let of_kind = |(kind, &weight): (usize, &f64)| Some((self.moments(input, kind)?, weight));
        mean(&weights.iter().enumerate().filter_map(of_kind).collect::<Vec<_>>())
    }

    /// Mean moments over all rows that reached any matrix of a stacked tensor; those of an expert are shrunk towards
    /// it. A row counts as often as it was routed.
    pub fn mean_of_stack(&self, tensor: &str, weights: &[f64]) -> Option<MeanMoments> {
        let of_kind = |(kind, &weight): (usize, &f64)| {
            let mut total: Option<Moments> = None;
            for input in &self.inputs {
                let Some(moments) = self.moments(input, kind) else { continue };
                for _ in input.matrices.iter().filter(|m| m.tensor == tensor && m.expert.is_some()) {
                    match &mut total {
                        Some(total) => total.add(moments),
                        None => total = Some(moments.clone()),
                    }
                }
            }
            Some((total?, weight))
        };
        let totals: Vec<(Moments, f64)> = weights.iter().enumerate().filter_map(of_kind).collect();
        mean(&totals.iter().map(|(total, weight)| (total, *weight)).collect::<Vec<_>>())
    }
}

/// Joins equal moments, in the order of the first of their matrices.
fn joined(groups: KindMoments) -> KindMoments {
    let mut joined: KindMoments = Vec::with_capacity(groups.len());
    // Keyed by the row count and the squares, which are quick to compare.
    let mut places: BTreeMap<(u64, Vec<u32>), Vec<usize>> = BTreeMap::new();
    for (matrices, moments) in groups {
        let squares = moments.sums.diagonal().into_iter().map(f32::to_bits).collect();
        let like = places.entry((moments.n_rows, squares)).or_default();
        match like.iter().find(|&&at| joined[at].1 == moments) {
            Some(&at) => joined[at].0.extend(matrices),
            None => {
                like.push(joined.len());
                joined.push((matrices, moments));
            }
        }
    }
    for (matrices, _) in &mut joined {
        matrices.sort();
    }
    joined.sort_by(|(a, _), (b, _)| a.cmp(b));
    joined
}

/// Weighted mean of the kinds' means, computed in f64 and rounded once.
fn mean(kinds: &[(&Moments, f64)]) -> Option<MeanMoments> {
    let counts = |(moments, weight): &&(&Moments, f64)| moments.n_rows > 0 && *weight > 0.0;
    let kinds: Vec<&(&Moments, f64)> = kinds.iter().filter(counts).collect();
    let n_cols = kinds.first()?.0.n_cols();
    let total: f64 = kinds.iter().map(|(_, weight)| weight).sum();
    let mut h = vec![0.0; n_cols * n_cols];
    let mut sums = vec![0f64; n_cols];
    for row in 0..n_cols {
        let sums = &mut sums[row..];
        sums.fill(0.0);
        for (moments, weight) in &kinds {
            let factor = weight / total / moments.n_rows as f64;
            let own = moments.sums.row(row);
            sums.iter_mut().zip(own).for_each(|(sum, &x)| *sum += factor * f64::from(x));
        }
        for (column, &sum) in sums.iter().enumerate() {
            h[row * n_cols + row + column] = sum as f32;
            h[(row + column) * n_cols + row] = sum as f32;
        }
    }
    Some(MeanMoments { n_cols, n_rows: kinds.iter().map(|(moments, _)| moments.n_rows).sum(), h })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(tensor: &str, expert: Option<usize>) -> MatrixName {
        MatrixName { tensor: tensor.to_owned(), expert }
    }

    fn moments(rows: &[[f32; 2]]) -> Moments {
        let mut sums = MomentSums::zero(2);
        sums.add_batch(rows.as_flattened());
        sums.round()
    }

    #[test]
    fn kinds_are_weighed_by_themselves_not_by_their_rows() {
        let first = moments(&[[1.0, 2.0], [3.0, 0.0]]);
        let second = moments(&[[0.0, 4.0]]);
        let matrices = vec![name("q", None), name("k", None)];
        let layer =
            LayerMoments::of(Some(3), vec![vec![(matrices.clone(), first)], vec![(matrices, second)]]);
        assert_eq!((layer.inputs.len(), layer.n_kinds()), (1, 2));
        let input = layer.input("k", None).unwrap();
        let mean = layer.mean(input, &[1.0, 1.0]).unwrap();
        assert_eq!((mean.n_rows, mean.h), (3, vec![2.5, 0.5, 0.5, 9.0]));
        assert_eq!(layer.mean(input, &[0.0, 2.0]).unwrap().h, [0.0, 0.0, 0.0, 16.0]);
        assert_eq!(layer.mean(input, &[0.0, 0.0]), None);
        assert_eq!((layer.input("k", Some(0)), layer.input("v", None)), (None, None));
    }

    #[test]
    fn who_shares_moments_does_not_depend_on_how_that_was_found_out() {
        let sums = |rows: &[[f32; 2]]| {
            let mut sums = MomentSums::zero(2);
            for row in rows {
                sums.add_batch(row);
            }
            sums
        };
        let of = |layer, groups: Vec<(Vec<MatrixName>, MomentSums)>| {
            LayerMoments::of(
                layer,
                vec![groups.into_iter().map(|(names, sums)| (names, sums.round())).collect()],
            )
        };
        let rows = [[1.0, 2.0], [3.0, 4.0]];
        let names = |names: &[&str]| names.iter().map(|n| name(n, None)).collect::<Vec<_>>();
        let apart = vec![
            (names(&["c"]), sums(&[[5.0, 6.0]])),
            (names(&["b"]), sums(&rows)),
            (names(&["a"]), sums(&rows)),
        ];
        let together = vec![(names(&["b", "a"]), sums(&rows)), (names(&["c"]), sums(&[[5.0, 6.0]]))];
        let apart = of(Some(1), apart);
        assert_eq!(apart, of(Some(1), together));
        assert_eq!((apart.inputs.len(), &apart.inputs[0].matrices), (2, &names(&["a", "b"])));
        // One more row, even of zeros, gives another mean.
        let more = vec![(names(&["a"]), sums(&rows)), (names(&["b"]), sums(&[rows[0], rows[1], [0.0; 2]]))];
        assert_eq!(of(None, more).inputs.len(), 2);
    }

    #[test]
    fn matrices_that_part_in_one_kind_are_inputs_of_their_own() {
        let own = |names: &[&str], rows: &[[f32; 2]]| {
            (names.iter().map(|n| name(n, None)).collect::<Vec<_>>(), moments(rows))
        };
        let first = vec![own(&["a", "b", "c"], &[[1.0, 1.0]])];
        let second = vec![own(&["a", "c"], &[[2.0, 0.0]]), own(&["b"], &[[3.0, 0.0]])];
        let layer = LayerMoments::of(None, vec![first, second]);
        assert_eq!(layer.inputs.len(), 2);
        let squares = |tensor| layer.moments(layer.input(tensor, None).unwrap(), 1).unwrap().sums().row(0)[0];
        assert_eq!((squares("a"), squares("b"), squares("c")), (4.0, 9.0, 4.0));
        assert_eq!(layer.moments(&layer.inputs[0], 2), None);
    }

    #[test]
    fn a_stack_counts_every_routed_row() {
        let kinds = vec![vec![
            (vec![name("up", Some(0)), name("gate", Some(0))], moments(&[[1.0, 0.0], [1.0, 0.0]])),
            (vec![name("up", Some(2)), name("gate", Some(2))], moments(&[[0.0, 2.0]])),
            (vec![name("router", None)], moments(&[[9.0, 9.0]])),
        ]];
        let layer = LayerMoments::of(Some(0), kinds);
        let mean = layer.mean_of_stack("up", &[1.0]).unwrap();
        assert_eq!(mean.n_rows, 3);
        assert!((mean.h[0] - 2.0 / 3.0).abs() < 1e-6 && (mean.h[3] - 4.0 / 3.0).abs() < 1e-6);
        assert_eq!(layer.mean_of_stack("router", &[1.0]), None);
        assert_eq!(layer.input("up", Some(1)), None);
    }
}
