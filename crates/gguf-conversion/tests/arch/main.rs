//! Tests of `gguf-arch` and `gguf-views`: plans and bytes against the conformance corpus and the fixtures.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

use std::collections::BTreeSet;
use std::sync::Mutex;

use gguf_arch::{
    ArchError, Card, CardKind, DropReason, Inputs, Mapping, OutType, Registry, ResolveOptions, resolve,
};
use gguf_conversion::Conversion;
use gguf_core::{ElementType, Hint, Shape, SourceError, TensorSource, WeightMeta, WeightSource};
use gguf_format::{Metadata, Value};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

mod account;
mod came_from;
mod class_rules;
mod classes;
mod classifiers;
mod draft;
mod draft_heads;
mod experts;
mod fixture;
mod in_memory;
mod inner_models;
mod invert;
mod joins;
mod long_rope;
mod missing_kinds;
mod modalities;
mod moe_errors;
mod new_classes;
mod of_others;
mod plain_names;
mod resaved;
mod runtime_keys;
mod saved_by_mlx;
mod sizes;
mod tied;
mod tower_settings;
mod values;
mod vocabularies;

use fixture::{CardFixture, element, load};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{common_keys, fixture, in_json, names, root, sha256};

fn keys(metadata: &Metadata) -> Vec<Json> {
    let row = |(key, value): (&str, &Value)| {
        let (kind, value) = in_json(value);
        json!([key, kind, value])
    };
    metadata.iter().map(row).collect()
}

/// Keys of an expectation that cards are responsible for: no names, no parts, no vocabulary keys.
fn wanted_keys(expect: &Json) -> Vec<Json> {
    expect["kv"].as_array().unwrap().iter().filter(|row| is_of_cards(row)).cloned().collect()
}

fn is_of_cards(row: &Json) -> bool {
    let key = row[0].as_str().unwrap();
    key == "general.file_type"
        || !["general.", "tokenizer.ggml.model", "split."].iter().any(|head| key.starts_with(head))
}

#[test]
fn every_card_loads() {
    // Cards in the program are not checked again when it starts.
    for kind in [CardKind::Text, CardKind::Mmproj] {
        let registry = Registry::overlaid(kind, []).unwrap();
        assert_eq!(registry.classes(), Registry::embedded_of(kind).unwrap().classes());
        assert!(registry.classes().len() >= 10, "{:?}", registry.classes());
        for card in registry.cards().iter().filter(|card| !card.is_abstract) {
            assert!(!card.examples.is_empty(), "{}", card.name());
        }
    }
}

/// A case of `fixtures/cards` in memory.
struct Synthetic {
    weights: Vec<WeightMeta>,
}

impl Synthetic {
    fn new(tensors: &Json) -> Self {
        let weight = |row: &Json| {
            let dims: Vec<u64> = row[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
            WeightMeta {
                name: row[0].as_str().unwrap().to_owned(),
                shape: Shape::new(dims).unwrap(),
                ty: ElementType::from_name(row[1].as_str().unwrap()).unwrap(),
            }
        };
        Self { weights: tensors.as_array().unwrap().iter().map(weight).collect() }
    }
}

impl WeightSource for Synthetic {
    fn weights(&self) -> &[WeightMeta] {
        &self.weights
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        for (i, bytes) in (first..).zip(out.chunks_exact_mut(2)) {
            bytes.copy_from_slice(&((element(weight as u64, i).to_bits() >> 16) as u16).to_le_bytes());
        }
        Ok(())
    }
}

fn resolve_with(
    registry: &Registry,
    config: &Json,
    source: &Synthetic,
    file_type: OutType,
) -> Result<Mapping, ArchError> {
    let config = config.as_object().unwrap();
    let inputs = Inputs { values: Some(source), ..Inputs::of_headers(config, source.weights()) };
    resolve(registry, &inputs, &ResolveOptions { file_type: Some(file_type), ..ResolveOptions::default() })
}

#[test]
fn every_file_in_converters_is_a_card() {
    for (kind, folder) in [(CardKind::Text, "converters"), (CardKind::Mmproj, "converters/mmproj")] {
        let registry = Registry::embedded_of(kind).unwrap();
        let mut files = names(root().join(folder));
        files.retain(|name| name != "mmproj" && name != "diffusion");
        let mut cards: Vec<String> = registry
            .cards()
            .iter()
            .filter(|card| card.variant.is_none())
            .map(|card| format!("{}.toml", card.base()))
            .collect();
        cards.sort();
        assert_eq!(files, cards, "every file in {folder}/ is in the program");
    }
}

/// Keys that intentionally differ from llama.cpp's converter in all files of a case, with the written value.
/// docs/differences.md has the reasons.
const OWN_KEYS: &[(&str, &str)] = &[
    // The rotated part is a share of a head's width, which may differ from the embedding's.
    ("cohere2/zero_biases.json", r#"["cohere2.rope.dimension_count","uint32",16]"#),
    // The runtime has no default for a rank that the model does not have.
    ("deepseek2/v2_defaults.json", r#"["deepseek2.attention.q_lora_rank","uint32",0]"#),
    // The configuration declares `linear`; with llama.cpp's `none` the runtime ignores the factor.
    ("deepseek/gqa_tied_yarn.json", r#"["deepseek.rope.scaling.type","string","linear"]"#),
    // 1.25 divided by 0.1 ln(4) + 1, which the runtime uses without the key.
    ("llama/rope_yarn.json", r#"["llama.rope.scaling.attn_factor","float32",1.0978111028671265]"#),
    // 1.2 divided by 0.1 ln(8) + 1.
    ("olmo2/olmo3.json", r#"["olmo2.rope.scaling.attn_factor","float32",0.9934234023094177]"#),
];

/// Tensors that llama.cpp's converter does not write although its loader requires them, by the ends of their names.
const OWN_TENSORS: &[(&str, [&str; 2])] =
    &[("gptneox/no_attention_bias.json", [".attn_output.bias", ".attn_qkv.bias"])];

/// Removes keys of [`OWN_KEYS`] from both lists, and returns the rows of the table that do not apply.
fn without_own(at: &str, found: &mut Vec<Json>, wanted: &mut Vec<Json>) -> Vec<String> {
    let mut stale = Vec::new();
    for (_, own) in OWN_KEYS.iter().filter(|row| row.0 == at) {
        let Some(place) = found.iter().position(|row| *own == row.to_string().as_str()) else {
            stale.push(format!("{at}: {own} is not written"));
            continue;
        };
        let row = found.remove(place);
        if wanted.contains(&row) {
            stale.push(format!("{at}: the peer writes {own}, too"));
        }
        wanted.retain(|peer| peer[0] != row[0]);
    }
    stale
}

/// Differences of a case from llama.cpp's output; empty if there are none.
fn complaints(case: &CardFixture, covered: &Mutex<BTreeSet<String>>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let mut wrong = Vec::new();
    for (name, expect) in case.expect() {
        let conversion = match case.plan(dir.path(), OutType::from_name(name).unwrap()) {
            Ok(conversion) => conversion,
            Err(error) => return vec![format!("{}: {error}", case.at)],
        };
        let at = format!("{} {name}", case.at);
        let card = &conversion.mapping().card;
        if !case.is_mmproj() {
            covered.lock().unwrap().insert(card.name());
        }
        if card.gguf != case.arch {
            wrong.push(format!("{at}: card {}", card.name()));
        }
        let (found, mut wanted) = (keys(&common_keys(conversion.metadata())), wanted_keys(expect));
        let mut found: Vec<Json> = found.into_iter().filter(is_of_cards).collect();
        wrong.extend(without_own(&case.at, &mut found, &mut wanted));
        wrong.extend(difference(&at, &found, &wanted));
        let mut rows: Vec<Json> = conversion
            .tensors()
            .iter()
            .enumerate()
            .map(|(index, tensor)| {
                let dims: Vec<u64> = tensor.shape.dims().iter().rev().copied().collect();
                json!([tensor.name, dims, tensor.ty.name(), digits(&conversion, index)])
            })
            .collect();
        for (_, ends) in OWN_TENSORS.iter().filter(|own| own.0 == case.at) {
            let n_all = rows.len();
            rows.retain(|row| !ends.iter().any(|end| row[0].as_str().unwrap().ends_with(end)));
            wrong.extend((rows.len() == n_all).then(|| format!("{at}: {ends:?} are not written")));
        }
        wrong.extend(difference(&at, &rows, expect["tensors"].as_array().unwrap()));
    }
    wrong
}

/// First row in which two lists differ.
fn difference(at: &str, found: &[Json], wanted: &[Json]) -> Option<String> {
    let place = (0..found.len().max(wanted.len())).find(|&i| found.get(i) != wanted.get(i))?;
    let row = |rows: &[Json]| rows.get(place).map_or_else(|| "nothing".to_owned(), Json::to_string);
    Some(format!("{at}: row {place}: {}, expected {}", row(found), row(wanted)))
}

/// First digits of a tensor's checksum, read in two pieces: a range of rows does not depend on the others.
fn digits(conversion: &Conversion, index: usize) -> String {
    let tensor = &conversion.tensors()[index];
    let row_bytes = tensor.ty.row_bytes(tensor.shape.n_cols()).unwrap();
    let n_rows = tensor.shape.n_rows();
    let mut bytes = vec![0; usize::try_from(n_rows * row_bytes).unwrap()];
    let cut = n_rows / 3;
    let (head, tail) = bytes.split_at_mut(usize::try_from(cut * row_bytes).unwrap());
    conversion.read_rows(index, 0, head).unwrap();
    conversion.read_rows(index, cut, tail).unwrap();
    sha256(&bytes)[..16].to_owned()
}

two_tiers!(every_card_has_fixtures_and_every_fixture_a_card);
/// Every day the first case of each architecture, for its card or a variant of it.
fn every_card_has_fixtures_and_every_fixture_a_card(tier: Tier) {
    let covered = Mutex::new(BTreeSet::new());
    let mut fixtures = fixture::all();
    if !tier.is_deep() {
        fixtures.dedup_by(|case, before| case.arch == before.arch);
    }
    let wrong: Vec<String> = fixtures.par_iter().flat_map(|case| complaints(case, &covered)).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), fixtures.len(), wrong.join("\n"));
    let covered = covered.into_inner().unwrap();
    let registry = Registry::embedded().unwrap();
    let is_covered = |card: &Card| {
        let is_of = |name: &String| name.split('/').next() == Some(card.base());
        // Unknown to llama.cpp's converter: compared with transformers, in the tests of the engine.
        let is_of_transformers =
            card.classes.iter().any(|class| fixture(&format!("classes/{class}.json")).exists());
        // `of_others` packs weights.
        let is_packed = card.name() == "bitnet/packed";
        is_of_transformers
            || is_packed
            || covered.contains(&card.name())
            || !tier.is_deep() && covered.iter().any(is_of)
    };
    let cards = registry.cards().iter().filter(|card| !card.is_abstract);
    let bare: Vec<String> = cards.filter(|card| !is_covered(card)).map(Card::name).collect();
    assert!(bare.is_empty(), "cards without a fixture: {}", bare.join(", "));
}

/// Error and hints for the llama fixture with a change.
fn refusal(change: impl FnOnce(&mut Json)) -> String {
    refusal_of("cards/llama/plain.json", change)
}

fn refusal_of(path: &str, change: impl FnOnce(&mut Json)) -> String {
    let registry = Registry::embedded().unwrap();
    let mut content = load(&fixture(path));
    change(&mut content);
    let source = Synthetic::new(&content["tensors"]);
    let error = resolve_with(&registry, &content["config"], &source, OutType::F16).unwrap_err();
    error.hints().iter().fold(error.to_string(), |all, hint| all + "\nhint: " + hint)
}

fn rename(content: &mut Json, from: &str, to: &str) {
    let rows = content["tensors"].as_array_mut().unwrap();
    rows.iter_mut().find(|row| row[0] == from).unwrap()[0] = to.into();
}

fn remove(content: &mut Json, name: &str) {
    content["tensors"].as_array_mut().unwrap().retain(|row| row[0] != name);
}

fn add(content: &mut Json, name: &str, dims: &[u64]) {
    content["tensors"].as_array_mut().unwrap().push(json!([name, "BF16", dims]));
}

fn renumber(content: &mut Json, from: &str, to: &str) {
    for row in content["tensors"].as_array_mut().unwrap() {
        row[0] = row[0].as_str().unwrap().replace(from, to).into();
    }
}

/// Models that were cut, and heads for other tasks (ggml-org/llama.cpp#9483).
#[test]
fn what_was_cut_says_so() {
    let more = refusal(|c| c["config"]["num_hidden_layers"] = json!(4));
    assert!(more.contains("hint: config.json counts 4 layers, and tensors of 2 are there"), "{more}");
    for class in ["LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaForRewardModel"] {
        let head = refusal(|c| c["config"]["architectures"] = json!([class]));
        assert!(head.contains("it lacks the head for this task") && !head.contains("should be"), "{head}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let q = "model.layers.1.self_attn.q_proj.weight";
    for (found, want) in [
        (
            refusal(|c| c["config"]["architectures"] = json!(["LlamaForCausalLMs"])),
            "no architecture card for class `LlamaForCausalLMs`\n\
             hint: all its tensors have the names of `LlamaForCausalLM`: if the model computes as that class does, `architectures` in config.json should be [\"LlamaForCausalLM\"]; else write a first card with `gguf-convert draft DIR > my.toml`",
        ),
        (
            refusal(|c| {
                c["config"]["architectures"] = json!([]);
                c["config"]["model_type"] = json!("mine");
            }),
            "config.json: `architectures` names no model class\n\
             hint: `model_type` is `mine`; add the class it belongs to as `architectures`",
        ),
        (
            refusal(|c| rename(c, q, "model.layers.1.self_attn.qproj.weight")),
            "1 of the checkpoint's tensors is unknown to architecture `llama`: `model.layers.1.self_attn.qproj.weight`\n\
             hint: `model.layers.1.self_attn.qproj.weight` is nearest to `model.layers.1.self_attn.q_proj.weight`\n\
             hint: if they are no part of the model, `--drop '^model\\.layers\\.[0-9]+\\.self_attn\\.qproj\\.weight$'` of gguf-convert leaves them out\n\
             hint: add entries or ignore rules in a card of your own with `--card FILE`; `gguf-convert draft` writes one",
        ),
        (
            refusal(|c| remove(c, q)),
            "the checkpoint lacks `model.layers.1.self_attn.q_proj.weight`\n\
             hint: check that all shards of the checkpoint are there",
        ),
        (
            refusal(|c| remove(c, "model.embed_tokens.weight")),
            "the checkpoint lacks `model.embed_tokens.weight`\n\
             hint: check that all shards of the checkpoint are there",
        ),
        (
            refusal(|c| add(c, "model.layers.2.input_layernorm.weight", &[64])),
            "tensor `model.layers.2.input_layernorm.weight`: block 2 of a model with 2\n\
             hint: set the number of layers in config.json right; or, if the blocks from 2 on are no part of the model, `--drop '^model\\.layers\\.([2-9]|[0-9]{2,})\\.'` of gguf-convert leaves them out",
        ),
        (
            refusal(|c| renumber(c, ".layers.1.", ".layers.3.")),
            "tensor `model.layers.3.input_layernorm.weight`: block 3 of a model with 2, and no tensor of block 1\n\
             hint: layers were cut out without numbering the others anew: rename them to 0 to 1, as transformers saves them",
        ),
        (
            refusal(|c| add(c, "model.layers.0.block_sparse_moe.experts.1.w1.weight", &[96, 64])),
            "config.json: `num_local_experts` is missing\n\
             hint: add it to config.json, or take the file from the model that this one was made of (for a FastLLM file: `--config FILE`)",
        ),
        (
            refusal(|c| {
                c["config"]["num_local_experts"] = json!(2);
                add(c, "model.layers.0.block_sparse_moe.experts.1.w1.weight", &[96, 64]);
            }),
            "`blk.0.ffn_gate_exps.weight`: 1 of 2 parts present, `model.layers.0.block_sparse_moe.experts.0.w1.weight` is missing\n\
             hint: check that all shards of the checkpoint are there",
        ),
        (
            refusal(|c| {
                c["config"]["num_local_experts"] = json!(2);
                add(c, "model.layers.0.block_sparse_moe.experts.0.w1.weight", &[96, 64]);
                add(c, "model.layers.0.block_sparse_moe.experts.1.w1.weight", &[96, 32]);
            }),
            "`blk.0.ffn_gate_exps.weight`: shape [96, 32] of `model.layers.0.block_sparse_moe.experts.1.w1.weight` does not join with [96, 64]",
        ),
        (
            refusal(|c| add(c, "text_model.lm_head.weight", &[96, 64])),
            "tensors `lm_head.weight` and `text_model.lm_head.weight` both become `output.weight`\n\
             hint: only one of them is the model's: `--drop '^text_model\\.'` of gguf-convert leaves out the other",
        ),
        (
            refusal(|c| c["config"]["num_attention_heads"] = json!(5)),
            "tensor `model.layers.0.self_attn.q_proj.weight` [64, 64]: `permute_rope`: 5 heads of pairs do not make 64 rows\n\
             hint: config.json has `num_attention_heads` = 5: set what is not that of these weights, or take the file that was saved with them",
        ),
        (
            refusal(|c| c["config"]["head_dim"] = json!("16")),
            "config.json: `head_dim` is \"16\", expected a whole number\n\
             hint: set `head_dim` in config.json right, or take the file that was saved with these weights",
        ),
        (
            refusal(|c| c["config"]["rope_scaling"] = json!({"rope_type": "spiral", "factor": 2})),
            "config.json: unknown rope type `spiral`\n\
             hint: known rope types: default, linear, yarn, su, longrope, dynamic, llama3, mrope, proportional, xdrope, none",
        ),
        (
            refusal(|c| c["config"]["rope_scaling"] = json!({"rope_type": "longrope", "factor": 2})),
            "config.json: rope: `long_factor` must be a list of numbers where the type is longrope\n\
             hint: a value in config.json is not of the kind that this class takes: take the file that was saved with these weights",
        ),
        (
            refusal(|c| c["config"]["rope_scaling"] = json!({"rope_type": "yarn", "factor": "two"})),
            "config.json: `rope_scaling.factor` is \"two\", expected a number above 0\n\
             hint: set `rope_scaling.factor` in config.json right, or take the file that was saved with these weights",
        ),
        (
            refusal(|c| c["config"]["vocab_size"] = json!(-1)),
            "config.json: `vocab_size` is -1, expected a whole number above 0\nhint: set `vocab_size` in config.json right, or \
             take the file that was saved with these weights",
        ),
        (
            refusal(|c| c["config"]["num_hidden_layers"] = json!(1_000_000_000)),
            "the checkpoint lacks `model.layers.2.input_layernorm.weight`, `model.layers.3.input_layernorm.weight`, \
             `model.layers.4.input_layernorm.weight`, `model.layers.5.input_layernorm.weight`, \
             `model.layers.6.input_layernorm.weight`, `model.layers.7.input_layernorm.weight`, \
             `model.layers.8.input_layernorm.weight`, `model.layers.9.input_layernorm.weight` and more\n\
             hint: config.json counts 1000000000 layers, and tensors of 2 are there: if the others were cut off, set the number in config.json right; else check that all shards of the checkpoint are there",
        ),
        (
            refusal(|c| c["tensors"][0][1] = json!("F8_E4M3")),
            "tensor `lm_head.weight`: element type F8_E4M3 cannot be converted here",
        ),
        (refusal(|c| c["tensors"][0][2] = json!([0, 64])), "`output.weight`: shape [0, 64] cannot be stored"),
    ] {
        assert_eq!(found, want);
    }
}

#[test]
fn stacks_of_experts_have_whole_pairs_of_rows_in_every_block() {
    let refusal = |change: &dyn Fn(&mut Json)| refusal_of("cards/gpt-oss/plain.json", change);
    let set_shape = |content: &mut Json, name: &str, dims: &[u64]| {
        let rows = content["tensors"].as_array_mut().unwrap();
        rows.iter_mut().find(|row| row[0] == name).unwrap()[2] = json!(dims);
    };
    let gate_up = "model.layers.1.mlp.experts.gate_up_proj";
    assert_eq!(
        refusal(&|c| set_shape(c, gate_up, &[4, 64, 63])),
        "tensor `model.layers.1.mlp.experts.gate_up_proj` [4, 63, 64]: `unzip`: [2] do not make 63"
    );
    assert_eq!(
        refusal(&|c| set_shape(c, gate_up, &[64])),
        "tensor `model.layers.1.mlp.experts.gate_up_proj` [64]: `transpose`: axis -2 of a tensor with 1 dimensions"
    );
    assert_eq!(
        refusal(&|c| remove(c, gate_up)),
        "the checkpoint lacks `model.layers.1.mlp.experts.gate_up_proj`\n\
         hint: check that all shards of the checkpoint are there"
    );
}

#[test]
fn a_card_from_a_file_adds_an_architecture() {
    let mut registry = Registry::embedded().unwrap();
    let card = "schema = 1\ngguf = \"llama\"\nextends = \"decoder\"\nclasses = [\"OwnForCausalLM\"]\nexamples = [\"a/b\"]";
    registry.add("own", card).unwrap();
    let mut content = load(&fixture("cards/llama/plain.json"));
    content["config"]["architectures"] = json!(["OwnForCausalLM"]);
    let mapping =
        resolve_with(&registry, &content["config"], &Synthetic::new(&content["tensors"]), OutType::F16);
    assert_eq!(mapping.unwrap().outputs.len(), content["tensors"].as_array().unwrap().len());
}

#[test]
fn other_modalities_and_buffers_are_dropped_with_a_reason() {
    let mut content = load(&fixture("cards/llama/plain.json"));
    add(&mut content, "vision_tower.blocks.0.weight", &[4, 4]);
    add(&mut content, "model.layers.0.self_attn.rotary_emb.inv_freq", &[8]);
    let source = Synthetic::new(&content["tensors"]);
    let registry = Registry::embedded().unwrap();
    let mapping = resolve_with(&registry, &content["config"], &source, OutType::F16).unwrap();
    let dropped: Vec<(&str, &DropReason)> = mapping
        .dropped
        .iter()
        .map(|dropped| (source.weights()[dropped.weight].name.as_str(), &dropped.why))
        .collect();
    assert_eq!(
        dropped,
        [
            ("vision_tower.blocks.0.weight", &DropReason::OtherModality),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &DropReason::Recomputed)
        ]
    );
}
