//! Material of tests of several crates: golden data, files, noise, checkpoints, and weights and tensors in memory.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::return_self_not_must_use,
    clippy::unwrap_used,
    reason = "tests read it, and a fault in it is a fault of the test"
)]

pub mod adapters;
pub mod bundled;
pub mod checkpoints;
pub mod codes;
pub mod files;
pub mod flm;
pub mod goldens;
pub mod memory;
pub mod noise;
pub mod slim;
pub mod tiers;
pub mod torch;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gguf_core::{GgmlType, Shape, TensorMeta};
use gguf_format::{Metadata, Value};
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::{Value as Json, json};

pub use files::names;

/// Keys that only this project writes, each listed in `docs/differences.md`.
pub const ADDED_KEYS: &[&str] = &[
    "qwen.attention.layer_norm_rms_epsilon",
    "exaone.attention.layer_norm_rms_epsilon",
    "t5encoder.attention.causal",
];

/// Keys without [`ADDED_KEYS`].
pub fn common_keys(metadata: &Metadata) -> Metadata {
    let mut common = Metadata::new();
    for (key, value) in metadata.iter().filter(|(key, _)| !ADDED_KEYS.contains(key)) {
        common.set(key, value.clone());
    }
    common
}

/// Root of the repository.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned());
    &ROOT
}

/// Path under `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    root().join("fixtures").join(path)
}

/// Path of the SmolLM2 file that `GGUF_SMOLLM2` names; `scripts/get-smollm2.sh` downloads it.
pub fn smollm2() -> PathBuf {
    let named = std::env::var_os("GGUF_SMOLLM2").expect("GGUF_SMOLLM2 is not set");
    let path = root().join(named);
    assert!(path.is_file(), "GGUF_SMOLLM2: {} is no file", path.display());
    path
}

/// Ends a conformance test: prints the number of cases and fails on zero.
pub fn report_cases(subject: &str, n_cases: usize) {
    // Written past the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "{subject}: {n_cases} conformance cases");
    assert!(n_cases > 0, "{subject}: no conformance case found");
}

/// Seed of a randomized test: the value of the variable, or a random number. It is printed, past the test harness, so
/// that a failure in CI can be repeated.
pub fn seed(variable: &str) -> u64 {
    let seed = match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text}: expected a number")),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    let _ = writeln!(std::io::stderr(), "{variable}={seed} repeats this run");
    seed
}

/// Random generator from a seed.
pub fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// SHA-256 digest in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// Tensor of a row `[name, dims, type, ...]`, whose dimensions come innermost first.
pub fn tensor_of_row(row: &Json) -> TensorMeta {
    let dims = row[1].as_array().unwrap().iter().rev().map(|dim| dim.as_u64().unwrap()).collect();
    TensorMeta {
        name: row[0].as_str().unwrap().to_owned(),
        shape: Shape::new(dims).unwrap(),
        ty: GgmlType::from_name(row[2].as_str().unwrap()).unwrap(),
    }
}

/// Name of a value's type, and its content, in the format of the reference's reader.
pub fn in_json(value: &Value) -> (String, Json) {
    let one = |value: &Value| match value {
        Value::F32(x) => json!(f64::from(*x)),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(_) => json!(value.as_str().unwrap()),
        other => json!(i64::try_from(other.as_i128().unwrap()).unwrap()),
    };
    match value {
        Value::Array(array) => {
            let items: Vec<Json> = (0..array.len()).map(|i| one(&array.get(i).unwrap())).collect();
            (format!("arr[{}]", array.element_type().long_name()), items.into())
        }
        other => (other.value_type().long_name().to_owned(), one(other)),
    }
}
