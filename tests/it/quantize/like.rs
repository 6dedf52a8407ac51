//! `gguf-quantize --like`: types that another file has.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorMeta, TensorSource};
use gguf_foundry::gguf::{GgufFile, Metadata, Value};

use super::{convert_for, convert_from, convert_two_layers, run, write_two_layers};
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::support::{files, fixture, programs};
use crate::testkit::memory::{MemoryTensors, write_source};
use crate::testkit::noise::Noise;

fn bytes(dir: &Path, name: &str) -> Vec<u8> {
    fs_err::read(dir.join(name)).unwrap()
}

fn tensors(dir: &Path, name: &str) -> Vec<TensorMeta> {
    GgufFile::open(&dir.join(name)).unwrap().tensors().to_vec()
}

/// Types of the matrices of one role, by layer.
fn types_of(dir: &Path, name: &str, role: &str) -> Vec<GgmlType> {
    let found = tensors(dir, name).into_iter();
    found.filter(|tensor| tensor.name.ends_with(role)).map(|tensor| tensor.ty).collect()
}

/// Writes a model of as many layers whose rows have this many values.
fn write_model(dir: &Path, name: &str, n_layers: u32, n_cols: u64) {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", n_layers);
    metadata.set("llama.attention.head_count", 2u32);
    let mut tensors = MemoryTensors::default();
    let mut noise = Noise::new(7);
    let mut add = |name: &str| {
        let values = noise.floats(8 * usize::try_from(n_cols).unwrap());
        tensors = std::mem::take(&mut tensors).with_f32(name, &[8, n_cols], &values);
    };
    add("token_embd.weight");
    for layer in 0..n_layers {
        for role in ["attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up"] {
            add(&format!("blk.{layer}.{role}.weight"));
        }
    }
    write_source(&dir.join(name), &metadata, &tensors);
}

fn importance(dir: &Path, model: &str) {
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    fs_err::write(dir.join("text.txt"), &text[..text.floor_char_boundary(6000)]).unwrap();
    let args = ["imatrix", model, "-f", "text.txt", "--ctx", "64", "--no-ppl", "-o", "m.gguf"];
    programs::run("gguf-verify", dir, &args).ok();
}

two_tiers!(a_file_made_like_another_of_the_same_source_is_that_file);

fn a_file_made_like_another_of_the_same_source_is_that_file(tier: Tier) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_for(tier, dir, "f16");
    importance(dir, "in.gguf");
    let matrix = ["--imatrix", "m.gguf"];
    let larger = ["--output-tensor-type", "q8_0", "--token-embedding-type", "q8_0"];
    let mut n_fallbacks = 0;
    let cases = [
        ("q4_k_m", &[][..], false),
        ("q4_k_m", &larger, true),
        ("q5_k_s", &["--leave-output-tensor"], false),
        ("q3_k_l", &["--tensor-type", "attn_q=iq4_nl"], true),
        ("q6_k", &["--pure"], false),
        ("q2_k_s", &[], true),
        ("iq2_m", &[], true),
        ("iq3_xxs", &[], true),
        ("iq1_s", &[], true),
        ("iq4_xs", &[], false),
        ("q8_0", &[], false),
        ("q4_1", &[], false),
        ("tq2_0", &[], false),
        ("bf16", &[], false),
        ("f16", &[], false),
        ("q4_0", &["--prune-layers", "1"], false),
        ("q8_0", &["--override-kv", "general.file_type=int:4242"], false),
    ];
    for (file_type, flags, has_matrix) in tier.some(6, cases) {
        let matrix: &[&str] = if has_matrix { &matrix } else { &[] };
        run(dir, &[&["in.gguf", "made.gguf", "--type", file_type], flags, matrix].concat()).ok();
        // Layers that are left out are no matter of types.
        let prune = if flags.contains(&"--prune-layers") { flags } else { &[] };
        let args = [&["in.gguf", "like.gguf", "--like", "made.gguf", "--json"], prune, matrix].concat();
        let report = run(dir, &args).ok().json();
        assert!(bytes(dir, "made.gguf") == bytes(dir, "like.gguf"), "{file_type} {flags:?}");
        let like = &report["like"];
        assert!(like["by_name"].as_u64().unwrap() > tier.of(7, 10), "{like}");
        assert_eq!((&like["by_role"], &like["others"], &like["layers"]), (&0.into(), &0.into(), &().into()));
        n_fallbacks += report["fallbacks"].as_u64().unwrap();
    }
    // The fallbacks of the first run are the types of the file, and fit.
    assert_eq!(n_fallbacks, 0);
}

#[test]
fn fallbacks_of_a_file_are_taken_over_and_types_that_do_not_fit_fall_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Rows of 96 values: no K type fits.
    write_model(dir, "narrow.gguf", 3, 96);
    let made = run(dir, &["narrow.gguf", "made.gguf", "--type", "q4_k_m"]).ok();
    assert!(made.err.contains("of another type"), "{}", made.err);
    let like = run(dir, &["narrow.gguf", "like.gguf", "--like", "made.gguf"]).ok();
    assert!(!like.err.contains("of another type"), "{}", like.err);
    assert!(bytes(dir, "made.gguf") == bytes(dir, "like.gguf"));

    write_model(dir, "wide-f32.gguf", 3, 256);
    run(dir, &["wide-f32.gguf", "wide.gguf", "--type", "q6_k"]).ok();
    let said = run(dir, &["narrow.gguf", "fallen.gguf", "--like", "wide.gguf"]).ok();
    assert!(said.err.contains("Q6_K -> Q8_0") && said.err.contains("hold no whole blocks"), "{}", said.err);
    assert!(types_of(dir, "fallen.gguf", "ffn_up.weight").iter().all(|ty| *ty == GgmlType::Q8_0));
    run(dir, &["narrow.gguf", "no.gguf", "--like", "wide.gguf", "--no-fallback"]).says(1, "as Q6_K needs");
    assert!(!dir.join("no.gguf").exists());
}

#[test]
fn another_number_of_layers_goes_by_relative_depth() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_model(dir, "three.gguf", 3, 256);
    write_model(dir, "six.gguf", 6, 256);
    let rules = ["blk.0.attn_q=q8_0", "blk.1.attn_q=q5_0", "blk.2.attn_q=q4_1"];
    let rules: Vec<&str> = rules.iter().flat_map(|rule| ["--tensor-type", rule]).collect();
    run(dir, &[&["three.gguf", "made.gguf", "--type", "q4_0"][..], &rules].concat()).ok();
    let args = ["six.gguf", "out.gguf", "--like", "made.gguf"];
    let said = run(dir, &args).ok();
    assert!(said.err.contains("by role and relative depth (6 layers here, 3 there)"), "{}", said.err);
    let report = run(dir, &[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!((&report["like"]["layers"], &report["like"]["file_layers"]), (&6.into(), &3.into()));
    assert_eq!(report["like"]["by_role"].as_u64(), Some(6 * 7));
    let expected = [GgmlType::Q8_0, GgmlType::Q5_0, GgmlType::Q4_1].map(|ty| [ty; 2]).concat();
    assert_eq!(types_of(dir, "out.gguf", "attn_q.weight"), expected);
    let plan = run(dir, &[&args[..], &["--json", "--dry-run"]].concat()).ok().json();
    assert_eq!(plan["like"], report["like"]);
    assert!(plan["tensors"].as_array().unwrap().iter().any(|tensor| tensor["reason"] == "like"));
    // Types as rules make the same file again.
    run(dir, &[&args[..], &["--write-types", "types.txt"]].concat()).ok();
    run(dir, &["six.gguf", "again.gguf", "--type", "q4_0", "--tensor-type-file", "types.txt"]).ok();
    assert!(bytes(dir, "out.gguf") == bytes(dir, "again.gguf"));
}

#[test]
fn what_the_file_lacks_and_other_architectures_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Everyday, dir, "f16");
    run(dir, &["in.gguf", "q6.gguf", "--type", "q6_k"]).ok();
    let drop = ["drop", "q6.gguf", "attn_v", "--force", "-o", "less.gguf"];
    programs::run("gguf-inspect", dir, &drop).ok();
    let said = run(dir, &["in.gguf", "out.gguf", "--like", "less.gguf"]).ok();
    assert!(said.err.contains("less.gguf does not have get the types of Q6_K"), "{}", said.err);
    assert!(said.err.contains("`blk.0.attn_v.weight`"), "{}", said.err);
    assert!(bytes(dir, "out.gguf") == bytes(dir, "q6.gguf"));

    let set = ["set", "q6.gguf", "general.architecture=qwen2", "--force", "-o", "other.gguf"];
    programs::run("gguf-inspect", dir, &set).ok();
    let said = run(dir, &["in.gguf", "out.gguf", "--like", "other.gguf"]).ok();
    assert!(said.err.contains("a file of architecture `qwen2` for one of `llama`"), "{}", said.err);
    assert!(bytes(dir, "out.gguf") == bytes(dir, "q6.gguf"));

    // A file with nothing in common.
    fs_err::remove_file(dir.join("out.gguf")).unwrap();
    let drop = ["drop", "q6.gguf", "^(blk|token_embd|output\\.)", "--force", "-o", "none.gguf"];
    programs::run("gguf-inspect", dir, &drop).ok();
    run(dir, &["in.gguf", "out.gguf", "--like", "none.gguf"]).says(1, "not one matrix of the model is there");
    run(dir, &["in.gguf", "out.gguf", "--like", "missing.gguf"]).says(1, "missing.gguf");
    run(dir, &["in.gguf", "out.gguf", "--like", "text.md"]).exits_with(1);
    for (args, words) in [
        (&["--type", "q4_0"][..], "cannot be used with"),
        (&["--pure"], "cannot be used with"),
        (&["--target-bpw", "4"], "cannot be used with"),
        (&["--types", "q4_k"], "--target"),
    ] {
        run(dir, &[&["in.gguf", "out.gguf", "--like", "q6.gguf"], args].concat()).says(2, words);
    }
    run(dir, &["in.gguf", "out.gguf", "q4_0", "--like", "q6.gguf"])
        .says(2, "--like chooses the types: leave `Q4_0` out");
    // The file is never replaced.
    run(dir, &["in.gguf", "q6.gguf", "--like", "q6.gguf"]).says(2, "--like");
    assert!(!dir.join("out.gguf").exists());
}

deep_test!(types_that_need_an_importance_matrix_are_refused_without_one);

fn types_that_need_an_importance_matrix_are_refused_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    convert_two_layers(Tier::Deep, dir, "f16");
    importance(dir, "in.gguf");
    run(dir, &["in.gguf", "made.gguf", "--type", "iq2_xs", "--imatrix", "m.gguf"]).ok();
    run(dir, &["in.gguf", "out.gguf", "--like", "made.gguf"]).says(1, "needs an importance matrix");
    run(dir, &["in.gguf", "out.gguf", "--like", "made.gguf", "--dry-run"])
        .says(0, "needs an importance matrix");
    assert!(!dir.join("out.gguf").exists());
    // With a text they are calibrated: the types are those of the file.
    let text = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "1024"];
    run(dir, &[&["in.gguf", "out.gguf", "--like", "made.gguf"], &text[..]].concat()).ok();
    assert_eq!(tensors(dir, "out.gguf"), tensors(dir, "made.gguf"));
    let file = GgufFile::open(&dir.join("out.gguf")).unwrap();
    assert!(file.metadata().contains("gguf_foundry.quantize.kld"));
    assert_eq!(file.metadata().get("general.file_type").and_then(Value::as_u64), Some(20));
}

deep_test!(folders_of_checkpoints_and_split_files);

fn folders_of_checkpoints_and_split_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = "model";
    write_two_layers(Tier::Deep, &dir.join(model));
    // Also types that the converter itself writes, in its order.
    for file_type in ["q4_k_m", "q8_0", "f16", "f32", "tq1_0"] {
        run(dir, &[model, "made.gguf", "--type", file_type]).ok();
        run(dir, &[model, "like.gguf", "--like", "made.gguf"]).ok();
        assert!(bytes(dir, "made.gguf") == bytes(dir, "like.gguf"), "{file_type}");
        let args = ["hf2gguf", model, "-o", "convert.gguf", "--like", "made.gguf", "--no-sync"];
        programs::run("gguf-convert", dir, &args).ok();
        assert!(bytes(dir, "made.gguf") == bytes(dir, "convert.gguf"), "{file_type}");
    }
    // A float type in the order of gguf-quantize.
    convert_from(&dir.join(model), dir, "f32");
    run(dir, &["in.gguf", "sorted.gguf", "--type", "q8_0"]).ok();
    run(dir, &[model, "like.gguf", "--like", "sorted.gguf"]).ok();
    assert!(bytes(dir, "sorted.gguf") == bytes(dir, "like.gguf"));

    run(dir, &["in.gguf", "whole.gguf", "--type", "q3_k_m"]).ok();
    let split = ["split", "whole.gguf", "-o", "s", "--split-max-tensors", "9"];
    programs::run("gguf-inspect", dir, &split).ok();
    let parts: Vec<String> = files::names(dir).into_iter().filter(|name| name.starts_with("s-0")).collect();
    assert!(parts.len() > 2, "{parts:?}");
    run(dir, &["in.gguf", "like.gguf", "--like", &parts[0]]).ok();
    assert!(bytes(dir, "whole.gguf") == bytes(dir, "like.gguf"));
    // No part of it is replaced.
    run(dir, &["in.gguf", &parts[1], "--like", &parts[0]]).says(2, "--like");
    // The output is named after the type.
    fs_err::create_dir(dir.join("out")).unwrap();
    fs_err::rename(dir.join("in.gguf"), dir.join("out/in.gguf")).unwrap();
    run(dir, &["out/in.gguf", "--like", &parts[0]]).ok();
    assert_eq!(files::names(dir.join("out")), ["in-Q3_K_M.gguf", "in.gguf"]);
}
