//! Drafted cards for checkpoints that no card fits: known models under unknown names convert as before, and unknown
//! parts are named.

use gguf_arch::{Draft, Inputs, Mapping, OutType, Registry, ResolveOptions, draft, resolve};
use gguf_core::{Hint, WeightMeta};
use serde_json::{Value as Json, json};

use gguf_testkit::checkpoints::weights;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};

/// Checkpoint of `fixtures/cards`: configuration and rows of name, type and shape.
pub fn case(path: &str) -> Json {
    files::json(fixture(&format!("cards/{path}.json")))
}

fn inputs<'a>(case: &'a Json, weights: &'a [WeightMeta]) -> Inputs<'a> {
    Inputs::of_headers(case["config"].as_object().unwrap(), weights)
}

fn drafted(case: &Json) -> Draft {
    draft(&Registry::embedded().unwrap(), &inputs(case, &weights(case))).unwrap()
}

pub fn mapped(registry: &Registry, case: &Json) -> Result<Mapping, String> {
    let options = ResolveOptions { file_type: Some(OutType::F16), ..ResolveOptions::default() };
    let found = resolve(registry, &inputs(case, &weights(case)), &options);
    found.map_err(|error| error.hints().iter().fold(error.to_string(), |all, hint| all + "\nhint: " + hint))
}

/// Gives the case an unknown class; the model type stays.
fn of_unknown_class(mut case: Json) -> Json {
    case["config"]["architectures"] = json!(["NobodysForCausalLM"]);
    case
}

fn rename(case: &mut Json, from: &str, to: &str) {
    for row in case["tensors"].as_array_mut().unwrap() {
        row[0] = row[0].as_str().unwrap().replace(from, to).into();
    }
}

fn with_card(draft: &Draft) -> Registry {
    let mut registry = Registry::embedded().unwrap();
    registry.add("my", &draft.text).unwrap_or_else(|error| panic!("{error}\n{}", draft.text));
    registry
}

two_tiers!(known_models_of_an_unknown_class_convert_as_before);
fn known_models_of_an_unknown_class_convert_as_before(tier: Tier) {
    let registry = Registry::embedded().unwrap();
    let paths = [
        "baichuan/plain",
        "granite/plain",
        "glm4/plain",
        "gpt-oss/plain",
        "llama/biases",
        "llama/defaults",
        "llama/mixtral",
        "llama/plain",
        "llama/rope_llama3",
        "olmo/plain",
        "orion/plain",
        "qwen2/plain",
        "qwen3/plain",
        "qwen3moe/plain",
        "smollm3/plain",
        "starcoder2/plain",
        "xverse/plain",
    ];
    for path in tier.some(3, paths) {
        let known = case(path);
        let unknown = of_unknown_class(known.clone());
        let refusal = mapped(&registry, &unknown).unwrap_err();
        assert!(refusal.contains("gguf-convert draft"), "{path}: {refusal}");
        let draft = drafted(&unknown);
        assert_eq!((draft.n_matched, draft.unmatched.len()), (draft.n_tensors, 0), "{path}: {}", draft.text);
        assert!(draft.problem.is_none(), "{path}: {:?}\n{}", draft.problem, draft.text);
        let made = mapped(&with_card(&draft), &unknown).unwrap();
        let wanted = mapped(&registry, &known).unwrap();
        assert_eq!(made.outputs, wanted.outputs, "{path}: {}", draft.text);
        assert_eq!(draft.gguf, wanted.card.gguf, "{path}: the model's type is known");
        if draft.parent.as_deref() == Some(draft.gguf.as_str()) {
            assert_eq!(made.metadata, wanted.metadata, "{path}");
        }
    }
}

two_tiers!(every_draft_is_a_card);
/// For any checkpoint, the draft is a valid card, and names the tensors that it has no place for.
fn every_draft_is_a_card(tier: Tier) {
    let registry = Registry::embedded().unwrap();
    let archs = registry.cards().iter().filter(|card| card.variant.is_none());
    let mut archs: Vec<&str> = archs.map(|card| card.gguf.as_str()).collect();
    archs.sort_unstable();
    let (mut n_cases, mut n_whole) = (0, 0);
    // Every fifth case, or thirtieth; the number of cards shifts the selection over time.
    for arch in archs.iter().step_by(tier.of(30, 5)) {
        let Ok(files) = fs_err::read_dir(fixture("cards").join(arch)) else { continue };
        let path = files.map(|file| file.unwrap().path()).min().unwrap();
        let content = files::json(&path);
        let mut unknown = of_unknown_class(content);
        unknown["config"]["model_type"] = json!("nobodys_model");
        rename(&mut unknown, "norm", "nrm");
        let draft = drafted(&unknown);
        with_card(&draft);
        n_cases += 1;
        n_whole += usize::from(draft.problem.is_none());
        let n_unmatched: u64 = draft.unmatched.iter().map(|row| row.n_tensors).sum();
        assert_eq!(draft.n_matched + n_unmatched, draft.n_tensors, "{}", path.display());
        for row in &draft.unmatched {
            assert!(draft.text.contains(&row.name), "{}: {}", row.name, draft.text);
        }
    }
    assert!(n_cases > 5 && n_whole < n_cases, "{n_whole} of {n_cases}");
}

#[test]
fn names_that_other_cards_know_find_their_place() {
    let mut unknown = of_unknown_class(case("llama/plain"));
    unknown["config"]["model_type"] = json!("nobodys");
    for block in 0..2 {
        for name in ["q", "k"] {
            let name = format!("model.layers.{block}.self_attn.{name}_norm.weight");
            unknown["tensors"].as_array_mut().unwrap().push(json!([name, "BF16", [16]]));
        }
    }
    let whole = drafted(&unknown);
    assert!(whole.problem.is_none(), "{:?}\n{}", whole.problem, whole.text);

    rename(&mut unknown, "self_attn.q_norm", "attention.q_norm");
    rename(&mut unknown, "model.embed_tokens", "model.tok.embed_tokens");
    rename(&mut unknown, "self_attn.k_norm", "self_attn.strange");
    unknown["config"]["strange_factor"] = json!(2.5);
    let draft = drafted(&unknown);
    let added: Vec<(&str, &str)> =
        draft.added.iter().map(|entry| (entry.key.as_str(), entry.entry.as_str())).collect();
    assert!(added.contains(&("model.tok.embed_tokens", "\"token_embd\"")), "{added:?}");
    assert!(added.contains(&("attention.q_norm", "\"attn_q_norm\"")), "{added:?}");
    let names: Vec<(&str, u64)> =
        draft.unmatched.iter().map(|row| (row.name.as_str(), row.n_tensors)).collect();
    assert_eq!(names, [("model.layers.N.self_attn.strange", 2)]);
    for part in [
        "#\"self_attn.strange\" = \"\"",
        "# TODO 2 tensors [16]: `model.layers.N.self_attn.strange`",
        "# strange_factor = 2.5",
    ] {
        assert!(draft.text.contains(part), "{part}: {}", draft.text);
    }
    let refusal = mapped(&with_card(&draft), &unknown).unwrap_err();
    assert!(refusal.contains("2 of the checkpoint's tensors are unknown"), "{refusal}");
}

#[test]
fn no_role_is_guessed_that_the_extended_card_lacks() {
    let mut unknown = of_unknown_class(case("llama/plain"));
    for name in ["q", "k", "v", "o"] {
        rename(&mut unknown, &format!("self_attn.{name}_proj"), &format!("attention.w{name}"));
    }
    let draft = drafted(&unknown);
    // Only an indexer has a `wk` elsewhere.
    assert!(!draft.added.iter().any(|entry| entry.entry.contains("indexer")), "{}", draft.text);
    let wk = draft.unmatched.iter().find(|row| row.name.ends_with("attention.wk")).unwrap();
    assert!(wk.why.iter().any(|why| why.contains("has no `blk.{bid}.indexer.attn_k`")), "{:?}", wk.why);
}

#[test]
fn blocks_under_another_name_are_renamed() {
    for (from, to) in [("model.", "backbone."), ("model.layers.", "decoder.h."), ("", "outer.")] {
        let mut unknown = of_unknown_class(case("qwen2/plain"));
        for row in unknown["tensors"].as_array_mut().unwrap() {
            let name = row[0].as_str().unwrap();
            if let Some(rest) = name.strip_prefix(from) {
                row[0] = format!("{to}{rest}").into();
            }
        }
        let draft = drafted(&unknown);
        assert!(draft.text.contains("[\"head\", "), "{}", draft.text);
        assert!(draft.problem.is_none(), "{to}: {:?}\n{}", draft.problem, draft.text);
        let made = mapped(&with_card(&draft), &unknown).unwrap();
        let wanted = mapped(&Registry::embedded().unwrap(), &case("qwen2/plain")).unwrap();
        let names = |mapping: &Mapping| {
            let mut names: Vec<String> = mapping.outputs.iter().map(|output| output.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&made), names(&wanted), "{to}");
    }
}

#[test]
fn a_checkpoint_like_none_is_drafted_from_nothing() {
    let strange = json!({
        "config": {"architectures": ["XForCausalLM"], "model_type": "x", "num_hidden_layers": 1},
        "tensors": [["net.0.alpha", "BF16", [4, 4]], ["net.0.beta.weight", "BF16", [4]], ["zeta", "BF16", [2]]],
    });
    let draft = drafted(&strange);
    assert_eq!((draft.parent.as_deref(), draft.n_matched, draft.gguf.as_str()), (None, 0, "x"));
    assert!(
        draft.text.contains("block = \"net.{bid}.\"") && !draft.text.contains("extends"),
        "{}",
        draft.text
    );
    with_card(&draft);
}

/// Names and values are untrusted.
#[test]
fn any_names_make_a_card() {
    let mut unknown = of_unknown_class(case("llama/plain"));
    let class = "A\"\n[blocks]\nx = \u{202e}'''ForCausalLM";
    unknown["config"]["architectures"] = json!([class]);
    unknown["config"]["model_type"] = json!("../\"\n x_\u{7f}y");
    unknown["config"]["bad\nkey"] = json!({"a": "\n]\u{1b}[31m"});
    for (at, name) in [
        "a\"b\n[x]\ny.weight",
        "model.layers.0.{bid}",
        "model.layers.0.*",
        "x.{",
        "",
        "model.layers.0.\u{1b}]0;t",
    ]
    .iter()
    .enumerate()
    {
        let row = json!([name, "BF16", [4, at + 1]]);
        unknown["tensors"].as_array_mut().unwrap().push(row);
    }
    let draft = drafted(&unknown);
    assert_eq!((draft.gguf.as_str(), draft.unmatched.len()), ("..-x-y", 6), "{}", draft.text);
    assert!(!draft.text.contains(|c: char| c.is_control() && c != '\n'), "{:?}", draft.text);
    let registry = with_card(&draft);
    assert!(registry.classes().iter().any(|row| row.class == class && row.gguf == draft.gguf));
}
