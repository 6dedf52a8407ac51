//! Sizes of a configuration that contradict the weights: each size of each case is changed, to twice or half of it in
//! turns and to null. The result must be an error, a file with the keys of the unchanged case, or a warning; any other outcome has a listed reason.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use gguf_arch::{DraftHeads, OutType, check_shapes};
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::TensorSource;
use gguf_format::Metadata;
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, load};
use gguf_testkit::goldens::{Goldens, corpus_tests};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, names, report_cases};

/// Parts of the names of sizes.
const SIZES: [&str; 16] = [
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "ffn_hidden",
    "d_ff",
    "heads",
    "n_head",
    "head_dim",
    "head_size",
    "vocab_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "_rank",
    "d_state",
];

/// Sizes whose change contradicts nothing: architecture (empty: all), key, reason.
const NO_CONTRADICTION: &[(&str, &str, &str)] = &[
    ("", "num_attention_heads", "the rows of all heads together do not say how many there are"),
    ("", "n_head", "likewise"),
    ("", "n_heads", "likewise"),
    ("llada", "n_kv_heads", "null: as many as heads, which the weights have"),
    ("", "head_dim", "null: the head size that the weights have is the default"),
    ("", "num_key_value_heads", "null: as many as heads, which the weights have; or attention is latent"),
    ("", "intermediate_size", "all layers are of experts: no tensor has this width"),
    ("", "intermediate_size_mlp", "likewise"),
    ("", "dense_intermediate_size", "likewise"),
    ("", "qk_rope_head_dim", "no latent attention: no tensor has this width"),
    ("", "shared_expert_intermediate_size", "null: the width that the runtime takes is that of the weights"),
    ("", "moe_shared_expert_intermediate_size", "likewise"),
    ("", "q_lora_rank", "null: queries are not projected down"),
    ("dflash", "index_head_dim", "a draft has no index"),
    ("dflash", "index_n_heads", "likewise"),
    ("eagle3", "vocab_size", "the vocabulary is the target's"),
    ("eagle3", "target_hidden_size", "of the target"),
    ("granite", "mamba_d_state", "all layers are of attention"),
    ("granite", "mamba_n_heads", "likewise"),
    ("granitemoe", "mamba_d_state", "likewise"),
    ("granitemoe", "mamba_n_heads", "likewise"),
    ("kimi-linear", "head_dim", "no tensor has this width"),
    ("qwen3next", "linear_key_head_dim", "a case without linear layers"),
    ("qwen3next", "linear_num_key_heads", "likewise"),
    ("qwen3next", "linear_num_value_heads", "likewise"),
    ("qwen3next", "linear_value_head_dim", "likewise"),
    ("rwkv7", "gate_low_rank_dim", "a case without gates"),
    ("rwkv7", "head_dim", "heads have no tensor of their own size"),
    ("rwkv7", "head_size", "likewise"),
    ("arwkv7", "head_size", "likewise"),
    ("wavtokenizer-dec", "n_embd_features", "the key of this number is not read"),
];

/// Cases of the corpus that are not converted.
const LEFT_OUT: &[&str] = &["pocket_tts", "qwen3_tts", "ultravox"];

#[derive(Debug, Default)]
struct Counts {
    refused: usize,
    right: usize,
    warned: usize,
    silent: Vec<Silent>,
}

/// Change that was accepted without an error or a warning.
#[derive(Debug)]
struct Silent {
    arch: String,
    key: String,
    line: String,
}

/// Changed values of a size; `turn` counts the sizes of a case.
fn changes(value: &Json, turn: usize) -> Vec<Json> {
    match value.as_u64() {
        Some(n) if n > 1 && n % 2 == 0 && turn % 2 == 1 => vec![json!(n / 2), Json::Null],
        Some(n) if n > 0 => vec![json!(n * 2), Json::Null],
        _ => Vec::new(),
    }
}

/// Paths of sizes: in the configuration, or in a part of it.
fn sizes(config: &Map<String, Json>) -> Vec<Vec<String>> {
    // The number of experts per token is not a size.
    let is_size = |key: &str| SIZES.iter().any(|part| key.contains(part)) && !key.contains("per_tok");
    let mut all = Vec::new();
    for (key, value) in config {
        match value {
            Json::Object(part) if key == "text_config" => {
                let inner = part.iter().filter(|(key, value)| is_size(key) && value.is_u64());
                all.extend(inner.map(|(inner, _)| vec![key.clone(), inner.clone()]));
            }
            value if is_size(key) && value.is_u64() => all.push(vec![key.clone()]),
            _ => {}
        }
    }
    all
}

fn at<'j>(config: &'j mut Json, path: &[String]) -> &'j mut Json {
    path.iter().fold(config, |value, key| &mut value[key])
}

/// Keys that describe the model.
fn keys(metadata: &Metadata) -> BTreeMap<String, String> {
    let own = metadata.iter().filter(|(key, _)| !key.starts_with("general."));
    own.map(|(key, value)| (key.to_owned(), format!("{value:?}"))).collect()
}

/// Changes each size of a case whose configuration is the file `config`, and plans the conversion.
fn sweep(
    at_case: &str,
    config: &Path,
    plan: &(dyn Fn() -> Result<Conversion, ConvertError> + Sync),
    counts: &Mutex<Counts>,
) {
    let unchanged = plan().unwrap_or_else(|error| panic!("{at_case}: {error}"));
    let original = load(config);
    for (turn, path) in sizes(original.as_object().unwrap()).into_iter().enumerate() {
        let old = at(&mut original.clone(), &path).clone();
        for new in changes(&old, turn + at_case.len()) {
            let mut changed = original.clone();
            *at(&mut changed, &path) = new.clone();
            fs_err::write(config, changed.to_string()).unwrap();
            let planned = plan();
            let mut counts = counts.lock().unwrap();
            match planned {
                Err(_) => counts.refused += 1,
                Ok(plan) if keys(plan.metadata()) == keys(unchanged.metadata()) => counts.right += 1,
                Ok(plan) if plan.warnings().len() > unchanged.warnings().len() => counts.warned += 1,
                Ok(plan) => counts.silent.push(Silent {
                    arch: plan.mapping().card.gguf.clone(),
                    key: path.last().unwrap().clone(),
                    line: format!("{at_case}: {} {old} to {new}", path.join(".")),
                }),
            }
        }
    }
    fs_err::write(config, original.to_string()).unwrap();
}

/// Fails if a change was accepted without an error, a warning or a listed reason.
fn judge(subject: &str, counts: &Counts) {
    let has_reason = |silent: &&Silent| {
        let is_of = |arch: &str| arch.is_empty() || arch == silent.arch;
        NO_CONTRADICTION.iter().any(|(arch, key, _)| is_of(arch) && *key == silent.key)
    };
    let (known, silent): (Vec<_>, Vec<_>) = counts.silent.iter().partition(has_reason);
    let Counts { refused, right, warned, .. } = counts;
    let n_known = known.len();
    let counts = format!(
        "{subject}: {refused} refused, {right} right, {warned} warned, {n_known} without contradiction"
    );
    // Written past the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "{counts}");
    let lines: Vec<&str> = silent.iter().map(|silent| silent.line.as_str()).collect();
    assert!(lines.is_empty(), "{} without a word:\n{}", lines.len(), lines.join("\n"));
}

two_tiers!(no_wrong_size_goes_by_without_a_word);
fn no_wrong_size_goes_by_without_a_word(tier: Tier) {
    let counts = Mutex::new(Counts::default());
    let cases = fixture::some(Tier::Everyday, tier.of(36, 2)).into_iter();
    let cases: Vec<_> = cases.filter(|case| !case.is_mmproj()).collect();
    cases.par_iter().for_each(|case| {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let mut config = dir.path().join("config.json");
        if !config.is_file() {
            config = dir.path().join("params.json");
        }
        sweep(&case.at, &config, &|| case.plan(dir.path(), OutType::F16), &counts);
    });
    judge("fixtures", &counts.into_inner().unwrap());
}

two_tiers!(the_shapes_of_nearly_all_tensors_follow_from_keys);
fn the_shapes_of_nearly_all_tensors_follow_from_keys(tier: Tier) {
    let (mut n_judged, mut rest) = (0, BTreeMap::<String, usize>::new());
    for case in fixture::some(tier, 16).into_iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let plan = case.plan(dir.path(), OutType::F16).unwrap_or_else(|error| panic!("{}: {error}", case.at));
        let check = check_shapes(plan.metadata(), plan.tensors());
        assert_eq!(check.wrong, [], "{}", case.at);
        n_judged += plan.tensors().len() - check.not_judged.len();
        for name in check.not_judged {
            *rest.entry(format!("{} {name}", case.arch)).or_default() += 1;
        }
    }
    let n_rest: usize = rest.values().sum();
    println!("{n_judged} tensors judged, {n_rest} not: {rest:#?}");
    // A few cases may have more of them than all together.
    let is_most = n_rest * tier.of(5, 25) < n_judged;
    assert!(is_most, "{n_rest} of {} tensors are not judged: {rest:#?}", n_judged + n_rest);
}

corpus_tests!(no_wrong_size_of_the_corpus_goes_by_without_a_word);
fn no_wrong_size_of_the_corpus_goes_by_without_a_word(corpus: &Goldens) {
    let counts = Mutex::new(Counts::default());
    let cases: Vec<String> =
        names(corpus.join("arch")).into_iter().filter(|name| !LEFT_OUT.contains(&name.as_str())).collect();
    cases.par_iter().for_each(|name| {
        let case = load(&corpus.join("arch").join(name).join("case.json"));
        let asked = |option: &str| case["converter_options"][option] == true;
        let from = corpus.join("arch").join(name).join("hf");
        let dir = tempfile::tempdir().unwrap();
        files::copy(&from, dir.path());
        let pooling = from.join("1_Pooling");
        if pooling.is_dir() {
            fs_err::create_dir(dir.path().join("1_Pooling")).unwrap();
            files::copy(&pooling, &dir.path().join("1_Pooling"));
        }
        let options = ConvertOptions {
            file_type: Some(OutType::F16),
            tokenizer: false,
            mistral_format: asked("mistral_format"),
            heads: if asked("no_mtp") { DraftHeads::Dropped } else { DraftHeads::default() },
            ..ConvertOptions::default()
        };
        let config = dir.path().join(if options.mistral_format { "params.json" } else { "config.json" });
        sweep(name, &config, &|| Conversion::plan(dir.path(), &options), &counts);
    });
    judge("corpus", &counts.into_inner().unwrap());
    report_cases("sizes", cases.len());
}

/// Phi's heads may share keys, which no released model has.
#[test]
fn phi_may_have_fewer_key_heads() {
    let case = fixture::case("phi2/phi.json");
    let heads = case.content()["config"]["num_attention_heads"].as_u64().unwrap();
    let case = case.edited(|content| {
        content["config"]["num_key_value_heads"] = json!(heads / 2);
        let rows = content["tensors"].as_array_mut().unwrap().iter_mut();
        for row in
            rows.filter(|row| ["k_proj", "v_proj"].iter().any(|end| row[0].as_str().unwrap().contains(end)))
        {
            row[2][0] = json!(row[2][0].as_u64().unwrap() / 2);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let planned = case.plan(dir.path(), OutType::F32).unwrap();
    let n_kv = planned.metadata().get("phi2.attention.head_count_kv").and_then(gguf_format::Value::as_u64);
    assert_eq!(n_kv, Some(heads / 2));
}
