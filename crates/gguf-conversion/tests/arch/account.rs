//! The account of a checkpoint: every file, key and tensor has a fate, and what no rule knows is said.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_conversion::{Conversion, ConvertOptions, Fate, Piece, PieceKind};
use gguf_testkit::checkpoints::write_zeros;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};
use regex::Regex;
use serde_json::{Value as Json, json};

/// Account and warnings of a fixture whose configuration is changed.
fn account(case: &str, change: impl FnOnce(&mut Json)) -> (Vec<Piece>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    write_zeros(dir.path(), &files::json(fixture(&format!("cards/{case}.json"))));
    files::edit_json(dir.path().join("config.json"), change);
    fs_err::write(dir.path().join("weird.dat"), "x").unwrap();
    fs_err::write(dir.path().join("LICENSE"), "x").unwrap();
    let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
    let conversion = Conversion::plan(dir.path(), &options).unwrap();
    (conversion.account(), conversion.warnings().to_vec())
}

fn fate(account: &[Piece], kind: PieceKind, name: &str) -> (Fate, Vec<String>) {
    let found: Vec<&Piece> =
        account.iter().filter(|piece| piece.kind == kind && piece.name == name).collect();
    let [piece] = found[..] else { panic!("{name}: {} fates", found.len()) };
    assert_eq!(piece.why.is_none(), piece.fate == Fate::Written, "{piece:?}");
    (piece.fate, piece.to.clone())
}

#[test]
fn every_piece_has_one_fate() {
    let (account, warnings) = account("llama/plain", |config| {
        config["rope_theta"] = 5e5.into();
        config["torch_dtype"] = "bfloat16".into();
        config["odd_key"] = 3.into();
    });
    let key = |name: &str| fate(&account, PieceKind::Key, name);
    assert_eq!(key("rope_theta"), (Fate::Written, vec!["llama.rope.freq_base".to_owned()]));
    assert_eq!(key("torch_dtype").0, Fate::WithoutEffect);
    // transformers' own class of `llama` does not read it.
    assert_eq!(key("odd_key").0, Fate::WithoutEffect);
    assert!(warnings.iter().all(|text| !text.contains("no rule knows")), "{warnings:?}");
    let file = |name: &str| fate(&account, PieceKind::File, name).0;
    assert_eq!(
        [file("config.json"), file("LICENSE"), file("weird.dat")],
        [Fate::Written, Fate::WithoutEffect, Fate::Unknown]
    );
    let (made, to) = fate(&account, PieceKind::Tensor, "model.embed_tokens.weight");
    assert_eq!((made, to), (Fate::Written, vec!["token_embd.weight".to_owned()]));
}

#[test]
fn members_of_rope_parameters_have_fates_of_their_own() {
    let yarn = |rope_type: &str| json!({"rope_type": rope_type, "factor": 4.0, "original_max_position_embeddings": 128, "beta_slow": null, "odd": 1});
    let (found, _) = account("llama/plain", |config| config["rope_scaling"] = yarn("yarn"));
    let key = |name: &str| fate(&found, PieceKind::Key, &format!("rope_scaling.{name}"));
    let (written, to) = key("factor");
    assert!(written == Fate::Written && to.contains(&"llama.rope.scaling.factor".to_owned()), "{to:?}");
    assert_eq!([key("beta_slow").0, key("odd").0], [Fate::WithoutEffect; 2]);
    assert_eq!(key("rope_type").0, Fate::Written);
    assert!(found.iter().all(|piece| piece.name != "rope_scaling"));
    // With the type, its members are lost.
    let (found, _) = account("qwen2/plain", |config| {
        config["rope_parameters"] = yarn("llama3");
        config["rope_parameters"]["rope_theta"] = 5e5.into();
    });
    let key = |name: &str| fate(&found, PieceKind::Key, &format!("rope_parameters.{name}")).0;
    assert_eq!(
        [key("rope_type"), key("factor"), key("rope_theta")],
        [Fate::LeftOut, Fate::LeftOut, Fate::Written]
    );
}

#[test]
fn tensors_of_an_option_and_of_other_parts_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut case = files::json(fixture("cards/llama/plain.json"));
    let rows = case["tensors"].as_array_mut().unwrap();
    for name in ["extra.0.weight", "vision_tower.a.weight", "v_head.weight"] {
        rows.push(json!([name, "BF16", [4, 4]]));
    }
    write_zeros(dir.path(), &case);
    let drop = vec![Regex::new("^extra").unwrap()];
    let options = ConvertOptions { tokenizer: false, drop, ..ConvertOptions::default() };
    let conversion = Conversion::plan(dir.path(), &options).unwrap();
    let account = conversion.account();
    let tensor = |name: &str| {
        let piece =
            account.iter().find(|piece| piece.kind == PieceKind::Tensor && piece.name == name).unwrap();
        (piece.fate, piece.why.clone().unwrap())
    };
    assert_eq!(tensor("extra.0.weight"), (Fate::LeftOut, "`--drop ^extra` leaves it out".to_owned()));
    assert_eq!(tensor("vision_tower.a.weight"), (Fate::LeftOut, "belongs to another modality".to_owned()));
    assert_eq!(tensor("v_head.weight").0, Fate::WithoutEffect);
    let lost = conversion.lost();
    let [dropped, tower] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(
        tower,
        "1 tensor of the checkpoint left out (`--drop ^extra` leaves it out): `extra.0.weight`"
    );
    assert!(dropped.ends_with("(belongs to another modality): `vision_tower.a.weight`"), "{dropped}");
}

#[test]
fn keys_that_only_code_beside_the_model_reads_are_told() {
    for (change, told) in [
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": 3}), Some("`odd_key`")),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": null}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": []}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "rms_norm": true}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "rms_norm": false}), Some("`rms_norm`")),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "use_flash_attn": true}), None),
        (json!({"model_type": "of_somebody", "odd_key": "a"}), Some("`odd_key`")),
        (
            json!({"model_type": "of_somebody", "position_embedding_type": "relative_key"}),
            Some("`position_embedding_type`"),
        ),
        (json!({"position_embedding_type": "relative_key"}), None),
    ] {
        let (_, warnings) = account("llama/plain", |config| {
            config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        });
        let said = warnings.iter().find(|text| text.contains("no rule knows"));
        assert_eq!(said.is_some(), told.is_some(), "{change}: {warnings:?}");
        assert!(told.is_none_or(|name| said.unwrap().contains(name)), "{change}: {said:?}");
    }
}

#[test]
fn keys_of_released_configurations_pass_in_silence() {
    // Keys as releases have them, beside code of their own; then another value, which the file does not compute.
    for (case, keys, other) in [
        (
            "llama/plain",
            json!({"ep_size": 1, "seq_aux": true, "aux_loss_alpha": 0.001, "max_tokenizer_truncation": 6144}),
            None,
        ),
        (
            "phi3/phi3",
            json!({"full_attn_mod": 1, "interpolate_factor": 1}),
            Some(("full_attn_mod", json!(2))),
        ),
        (
            "gemma2/gemma2",
            json!({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": false}),
            None,
        ),
        (
            "chatglm/own_names",
            json!({"add_bias_linear": false, "apply_residual_connection_post_layernorm": false, "original_rope": true, "quantization_bit": 0}),
            Some(("post_layer_norm", json!(false))),
        ),
        (
            "nomic-bert/nomic_bert",
            json!({"scale_attn_weights": true, "fused_bias_fc": true, "parallel_block": false, "use_rms_norm": false}),
            Some(("use_rms_norm", json!(true))),
        ),
        (
            "openelm/openelm",
            json!({"activation_fn_name": "swish", "ffn_with_glu": true, "normalization_layer_name": "rms_norm"}),
            Some(("ffn_with_glu", json!(false))),
        ),
        (
            "llada/llada",
            json!({"block_type": "llama", "layer_norm_type": "rms", "rope": true, "scale_logits": false, "init_fn": "mitchell"}),
            Some(("scale_logits", json!(true))),
        ),
        (
            "bailingmoe/bailing_moe",
            json!({"norm_softmax": false, "router_dtype": "fp32", "use_sliding_window": false, "sliding_window": 40, "max_window_layers": 28}),
            Some(("norm_softmax", json!(true))),
        ),
        (
            "rwkv7/rwkv7_small",
            json!({"hidden_act": "sqrelu", "attn_mode": "chunk", "fuse_norm": true, "hidden_ratio": 4.0}),
            Some(("hidden_act", json!("relu"))),
        ),
        ("granitehybrid/granitemoehybrid", json!({"position_embedding_type": "nope"}), None),
        (
            "qwen/plain",
            json!({"use_logn_attn": true, "use_dynamic_ntk": true, "scale_attn_weights": true}),
            None,
        ),
        (
            "minimax-m2/minimax_m2_small",
            json!({"qk_norm_type": "per_layer", "use_mtp": true, "num_mtp_modules": 3, "postnorm": false}),
            Some(("qk_norm_type", json!("per_head"))),
        ),
    ] {
        let warnings = |keys: &Json| {
            let (_, warnings) = account(case, |config| {
                // Gemma 2 has no code of its own.
                if case != "gemma2/gemma2" {
                    config["auto_map"] = json!({"AutoConfig": "x.Y"});
                }
                config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            });
            warnings
        };
        let before = warnings(&json!({}));
        let said = warnings(&keys);
        assert_eq!(said, before, "{case}");
        if let Some((key, value)) = other {
            let said = warnings(&json!({key: value}));
            assert!(said.iter().any(|text| text.contains(key)), "{case}, {key}: {said:?}");
        }
    }
}

/// Files that a published folder has beside `config.json` and the weights, with keys by their fate.
fn beside() -> Vec<(&'static str, Json)> {
    vec![
        (
            "generation_config.json",
            json!({
                "written": {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 1},
                "without-effect": {"do_sample": true, "max_new_tokens": 9, "top_k": null, "_from_model_config": true},
            }),
        ),
        (
            "special_tokens_map.json",
            json!({
                "written": {"bos_token": "<s>", "additional_special_tokens": ["</s>"]},
                "left-out": {"image_token": "<image>"},
            }),
        ),
        (
            "tokenizer_config.json",
            json!({
                "written": {"bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": true},
                "without-effect": {"model_max_length": 99, "padding_side": "left", "of_tomorrow": {"a": 1}, "legacy": null},
                "left-out": {"split_special_tokens": true},
            }),
        ),
        ("preprocessor_config.json", json!({"without-effect": {"image_mean": [0.5], "do_resize": true}})),
        ("processor_config.json", json!({"without-effect": {"image_seq_length": 4}})),
        (
            "config_sentence_transformers.json",
            json!({
                "without-effect": {"__version__": {"pytorch": "2"}, "prompts": {"query": "q: "}, "similarity_fn_name": "cosine"},
                "left-out": {"truncate_dim": 8, "default_prompt_name": "query"},
            }),
        ),
        (
            "sentence_bert_config.json",
            json!({
                "without-effect": {"max_seq_length": 512}, "left-out": {"do_lower_case": true},
            }),
        ),
        (
            "1_Pooling/config.json",
            json!({

                "without-effect": {"word_embedding_dimension": 8},
                "left-out": {"include_prompt": false, "pooling_mode_mean_tokens": true},
            }),
        ),
        ("2_Dense/config.json", json!({})),
        ("quantize_config.json", json!({"written": {"bits": 4}, "without-effect": {"damp_percent": 0.1}})),
    ]
}

/// Writes files whose keys are given by their fate, and returns the fates by file and key.
fn write_beside(dir: &Path) -> BTreeMap<(String, String), String> {
    let mut want = BTreeMap::new();
    for (file, by_fate) in beside() {
        let mut all = serde_json::Map::new();
        for (fate, keys) in by_fate.as_object().unwrap() {
            for (key, value) in keys.as_object().unwrap() {
                want.insert((file.to_owned(), key.clone()), fate.clone());
                all.insert(key.clone(), value.clone());
            }
        }
        let path = dir.join(file);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, Json::Object(all).to_string()).unwrap();
    }
    let of = |class: &str, path: &str| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
    let modules =
        [of("Transformer", ""), of("Pooling", "1_Pooling"), of("Dense", "2_Dense"), of("Whitening", "3_W")];
    fs_err::write(dir.join("modules.json"), json!(modules).to_string()).unwrap();
    for (module, fate) in
        [("Transformer", "written"), ("1_Pooling", "written"), ("2_Dense", "left-out"), ("3_W", "left-out")]
    {
        want.insert(("modules.json".to_owned(), module.to_owned()), fate.to_owned());
    }
    want
}

fn tiny(dir: &Path) {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.join(name)).unwrap();
    }
}

#[test]
fn every_key_of_every_json_has_one_fate() {
    let dir = tempfile::tempdir().unwrap();
    tiny(dir.path());
    let want = write_beside(dir.path());
    let conversion = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap();
    let account = conversion.account();
    for ((file, key), fate) in &want {
        let own: Vec<&Piece> = account
            .iter()
            .filter(|piece| {
                piece.file.as_ref() == Some(file) && piece.name == *key && piece.kind == PieceKind::Key
            })
            .collect();
        let [piece] = own[..] else { panic!("{file}: {key}: {own:?}") };
        assert_eq!(json!(piece.fate), *fate, "{piece:?}");
        assert_eq!(piece.why.is_none(), piece.fate == Fate::Written, "{piece:?}");
    }
    let temperature = account.iter().find(|piece| piece.name == "temperature").unwrap();
    assert_eq!(temperature.to, ["general.sampling.temp"]);
    // What is left out is a warning, or was told by the reader.
    for piece in account.iter().filter(|piece| piece.fate == Fate::LeftOut && piece.kind == PieceKind::Key) {
        let is_told = conversion.warnings().iter().any(|text| {
            text.contains(&format!("`{}`", piece.name)) || text.contains(piece.why.as_ref().unwrap())
        });
        assert!(is_told, "{piece:?}: {:#?}", conversion.warnings());
    }
    for member in ["model.vocab", "model.merges", "pre_tokenizer", "decoder", "added_tokens", "version"] {
        let own = |piece: &&Piece| piece.file.as_deref() == Some("tokenizer.json") && piece.name == member;
        assert_eq!(account.iter().filter(own).count(), 1, "{member}");
    }
    let unknown: Vec<_> = account.iter().filter(|piece| piece.fate == Fate::Unknown).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let names: Vec<_> = account.iter().map(|piece| (piece.kind as u8, &piece.file, &piece.name)).collect();
    let twice = names.iter().enumerate().find(|(at, own)| names[..*at].contains(own));
    assert_eq!(twice, None);
}

#[test]
fn what_no_rule_knows_of_a_tokenizer_or_a_quantization_is_told() {
    let code = json!({"AutoTokenizer": ["x.Y", null]});
    for (file, change, told) in [
        (
            "tokenizer.json",
            json!({"normalizer": {"type": "NFC", "of_tomorrow": 1}}),
            "tokenizer.json: a key that no rule knows: `normalizer.of_tomorrow`",
        ),
        ("tokenizer.json", json!({"of_tomorrow": false, "padding": {"length": 3}}), ""),
        (
            "tokenizer_config.json",
            json!({"odd": 1, "even": 2, "auto_map": code}),
            "keys that no rule knows: `odd`, `even`",
        ),
        ("tokenizer_config.json", json!({"odd": 1}), ""),
        ("tokenizer_config.json", json!({"odd": null, "auto_map": code}), ""),
        ("tokenizer_config.json", json!({"image_token": "<i>", "auto_map": code}), ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        tiny(dir.path());
        let path = dir.path().join(file);
        let mut own = if path.exists() { files::json(&path) } else { json!({}) };
        own.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        fs_err::write(&path, own.to_string()).unwrap();
        let conversion = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap();
        let said = conversion.warnings().iter().find(|text| text.contains("no rule knows"));
        assert_eq!(said.is_some(), !told.is_empty(), "{change}: {:?}", conversion.warnings());
        assert!(said.is_none_or(|text| text.contains(told)), "{change}: {said:?}");
    }
}

two_tiers!(no_fixture_has_a_key_that_no_rule_knows);

/// Each key and each tensor has a fate, and no ordinary configuration has an unknown key.
fn no_fixture_has_a_key_that_no_rule_knows(tier: Tier) {
    let (mut n_keys, mut n_tensors, mut unknown) = (0, 0, Vec::new());
    for case in tier.some(15, files::below(fixture("cards"))) {
        let own = files::json(&case);
        if own["tensors"].is_null() || case.to_string_lossy().contains("/clip/") {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        write_zeros(dir.path(), &own);
        let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        let Ok(conversion) = Conversion::plan(dir.path(), &options) else { continue };
        let mut seen = std::collections::HashSet::new();
        for piece in conversion.account() {
            assert!(
                seen.insert((piece.kind as u8, piece.file.clone(), piece.name.clone())),
                "{}: {piece:?}",
                case.display()
            );
            match piece.kind {
                PieceKind::Key => n_keys += 1,
                PieceKind::Tensor => n_tensors += 1,
                PieceKind::File => {}
            }
            if piece.fate == Fate::Unknown {
                unknown.push(format!("{}: {:?} {}", case.display(), piece.kind, piece.name));
            }
        }
    }
    println!("{n_keys} keys, {n_tensors} tensors");
    assert!(
        n_keys > tier.of(350, 7000) && n_tensors > tier.of(700, 16_000),
        "{n_keys} keys, {n_tensors} tensors"
    );
    // llama.cpp has no key for the window of PLaMo 2, and computes without it.
    unknown.retain(|text| !text.ends_with("Key attention_window_size"));
    assert!(unknown.is_empty(), "{unknown:#?}");
}
