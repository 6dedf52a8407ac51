//! Commands for adapters.

use serde_json::json;

use crate::support::fixture;
use crate::support::goldens::Goldens;
use crate::support::programs::run;
use gguf_testkit::adapters::{set_alpha, write_safetensors, write_tiny_adapter};

/// Directory with `adapter` and `base` of a case.
fn case(name: &str) -> tempfile::TempDir {
    let case = Goldens::selection().find(format!("lora/{name}")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (folder, files) in
        [("adapter", &["adapter_config.json", "adapter_model.safetensors"][..]), ("base", &["config.json"])]
    {
        fs_err::create_dir(dir.path().join(folder)).unwrap();
        for file in files {
            fs_err::copy(case.join(folder).join(file), dir.path().join(folder).join(file)).unwrap();
        }
    }
    dir
}

#[test]
fn an_adapter_converts_and_every_program_says_what_it_is() {
    let dir = case("llama_qv");
    let at = dir.path();
    let out = run("gguf-convert", at, &["lora2gguf", "adapter", "--base", "base", "--no-sync"])
        .says_only(0, "")
        .out;
    assert!(out.starts_with("adapter/Adapter-F32-LoRA.gguf\n8 tensors, "), "{out}");
    let file = "adapter/Adapter-F32-LoRA.gguf";
    run("gguf-inspect", at, &[file]).says_only(0, "").prints(0, "adapter.lora.alpha");
    let err = run("gguf-quantize", at, &[file, "out.gguf", "q8_0"]).exits_with(1).err;
    assert!(err.contains("error: the file is an adapter (`general.type`), not a model"), "{err}");
    assert!(err.contains("hint: `gguf-convert merge-lora"), "{err}");
    // Beside the file that was made of it, the folder is an adapter still.
    let err = run("gguf-quantize", at, &["adapter", "--type", "q8_0"]).exits_with(1).err;
    assert!(err.contains("an adapter without its base model"), "{err}");
    let out = run("gguf-verify", at, &[file]).exits_with(4).out;
    assert!(!out.contains("--baseline"), "{out}");
    let report = run("gguf-verify", at, &[file, "--structure-only", "--json"]).exits_with(4).model();
    let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        findings[0]["message"],
        "an adapter (lora) for a model of `llama`: only its structure is judged"
    );
    assert_eq!(report["verdict"], "partial");
    let open = report["not_judged"].as_array().unwrap();
    assert!(!open.is_empty());
    // The advice can be followed with an adapter.
    assert!(open.iter().all(|row| row["remedy"].as_str().unwrap().contains("merge-lora")), "{open:?}");

    let dry = ["lora2gguf", "adapter", "--base", "base", "--type", "Q8_0", "--dry-run", "--json"];
    let plan = run("gguf-convert", at, &dry).says_only(0, "").json();
    assert_eq!(plan["files"], json!(["adapter/Adapter-Q8_0-LoRA.gguf"]));
    assert_eq!(plan["tensors"][0]["type"], "Q8_0");
    assert_eq!(plan["tensors"][1]["type"], "F16");
    assert_eq!(
        plan["tensors"][1]["sources"],
        json!(["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"])
    );
    assert!(!at.join("adapter/Adapter-Q8_0-LoRA.gguf").exists());
}

#[test]
fn the_base_is_given_or_lies_where_the_adapter_says() {
    let dir = case("llama_qv");
    let err = run("gguf-convert", dir.path(), &["lora2gguf", "adapter"]).exits_with(1).err;
    assert_eq!(
        err,
        "error: adapter/adapter_config.json: the base model `example/tiny-base` is no directory here\n\n\
         hint: `--base example/tiny-base` reads its configuration from the hub, `--base DIR` from a directory; `config.json` \
         is enough\n"
    );
    fs_err::create_dir(dir.path().join("example")).unwrap();
    fs_err::rename(dir.path().join("base"), dir.path().join("example/tiny-base")).unwrap();
    run("gguf-convert", dir.path(), &["lora2gguf", "adapter", "--no-sync"]).says_only(0, "");
}

#[test]
fn weights_of_the_base_are_held_against_the_adapter() {
    let dir = case("llama_qv");
    let weights = [("model.layers.0.self_attn.q_proj.weight", vec![64u64, 96])];
    write_safetensors(&dir.path().join("base/model.safetensors"), &weights);
    let err = run("gguf-convert", dir.path(), &["lora2gguf", "adapter", "--base", "base"]).exits_with(1).err;
    assert!(
        err.starts_with(
            "error: tensor `model.layers.0.self_attn.q_proj.weight`: [64, 96] in the base model, the adapter's matrices \
             make [64, 64]\n\nhint: check that the base is the model"
        ),
        "{err}"
    );
}

/// Without a change, a merge is the base's own conversion; with a change, it has other bytes under the same names.
#[test]
fn a_merge_is_a_conversion_of_the_sums() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let base = fixture("tiny-llama");
    let base = base.to_str().unwrap();
    fs_err::create_dir(at.join("adapter")).unwrap();
    write_tiny_adapter(&at.join("adapter"));
    let write = |alpha| set_alpha(&at.join("adapter"), alpha);
    for ty in ["auto", "q4_k_m"] {
        run("gguf-convert", at, &["hf2gguf", base, "--type", ty, "-o", "base.gguf", "--no-sync"]).ok();
        let args = ["merge-lora", base, "adapter", "--type", ty, "-o", "merged.gguf", "--no-sync"];
        write(0);
        run("gguf-convert", at, &args).ok();
        let read = |name: &str| fs_err::read(at.join(name)).unwrap();
        assert!(read("base.gguf") == read("merged.gguf"), "{ty}");
        write(1);
        run("gguf-convert", at, &args).ok();
        assert!(read("base.gguf") != read("merged.gguf"), "{ty}");
        assert_eq!(read("base.gguf").len(), read("merged.gguf").len(), "{ty}");
    }
    let out = run("gguf-inspect", at, &["diff", "base.gguf", "merged.gguf", "--json"]).exits_with(1).out;
    assert!(out.contains("blk.0.attn_q.weight") && !out.contains("blk.1.attn_q.weight"), "{out}");

    // A merge is judged by the sums.
    let verify = ["merged.gguf", "--baseline", base, "--weights-only"];
    run("gguf-verify", at, &verify).prints(3, "blk.0.attn_q.weight");
    run("gguf-verify", at, &[&verify[..], &["--adapter", "adapter"]].concat()).exits_with(0);
    let no_base = ["merged.gguf", "--baseline", "base.gguf", "--adapter", "adapter", "--weights-only"];
    run("gguf-verify", at, &no_base).exits_with(2);
}

/// A merge is named after its adapter, and lies where `--help` says.
#[test]
fn a_merge_without_a_name_is_named_after_the_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs_err::create_dir_all(at.join("runs/poet")).unwrap();
    write_tiny_adapter(&at.join("runs/poet"));
    let base = fixture("tiny-llama");
    let args = ["merge-lora", base.to_str().unwrap(), "runs/poet", "--type", "f16", "--no-sync"];
    run("gguf-convert", at, &args).ok();
    assert!(at.join("poet-3.4M-F16.gguf").is_file());
    let help = run("gguf-convert", at, &["merge-lora", "--help"]).ok().out;
    assert!(
        help.contains("in the current directory, named after the adapter") && !help.contains("vocab-only"),
        "{help}"
    );
}
