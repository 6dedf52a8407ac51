//! The account of a checkpoint: every file, key and tensor has a fate, and what no rule knows is said.

use gguf_conversion::{Conversion, ConvertOptions, Fate, Piece, PieceKind};
use gguf_testkit::checkpoints::write_zeros;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};
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
fn keys_that_only_code_beside_the_model_reads_are_told() {
    for (change, told) in [
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": 3}), Some("`odd_key`")),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": null}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "odd_key": []}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "rms_norm": true}), None),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "rms_norm": false}), Some("`rms_norm`")),
        (json!({"auto_map": {"AutoConfig": "x.Y"}, "use_flash_attn": true}), None),
        (json!({"model_type": "of_somebody", "odd_key": "a"}), Some("`odd_key`")),
        (json!({"position_embedding_type": "relative_key"}), Some("`position_embedding_type`")),
    ] {
        let (_, warnings) = account("llama/plain", |config| {
            config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        });
        let said = warnings.iter().find(|text| text.contains("no rule knows"));
        assert_eq!(said.is_some(), told.is_some(), "{change}: {warnings:?}");
        assert!(told.is_none_or(|name| said.unwrap().contains(name)), "{change}: {said:?}");
    }
}

two_tiers!(no_fixture_has_a_key_that_no_rule_knows);

/// Each key and each tensor has a fate, and no ordinary configuration has an unknown key.
fn no_fixture_has_a_key_that_no_rule_knows(tier: Tier) {
    let (mut n_keys, mut n_tensors, mut unknown) = (0, 0, Vec::new());
    for case in tier.some(5, files::below(fixture("cards"))) {
        let own = files::json(&case);
        if own["tensors"].is_null() || case.to_string_lossy().contains("/clip/") {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        write_zeros(dir.path(), &own);
        let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        let Ok(conversion) = Conversion::plan(dir.path(), &options) else { continue };
        for piece in conversion.account() {
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
        n_keys > tier.of(1000, 7000) && n_tensors > tier.of(2000, 16_000),
        "{n_keys} keys, {n_tensors} tensors"
    );
    // llama.cpp has no key for the window of PLaMo 2, and computes without it.
    unknown.retain(|text| !text.ends_with("Key attention_window_size"));
    assert!(unknown.is_empty(), "{unknown:#?}");
}
