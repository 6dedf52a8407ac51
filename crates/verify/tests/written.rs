//! What the converter writes passes the structural checks: every architecture, with draft heads and towers, in every type.
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test stops by panicking, and includes a module of others"
)]

#[path = "../../convert/tests/arch/fixture.rs"]
mod fixture;

use gguf_arch::OutType;
use gguf_core::progress::Silent;
use gguf_core::simd::SimdLevel;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_verification::{Check, Finding, Severity, StructureOptions, check_structure};
use rayon::prelude::*;

/// Cases that llama.cpp does not load: of an architecture of ours, with biases that its loader does not have, and without
/// experts in use or without experts.
const NOT_LOADED: [&str; 4] = [
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
    let mut cases = fixture::some(tier, 4);
    cases.retain(|case| !NOT_LOADED.iter().any(|start| case.at.starts_with(start)));
    let wrong: Vec<String> = cases.par_iter().flat_map_iter(|case| complaints(case, types)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn complaints(case: &fixture::CardFixture, types: &[OutType]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let options = StructureOptions { level: SimdLevel::detect() };
    let of_type = |ty: &OutType| {
        let file = case.plan(dir.path(), *ty).unwrap();
        let findings = check_structure(&file, file.metadata(), &options, &Silent).unwrap();
        // The elements are a formula's: scales of blocks among them may have no meaning.
        let is_wrong = |finding: &Finding| {
            finding.severity == Severity::Error
                && ![Check::NonFinite, Check::AllZero].contains(&finding.check)
        };
        let errors = findings.into_iter().filter(is_wrong);
        errors.map(|finding| format!("{} {}: {}", case.at, ty.name(), finding.message)).collect::<Vec<_>>()
    };
    types.iter().flat_map(of_type).collect()
}
