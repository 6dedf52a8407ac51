//! Embedding and head stored under one name, in every card.

use gguf_arch::OutType;
use gguf_conversion::Conversion;
use gguf_core::TensorSource;
use serde_json::Value as Json;

use super::fixture;
use gguf_testkit::memory::tensor_bytes;
use gguf_testkit::tiers::{Tier, two_tiers};

/// Cases in which the embedding's name determines the layout, draft heads, cases with an index of tensors, and those of
/// architectures whose runtime requires a head beside the embedding: one of the two is missing.
const OTHERS: &[&str] = &[
    "chatglm/transformers.json",
    "chatglm1/defaults.json",
    "glm4moe/further_block_alone.json",
    "minimax-01/minimax_text_01.json",
    "qwen3next/further_block_alone.json",
    "qwen3vl/rerank.json",
    "t5/with_lm_head.json",
];

/// Source tensor, if there is only one.
fn source(conversion: &Conversion, tensor: &str) -> Option<String> {
    let at = conversion.tensors().iter().position(|own| own.name == tensor)?;
    let sources: Vec<&str> = conversion.sources(at).collect();
    match sources[..] {
        [one] => Some(one.to_owned()),
        _ => None,
    }
}

/// The elements of the embedding.
fn elements(conversion: &Conversion) -> Vec<u8> {
    let at = conversion.tensors().iter().position(|own| own.name == "token_embd.weight").unwrap();
    tensor_bytes(conversion, at)
}

two_tiers!(a_head_that_is_stored_alone_is_the_embedding_in_every_card);
fn a_head_that_is_stored_alone_is_the_embedding_in_every_card(tier: Tier) {
    let (mut n, mut wrong) = (0, Vec::new());
    for case in fixture::some(tier, 25).iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let Ok(healthy) = case.plan(dir.path(), OutType::F32) else { continue };
        let Some(embedding) = source(&healthy, "token_embd.weight") else { continue };
        // If no head is stored, it has its usual name.
        let head = source(&healthy, "output.weight").unwrap_or_else(|| "lm_head.weight".to_owned());
        let is_needed =
            |card: &gguf_arch::Card| card.outputs.iter().any(|output| output.text() == "token_embd.weight");
        let has_place = |card: &gguf_arch::Card| {
            let targets = card.entries.iter().flat_map(|entry| &entry.targets);
            targets.map(|target| target.name.text()).any(|name| name == "output")
        };
        let writes_text = ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];
        let writes_text = writes_text.iter().any(|end| healthy.mapping().class.ends_with(end));
        let card = &healthy.mapping().card;
        let is_other = OTHERS.contains(&case.at.as_str());
        if !is_needed(card) || embedding == head || !(has_place(card) || writes_text) || is_other {
            continue;
        }
        if !writes_text && source(&healthy, "output.weight").is_none() {
            continue;
        }
        let changed = case.with_head_alone(&embedding, &head);
        let dir = tempfile::tempdir().unwrap();
        changed.write(dir.path());
        n += 1;
        match changed.plan(dir.path(), OutType::F32) {
            Err(error) => wrong.push(format!("{}: {error}", changed.at)),
            Ok(found) if source(&found, "token_embd.weight").as_ref() != Some(&head) => {
                wrong.push(format!("{}: {:?}", changed.at, source(&found, "token_embd.weight")));
            }
            Ok(found) if elements(&found).len() != elements(&healthy).len() => {
                wrong.push(format!("{}: another size", changed.at));
            }
            Ok(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {n}\n{}", wrong.len(), wrong.join("\n"));
    assert!(n > tier.of(4, 150), "{n}");
}

/// llama.cpp's loader of these architectures requires a head: that of a tied model is the embedding once more.
#[test]
fn a_required_head_of_a_tied_model_is_written() {
    for at in ["olmo2/olmo2.json", "qwen2moe/qwen2_moe.json", "gptneox/gpt_neox.json", "gpt-oss/plain.json"] {
        let tied = fixture::case(at).edited(|content| {
            content["config"]["tie_word_embeddings"] = true.into();
            let is_head = |row: &Json| {
                ["lm_head.", "embed_out."].iter().any(|h| row[0].as_str().unwrap().starts_with(h))
            };
            content["tensors"].as_array_mut().unwrap().retain(|row| !is_head(row));
        });
        let dir = tempfile::tempdir().unwrap();
        tied.write(dir.path());
        let planned = tied.plan(dir.path(), OutType::F32).unwrap();
        assert!(planned.warnings().is_empty(), "{at}: {:?}", planned.warnings());
        let [embedding, head] = ["token_embd.weight", "output.weight"].map(|name| source(&planned, name));
        assert!(embedding.is_some() && embedding == head, "{at}: {embedding:?} {head:?}");
    }
}

/// Where the head alone is stored, it is both matrices, also if it has a bias.
#[test]
fn a_required_head_that_is_stored_alone_is_both() {
    for at in ["olmo2/olmo2.json", "phi2/phi.json", "phimoe/phimoe_gqa.json", "hy_v4/hy_v4.json"] {
        let alone = fixture::case(at).with_head_alone("model.embed_tokens.weight", "lm_head.weight");
        let dir = tempfile::tempdir().unwrap();
        alone.write(dir.path());
        let planned = alone.plan(dir.path(), OutType::F32).unwrap();
        assert!(planned.warnings().is_empty(), "{at}: {:?}", planned.warnings());
        for name in ["token_embd.weight", "output.weight"] {
            assert_eq!(source(&planned, name).as_deref(), Some("lm_head.weight"), "{at}: {name}");
        }
    }
}
