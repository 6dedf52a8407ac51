//! Checks that the layer reads the values of generated modules: at once, in pieces, through buffers, and as blocks.

use gguf_core::simd::SimdLevel;
use gguf_core::{Packing, SourceError, WeightSource};
use gguf_dequant::msmodelslim::OffsetSign;
use gguf_dequant::{Configurations, DequantError, DequantOptions, Opened, open};
use gguf_testkit::codes::{Made, Noise};
use gguf_testkit::memory::{MemoryWeights, f32_values};
use serde_json::Value as Json;

fn configurations(made: &Made) -> Configurations {
    let Json::Object(config) = made.config.clone() else { panic!("an object") };
    Configurations { config, ..Configurations::default() }
}

/// Opens the parts with their configuration.
pub fn opened(made: &Made) -> Result<Opened, DequantError> {
    let options = DequantOptions { offset_sign: OffsetSign::Auto, level: SimdLevel::detect() };
    let parts = made.parts.iter().fold(MemoryWeights::default(), |all, part| {
        all.with(&part.name, &part.dims, part.ty, part.bytes.clone())
    });
    open(&configurations(made), Box::new(parts), options)
}

/// Layer over the parts, with the widest available vector instructions.
pub fn layer(made: &Made, is_mapped: bool) -> Result<Box<dyn WeightSource + Send>, DequantError> {
    layer_at(made, is_mapped, SimdLevel::detect())
}

fn layer_at(
    made: &Made,
    is_mapped: bool,
    level: SimdLevel,
) -> Result<Box<dyn WeightSource + Send>, DequantError> {
    let options = DequantOptions { offset_sign: OffsetSign::Auto, level };
    let parts = made.parts.iter().fold(MemoryWeights::default().mapped(is_mapped), |all, part| {
        all.with(&part.name, &part.dims, part.ty, part.bytes.clone())
    });
    open(&configurations(made), Box::new(parts), options).map(|opened| opened.source)
}

/// Reads elements as F32.
pub fn read(source: &dyn WeightSource, weight: usize, first: u64, n: u64) -> Result<Vec<f32>, SourceError> {
    let mut bytes = vec![0; n as usize * 4];
    source.read_elems(weight, first, &mut bytes)?;
    Ok(f32_values(&bytes))
}

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
}

/// Checks that the layer gives the expected values for any ranges.
pub fn check(made: &Made, noise: &mut Noise) {
    let expected: Vec<f32> = (0..made.n_rows)
        .flat_map(|row| (0..made.n_cols).map(move |col| (row, col)))
        .map(|(row, col)| (made.value)(row, col))
        .collect();
    // Each level uses either buffers or the mapping; the scalar level is tested with both.
    let levels = SimdLevel::available().enumerate().map(|(at, level)| (at % 2 == 0, level));
    for (is_mapped, level) in levels.chain([(false, SimdLevel::Scalar)]) {
        let source =
            layer_at(made, is_mapped, level).unwrap_or_else(|error| panic!("{}: {error}", made.config));
        let index = source.weights().iter().position(|meta| meta.name == made.name).unwrap();
        assert_eq!(source.weights().len(), 1, "{}", made.config);
        let meta = &source.weights()[index];
        assert_eq!((meta.shape.n_rows(), meta.shape.n_cols()), (made.n_rows, made.n_cols));
        let n = expected.len() as u64;
        let mut ranges = Vec::new();
        ranges.push(0..n);
        for _ in 0..6 {
            let start = noise.below(n);
            ranges.push(start..start + 1 + noise.below(n - start));
            // Rectangle of some columns, row after row.
            let col = noise.below(made.n_cols);
            let end = col + 1 + noise.below(made.n_cols - col);
            let row = noise.below(made.n_rows);
            let rows = row..made.n_rows.min(row + 3);
            ranges.extend(rows.map(|row| row * made.n_cols + col..row * made.n_cols + end));
        }
        for range in ranges {
            let found = read(&*source, index, range.start, range.end - range.start).unwrap();
            for (at, found) in range.zip(found) {
                let expected = expected[at as usize];
                let place = (at / made.n_cols, at % made.n_cols);
                assert!(same(found, expected), "{}: {place:?} is {found}, not {expected}", made.config);
            }
        }
        for packing in source.packings(index).unwrap() {
            if packing.ty.is_quantized() {
                check_blocks(made, &*source, index, &packing, &expected, noise);
            } else {
                let narrowed = |value: f32| match packing.ty.name() {
                    "BF16" => half::bf16::from_f32(value).to_f32(),
                    _ => half::f16::from_f32(value).to_f32(),
                };
                let is_exact = expected.iter().all(|&value| same(narrowed(value), value));
                assert!(is_exact, "{}: {} is not exact", made.config, packing.ty);
            }
        }
    }
}

/// Checks that the blocks hold the values: exactly, or up to the scale error that the packing declares.
fn check_blocks(
    made: &Made,
    source: &dyn WeightSource,
    index: usize,
    packing: &Packing,
    expected: &[f32],
    noise: &mut Noise,
) {
    let (elems, bytes) = (packing.ty.block_elems(), packing.ty.block_bytes());
    let n_blocks = expected.len() / elems;
    let start = noise.below(n_blocks as u64) as usize;
    let end = start + 1 + noise.below((n_blocks - start) as u64) as usize;
    for blocks in [0..n_blocks, start..end] {
        let mut packed = vec![0; blocks.len() * bytes];
        source.read_packed(index, packing.ty, (blocks.start * elems) as u64, &mut packed).unwrap();
        let mut found = vec![0f32; blocks.len() * elems];
        gguf_blocks::dequantize(packing.ty, SimdLevel::Scalar, &packed, &mut found).unwrap();
        let has_factor = packing.scale.is_some() || packing.stack.is_some();
        let range = blocks.start * elems..blocks.end * elems;
        for ((at, found), &expected) in range.clone().zip(&found).zip(&expected[range]) {
            let of_matrix = packing.stack.as_ref().map(|stack| stack.scales[at / stack.n_elems as usize]);
            let found = found * of_matrix.or(packing.scale).unwrap_or(1.0);
            // A companion factor adds three different roundings: the reciprocal of a divisor, the product with it, and
            // the expected value's own quotient. A rounded scale leaves the rounding of the product.
            let step = if has_factor || !packing.is_exact() { 3.0 / 16_777_216.0 } else { 0.0 };
            let allowed = expected.abs() * (packing.scale_error + step);
            assert!(
                found == expected || (found - expected).abs() <= allowed,
                "{} as {}: {found}, not {expected}",
                made.config,
                packing.ty
            );
        }
    }
}
