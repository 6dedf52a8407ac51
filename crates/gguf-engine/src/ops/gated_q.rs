//! Gated queries (Qwen 3 Next): rows of the query projection hold for each head the query, then the gate of the head's
//! output, `sig(g)`.

use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;

/// Splits a row of heads of width `2 dk` into queries and gates.
fn cut(both: &[f32], queries: &mut [f32], gates: &mut [f32], dk: usize) {
    let heads = both.chunks_exact(2 * dk).zip(queries.chunks_exact_mut(dk)).zip(gates.chunks_exact_mut(dk));
    for ((both, query), gate) in heads {
        let (q, g) = both.split_at(dk);
        query.copy_from_slice(q);
        gate.copy_from_slice(g);
    }
}

/// Splits `q` into queries, which replace it, and gates, which are returned.
pub(crate) fn take_gates(cx: &Context<'_>, n_heads: usize, dk: usize, q: &mut Buffer) -> Buffer {
    let width = n_heads * dk;
    let n_rows = q.len() / (2 * width);
    let [mut queries, mut gates] = [(); 2].map(|()| cx.take(n_rows * width));
    for (at, both) in q.chunks_exact(2 * width).enumerate() {
        let row = at * width..(at + 1) * width;
        cut(both, &mut queries[row.clone()], &mut gates[row], dk);
    }
    let both = std::mem::replace(q, queries);
    cx.give([both]);
    gates
}

/// Computes `context *= sig(gates)`, in rows of `n_cols`.
pub(crate) fn apply_gates(cx: &Context<'_>, gates: Option<Buffer>, context: &mut [f32], n_cols: usize) {
    if let Some(gates) = gates {
        let level = cx.weights.level;
        cx.each_row(context, n_cols, &gates, n_cols, |y, g| {
            math::times_sigmoid(level, y, g);
        });
        cx.give([gates]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_gates_alternate_by_head() {
        let both: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let (mut queries, mut gates) = ([0.0; 4], [0.0; 4]);
        cut(&both, &mut queries, &mut gates, 2);
        assert_eq!((queries, gates), ([0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]));
    }
}
