//! What is written passes the structural checks: every architecture, with draft heads and towers, in every type, and what the
//! quantizer makes of it; codes that are kept; adapters.
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test stops by panicking, and includes a module of others"
)]

#[path = "../../gguf-conversion/tests/arch/fixture.rs"]
mod fixture;

use std::path::Path;

use gguf_arch::OutType;
use gguf_conversion::{AdapterConversion, AdapterOptions, Codes, Conversion, ConvertOptions};
use gguf_core::progress::Silent;
use gguf_core::simd::SimdLevel;
use gguf_core::{TensorMeta, TensorSource};
use gguf_format::{FileType, Imatrix, Metadata};
use gguf_quantization::{Input, QuantizeOptions, QuantizePlan};
use gguf_testkit::files::entries;
use gguf_testkit::fixture as path_of;
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_verification::{Check, Finding, Severity, StructureOptions, check_structure};
use rayon::prelude::*;

/// Cases that llama.cpp does not load: of an architecture of ours, with biases that its loader does not have, and without
/// experts in use or without experts; with heads that are together wider than the embedding, and norms that the loader
/// takes in deeper models.
const NOT_LOADED: [&str; 6] = [
    "cohere2/zero_biases.json",
    "command-r/qk_norm.json",
    "chatglm1/",
    "modern-bert/classifier.json",
    "deepseek2/v2_defaults.json",
    "llama4/dense_full_attention.json",
];
/// Types, of which the first is tested every day.
const TYPES: [OutType; 4] = [OutType::Q8_0, OutType::F32, OutType::F16, OutType::Bf16];

two_tiers!(what_is_written_is_intact);
fn what_is_written_is_intact(tier: Tier) {
    let types = &TYPES[..tier.of(1, TYPES.len())];
    let mut cases = fixture::some(tier, 12);
    cases.retain(|case| !NOT_LOADED.iter().any(|start| case.at.starts_with(start)));
    let wrong: Vec<String> = cases.par_iter().flat_map_iter(|case| complaints(case, types)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// File types of the quantizer, of which the first two are tested every day; that of some needs an importance matrix.
const MIXTURES: [&str; 5] = ["Q4_K_M", "IQ2_XS", "Q2_K", "IQ3_XXS", "IQ4_XS"];

two_tiers!(what_is_quantized_is_intact);
fn what_is_quantized_is_intact(tier: Tier) {
    let mut cases = fixture::some(tier, 40);
    cases.retain(|case| !case.is_mmproj() && !NOT_LOADED.iter().any(|start| case.at.starts_with(start)));
    let names = &MIXTURES[..tier.of(2, MIXTURES.len())];
    let of_case = |case: &fixture::CardFixture| {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let file = case.plan(dir.path(), OutType::F32).unwrap();
        // Checkpoints in MXFP4 keep it; their values here are random bytes, and no weights.
        if file.tensors().iter().any(|tensor| tensor.ty.is_quantized()) {
            return Vec::new();
        }
        let matrix = imatrix(dir.path(), file.tensors());
        let of_type = |name: &&str| {
            let options = QuantizeOptions::new(FileType::parse(name).unwrap());
            let made =
                QuantizePlan::new(&Input::new(&file, file.metadata()), &options, Some(&matrix)).unwrap();
            errors(&format!("{} {name}", case.at), &made, made.metadata())
        };
        names.iter().flat_map(of_type).collect::<Vec<_>>()
    };
    let wrong: Vec<String> = cases.par_iter().flat_map_iter(of_case).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An importance matrix with equal weights for all columns.
fn imatrix(dir: &Path, tensors: &[TensorMeta]) -> Imatrix {
    let rows = tensors.iter().filter_map(|tensor| match tensor.shape.dims() {
        [front @ .., _, n_cols] => Some((&tensor.name, front.iter().product::<u64>() * n_cols)),
        _ => None,
    });
    let rows: Vec<_> = rows.collect();
    let number = |n: usize| i32::try_from(n).unwrap().to_le_bytes();
    let mut bytes = number(rows.len()).to_vec();
    for (name, n) in rows {
        bytes.extend(number(name.len()));
        bytes.extend(name.as_bytes());
        bytes.extend(number(1));
        bytes.extend(number(n as usize));
        bytes.extend(std::iter::repeat_n(1f32.to_le_bytes(), n as usize).flatten());
    }
    let path = dir.join("equal.imatrix");
    fs_err::write(&path, bytes).unwrap();
    Imatrix::open(&path).unwrap()
}

#[test]
fn codes_that_are_kept_are_intact() {
    let dirs: Vec<_> = entries(path_of("native")).into_iter().map(|dir| dir.join("hf")).collect();
    let dirs: Vec<_> = dirs.into_iter().filter(|dir| dir.is_dir()).collect();
    assert!(dirs.len() > 3);
    for dir in dirs {
        let codes = Codes::Native { allow_rounding: false };
        let options = ConvertOptions { tokenizer: false, codes, ..ConvertOptions::default() };
        let made = Conversion::plan(&dir, &options).unwrap();
        let wrong = errors(&dir.display().to_string(), &made, made.metadata());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

tiered_conformance_tests!(adapters_are_intact);
fn adapters_are_intact(corpus: &Goldens, tier: Tier) {
    let mut n = 0;
    let cases = entries(corpus.join("lora")).into_iter().filter(|dir| dir.join("case.json").is_file());
    for case in tier.some(3, cases) {
        let adapter = AdapterOptions { base: Some(case.join("base")), scale_alpha: false };
        let plan = AdapterConversion::plan(&case.join("adapter"), &adapter, &ConvertOptions::default());
        let Ok(made) = plan else { continue };
        let wrong = errors(&case.display().to_string(), &made, made.metadata());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        n += 1;
    }
    assert!(n > 2, "{n}");
}

fn complaints(case: &fixture::CardFixture, types: &[OutType]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let of_type = |ty: &OutType| {
        let file = case.plan(dir.path(), *ty).unwrap();
        errors(&format!("{} {}", case.at, ty.name()), &file, file.metadata())
    };
    types.iter().flat_map(of_type).collect()
}

fn errors(at: &str, file: &impl TensorSource, metadata: &Metadata) -> Vec<String> {
    let options = StructureOptions { level: SimdLevel::detect() };
    let findings = check_structure(file, metadata, &options, &Silent).unwrap();
    // The elements are a formula's: scales of blocks among them may have no meaning.
    let is_wrong = |finding: &Finding| {
        finding.severity == Severity::Error && ![Check::NonFinite, Check::AllZero].contains(&finding.check)
    };
    let errors = findings.into_iter().filter(is_wrong);
    errors.map(|finding| format!("{at}: {}", finding.message)).collect()
}
