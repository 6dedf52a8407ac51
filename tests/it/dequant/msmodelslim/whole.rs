//! The program on the bundled model after quantization: its output, and the divergence of the result from the float
//! model.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;
use serde_json::Value as Json;

use super::made::{Layout, write_tiny};
use crate::support::fixture;
use crate::support::programs::run;

fn convert(command: &str, dir: &Path, output: &str, args: &[&str]) -> Json {
    let all = [&[command, ".", "-o", output, "--no-sync", "--json"], args].concat();
    run("gguf-convert", dir, &all).ok().json()
}

/// Mean divergence of a file from a baseline.
fn divergence(dir: &Path, file: &str, baseline: &Path) -> f64 {
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let (prompts, baseline) = (prompts.to_str().unwrap(), baseline.to_str().unwrap());
    let args =
        [file, "--baseline", baseline, "--prompts", prompts, "--ctx", "256", "--chunks", "8", "--json"];
    let (code, out, err) = run("gguf-verify", dir, &args).parts();
    // It does not matter which limits are met.
    assert!([0, 3, 4].contains(&code), "{code} {out}{err}");
    let report: Json = serde_json::from_str(&out).unwrap();
    report["kld"]["mean"].as_f64().unwrap()
}

fn types(path: &Path) -> Vec<(String, GgmlType)> {
    let file = GgufFile::open(path).unwrap();
    file.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.ty)).collect()
}

#[test]
fn w8a8_becomes_q8_0_with_its_integers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_tiny(Layout::W8A8, 4, dir);
    let report = convert("msmodelslim2gguf", dir, "q8_0.gguf", &["--type", "q8_0"]);
    let kept = report["kept"].as_array().unwrap();
    assert_eq!(kept.len(), 7, "{kept:?}");
    for row in kept {
        assert_eq!((row["type"].as_str(), row["tensors"].as_u64()), (Some("Q8_0"), Some(4)));
        let error = row["scale_error"].as_f64().unwrap();
        assert!(error > 0.0 && error < 1.0 / 2048.0, "{row}");
    }
    // The other command gives the same file.
    convert("hf2gguf", dir, "hf.gguf", &["--type", "q8_0"]);
    let bytes = |name: &str| fs_err::read(dir.join(name)).unwrap();
    assert!(bytes("hf.gguf") == bytes("q8_0.gguf"));
    assert!(
        types(&dir.join("q8_0.gguf")).iter().all(|(name, _)| !name.contains(".bias")),
        "there is no bias"
    );

    // The embedding, which is float here, is unchanged: only the scales differ.
    convert("msmodelslim2gguf", dir, "native.gguf", &["--type", "native", "--allow-rounding"]);
    convert("msmodelslim2gguf", dir, "f32.gguf", &["--type", "f32"]);
    let float = fixture("tiny-llama");
    let (kept, exact) = (divergence(dir, "native.gguf", &float), divergence(dir, "f32.gguf", &float));
    let rounding = divergence(dir, "native.gguf", &dir.join("f32.gguf"));
    let whole = divergence(dir, "q8_0.gguf", &float);
    println!(
        "W8A8: {kept:.7} as Q8_0, {exact:.7} in F32, {rounding:.2e} between the two; {whole:.7} with the embedding in \
         Q8_0"
    );
    assert!(kept < 2e-4 && exact < 2e-4 && whole < 4e-4, "{kept} {exact} {whole}");
    assert!(rounding < exact / 10.0, "{rounding} is rounding of scales alone");

    // Requantizing through floats gives other integers.
    let report = convert("msmodelslim2gguf", dir, "again.gguf", &["--type", "q8_0", "--requantize"]);
    assert_eq!(report["kept"].as_array().map(Vec::len), Some(0));
    assert!(bytes("again.gguf") != bytes("q8_0.gguf"));
}

#[test]
fn w4a16_becomes_q4_1_or_q5_0_with_its_integers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_tiny(Layout::W4A16, 4, dir);
    let float = fixture("tiny-llama");
    convert("msmodelslim2gguf", dir, "f32.gguf", &["--type", "f32"]);
    let exact = divergence(dir, "f32.gguf", &float);
    for (name, ty) in [("q4_1", GgmlType::Q4_1), ("q5_0", GgmlType::Q5_0)] {
        let output = format!("{name}.gguf");
        let out = run(
            "gguf-convert",
            dir,
            &[
                "msmodelslim2gguf",
                ".",
                "-o",
                &output,
                "--no-sync",
                "--type",
                name,
                "--token-embedding-type",
                "bf16",
            ],
        )
        .ok()
        .out;
        assert!(out.contains("integers kept") && out.contains("blk.*.ffn_down.weight"), "{out}");
        let types = types(&dir.join(&output));
        assert!(
            types
                .iter()
                .filter(|(n, _)| n.starts_with("blk.") && n.contains("ffn_"))
                .all(|(n, t)| *t == ty || n.contains("norm"))
        );
        let (kept, rounding) =
            (divergence(dir, &output, &float), divergence(dir, &output, &dir.join("f32.gguf")));
        println!("W4A16: {kept:.6} as {ty}, {exact:.6} in F32, {rounding:.2e} between the two");
        assert!(kept < 0.2 && (kept / exact - 1.0).abs() < 0.1, "{kept} {exact}");
    }
    // No block stores F32 scales exactly: the file is in floats unless rounding is allowed.
    let report = convert("msmodelslim2gguf", dir, "native.gguf", &["--type", "native"]);
    assert_eq!(report["kept"].as_array().map(Vec::len), Some(0));
    let report = convert("msmodelslim2gguf", dir, "rounded.gguf", &["--type", "native", "--allow-rounding"]);
    let kept = report["kept"].as_array().unwrap();
    assert!(kept.len() == 7 && kept.iter().all(|row| row["type"] == "Q4_1"), "{kept:?}");
    assert_eq!(divergence(dir, "native.gguf", &dir.join("f32.gguf")), 0.0);
}

#[test]
fn the_command_wants_a_description() {
    let dir = tempfile::tempdir().unwrap();
    let model = fixture("tiny-llama");
    let err = run("gguf-convert", dir.path(), &["msmodelslim2gguf", model.to_str().unwrap(), "-o", "o.gguf"])
        .exits_with(1)
        .err;
    assert!(err.contains("`quant_model_description.json` is missing"), "{err}");
}
