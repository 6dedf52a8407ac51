//! Seconds of each phase on random layers: `cargo run --release -p gguf-solve --example solve_speed [TYPE…]`.
//!
//! Uses all threads of the machine; `RAYON_NUM_THREADS` limits them.

use std::io::Write;
use std::time::Instant;

use gguf_core::{GgmlType, simd::SimdLevel};
use gguf_matmul::{MatrixTile, MatrixView, ordered_multiply};
use gguf_solve::{
    Correction, Metric, SHRINKAGE, SecondMoments, SolveError, SolveOptions, Start, objective, solve_rows,
};

use gguf_testkit::noise::Noise;

/// Rows and columns of the layers.
const SHAPES: [(usize, usize); 4] = [(1536, 576), (2048, 1536), (2048, 2048), (2048, 5632)];

/// Returns moments of inputs whose neighbouring columns are correlated.
fn moments(n: usize) -> Result<SecondMoments, SolveError> {
    let n_tokens = 1024;
    let mut noise = Noise::new(1);
    let size: Vec<f32> = (0..n).map(|_| (0.7 * noise.normal()).exp()).collect();
    let mut x = vec![0.0f32; n_tokens * n];
    for row in x.chunks_mut(n) {
        let mut last = 0.0;
        for (x, size) in row.iter_mut().zip(&size) {
            last = 0.9 * last + 0.4 * noise.normal();
            *x = last * size / 32.0;
        }
    }
    let mut transposed = vec![0.0f32; n * n_tokens];
    for (token, row) in x.chunks(n).enumerate() {
        for (column, x) in row.iter().enumerate() {
            transposed[column * n_tokens + token] = *x;
        }
    }
    let mut values = vec![0.0f32; n * n];
    let (left, right) =
        (MatrixView::new(&transposed, n, n_tokens, n_tokens), MatrixView::new(&x, n_tokens, n, n));
    ordered_multiply(&mut MatrixTile::whole(&mut values, n, n), left, right, 1.0);
    SecondMoments::new(n, n_tokens as u64, values)
}

/// Returns seconds of processor time of all threads if the system reports them (Linux), since other work on the machine
/// lengthens the wall-clock time. Otherwise returns wall-clock seconds.
fn processor_seconds(since: Instant) -> f64 {
    let ticks = || {
        let stat = fs_err::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / 100.0)
    };
    ticks().unwrap_or_else(|| since.elapsed().as_secs_f64())
}

/// Runs `work` and returns wall-clock seconds, seconds of processor time, and the result.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, f64, T) {
    let start = Instant::now();
    let before = processor_seconds(start);
    let result = work();
    (start.elapsed().as_secs_f64(), processor_seconds(start) - before, result)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let level = SimdLevel::detect();
    let names: Vec<String> = std::env::args().skip(1).collect();
    let types: Vec<GgmlType> = match names.len() {
        0 => vec![GgmlType::Q4K, GgmlType::Q3K, GgmlType::Q4_0, GgmlType::Iq4Xs],
        _ => names.iter().filter_map(|name| GgmlType::from_name(name)).collect(),
    };
    let mut noise = Noise::new(2);
    for (n_rows, n_cols) in SHAPES {
        let moments = moments(n_cols)?;
        let (clock, processor, metric) = timed(|| Metric::new(&moments, SHRINKAGE));
        let metric = metric?;
        writeln!(out, "{n_rows} x {n_cols}: factor {clock:.2} s (processor {processor:.2} s)")?;
        let w: Vec<f32> = (0..n_rows * n_cols).map(|_| 0.02 * noise.normal()).collect();
        let correction = Correction::new(&moments, 1.0)?;
        let (clock, processor, by_inputs) = timed(|| correction.of_inputs(moments.values().to_vec()));
        let by_inputs = by_inputs?;
        writeln!(out, "    change of inputs: {clock:.2} s (processor {processor:.2} s)")?;
        let lost = vec![0.0; w.len()];
        for is_output in [false, true] {
            let mut moved = w.clone();
            let apply =
                || if is_output { correction.apply(&mut moved, &lost) } else { by_inputs.apply(&mut moved) };
            let (clock, processor, result) = timed(apply);
            result?;
            let kind = if is_output { "outputs" } else { "inputs" };
            writeln!(out, "    corrected targets, {kind}: {clock:.2} s (processor {processor:.2} s)")?;
        }
        let weights = moments.diagonal();
        for ty in types.iter().copied().filter(|ty| n_cols.is_multiple_of(ty.block_elems())) {
            let mut start = vec![0; n_rows * n_cols / ty.block_elems() * ty.block_bytes()];
            let quantize = || gguf_blocks::quantize_rows(ty, level, n_cols, &w, Some(&weights), &mut start);
            let (_, quantizer, result) = timed(quantize);
            result?;
            let mut blocks = start.clone();
            let mut solve = |passes: usize| {
                let options = SolveOptions { passes };
                timed(|| solve_rows(ty, level, &w, Start::Blocks(&start), &metric, options, &mut blocks))
            };
            let (_, feedback, result) = solve(0);
            result?;
            let (clock, all, result) = solve(2);
            result?;
            let before = objective(ty, level, &w, &start, &moments)?;
            let after = objective(ty, level, &w, &blocks, &moments)?;
            let per_134_m = 134e6 / (n_rows * n_cols) as f64 * all;
            writeln!(
                out,
                "    {ty}: {clock:.2} s; processor: quantizer {quantizer:.2} s, feedback {feedback:.2} s, descent {:.2} s, \
                 both for 134 M weights {per_134_m:.1} s; error {:.3} of the importance matrix's",
                all - feedback,
                after / before,
            )?;
        }
    }
    Ok(())
}
