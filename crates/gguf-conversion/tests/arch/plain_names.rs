//! Leftovers of a training in the names of a checkpoint and among its tensors: every card's cases, with and without
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError};
use gguf_core::{Hint, TensorSource};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{digits, keys};
use gguf_testkit::tiers::{Tier, two_tiers};

/// Tensors and keys of a plan, and its warnings.
type Planned = (Vec<Json>, Vec<Json>, Vec<String>);

/// Plan of an unchanged case, made once for all changes.
fn unchanged(case: &CardFixture) -> Arc<Planned> {
    static PLANS: Mutex<BTreeMap<String, Arc<Planned>>> = Mutex::new(BTreeMap::new());
    let found = PLANS.lock().unwrap().get(&case.at).cloned();
    found.unwrap_or_else(|| {
        let plan = Arc::new(planned(case).unwrap());
        PLANS.lock().unwrap().insert(case.at.clone(), plan.clone());
        plan
    })
}

fn planned(case: &CardFixture) -> Result<Planned, ConvertError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    fs_err::create_dir(&path).unwrap();
    case.write(&path);
    let conversion = case.plan(&path, OutType::F16)?;
    Ok((tensors(&conversion), keys(conversion.metadata()), conversion.warnings().to_vec()))
}

fn tensors(conversion: &Conversion) -> Vec<Json> {
    let rows = conversion.tensors().iter().enumerate();
    let rows =
        rows.map(|(at, meta)| json!([meta.name, meta.shape.dims(), meta.ty.name(), digits(conversion, at)]));
    let mut rows: Vec<Json> = rows.collect();
    // A prefix may change the order by name, and so the order of the file.
    rows.sort_by_key(ToString::to_string);
    rows
}

/// Cases in Hugging Face's format.
fn all_cases(tier: Tier) -> Vec<CardFixture> {
    fixture::some(tier, 31).into_iter().filter(|case| !case.is_mistral()).collect()
}

fn cases(tier: Tier) -> Vec<CardFixture> {
    all_cases(tier).into_iter().filter(|case| !case.is_mmproj()).collect()
}

/// Checks that a change of every case gives the same tensors and keys, and one more warning that contains a text.
fn check_all(
    cases: &[CardFixture],
    change: impl Fn(&CardFixture) -> Option<(CardFixture, String)> + Sync,
) -> usize {
    let complaint = |case: &CardFixture| {
        let (changed, warning) = change(case)?;
        let plain = unchanged(case);
        let complaint = match planned(&changed) {
            Err(error) => format!("{error}"),
            Ok(found) if found.0 != plain.0 => "other tensors".to_owned(),
            Ok(found) if found.1 != plain.1 => "other keys".to_owned(),
            Ok(found) if found.2.len() != plain.2.len() + 1 => format!("warnings {:?}", found.2),
            Ok(found) if !found.2.iter().any(|text| text.contains(&warning)) => {
                format!("no `{warning}`: {:?}", found.2)
            }
            Ok(_) => return Some(None),
        };
        Some(Some(format!("{}: {complaint}", case.at)))
    };
    let found: Vec<Option<String>> = cases.par_iter().filter_map(complaint).collect();
    let wrong: Vec<&String> = found.iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), found.len());
    found.len()
}

/// Every third case. Which ones, differs by `turn`.
fn third(cases: Vec<CardFixture>, turn: usize) -> Vec<CardFixture> {
    let chosen = cases.into_iter().enumerate().filter(|(at, _)| (at + turn).is_multiple_of(3));
    chosen.map(|(_, case)| case).collect()
}

two_tiers!(wrappers_before_all_names_change_nothing);
/// The first wrapper in every case; the others, which are treated alike, in a third of them each.
fn wrappers_before_all_names_change_nothing(tier: Tier) {
    for (turn, prefix) in [
        "module.",
        "_orig_mod.",
        "_fsdp_wrapped_module.",
        "_forward_module.",
        "base_model.model.",
        "module._orig_mod.",
        "_orig_mod.base_model.model.",
    ]
    .into_iter()
    .enumerate()
    {
        let change = |case: &CardFixture| {
            let changed = case.renamed(|name| format!("{prefix}{name}"));
            Some((changed, format!("all names begin with `{prefix}`, which is left out")))
        };
        let cases = if turn == 0 { all_cases(tier) } else { third(all_cases(tier), turn) };
        assert!(check_all(&cases, change) > cases.len() / 2 && cases.len() > tier.of(3, 60));
    }
}

two_tiers!(wrappers_inside_names_change_nothing);
fn wrappers_inside_names_change_nothing(tier: Tier) {
    let words = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];
    for (turn, word) in words.into_iter().enumerate() {
        let change = |case: &CardFixture| {
            let inside = |name: &str| match name.find(".0.") {
                Some(at) => format!("{}.{word}{}", &name[..at + 2], &name[at + 2..]),
                None => name.to_owned(),
            };
            let changed = case.renamed(inside);
            case.has_name(|name| name.contains(".0.")).then(|| (changed, format!("`{word}` of wrappers")))
        };
        let cases = if turn == 0 { all_cases(tier) } else { third(all_cases(tier), turn) };
        assert!(check_all(&cases, change) > tier.of(2, 40));
    }
}

two_tiers!(unknown_wrappers_are_found_by_what_the_card_knows);
fn unknown_wrappers_are_found_by_what_the_card_knows(tier: Tier) {
    for prefix in ["policy.", "student.net."] {
        let change = |case: &CardFixture| {
            let changed = case.renamed(|name| format!("{prefix}{name}"));
            Some((changed, format!("`{prefix}`")))
        };
        assert!(check_all(&cases(tier), change) > tier.of(8, 100));
    }
}

two_tiers!(what_a_training_left_beside_a_model_is_left_out);
fn what_a_training_left_beside_a_model_is_left_out(tier: Tier) {
    let left = [
        "v_head.summary.weight",
        "v_head.summary.bias",
        "value_head.weight",
        "optimizer.state.0.exp_avg",
        "ema_model.norm.weight",
    ];
    let change = |case: &CardFixture| {
        let changed = left.iter().fold(case.renamed(str::to_owned), |case, name| case.with(name, &[1, 4]));
        Some((changed, "5 tensors that a training left next to the model are left out: ".to_owned()))
    };
    assert!(check_all(&cases(tier), change) > tier.of(8, 100));
}

#[test]
fn what_is_no_part_of_the_model_is_refused_with_a_pattern_that_leaves_it_out() {
    let case = fixture::case("llama/plain.json");
    let plain = planned(&case).unwrap();
    for (names, pattern) in [
        (&["probe.weight"][..], r"^probe\.weight$"),
        (&["probe.a.weight", "probe.b.bias"], r"^probe\."),
        (&["model.layers.0.adapterish.a", "model.layers.1.adapterish.b"], r"(^|\.)adapterish(\.|$)"),
    ] {
        let changed = names.iter().fold(case.renamed(str::to_owned), |case, name| case.with(name, &[4, 4]));
        let error = planned(&changed).unwrap_err();
        let hints = error.hints().join("\n");
        assert!(
            hints.contains(&format!("`--drop '{pattern}'` of gguf-convert leaves them out")),
            "{error}\n{hints}"
        );
        let found = planned(&changed.dropping(pattern)).unwrap();
        assert_eq!((&found.0, &found.1), (&plain.0, &plain.1), "{pattern}");
        assert!(
            found.2.iter().any(|text| text.contains(&format!("`--drop {pattern}` leaves out"))),
            "{:?}",
            found.2
        );
    }
    // Required tensors are still reported as missing, and a pattern without a match is reported.
    let error = planned(&case.renamed(str::to_owned).dropping("q_proj")).unwrap_err();
    assert!(
        error.to_string().starts_with("the checkpoint lacks `model.layers.0.self_attn.q_proj.weight`"),
        "{error}"
    );
    let found = planned(&case.renamed(str::to_owned).dropping("nothing")).unwrap();
    assert!(
        found.2.contains(&"`--drop nothing` matches no tensor of the checkpoint".to_owned()),
        "{:?}",
        found.2
    );
}

#[test]
fn adapters_that_were_never_merged_are_refused() {
    let case = fixture::case("llama/plain.json");
    let q = "model.layers.0.self_attn.q_proj";
    let changed = case
        .renamed(|name| {
            if name.contains("q_proj") {
                name.replace("q_proj.", "q_proj.base_layer.")
            } else {
                name.to_owned()
            }
        })
        .with(&format!("{q}.lora_A.default.weight"), &[4, 64])
        .with(&format!("{q}.lora_B.default.weight"), &[64, 4]);
    for changed in [changed.renamed(|name| format!("base_model.model.{name}")), changed] {
        let error = planned(&changed).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("of the checkpoint's tensors belong to an adapter that is not merged: "),
            "{error}"
        );
        assert!(error.hints()[0].contains("merge_and_unload()"));
    }
    // Without adapter matrices, PEFT's prefix is treated like any other wrapper.
    let plain = planned(&case).unwrap();
    let changed = case.renamed(|name| name.replace("_proj.", "_proj.base_layer."));
    let found = planned(&changed).unwrap();
    assert_eq!(found.0, plain.0);
    assert!(found.2.iter().any(|text| text.starts_with("`base_layer.` is left out of ")), "{:?}", found.2);
}

#[test]
fn names_of_the_inner_model_alone_are_completed() {
    let inner = |name: &str| name.strip_prefix("model.").unwrap_or(name).to_owned();
    let change = |case: &CardFixture| {
        Some((case.renamed(inner), "lack `model.`, which is put before them: ".to_owned()))
    };
    let cases = ["llama/plain.json", "olmo2/olmo2.json", "olmo2/olmo3.json", "starcoder2/plain.json"];
    assert_eq!(check_all(&cases.map(fixture::case), change), 4);
    // Embedding models of Qwen 2 omit `model.`, so their card reads both forms.
    for case in ["qwen2/defaults.json", "qwen2/plain.json", "qwen2/rope_yarn.json"].map(fixture::case) {
        assert!(case.has_name(|name| name.starts_with("model.")), "{}", case.at);
        assert_eq!(planned(&case.renamed(inner)).unwrap(), planned(&case).unwrap(), "{}", case.at);
    }
}
