//! Quantizers compared with the golden blocks: every type, input and importance matrix, at every vector level of the
//! machine and with 1, 2 and 7 threads.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod iq;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use gguf_blocks::{can_quantize, dequantize, quantize_rows, validate_blocks};
use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;
use rayon::ThreadPool;
use rayon::prelude::*;
use serde_json::Value;

use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::memory::{f32_bytes, f32_values};
use gguf_testkit::noise::Noise;
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases, sha256};

const THREADS: [usize; 3] = [1, 2, 7];

/// Little-endian F32 array of NumPy's format 1.0, without its shape.
fn npy(path: &Path) -> Vec<f32> {
    let bytes = fs_err::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{}", path.display());
    let header_bytes = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + header_bytes]).unwrap();
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    f32_values(&bytes[10 + header_bytes..])
}

fn field<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

fn number(case: &Value, key: &str) -> usize {
    usize::try_from(case[key].as_u64().unwrap()).unwrap()
}

/// Returns the pool of a number of threads, which all cases share.
fn pool(n_threads: usize) -> &'static ThreadPool {
    static POOLS: LazyLock<[ThreadPool; 3]> =
        LazyLock::new(|| THREADS.map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()));
    POOLS.iter().find(|pool| pool.current_num_threads() == n_threads).unwrap()
}

/// Quantizes with `n_threads` threads, one task per row or few rows.
fn quantize(
    ty: GgmlType,
    level: SimdLevel,
    n_threads: usize,
    n_cols: usize,
    src: &[f32],
    imatrix: Option<&[f32]>,
) -> Vec<u8> {
    let row_bytes = usize::try_from(ty.row_bytes(n_cols as u64).unwrap()).unwrap();
    let n_rows = src.len() / n_cols;
    let mut dst = vec![0xa5; n_rows * row_bytes];
    let task_rows = n_rows.div_ceil(n_threads);
    pool(n_threads).install(|| {
        dst.par_chunks_mut(task_rows * row_bytes)
            .zip(src.par_chunks(task_rows * n_cols))
            .for_each(|(dst, src)| quantize_rows(ty, level, n_cols, src, imatrix, dst).unwrap());
    });
    dst
}

/// Compares `bytes`, decoded at every level, with the golden floats.
fn check_floats(ty: GgmlType, name: &str, bytes: &[u8], case: &Value, golden: Option<&[u8]>) {
    let n_elems = bytes.len() / ty.block_bytes() * ty.block_elems();
    for level in SimdLevel::available() {
        let mut values = vec![0.0; n_elems];
        dequantize(ty, level, bytes, &mut values).unwrap();
        let raw = f32_bytes(&values);
        if let (Some(golden), Some(at)) = (golden, case["f32_offset"].as_u64()) {
            let at = usize::try_from(at).unwrap();
            let want = &golden[at..at + raw.len()];
            if let Some(at) = (0..raw.len()).find(|at| raw[*at] != want[*at]) {
                let want = f32_values(&want[at / 4 * 4..at / 4 * 4 + 4]);
                panic!("{name} {level}: element {}: {:e}, want {:e}", at / 4, values[at / 4], want[0]);
            }
        }
        if let Some(want) = case["f32_sha256"].as_str() {
            assert_eq!(sha256(&raw), want, "{name} {level}: floats");
        }
    }
}

tiered_conformance_tests!(golden_blocks);
/// Every day a fifth of the cases, each with one of the numbers of threads.
fn golden_blocks(corpus: &Goldens, tier: Tier) {
    let dir = corpus.join("quant");
    let index = files::json(dir.join("index.json"));
    let mut inputs = BTreeMap::new();
    for (name, input) in index["inputs"].as_object().unwrap() {
        inputs.insert(name.as_str(), npy(&dir.join(field(input, "file"))));
    }
    let mut imatrices = BTreeMap::new();
    for (name, imatrix) in index["imatrices"].as_object().unwrap() {
        imatrices.insert(name.as_str(), npy(&dir.join(field(imatrix, "file"))));
    }
    let mut blocks = BTreeMap::new();
    let mut n_cases = 0;
    let mut unplugged = BTreeMap::<&str, usize>::new();
    for case in tier.some(5, index["cases"].as_array().unwrap()) {
        let (type_name, input) = (field(case, "type"), field(case, "input"));
        // The CPU backend's activations depend on its build; aborted rows have no bytes.
        if type_name.contains('@') || !case["aborted_rows"].is_null() {
            continue;
        }
        let ty = GgmlType::from_name(type_name).unwrap();
        let informational = matches!(ty, GgmlType::Q8_1 | GgmlType::Q8K);
        if !informational && !can_quantize(ty) {
            *unplugged.entry(type_name).or_default() += 1;
            continue;
        }
        let name = format!("{type_name} {input} {}", field(case, "imatrix"));
        let file = field(case, "file");
        let golden = blocks.entry(file).or_insert_with(|| {
            let path = dir.join(file);
            (fs_err::read(&path).unwrap(), fs_err::read(path.with_extension("f32")).ok())
        });
        let at = number(case, "offset");
        let want = &golden.0[at..at + number(case, "size")];
        assert_eq!(sha256(want), field(case, "sha256"), "{name}: the corpus itself");
        n_cases += 1;
        if ty != GgmlType::Q8_1 {
            check_floats(ty, &name, want, case, golden.1.as_deref());
        }
        let validates = case["validates"].as_bool().unwrap_or(true);
        if !informational {
            assert_eq!(validate_blocks(ty, want).is_ok(), validates, "{name}: validation");
        }
        let Some(src) = inputs.get(input) else {
            // Random blocks are only decoded.
            continue;
        };
        let n_cols = number(case, "cols");
        let imatrix = imatrices.get(field(case, "imatrix")).map(|weights| &weights[..n_cols]);
        let one = [THREADS[n_cases % 3]];
        for level in SimdLevel::available() {
            for &n_threads in tier.of(&one[..], &THREADS[..]) {
                let bytes = quantize(ty, level, n_threads, n_cols, src, imatrix);
                let block_bytes = ty.block_bytes();
                if ty == GgmlType::Q8K && bytes != want {
                    // ggml leaves the sums of an all-zero block unwritten.
                    let same = bytes
                        .chunks_exact(block_bytes)
                        .zip(want.chunks_exact(block_bytes))
                        .all(|(ours, theirs)| ours == theirs || ours[..260] == theirs[..260]);
                    assert!(same, "{name} {level}");
                    continue;
                }
                if let Some(at) = (0..want.len()).find(|at| bytes[*at] != want[*at]) {
                    let block = at / block_bytes * block_bytes;
                    panic!(
                        "{name} {level} {n_threads} threads: block {}, byte {}\n ours {:02x?}\n want {:02x?}",
                        at / block_bytes,
                        at % block_bytes,
                        &bytes[block..block + block_bytes],
                        &want[block..block + block_bytes],
                    );
                }
            }
        }
    }
    println!("types without a quantizer: {unplugged:?}");
    // The first row of the index grows with the types; a table that loses one fails here.
    assert!(n_cases >= tier.of(200, 900), "{n_cases} cases");
    report_cases("golden blocks", n_cases);
}

/// Returns a number as `bulk.json` describes it.
fn tri(noise: &mut Noise) -> f32 {
    noise.bell() / 32.0
}

fn bulk(name: &str, n_elems: usize) -> Vec<f32> {
    match name {
        "bulk_bell" => {
            let mut noise = Noise::new(1);
            (0..n_elems).map(|_| tri(&mut noise)).collect()
        }
        "bulk_heavy" => {
            let mut noise = Noise::new(2);
            (0..n_elems)
                .map(|_| {
                    let value = tri(&mut noise);
                    value * 2f32.powi(noise.bits().trailing_ones().min(7) as i32)
                })
                .collect()
        }
        "bulk_imx" => {
            let mut noise = Noise::new(3);
            (0..n_elems)
                .map(|_| {
                    let u = ((noise.bits() >> 40) + 1) as f32 * 2f32.powi(-24);
                    (u * u) * (u * u)
                })
                .collect()
        }
        _ => panic!("unknown input {name}"),
    }
}

tiered_conformance_tests!(golden_bulk);
/// Every day the first 32 rows, whose checksum the file has, too.
fn golden_bulk(corpus: &Goldens, tier: Tier) {
    let dir = corpus.join("quant");
    let file = files::json(dir.join("bulk.json"));
    let (n_rows, n_cols) = (number(&file, "rows"), number(&file, "cols"));
    let mut inputs = BTreeMap::new();
    for (name, want) in file["f32_sha256"].as_object().unwrap() {
        let n_elems = if name == "bulk_imx" { n_cols } else { n_rows * n_cols };
        let values = bulk(name, n_elems);
        let raw = f32_bytes(&values);
        assert_eq!(&sha256(&raw), want.as_str().unwrap(), "{name}: the generator");
        inputs.insert(name.as_str(), values);
    }
    let n_chunks = tier.of(1, n_rows / 32);
    let mut n_cases = 0;
    for case in file["cases"].as_array().unwrap() {
        let type_name = field(case, "type");
        let ty = GgmlType::from_name(type_name).unwrap();
        if !can_quantize(ty) && !matches!(ty, GgmlType::Q8_1 | GgmlType::Q8K) {
            continue;
        }
        n_cases += 1;
        let src = &inputs[field(case, "input")][..n_chunks * 32 * n_cols];
        let imatrix = inputs.get(field(case, "imatrix")).map(Vec::as_slice);
        for level in SimdLevel::available() {
            let bytes = quantize(ty, level, 2, n_cols, src, imatrix);
            let wrong: Vec<usize> = bytes
                .chunks(bytes.len() / n_chunks)
                .zip(case["chunks"].as_array().unwrap())
                .enumerate()
                .filter(|(_, (ours, want))| !sha256(ours).starts_with(want.as_str().unwrap()))
                .map(|(chunk, _)| chunk)
                .collect();
            let is_whole = !tier.is_deep() || sha256(&bytes) == field(case, "sha256");
            assert!(
                wrong.is_empty() && is_whole,
                "{type_name} {} {} {level}: chunks of 32 rows that differ: {wrong:?}",
                field(case, "input"),
                field(case, "imatrix"),
            );
        }
    }
    report_cases("golden bulk", n_cases);
}
