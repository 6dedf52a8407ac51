//! Changes of an adapter that a file cannot hold, or holds in another place: outputs that are tied to the embeddings,
//! biases, towers, names of another wrapper.

use std::path::Path;

use gguf_arch::CardKind;
use gguf_conversion::{
    AdapterConversion, AdapterOptions, Conversion, ConvertError, ConvertOptions, ModelSource,
};
use gguf_core::{Hint, TensorSource};
use serde_json::{Value as Json, json};

use super::merge::{EMBED, EMBED_A, EMBED_B, HEAD, NORM, Pair, Q, WHOLE_HEAD, llama, read, values};
use crate::fixture::case;
use gguf_testkit::adapters::{Q_A, Q_B, write_safetensors};
use gguf_testkit::memory::tensor_bytes;

const HEAD_A: &str = "base_model.model.lm_head.lora_A.weight";
const HEAD_B: &str = "base_model.model.lm_head.lora_B.weight";

fn floats(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|value| value as f32).collect()
}

fn settings() -> Json {
    json!({"lora_alpha": 6, "r": 3})
}

#[test]
fn a_changed_output_leaves_its_embeddings_as_they_are() {
    let unembed =
        ["A", "B"].map(|half| &*format!("base_model.model.model.unembed_tokens.lora_{half}.weight").leak());
    for [a, b] in [[HEAD_A, HEAD_B], unembed] {
        let adapter: [(&str, &[u64]); 2] = [(a, &[3, 8]), (b, &[20, 3])];
        let pair = Pair::new(&[(EMBED, &[20, 8]), (NORM, &[8])], &adapter, &llama(), &settings());
        let merged = pair.merged().unwrap();
        assert_eq!(read(&merged, HEAD), pair.sum(EMBED, [a, b], 2.0, false));
        assert_eq!(read(&merged, EMBED), floats(values(&pair.base, EMBED)));
        assert_eq!(merged.dir.config()["tie_word_embeddings"], false);
        // An output of its own is no other tensor.
        let pair = Pair::new(&[(EMBED, &[20, 8]), (HEAD, &[20, 8])], &adapter, &llama(), &settings());
        let merged = pair.merged().unwrap();
        assert_eq!(read(&merged, HEAD), pair.sum(HEAD, [a, b], 2.0, false));
        assert!(merged.warnings.is_empty(), "{:?}", merged.warnings);
    }
    let pair = Pair::new(&[(EMBED, &[20, 8])], &[(WHOLE_HEAD, &[20, 8])], &llama(), &settings());
    let merged = pair.merged().unwrap();
    assert_eq!(read(&merged, HEAD), floats(values(&pair.adapter, WHOLE_HEAD)));
    assert_eq!(read(&merged, EMBED), floats(values(&pair.base, EMBED)));
    // Embeddings of another shape are not the output.
    let pair =
        Pair::new(&[(EMBED, &[20, 8])], &[(HEAD_A, &[3, 8]), (HEAD_B, &[21, 3])], &llama(), &settings());
    assert!(pair.merged().unwrap_err().to_string().contains("has no tensor `lm_head.weight`"));
}

/// PEFT trains a copy of a saved module: the output keeps the embeddings of the base, unless both stay tied.
#[test]
fn replaced_embeddings_leave_a_tied_output_as_it_is() {
    let embed = "base_model.model.model.embed_tokens.weight";
    let saved = |more: Json| {
        let mut settings = json!({"lora_alpha": 6, "r": 3, "modules_to_save": ["embed_tokens"]});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        settings
    };
    let base: [(&str, &[u64]); 2] = [(NORM, &[8]), (EMBED, &[20, 8])];
    let pair = Pair::new(&base, &[(embed, &[20, 8])], &llama(), &saved(json!({})));
    let merged = pair.merged().unwrap();
    assert_eq!(read(&merged, EMBED), floats(values(&pair.adapter, embed)));
    assert_eq!(read(&merged, HEAD), floats(values(&pair.base, EMBED)));
    assert_eq!(merged.dir.config()["tie_word_embeddings"], false);
    let has_head = |pair: &Pair| {
        let merged = pair.merged().unwrap();
        merged.weights.as_deref().unwrap().weights().iter().any(|meta| meta.name == HEAD)
    };
    let ties = saved(json!({"ensure_weight_tying": true}));
    assert!(!has_head(&Pair::new(&base, &[(embed, &[20, 8])], &llama(), &ties)));
    let both: [(&str, &[u64]); 2] = [(embed, &[20, 8]), (WHOLE_HEAD, &[20, 8])];
    assert!(!has_head(&Pair::new(&base, &both, &llama(), &ties)));
    assert!(has_head(&Pair::new(&base, &both, &llama(), &saved(json!({})))));
    // Embeddings that PEFT saves for their new tokens are the module itself, and an encoder has no output.
    let plain = json!({"lora_alpha": 6, "r": 3});
    assert!(!has_head(&Pair::new(&base, &[(embed, &[20, 8])], &llama(), &plain)));
    let encoder = json!({"architectures": ["LlamaModel"], "model_type": "llama", "hidden_size": 8});
    assert!(!has_head(&Pair::new(&base, &[(embed, &[20, 8])], &encoder, &saved(json!({})))));
}

#[test]
fn lengths_of_a_tied_output_are_those_of_its_own_tensor() {
    let lengths = "base_model.model.lm_head.lora_magnitude_vector";
    let adapter: [(&str, &[u64]); 3] = [(HEAD_A, &[3, 8]), (HEAD_B, &[20, 3]), (lengths, &[20])];
    let settings = json!({"lora_alpha": 6, "r": 3, "use_dora": true});
    let tied = Pair::new(&[(EMBED, &[20, 8])], &adapter, &llama(), &settings);
    let own = Pair::new(&[(HEAD, &[20, 8])], &adapter, &llama(), &settings);
    let merged = tied.merged().unwrap();
    assert_eq!(read(&merged, HEAD), read(&own.merged().unwrap(), HEAD));
    assert_eq!(read(&merged, EMBED), floats(values(&tied.base, EMBED)));
}

#[test]
fn dropped_tensors_of_an_adapter_are_passed_over() {
    let value_head = "v_head.summary.weight";
    let wrapped = "base_model.model.v_head.summary.bias";
    let adapter: [(&str, &[u64]); 4] =
        [(Q_A, &[3, 8]), (Q_B, &[8, 3]), (value_head, &[1, 8]), (wrapped, &[1])];
    let pair = Pair::new(&[(Q, &[8, 8])], &adapter, &llama(), &settings());
    assert!(pair.merged().is_err());
    let drop = ["^v_head\\.", "^nothing"].map(|text| regex::Regex::new(text).unwrap()).to_vec();
    let options = ConvertOptions { drop, ..ConvertOptions::default() };
    let base = ModelSource::open(&pair.dir.path().join("base"), &options).unwrap();
    let merged = base.merged(&pair.dir.path().join("adapter"), &options).unwrap();
    assert_eq!(read(&merged, Q), pair.sum(Q, [Q_A, Q_B], 2.0, false));
    assert_eq!(
        merged.warnings,
        [
            "`--drop ^nothing` matches no tensor of the checkpoint",
            "`--drop ^v_head\\.` leaves out 2 tensors of the adapter: `v_head.summary.weight`, \
             `base_model.model.v_head.summary.bias`",
        ]
    );
}

/// sentence-transformers reads the modules next to an adapter, not those next to its base.
#[test]
fn modules_of_an_adapter_are_those_of_the_model() {
    let pair = Pair::new(&[(Q, &[8, 8])], &[(Q_A, &[3, 8]), (Q_B, &[8, 3])], &llama(), &settings());
    let put = |dir: &str, mode: &str| {
        let dir = pair.dir.path().join(dir);
        fs_err::create_dir(dir.join("1_Pooling")).unwrap();
        let list = json!([{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]);
        fs_err::write(dir.join("modules.json"), list.to_string()).unwrap();
        let config = json!({"pooling_mode": mode});
        fs_err::write(dir.join("1_Pooling/config.json"), config.to_string()).unwrap();
    };
    let pooling = |merged: &ModelSource| merged.dir.json("1_Pooling/config.json").unwrap().unwrap();
    put("adapter", "cls");
    let merged = pair.merged().unwrap();
    assert_eq!(pooling(&merged)["pooling_mode"], "cls");
    assert!(merged.warnings.is_empty(), "{:?}", merged.warnings);
    assert!(merged.paths.contains(&pair.dir.path().join("adapter/1_Pooling/config.json")));
    put("base", "mean");
    let merged = pair.merged().unwrap();
    assert_eq!(pooling(&merged)["pooling_mode"], "cls");
    assert!(merged.warnings[0].contains("`modules.json`"), "{:?}", merged.warnings);
}

#[test]
fn biases_of_matrices_are_added_to_biases() {
    let bias = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias";
    let own = "model.layers.0.self_attn.q_proj.bias";
    let adapter: [(&str, &[u64]); 3] = [(Q_A, &[3, 8]), (Q_B, &[8, 3]), (bias, &[8])];
    let pair = Pair::new(&[(Q, &[8, 8]), (own, &[8])], &adapter, &llama(), &settings());
    let merged = pair.merged().unwrap();
    let both = values(&pair.base, own).into_iter().zip(values(&pair.adapter, bias));
    assert_eq!(read(&merged, own), floats(both.map(|(base, added)| base + 2.0 * added).collect()));
    assert_eq!(read(&merged, Q), pair.sum(Q, [Q_A, Q_B], 2.0, false));
    let error = Pair::new(&[(Q, &[8, 8])], &adapter, &llama(), &settings()).merged().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("(`lora_bias`), but the base model has no `model.layers.0.self_attn.q_proj.bias`")
    );
    assert!(error.hints()[0].starts_with("PEFT does not merge such an adapter"), "{error:?}");
    let error = plan(&pair).unwrap_err().to_string();
    assert_eq!(error, format!("tensor `{bias}`: a bias of matrix B (`lora_bias`)"));
}

fn plan(pair: &Pair) -> Result<AdapterConversion, ConvertError> {
    let options = AdapterOptions { base: Some(pair.dir.path().join("base")), scale_alpha: false };
    AdapterConversion::plan(&pair.dir.path().join("adapter"), &options, &ConvertOptions::default())
}

#[test]
fn an_adapter_that_waits_for_tokens_is_not_merged() {
    let settings = json!({"lora_alpha": 6, "r": 3, "alora_invocation_tokens": [7]});
    let pair = Pair::new(&[(Q, &[8, 8])], &[(Q_A, &[3, 8]), (Q_B, &[8, 3])], &llama(), &settings);
    let error = pair.merged().unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("`alora_invocation_tokens`: the adapter acts on the tokens that follow these only")
    );
    assert!(error.hints()[0].contains("lora2gguf"), "{error:?}");
}

/// PEFT loads the embeddings of an adapter in place of the base's.
#[test]
fn stored_embeddings_are_the_base_of_their_matrices() {
    let stored = "base_model.model.model.embed_tokens.base_layer.weight";
    let adapter: [(&str, &[u64]); 3] = [(EMBED_A, &[3, 20]), (EMBED_B, &[8, 3]), (stored, &[20, 8])];
    let pair = Pair::new(&[(EMBED, &[20, 8]), (HEAD, &[20, 8])], &adapter, &llama(), &settings());
    let own =
        Pair::new(&[(HEAD, &[2, 2]), (NORM, &[1]), (EMBED, &[20, 8])], &adapter[..2], &llama(), &settings());
    assert_eq!(values(&pair.adapter, stored), values(&own.base, EMBED), "the third tensor of a file");
    assert_eq!(read(&pair.merged().unwrap(), EMBED), own.sum(EMBED, [EMBED_A, EMBED_B], 2.0, true));
}

#[test]
fn names_of_the_inner_model_and_of_wrappers_are_read() {
    let names = |prefix: &str, word: &str| {
        ["A", "B"].map(|half| -> &'static str {
            format!("{prefix}layers.0.{word}self_attn.q_proj.lora_{half}.weight").leak()
        })
    };
    let config = &case("llama/plain.json").content()["config"].clone();
    let hidden = config["hidden_size"].as_u64().unwrap();
    for (names, is_told) in [
        (names("base_model.model.model.", ""), false),
        (names("base_model.model.", ""), true),
        (names("", ""), true),
        (names("base_model.model.base_model.model.model.", ""), false),
        (names("module.base_model.model.model.", ""), true),
        (names("base_model.model.model.", "_orig_mod."), true),
    ] {
        let adapter: [(&str, &[u64]); 2] = [(names[0], &[3, hidden]), (names[1], &[hidden, 3])];
        let pair = Pair::new(&[(Q, &[hidden, hidden])], &adapter, config, &settings());
        let changed = read(&pair.merged().unwrap(), Q);
        assert_eq!(changed, pair.sum(Q, names, 2.0, false), "{names:?}");
        let outputs = |found: &AdapterConversion| {
            found.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
        };
        let want = ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"];
        assert_eq!(outputs(&plan(&pair).unwrap()), want, "{names:?}");
        fs_err::remove_file(pair.dir.path().join("base/model.safetensors")).unwrap();
        let found = plan(&pair).unwrap();
        assert_eq!(outputs(&found), want, "{names:?}");
        assert_eq!(!found.warnings().is_empty(), is_told, "{names:?} {:?}", found.warnings());
    }
}

/// Merges an adapter of these matrices into the case's checkpoint in a directory.
fn merged(
    dir: &Path,
    modules: &[(&str, [u64; 2])],
    kind: CardKind,
) -> Result<(Vec<String>, Conversion), ConvertError> {
    let adapter = dir.join("adapter");
    fs_err::create_dir_all(&adapter).unwrap();
    let name = |module: &str, half| format!("base_model.model.{module}.lora_{half}.weight");
    let tensors = modules
        .iter()
        .flat_map(|(module, [n, k])| [(name(module, "A"), vec![2, *k]), (name(module, "B"), vec![*n, 2])]);
    let tensors: Vec<(String, Vec<u64>)> = tensors.collect();
    let tensors: Vec<(&str, Vec<u64>)> =
        tensors.iter().map(|(name, dims)| (name.as_str(), dims.clone())).collect();
    write_safetensors(&adapter.join("adapter_model.safetensors"), &tensors);
    fs_err::write(adapter.join("adapter_config.json"), r#"{"lora_alpha": 6, "r": 2}"#).unwrap();
    let options = ConvertOptions { kind, tokenizer: false, ..ConvertOptions::default() };
    let source = ModelSource::open(dir, &options)?.merged(&adapter, &options)?;
    let conversion = Conversion::of(source, &options)?;
    Ok((conversion.warnings().to_vec(), conversion))
}

#[test]
fn a_changed_output_is_written_or_refused() {
    let tensors = |at: &str| {
        let dir = tempfile::tempdir().unwrap();
        let fixture = case(at);
        fixture.write(dir.path());
        let rows = fixture.content()["tensors"].as_array().unwrap();
        let embedding = rows.iter().find(|row| row[0] == EMBED).unwrap();
        (dir, [embedding[2][0].as_u64().unwrap(), embedding[2][1].as_u64().unwrap()])
    };
    let (dir, dims) = tensors("qwen3/plain.json");
    let (warnings, found) = merged(dir.path(), &[("lm_head", dims)], CardKind::Text).unwrap();
    let said = "the adapter changes the output `lm_head.weight`, which is the embeddings in the base model: it is written";
    assert!(warnings.iter().any(|warning| warning.starts_with(said)), "{warnings:?}");
    assert!(found.tensors().iter().any(|tensor| tensor.name == "output.weight"));
    // llama.cpp's Gemma has no output of its own.
    let (dir, dims) = tensors("gemma/gemma.json");
    let error = merged(dir.path(), &[("lm_head", dims)], CardKind::Text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the adapter changes the output `lm_head.weight`, which is always the embeddings in this architecture"
    );
    let base = AdapterOptions { base: Some(dir.path().to_owned()), scale_alpha: false };
    let error =
        AdapterConversion::plan(&dir.path().join("adapter"), &base, &ConvertOptions::default()).unwrap_err();
    assert!(error.to_string().contains("nothing of the adapter can be written"), "{error}");
}

#[test]
fn changes_of_a_tower_are_told_or_written() {
    let dir = tempfile::tempdir().unwrap();
    case("qwen35/qwen3_5.json").write(dir.path());
    let text = ("model.language_model.layers.3.self_attn.q_proj", [256, 32]);
    let tower = "model.visual.blocks.0.attn.proj";
    let said = |modules: &[(&str, [u64; 2])]| {
        let (warnings, _) = merged(dir.path(), modules, CardKind::Text).unwrap();
        warnings.into_iter().filter(|warning| warning.contains("the adapter's change")).collect::<Vec<_>>()
    };
    assert!(said(&[text]).is_empty());
    assert_eq!(
        said(&[text, (tower, [32, 32])]),
        [format!(
            "the adapter's change of `{tower}` is left out: belongs to another modality; `gguf-convert merge-lora BASE \
             ADAPTER --mmproj` writes the tower with it"
        )]
    );

    let dir = tempfile::tempdir().unwrap();
    case("clip/granite4-vision.json").write(dir.path());
    let module = "model.layerwise_projectors.0.out_linear";
    let embedding = ("model.language_model.embed_tokens", [96, 96]);
    let (warnings, changed) = merged(dir.path(), &[(module, [96, 64]), embedding], CardKind::Mmproj).unwrap();
    assert!(!warnings.iter().any(|warning| warning.contains("adapter")), "{warnings:?}");
    let options = ConvertOptions { kind: CardKind::Mmproj, tokenizer: false, ..ConvertOptions::default() };
    let plain = Conversion::plan(dir.path(), &options).unwrap();
    let differ = |at: &usize| tensor_bytes(&plain, *at) != tensor_bytes(&changed, *at);
    let names: Vec<&str> =
        (0..plain.tensors().len()).filter(differ).map(|at| plain.tensors()[at].name.as_str()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(changed.default_file_name("F16"), "mmproj-adapter-F16.gguf");
}

#[test]
fn an_adapter_next_to_the_weights_is_told() {
    let dir = tempfile::tempdir().unwrap();
    case("llama/plain.json").write(dir.path());
    let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
    let plan = || Conversion::plan(dir.path(), &options).unwrap().warnings().to_vec();
    assert!(plan().is_empty(), "{:?}", plan());
    fs_err::write(dir.path().join("adapter_config.json"), settings().to_string()).unwrap();
    assert!(plan().is_empty(), "{:?}", plan());
    write_safetensors(
        &dir.path().join("adapter_model.safetensors"),
        &[(Q_A, vec![3, 64]), (Q_B, vec![64, 3])],
    );
    let path = dir.path().display();
    assert_eq!(
        plan(),
        [format!(
            "the directory also has an adapter (`adapter_model.safetensors`), which is not merged: if its base is this \
             model, `gguf-convert merge-lora {path} {path}` merges it"
        )]
    );
    let source = ModelSource::open(dir.path(), &options).unwrap().merged(dir.path(), &options).unwrap();
    assert!(Conversion::of(source, &options).unwrap().warnings().is_empty());
}
