//! Tests of `convert::metadata` and `convert::naming`: the `general.*` keys and the output's name.

use gguf_checkpoint::{ModelDir, parse_object};
use gguf_conversion::{
    FileName, GeneralMetadata, MetadataFiles, MetadataInputs, MetadataWarning, ParameterCounts,
    general_metadata,
};
use gguf_core::TensorMeta;
use gguf_core::limits::Limits;
use gguf_format::Value;
use serde_json::{Map, Value as Json, json};

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, in_json, report_cases, tensor_of_row};

/// Key, type and value of all entries.
fn rows(metadata: &GeneralMetadata) -> Vec<Json> {
    let row = |(key, value): &(String, Value)| {
        let (ty, value) = in_json(value);
        json!([key, ty, value])
    };
    metadata.entries.iter().map(row).collect()
}

/// Rounds a float to 32 bits: the corpus has the decimal that was given, the file the nearest 32-bit float.
fn narrowed(row: &Json) -> Json {
    match (&row[1], row[2].as_f64()) {
        (Json::String(ty), Some(x)) if ty == "float32" => json!([row[0], ty, x as f32]),
        _ => row.clone(),
    }
}

#[derive(Default)]
struct Case {
    dir_name: String,
    config: Map<String, Json>,
    files: MetadataFiles,
    model_name: Option<String>,
    counts: ParameterCounts,
}

impl Case {
    fn named(dir_name: &str) -> Self {
        Self { dir_name: dir_name.into(), ..Self::default() }
    }

    fn run(&self) -> GeneralMetadata {
        general_metadata(&MetadataInputs {
            dir_name: &self.dir_name,
            config: &self.config,
            files: &self.files,
            model_name: self.model_name.as_deref(),
            counts: self.counts,
        })
    }
}

fn object(value: &Json) -> Map<String, Json> {
    value.as_object().cloned().unwrap_or_default()
}

conformance_tests!(conformance_of_keys_and_file_names);
fn conformance_of_keys_and_file_names(corpus: &Goldens) {
    let corpus = files::json(corpus.join("meta/metadata.json"));
    let mut n_cases = 0;
    for case in corpus["cases"].as_array().unwrap() {
        let input = &case["input"];
        let total = input["total_params"].as_i64().unwrap();
        let mut ours = Case::named(input["dir_name"].as_str().unwrap());
        ours.config = object(&input["config"]);
        ours.model_name = input["model_name"].as_str().map(Into::into);
        ours.counts = ParameterCounts {
            total,
            shared: input["shared_params"].as_i64().unwrap_or(total),
            expert: input["expert_params"].as_i64().unwrap_or(0),
            n_experts: input["expert_count"].as_i64().unwrap_or(0),
        };
        ours.files.add_card(input["readme"].as_str().unwrap_or_default());
        ours.files.generation_config = object(&input["generation_config"]);
        ours.files.overrides = object(&input["metadata_override"]);
        let metadata = ours.run();
        if case["error"].is_null() {
            let theirs: Vec<Json> = case["kv"].as_array().unwrap().iter().map(narrowed).collect();
            assert_eq!(rows(&metadata), theirs, "{input}");
            let name = metadata.default_file_name(case["file_type_in_name"].as_str().unwrap());
            assert_eq!(name, case["default_file_name"].as_str().unwrap(), "{input}");
        } else {
            // The reference fails on a version that YAML parses as a number; here it stays text.
            assert!(case["error"].as_str().unwrap().contains("float"), "{case}");
            assert!(rows(&metadata).contains(&json!(["general.version", "string", "1.5"])), "{input}");
            assert!(metadata.default_file_name("F16").ends_with("-1.5-F16.gguf"), "{input}");
        }
        n_cases += 1;
    }
    for row in corpus["size_labels"].as_array().unwrap() {
        let counts = ParameterCounts { total: row[0].as_i64().unwrap(), ..ParameterCounts::default() };
        assert_eq!(counts.size_label(), row[1].as_str().unwrap());
        n_cases += 1;
    }
    for row in corpus["size_labels_moe"].as_array().unwrap() {
        let n = |i: usize| row[i].as_i64().unwrap();
        let counts =
            ParameterCounts { total: n(0) + n(1) * n(2), shared: n(0), expert: n(1), n_experts: n(2) };
        assert_eq!(counts.size_label(), row[3].as_str().unwrap());
        n_cases += 1;
    }
    for row in corpus["file_names"].as_array().unwrap() {
        let argument = |i: usize| row[0][i].as_str();
        let name = FileName {
            name: argument(0),
            basename: argument(1),
            finetune: argument(2),
            version: argument(3),
            size_label: argument(4),
            encoding: argument(5),
            kind: argument(6),
        };
        assert_eq!(name.stem(), row[1].as_str().unwrap());
        n_cases += 1;
    }
    report_cases("metadata", n_cases);
}

#[test]
fn files_of_a_directory_are_read_and_broken_ones_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs_err::write(dir.path().join(name), text).unwrap();
    write("config.json", b"{}");
    write("README.md", b"---\nlicense: mit\n---\n");
    write("generation_config.json", br#"{"temperature": 0.5, "top_k": 10.0}"#);
    write("override.json", br#"{"general.author": "A"}"#);
    let model = ModelDir::open(dir.path(), &Limits::default()).unwrap();
    let files = MetadataFiles::read(&model, Some(&dir.path().join("override.json"))).unwrap();
    assert_eq!(files.warnings, []);
    let case = Case { dir_name: "m".into(), files, ..Case::default() };
    assert_eq!(
        rows(&case.run()),
        [
            json!(["general.sampling.top_k", "int32", 10]),
            json!(["general.sampling.temp", "float32", 0.5]),
            json!(["general.name", "string", "M"]),
            json!(["general.author", "string", "A"]),
            json!(["general.license", "string", "mit"]),
        ]
    );

    write("README.md", b"---\na: [1\n---\n");
    write("generation_config.json", b"{not json");
    let files = MetadataFiles::read(&model, None).unwrap();
    let shown: Vec<String> = files.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 2);
    assert!(
        shown[0].starts_with("README.md: line ") && shown[0].ends_with("; the model card is left out"),
        "{}",
        shown[0]
    );
    assert!(
        shown[1].contains("generation_config.json: line 1, column 2 (offset 1): expected a string"),
        "{}",
        shown[1]
    );

    write("README.md", b"---\nname: \xff\n---\n");
    assert!(matches!(
        &MetadataFiles::read(&model, None).unwrap().warnings[0],
        MetadataWarning::FileIgnored { reason } if reason.contains("README.md: offset 10: not valid UTF-8")
    ));
    // Files given by the user must be valid.
    write("override.json", b"[]");
    assert!(MetadataFiles::read(&model, Some(&dir.path().join("override.json"))).is_err());
    assert!(MetadataFiles::read(&model, Some(&dir.path().join("nothing.json"))).is_err());
}

#[test]
fn values_of_the_wrong_kind_are_left_out_with_a_warning() {
    let mut case = Case::named("m");
    case.files.add_card(
        "---\nname: [a, b]\ntags: [a, {b: c}, ~]\nauthor: B\nbase_model: [[x], ~, org/B-1B]\ndatasets: {a: b}\n---\n",
    );
    case.files.generation_config = object(
        &json!({"top_k": 1.5, "top_p": "high", "min_p": 1e300, "temperature": null, "repetition_penalty": {"__float__": "Infinity"}}),
    );
    case.files.overrides = object(
        &json!({"general.tag": "x", "general.license": "mit", "general.base_models": "x", "general.version": 2, "general.author": ["x"]}),
    );
    let metadata = case.run();
    assert_eq!(
        rows(&metadata)[1..],
        [
            json!(["general.name", "string", "M"]),
            json!(["general.author", "string", "B"]),
            json!(["general.version", "string", "2"]),
            json!(["general.base_model.count", "uint32", 3]),
            json!(["general.base_model.2.name", "string", "B 1B"]),
            json!(["general.base_model.2.organization", "string", "Org"]),
            json!(["general.base_model.2.repo_url", "string", "https://huggingface.co/org/B-1B"]),
            json!(["general.dataset.count", "uint32", 0]),
            json!(["general.tags", "arr[string]", ["a"]]),
        ]
    );
    assert_eq!(metadata.entries[0], ("general.sampling.penalty_repeat".into(), Value::F32(f32::INFINITY)));
    let shown: Vec<String> = metadata.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "`name`: expected text, found `[\"a\",\"b\"]`; the value is left out",
            "`base_model`: expected an id or a map, found `[\"x\"]`; the value is left out",
            "`base_model`: expected an id or a map, found `null`; the value is left out",
            "`datasets`: expected a list, found `{\"a\":\"b\"}`; the value is left out",
            "`tags`: expected text, found `{\"b\":\"c\"}`; the value is left out",
            "`general.tag`: not a key that can be overridden",
            "`general.license`: not a key that can be overridden",
            "`general.base_models`: expected a list of maps, found `\"x\"`; the value is left out",
            "`general.author`: expected text, found `[\"x\"]`; the value is left out",
            "`general.sampling.top_k`: expected a 32-bit integer, found `1.5`; the value is left out",
            "`general.sampling.top_p`: expected a number, found `\"high\"`; the value is left out",
            "`general.sampling.min_p`: expected a 32-bit float, found `1e+300`; the value is left out",
        ]
    );
}

#[test]
fn an_override_of_null_takes_a_value_away() {
    let mut case = Case::named("Model-7B");
    case.files.add_card("---\nauthor: A\ntags: [t]\n---\n");
    case.files.overrides =
        object(&json!({"general.author": null, "general.tags": null, "general.size_label": null}));
    assert_eq!(
        rows(&case.run()),
        [json!(["general.name", "string", "Model 7B"]), json!(["general.basename", "string", "Model"])]
    );
}

#[test]
fn an_empty_name_in_the_configuration_hides_the_directorys_but_not_in_the_file_name() {
    // ref: an empty `_name_or_path` counts as a name, which is then not written, keep
    let mut case = Case::named("Some-Dir");
    case.config = parse_object(br#"{"_name_or_path": ""}"#, &Limits::default()).unwrap();
    let metadata = case.run();
    assert_eq!(rows(&metadata), [] as [Json; 0]);
    assert_eq!(metadata.default_file_name("f16"), "ggml-model-F16.gguf");
    assert_eq!(metadata.default_vocab_file_name(), "ggml-model-vocab.gguf");
}

conformance_tests!(conformance_of_whole_checkpoints);
fn conformance_of_whole_checkpoints(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in files::entries(corpus.join("arch")) {
        let expect = case.join("expect-f32.json");
        if !expect.is_file() {
            continue;
        }
        let expect = files::json(expect);
        // A file in parts has its keys in the first part.
        let parts = expect["parts"].as_array().map_or(std::slice::from_ref(&expect), Vec::as_slice);
        let tensors: Vec<TensorMeta> =
            parts.iter().flat_map(|part| part["tensors"].as_array().unwrap()).map(tensor_of_row).collect();
        let dir = ModelDir::open(&case.join("hf"), &Limits::default()).unwrap();
        let ours = Case {
            dir_name: dir.name().unwrap(),
            config: dir.config().clone(),
            files: MetadataFiles::read(&dir, None).unwrap(),
            model_name: None,
            counts: ParameterCounts::of(&tensors),
        };
        let theirs: Vec<Json> =
            parts[0]["kv"].as_array().unwrap().iter().filter(|row| is_derived(row)).map(narrowed).collect();
        assert_eq!(rows(&ours.run()), theirs, "{}", case.display());
        n_cases += 1;
    }
    report_cases("metadata of checkpoints", n_cases);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    #[test]
    fn no_card_and_no_id_panics(card in r#"---\n([a-z_]{1,6}: ?|[\[\]{}&*a!|>'"%@`,:?#~<-]|[ \t\n]|- |\PC){0,40}"#, id in r"[./ vVxA0-9½kKbBtq_.-]{0,24}|\PC{0,12}", total: i64) {
        let mut case = Case::named(&id);
        case.files.add_card(&card);
        case.counts.total = total;
        let metadata = case.run();
        let name = metadata.default_file_name("F16");
        assert!(!name.contains(['/', '\0', '\n']), "{name:?}");
    }
}

/// Returns true for keys that come from names and files, and not from the conversion.
fn is_derived(row: &Json) -> bool {
    let conversion = ["architecture", "type", "file_type", "quantization_version", "alignment"];
    row[0].as_str().and_then(|key| key.strip_prefix("general.")).is_some_and(|key| !conversion.contains(&key))
}
