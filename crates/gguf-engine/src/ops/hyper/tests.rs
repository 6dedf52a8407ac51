use super::*;
use crate::testkit::noise::Noise;

fn values(n: usize, seed: u64) -> Vec<f32> {
    Noise::new(seed).floats(n)
}

#[test]
fn rounds_make_a_matrix_doubly_stochastic() {
    let (n, eps) = (4, 1e-6);
    let mut matrix = values(16, 3);
    let before = matrix.clone();
    sinkhorn(&mut matrix, n, eps, 20);
    for at in 0..n {
        let row: f32 = matrix[at * n..][..n].iter().sum();
        let col: f32 = matrix.iter().skip(at).step_by(n).sum();
        assert!((row - 1.0).abs() < 1e-3 && (col - 1.0).abs() < 1e-5, "{row} {col}");
    }
    // One round in f64: softmax, then columns.
    let mut once = before.clone();
    sinkhorn(&mut once, n, eps, 1);
    let soft = |from: usize, to: usize| {
        let sum: f64 = before[from * n..][..n].iter().map(|&x| f64::from(x).exp()).sum();
        f64::from(before[from * n + to]).exp() / sum + f64::from(eps)
    };
    for from in 0..n {
        for to in 0..n {
            let sum: f64 = (0..n).map(|s| soft(s, to)).sum::<f64>() + f64::from(eps);
            assert!((f64::from(once[from * n + to]) - soft(from, to) / sum).abs() < 1e-6);
        }
    }
}

#[test]
fn weights_equal_their_formulas() {
    let n = 2;
    let sig = |x: f32| 1.0 / (1.0 + (-x).exp());
    let (products, base) = (values(8, 1), values(8, 2));
    let scale = [0.5, 2.0, -1.5];
    let mut mixed = products.clone();
    finish_weights(&mut mixed, n, &base, &scale, 0.25, StreamsWrite::Mix { iterations: 3 });
    let mut matrix: Vec<f32> = (4..8).map(|i| products[i] * scale[2] + base[i]).collect();
    sinkhorn(&mut matrix, n, 0.25, 3);
    let write = StreamsWrite::Add { magnitude: 3.0, eps: 0.5 };
    let mut added = products[..4].to_vec();
    finish_weights(&mut added, n, &base[..4], &scale[..2], 0.25, write);
    for i in 0..2 {
        let read = sig(products[i] * 0.5 + base[i]) + 0.25;
        let wrote = sig(products[n + i] * 2.0 + base[n + i]);
        assert!((mixed[i] - read).abs() < 1e-6 && (added[i] - read).abs() < 1e-6);
        assert!((mixed[n + i] - 2.0 * wrote).abs() < 1e-6);
        assert!((added[n + i] - (3.0 * wrote + 0.5)).abs() < 1e-6);
    }
    for (found, expected) in mixed[4..].iter().zip(&matrix) {
        assert!((found - expected).abs() < 1e-6);
    }
}

#[test]
fn streams_go_by_the_columns_of_the_matrix() {
    let mut x = [1.0, 2.0, 10.0, 20.0];
    mix(SimdLevel::detect(), &mut x, &[0.25, 0.75, 0.5, 0.5], 2, &mut Vec::new());
    assert_eq!(x, [5.25, 10.5, 5.75, 11.5]);
}
