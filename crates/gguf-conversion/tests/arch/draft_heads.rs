//! Draft heads that a configuration counts and a checkpoint does not store, which is how transformers saves such
//! models.

use gguf_arch::OutType;
use gguf_core::TensorSource;
use gguf_testkit::tiers::{Tier, two_tiers};
use rayon::prelude::*;
use serde_json::Value as Json;

use super::fixture::{CardFixture, stripped};

fn names(case: &CardFixture) -> (Vec<String>, Vec<(String, Json)>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let plan = case.plan(dir.path(), OutType::F32).unwrap_or_else(|error| panic!("{}: {error}", case.at));
    let tensors = plan.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let keys = super::keys(plan.metadata()).into_iter().filter(super::is_of_cards);
    let keys = keys.map(|row| (row[0].as_str().unwrap().to_owned(), row[2].clone())).collect();
    (tensors, keys, plan.warnings().to_vec())
}

two_tiers!(a_head_that_is_counted_only_is_left_out_with_a_word);
fn a_head_that_is_counted_only_is_left_out_with_a_word(tier: Tier) {
    let cases = stripped();
    assert!(cases.len() >= 8, "{}", cases.len());
    tier.some(3, cases).par_iter().for_each(|(whole, without)| {
        let (tensors, keys, warnings) = names(without);
        let dropped = whole.edited(|content| content["options"]["no_mtp"] = true.into());
        let (wanted, wanted_keys, none) = names(&dropped);
        assert_eq!(tensors, wanted, "{}", whole.at);
        assert_eq!(keys, wanted_keys, "{}", whole.at);
        let is_told = |warnings: &[String]| {
            warnings.iter().any(|line| line.contains("no tensor of a draft head is stored"))
        };
        let counts = keys.iter().find(|row| row.0.ends_with(".nextn_predict_layers"));
        assert!(counts.is_none_or(|row| row.1 == 0), "{}: {counts:?}", whole.at);
        assert!(!is_told(&none), "{}", whole.at);
        let has_heads = names(whole).0 != wanted;
        assert!(is_told(&warnings) || !has_heads, "{}: {warnings:?}", whole.at);
    });
}

two_tiers!(a_head_that_is_not_stored_cannot_be_written_alone);
fn a_head_that_is_not_stored_cannot_be_written_alone(tier: Tier) {
    for (_, without) in tier.some(4, stripped()) {
        let alone = without.edited(|content| content["options"]["mtp"] = true.into());
        let dir = tempfile::tempdir().unwrap();
        alone.write(dir.path());
        let error = alone.plan(dir.path(), OutType::F32).err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{}: converted", alone.at));
        assert!(error.contains("`--mtp`"), "{}: {error}", alone.at);
    }
}
