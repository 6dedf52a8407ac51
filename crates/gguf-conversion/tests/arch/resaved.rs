//! Configurations as transformers 5 saves them (`fixtures/transformers5.json`): the conversion of a checkpoint is the
//! same as with the original configuration.

use gguf_arch::OutType;
use gguf_core::TensorSource;
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{is_of_cards, keys, load};
use gguf_testkit as support;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Cases that transformers itself reads as another model than their files describe, and the reason.
const OTHER_MODELS: &[(&str, &str)] = &[
    ("cohere2moe/shared_mtp.json", "without `norm_topk_prob`, whose default is another one"),
    ("deepseek2-ocr/unlimited.json", "its flat keys are not read"),
    ("dots3note/mtp.json", "without `n_group`, whose default is another one"),
    ("gemma-embedding/gemma3_text_model.json", "odd windows become even"),
    ("glm5-next/mtp_tied.json", "without `swiglu_limit`, whose default is another one"),
    ("glm5-next/no_mtp.json", "without `swiglu_limit`, whose default is another one"),
    ("granite_swa/experts_older_names.json", "`layer_rope_theta` is read, and no `no_rope_layers`"),
    ("hy_v3/further_block.json", "without `router_scaling_factor`, whose default is another one"),
    ("hy_v3/no_further_block.json", "without `router_scaling_factor`, whose default is another one"),
    (
        "llama/rope_yarn_short.json",
        "without `max_position_embeddings`, which counts more than the rope's own length",
    ),
    ("mimo2/mimo_v2_flash.json", "rope keys of the released files are not read"),
    ("mimo2/mxfp4.json", "rope keys of the released files are not read"),
    ("nomic-bert/nomic_bert.json", "`n_embd` and `n_layer` of the released files are not read"),
    ("nomic-bert-moe/nomic_bert_moe.json", "`n_embd` and `n_layer` of the released files are not read"),
    ("olmo2/olmo3.json", "without `rope_theta`, whose default is another one since version 5"),
    ("phi2/defaults.json", "without `intermediate_size`, whose default is 8192, not four times the width"),
    ("qwen3vl/defaults.json", "without `rope_theta`, whose default is another one since version 5"),
    ("qwen3vl/rerank.json", "without `rope_theta`, whose default is another one since version 5"),
    ("qwen3vl/rerank_tied.json", "without `rope_theta`, whose default is another one since version 5"),
    ("qwen3vlmoe/packed.json", "without `rope_theta`, whose default is another one since version 5"),
];

/// Keys that only state a default: heads as wide as the stream allows, all layers of the usual kind, no draft head.
const SPELLED_OUT: &[&str] = &[
    ".attention.key_length",
    ".attention.value_length",
    ".attention.indexer.types",
    ".attention.recurrent_layers",
    ".nextn_predict_layers",
];

/// Configuration keys for the rotated part and the base of rope.
const PARTS: [&str; 3] = ["partial_rotary_factor", "rotary_pct", "rope_pct"];
const BASES: [&str; 8] = [
    "rope_theta",
    "rotary_emb_base",
    "rope_local_base_freq",
    "local_rope_theta",
    "swa_rope_theta",
    "global_rope_theta",
    "compress_rope_theta",
    "rope_theta_local",
];

/// All keys and tensors, or the error.
fn planned(case: &CardFixture) -> Result<Vec<Json>, String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let plan = case.plan(dir.path(), OutType::F32);
    let plan = plan.map_err(|error| error.to_string().replace(&dir.path().display().to_string(), ""))?;
    let tensors = plan.tensors().iter().map(|tensor| json!([tensor.name, tensor.shape.dims()]));
    Ok(keys(plan.metadata()).into_iter().filter(is_of_cards).chain(tensors).collect())
}

/// Case as transformers saves it.
fn resaved(case: &CardFixture, change: &Json) -> CardFixture {
    case.edited(|content| {
        let config = content["config"].as_object_mut().unwrap();
        for key in change["without"].as_array().unwrap() {
            config.remove(key.as_str().unwrap());
        }
        config.extend(change["with"].as_object().unwrap().clone());
    })
}

/// Case with another value wherever one of the keys has a number.
fn with_value(case: &CardFixture, keys: &[&str], value: f64) -> CardFixture {
    fn visit(node: &mut Map<String, Json>, keys: &[&str], value: f64) {
        for (key, member) in node.iter_mut() {
            match member {
                Json::Number(_) if keys.contains(&key.as_str()) => *member = json!(value),
                Json::Array(items) if keys.contains(&key.as_str()) => items.fill(json!(value)),
                Json::Object(inner) if !["vision_config", "audio_config"].contains(&key.as_str()) => {
                    visit(inner, keys, value);
                }
                _ => {}
            }
        }
    }
    case.edited(|content| visit(content["config"].as_object_mut().unwrap(), keys, value))
}

/// Returns true if the text part of a configuration has one of the keys.
fn says(case: &CardFixture, keys: &[&str]) -> bool {
    let config = &case.content()["config"];
    let parts = [config, &config["text_config"]];
    keys.iter().any(|key| parts.iter().any(|part| part[key].is_number()))
}

/// Changes of configurations, by case.
fn changes() -> Map<String, Json> {
    let Json::Object(changes) = load(&support::fixture("transformers5.json")) else { panic!("no object") };
    changes
}

/// Returns true if a key exists only because its default was written out.
fn is_spelled_out(row: &Json, old: &[Json]) -> bool {
    let key = row[0].as_str().unwrap_or_default();
    SPELLED_OUT.iter().any(|tail| key.ends_with(tail)) && old.iter().all(|other| other[0] != row[0])
}

/// First differences of a case, if there are any; `None` if the original case is refused.
#[allow(clippy::option_option, reason = "no answer, no difference, a difference")]
fn difference(case: &CardFixture, resaved: &CardFixture) -> Option<Option<String>> {
    let (old, new) = (planned(case).ok()?, planned(resaved));
    Some(match new {
        Err(error) => Some(format!("{}: {error}", case.at)),
        Ok(new) => {
            let first = old.iter().filter(|row| !new.contains(row)).take(2).collect::<Vec<_>>();
            let more = new.iter().filter(|row| !old.contains(row) && !is_spelled_out(row, &old));
            let more = more.take(2).collect::<Vec<_>>();
            (!first.is_empty() || !more.is_empty()).then(|| format!("{}: {first:?} became {more:?}", case.at))
        }
    })
}

/// First differences of all cases, or of each fifth every day: one line each, without cases of other models.
fn differences(
    tier: Tier,
    edit: impl Fn(&CardFixture) -> Option<CardFixture> + Sync,
) -> (usize, Vec<String>) {
    let all: Vec<Option<Option<String>>> = tier
        .some(5, changes())
        .par_iter()
        .map(|(at, change)| {
            if OTHER_MODELS.iter().any(|row| row.0 == at) {
                return None;
            }
            let case = fixture::case(at);
            difference(&edit(&case)?, &edit(&resaved(&case, change))?)
        })
        .collect();
    let n = all.iter().flatten().count();
    (n, all.into_iter().flatten().flatten().collect())
}

two_tiers!(a_configuration_saved_anew_means_the_same);
fn a_configuration_saved_anew_means_the_same(tier: Tier) {
    let (n, found) = differences(tier, |case| Some(case.edited(|_| ())));
    assert!(n > tier.of(30, 200), "{n}");
    assert!(found.is_empty(), "{} of {n}:\n{}", found.len(), found.join("\n"));
}

two_tiers!(what_is_listed_as_another_model_is_one);
/// Each row of the list is necessary.
fn what_is_listed_as_another_model_is_one(tier: Tier) {
    let changes = changes();
    for (at, why) in tier.some(8, OTHER_MODELS) {
        let case = fixture::case(at);
        let difference = difference(&case, &resaved(&case, &changes[*at]));
        assert!(matches!(difference, Some(Some(_))), "{at} ({why}): {difference:?}");
    }
}

two_tiers!(a_rope_base_saved_anew_is_found_where_it_is_now);
fn a_rope_base_saved_anew_is_found_where_it_is_now(tier: Tier) {
    let (n, found) = differences(tier, |case| says(case, &BASES).then(|| with_value(case, &BASES, 12345.0)));
    assert!(found.is_empty(), "{} of {n}:\n{}", found.len(), found.join("\n"));
}

two_tiers!(a_rotated_part_saved_anew_is_found_where_it_is_now);
fn a_rotated_part_saved_anew_is_found_where_it_is_now(tier: Tier) {
    let (n, found) = differences(tier, |case| says(case, &PARTS).then(|| with_value(case, &PARTS, 0.5)));
    assert!(found.is_empty(), "{} of {n}:\n{}", found.len(), found.join("\n"));
}
