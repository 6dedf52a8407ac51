//! Weights: one file or shards, and the matrix that embedding and head may share.

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};

use super::{ABSENT, Model, bytes, only_warning};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// BF16 tensor: name, shape, data.
type Tensor = (String, Vec<usize>, Vec<u8>);

fn tensors(model: &Model) -> Vec<Tensor> {
    let file = fs_err::read(model.path().join(FILE)).unwrap();
    let all = safetensors::SafeTensors::deserialize(&file).unwrap();
    all.tensors()
        .into_iter()
        .map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec()))
        .collect()
}

fn write(model: &Model, name: &str, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, shape, data)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), data).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs_err::write(model.path().join(name), file).unwrap();
}

/// Same tensors with all elements one.
fn ones(tensors: &[Tensor]) -> Vec<Tensor> {
    let one = |data: &Vec<u8>| [0x80u8, 0x3f].repeat(data.len() / 2);
    tensors.iter().map(|(name, shape, data)| (name.clone(), shape.clone(), one(data))).collect()
}

fn write_shards(model: &Model, tensors: &[Tensor]) {
    let half = tensors.len() / 2;
    write(model, SHARDS[0], &tensors[..half]);
    write(model, SHARDS[1], &tensors[half..]);
    write_index(model, tensors);
}

fn write_index(model: &Model, tensors: &[Tensor]) {
    let half = tensors.len() / 2;
    let map: serde_json::Map<String, Json> = tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| (tensor.0.clone(), json!(SHARDS[usize::from(at >= half)])))
        .collect();
    fs_err::write(model.path().join(INDEX), json!({"weight_map": map}).to_string()).unwrap();
}

#[test]
fn tensors_beside_the_model_that_nothing_reads_are_told() {
    let model = Model::new();
    let own = fs_err::read(model.path().join(FILE)).unwrap();
    for (name, told) in [
        ("mtp.safetensors", true),
        ("model_ema.safetensors", true),
        ("consolidated.safetensors", false),
        ("model.fp16.safetensors", false),
        ("pytorch_lora_weights.safetensors", false),
    ] {
        fs_err::write(model.path().join(name), &own).unwrap();
        let conversion = model.planned();
        fs_err::remove_file(model.path().join(name)).unwrap();
        if told {
            assert!(only_warning(&conversion).contains(&format!("`{name}` is not read")), "{name}");
        } else {
            assert!(conversion.warnings().is_empty(), "{name}: {:?}", conversion.warnings());
        }
    }
}

#[test]
fn one_file_counts_before_shards_of_another_save() {
    let model = Model::new();
    let own = bytes(&model.planned());
    let all = tensors(&model);
    write_shards(&model, &ones(&all));
    let conversion = model.planned();
    assert!(bytes(&conversion) == own);
    let warning = only_warning(&conversion);
    for name in [FILE, INDEX, SHARDS[0], SHARDS[1]] {
        assert!(warning.contains(&format!("`{name}`")), "{warning}");
    }
    // Without an index, and with only an index.
    fs_err::remove_file(model.path().join(INDEX)).unwrap();
    assert!(only_warning(&model.planned()).starts_with("two sets of weights: `model.safetensors` is taken"));
    for shard in SHARDS {
        fs_err::remove_file(model.path().join(shard)).unwrap();
    }
    assert!(model.planned().warnings().is_empty());
    write_index(&model, &all);
    let conversion = model.planned();
    assert!(only_warning(&conversion).contains(INDEX) && bytes(&conversion) == own);
    for broken in ["{", "{}", r#"{"weight_map": {"a": "../a"}}"#] {
        model.write(INDEX, broken);
        assert!(only_warning(&model.planned()).contains(INDEX), "{broken}");
    }
    // An index of the single file is not a second set.
    let map: serde_json::Map<String, Json> =
        all.iter().map(|tensor| (tensor.0.clone(), json!(FILE))).collect();
    model.write(INDEX, &json!({"weight_map": map}).to_string());
    assert!(model.planned().warnings().is_empty());
}

#[test]
fn shards_of_an_older_count_are_named() {
    let model = Model::new();
    let all = tensors(&model);
    write_shards(&model, &all);
    fs_err::rename(model.path().join(FILE), model.path().join("model-00001-of-00003.safetensors")).unwrap();
    let warning = only_warning(&model.planned());
    assert!(warning.contains("`model-00001-of-00003.safetensors` is left out"), "{warning}");
    fs_err::remove_file(model.path().join(SHARDS[1])).unwrap();
    let error = model.plan().unwrap_err().to_string();
    assert!(error.contains(INDEX) && error.contains(SHARDS[1]), "{error}");
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Bundled model with one matrix under the given names, and this value in its configuration.
fn tied(names: &[(&str, bool)], said: Json) -> Model {
    let model = Model::new();
    let mut all = tensors(&model);
    let at = all.iter().position(|tensor| tensor.0 == EMBEDDING).unwrap();
    let shared = all.remove(at);
    for (name, is_ones) in names {
        let tensor = (((*name).to_owned()), shared.1.clone(), shared.2.clone());
        all.push(if *is_ones { ones(&[tensor]).remove(0) } else { tensor });
    }
    write(&model, FILE, &all);
    model.set("config.json", &[("tie_word_embeddings", said)]);
    model
}

#[test]
fn a_head_that_is_stored_alone_is_the_embedding() {
    let names = |model: &Model| -> Vec<String> {
        let conversion = model.planned();
        conversion.mapping().outputs.iter().map(|output| output.name.clone()).collect()
    };
    let model = tied(&[(HEAD, false)], json!(true));
    let own = |conversion: &gguf_conversion::Conversion| {
        use gguf_core::TensorSource;
        let at = conversion.tensors().iter().position(|tensor| tensor.name == "token_embd.weight").unwrap();
        let tensor = &conversion.tensors()[at];
        let mut row = vec![0; tensor.shape.n_elems() as usize / tensor.shape.n_rows() as usize * 2];
        conversion.read_rows(at, 3, &mut row).unwrap();
        row
    };
    assert!(model.planned().warnings().is_empty(), "{:?}", model.planned().warnings());
    assert_eq!(own(&model.planned()), own(&Model::new().planned()));
    assert!(!names(&model).contains(&"output.weight".to_owned()));
    // In Llama's class the default is that they differ, in other classes that they are shared.
    for said in [json!(false), json!(ABSENT)] {
        let error = tied(&[(HEAD, false)], said).plan().unwrap_err().to_string();
        assert!(error.contains(EMBEDDING), "{error}");
    }
    let model = tied(&[(HEAD, false)], json!(ABSENT));
    model.set("config.json", &[("model_type", json!("ernie4_5"))]);
    assert!(model.plan().is_ok());
}

#[test]
fn a_head_that_is_another_matrix_than_is_said_is_told() {
    let both = [(EMBEDDING, false), (HEAD, false)];
    let differ = [(EMBEDDING, false), (HEAD, true)];
    for said in [json!(true), json!(false), json!(ABSENT)] {
        assert!(tied(&both, said.clone()).planned().warnings().is_empty());
        let model = tied(&differ, said.clone());
        let conversion = model.planned();
        assert!(conversion.mapping().outputs.iter().any(|output| output.name == "output.weight"));
        assert_eq!(
            conversion.warnings().len(),
            usize::from(said == json!(true)),
            "{:?}",
            conversion.warnings()
        );
        for warning in conversion.warnings() {
            assert!(warning.contains(EMBEDDING) && warning.contains(HEAD), "{warning}");
        }
    }
    let warning = only_warning(&tied(&[(EMBEDDING, false)], json!(false)).planned());
    assert!(warning.contains("no head (`lm_head.weight`) is stored"), "{warning}");
}
