//! Values of another kind in a configuration: each number and each switch of each case becomes what it cannot be. The
//! result must be an error with a way out, the file of the unchanged case, or a warning.

use std::sync::Mutex;

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError};
use gguf_core::{Hint, TensorSource};
use gguf_testkit::tiers::{Tier, two_tiers};
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture, load};

/// Ends of paths whose other value makes another file without a word, and why it may.
const MAY: &[(&str, &[&str])] = &[
    (
        "true counts as 1 in Python, too",
        &[
            "partial_rotary_factor",
            "audio_config.group_size",
            "rope_pct",
            "rotary_pct",
            "rope_ratio",
            "input_local_layers",
            "scale_emb",
            "scale_depth",
            "dim_model_base",
            "capacity_factor",
        ],
    ),
    (
        "what is empty is false in Python, too, and no class says more",
        &[
            "norm_topk_prob",
            "route_norm",
            "norm_before_residual",
            "use_sliding_window",
            "_window_pattern",
            "every_n_layers",
        ],
    ),
    ("a token that is none is checked with the vocabulary", &["mask_token_id", "decoder_start_token_id"]),
    ("the runtime has the default of the class", &["gate_lower_bound", "full_attention_interval"]),
    ("the width of the text model, which a tower's key only repeats", &["clip:hidden_size"]),
];

/// Paths of all values below an object, except of descriptions of quantized weights.
fn paths(config: &Map<String, Json>, at: &[String], found: &mut Vec<Vec<String>>) {
    for (key, value) in config.iter().filter(|(key, _)| *key != "quantization_config") {
        let path = [at, std::slice::from_ref(key)].concat();
        match value {
            Json::Object(part) => paths(part, &path, found),
            _ => found.push(path),
        }
    }
}

fn others(value: &Json) -> Vec<Json> {
    match value {
        Json::Number(_) => vec![json!(true), json!(""), json!([]), json!({})],
        Json::Bool(_) => vec![json!(""), json!([]), json!({})],
        _ => Vec::new(),
    }
}

/// What a file holds.
fn content(plan: &Conversion) -> (String, String) {
    let keys: Vec<_> = plan.metadata().iter().collect();
    (format!("{keys:?}"), format!("{:?}", plan.tensors()))
}

/// Returns what is wrong with the outcome of a change.
fn complaint(unchanged: &Conversion, changed: &Result<Conversion, ConvertError>) -> Option<String> {
    match changed {
        Err(error) if error.hints().is_empty() => Some(format!("no way out: {error}")),
        Err(_) => None,
        Ok(plan) if content(plan) == content(unchanged) => None,
        Ok(plan) if plan.warnings().len() > unchanged.warnings().len() => None,
        Ok(_) => Some("another file without a word".to_owned()),
    }
}

fn sweep(case: &CardFixture, wrong: &Mutex<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let file = ["config.json", "params.json"].map(|name| dir.path().join(name));
    let file = file.iter().find(|file| file.is_file()).unwrap();
    let plan = || case.plan(dir.path(), OutType::F16);
    let unchanged = plan().unwrap_or_else(|error| panic!("{}: {error}", case.at));
    let original = load(file);
    let mut all = Vec::new();
    paths(original.as_object().unwrap(), &[], &mut all);
    for path in all {
        let mut config = original.clone();
        let name = format!("{}:{}", case.arch, path.join("."));
        for other in others(path.iter().fold(&original, |part, key| &part[key])) {
            *path.iter().fold(&mut config, |part, key| &mut part[key]) = other.clone();
            fs_err::write(file, config.to_string()).unwrap();
            let may = MAY.iter().any(|(_, ends)| ends.iter().any(|end| name.ends_with(end)));
            if let Some(complaint) = complaint(&unchanged, &plan()).filter(|_| !may) {
                wrong.lock().unwrap().push(format!("{} {name} = {other}: {complaint}", case.at));
            }
        }
    }
}

two_tiers!(values_of_another_kind_are_refused_with_a_way_out);
fn values_of_another_kind_are_refused_with_a_way_out(tier: Tier) {
    let wrong = Mutex::new(Vec::new());
    let cases = fixture::some(Tier::Everyday, tier.of(113, 5));
    cases.par_iter().for_each(|case| sweep(case, &wrong));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
