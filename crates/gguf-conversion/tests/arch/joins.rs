//! Joins of tensors (`--fuse-qkv`, `--fuse-gate-up-exps`), for every card that lists one.

use gguf_arch::{Fusion, OutType};
use gguf_conversion::Conversion;
use gguf_core::TensorSource;

use super::fixture;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Joins, the option of a case for each, the parts, and the joined tensor.
const JOINS: [(Fusion, &str, &[&str], &str); 2] = [
    (Fusion::Qkv, "fuse_qkv", &["attn_q", "attn_k", "attn_v"], "attn_qkv"),
    (Fusion::GateUpExps, "fuse_gate_up_exps", &["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"),
];

/// Number of weights of this name, over all blocks.
fn count(conversion: &Conversion, name: &str) -> usize {
    let ending = format!(".{name}.weight");
    conversion.tensors().iter().filter(|tensor| tensor.name.ends_with(&ending)).count()
}

two_tiers!(every_card_that_joins_tensors_does);
/// One case of each card, every day of some cards. What the loader requires is checked when a conversion is planned.
fn every_card_that_joins_tensors_does(tier: Tier) {
    let (mut n, mut last) = ([0; 2], String::new());
    for case in fixture::some(tier, 20).iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        if case.arch == last {
            continue;
        }
        case.write(dir.path());
        let Ok(apart) = case.plan(dir.path(), OutType::F32) else { continue };
        for (at, (join, option, parts, joined)) in JOINS.into_iter().enumerate() {
            let is_whole = parts.iter().all(|part| count(&apart, part) > 0);
            if !apart.mapping().card.fuse.contains(&join) || !is_whole {
                continue;
            }
            let asked = case.changed(|content| content["options"][option] = true.into()).unwrap();
            let together = asked.plan(dir.path(), OutType::F32);
            let together = together.unwrap_or_else(|error| panic!("{} {option}: {error}", case.at));
            // Blocks that take keys and values of another keep their queries apart.
            let n_apart = count(&together, parts.last().unwrap());
            assert!(count(&together, joined) > 0 && n_apart == 0, "{} {option}", case.at);
            n[at] += 1;
            last.clone_from(&case.arch);
        }
    }
    assert!(n[0] >= tier.of(1, 20) && n[1] >= tier.of(0, 1), "{n:?}");
}
