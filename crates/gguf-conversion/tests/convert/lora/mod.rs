//! Adapters: the bytes of the reference, refused input, and sums compared with a plain loop.

mod changes;
mod experts;
mod merge;
mod mlx;
mod more;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_arch::OutType;
use gguf_conversion::{AdapterConversion, AdapterOptions, ConvertError, ConvertOptions, Fate};
use gguf_core::{Hint, TensorSource};
use gguf_format::Value;
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use gguf_testkit::adapters::write_safetensors;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::{f32_values, tensor_bytes, write_source};
use gguf_testkit::{files, in_json, report_cases, sha256};

/// Types in which the reference writes adapters. Its `auto` fails.
const OUTTYPES: [&str; 4] = ["f32", "f16", "bf16", "q8_0"];
/// All cases of the corpus.
const N_CASES: usize = 48;
/// Case for which the reference transposes the matrices of layers that are stored transposed, so that they no longer
/// fit.
const TURNED: &str = "gpt2_conv1d";
/// Valid cases that the reference refuses, with their number of tensors: names as in PEFT's memory.
const CONVERTED: [(&str, usize); 1] = [("llama_default_name", 8)];

fn plan(case: &Path, outtype: &str, scale_alpha: bool) -> Result<AdapterConversion, ConvertError> {
    let adapter = AdapterOptions { base: Some(case.join("base")), scale_alpha };
    let options = ConvertOptions { file_type: OutType::from_name(outtype), ..ConvertOptions::default() };
    AdapterConversion::plan(&case.join("adapter"), &adapter, &options)
}

fn keys(conversion: &AdapterConversion) -> Vec<Json> {
    let row = |(key, value): (&str, &Value)| {
        let (kind, value) = in_json(value);
        json!([key, kind, value])
    };
    conversion.metadata().iter().map(row).collect()
}

fn cases(corpus: &Goldens) -> Vec<PathBuf> {
    let mut dirs = files::entries(corpus.join("lora"));
    dirs.retain(|dir| dir.join("case.json").is_file());
    dirs
}

/// Difference of a file from the reference's bytes.
fn complaint(case: &Path, outtype: &str, expect: &Json) -> Option<String> {
    let at = format!("{} {outtype}", case.file_name().unwrap().to_string_lossy());
    let conversion = match plan(case, outtype, false) {
        Ok(conversion) => conversion,
        Err(error) => return Some(format!("{at}: {error}")),
    };
    let (found, want) = (keys(&conversion), expect["kv"].as_array().unwrap());
    if found != *want {
        return Some(format!("{at}: keys {found:?}, expected {want:?}"));
    }
    let want = expect["tensors"].as_array().unwrap();
    let names: Vec<&str> = conversion.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    let wanted: Vec<&str> = want.iter().map(|row| row[0].as_str().unwrap()).collect();
    if names != wanted {
        return Some(format!("{at}: tensors {names:?}, expected {wanted:?}"));
    }
    if case.ends_with(TURNED) {
        return turned(&conversion, want).map(|wrong| format!("{at}: {wrong}"));
    }
    for (index, (tensor, want)) in conversion.tensors().iter().zip(want).enumerate() {
        let dims: Vec<u64> = tensor.shape.dims().iter().rev().copied().collect();
        let bytes = tensor_bytes(&conversion, index);
        let row = json!([tensor.name, dims, tensor.ty.name(), bytes.len(), sha256(&bytes)]);
        if row != *want {
            return Some(format!("{at}: {row}, expected {want}"));
        }
    }
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("lora.gguf");
    write_source(&target, conversion.metadata(), &conversion);
    let bytes = fs_err::read(&target).unwrap();
    (sha256(&bytes) != expect["file"]["sha256"].as_str().unwrap()).then(|| format!("{at}: other bytes"))
}

/// Difference from a reference that transposes both matrices: its A is our transposed B, and the reverse. Rows of a
/// rank are not whole blocks, so block types are not compared.
fn turned(conversion: &AdapterConversion, want: &[Json]) -> Option<String> {
    let tensors = conversion.tensors();
    for (index, tensor) in tensors.iter().enumerate() {
        let other = if tensor.name.ends_with("_a") { index + 1 } else { index - 1 };
        let dims = tensor.shape.dims();
        if json!([dims[0], dims[1]]) != want[other][1] {
            return Some(format!("{}: {} beside {}", tensor.name, tensor.shape, want[other]));
        }
        let same_type = json!(tensor.ty.name()) == want[other][2];
        let Some(elem_bytes) = tensor.ty.row_bytes(1).filter(|_| same_type && tensor.ty.block_elems() == 1)
        else {
            continue;
        };
        let bytes = tensor_bytes(conversion, index);
        let (n_rows, n_cols, size) = (dims[0] as usize, dims[1] as usize, elem_bytes as usize);
        let mut turned = Vec::with_capacity(bytes.len());
        for column in 0..n_cols {
            for row in 0..n_rows {
                let at = (row * n_cols + column) * size;
                turned.extend_from_slice(&bytes[at..at + size]);
            }
        }
        if json!(sha256(&turned)) != want[other][4] {
            return Some(format!("{} turned is not the reference's {}", tensor.name, want[other][0]));
        }
    }
    None
}

conformance_tests!(every_adapter_has_the_bytes_of_the_reference);
fn every_adapter_has_the_bytes_of_the_reference(corpus: &Goldens) {
    let dirs = cases(corpus);
    assert_eq!(dirs.len(), N_CASES);
    let (n_files, n_refused): (AtomicUsize, AtomicUsize) = Default::default();
    let wrong: Vec<String> = dirs
        .par_iter()
        .flat_map(|case| {
            if !files::json(case.join("case.json"))["expect_error"].is_null() {
                n_refused.fetch_add(1, Ordering::Relaxed);
                let sound = CONVERTED.iter().find(|(name, _)| case.ends_with(name));
                let wrong = match (plan(case, "f32", false), sound) {
                    (Ok(found), Some((_, n_tensors))) if found.tensors().len() == *n_tensors => None,
                    (Ok(found), Some(_)) => Some(format!("{} tensors", found.tensors().len())),
                    (Ok(_), None) => Some("converts".to_owned()),
                    (Err(error), Some(_)) => Some(error.to_string()),
                    (Err(_), None) => None,
                };
                return wrong.map(|wrong| vec![format!("{}: {wrong}", case.display())]);
            }
            let of_type = |outtype: &&str| {
                n_files.fetch_add(1, Ordering::Relaxed);
                complaint(case, outtype, &files::json(case.join(format!("expect-{outtype}.json"))))
            };
            Some(OUTTYPES.iter().filter_map(of_type).collect())
        })
        .flatten()
        .collect();
    assert!(wrong.is_empty(), "{} files:\n{}", wrong.len(), wrong.join("\n"));
    let (n_files, n_refused) = (n_files.into_inner(), n_refused.into_inner());
    assert_eq!(n_files, (N_CASES - n_refused) * OUTTYPES.len());
    report_cases("adapters", n_files + n_refused);
}

#[test]
fn what_has_no_place_in_an_adapter_is_refused_with_a_way_out() {
    let goldens = Goldens::selection();
    let merge = "a GGUF adapter has no place for it: `gguf-convert merge-lora BASE ADAPTER` merges the adapter into its base \
                 model";
    let base = "check that the base is the model that the adapter was made for; if it is, merge the two by PEFT \
                (`merge_and_unload`, then `save_pretrained`), and convert the result";
    let layer = "base_model.model.model.layers.0.self_attn";
    for (case, error, hint) in [
        (
            "deepseek2_kvb",
            "tensor `model.layers.0.self_attn.kv_b_proj.weight`: `reshape` cannot be carried out on the two matrices of an \
             adapter"
                .to_owned(),
            merge,
        ),
        ("llama_bias", format!("tensor `{layer}.q_proj.bias`: a bias"), merge),
        (
            "llama_dora",
            format!("tensor `{layer}.q_proj.lora_magnitude_vector`: lengths of rows (DoRA)"),
            merge,
        ),
        (
            "llama_modules_to_save",
            "tensor `base_model.model.lm_head.weight`: a whole tensor of the model, no `lora_A` or `lora_B`".to_owned(),
            merge,
        ),
        (
            "llama_unknown_module",
            "1 of the checkpoint's tensors is unknown to architecture `llama`: `model.layers.0.self_attn.extra_proj.weight`"
                .to_owned(),
            base,
        ),
    ] {
        let found = plan(&goldens.find(format!("lora/{case}")).unwrap(), "f32", false).unwrap_err();
        assert_eq!(found.to_string(), error, "{case}");
        assert_eq!(found.hints()[0], hint, "{case}");
    }
    for (case, error) in [
        ("llama_missing_b", "has no counterpart `base_model.model.model.layers."),
        ("llama_no_alpha", "adapter_config.json: `lora_alpha` is missing"),
        ("unknown_architecture", "no architecture card for class `NoSuchForCausalLM`"),
    ] {
        let found = plan(&goldens.find(format!("lora/{case}")).unwrap(), "f32", false).unwrap_err();
        assert!(found.to_string().contains(error), "{case}: {found}");
        assert!(!found.hints().is_empty(), "{case}");
    }
}

#[test]
fn experts_come_all_or_none() {
    let goldens = Goldens::selection();
    let case = goldens.find("lora/mixtral_experts").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let adapter = dir.path().join("adapter");
    fs_err::create_dir(&adapter).unwrap();
    fs_err::create_dir(dir.path().join("base")).unwrap();
    fs_err::copy(case.join("adapter/adapter_config.json"), adapter.join("adapter_config.json")).unwrap();
    fs_err::copy(case.join("base/config.json"), dir.path().join("base/config.json")).unwrap();
    let tensors = [
        ("model.layers.0.block_sparse_moe.experts.1.w1.lora_A.weight", vec![2u64, 64]),
        ("model.layers.0.block_sparse_moe.experts.1.w1.lora_B.weight", vec![128, 2]),
    ];
    write_safetensors(&adapter.join("adapter_model.safetensors"), &tensors);
    let error = plan(dir.path(), "f32", false).unwrap_err();
    assert!(
        error.to_string().contains("`model.layers.0.block_sparse_moe.experts.0.w1.weight` is missing"),
        "{error}"
    );
    assert!(error.hints()[0].starts_with("a GGUF adapter changes all experts of a layer or none"), "{error}");
}

/// Single matrices have different strengths, but runtimes know one alpha and divide it by the rank of each.
#[test]
fn scaled_alpha_is_the_strength_of_the_training() {
    let goldens = Goldens::selection();
    let alpha = |conversion: &AdapterConversion| match conversion.metadata().get("adapter.lora.alpha") {
        Some(Value::F32(alpha)) => *alpha,
        other => panic!("{other:?}"),
    };
    let rooted = goldens.find("lora/llama_rslora").unwrap();
    let (plain, scaled) = (plan(&rooted, "f32", false).unwrap(), plan(&rooted, "f32", true).unwrap());
    assert_eq!((alpha(&plain), alpha(&scaled)), (16.0, 64.0));
    assert!(plain.warnings()[0].starts_with("`use_rslora` gives 4 of 4 matrices another strength"));
    assert!(scaled.warnings().is_empty());
    for tensor in 0..plain.tensors().len() {
        assert_eq!(tensor_bytes(&plain, tensor), tensor_bytes(&scaled, tensor));
    }
    // Queries have half the alpha of the others.
    let pattern = goldens.find("lora/llama_rank_pattern").unwrap();
    let (plain, scaled) = (plan(&pattern, "f32", false).unwrap(), plan(&pattern, "f32", true).unwrap());
    assert_eq!((alpha(&plain), alpha(&scaled)), (8.0, 8.0));
    assert!(plain.warnings()[0].starts_with("`alpha_pattern` gives 2 of 8 matrices another strength"));
    for (index, tensor) in plain.tensors().iter().enumerate() {
        let floats = |conversion| f32_values(&tensor_bytes(conversion, index));
        let by = if tensor.name.ends_with("attn_q.weight.lora_b") { 0.5 } else { 1.0 };
        let want: Vec<f32> = floats(&plain).into_iter().map(|value| value * by).collect();
        assert_eq!(floats(&scaled), want, "{}", tensor.name);
    }
}

#[test]
fn what_is_left_out_is_told() {
    let case = Goldens::selection().find("lora/gemma_lm_head").unwrap();
    let conversion = plan(&case, "f32", false).unwrap();
    assert_eq!(conversion.warnings().len(), 1, "{:?}", conversion.warnings());
    assert!(conversion.warnings()[0].starts_with("the adapter's change of `lm_head` is left out: "));
    let account = conversion.account();
    for (name, fate) in [
        ("lora_alpha", Fate::Written),
        ("lora_dropout", Fate::WithoutEffect),
        ("__metadata__.format", Fate::WithoutEffect),
        ("adapter_config.json", Fate::Written),
        ("base_model.model.lm_head.lora_A.weight", Fate::LeftOut),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", Fate::Written),
    ] {
        let own: Vec<_> = account.iter().filter(|piece| piece.name == name).collect();
        assert!(own.len() == 1 && own[0].fate == fate, "{name}: {own:?} of {account:#?}");
    }
    assert!(account.iter().all(|piece| piece.fate != Fate::Unknown), "{account:#?}");
    let dir = tempfile::tempdir().unwrap();
    let embedding = Goldens::selection().find("lora/llama_embedding").unwrap();
    fs_err::create_dir(dir.path().join("base")).unwrap();
    let mut config = files::json(embedding.join("base/config.json"));
    let told = |config: &Json| {
        fs_err::write(dir.path().join("base/config.json"), config.to_string()).unwrap();
        let adapter = AdapterOptions { base: Some(dir.path().join("base")), scale_alpha: false };
        let conversion =
            AdapterConversion::plan(&embedding.join("adapter"), &adapter, &ConvertOptions::default());
        conversion.unwrap().warnings().to_vec()
    };
    assert!(told(&config).is_empty());
    config["tie_word_embeddings"] = json!(true);
    assert!(told(&config)[0].starts_with("the adapter changes the embeddings, which are the model's output"));
    let zero = Goldens::selection().find("lora/llama_alpha_zero").unwrap();
    assert!(plan(&zero, "f32", false).unwrap().warnings()[0].starts_with("`lora_alpha` is 0: "));
}

#[test]
fn auto_is_the_type_of_the_adapter() {
    for (case, encoding) in [("llama_qv", "F16"), ("llama_all_linear", "BF16"), ("chatglm_fused", "F16")] {
        let case = Goldens::selection().find(format!("lora/{case}")).unwrap();
        assert_eq!(plan(&case, "auto", false).unwrap().encoding(), encoding, "{}", case.display());
    }
}
