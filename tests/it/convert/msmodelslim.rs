//! The program on the bundled model after quantization: its output, and the divergence of the result from the float
//! model.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::GgufFile;
use serde_json::Value as Json;

use crate::support::programs::run;
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{bundled, fixture};
use gguf_testkit::slim::{Layout, write_tiny};

fn convert(command: &str, dir: &Path, output: &str, args: &[&str]) -> Json {
    let all = [&[command, ".", "-o", output, "--no-sync", "--json"], args].concat();
    run("gguf-convert", dir, &all).ok().json()
}

/// The quantized model and the float model, with fewer layers every day.
fn models(layout: Layout, n_layers: u32) -> [tempfile::TempDir; 2] {
    let [quantized, float] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write_tiny(layout, n_layers, quantized.path());
    bundled::write_layers(n_layers, float.path());
    [quantized, float]
}

fn divergence(tier: Tier, dir: &Path, file: &str, baseline: &Path) -> f64 {
    let prompts = fixture("tiny-llama/corpus-256.jsonl");
    let (prompts, baseline) = (prompts.to_str().unwrap(), baseline.to_str().unwrap());
    let n_chunks = tier.of("1", "8");
    let args =
        [file, "--baseline", baseline, "--prompts", prompts, "--ctx", "256", "--chunks", n_chunks, "--json"];
    let (code, out, err) = run("gguf-verify", dir, &args).parts();
    // It does not matter which limits are met.
    assert!([0, 3, 4].contains(&code), "{code} {out}{err}");
    let report: Json = serde_json::from_str(&out).unwrap();
    report["models"][0]["kld"]["mean"].as_f64().unwrap()
}

fn types(path: &Path) -> Vec<(String, GgmlType)> {
    let file = GgufFile::open(path).unwrap();
    file.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.ty)).collect()
}

two_tiers!(w8a8_becomes_q8_0_with_its_integers);
/// One layer and a few tokens show wrong values; how much is lost, and by what, the whole model shows.
fn w8a8_becomes_q8_0_with_its_integers(tier: Tier) {
    let n_layers = tier.of(1, 4);
    let models = models(Layout::W8A8, n_layers);
    let [dir, float] = models.each_ref().map(tempfile::TempDir::path);
    let report = convert("msmodelslim2gguf", dir, "q8_0.gguf", &["--type", "q8_0"]);
    let kept = report["kept"].as_array().unwrap();
    assert_eq!(kept.len(), 7, "{kept:?}");
    for row in kept {
        let expected = (Some("Q8_0"), Some(u64::from(n_layers)));
        assert_eq!((row["type"].as_str(), row["tensors"].as_u64()), expected);
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
    let kept = divergence(tier, dir, "native.gguf", float);
    assert!(kept < tier.of(1e-3, 2e-4), "{kept}");
    if tier.is_deep() {
        convert("msmodelslim2gguf", dir, "f32.gguf", &["--type", "f32"]);
        let exact = divergence(tier, dir, "f32.gguf", float);
        let rounding = divergence(tier, dir, "native.gguf", &dir.join("f32.gguf"));
        let whole = divergence(tier, dir, "q8_0.gguf", float);
        println!(
            "W8A8: {kept:.7} as Q8_0, {exact:.7} in F32, {rounding:.2e} between the two; {whole:.7} with the \
             embedding in Q8_0"
        );
        assert!(exact < 2e-4 && whole < 4e-4, "{exact} {whole}");
        assert!(rounding < exact / 10.0, "{rounding} is rounding of scales alone");
    }

    // Requantizing through floats gives other integers.
    let report = convert("msmodelslim2gguf", dir, "again.gguf", &["--type", "q8_0", "--requantize"]);
    assert_eq!(report["kept"].as_array().map(Vec::len), Some(0));
    assert!(bytes("again.gguf") != bytes("q8_0.gguf"));
}

two_tiers!(w4a16_becomes_q4_1_or_q5_0_with_its_integers);
/// One layer and a few tokens show wrong values; how much is lost, and by what, the whole model shows.
fn w4a16_becomes_q4_1_or_q5_0_with_its_integers(tier: Tier) {
    let models = models(Layout::W4A16, tier.of(1, 4));
    let [dir, float] = models.each_ref().map(tempfile::TempDir::path);
    let exact = tier.is_deep().then(|| {
        convert("msmodelslim2gguf", dir, "f32.gguf", &["--type", "f32"]);
        divergence(tier, dir, "f32.gguf", float)
    });
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
        let kept = divergence(tier, dir, &output, float);
        assert!(kept < tier.of(0.4, 0.2), "{kept}");
        if let Some(exact) = exact {
            let rounding = divergence(tier, dir, &output, &dir.join("f32.gguf"));
            println!("W4A16: {kept:.6} as {ty}, {exact:.6} in F32, {rounding:.2e} between the two");
            assert!((kept / exact - 1.0).abs() < 0.1, "{kept} {exact}");
        }
    }
    // No block stores F32 scales exactly.
    let args = ["msmodelslim2gguf", ".", "--type", "native", "--no-sync", "-o", "native.gguf"];
    let refusal = run("gguf-convert", dir, &args).exits_with(1).err;
    for part in ["would write floats", "`blk.*.ffn_down.weight`", "`--allow-rounding`", "e-4"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    let plan = run("gguf-convert", dir, &["msmodelslim2gguf", ".", "--dry-run"]).ok().out;
    assert!(plan.contains("`--type native --allow-rounding` would keep the codes of"), "{plan}");
    let report = convert("msmodelslim2gguf", dir, "rounded.gguf", &["--type", "native", "--allow-rounding"]);
    let kept = report["kept"].as_array().unwrap();
    assert!(kept.len() == 7 && kept.iter().all(|row| row["type"] == "Q4_1"), "{kept:?}");
    if exact.is_some() {
        assert!(divergence(tier, dir, "rounded.gguf", &dir.join("f32.gguf")) < 1e-5);
    }
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
