//! Nearest neighbours on a grid, one per lane. The contribution of a dimension to a distance depends on the level
//! alone, so it is looked up in a table of at most eight levels.

use super::codebook::{CodeBook, LIST_TILE, Neighbours};
use super::grid_search::OffGrid;
use super::lanes::{Lanes, MAX_WIDTH};

/// Odd numbers represented by the levels; tables of 2-bit levels hold them twice.
const fn odd_levels(n_levels: usize) -> [f32; 8] {
    let mut odd = [0.0; 8];
    let mut i = 0;
    while i < 8 {
        let level = if n_levels == 8 { i } else { i % 4 };
        odd[i] = (2 * level + 1) as f32;
        i += 1;
    }
    odd
}

static ODD_2: [f32; 8] = odd_levels(4);
static ODD_3: [f32; 8] = odd_levels(8);

/// Creates a table of the odd numbers represented by the levels.
#[inline(always)]
pub(super) fn odd_table<L: Lanes, const D: usize>(l: L) -> L::T {
    l.table(if D == 8 { &ODD_2 } else { &ODD_3 })
}

/// Runs `grid_search::best_neighbour` with one neighbour per lane; `scaled` is the table of scale times odd level.
#[inline(always)]
pub(super) fn best_neighbour<L: Lanes, const D: usize>(
    l: L,
    neighbours: Neighbours<'_>,
    x: &[f32; D],
    roots: &[f32; D],
    scaled: L::T,
) -> Result<u16, OffGrid> {
    let mut added = [scaled; D];
    for i in 0..D {
        let diff = scaled - l.splat_table(x[i]);
        added[i] = l.splat_table(roots[i]) * diff * diff;
    }
    let most = l.splat(f32::MAX);
    let tiles = neighbours.tiles();
    if let ([tile], LIST_TILE) = (tiles, L::WIDTH) {
        let distance = distances::<L, D>(l, &added, tile);
        let distance = l.select(l.gt(most, distance), distance, most);
        let least = l.least(distance);
        let lane = l.mask_bits(l.eq(distance, l.splat(least))).trailing_zeros() as usize;
        return if least < f32::MAX { tile.get(lane).copied().ok_or(OffGrid) } else { Err(OffGrid) };
    }
    let points = tiles.as_flattened();
    let mut best = most;
    let mut best_at = l.splat_i(0);
    for at in (0..points.len()).step_by(L::WIDTH) {
        let distance = distances::<L, D>(l, &added, &points[at..]);
        let better = l.gt(best, distance);
        best = l.select(better, distance, best);
        best_at = l.select_i(better, l.splat_i(at as i32), best_at);
    }
    let least = l.least(best);
    if least >= f32::MAX {
        return Err(OffGrid);
    }
    // Of equal distances the first in the list wins.
    let mut lanes = l.mask_bits(l.eq(best, l.splat(least)));
    let mut starts = [0; MAX_WIDTH];
    l.store_i(best_at, &mut starts);
    let mut first = usize::MAX;
    while lanes != 0 {
        let lane = lanes.trailing_zeros() as usize;
        first = first.min(starts[lane] as usize + lane);
        lanes &= lanes - 1;
    }
    points.get(first).copied().ok_or(OffGrid)
}

/// Runs [`best_neighbour`] on a grid of odd levels.
#[inline(always)]
pub(super) fn best_odd_neighbour<L: Lanes, const D: usize>(
    l: L,
    neighbours: Neighbours<'_>,
    x: &[f32; D],
    roots: &[f32; D],
    scale: f32,
) -> Result<u16, OffGrid> {
    best_neighbour(l, neighbours, x, roots, l.splat_table(scale) * odd_table::<L, D>(l))
}

/// Computes the distances of the first `WIDTH` points.
#[inline(always)]
fn distances<L: Lanes, const D: usize>(l: L, added: &[L::T; D], points: &[u16]) -> L::F {
    let points = l.load_u16(points);
    let mut distance = l.lookup(added[0], points);
    for i in 1..D {
        distance = distance + l.lookup(added[i], l.shr(points, CodeBook::<D>::BITS * i as u32));
    }
    distance
}
