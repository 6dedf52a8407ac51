//! Numbers of a configuration that a file cannot hold: the error names key and value, for any key.

use std::path::Path;

use crate::support::programs::run;
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture};

/// Converts the model in `m` with another value; returns whether a file was written, and the messages.
fn convert(dir: &Path, key: &str, value: &str) -> (bool, String) {
    let config = fs_err::read_to_string(fixture("tiny-llama/config.json")).unwrap();
    // Duplicate keys are refused, so the old one is removed.
    let lines: Vec<&str> = config.lines().filter(|line| !line.contains(&format!("\"{key}\""))).collect();
    let config = lines.join("\n").replacen('{', &format!("{{\n  \"{key}\": {value},"), 1);
    fs_err::write(dir.join("m/config.json"), config).unwrap();
    let args = ["hf2gguf", "m", "-o", "o.gguf", "--type", "f16", "--no-sync", "--quiet"];
    let ended = run("gguf-convert", dir, &args);
    let is_made = dir.join("o.gguf").exists();
    let _ = fs_err::remove_file(dir.join("o.gguf"));
    assert_eq!(ended.code == Some(0), is_made);
    (is_made, ended.err)
}

two_tiers!(numbers_that_f32_cannot_hold_are_errors_by_key_and_value);
fn numbers_that_f32_cannot_hold_are_errors_by_key_and_value(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    files::copy(fixture("tiny-llama"), &dir.join("m"));
    let lost = [
        ("1e-50", "1e-50"),
        ("-1e-46", "1e-46"),
        ("1e-999", "1e-999"),
        ("1e39", "1e39"),
        ("1e999", "inf"),
        ("NaN", "NaN"),
        ("-Infinity", "-inf"),
    ];
    for (value, shown) in tier.some(6, lost) {
        for key in ["rms_norm_eps", "rope_theta"] {
            let (is_made, said) = convert(dir, key, value);
            assert!(!is_made, "{key} {value}: {said}");
            assert!(said.contains(shown), "{key} {value}: {said}");
        }
        let rope = format!("{{\"rope_type\": \"linear\", \"factor\": {value}}}");
        let (is_made, said) = convert(dir, "rope_scaling", &rope);
        assert!(!is_made, "factor {value}: {said}");
    }
    for held in tier.some(3, ["1e-40", "1e-5", "0.00001"]) {
        let (is_made, said) = convert(dir, "rms_norm_eps", held);
        assert!(is_made, "{held}: {said}");
    }
}
