//! Rules of transformers' classes by which one key or tensor overrides another.

use gguf_arch::OutType;
use gguf_conversion::Conversion;
use gguf_core::TensorSource;
use gguf_format::Value;
use gguf_testkit::memory::tensor_bytes;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};

fn plan(case: &CardFixture) -> Result<Conversion, String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    case.plan(dir.path(), OutType::F32).map_err(|error| error.to_string())
}

/// Case with other values in its configuration.
fn with(at: &str, values: &Json) -> CardFixture {
    fixture::case(at).edited(|content| {
        for (key, value) in values.as_object().unwrap() {
            content["config"][key] = value.clone();
        }
    })
}

/// Elements of an F32 tensor.
fn floats(plan: &Conversion, name: &str) -> Vec<f32> {
    let at = plan.tensors().iter().position(|tensor| tensor.name == name);
    let bytes = tensor_bytes(plan, at.unwrap_or_else(|| panic!("{name}")));
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_tied_head_has_a_factor_of_its_own() {
    let case = fixture::case("falcon-h1/falcon_h1.json");
    let alone = case.with_head_alone("model.embed_tokens.weight", "lm_head.weight");
    for tied in [case.dropping("^lm_head"), alone] {
        let tied = tied.edited(|content| content["config"]["tie_word_embeddings"] = true.into());
        let plan = plan(&tied).unwrap();
        // The factors are 2.0 and 0.5.
        let quarter = |values: Vec<f32>| values.into_iter().map(|value| value / 4.0).collect::<Vec<_>>();
        let embedding = floats(&plan, "token_embd.weight");
        assert!(embedding.iter().any(|&value| value != 0.0));
        assert_eq!(floats(&plan, "output.weight"), quarter(embedding), "{}", tied.at);
    }
    let same = with("falcon-h1/falcon_h1.json", &json!({"lm_head_multiplier": 2.0})).dropping("^lm_head");
    let plan = plan(&same.edited(|content| content["config"]["tie_word_embeddings"] = true.into())).unwrap();
    let names: Vec<&str> = plan.mapping().outputs.iter().map(|output| output.name.as_str()).collect();
    assert!(!names.contains(&"output.weight"), "{names:?}");
}

#[test]
fn factors_of_an_input_are_none_of_its_bias() {
    let plan = |factor: f64| {
        let keys =
            json!({"attention_in_multiplier": factor, "ssm_in_multiplier": factor, "attention_bias": true});
        let case = with("falcon-h1/falcon_h1.json", &keys);
        let rows = case.content()["tensors"].as_array().unwrap().clone();
        let weights = rows.iter().filter_map(|row| {
            let name = row[0].as_str()?.strip_suffix(".weight")?;
            let is_biased = ["q_proj", "k_proj", "v_proj", "in_proj"].iter().any(|end| name.ends_with(end));
            is_biased.then(|| (format!("{name}.bias"), row[2][0].as_u64().unwrap()))
        });
        let plan = plan(&weights.fold(case, |case, (name, n_rows)| case.with(&name, &[n_rows]))).unwrap();
        assert!(plan.warnings().iter().any(|warning| warning.contains("`attention_bias` is true")));
        plan
    };
    let (one, half) = (plan(1.0), plan(0.5));
    for name in ["attn_q", "attn_k", "attn_v", "ssm_in"] {
        let [bias, weight] = [".bias", ".weight"].map(|end| format!("blk.1.{name}{end}"));
        assert_eq!(floats(&one, &bias), floats(&half, &bias), "{name}");
        assert_ne!(floats(&one, &weight), floats(&half, &weight), "{name}");
    }
}

#[test]
fn bases_of_the_rotation_by_layer_have_precedence() {
    let keys = |bases: Json| {
        let case = with("granite_swa/granite_swa.json", &json!({"layer_rope_theta": bases}));
        let plan = plan(&case)?;
        assert_eq!(plan.warnings(), Vec::<String>::new());
        let of = |key: &str| plan.metadata().get(&format!("granite_swa.{key}")).cloned();
        Ok::<_, String>((of("rope.freq_base").and_then(|base| base.as_f64()), of("attention.rope_pattern")))
    };
    let pattern = Value::from(vec![false, true, true, true]);
    assert_eq!(keys(json!([500.0, 500.0, 500.0, 500.0])), Ok((Some(500.0), None)));
    assert_eq!(keys(json!([0, 500.0, 500.0, 500.0])), Ok((Some(500.0), Some(pattern))));
    assert_eq!(keys(Json::Null), Ok((Some(10000.0), None)));
    for bases in [json!([500.0, 600.0, 500.0, 500.0]), json!([0, 0, 0, 0])] {
        assert!(keys(bases).unwrap_err().contains("`layer_rope_theta`"));
    }
}

#[test]
fn what_transformers_computes_otherwise_is_named() {
    for (at, key, usual, other) in [
        ("nemotron_h_moe/nemotron_h_moe.json", "time_step_min", json!(0.001), json!(0.05)),
        ("nemotron_h/dense.json", "time_step_min", json!(0.0001), json!(0.05)),
        ("hy_v3/hy_v3.json", "route_norm", json!(true), json!(false)),
        ("afmoe/afmoe.json", "route_norm", json!(true), json!(false)),
    ] {
        let is_named = |value: Json| {
            let plan = plan(&with(at, &json!({key: value}))).unwrap();
            plan.warnings().iter().any(|warning| warning.contains(&format!("`{key}`")))
        };
        assert!(!is_named(usual) && is_named(other), "{at}");
    }
}

/// Keys that a class reads in another form, or not at all, give the file of the usual configuration.
#[test]
fn other_forms_of_a_key_give_the_same_file() {
    let lite = json!({"first_k_dense_replace": 2, "mlp_layer_types": null});
    for (at, keys) in [
        (
            "hunyuan-moe/hunyuan_v1_moe_top1.json",
            json!({"moe_topk": 1, "moe_intermediate_size": 64, "num_shared_expert": 1}),
        ),
        ("glm4moe/solar_open_small.json", json!({"first_k_dense_replace": 1})),
        ("deepseek2/glm4_moe_lite.json", lite),
    ] {
        let [usual, other] = [fixture::case(at), with(at, &keys)].map(|case| plan(&case).unwrap());
        assert_eq!(other.mapping().metadata, usual.mapping().metadata, "{at}");
        let shapes = |plan: &Conversion| {
            let outputs = plan.mapping().outputs.iter();
            outputs.map(|output| (output.name.clone(), output.shape.clone())).collect::<Vec<_>>()
        };
        assert_eq!(shapes(&other), shapes(&usual), "{at}");
    }
    // Without a number, there are as many heads of keys as of queries.
    let (at, keys) = ("granitehybrid/granitemoehybrid.json", json!({"num_key_value_heads": null}));
    let many = with(at, &keys).edited(|content| {
        for row in content["tensors"].as_array_mut().unwrap() {
            if ["k_proj.weight", "v_proj.weight"].iter().any(|end| row[0].as_str().unwrap().ends_with(end)) {
                row[2][0] = json!(2 * row[2][0].as_u64().unwrap());
            }
        }
    });
    let plan = plan(&many).unwrap();
    let heads = plan.metadata().get("granitehybrid.attention.head_count_kv").unwrap();
    assert_eq!(format!("{heads:?}"), format!("{:?}", Value::from(vec![0i32, 0, 4, 0])));
}
