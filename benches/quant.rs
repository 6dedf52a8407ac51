//! Speed of each type in bytes of f32 per second on one thread, scalar and at each level of the machine.
//!
//! `cargo bench --bench quant -- q6_k` runs the cases with this text in their names, which are
//! `quantize/<type>[+imatrix]/<level>` and `dequantize/<type>/<level>`. As a test every case runs once.
#![allow(clippy::print_stdout, reason = "a benchmark prints for its reader")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, ImatrixNeed};
use gguf_foundry::quant::{can_quantize, dequantize, quantize_rows};
use gguf_testkit::noise::Noise;

const N_COLS: usize = 2048;
const N_ROWS: usize = 512;
const WARM_UP: Duration = Duration::from_millis(100);
const SAMPLE: Duration = Duration::from_millis(30);

/// Returns bell-shaped values like weights, from a fixed seed.
fn bell(n_elems: usize) -> Vec<f32> {
    let mut noise = Noise::new(1);
    (0..n_elems).map(|_| noise.bell() / 32.0).collect()
}

/// Calls a function for at least this time and returns the seconds of a call.
fn seconds<T>(least: Duration, work: &mut impl FnMut() -> T) -> f64 {
    let (start, mut n_calls) = (Instant::now(), 0u32);
    while n_calls == 0 || start.elapsed() < least {
        black_box(work());
        n_calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(n_calls)
}

/// Runs a case, if it is wanted, and prints the median of ten samples.
fn run<T>(name: &str, n_elems: usize, mut work: impl FnMut() -> T) {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if !wanted.is_empty() && !wanted.iter().any(|text| name.contains(text)) {
        return;
    }
    if !std::env::args().any(|arg| arg == "--bench") {
        black_box(work());
        return;
    }
    seconds(WARM_UP, &mut work);
    let mut samples = [(); 10].map(|()| seconds(SAMPLE, &mut work));
    samples.sort_by(f64::total_cmp);
    let median = f64::midpoint(samples[4], samples[5]);
    println!("{name:<40} {:>10.1} µs {:>8.3} GB/s", median * 1e6, (4 * n_elems) as f64 / median / 1e9);
}

fn main() {
    let src = bell(N_ROWS * N_COLS);
    let imatrix: Vec<f32> = bell(N_COLS).iter().map(|value| value * value + 1e-4).collect();
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty)) {
        let mut dst = vec![0; src.len() / ty.block_elems() * ty.block_bytes()];
        let weights: &[Option<&[f32]>] = match ty.info().imatrix {
            ImatrixNeed::Ignored => &[None],
            ImatrixNeed::Optional => &[None, Some(&imatrix)],
            ImatrixNeed::Required => &[Some(&imatrix)],
        };
        for weights in weights {
            let suffix = if weights.is_some() { "+imatrix" } else { "" };
            for level in SimdLevel::available() {
                // A slow scalar search gets few rows, so that a run stays short.
                let n_rows = if level == SimdLevel::Scalar { 16 } else { N_ROWS };
                let src = &src[..n_rows * N_COLS];
                let dst = &mut dst[..src.len() / ty.block_elems() * ty.block_bytes()];
                let name = format!("quantize/{}{suffix}/{}", ty.name().to_lowercase(), level.name());
                run(&name, src.len(), || quantize_rows(ty, level, N_COLS, black_box(src), *weights, dst));
            }
        }
    }
    for ty in GgmlType::all().filter(|ty| can_quantize(*ty)) {
        // A few rows, repeated: quantizing is the slow part.
        let few = &src[..8 * N_COLS];
        let mut blocks = vec![0; few.len() / ty.block_elems() * ty.block_bytes()];
        let imatrix = Some(imatrix.as_slice());
        let level = SimdLevel::detect();
        if quantize_rows(ty, level, N_COLS, few, imatrix, &mut blocks).is_err() {
            continue;
        }
        let blocks = blocks.repeat(N_ROWS / 8);
        let mut values = vec![0.0; src.len()];
        for level in SimdLevel::available() {
            let name = format!("dequantize/{}/{}", ty.name().to_lowercase(), level.name());
            run(&name, src.len(), || dequantize(ty, level, black_box(&blocks), &mut values));
        }
    }
}
