//! Special tokens: each source of each role, changed in every way.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_conversion::{Conversion, ConvertOptions};
use gguf_format::{Array, Metadata, ModeRequest, RankCode, Value};
use gguf_tokenizer::{Mode, TokenizerRequest, build};
use serde_json::{Value as Json, json};

use super::{ABSENT, Model, number, only_warning, set};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};

const EOS: &str = "tokenizer.ggml.eos_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

const KEYS: [(&str, &str); 4] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", EOS),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("pad", PAD),
];

/// Vocabularies of every kind whose roles come from files.
const VOCABULARIES: &[(&str, &[Mode])] = &[
    ("tiny-llama", &[Mode::Bpe]),
    ("vocab/arctic", &[Mode::SpmArctic]),
    ("vocab/bert", &[Mode::WordPiece]),
    ("vocab/gemma4", &[Mode::Gemma4]),
    ("vocab/kimi", &[Mode::Tiktoken]),
    ("vocab/phi3", &[Mode::SpmPhi3]),
    ("vocab/plamo2", &[Mode::Plamo]),
    ("vocab/whitespace", &[Mode::Whitespace]),
    ("vocab/xlmr_json", &[Mode::Xlmr]),
];

/// Keys and warnings for a folder.
fn built(dir: &Path, modes: &[Mode]) -> Result<(Metadata, Vec<String>), String> {
    let mode = |mode: &Mode| {
        let mut request = ModeRequest::new(*mode);
        request.rank_code = (*mode == Mode::Tiktoken).then_some(RankCode::KimiK2);
        request
    };
    let config = files::json(dir.join("config.json"));
    let request = TokenizerRequest {
        modes: modes.iter().map(mode).collect(),
        size: config["vocab_size"].as_u64(),
        rows: config["vocab_size"].as_u64(),
        ..TokenizerRequest::default()
    };
    let built = build(dir, &request).map_err(|error| error.to_string())?;
    Ok((built.rows, built.warnings.iter().map(ToString::to_string).collect()))
}

/// Ids of the roles in a file's keys.
fn ids(rows: &Metadata) -> BTreeMap<&'static str, Option<u64>> {
    KEYS.iter().map(|(role, key)| (*role, rows.get(key).and_then(Value::as_u64))).collect()
}

fn tokens(rows: &Metadata) -> Vec<Vec<u8>> {
    match rows.get("tokenizer.ggml.tokens").and_then(Value::as_array) {
        Some(Array::String(tokens)) => tokens.clone(),
        _ => panic!("no tokens"),
    }
}

/// Text of a role in the tokenizer's configuration.
fn text_of(dir: &Path, key: &str) -> Option<String> {
    let text = fs_err::read(dir.join("tokenizer_config.json")).ok()?;
    let json: Json = serde_json::from_slice(&text).unwrap();
    let entry = &json[key];
    entry.as_str().or_else(|| entry["content"].as_str()).map(str::to_owned)
}

#[derive(Debug, Default)]
struct Counts {
    right: usize,
    warned: usize,
    refused: usize,
    silent: Vec<String>,
}

two_tiers!(no_change_of_a_source_is_settled_in_silence);
fn no_change_of_a_source_is_settled_in_silence(tier: Tier) {
    let (mut counts, mut n_changes) = (Counts::default(), 0);
    for (name, modes) in VOCABULARIES {
        let healthy = built(&fixture(name), modes).unwrap();
        let all = tokens(&healthy.0);
        let size = all.len() as u64;
        for (role, _) in KEYS {
            let before = ids(&healthy.0)[role];
            let is_text = |id: &u64| {
                let text = &all[*id as usize];
                text.is_ascii() && !text.is_empty() && !text.starts_with(b"[PAD")
            };
            let other = (0..size).rev().find(|id| Some(*id) != before && is_text(id)).unwrap();
            let other_text = String::from_utf8_lossy(&all[other as usize]).into_owned();
            let (text_key, id_key) = (format!("{role}_token"), format!("{role}_token_id"));
            let ids_of = |values: &[Json]| -> Vec<(&'static str, String, Json)> {
                ["config.json", "generation_config.json"]
                    .into_iter()
                    .flat_map(|file| values.iter().map(move |value| (file, value.clone())))
                    .map(|(file, value)| (file, id_key.clone(), value))
                    .collect()
            };
            let mut changes = ids_of(&[
                json!(ABSENT),
                Json::Null,
                json!(-1),
                json!(size),
                json!(1u64 << 40),
                json!(other),
                json!([other]),
                json!([size, other]),
                json!("text"),
                json!([]),
            ]);
            // These two have no key if llama.cpp's converter does not find their token.
            let is_judged = text_key != "unk_token" && text_key != "pad_token";
            for value in [json!(ABSENT), Json::Null, json!("<|no such token|>"), json!(other_text)] {
                if !is_judged {
                    continue;
                }
                changes.push(("tokenizer_config.json", text_key.clone(), value));
            }
            for (file, key, value) in changes {
                n_changes += 1;
                // Every day, other changes of each role.
                if n_changes % tier.of(7, 1) != 0 {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                files::copy(fixture(name), dir.path());
                set(dir.path(), file, &[(&key, value.clone())]);
                let label = format!("{name}: {file} {key} = {value}, was {before:?}");
                let (rows, warnings) = match built(dir.path(), modes) {
                    Ok(found) => found,
                    Err(error) => {
                        // A new token may have the text of another one as the runtime spells it.
                        assert!(error.contains(&key) || error.contains("are both"), "{label}: {error}");
                        counts.refused += 1;
                        continue;
                    }
                };
                let after = ids(&rows);
                let is_said = warnings.iter().any(|warning| {
                    !healthy.1.contains(warning) && (warning.contains(&key) || warning.contains(&text_key))
                });
                let says_nothing = value.is_null()
                    || value.as_str() == Some(ABSENT)
                    || value.as_array().is_some_and(Vec::is_empty);
                // The new value is used, or the file has no value and nothing changed.
                let named = value.as_u64().or_else(|| value.as_array()?.iter().find_map(Json::as_u64));
                let named = named.or_else(|| (value == json!(other_text)).then_some(other));
                let spelled =
                    after[role].map(|id| String::from_utf8_lossy(&tokens(&rows)[id as usize]).into_owned());
                let of_tokenizer = text_of(dir.path(), &text_key);
                let is_right = match named {
                    Some(id) => after[role] == Some(id),
                    None => says_nothing && (after[role] == before || spelled == of_tokenizer),
                };
                // A token without a row gets the next free id, as in transformers.
                let is_right =
                    is_right || (file == "tokenizer_config.json" && spelled.as_deref() == value.as_str());
                // An optional role that no file names any more, or that is only named by its id.
                let is_gone = ["unk", "pad"].contains(&role)
                    && after[role].is_none()
                    && (says_nothing || before.is_none());
                if is_said {
                    counts.warned += 1;
                } else if is_right || is_gone || is_default(&rows, role) {
                    counts.right += 1;
                } else {
                    counts.silent.push(format!("{label}, is {:?}: {warnings:?}", after[role]));
                }
                for (other, id) in after.iter().filter(|row| *row.0 != role) {
                    assert_eq!(*id, ids(&healthy.0)[other], "{label}: {other}");
                }
            }
        }
    }
    assert!(counts.silent.is_empty(), "{} silent\n{}", counts.silent.len(), counts.silent.join("\n"));
    let (n_warned, n_right) = tier.of((20, 8), (300, 150));
    assert!(counts.warned > n_warned && counts.right > n_right, "{counts:?}");
}

/// Returns true if the runtime's default for a role is right without a key.
fn is_default(rows: &Metadata, role: &str) -> bool {
    let model = rows.get("tokenizer.ggml.model").and_then(Value::as_str).unwrap();
    match (model, role) {
        // In these kinds no text begins with a special token.
        ("bert" | "t5" | "gemma4" | "llama" | "plamo2", "bos") => true,
        // Encoders do not generate text.
        (kind, "eos") => matches!(kind, "bert" | "llama" | "plamo2" | "t5"),
        // Texts begin with it only if a key says so.
        ("gpt2" | "whitespace", "bos") => rows.get(ADD_BOS).and_then(Value::as_bool) != Some(true),
        _ => false,
    }
}

#[test]
fn a_source_behind_the_others_fills_a_role() {
    let without = |model: &Model| {
        model.set("tokenizer_config.json", &[("eos_token", json!(ABSENT))]);
        model.set("config.json", &[("eos_token_id", Json::Null)]);
        model.set("generation_config.json", &[("eos_token_id", json!(ABSENT))]);
    };
    for (file, value, want) in [
        ("generation_config.json", json!([281, 282]), Some(281)),
        ("generation_config.json", json!(282), Some(282)),
        ("generation_config.json", json!([9999, 282]), Some(282)),
        ("config.json", json!([7, 8]), Some(7)),
        ("config.json", json!(3.0), Some(3)),
        ("config.json", json!([]), None),
        ("generation_config.json", json!("x"), None),
    ] {
        let model = Model::new();
        without(&model);
        model.set(file, &[("eos_token_id", value.clone())]);
        let conversion = model.planned();
        assert_eq!(number(&conversion, EOS), want, "{file} {value}");
        let missing = conversion.warnings().iter().any(|warning| warning.starts_with("no end token"));
        assert_eq!(missing, want.is_none(), "{:?}", conversion.warnings());
    }
    let model = Model::new();
    without(&model);
    let options = ConvertOptions { set: vec![(EOS.to_owned(), Value::U32(3))], ..ConvertOptions::default() };
    assert!(Conversion::plan(model.path(), &options).unwrap().warnings().is_empty());
    let warning = only_warning(&model.planned());
    assert!(warning.contains("so llama.cpp takes token 11 "), "{warning}");
}

#[test]
fn two_files_with_two_end_tokens_are_both_named() {
    let model = Model::new();
    model.set("config.json", &[("eos_token_id", json!(5))]);
    let conversion = model.planned();
    assert_eq!(number(&conversion, EOS), Some(1));
    let warning = only_warning(&conversion);
    let start = "files disagree about special tokens; written are: `eos` is 1 `</s>` in tokenizer_config.json (`eos_token`), not 5 `";
    assert!(
        warning.starts_with(start) && warning.ends_with("` in config.json (`eos_token_id`)"),
        "{warning}"
    );
    // A list with the same token agrees; its other members end texts only in transformers.
    let model = Model::new();
    model.set("generation_config.json", &[("eos_token_id", json!([1, 300]))]);
    let warning = only_warning(&model.planned());
    assert!(warning.starts_with("generation_config.json: `eos_token_id` also has 300 `"), "{warning}");
}

#[test]
fn a_value_that_is_no_token_is_named_and_left_out() {
    for (value, want) in [
        (json!(-1), "config.json: `pad_token_id` is `-1`, which is no token id: left out, "),
        (
            json!(1024),
            "config.json: `pad_token_id` is `1024`, beyond the vocabulary of 1024 tokens: left out, ",
        ),
        (
            json!(true),
            "config.json: `pad_token_id` is `true`, which is neither a token id nor a list of them: left out, ",
        ),
    ] {
        let model = Model::new();
        model.set("config.json", &[("pad_token_id", value)]);
        let conversion = model.planned();
        assert_eq!(number(&conversion, PAD), None);
        let warning = only_warning(&conversion);
        assert!(warning.starts_with(want), "{warning}");
    }
    let model = Model::new();
    model.set("tokenizer_config.json", &[("pad_token", json!("<|pad|>"))]);
    let conversion = model.planned();
    assert_eq!(number(&conversion, PAD), None);
    assert_eq!(
        only_warning(&conversion),
        "tokenizer_config.json: `pad_token` is `<|pad|>`, which no token of the vocabulary is: left out, \
         `tokenizer.ggml.padding_token_id` is not written"
    );
    let model = Model::new();
    let token = json!({"content": "<extra>", "special": true});
    model.set("tokenizer_config.json", &[("added_tokens_decoder", json!({"1024": token}))]);
    let warning = only_warning(&model.planned());
    assert!(
        warning.starts_with("tokenizer_config.json: `<extra>` of `added_tokens_decoder` is not in"),
        "{warning}"
    );
}

#[test]
fn numbers_that_only_python_writes_are_read() {
    let model = Model::new();
    let text = fs_err::read_to_string(model.path().join("config.json")).unwrap();
    model.write("config.json", &text.replacen('{', r#"{"time_step_limit": [0.0, Infinity], "#, 1));
    assert!(model.planned().warnings().is_empty());
}

#[test]
fn a_token_that_is_not_there_is_not_added() {
    let model = Model::new();
    model.set("tokenizer_config.json", &[("bos_token", json!(ABSENT))]);
    model.set("config.json", &[("bos_token_id", json!(ABSENT))]);
    model.set("generation_config.json", &[("bos_token_id", json!(ABSENT))]);
    model.set("tokenizer.json", &[("post_processor", Json::Null)]);
    let conversion = model.planned();
    assert_eq!(conversion.metadata().get(ADD_BOS).and_then(Value::as_bool), Some(false));
    let warning = only_warning(&conversion);
    assert!(warning.contains(ADD_BOS) && warning.contains("llama.cpp would take 11 "), "{warning}");
    let model = Model::new();
    model.set("tokenizer_config.json", &[("add_bos_token", json!(false))]);
    let conversion = model.planned();
    assert_eq!(conversion.metadata().get(ADD_BOS).and_then(Value::as_bool), Some(true));
    assert!(only_warning(&conversion).starts_with("tokenizer_config.json: `add_bos_token` is false, but"));
}

#[test]
fn a_context_length_of_null_is_the_default_of_the_class() {
    let model = Model::new();
    model.set("config.json", &[("max_position_embeddings", Json::Null)]);
    let conversion = model.planned();
    assert_eq!(number(&conversion, "llama.context_length"), Some(2048));
    assert!(conversion.warnings().is_empty());
    model.set("config.json", &[("model_type", json!("of_no_class"))]);
    let warnings = model.planned().warnings().join("\n");
    assert!(
        warnings.contains("(`max_position_embeddings`), and llama.cpp loads no file without"),
        "{warnings}"
    );
}
