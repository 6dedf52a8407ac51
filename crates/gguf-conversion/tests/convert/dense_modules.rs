//! Dense layers of sentence-transformers after an embedding model: written as by llama.cpp's converter, and converted
//! back to files that give the same GGUF file. Only `fixtures/` is needed.

use std::path::Path;

use gguf_arch::{OutType, Registry};
use gguf_conversion::{Conversion, ConvertOptions, ToHfOptions, gguf_to_hf};
use gguf_core::Hint;
use gguf_core::progress::Silent;
use gguf_format::{GgufFile, Value};
use serde_json::{Value as Json, json};

use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::memory::write_source;
use gguf_testkit::{files, fixture, sha256};

/// Writes tensors of F32 numbers that follow from their indices.
fn write_weights(path: &Path, tensors: &[(String, Vec<u64>)]) {
    let mut file = Safetensors::default();
    for (number, (name, dims)) in tensors.iter().enumerate() {
        let element = |i: u64| (((i * 37 + number as u64 * 11) % 201) as f32 - 100.0) / 64.0;
        let values: Vec<f32> = (0..dims.iter().product()).map(element).collect();
        file.add_f32(name, dims, &values);
    }
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
    file.write(path);
}

/// Model of a card's fixture, with dense layers of these sizes in these directories.
fn write_model(dir: &Path, case: &str, layers: &[(&str, [u64; 2])]) {
    let case = files::json(fixture(&format!("cards/{case}.json")));
    let dims = |row: &Json| row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
    let rows = case["tensors"].as_array().unwrap();
    let tensors: Vec<_> = rows.iter().map(|row| (row[0].as_str().unwrap().to_owned(), dims(row))).collect();
    write_weights(&dir.join("model.safetensors"), &tensors);
    let write = |name: &str, json: &Json| fs_err::write(dir.join(name), json.to_string()).unwrap();
    write("config.json", &case["config"]);
    case["files"].get("tokenizer.json").iter().for_each(|json| write("tokenizer.json", json));
    let mut modules = vec![json!({"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"})];
    if !layers.iter().any(|layer| layer.0 == "1_Dense") {
        modules.push(json!({"path": "./1_Pooling/", "type": "sentence_transformers.models.Pooling"}));
        fs_err::create_dir_all(dir.join("1_Pooling")).unwrap();
        write("1_Pooling/config.json", &json!({"pooling_mode_mean_tokens": true}));
    }
    for (folder, [n_out, n_in]) in layers {
        modules.push(json!({"path": folder, "type": "sentence_transformers.models.Dense"}));
        let file = dir.join(folder).join("model.safetensors");
        write_weights(&file, &[("linear.weight".to_owned(), vec![*n_out, *n_in])]);
        write(&format!("{folder}/config.json"), &json!({"in_features": n_in, "out_features": n_out}));
    }
    write("modules.json", &Json::Array(modules));
}

fn options(ty: OutType, dense_modules: bool) -> ConvertOptions {
    ConvertOptions { file_type: Some(ty), tokenizer: false, dense_modules, ..ConvertOptions::default() }
}

/// Converts a directory; returns the checksum of the file.
fn convert(dir: &Path, target: &Path, options: &ConvertOptions) -> String {
    let conversion = Conversion::plan(dir, options).unwrap();
    write_source(target, conversion.metadata(), &conversion);
    sha256(&fs_err::read(target).unwrap())
}

/// Converts back to a checkpoint and to F32 again; keys and tensor bytes must be the same.
fn there_and_back(dir: &Path, gguf: &Path) -> Vec<String> {
    let back = dir.join("back");
    let file = GgufFile::open(gguf).unwrap();
    let to_hf = ToHfOptions { tokenizer: false, sync: false, ..ToHfOptions::default() };
    gguf_to_hf(&Registry::embedded().unwrap(), file.metadata(), &file, &back, &to_hf, &Silent).unwrap();
    let again = dir.join("again.gguf");
    convert(&back, &again, &options(OutType::F32, true));
    let content = |path: &Path| {
        let file = GgufFile::open(path).unwrap();
        let keys = file.metadata().iter().filter(|(key, _)| !key.starts_with("general."));
        let keys: Vec<String> = keys.map(|(key, value)| format!("{key} {value:?}")).collect();
        (keys, sha256(&fs_err::read(path).unwrap()[file.data_offset() as usize..]))
    };
    assert_eq!(content(gguf), content(&again));
    let list = files::json(back.join("modules.json"));
    list.as_array().unwrap().iter().map(|module| module["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn dense_layers_of_an_embedding_model() {
    let dir = tempfile::tempdir().unwrap();
    let (model, gguf) = (dir.path().join("gemma"), dir.path().join("m.gguf"));
    write_model(&model, "gemma-embedding/pooled", &[("2_Dense", [256, 64]), ("3_Dense", [64, 256])]);
    // Checksum of the file from llama.cpp's converter.
    let sum = convert(&model, &gguf, &options(OutType::F16, true));
    assert_eq!(sum, "ec0a7e42e63201582de5d9c281f19aa399b0de2f786c7fefa8b7454a1f8a79f3");
    let sum = convert(&model, &gguf, &options(OutType::F32, true));
    assert_eq!(sum, "35d005508550f2e870410e2aa2fa727bee60f3ce56450d1892d899716301a216");
    assert_eq!(there_and_back(dir.path(), &gguf), ["", "1_Pooling", "2_Dense", "3_Dense"]);
    let without = Conversion::plan(&model, &options(OutType::F32, false)).unwrap();
    assert!(without.metadata().iter().all(|(key, _)| !key.contains("dense")));
}

/// Modules are layers by their order, whatever their folders are called.
#[test]
fn dense_modules_have_the_order_of_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |case: &str, layers: &[(&str, [u64; 2])]| {
        write_model(dir.path(), case, layers);
        Conversion::plan(dir.path(), &options(OutType::F32, true))
    };
    let keys = |layers: &[(&str, [u64; 2])]| {
        let plan = plan("gemma-embedding/pooled", layers).unwrap();
        ["dense_2_feat_out", "dense_3_feat_in", "embedding_length_out"]
            .map(|key| plan.metadata().get(&format!("gemma-embedding.{key}")).and_then(Value::as_u64))
    };
    let (first, second) = ([256, 64], [64, 256]);
    for names in [["2_DenseA", "3_DenseB"], ["3_Dense", "2_Dense"]] {
        assert_eq!(keys(&[(names[0], first), (names[1], second)]), [Some(256), Some(256), None], "{names:?}");
    }
    // Alone, a layer gives the width of the embeddings.
    assert_eq!(keys(&[("2_Dense_16", [16, 64])]), [Some(16), None, Some(16)]);
    let layers = [("2_Dense", first), ("3_Dense", second), ("4_Dense", first)];
    let third = plan("gemma-embedding/pooled", &layers).unwrap_err().to_string();
    assert!(third.contains("`4_Dense` is a third dense module"), "{third}");
    let place = plan("bert/bert", &layers[..1]).unwrap_err().to_string();
    assert!(place.contains("files of `BertModel` have no place for dense modules: leave"), "{place}");
}

#[test]
fn the_projection_of_a_late_interaction_model() {
    let dir = tempfile::tempdir().unwrap();
    let (model, gguf) = (dir.path().join("lfm2"), dir.path().join("m.gguf"));
    write_model(&model, "lfm2/lfm2_model", &[("1_Dense", [32, 64])]);
    let sum = convert(&model, &gguf, &options(OutType::F32, false));
    assert_eq!(sum, "232882395319decedde8ba7d4b9a3172554108fa959caf423e80cdac5a103106");
    assert_eq!(there_and_back(dir.path(), &gguf), ["", "1_Dense"]);
}

#[test]
fn modules_that_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |modules: &Json, layer: &Json| {
        write_model(dir.path(), "gemma-embedding/pooled", &[("2_Dense", [256, 64])]);
        fs_err::write(dir.path().join("2_Dense/config.json"), layer.to_string()).unwrap();
        fs_err::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
        Conversion::plan(dir.path(), &options(OutType::F32, true)).unwrap_err().to_string()
    };
    let module = |path: &str| json!([{"path": path, "type": "sentence_transformers.models.Dense"}]);
    let sizes = refusal(&module("2_Dense"), &json!({"in_features": 65}));
    assert!(sizes.contains("`in_features` is 65, the weight is [256, 64]"), "{sizes}");
    for path in ["../2_Dense", "/2_Dense"] {
        let outside = refusal(&module(path), &json!({}));
        assert!(outside.contains(&format!("`{path}` leaves the directory")), "{outside}");
    }
    let none =
        refusal(&json!([{"path": "", "type": "sentence_transformers.models.Transformer"}]), &json!({}));
    assert!(
        none.ends_with(
            "no dense module with weights, and `--sentence-transformers-dense-modules` asks for them"
        ),
        "{none}"
    );
    let no_path = refusal(&json!([{"type": "a.Dense"}]), &json!({}));
    assert!(no_path.contains("module `a.Dense` has no `path`"), "{no_path}");
}

/// Modules and settings that the file does not carry are named, and those without effect are not.
#[test]
fn modules_that_change_embeddings_are_named() {
    let write = |dir: &Path, name: &str, json: &Json| {
        let path = dir.join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, json.to_string()).unwrap();
    };
    let told = |modules: &[(&str, &str, Json)], others: &[(&str, Json)]| {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), "bert/bert", &[]);
        let row = |(path, ty, _): &(&str, &str, Json)| json!({"path": path, "type": format!("sentence_transformers.models.{ty}")});
        let list: Vec<Json> = [("", "Transformer", json!({}))].iter().chain(modules).map(row).collect();
        write(dir.path(), "modules.json", &Json::Array(list));
        for (path, _, json) in modules {
            write(dir.path(), &format!("{path}/config.json"), json);
        }
        for (name, json) in others {
            write(dir.path(), name, json);
        }
        match Conversion::plan(dir.path(), &options(OutType::F32, false)) {
            Ok(conversion) => conversion.warnings().join("\n"),
            Err(error) => error.to_string(),
        }
    };
    let pooling = || ("1_Pooling", "Pooling", json!({"pooling_mode": "mean", "include_prompt": true}));
    let none = json!({});
    let plain = [
        ("sentence_bert_config.json", json!({"max_seq_length": 64, "do_lower_case": false})),
        (
            "config_sentence_transformers.json",
            json!({"prompts": {"query": "q: "}, "default_prompt_name": null, "similarity_fn_name": "cosine"}),
        ),
    ];
    assert_eq!(
        told(
            &[pooling(), ("2_Normalize", "Normalize", none.clone()), ("3_Dropout", "Dropout", none.clone())],
            &plain
        ),
        ""
    );
    for (ty, words) in [
        ("Dense", &["module `2_X` (Dense) is left out", "embeddings of the file differ"][..]),
        ("LayerNorm", &["module `2_X` (LayerNorm) is left out"]),
        ("WeightedLayerPooling", &["module `2_X` (WeightedLayerPooling) is left out"]),
        ("SomebodysOwn", &["module `2_X` (SomebodysOwn) is left out"]),
        ("WordEmbeddings", &["modules.json: module `2_X` (WordEmbeddings) is no transformer"]),
    ] {
        let found = told(&[pooling(), ("2_X", ty, none.clone())], &[]);
        for word in words {
            assert!(found.contains(word), "{ty}: {found}");
        }
    }
    let modes = |json: Json| told(&[("1_Pooling", "Pooling", json)], &[]);
    assert!(
        modes(json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}))
            .contains("only one is written")
    );
    assert!(modes(json!({"pooling_mode": ["mean", "max"]})).contains("only one is written"));
    assert!(modes(json!({"pooling_mode": ["max"]})).contains("pools neither by mean"));
    assert_eq!(modes(json!({"pooling_mode": ["cls"]})), "");
    assert!(
        modes(json!({"pooling_mode": "mean", "include_prompt": false})).contains("`include_prompt` = false")
    );
    let set = |name: &str, json: Json| told(&[pooling()], &[(name, json)]);
    let prompt = json!({"prompts": {"query": "q: "}, "default_prompt_name": "query", "truncate_dim": 4});
    let found = set("config_sentence_transformers.json", prompt);
    assert!(found.contains("`default_prompt_name` = `query`") && found.contains("`q: `"), "{found}");
    assert!(found.contains("`truncate_dim` = 4"), "{found}");
    assert!(
        set("sentence_bert_config.json", json!({"do_lower_case": true})).contains("`do_lower_case` = true")
    );
}

#[test]
fn a_list_of_modules_with_a_key_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), "bert/bert", &[]);
    let list = r#"[{"path": "", "path": "x", "type": "sentence_transformers.models.Transformer"}]"#;
    fs_err::write(dir.path().join("modules.json"), list).unwrap();
    let error = Conversion::plan(dir.path(), &options(OutType::F32, false)).unwrap_err().to_string();
    assert!(error.contains("modules.json") && error.contains("path"), "{error}");
}

/// Older versions of sentence-transformers put the transformer into a folder of its own.
#[test]
fn a_transformer_in_a_folder_is_read_with_its_modules() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("of-all");
    write_model(&root.join("0_Transformer"), "bert/bert", &[]);
    let inner = root.join("0_Transformer");
    fs_err::rename(inner.join("1_Pooling"), root.join("1_Pooling")).unwrap();
    fs_err::remove_file(inner.join("modules.json")).unwrap();
    let modules = json!([
        {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    fs_err::write(root.join("modules.json"), modules.to_string()).unwrap();
    // The folder may be given by itself.
    for given in [&root, &inner] {
        let plan = Conversion::plan(given, &options(OutType::F32, false)).unwrap();
        assert_eq!(plan.metadata().get("bert.pooling_type"), Some(&Value::U32(1)), "{}", given.display());
        assert_eq!(plan.metadata().get("general.name"), Some(&Value::from("Of All")));
    }
    // A list of other folders is not that of this model.
    fs_err::rename(&inner, root.join("other")).unwrap();
    let plan = Conversion::plan(&root.join("other"), &options(OutType::F32, false)).unwrap();
    assert_eq!(plan.metadata().get("bert.pooling_type"), None);
}

#[test]
fn poolings_without_a_number_are_told_with_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), "bert/bert", &[]);
    let plan = || Conversion::plan(dir.path(), &options(OutType::F32, false));
    let pooling = |config: Json| {
        fs_err::write(dir.path().join("1_Pooling/config.json"), config.to_string()).unwrap();
    };
    pooling(json!({"pooling_mode": "max"}));
    let error = plan().unwrap_err();
    assert!(error.hints()[0].starts_with("without `modules.json`"), "{:?}", error.hints());
    pooling(json!({"pooling_mode": ["cls", "mean"]}));
    let warnings = plan().unwrap().warnings().join("\n");
    assert!(warnings.contains("of the modes `cls`, `mean` only one is written"), "{warnings}");
    // Another module whose name ends alike is none that pools.
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_WeightedLayerPooling", "type": "sentence_transformers.models.WeightedLayerPooling"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    fs_err::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    pooling(json!({"pooling_mode": "cls"}));
    let plan = plan().unwrap();
    assert_eq!(plan.metadata().get("bert.pooling_type"), Some(&Value::U32(2)));
    assert!(plan.warnings().iter().any(|text| text.contains("(WeightedLayerPooling) is left out")));
}
