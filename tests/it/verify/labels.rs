//! Name and declared type of a file compared with its content.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use gguf_foundry::gguf::{FileType, Value};
use serde_json::Value as Json;

use super::gguf_verify;
use crate::support::programs::run;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::{self, Tiny};

/// Quantizes the bundled model to a file of this name.
fn quantize(dir: &Path, file_type: &str, name: &str) {
    run("gguf-quantize", dir, &["base.gguf", name, "--type", file_type, "--quiet"]).ok();
}

/// Gives a file another `general.file_type`.
fn label(dir: &Path, name: &str, file_type: FileType) {
    run("gguf-inspect", dir, &["set", name, &format!("general.file_type={}", file_type.id())]).ok();
}

fn labels(dir: &Path, name: &str) -> (Json, Vec<String>) {
    let report = gguf_verify(&[name, "--structure-only", "--json"], dir).model();
    let findings = report["findings"].as_array().unwrap().iter();
    let own = findings.filter(|finding| finding["check"] == "label" && finding["severity"] == "error");
    let messages = own.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect();
    (report.clone(), messages)
}

/// Types that need no importance matrix, and that give the bundled model different tensors.
const TYPES: [&str; 17] = [
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1",
    "Q4_0", "IQ4_NL", "Q3_K_L", "Q3_K_M", "Q2_K",
];

two_tiers!(every_false_label_is_found_in_the_key_and_in_the_name_and_no_true_one);

fn every_false_label_is_found_in_the_key_and_in_the_name_and_no_true_one(tier: Tier) {
    let dir = tiny::directory();
    let mut n_false = 0;
    for (at, ty) in tier.some(6, TYPES.into_iter().enumerate()) {
        let name = format!("model-{ty}.gguf");
        quantize(dir.path(), ty, &name);
        let (report, messages) = labels(dir.path(), &name);
        assert!(messages.is_empty(), "{name}: {messages:?}");
        assert!(report["recipe"].as_str().unwrap().starts_with(ty), "{name}: {}", report["recipe"]);
        let other = TYPES[(at + 5) % TYPES.len()];
        let renamed = format!("other.{}.gguf", other.to_lowercase());
        fs_err::rename(dir.path().join(&name), dir.path().join(&renamed)).unwrap();
        let (_, messages) = labels(dir.path(), &renamed);
        assert!(
            messages.len() == 1 && messages[0].contains(&format!("claims {other}, ")),
            "{renamed}: {messages:?}"
        );
        label(dir.path(), &renamed, FileType::parse(other).unwrap());
        let (_, messages) = labels(dir.path(), &renamed);
        assert_eq!(messages.len(), 2, "{ty} as {other}: {messages:?}");
        assert!(messages[0].starts_with(&format!("labelled {other} (")), "{messages:?}");
        assert!(messages[0].contains(&format!("the tensors are {ty}")), "{messages:?}");
        fs_err::remove_file(dir.path().join(&renamed)).unwrap();
        n_false += 2;
    }
    assert_eq!(n_false, tier.of(6, 34));
}

deep_test!(names_of_other_peoples_mixtures_are_no_contradiction);

fn names_of_other_peoples_mixtures_are_no_contradiction() {
    let dir = tempfile::tempdir().unwrap();
    let mut tiny = Tiny::new().quantized(GgmlType::Q4K);
    tiny.metadata.set("general.file_type", Value::U32(FileType::Q4KM.id()));
    for name in [
        "model-UD-Q4_K_XL.gguf",
        "model-Q4_K_L.gguf",
        "model.i1-Q4_K_M.gguf",
        "F16-to-Q4_K_M.gguf",
        "model.gguf",
    ] {
        tiny.write(dir.path(), name);
        let (_, messages) = labels(dir.path(), name);
        assert!(messages.is_empty(), "{name}: {messages:?}");
    }
    for name in ["model-Q8_0.gguf", "model-UD-Q8_0_XL.gguf", "model-bf16.gguf"] {
        tiny.write(dir.path(), name);
        let (_, messages) = labels(dir.path(), name);
        assert_eq!(messages.len(), 1, "{name}");
    }
}
