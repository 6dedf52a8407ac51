//! ChatGLM 1 and 2 compared with the float64 forward passes and the runtime of the corpus, and the round trip.

use std::path::Path;

use gguf_arch::{OutType, Registry};
use gguf_conversion::{Conversion, ConvertOptions, ToHfOptions, gguf_to_hf};
use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_core::simd::SimdLevel;
use gguf_format::{GgufFile, WriteOptions, write_gguf};
use serde_json::{Value as Json, json};

use crate::last_logits::last_logits;
use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::goldens::{Goldens, conformance_tests, corpus_tests};
use gguf_testkit::{files, report_cases};

/// Values of a dictionary of `.flm`, which are Python literals.
fn config(case: &Json) -> Json {
    let value = |text: &str| match text {
        "True" => json!(true),
        "False" => json!(false),
        list if list.starts_with('[') => serde_json::from_str(&list.replace('\'', "\"")).unwrap(),
        text => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    };
    let pairs = case["dictionary"].as_object().unwrap().iter();
    Json::Object(pairs.map(|(key, text)| (key.clone(), value(text.as_str().unwrap()))).collect())
}

/// Checkpoint directory from an `.flm` file whose tensors are all floats. They are at the end of the file, each after
/// its name, dimensions and type.
fn checkpoint(case: &Json, flm: &[u8], dir: &Path) {
    let number = |n: usize| (n as u32).to_le_bytes();
    let mut file = Safetensors::default();
    for (name, tensor) in case["tensors"].as_object().unwrap() {
        let dims: Vec<usize> =
            tensor["dims"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect();
        let mut head = [&number(name.len())[..], name.as_bytes(), &number(dims.len())].concat();
        head.extend(dims.iter().flat_map(|&dim| number(dim)));
        head.extend(number(0));
        let at = flm.windows(head.len()).position(|window| window == head).unwrap() + head.len();
        let n_bytes = 4 * dims.iter().product::<usize>();
        file.add(name, "F32", &dims, &flm[at..at + n_bytes]);
    }
    file.write_checkpoint(dir, &config(case));
}

fn convert(dir: &Path) -> Conversion {
    let options =
        ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
    Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn top(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

fn ids(rows: &Json) -> Vec<Vec<u32>> {
    serde_json::from_value(rows.clone()).unwrap()
}

corpus_tests!(both_generations_compute_what_their_references_compute);

/// The cases have two megabytes each: the runtime does not accept a smaller hidden size.
fn both_generations_compute_what_their_references_compute(corpus: &Goldens) {
    let mut n_cases = 0;
    for name in ["chatglm1-float32", "chatglm2-float32"] {
        let case = corpus.join("formats/flm").join(name);
        let temp = tempfile::tempdir().unwrap();
        checkpoint(
            &files::json(case.join("case.json")),
            &fs_err::read(case.join("model.flm")).unwrap(),
            temp.path(),
        );
        let oracle = files::json(case.join("oracle.json"));
        let conversion = convert(temp.path());
        let prompts = ids(&oracle["prompts"]);
        let first = &last_logits(conversion.metadata(), &conversion, &prompts[..1])[0];
        let expected: Vec<f32> =
            serde_json::from_value(oracle["reference_last_logits_prompt0"].clone()).unwrap();
        let differences = first.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
        let worst = differences.fold(0.0f32, f32::max);
        assert!(worst < 1e-4, "{name}: {worst}");

        // The runtime's greedy tokens: the prompt's last token ends the prefix, as the begin token does.
        for (prompt, greedy) in prompts.iter().zip(ids(&oracle["greedy_tokens"])) {
            let begin = *prompt.last().unwrap();
            if prompt.iter().filter(|&&token| token == begin).count() > 1 {
                continue;
            }
            let mut metadata = conversion.metadata().clone();
            metadata.set("tokenizer.ggml.bos_token_id", begin);
            let so_far = |n: usize| [prompt, &greedy[..n]].concat();
            let prompts: Vec<Vec<u32>> = (0..greedy.len()).map(so_far).collect();
            let found: Vec<u32> =
                last_logits(&metadata, &conversion, &prompts).iter().map(|logits| top(logits)).collect();
            assert_eq!(found, greedy, "{name} {prompt:?}");
            n_cases += 1;
        }
    }
    report_cases("chatglm: prompts", n_cases);
}

conformance_tests!(the_first_generation_comes_back);
fn the_first_generation_comes_back(corpus: &Goldens) {
    let cases = ["chatglm1-float32", "old-chatglm1"];
    let cases: Vec<_> = cases.iter().filter_map(|case| corpus.find(format!("formats/flm/{case}"))).collect();
    for case in &cases {
        comes_back(case);
    }
    report_cases("chatglm: way back", cases.len());
}

fn comes_back(case: &Path) {
    let temp = tempfile::tempdir().unwrap();
    let about = files::json(case.join("case.json"));
    checkpoint(&about, &fs_err::read(case.join("model.flm")).unwrap(), temp.path());
    let there = convert(temp.path());
    assert_eq!(there.metadata().get("general.architecture").unwrap().as_str(), Some("chatglm1"));
    let path = temp.path().join("model.gguf");
    let write = WriteOptions { sync: false, ..WriteOptions::default() };
    write_gguf(&path, there.metadata(), &there, &write, &Silent).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let options = ToHfOptions {
        ty: None,
        max_shard_bytes: 1 << 30,
        memory_bytes: 8 << 20,
        sync: false,
        level: SimdLevel::detect(),
        ..ToHfOptions::default()
    };
    let back = temp.path().join("back");
    gguf_to_hf(&Registry::embedded().unwrap(), file.metadata(), &file, &back, &options, &Silent).unwrap();

    let rebuilt = files::json(back.join("config.json"));
    for (key, value) in config(&about).as_object().unwrap() {
        if key != "torch_dtype" && key != "use_cache" {
            assert_eq!(rebuilt[key], *value, "{key}");
        }
    }
    // Queries, keys and values are stored per head again: the same checkpoint gives the same file.
    let again = convert(&back);
    let path = temp.path().join("again.gguf");
    write_gguf(&path, again.metadata(), &again, &write, &Silent).unwrap();
    let again = GgufFile::open(&path).unwrap();
    for (at, tensor) in file.tensors().iter().enumerate() {
        let other = again.tensor_index(&tensor.name).unwrap();
        assert_eq!(again.raw_tensor(other), file.raw_tensor(at), "{}", tensor.name);
    }
}
