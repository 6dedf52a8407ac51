//! Speed limit of the machine: plain `gemm` on given shapes.

use std::time::Instant;

use gemm_common::gemm::{
    DEFAULT_LHS_PACKING_THRESHOLD_SINGLE_THREAD, set_lhs_packing_threshold_single_thread,
};

use crate::model::values;
use crate::testkit::noise::Noise;

/// Products of a matrix `[rows, cols]` with `n_tokens` rows each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) n_tokens: usize,
}

impl Job {
    pub(crate) fn flops(&self) -> f64 {
        2.0 * (self.rows * self.cols * self.n_tokens) as f64
    }
}

struct Data {
    job: Job,
    matrix: Vec<f32>,
    x: Vec<f32>,
}

/// Measures the seconds of the products: the better of two runs.
pub(crate) fn ceiling(jobs: &[Job], n_threads: usize) -> f64 {
    // The engine changes this setting of the crate.
    set_lhs_packing_threshold_single_thread(DEFAULT_LHS_PACKING_THRESHOLD_SINGLE_THREAD);
    let mut noise = Noise::new(7);
    let data: Vec<Data> = jobs
        .iter()
        .map(|job| {
            // Threads share the tokens.
            let job = Job { n_tokens: job.n_tokens.div_ceil(n_threads), ..*job };
            let matrix = values(job.rows * job.cols, &mut noise);
            Data { job, matrix, x: values(job.n_tokens * job.cols, &mut noise) }
        })
        .collect();
    let widest = data.iter().map(|data| data.job.rows * data.job.n_tokens).max().unwrap_or(0);
    let mut outs: Vec<Vec<f32>> = (0..n_threads).map(|_| vec![0.0; widest]).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for out in &mut outs {
                let data = &data;
                scope.spawn(move || {
                    for Data { job, matrix, x } in data {
                        multiply(job, matrix, x, out);
                        std::hint::black_box(&out);
                    }
                });
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Computes `out = x weightsᵀ`, `[n_tokens, rows]`.
fn multiply(job: &Job, weights: &[f32], x: &[f32], out: &mut [f32]) {
    let Job { rows, cols, n_tokens } = *job;
    assert!(weights.len() >= rows * cols && x.len() >= n_tokens * cols && out.len() >= n_tokens * rows);
    #[allow(unsafe_code, reason = "the plain call of the crate is what is measured")]
    // SAFETY: `out`, `x` and `weights` have at least the sizes and strides given (asserted above).
    unsafe {
        // The product by columns, as the kernels write it: `outᵀ = weights xᵀ`.
        gemm_f32::gemm::f32::get_gemm_fn()(
            rows,
            n_tokens,
            cols,
            out.as_mut_ptr(),
            rows as isize,
            1,
            false,
            weights.as_ptr(),
            1,
            cols as isize,
            x.as_ptr(),
            cols as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}
