//! Conversion from `.flm` to GGUF: hyper-parameters, logits, adapters, the program.

use std::path::PathBuf;

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertOptions, FlmOptions, ModelSource};
use gguf_core::{Hint, TensorSource};
use gguf_format::Value;

use crate::last_logits::last_logits;
use gguf_testkit::flm::{good, has_card, llama, own, small};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::{f32_values, tensor_bytes};
use gguf_testkit::noise::Noise;
use gguf_testkit::{self, files, report_cases};

fn options(ty: OutType) -> ConvertOptions {
    ConvertOptions { file_type: Some(ty), tokenizer: false, ..ConvertOptions::default() }
}

conformance_tests!(logits_equal_the_reference);
fn logits_equal_the_reference(corpus: &Goldens) {
    let (mut n_cases, mut wrong, mut worst) = (0, Vec::new(), 0.0f64);
    for dir in good(corpus).into_iter().filter(|dir| dir.join("oracle.json").exists() && has_card(dir)) {
        let oracle = files::json(dir.join("oracle.json"));
        let prompt = oracle["prompt_ids"].as_array().or(oracle["prompts"][0].as_array()).unwrap();
        let expected = ["reference_last_logits", "reference_last_logits_prompt0"];
        let expected = expected.iter().find_map(|key| oracle[key].as_array()).unwrap();
        let tokens: Vec<u32> = prompt.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let mut options = options(OutType::F32);
        if dir.ends_with("chatglm1-float32") {
            // In the reference the last id always ends the prefix.
            let last = *tokens.last().unwrap();
            options.set.push(("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(last)));
        }
        let source = ModelSource::open_flm(&dir.join("model.flm"), &FlmOptions::default(), &options);
        let conversion = match Conversion::of(source.unwrap(), &options) {
            Ok(conversion) => conversion,
            Err(error) => {
                wrong.push(format!("{}: {error}", dir.display()));
                continue;
            }
        };
        let logits = &last_logits(conversion.metadata(), &conversion, &[tokens])[0];
        assert_eq!(logits.len(), expected.len(), "{}", dir.display());
        assert!(logits.iter().all(|logit| logit.is_finite()), "{}", dir.display());
        let difference = logits
            .iter()
            .zip(expected)
            .fold(0.0f64, |most, (found, want)| most.max((f64::from(*found) - want.as_f64().unwrap()).abs()));
        println!("{}: {difference:.1e}", dir.file_name().unwrap().to_string_lossy());
        worst = worst.max(difference);
        n_cases += 1;
        if difference > 1e-3 {
            wrong.push(format!("{}: logits differ by {difference:.2e}", dir.display()));
        }
    }
    println!("largest difference {worst:.1e}");
    report_cases("flm: logits", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All tensors of a conversion as F32, by name.
fn rows(conversion: &Conversion) -> Vec<(String, Vec<f32>)> {
    let tensors = conversion.tensors().iter().enumerate();
    tensors.map(|(at, tensor)| (tensor.name.clone(), f32_values(&tensor_bytes(conversion, at)))).collect()
}

#[test]
fn a_given_configuration_gives_what_the_dictionary_lacks() {
    let mut writer = small();
    let own_keys = [("num_key_value_heads", "None"), ("rope_theta", "None")];
    writer.dictionary.retain(|(key, _)| !own_keys.iter().any(|own| own.0 == key));
    writer.dictionary.extend(own(&own_keys));
    writer
        .dictionary
        .extend(own(&[("rope_parameters.rope_type", "default"), ("rope_parameters.rope_theta", "5000.0")]));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();
    let plan = |config: Option<PathBuf>| {
        let (flm, options) = (FlmOptions { config, ..FlmOptions::default() }, options(OutType::F32));
        Conversion::of(ModelSource::open_flm(&path, &flm, &options).unwrap(), &options)
    };
    let error = plan(None).unwrap_err();
    assert!(error.to_string().contains("`num_key_value_heads` = null"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("`--config FILE` gives what is missing")));
    let config = dir.path().join("config.json");
    fs_err::write(&config, r#"{"num_key_value_heads": 2, "hidden_size": 1}"#).unwrap();
    let conversion = plan(Some(config)).unwrap();
    let number = |key: &str| conversion.metadata().get(key).cloned();
    assert_eq!(number("llama.attention.head_count_kv"), Some(Value::U32(2)));
    assert_eq!(number("llama.embedding_length"), Some(Value::U32(64)));
    assert_eq!(number("llama.rope.freq_base"), Some(Value::F32(5000.0)));
}

#[test]
fn adapters_are_merged_on_request_and_refused_otherwise() {
    let (rank, alpha) = (3usize, 6.0f64);
    let mut noise = Noise::new(3);
    let (a, b) = (noise.floats(rank * 64), noise.floats(32 * rank));
    let mut base = Vec::new();
    let mut writer = llama(|writer, name, [rows, cols], noise| {
        let values = noise.floats(rows * cols);
        if name.contains("v_proj") {
            base.clone_from(&values);
        }
        writer.f32(name, &[rows, cols], &values);
    });
    writer.f32("model.layers.0.self_attn.v_proj.lora_A.mine.weight", &[rank, 64], &a);
    writer.f32("model.layers.0.self_attn.v_proj.lora_B.mine.weight", &[32, rank], &b);
    writer.dictionary.extend(own(&[("peft_size", "1")]));
    let lora =
        own(&[("peft_type", "LORA"), ("r", "3"), ("lora_alpha", "6"), ("target_modules", "['v_proj']")]);
    writer.adapters = vec![("mine".to_owned(), lora)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();

    let options = options(OutType::F32);
    let error = ModelSource::open_flm(&path, &FlmOptions::default(), &options).unwrap_err();
    assert!(error.to_string().ends_with("the file holds adapters (`mine`), their matrices change the model"));

    let flm = FlmOptions { merge_adapters: true, ..FlmOptions::default() };
    let conversion = Conversion::of(ModelSource::open_flm(&path, &flm, &options).unwrap(), &options).unwrap();
    let rows = rows(&conversion);
    let merged = &rows.iter().find(|row| row.0 == "blk.0.attn_v.weight").unwrap().1;
    for (at, value) in merged.iter().enumerate() {
        let (i, j) = (at / 64, at % 64);
        let product: f64 = (0..rank).map(|k| f64::from(b[i * rank + k]) * f64::from(a[k * 64 + j])).sum();
        let expected = f64::from(base[at]) + alpha / rank as f64 * product;
        assert_eq!(*value, expected as f32, "{i}, {j}");
    }
    assert!(!rows.iter().any(|row| row.0.contains("lora")));
}

conformance_tests!(the_corpus_adapter_is_merged);
fn the_corpus_adapter_is_merged(corpus: &Goldens) {
    let path = corpus.join("formats/flm/llama-peft/model.flm");
    let options = options(OutType::F32);
    let flm = FlmOptions { merge_adapters: true, ..FlmOptions::default() };
    let conversion = Conversion::of(ModelSource::open_flm(&path, &flm, &options).unwrap(), &options).unwrap();
    let logits = &last_logits(conversion.metadata(), &conversion, &[vec![5, 17, 200]])[0];
    assert!(logits.iter().all(|logit| logit.is_finite()));
    assert_eq!(conversion.tensors().len(), 12);
    report_cases("flm: adapters", 1);
}
