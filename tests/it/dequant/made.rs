//! Generated modules, with a value for every element that was computed bit by bit, and checks that the layer reads the
//! same values: at once, in pieces, through buffers, and as blocks.

use gguf_foundry::convert::OffsetSign;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{ElementType, Packing, SourceError, WeightSource};
use gguf_foundry::dequant::{Configurations, DequantError, DequantOptions, open};
use gguf_foundry::quant;
use serde_json::{Value as Json, json};

use crate::testkit::checkpoints::Safetensors;
pub use crate::testkit::memory::f32_bytes as f32s;
use crate::testkit::memory::{MemoryWeights, f32_values};
pub use crate::testkit::noise::Noise;

/// Noise of a module; `proptest-regressions` has seeds that mean these sequences.
pub fn noise(seed: u64) -> Noise {
    Noise::new(seed ^ 0x9e37_79b9_7f4a_7c15)
}

/// Random finite scale that F16 and BF16 can hold, of either sign and rarely zero.
pub fn short_scale(noise: &mut Noise) -> f32 {
    match noise.below(16) {
        0 => 0.0,
        n => {
            let magnitude = (128 + noise.below(128)) as f32 / 128.0 / (1 << (n % 12)) as f32;
            if noise.below(4) == 0 { -magnitude } else { magnitude }
        }
    }
}

/// Tensor of a checkpoint.
#[derive(Clone)]
pub struct Part {
    pub name: String,
    pub ty: ElementType,
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// Value of an element of the decoded matrix, by row and column.
pub type Value = Box<dyn Fn(u64, u64) -> f32>;

/// Checkpoint of one module, with its decoded values.
pub struct Made {
    /// Content of `config.json`.
    pub config: Json,
    pub parts: Vec<Part>,
    /// Name of the decoded weight.
    pub name: String,
    pub n_rows: u64,
    pub n_cols: u64,
    pub value: Value,
}

/// Module name of every generated checkpoint; quanto derives the shape from it.
pub const MODULE: &str = "model.layers.0.mlp.up_proj";

impl Made {
    /// Creates a module of this method; `settings` is the rest of its configuration.
    pub fn new(method: &str, settings: Json, shape: [u64; 2], value: Value) -> Self {
        let mut description = settings;
        description["quant_method"] = json!(method);
        let config = json!({ "quantization_config": description, "hidden_size": shape[1] });
        let name = format!("{MODULE}.weight");
        Self { config, parts: Vec::new(), name, n_rows: shape[0], n_cols: shape[1], value }
    }

    /// Adds a tensor of the module.
    pub fn part(mut self, suffix: &str, ty: ElementType, dims: &[u64], bytes: &[u8]) -> Self {
        let name = format!("{MODULE}{suffix}");
        self.parts.push(Part { name, ty, dims: dims.to_vec(), bytes: bytes.to_vec() });
        self
    }

    pub fn configurations(&self) -> Configurations {
        let Json::Object(config) = self.config.clone() else { panic!("an object") };
        Configurations { config, ..Configurations::default() }
    }
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
    open(&made.configurations(), Box::new(parts), options).map(|opened| opened.source)
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
        quant::dequantize(packing.ty, SimdLevel::Scalar, &packed, &mut found).unwrap();
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

/// Bit of a tensor, counted from the lowest bit of its first byte. 32-bit words are little-endian, so bit `b` of word
/// `w` is bit `32 w + b`.
pub fn bit(bytes: &[u8], at: u64) -> u32 {
    u32::from(bytes[(at / 8) as usize] >> (at % 8)) & 1
}

/// Number whose bits, lowest first, are at the positions that `place` returns.
pub fn number(bytes: &[u8], n_bits: u64, place: impl Fn(u64) -> u64) -> u32 {
    (0..n_bits).map(|j| bit(bytes, place(j)) << j).sum()
}

/// Random scales in one of the types that scales can have.
pub fn scales(noise: &mut Noise, n: u64) -> (ElementType, Vec<f32>, Vec<u8>) {
    let mut values: Vec<f32> = (0..n).map(|_| short_scale(noise)).collect();
    let (ty, bytes) = match noise.below(4) {
        0 => {
            // More precision than F16 holds.
            for value in &mut values {
                *value *= 1.0 + noise.below(512) as f32 / 8388608.0;
            }
            (ElementType::F32, f32s(&values))
        }
        1 => (ElementType::F32, f32s(&values)),
        2 => {
            let half = |&value| half::f16::from_f32(value).to_le_bytes();
            (ElementType::F16, values.iter().flat_map(half).collect())
        }
        _ => {
            let half = |&value| half::bf16::from_f32(value).to_le_bytes();
            (ElementType::Bf16, values.iter().flat_map(half).collect())
        }
    };
    (ty, values, bytes)
}

/// Bytes of I32 numbers.
pub fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Bytes of I64 numbers.
pub fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Safetensors file of these tensors.
pub fn safetensors(parts: &[Part]) -> Safetensors {
    let mut file = Safetensors::default();
    for part in parts {
        file.add(&part.name, part.ty.name(), &part.dims, &part.bytes);
    }
    file
}

/// Writes a checkpoint as files.
pub fn write(config: &Json, parts: &[Part], dir: &std::path::Path) {
    safetensors(parts).write_checkpoint(dir, config);
}
