//! Heads of encoders that score texts: their labels, and what runtimes compute in another way.

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError};
use gguf_core::{Hint as _, TensorSource as _};
use gguf_format::{Array, Value};
use serde_json::{Value as Json, json};

use super::fixture::case;

const CASES: [&str; 4] = [
    "bert/bert_sequence_classification.json",
    "bert/distilbert_classifier.json",
    "bert/xlm_roberta_classifier.json",
    "modern-bert/classifier.json",
];

/// Plans a case with as many scores as given, after a change of its configuration.
fn planned(at: &str, n_scores: u64, change: impl FnOnce(&mut Json)) -> Result<Conversion, ConvertError> {
    let case = case(at).edited(|content| {
        content["config"].as_object_mut().unwrap().remove("id2label");
        change(&mut content["config"]);
        for row in content["tensors"].as_array_mut().unwrap() {
            let name = row[0].as_str().unwrap();
            if name.starts_with("classifier.") && !name.contains(".dense.") {
                row[2][0] = n_scores.into();
            }
        }
    });
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    case.plan(dir.path(), OutType::F16)
}

fn labels(plan: &Conversion) -> Option<Vec<String>> {
    let key = format!("{}.classifier.output_labels", plan.mapping().card.gguf);
    let Some(Value::Array(Array::String(list))) = plan.metadata().get(&key) else { return None };
    Some(list.iter().map(|label| String::from_utf8(label.clone()).unwrap()).collect())
}

fn has(plan: &Conversion, tensor: &str) -> bool {
    plan.tensors().iter().any(|own| own.name == tensor)
}

/// transformers leaves its own names of labels out of config.json.
#[test]
fn scores_without_names_have_those_of_transformers() {
    for at in CASES {
        let names = |n: usize| Some((0..n).map(|label| format!("LABEL_{label}")).collect::<Vec<_>>());
        let plain = planned(at, 2, |_| {}).unwrap();
        assert_eq!(labels(&plain), names(2), "{at}");
        assert!(has(&plain, "cls.output.weight"), "{at}");
        let written = json!({"0": "LABEL_0", "1": "LABEL_1"});
        assert_eq!(labels(&planned(at, 2, |config| config["id2label"] = written).unwrap()), names(2), "{at}");
        let counted = planned(at, 3, |config| config["num_labels"] = 3.into()).unwrap();
        assert_eq!(labels(&counted), names(3), "{at}");
        let numbers = json!({"1": 8, "0": 7});
        let numbers = planned(at, 2, |config| config["id2label"] = numbers).unwrap();
        assert_eq!(labels(&numbers), Some(vec!["7".to_owned(), "8".to_owned()]), "{at}");
        assert!(planned(at, 3, |config| config["num_labels"] = 4.into()).is_err(), "{at}");
        // One score is that of a reranker, whether transformers' two names are there or not.
        for written in [Json::Null, json!({"0": "LABEL_0", "1": "LABEL_1"})] {
            let one = planned(at, 1, |config| config["id2label"] = written).unwrap();
            assert_eq!(labels(&one), None, "{at}");
            assert!(has(&one, "cls.output.weight"), "{at}");
        }
    }
}

#[test]
fn other_computations_of_heads_are_told() {
    for (at, change, told) in [
        (CASES[0], json!({}), "the classifier without its pooler"),
        (CASES[1], json!({}), "puts a ReLU behind `pre_classifier`: runtimes compute tanh"),
        (CASES[3], json!({"classifier_activation": "relu"}), "`classifier_activation` = \"relu\" is lost"),
    ] {
        let change = |config: &mut Json| {
            config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        };
        let plan = planned(at, 2, change).unwrap();
        assert!(plan.warnings().iter().any(|warning| warning.contains(told)), "{at}: {:?}", plan.warnings());
        assert!(plan.lost().iter().any(|lost| lost.contains(told)), "{at}: {:?}", plan.lost());
    }
    let plain = planned(CASES[3], 2, |_| {}).unwrap();
    assert!(!plain.warnings().iter().any(|warning| warning.contains("activation")), "{:?}", plain.warnings());
}

/// transformers 5 writes `norm_eps` alone, and computes with it whatever else is there.
#[test]
fn the_epsilon_of_modern_bert_is_its_own_key() {
    for (old, new, want) in [(None, Some(2e-5), 2e-5), (Some(1e-3), Some(2e-5), 2e-5), (None, None, 1e-5)] {
        let plan = planned(CASES[3], 2, |config| {
            let config = config.as_object_mut().unwrap();
            for (key, value) in [("layer_norm_eps", old), ("norm_eps", new)] {
                config.remove(key);
                config.extend(value.map(|value: f64| (key.to_owned(), json!(value))));
            }
        });
        let plan = plan.unwrap();
        let found = plan.metadata().get("modern-bert.attention.layer_norm_epsilon");
        assert_eq!(found, Some(&Value::F32(want as f32)), "{old:?} {new:?}");
    }
}

/// A reranker of Qwen 3 that was converted back is a classifier, whose labels say what it is.
#[test]
fn a_decoder_with_a_head_for_yes_and_no_is_a_reranker() {
    let planned = |change: fn(&mut Json)| {
        let case = case("qwen3/rerank.json").edited(change);
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        case.plan(dir.path(), OutType::F16)
    };
    let whole = planned(|content| content["config"]["tie_word_embeddings"] = false.into()).unwrap();
    assert!(!whole.warnings().join("\n").contains("no head"), "{:?}", whole.warnings());
    let as_classifier = |content: &mut Json| {
        content["config"]["architectures"] = json!(["Qwen3ForSequenceClassification"]);
        content["config"]["id2label"] = json!({"0": "yes", "1": "no"});
        for row in content["tensors"].as_array_mut().unwrap() {
            if row[0] == "lm_head.weight" {
                row[0] = "score.weight".into();
                row[2][0] = 2.into();
            }
        }
    };
    let head = planned(as_classifier).unwrap();
    assert!(has(&head, "cls.output.weight") && has(&head, "token_embd.weight"));
    assert!(!has(&head, "output.weight"));
    assert_eq!(labels(&head), labels(&whole));
    let other = planned(|content| {
        content["config"]["architectures"] = json!(["Qwen3ForSequenceClassification"]);
        content["config"]["id2label"] = json!({"0": "no", "1": "yes"});
    });
    assert!(other.err().unwrap().to_string().contains("the labels must be `yes` and `no`"));
}

/// The runtime gives it a cache else, in which no token sees a later one.
#[test]
fn the_encoder_of_t5_alone_looks_both_ways() {
    let causal = |at: &str, class: Option<&str>| {
        let case = case(at).edited(|content| {
            if let Some(class) = class {
                content["config"]["architectures"] = json!([class]);
            }
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let plan = case.plan(dir.path(), OutType::F16).unwrap();
        plan.metadata().get(&format!("{}.attention.causal", case.arch)).cloned()
    };
    for class in [None, Some("MT5EncoderModel")] {
        assert_eq!(causal("t5encoder/t5_encoder.json", class), Some(Value::Bool(false)), "{class:?}");
    }
    assert_eq!(causal("t5/t5.json", None), None);
}

#[test]
fn a_class_is_offered_only_if_the_checkpoint_converts_under_it() {
    let hints = |further: Option<&str>| {
        let renamed = case("eurobert/eurobert.json")
            .edited(|content| content["config"]["architectures"] = json!(["EuroBertForMaskedLM"]));
        let renamed = further.into_iter().fold(renamed, |case, name| case.with(name, &[8, 8]));
        let dir = tempfile::tempdir().unwrap();
        renamed.write(dir.path());
        renamed.plan(dir.path(), OutType::F16).err().unwrap().hints().join("\n")
    };
    assert!(hints(None).contains("should be [\"EuroBertModel\"]"), "{}", hints(None));
    let head = hints(Some("lm_head.weight"));
    assert!(!head.contains("should be"), "{head}");
}
