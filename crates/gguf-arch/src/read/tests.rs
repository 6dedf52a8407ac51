//! Tests that every key of a card changes the result of a conversion, or is refused when the card is loaded.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::defaults::DEFAULT_KEYS;
use super::entries::{ENTRY_KEYS, TARGET_KEYS};
use super::generate::GENERATE_KEYS;
use super::tokenizer::{MODE_KEYS, TOKENIZER_KEYS};
use super::{CARD_KEYS, IGNORE_KEYS, NAMES_KEYS};
use crate::{Inputs, Registry, ResolveOptions, invert, resolve};
use gguf_core::{ElementType, Hint, Shape, WeightMeta};
use gguf_format::Metadata;
use gguf_testkit::memory::MemoryWeights;

/// Card by lines, so that a test can replace single lines.
const BASE: &str = r#"
schema = 1
gguf = "llama"
classes = ["C"]
examples = ["a/b"]
tensors."embed" = "token_embd"
blocks."q" = "attn_q"
blocks."k" = "attn_k"
blocks."e.{eid}" = { to = "ffn_up_exps", stack = "eid" }
ignore."model.layers.{bid}.o.weight" = "in one block only"
ignore."tied.weight" = "the same as embed"
"#;

const PARENT: &str =
    "schema = 1\ngguf = \"parent\"\nabstract = true\nmetadata = [[\"vocab_size\", \"vocab_size\"]]";

fn config() -> Json {
    json!({
        "architectures": ["C"], "model_type": "c", "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 32,
        "rms_norm_eps": null, "clip_qkv": "auto", "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3"},
    })
}

fn weights() -> Vec<WeightMeta> {
    let mut weights = Vec::new();
    let mut add = |name: &str, dims: &[u64]| {
        let (name, shape) = (format!("{name}.weight"), Shape::new(dims.to_vec()).unwrap());
        weights.push(WeightMeta { name, shape, ty: ElementType::Bf16 });
    };
    add("embed", &[16, 8]);
    add("tied", &[16, 8]);
    add("vision_tower.x", &[2, 2]);
    for block in 0..2 {
        for (name, n_rows) in [("q", 8), ("k", 8), ("e.0", 4), ("e.1", 4)] {
            add(&format!("model.layers.{block}.{name}"), &[n_rows, 8]);
        }
    }
    add("model.layers.0.o", &[8, 8]);
    weights
}

/// Returns the base with some of its lines replaced, removed (`key =`), or added.
fn card(lines: &str) -> String {
    let key = |line: &str| line.split_once(" =").map_or(line, |parts| parts.0).to_owned();
    let mut card: Vec<String> = BASE.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let at = card.iter().position(|own| key(own) == key(line));
        match (at, line.ends_with('=')) {
            (Some(at), true) => drop(card.remove(at)),
            (Some(at), false) => line.clone_into(&mut card[at]),
            (None, _) => card.push(line.to_owned()),
        }
    }
    card.join("\n")
}

/// Returns all decisions of a card, or the reason why it is refused.
fn outcome(lines: &str) -> Result<String, String> {
    let text = card(lines);
    let registry = Registry::from_texts([("parent", PARENT), ("llama", text.as_str())]).map_err(|error| {
        error.hints().iter().fold(error.to_string(), |all, hint| all + &format!(" ({hint})"))
    })?;
    let (config, weights) = (config(), weights());
    let mut content = MemoryWeights::default();
    for weight in &weights {
        let is_one = u8::from(weight.name.starts_with("model.layers."));
        let n_bytes = 2 * weight.shape.n_elems() as usize;
        content.add(&weight.name, weight.shape.dims(), weight.ty, vec![is_one; n_bytes]);
    }
    let inputs =
        Inputs { values: Some(&content), ..Inputs::of_headers(config.as_object().unwrap(), &weights) };
    let mut shown = format!("{:?}", registry.classes());
    match resolve(&registry, &inputs, &ResolveOptions { annotate: true, ..ResolveOptions::default() }) {
        Ok(mapping) => {
            let _ = write!(
                shown,
                "{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}{:?}",
                mapping.outputs,
                mapping.dropped,
                mapping.early.iter().collect::<Vec<_>>(),
                mapping.metadata.iter().collect::<Vec<_>>(),
                mapping.annotations.iter().collect::<Vec<_>>(),
                mapping.tokenizer,
                mapping.card.companions,
                mapping.card.graph,
                (&mapping.card.fuse, mapping.card.mtp_export, &mapping.card.mtp_keep, &mapping.differs),
            );
        }
        Err(error) => shown.push_str(&error.to_string()),
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let back = invert(&registry, &metadata, &[], None, None).map(|inverse| inverse.config);
    let _ = write!(shown, "{back:?}");
    Ok(shown)
}

/// Returns the cases of a kind: the words after it, and the sections, which lines of `--` begin.
fn cases(kind: &str) -> Vec<(&'static str, Vec<String>)> {
    let all = include_str!("cases.txt").split("\n== ").skip(1);
    let own = all.filter_map(|case| {
        let (head, lines) = case.split_once('\n')?;
        let words = head.strip_prefix(kind)?;
        let mut sections = vec![String::new()];
        for line in lines.lines() {
            match line.strip_prefix("--") {
                Some(rest) => sections.push(rest.trim_start().to_owned()),
                None => sections.last_mut()?.extend([line, "\n"]),
            }
        }
        Some((words.trim_start(), sections))
    });
    own.collect()
}

#[test]
fn every_key_is_acted_on_or_refused() {
    for (place, keys) in [
        ("card", CARD_KEYS),
        ("names", NAMES_KEYS),
        ("entry", ENTRY_KEYS),
        ("target", TARGET_KEYS),
        ("defaults", DEFAULT_KEYS),
        ("ignore", IGNORE_KEYS),
        ("generate", GENERATE_KEYS),
        ("tokenizer", TOKENIZER_KEYS),
        ("mode", MODE_KEYS),
    ] {
        let rows = cases(&format!("{place} "));
        for key in keys {
            assert!(rows.iter().any(|row| row.0 == *key), "{place}: no test of `{key}`");
        }
        for (key, cards) in rows {
            let (without, with) = match cards.as_slice() {
                [without, with] => (without.as_str(), with),
                [with] => ("", with),
                _ => panic!("{place} `{key}`: one or two cards expected"),
            };
            let without = outcome(without).unwrap_or_else(|error| panic!("{place} `{key}`: {error}"));
            assert_ne!(Ok(without), outcome(with), "{place}: `{key}` changes nothing");
        }
    }
}

#[test]
fn every_rewriting_step_is_acted_on() {
    let rewritten = |step: &str| outcome(&format!("names.rewrite = [{step}]"));
    let plain = outcome("").unwrap();
    for step in [
        "[\"strip\", \"model.\"]",
        "[\"head\", \"embed.\", \"x.\"]",
        "[\"tail\", \".weight\", \".w\"]",
        "[\"replace\", \"layers\", \"h\"]",
        "[\"prefix\", \"m.\"]",
        "[\"shift\", \"model.layers.\", \"model.layers.\", \"1\"]",
    ] {
        assert_ne!(rewritten(step), Ok(plain.clone()), "{step}");
        let never = step.replace(']', ", { when = \"false\" }]");
        assert_eq!(rewritten(&never), Ok(plain.clone()), "{never}");
    }
}

#[test]
fn what_is_not_built_or_would_have_no_effect_is_refused_by_name() {
    let refused = cases("refused");
    assert!(refused.len() > 15, "{} cases", refused.len());
    for (_, case) in refused {
        let [lines, want] = case.as_slice() else { panic!("a card and a message expected: {case:?}") };
        assert_eq!(outcome(lines), Err(format!("card `llama`: {want}")), "{lines}");
    }
}
