//! Checkpoints that other programs wrote: names, layouts and configurations that are close to those of transformers.

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError};
use gguf_core::{Hint, TensorSource};
use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::{files, root};
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture};
use super::is_of_cards;
use gguf_testkit::tiers::{Tier, two_tiers};

fn planned(case: &CardFixture, edit: impl Fn(&mut Safetensors)) -> Result<Conversion, ConvertError> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let path = dir.path().join("model.safetensors");
    let mut file = Safetensors::read(&path);
    edit(&mut file);
    file.write(&path);
    case.plan(dir.path(), OutType::F16)
}

/// Keys that do not depend on the folder's name.
fn keys(conversion: &Conversion) -> Vec<Json> {
    super::keys(conversion.metadata()).into_iter().filter(is_of_cards).collect()
}

/// Error with its hints.
fn refusal(case: &CardFixture) -> String {
    let error = planned(case, |_| {}).unwrap_err();
    format!("{error}\n{}", error.hints().join("\n"))
}

/// Case of a Llama.
fn llama() -> CardFixture {
    fixture::case("llama/biases.json")
}

#[test]
fn names_of_other_programs_say_whose_they_are() {
    for (own, other, says) in [
        ("self_attn.o_proj.weight", "attn.output_proj.weight", "torchtune"),
        ("self_attn.q_proj.weight", "attention.wq.weight", "Mistral"),
        ("self_attn.q_proj.weight", "self_attn.qkv_proj.weight", "vLLM"),
        ("mlp.up_proj.weight", "mlp.gate_up_proj.weight", "vLLM"),
        ("mlp.up_proj.weight", "mlp.up_proj.kernel", "Flax"),
        ("mlp.up_proj.weight", "mlp.up_proj.weight_orig", "`prune.remove`"),
        ("mlp.up_proj.weight", "mlp.up_proj.weight_mask", "`prune.remove`"),
        ("mlp.up_proj.weight", "mlp.up_proj.weight_g", "`remove_weight_norm`"),
        ("mlp.up_proj.weight", "mlp.up_proj.parametrizations.weight.original1", "`remove_parametrizations`"),
    ] {
        let said = refusal(&llama().renamed(|name| name.replace(own, other)));
        assert!(said.contains(says) && said.contains(other), "{other}: {said}");
        assert!(!said.contains("--drop") && !said.contains("nearest"), "{other}: {said}");
    }
    for (own, other, says) in [
        ("model.layers.", "blk.", "gguf2hf"),
        ("model.layers.", "decoder.layers.", "Megatron"),
        ("model.layers.", "transformer.h.", "LitGPT"),
    ] {
        let rename = |name: &str| {
            let name = name.replace(own, other).replace("self_attn.o_proj", "self_attention.linear_proj");
            let name = if own == other { name } else { name.replace("mlp.down_proj", "ffn_down") };
            name.replace("input_layernorm", "norm_1")
        };
        let said = refusal(&llama().renamed(rename));
        assert!(said.contains(says), "{other}: {said}");
    }
}

#[test]
fn a_block_beyond_the_count_has_a_way_out() {
    let case = llama().edited(|content| content["config"]["num_hidden_layers"] = json!(1));
    assert!(refusal(&case).contains(r"`--drop '^model\.layers\.([1-9]|[0-9]{2,})\.'`"), "{}", refusal(&case));
}

#[test]
fn counts_may_be_written_as_floats() {
    let as_floats = |content: &mut Json| {
        for key in
            ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "vocab_size"]
        {
            let number = content["config"][key].as_f64().unwrap();
            content["config"][key] = json!(number);
        }
    };
    let (plain, changed) = (planned(&llama(), |_| {}).unwrap(), llama().edited(as_floats));
    let floats = planned(&changed, |_| {}).unwrap();
    assert_eq!(keys(&floats), keys(&plain));
}

#[test]
fn matrices_of_other_frameworks_are_told() {
    for format in ["pt", "mlx", "pd", "np", "tf", "flax"] {
        let conversion = planned(&llama(), |file| file.saved_by(format)).unwrap();
        let warned = conversion.warnings().iter().any(|text| text.contains("[inputs, outputs]"));
        assert_eq!(warned, !["pt", "mlx"].contains(&format), "{format}: {:?}", conversion.warnings());
    }
    let turned = llama().edited(|content| {
        for row in content["tensors"].as_array_mut().unwrap() {
            if row[0].as_str().unwrap().contains("_proj.weight") {
                row[2].as_array_mut().unwrap().reverse();
            }
        }
    });
    assert!(refusal(&turned).contains("PaddlePaddle"), "{}", refusal(&turned));
}

#[test]
fn a_classifier_without_its_pooler_is_told() {
    let case = fixture::case("bert/bert_sequence_classification.json");
    let warns = |case: &CardFixture| {
        let conversion = planned(case, |_| {}).unwrap();
        conversion
            .warnings()
            .iter()
            .any(|text| text.contains("pooler.dense.weight") && text.contains("scores"))
    };
    assert!(warns(&case));
    let without = case.edited(|content| {
        content["tensors"].as_array_mut().unwrap().retain(|row| !row[0].as_str().unwrap().contains("pooler"));
    });
    assert!(!warns(&without));
    assert!(!warns(&fixture::case("bert/bert.json")));
}

#[test]
fn two_values_under_two_names_are_told_and_one_is_taken_as_in_transformers() {
    for (at, [taken, other], value) in [
        ("gpt2/gpt2.json", ["num_attention_heads", "n_head"], json!(8)),
        ("bloom/bloom.json", ["num_attention_heads", "n_head"], json!(2)),
        ("mpt/mpt.json", ["num_attention_heads", "n_heads"], json!(2)),
        ("qwen3moe/plain.json", ["num_local_experts", "num_experts"], Json::Null),
    ] {
        let case = fixture::case(at);
        // The number of experts under its own name; its other one outranks nothing.
        let own = case.content()["config"].get(other).cloned().unwrap_or_default();
        let (taken_value, other_value) = if value.is_null() { (own, json!(64)) } else { (value, own) };
        let with = |names: &[(&str, &Json)]| {
            let names: Vec<(String, Json)> =
                names.iter().map(|(name, value)| ((*name).to_owned(), (*value).clone())).collect();
            let edit = |content: &mut Json| {
                let config = content["config"].as_object_mut().unwrap();
                config.remove(other);
                config.extend(names);
            };
            planned(&case.edited(edit), |_| {}).unwrap()
        };
        let (both, one) =
            (with(&[(taken, &taken_value), (other, &other_value)]), with(&[(taken, &taken_value)]));
        assert_eq!(keys(&both), keys(&one), "{at}");
        let says = format!("`{taken}` = {taken_value} and `{other}` = {other_value} are two names");
        assert!(both.warnings().iter().any(|text| text.contains(&says)), "{at}: {:?}", both.warnings());
        assert_eq!(both.warnings().len(), one.warnings().len() + 1, "{at}: {:?}", both.warnings());
    }
}

two_tiers!(either_name_of_an_attribute_gives_the_same_file);
/// The names that transformers' classes have for one attribute, in the configuration and its text part.
fn either_name_of_an_attribute_gives_the_same_file(tier: Tier) {
    let table = files::json(root().join("crates/gguf-arch/src/attributes.json"));
    let aliases = |part: &Json| {
        let of_type = part["model_type"].as_str().map(|ty| &table[ty]["aliases"]);
        of_type.and_then(Json::as_object).cloned().unwrap_or_default()
    };
    let changed = |case: &CardFixture| {
        let mut cases = Vec::new();
        for path in ["/config", "/config/text_config"] {
            let Some(part) = case.content().pointer(path) else { continue };
            for (alias, own) in aliases(part) {
                let own = own.as_str().unwrap();
                if part[own].is_null() || !part[alias.as_str()].is_null() {
                    continue;
                }
                let rename = |content: &mut Json| {
                    let part: &mut Map<String, Json> =
                        content.pointer_mut(path).unwrap().as_object_mut().unwrap();
                    let value = part.remove(own).unwrap();
                    part.insert(alias.clone(), value);
                };
                cases.push((format!("{}: {own} as {alias}", case.at), case.edited(rename)));
            }
        }
        cases
    };
    let cases = fixture::some(tier, 7).into_iter().filter(|case| !case.is_mistral() && !case.is_mmproj());
    let cases: Vec<_> = cases.map(|case| (changed(&case), case)).filter(|row| !row.0.is_empty()).collect();
    let content = |case: &CardFixture| {
        let conversion = planned(case, |_| {}).map_err(|error| error.to_string())?;
        Ok::<_, String>((keys(&conversion), conversion.tensors().to_vec()))
    };
    let wrong = cases.par_iter().flat_map_iter(|(changed, case)| {
        let plain = content(case);
        changed.iter().filter(move |(_, changed)| content(changed) != plain).map(|(at, _)| at)
    });
    let wrong: Vec<&String> = wrong.collect();
    assert!(wrong.is_empty() && cases.len() > tier.of(6, 20), "{} cases: {wrong:#?}", cases.len());
}

#[test]
fn towers_saved_inside_the_text_model_and_sizes_of_both_sides_are_read() {
    for (at, tower) in
        [("clip/granite4-vision.json", "model.vision_tower."), ("clip/mimo-v2.json", "visual.")]
    {
        let plain = planned(&fixture::case(at), |_| {}).unwrap();
        let case = fixture::case(at);
        assert!(case.has_name(|name| name.starts_with(tower)), "{at}");
        let inside = |name: &str| match name.strip_prefix(tower) {
            Some(rest) => format!("model.language_model.{}{rest}", tower.trim_start_matches("model.")),
            None => name.to_owned(),
        };
        let twice = |content: &mut Json| {
            let vision = content["config"]["vision_config"].as_object_mut().unwrap();
            for key in ["patch_size", "image_size"] {
                if let Some(side) = vision.get(key).cloned() {
                    vision.insert(key.to_owned(), json!([side, side]));
                }
            }
        };
        let changed = planned(&case.renamed(inside).edited(twice), |_| {}).unwrap();
        assert_eq!(keys(&changed), keys(&plain), "{at}");
        // The order by name is another one.
        let sorted = |conversion: &Conversion| {
            let mut tensors = conversion.tensors().to_vec();
            tensors.sort_by(|a, b| a.name.cmp(&b.name));
            tensors
        };
        assert_eq!(sorted(&changed), sorted(&plain), "{at}");
    }
}

/// The codes of a packed model are three values already: to round them would put their mean in place of the scale.
#[test]
fn packed_weights_of_bitnet_keep_their_scale() {
    let scale = half::bf16::from_f32(1.75).to_le_bytes();
    for (class, one) in [("autobitlinear", 1.75f32), ("bitlinear", 1.0 / 1.75)] {
        let packed = fixture::case("bitnet/names_of_transformers.json").edited(|content| {
            content["config"]["quantization_config"] =
                json!({ "quant_method": "bitnet", "linear_class": class });
            let tensors = content["tensors"].as_array_mut().unwrap();
            let linear = |row: &&mut Json| row[0].as_str().unwrap().ends_with("_proj.weight");
            for row in tensors.iter_mut().filter(linear) {
                row[1] = json!("U8");
                row[2][0] = json!(row[2][0].as_u64().unwrap() / 4);
            }
            let names = tensors.iter().filter(|row| row[1] == "U8").map(|row| row[0].as_str().unwrap());
            let scales: Vec<Json> = names.map(|name| json!([format!("{name}_scale"), "BF16", [1]])).collect();
            tensors.extend(scales);
        });
        let dir = tempfile::tempdir().unwrap();
        packed.write(dir.path());
        let path = dir.path().join("model.safetensors");
        let mut file = Safetensors::read(&path);
        for name in file.header().keys().cloned().collect::<Vec<_>>() {
            if name.ends_with("_scale") {
                file.data_mut(&name).copy_from_slice(&scale);
            } else if name.ends_with("_proj.weight") {
                // Codes 1, 0, 2, 1: the first quarter of the rows is 0, the second -1, the third +1, the last 0.
                file.data_mut(&name).fill(0b01_10_00_01);
            }
        }
        file.write(&path);
        let conversion = packed.plan(dir.path(), OutType::F32).unwrap();
        let index = conversion.tensors().iter().position(|meta| meta.name == "blk.1.attn_q.weight").unwrap();
        let mut bytes = vec![0; 64 * 64 * 4];
        conversion.read_rows(index, 0, &mut bytes).unwrap();
        let values: Vec<f32> = gguf_core::little_endian::f32s(&bytes).collect();
        for (quarter, want) in values.chunks(16 * 64).zip([0.0, -one, one, 0.0]) {
            assert!(quarter.iter().all(|&value| value == want), "{class}: {} is not {want}", quarter[0]);
        }
    }
}

/// What a program added to a linear layer is no tensor that may be left out.
#[test]
fn parts_of_linear_layers_are_not_to_be_dropped() {
    let matrix = "model.layers.0.self_attn.q_proj.weight";
    for part in ["weight_g_idx", "rms_norm.weight", "hadamard_matrix"] {
        let said = refusal(&llama().with(&format!("model.layers.0.self_attn.q_proj.{part}"), &[4]));
        assert!(said.contains(&format!("is a part of the linear layer of `{matrix}`")), "{said}");
        assert!(!said.contains("--drop") && !said.contains("nearest"), "{said}");
    }
}
