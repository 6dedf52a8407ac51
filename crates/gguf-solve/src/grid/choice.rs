//! The choice of a unit's code: points and signs in turn, each the best with the other fixed.

use gguf_blocks::grid_states::{GridForm, SIGNED, Signs};

use crate::grid::book::{Book, TileValues};
use crate::unit::{UNIT, Unit, UnitMetric};

/// Number of turns of points and signs. A third changes next to nothing.
const TURNS: usize = 2;

/// Code that a unit stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Index of one point, or of two with four values each.
    pub points: [u16; 2],
    /// One bit for each negative value, or 1 for values that are shifted down.
    pub signs: u8,
}

/// Metric of a unit, prepared for many rows.
#[derive(Default)]
pub(crate) struct PreparedMetric {
    pub h: UnitMetric,
    /// `q h qᵀ` of the points shifted up and down, for types without signs.
    squares: [Vec<TileValues>; 2],
}

/// A type's grid, prepared for the choice.
pub(crate) struct Grid {
    pub form: &'static GridForm,
    /// Points of four values.
    quads: Book<4>,
    /// Points of eight values, shifted up and shifted down.
    eights: [Book<8>; 2],
    /// All allowed sign patterns, as factors.
    factors: Book<8>,
    signs: Vec<u8>,
}

impl Grid {
    pub(crate) fn new(form: &'static GridForm) -> Self {
        let points = || (0..form.n_points()).map(|index| form.point(index as u16));
        let is_wide = form.dims == UNIT;
        let is_shifted = matches!(form.signs, Signs::Shift(_));
        let quads = points().take(if is_wide { 0 } else { usize::MAX });
        let eights = |down: bool| {
            let n = if is_wide && (is_shifted || !down) { usize::MAX } else { 0 };
            Book::new(points().take(n).map(move |point| {
                if is_shifted { point.map(|value| form.signed(value, down)) } else { point }
            }))
        };
        let is_held = |signs: &u8| match form.signs {
            Signs::Free => true,
            Signs::Even => signs.count_ones().is_multiple_of(2),
            Signs::Shift(_) => false,
        };
        let signs: Vec<u8> = (0..=u8::MAX).filter(is_held).collect();
        Self {
            form,
            quads: Book::new(quads.map(|point| [point[0], point[1], point[2], point[3]])),
            eights: [eights(false), eights(true)],
            factors: Book::new(signs.iter().map(|signs| factors(*signs))),
            signs,
        }
    }

    /// Returns the number of columns that share a shift; `None` for types with signs.
    pub(crate) fn shifted(&self) -> Option<usize> {
        match self.form.signs {
            Signs::Shift(group) => Some(group),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn prepare(&self, h: &UnitMetric, out: &mut PreparedMetric) {
        out.h = *h;
        if self.shifted().is_some() {
            for (book, squares) in self.eights.iter().zip(&mut out.squares) {
                book.squares(h, squares);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn values(&self, code: Code) -> Unit {
        if self.shifted().is_some() {
            return self.eights[usize::from(code.signs & 1)].vector(usize::from(code.points[0]));
        }
        let (magnitudes, factors) = (self.magnitudes(code), factors(code.signs));
        std::array::from_fn(|i| magnitudes[i] * factors[i])
    }

    #[inline(always)]
    fn magnitudes(&self, code: Code) -> Unit {
        if self.form.dims == UNIT {
            return self.eights[0].vector(usize::from(code.points[0]));
        }
        let [a, b] = code.points.map(|point| self.quads.vector(usize::from(point)));
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }

    /// Returns a code for values near `x` under a metric. Its signs are those of `x`, or the nearest that can be
    /// stored.
    #[inline(always)]
    pub(crate) fn near(&self, ready: &PreparedMetric, x: &Unit, shift: u8) -> Code {
        let h = &ready.h;
        let c = product(h, x);
        let mut code = Code { points: [0; 2], signs: shift };
        if self.shifted().is_none() {
            code.signs = self.signs_of(h, x);
            if self.form.dims != UNIT {
                // The first half is chosen with the ideal values in the second half.
                let signs = factors(code.signs);
                let magnitudes: Unit = std::array::from_fn(|i| x[i] * signs[i]);
                code.points[0] = self.half(h, &c, code.signs, 0, &magnitudes);
                code.points[1] = self.half(h, &c, code.signs, 1, &self.magnitudes(code));
            }
        }
        self.improve(ready, &c, code)
    }

    /// Returns the signs of `x`. If their number must be even and is odd, flips the one that matters least.
    #[inline(always)]
    fn signs_of(&self, h: &UnitMetric, x: &Unit) -> u8 {
        let mut signs = 0;
        let (mut least, mut at) = (f32::INFINITY, 0);
        for i in 0..UNIT {
            signs |= u8::from(x[i] < 0.0) << i;
            let weighted = h[i][i] * x[i] * x[i];
            if weighted < least {
                (least, at) = (weighted, i);
            }
        }
        let is_odd = signs.count_ones() % 2 == 1;
        if self.form.signs == Signs::Even && is_odd { signs ^ 1 << at } else { signs }
    }

    /// Improves a code by turns of points and signs, for the parabola `q h qᵀ - 2 q·c`; the result is never worse.
    #[inline(always)]
    pub(crate) fn improve(&self, ready: &PreparedMetric, c: &Unit, start: Code) -> Code {
        let h = &ready.h;
        let mut code = start;
        match self.form.signs {
            Signs::Shift(UNIT) => {
                let [up, down] = [0, 1].map(|shift| self.eights[shift].lowest_of(&ready.squares[shift], c));
                let signs = u8::from(down.1 < up.1);
                code = Code { points: [if signs == 1 { down.0 } else { up.0 } as u16, 0], signs };
            }
            Signs::Shift(_) => {
                let shift = usize::from(code.signs & 1);
                let (point, _) = self.eights[shift].lowest_of(&ready.squares[shift], c);
                code.points[0] = point as u16;
            }
            Signs::Free | Signs::Even => {
                for _ in 0..TURNS {
                    let before = code;
                    self.choose_points(h, c, &mut code);
                    self.choose_signs(h, c, &mut code);
                    // A single point is already the best for its signs; the first of two may not be.
                    let is_settled = self.form.dims == UNIT && code.signs == before.signs;
                    if is_settled || code == before {
                        break;
                    }
                }
            }
        }
        // Sums in another order may rank near ties differently.
        let is_lower = self.cost(h, c, code) < self.cost(h, c, start);
        if is_lower { code } else { start }
    }

    /// Computes `q h qᵀ - 2 q·c`.
    #[inline(always)]
    pub(crate) fn cost(&self, h: &UnitMetric, c: &Unit, code: Code) -> f32 {
        let q = self.values(code);
        let products = product(h, &q);
        let mut cost = 0.0;
        for i in 0..UNIT {
            cost += q[i] * (products[i] - 2.0 * c[i]);
        }
        cost
    }

    #[inline(always)]
    fn choose_points(&self, h: &UnitMetric, c: &Unit, code: &mut Code) {
        if self.form.dims != UNIT {
            for at in 0..2 {
                code.points[at] = self.half(h, c, code.signs, at, &self.magnitudes(*code));
            }
            return;
        }
        let (h, c) = substituted(h, c, &factors(code.signs));
        code.points[0] = self.eights[0].lowest(&h, &c).0 as u16;
    }

    /// Returns the best point of one half, with the magnitudes of the other half.
    #[inline(always)]
    fn half(&self, h: &UnitMetric, c: &Unit, signs: u8, at: usize, magnitudes: &Unit) -> u16 {
        let (h, c) = substituted(h, c, &factors(signs));
        let (own, other) = (4 * at, 4 - 4 * at);
        let mut part = [[0.0; 4]; 4];
        let mut linear = [0.0; 4];
        for i in 0..4 {
            linear[i] = c[own + i];
            for j in 0..4 {
                part[i][j] = h[own + i][own + j];
                linear[i] -= h[own + i][other + j] * magnitudes[other + j];
            }
        }
        self.quads.lowest(&part, &linear).0 as u16
    }

    #[inline(always)]
    fn choose_signs(&self, h: &UnitMetric, c: &Unit, code: &mut Code) {
        let (h, c) = substituted(h, c, &self.magnitudes(*code));
        code.signs = self.signs[self.factors.lowest(&h, &c).0];
    }
}

/// Returns the factors of sign bits: -1 for each set bit.
#[inline(always)]
fn factors(signs: u8) -> [f32; SIGNED] {
    std::array::from_fn(|i| if signs >> i & 1 == 0 { 1.0 } else { -1.0 })
}

/// Transforms the parabola to the unknown `x` for `q = x · by`.
#[inline(always)]
fn substituted(h: &UnitMetric, c: &Unit, by: &Unit) -> (UnitMetric, Unit) {
    let (mut substituted, mut linear) = (*h, *c);
    for i in 0..UNIT {
        linear[i] *= by[i];
        for j in 0..UNIT {
            substituted[i][j] *= by[i] * by[j];
        }
    }
    (substituted, linear)
}

#[inline(always)]
pub(crate) fn product(h: &UnitMetric, x: &Unit) -> Unit {
    let mut out = [0.0; UNIT];
    for j in 0..UNIT {
        for i in 0..UNIT {
            out[i] += h[j][i] * x[j];
        }
    }
    out
}
