//! Arithmetic in f64 that the engine's results are compared with.

/// Returns `W x`.
pub fn times(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

/// Returns the RMS norm of `x` with weights `w`.
pub fn normed(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(w).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// Asserts that every element is within `tolerance` of the expected one.
#[track_caller]
pub fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*x) - y).abs() < tolerance, "{at}: {x} and {y}");
    }
}
