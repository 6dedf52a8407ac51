//! Modes with their own files: keys compared with llama.cpp's converter and ids with the original tokenizers, on small
//! vocabularies (`lab/peers/vocab_modes.py`).

use std::path::PathBuf;

use gguf_format::{Metadata, ModeRequest, RankCode};
use gguf_tokenizer::{Encoder, Mode, TokenizerRequest, TokenizerWarning, build, to_hf};
use serde_json::{Value as Json, json};

use gguf_testkit::{files, fixture, in_json};

/// Request of a card for a case.
struct Case {
    name: &'static str,
    arch: &'static str,
    modes: &'static [Mode],
    code: Option<RankCode>,
    /// Number of segments, before the tokens.
    segments: Option<u32>,
    /// Keys after the mode's own.
    after: &'static [(&'static str, u32)],
    mistral_format: bool,
    /// Keys that the reference lacks, with which the ids are those of the originals.
    more: &'static [&'static str],
}

const CASE: Case = Case {
    name: "",
    arch: "llama",
    modes: &[],
    code: None,
    segments: None,
    after: &[],
    mistral_format: false,
    more: &[],
};

/// Roles and settings of BERT's class, which `vocab.txt` stands for.
const OF_LINES: &[&str] = &[
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.normalizer.lowercase",
];

const CASES: &[Case] = &[
    Case { name: "bert", arch: "bert", modes: &[Mode::Xlmr, Mode::WordPiece], segments: Some(2), ..CASE },
    Case {
        name: "bert_lines",
        arch: "bert",
        modes: &[Mode::WordPiece],
        segments: Some(2),
        more: OF_LINES,
        ..CASE
    },
    Case {
        name: "xlmr",
        arch: "bert",
        modes: &[Mode::Xlmr],
        segments: Some(1),
        more: &["tokenizer.ggml.unknown_token_id"],
        ..CASE
    },
    Case {
        name: "xlmr_json",
        arch: "bert",
        modes: &[Mode::WordPiece, Mode::Xlmr],
        segments: Some(1),
        ..CASE
    },
    Case { name: "gemma4", arch: "gemma4", modes: &[Mode::Gemma4], ..CASE },
    Case { name: "rwkv", arch: "rwkv6", modes: &[Mode::RwkvWorld], ..CASE },
    Case { name: "plamo2", arch: "plamo2", modes: &[Mode::Plamo], ..CASE },
    Case { name: "mistral_tekken", modes: &[Mode::Mistral], ..CASE },
    Case { name: "mistral_tekken_v7", modes: &[Mode::Mistral], mistral_format: true, ..CASE },
    Case { name: "mistral_spm", modes: &[Mode::Mistral], mistral_format: true, ..CASE },
    Case { name: "phi3", arch: "phi3", modes: &[Mode::SpmPhi3], ..CASE },
    Case { name: "arctic", arch: "arctic", modes: &[Mode::SpmArctic], ..CASE },
    Case {
        name: "stablelm",
        arch: "stablelm",
        modes: &[Mode::Bpe, Mode::Tiktoken],
        code: Some(RankCode::StableLm),
        ..CASE
    },
    Case {
        name: "hunyuan",
        arch: "hunyuan-moe",
        modes: &[Mode::Tiktoken],
        code: Some(RankCode::Hunyuan),
        after: &[("tokenizer.ggml.bos_token_id", 127_959)],
        ..CASE
    },
    Case {
        name: "kimi",
        arch: "deepseek2",
        modes: &[Mode::Bpe, Mode::Tiktoken],
        code: Some(RankCode::KimiK2),
        ..CASE
    },
    Case {
        name: "kimi_linear",
        arch: "kimi-linear",
        modes: &[Mode::Bpe, Mode::Tiktoken],
        code: Some(RankCode::KimiLinear),
        ..CASE
    },
    Case { name: "hybriddna", modes: &[Mode::HybridDna], ..CASE },
    Case {
        name: "whitespace",
        arch: "jina-bert-v2",
        modes: &[Mode::Whitespace],
        after: &[("tokenizer.ggml.token_type_count", 2)],
        ..CASE
    },
];

fn directory(name: &str) -> PathBuf {
    fixture("vocab").join(name)
}

fn request(case: &Case) -> TokenizerRequest {
    let mode = |mode: &Mode| {
        let mut request = ModeRequest::new(*mode);
        request.rank_code = case.code;
        for (key, value) in case.after {
            request.after.set(*key, *value);
        }
        request
    };
    let mut request =
        TokenizerRequest { modes: case.modes.iter().map(mode).collect(), ..TokenizerRequest::default() };
    let config = directory(case.name).join("config.json");
    if config.is_file() {
        request.size = files::json(config)["vocab_size"].as_u64();
    }
    if let Some(segments) = case.segments {
        request.before.set("tokenizer.ggml.token_type_count", segments);
    }
    case.arch.clone_into(&mut request.architecture);
    request.mistral_format = case.mistral_format;
    request
}

fn keys(case: &Case) -> Metadata {
    build(&directory(case.name), &request(case)).unwrap_or_else(|error| panic!("{}: {error}", case.name)).rows
}

#[test]
fn keys_equal_those_of_the_reference() {
    for case in CASES {
        let expect = files::json(directory(case.name).join("expect.json"));
        let expect = expect.as_array().unwrap();
        let mut rows = keys(case);
        for key in case.more {
            assert!(rows.remove(key).is_some(), "{}: {key}", case.name);
        }
        let found: Vec<&str> = rows.iter().map(|row| row.0).collect();
        let names: Vec<&str> = expect.iter().map(|row| row[0].as_str().unwrap()).collect();
        assert_eq!(found, names, "{}", case.name);
        for ((key, value), row) in rows.iter().zip(expect) {
            let (kind, value) = in_json(value);
            assert_eq!(kind, row[1], "{}: {key}", case.name);
            if value == row[2] {
                continue;
            }
            let (ours, theirs) = (value.as_array().unwrap(), row[2].as_array().unwrap());
            assert_eq!(ours.len(), theirs.len(), "{}: {key}", case.name);
            let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs).unwrap();
            panic!("{}: {key}[{at}]: {} {}", case.name, ours[at], theirs[at]);
        }
    }
}

#[test]
fn ids_equal_those_of_the_originals() {
    let (mut n_texts, mut problems) = (0, Vec::new());
    for case in CASES {
        let encoder =
            Encoder::from_metadata(&keys(case)).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let texts = files::json(directory(case.name).join("ids.json"));
        for (text, row) in texts.as_object().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
            let ours = encoder.encode(text, false);
            if ours != ids {
                problems.push(format!("{}: {text:?}: ours {ours:?}, theirs {ids:?}", case.name));
            }
            n_texts += 1;
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(n_texts > 200, "{n_texts}");
}

/// Files that are rebuilt from the keys give the same keys, and encode the same.
#[test]
fn keys_survive_the_way_back() {
    for (name, equal_ids) in [("bert", true), ("xlmr_json", true), ("gemma4", true), ("rwkv", false)] {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let mut rows = Metadata::new();
        rows.set("general.architecture", case.arch);
        for (key, value) in keys(case).iter() {
            rows.set(key, value.clone());
        }
        let files = to_hf(&rows).unwrap().unwrap();
        let lost: Vec<&str> =
            files.lost.iter().map(String::as_str).filter(|key| !key.contains("eot")).collect();
        assert_eq!(lost, Vec::<&str>::new(), "{name}");
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, bytes: &[u8]| fs_err::write(dir.path().join(file), bytes).unwrap();
        write("tokenizer_config.json", files.tokenizer_config_json.as_bytes());
        if let Some(text) = &files.tokenizer_json {
            write("tokenizer.json", text.as_bytes());
        }
        if let Some((file, bytes)) = &files.sentencepiece_model {
            write(file, bytes);
        }
        let ids: serde_json::Map<String, Json> =
            files.config_ids.iter().map(|(key, id)| ((*key).to_owned(), json!(id))).collect();
        write("config.json", Json::Object(ids).to_string().as_bytes());
        let again = build(dir.path(), &request(case)).unwrap_or_else(|error| panic!("{name}: {error}")).rows;
        let shown = |rows: &Metadata| {
            let mut rows: Vec<_> = rows
                .iter()
                .filter(|row| row.0 != "general.architecture")
                .map(|(key, value)| (key.to_owned(), format!("{value:?}")))
                .collect();
            rows.sort_unstable();
            rows
        };
        for (ours, theirs) in shown(&again).iter().zip(&shown(&rows)) {
            assert!(ours == theirs, "{name}: {} {}\n{}\n{}", ours.0, theirs.0, ours.1, theirs.1);
        }
        assert_eq!(again.len(), rows.len() - 1, "{name}");
        if !equal_ids {
            continue;
        }
        let library = tokenizers::Tokenizer::from_bytes(files.tokenizer_json.unwrap()).unwrap();
        for (text, row) in files::json(directory(name).join("ids.json")).as_object().unwrap() {
            let ids = library.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            assert_eq!(json!(ids), row["ids"], "{name}: {text:?}");
        }
    }
}

/// Difference that a change of one file makes: a text, or empty.
fn changed(name: &str, file: &str, edit: impl Fn(String) -> String) -> String {
    let dir = tempfile::tempdir().unwrap();
    files::copy(directory(name), dir.path());
    let text = edit(fs_err::read_to_string(dir.path().join(file)).unwrap());
    fs_err::write(dir.path().join(file), text).unwrap();
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    match build(dir.path(), &request(case)) {
        Ok(built) => format!("{:?}", built.warnings),
        Err(error) => error.to_string().replace(&format!("{}/", dir.path().display()), ""),
    }
}

#[test]
fn broken_files_are_refused_by_line() {
    let line = |name: &'static str, file: &'static str, from: &'static str, to: &'static str| {
        changed(name, file, |text| {
            assert!(text.contains(from), "{name}: {from}");
            text.replacen(from, to, 1)
        })
    };
    let rwkv = "rwkv_vocab_v20230424.txt";
    for (from, to, want) in [
        ("2 '\\x01' 1", "2 '\\x01' 2", "line 2: the token has another length than the line declares"),
        ("2 '\\x01' 1", "2 '\\x01", "line 2: a line has a number, a token and a length"),
        ("2 '\\x01' 1", "2 __import__('os') 1", "line 2: the token is not a Python string"),
        ("2 '\\x01' 1", "9 '\\x01' 1", "line 2: the numbers are not in order"),
        ("2 '\\x01' 1", "2 '\\x01' 99999999999999999999", "line 2: the last part is not a length"),
    ] {
        assert_eq!(line("rwkv", rwkv, from, to), format!("{rwkv}: {want}"));
    }
    let first = "[\"<|plamo:unk|>\", 0.0, \"UNKNOWN\", 1, 0, 0, 0]";
    for (to, want) in [
        ("{", "line 1: not a JSON list"),
        ("[1, 0.0]", "line 1: the first element is not the text of a token"),
        ("[\"a\", \"b\"]", "line 1: the second element is not a score"),
        ("[]", "line 1: the first element is not the text of a token"),
    ] {
        assert_eq!(line("plamo2", "tokenizer.jsonl", first, to), format!("tokenizer.jsonl: {want}"));
    }
    let twice = changed("bert_lines", "vocab.txt", |text| format!("{text}[PAD]\n"));
    assert!(
        twice.starts_with("vocab.txt: line ") && twice.ends_with(": the token is listed twice"),
        "{twice}"
    );
    assert_eq!(changed("bert_lines", "vocab.txt", |_| String::new()), "vocab.txt: line 1: no tokens");
}

#[test]
fn broken_files_of_mistral_are_refused_by_member() {
    let edit = |change: &dyn Fn(&mut Json)| {
        changed("mistral_tekken", "tekken.json", |text| {
            let mut file: Json = serde_json::from_str(&text).unwrap();
            change(&mut file);
            file.to_string()
        })
    };
    for (change, want) in [
        (
            &(|file: &mut Json| file["config"]["version"] = json!("v4")) as &dyn Fn(&mut Json),
            "`config.version`: not a version of tekken: `v1`, `v2`, `v3`, `v7`, `v11`, `v13`, `v15`",
        ),
        (
            &|file: &mut Json| file["config"]["default_vocab_size"] = json!(4_000_000),
            "`config.default_vocab_size`: not the number of special tokens and some or all of `vocab`",
        ),
        (
            &|file: &mut Json| file["config"]["default_num_special_tokens"] = json!(u64::MAX),
            "`config.default_vocab_size`: not the number of special tokens and some or all of `vocab`",
        ),
        (
            &|file: &mut Json| file["vocab"][300]["rank"] = json!(3),
            "`vocab[300]`: the ranks are not in order",
        ),
        (
            &|file: &mut Json| file["vocab"][3]["token_bytes"] = json!("AA=="),
            "`vocab[3]`: the first 256 tokens are the bytes in order",
        ),
        (
            &|file: &mut Json| file["vocab"][300]["token_bytes"] = json!("AA"),
            "`vocab[300]`: `token_bytes` is not base64",
        ),
        (
            &|file: &mut Json| file["vocab"][300]["token_bytes"] = json!("AAECAwQFBgcICQoLDA0ODw=="),
            "`vocab[300]`: no two tokens make it",
        ),
        (
            &|file: &mut Json| {
                file["special_tokens"] = json!([{"rank": 0, "token_str": "<s>", "is_control": true}]);
            },
            "`special_tokens`: lacks one of `<unk>`, `<s>`, `</s>` and `<pad>`",
        ),
    ] {
        assert_eq!(edit(change), format!("tekken.json: {want}"));
    }
    // A version whose template llama.cpp's converter ships.
    let newer = edit(&|file| {
        file["config"]["version"] = json!("v11");
        let special = ["<unk>", "<s>", "</s>", "<pad>"];
        let row =
            |(rank, token): (usize, &&str)| json!({"rank": rank, "token_str": token, "is_control": true});
        file["special_tokens"] = special.iter().enumerate().map(row).collect();
    });
    assert_eq!(newer, format!("{:?}", [TokenizerWarning::NoMistralTemplate { version: "v11".to_owned() }]));
}

/// The name of the architecture is part of a key, and the chat format depends on the format of the checkpoint.
#[test]
fn what_surrounds_a_vocabulary_of_mistrals_decides_over_two_keys() {
    let case = CASES.iter().find(|case| case.name == "mistral_tekken_v7").unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs_err::copy(directory(case.name).join("tekken.json"), dir.path().join("tekken.json")).unwrap();
    fs_err::write(dir.path().join("chat_template.jinja"), "own").unwrap();
    let template = |request: &TokenizerRequest| {
        let rows = build(dir.path(), request).unwrap().rows;
        assert!(rows.contains("mistral3.vocab_size"));
        rows.get("tokenizer.chat_template").unwrap().as_str().unwrap().to_owned()
    };
    let mut request = TokenizerRequest { architecture: "mistral3".to_owned(), ..request(case) };
    assert_eq!(template(&request), "own");
    request.mistral_format = false;
    assert_eq!(template(&request), "mistral-v7-tekken");
}

#[test]
fn what_only_the_converter_of_llama_cpp_has_is_refused_with_the_place_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let error = build(dir.path(), &TokenizerRequest::of(&[Mode::Bpe, Mode::Builtin])).unwrap_err();
    assert!(
        error.to_string().ends_with(": no tokenizer files, and models of this kind use those of another")
    );
    let hints = gguf_core::Hint::hints(&error);
    assert!(hints[0].contains("EleutherAI/gpt-neox-20b"), "{hints:?}");
}
