//! Rope of type `longrope` in configurations of any class.

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError};
use gguf_core::TensorSource;
use gguf_format::Value;
use serde_json::{Value as Json, json};

use super::fixture::{self, case};

fn with_rope(at: &str, rope: Json) -> Result<Conversion, ConvertError> {
    let case = case(at).edited(|content| {
        content["config"]["max_position_embeddings"] = json!(4096);
        content["config"]["rope_scaling"] = rope;
    });
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    case.plan(dir.path(), OutType::F32)
}

fn factors(n: usize) -> Json {
    json!({
        "rope_type": "longrope",
        "long_factor": vec![2.0; n],
        "short_factor": vec![1.0; n],
        "original_max_position_embeddings": 1024,
    })
}

/// Half the width of a head of the case.
fn half(at: &str) -> usize {
    let content = case(at).content()["config"].clone();
    let head = content["head_dim"]
        .as_u64()
        .or_else(|| Some(content["hidden_size"].as_u64()? / content["num_attention_heads"].as_u64()?));
    head.unwrap() as usize / 2
}

#[test]
fn llama_gets_the_factors_that_its_runtime_reads() {
    let at = "llama/biases.json";
    for spelling in ["longrope", "su"] {
        let mut rope = factors(half(at));
        rope["rope_type"] = spelling.into();
        let plan = with_rope(at, rope).unwrap();
        let of = |name: &str| {
            plan.tensors()
                .iter()
                .find(|tensor| tensor.name == name)
                .map(|tensor| tensor.shape.dims().to_vec())
        };
        for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
            assert_eq!(of(name), Some(vec![half(at) as u64]), "{spelling}: {name}");
        }
        let number = |key: &str| plan.metadata().get(&format!("llama.rope.scaling.{key}")).cloned();
        assert_eq!(number("type"), Some(Value::from("longrope")));
        assert_eq!(number("original_context_length"), Some(Value::U32(1024)));
        let Some(Value::F32(magnitude)) = number("attn_factor") else { panic!("no magnitude") };
        assert!((f64::from(magnitude) - 1.2f64.sqrt()).abs() < 1e-6, "{magnitude}");
        assert!(plan.warnings().is_empty(), "{:?}", plan.warnings());
    }
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let at = "llama/biases.json";
    let error = with_rope(at, factors(half(at) + 1)).unwrap_err().to_string();
    assert!(error.contains("`long_factor` has"), "{error}");
    let error = with_rope(at, json!({"rope_type": "longrope"})).unwrap_err().to_string();
    assert!(error.contains("`long_factor`"), "{error}");
}

#[test]
fn a_runtime_that_reads_no_factors_is_told() {
    let at = fixture::all()
        .into_iter()
        .find(|case| case.arch == "qwen3" && case.content()["config"]["text_config"].is_null())
        .unwrap()
        .at;
    let plan = with_rope(&at, factors(8)).unwrap();
    assert!(plan.tensors().iter().all(|tensor| !tensor.name.starts_with("rope_factors")));
    assert_eq!(plan.metadata().get("qwen3.rope.scaling.type"), None);
    assert!(
        plan.warnings().iter().any(|line| line.contains("rope type `longrope`")),
        "{:?}",
        plan.warnings()
    );
}
