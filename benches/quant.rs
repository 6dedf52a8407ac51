//! Speed of each type in bytes of f32 per second on one thread, scalar and at each level of the machine.
//!
//! `cargo bench --bench quant -- q6_k` runs one type. Names are `quantize/<type>[+imatrix]/<level>` and
//! `dequantize/<type>/<level>`.
#![allow(missing_docs, reason = "criterion's macro writes an undocumented main")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, ImatrixNeed};
use gguf_foundry::quant::{can_quantize, dequantize, quantize_rows};
use gguf_testkit::noise::Noise;

const N_COLS: usize = 2048;
const N_ROWS: usize = 512;

/// Returns bell-shaped values like weights, from a fixed seed.
fn bell(n_elems: usize) -> Vec<f32> {
    let mut noise = Noise::new(1);
    (0..n_elems).map(|_| noise.bell() / 32.0).collect()
}

fn all(criterion: &mut Criterion) {
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
            let name = format!("quantize/{}{suffix}", ty.name().to_lowercase());
            let mut group = criterion.benchmark_group(name);
            for level in SimdLevel::available() {
                // A slow scalar search gets few rows, so that a run stays short.
                let n_rows = if level == SimdLevel::Scalar { 16 } else { N_ROWS };
                let src = &src[..n_rows * N_COLS];
                let dst_bytes = src.len() / ty.block_elems() * ty.block_bytes();
                group.throughput(Throughput::Bytes(4 * src.len() as u64));
                group.bench_function(level.name(), |bencher| {
                    bencher.iter(|| {
                        let dst = &mut dst[..dst_bytes];
                        quantize_rows(ty, level, N_COLS, black_box(src), *weights, dst)
                    });
                });
            }
            group.finish();
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
        let mut group = criterion.benchmark_group(format!("dequantize/{}", ty.name().to_lowercase()));
        group.throughput(Throughput::Bytes(4 * values.len() as u64));
        for level in SimdLevel::available() {
            group.bench_function(level.name(), |bencher| {
                bencher.iter(|| dequantize(ty, level, black_box(&blocks), &mut values));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    targets = all
}
criterion_main!(benches);
