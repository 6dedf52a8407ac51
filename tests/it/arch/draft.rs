//! Drafted cards for checkpoints that no card fits: known models under unknown names convert as before, and unknown
//! parts are named.

use std::path::Path;

use gguf_foundry::arch::{Draft, Inputs, Mapping, OutType, Registry, ResolveOptions, draft, resolve};
use gguf_foundry::core::{ElementType, Hint, Shape, WeightMeta};
use serde_json::{Value as Json, json};

use crate::support::{files, fixture, programs};
use crate::testkit::checkpoints::Safetensors;

/// Checkpoint of `fixtures/cards`: configuration and rows of name, type and shape.
pub(crate) fn case(path: &str) -> Json {
    files::json(fixture(&format!("cards/{path}.json")))
}

pub(crate) fn weights(case: &Json) -> Vec<WeightMeta> {
    let weight = |row: &Json| {
        let dims = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
        WeightMeta {
            name: row[0].as_str().unwrap().to_owned(),
            shape: Shape::new(dims).unwrap(),
            ty: ElementType::from_name(row[1].as_str().unwrap()).unwrap(),
        }
    };
    case["tensors"].as_array().unwrap().iter().map(weight).collect()
}

fn inputs<'a>(case: &'a Json, weights: &'a [WeightMeta]) -> Inputs<'a> {
    Inputs::of_headers(case["config"].as_object().unwrap(), weights)
}

fn drafted(case: &Json) -> Draft {
    draft(&Registry::embedded().unwrap(), &inputs(case, &weights(case))).unwrap()
}

pub(crate) fn mapped(registry: &Registry, case: &Json) -> Result<Mapping, String> {
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

/// Writes a checkpoint directory with zero weights.
pub(crate) fn write_checkpoint(dir: &Path, case: &Json) {
    let mut file = Safetensors::default();
    for weight in weights(case) {
        let n_bytes = weight.ty.bits() as u64 / 8 * weight.shape.n_elems();
        file.add(&weight.name, weight.ty.name(), weight.shape.dims(), &vec![0; n_bytes as usize]);
    }
    file.write_checkpoint(dir, &case["config"]);
}

#[test]
fn known_models_of_an_unknown_class_convert_as_before() {
    let registry = Registry::embedded().unwrap();
    for path in [
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
    ] {
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

/// For any checkpoint, the draft is a valid card, and names the tensors that it has no place for.
#[test]
fn every_draft_is_a_card() {
    let registry = Registry::embedded().unwrap();
    let archs = registry.cards().iter().filter(|card| card.variant.is_none());
    let mut archs: Vec<&str> = archs.map(|card| card.gguf.as_str()).collect();
    archs.sort_unstable();
    let (mut n_cases, mut n_whole) = (0, 0);
    // Every fifth case; the number of cards shifts the selection over time.
    for arch in archs.iter().step_by(5) {
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

#[test]
fn the_program_drafts_and_converts() {
    let dir = tempfile::tempdir().unwrap();
    let mut unknown = of_unknown_class(case("qwen3/plain"));
    unknown["config"]["model_type"] = json!("nobodys");
    write_checkpoint(&dir.path().join("model"), &unknown);
    let run = |code: i32, args: &[&str]| {
        let ended = programs::run("gguf-convert", dir.path(), args).exits_with(code);
        (ended.out, ended.err)
    };
    let dry = ["hf2gguf", "model", "--dry-run", "--no-tokenizer"];
    let (_, err) = run(1, &dry);
    assert!(err.contains("hint: the checkpoint is most like card `qwen3`"), "{err}");
    let (card, err) = run(0, &["draft", "model"]);
    for part in ["most like card `qwen3`", "have a place in the card", "next: fill in its TODOs"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    run(0, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    // With that card the class is known, and shown like any other.
    let class = unknown["config"]["architectures"][0].as_str().unwrap();
    assert!(run(2, &["archs", class]).1.contains("no architecture and no class is named"));
    assert!(run(0, &["archs", class, "--card", "my.toml"]).0.contains(&format!("  classes     {class}\n")));
    assert_eq!(fs_err::read_to_string(dir.path().join("my.toml")).unwrap(), card);
    run(0, &[&dry[..], &["--card", "my.toml"]].concat());

    // An edited draft is not replaced.
    fs_err::write(dir.path().join("my.toml"), card.replacen("TODO: one line on what", "What", 1)).unwrap();
    let (_, err) = run(1, &["draft", "model", "-o", "my.toml", "--no-sync"]);
    assert!(err.contains("a drafted card does not replace"), "{err}");
    let (_, err) = run(1, &["draft", "nowhere"]);
    assert!(err.starts_with("error: "), "{err}");
}
