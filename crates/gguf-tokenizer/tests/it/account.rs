//! Every change of a `tokenizer.json` that gives texts other ids gives another file, a warning or a refusal.
//!
//! The changes are those of `changes`, over small vocabularies of each kind. The `tokenizers` library is the judge.

use std::path::Path;

use gguf_format::{Array, Metadata, Value};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};
use gguf_tokenizer::reference::ReferenceTokenizer;
use gguf_tokenizer::{Built, Encoder, Mode, TokenizerError, TokenizerRequest, TokenizerWarning, build};
use serde_json::{Value as Json, json};

const TEXTS: [&str; 16] = [
    "Hello, world!",
    "  two  spaces   three ",
    "Ünïcödé ÀÉ ﬁ ① ｆｕｌｌ",
    "don't DON'T I'll 1234567 3.14",
    "\n\nline\n\ttab\r\n",
    "日本語の文章 中文 한국어",
    "👩‍👩‍👧 a_b-c/d\\e@f#g",
    "<s> </s> <unk> <pad> [MASK] [CLS]",
    " <s> x </s> ",
    "<bos> y <eos>",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "CamelCaseWords ALLCAPS",
    "▁ low ▁line",
    "",
    " ",
    "e\u{301} \u{200b} zero\u{a0}width",
];

/// A vocabulary and the modes in which it is read.
struct Case {
    name: &'static str,
    file: Json,
    config: Json,
    modes: &'static [Mode],
    size: Option<u64>,
}

fn metaspace(scheme: &str, split: bool) -> Json {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

fn sequence(part: &str, steps: &[Json]) -> Json {
    json!({"type": "Sequence", part: steps})
}

fn blanks() -> Json {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

fn begin(token: &str, id: u32) -> Json {
    json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    })
}

fn cases() -> Vec<Case> {
    let case = |name, folder: &str, modes| {
        let folder = fixture(folder);
        let (file, config) =
            (files::json(folder.join("tokenizer.json")), files::json(folder.join("tokenizer_config.json")));
        Case { name, file, config, modes, size: None }
    };
    let mut cases = vec![
        case("byte level", "tiny-llama", &[Mode::Bpe]),
        case("word pieces", "vocab/bert", &[Mode::WordPiece]),
        case("whitespace", "vocab/whitespace", &[Mode::Whitespace]),
        case("words of DNA", "vocab/hybriddna", &[Mode::HybridDna]),
        case("xlm-roberta", "vocab/xlmr_json", &[Mode::Xlmr]),
        case("unigram", "vocab/xlmr_json", &[Mode::Unigram]),
        case("gemma 4", "vocab/gemma4", &[Mode::Gemma4]),
        case("gemma", "vocab/gemma4", &[Mode::LlamaHf]),
        case("llama", "vocab/gemma4", &[Mode::LlamaHf]),
        case("llama, metaspace", "vocab/gemma4", &[Mode::LlamaHf]),
    ];
    for case in &mut cases {
        let charsmap = case.file["normalizer"].clone();
        match case.name {
            "unigram" => {
                let joins = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
                let trims = json!({"type": "Strip", "strip_left": false, "strip_right": true});
                case.file["normalizer"] = sequence("normalizers", &[charsmap, trims, joins]);
            }
            "llama" => {
                let prefix = json!({"type": "Prepend", "prepend": "▁"});
                case.file["normalizer"] = sequence("normalizers", &[prefix, blanks()]);
                case.file["pre_tokenizer"] = Json::Null;
            }
            "llama, metaspace" => {
                case.file["normalizer"] = Json::Null;
                case.file["pre_tokenizer"] = metaspace("always", false);
            }
            _ => {}
        }
        if case.modes == [Mode::LlamaHf] {
            // This class takes the tokens around a text from the file.
            case.config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
            case.file["post_processor"] = begin("<bos>", 2);
        }
    }
    cases
}

/// Writes the files of a case and builds the vocabulary.
fn built(dir: &Path, case: &Case, file: &Json) -> Result<Built, TokenizerError> {
    fs_err::write(dir.join("tokenizer.json"), file.to_string()).unwrap();
    fs_err::write(dir.join("tokenizer_config.json"), case.config.to_string()).unwrap();
    build(dir, &TokenizerRequest { size: case.size, ..TokenizerRequest::of(case.modes) })
}

/// Ids of all texts by the library; `None` if it refuses the file.
fn reference(file: &Json) -> Option<Vec<Vec<u32>>> {
    let text = file.to_string();
    let tokenizer = ReferenceTokenizer::new(text.as_bytes()).ok()?;
    TEXTS.iter().map(|text| tokenizer.ids(text, true).ok()).collect()
}

/// Ids of all texts by the keys, with the tokens around texts.
fn by_keys(rows: &Metadata) -> Vec<Vec<u32>> {
    let encoder = Encoder::from_metadata(rows).unwrap();
    let ids = |text: &&str| {
        let around = (encoder.start_of_text(), encoder.end_of_text());
        around.0.into_iter().chain(encoder.encode(text, true)).chain(around.1).collect()
    };
    TEXTS.iter().map(ids).collect()
}

/// Calls `visit` with the path and value of each leaf, except for tokens and merges.
fn leaves(value: &Json, path: &mut Vec<String>, visit: &mut impl FnMut(&str, &Json)) {
    let mut each = |key: String, value: &Json| {
        if path.as_slice() == ["model"] && ["vocab", "merges"].contains(&key.as_str()) {
            return;
        }
        path.push(key.replace('~', "~0").replace('/', "~1"));
        leaves(value, path, visit);
        path.pop();
    };
    match value {
        Json::Object(members) => members.iter().for_each(|(key, value)| each(key.clone(), value)),
        Json::Array(items) => {
            items.iter().take(8).enumerate().for_each(|(at, value)| each(at.to_string(), value));
        }
        _ => visit(&format!("/{}", path.join("/")), value),
    }
}

/// Returns the values that replace a leaf.
fn other_values(path: &str, value: &Json) -> Vec<Json> {
    let key = path.rsplit('/').next().unwrap_or_default();
    if ["/version", "/truncation", "/padding"].iter().any(|own| path.starts_with(own))
        // The library panics at such a map.
        || ["type", "id", "type_id", "precompiled_charsmap"].contains(&key)
    {
        return Vec::new();
    }
    let values = match (key, value) {
        (_, Json::Bool(flag)) => vec![json!(!flag)],
        ("prepend_scheme", _) => vec![json!("always"), json!("first"), json!("never")],
        ("behavior", _) => vec![json!("Removed"), json!("Isolated"), json!("Contiguous")],
        ("Regex", _) => vec![json!(r"\s+"), json!("[aeiou]")],
        (_, Json::String(text)) => vec![json!(format!("{text}x"))],
        ("end_of_word_suffix", Json::Null) => vec![json!("##")],
        ("dropout", Json::Null) => vec![json!(0.5)],
        (_, Json::Number(number)) => vec![json!(number.as_u64().unwrap_or_default() + 1)],
        _ => Vec::new(),
    };
    values.into_iter().filter(|other| other != value).collect()
}

/// Steps that are put before and behind those of a file.
fn more_steps(part: &str) -> Vec<Json> {
    if part == "normalizer" {
        let plain = ["Lowercase", "NFKC", "NFC", "NFD", "StripAccents"].map(|kind| json!({"type": kind}));
        let more = [
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            json!({"type": "Replace", "pattern": {"String": "e"}, "content": "a"}),
            json!({"type": "Prepend", "prepend": "▁"}),
        ];
        plain.into_iter().chain(more).collect()
    } else {
        vec![
            json!({"type": "Digits", "individual_digits": true}),
            json!({"type": "Whitespace"}),
            json!({"type": "WhitespaceSplit"}),
            json!({"type": "Punctuation", "behavior": "Isolated"}),
            json!({"type": "Split", "pattern": {"Regex": "[A-Z]"}, "behavior": "Isolated", "invert": false}),
        ]
    }
}

/// Returns all changes of a file, with a description.
fn changes(file: &Json) -> Vec<(String, Json)> {
    let mut changes = Vec::new();
    leaves(file, &mut Vec::new(), &mut |path, value| {
        for other in other_values(path, value) {
            let mut changed = file.clone();
            *changed.pointer_mut(path).unwrap() = other.clone();
            changes.push((format!("{path} = {other}"), changed));
        }
    });
    let mut set = |what: String, key: &str, value: Json| {
        let mut changed = file.clone();
        changed[key] = value;
        changes.push((what, changed));
    };
    for (part, members) in [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")] {
        let steps = match (&file[part], file[part][members].as_array()) {
            (Json::Null, _) => Vec::new(),
            (_, Some(steps)) => steps.clone(),
            (step, None) => vec![step.clone()],
        };
        for at in 0..steps.len() {
            let mut rest = steps.clone();
            rest.remove(at);
            set(format!("{part} without step {at}"), part, sequence(members, &rest));
        }
        for step in more_steps(part) {
            for at in [0, steps.len()] {
                let mut all = steps.clone();
                all.insert(at, step.clone());
                set(format!("{part} with {} at {at}", step["type"]), part, sequence(members, &all));
            }
        }
    }
    set("no post_processor".to_owned(), "post_processor", Json::Null);
    let added = file["added_tokens"].as_array().cloned().unwrap_or_default();
    for at in 0..added.len().min(6) {
        let mut rest = added.clone();
        rest.remove(at);
        set(format!("added_tokens without {}", added[at]["content"]), "added_tokens", Json::Array(rest));
    }
    changes
}

/// Outcomes of changes that alter ids.
#[derive(Debug, Default, PartialEq)]
struct Outcomes {
    unchanged: usize,
    said: usize,
    refused: usize,
    written: usize,
    problems: Vec<String>,
}

impl Outcomes {
    fn add(&mut self, dir: &Path, case: &Case, base: &(Built, Vec<Vec<u32>>), what: &str, changed: &Json) {
        let Some(ids) = reference(changed) else { return };
        if ids == base.1 {
            self.unchanged += 1;
            return;
        }
        let Ok(built) = built(dir, case, changed) else {
            self.refused += 1;
            return;
        };
        if built.warnings != base.0.warnings {
            self.said += 1;
        } else if built.rows == base.0.rows {
            self.problems.push(format!("{}: {what}: silent", case.name));
        } else {
            self.written += 1;
            let differs = |at: &usize| {
                // A blank in front of such texts is a known limit of `Metaspace`.
                by_keys(&built.rows)[*at] != ids[*at] && !TEXTS[*at].starts_with([' ', '▁', '<', '\n'])
            };
            if let Some(at) = (0..TEXTS.len()).find(differs) {
                self.problems.push(format!(
                    "{}: {what}: another file, but {:?} is read otherwise",
                    case.name, TEXTS[at]
                ));
            }
        }
    }
}

two_tiers!(no_change_of_a_file_is_silent);
/// Every day each third change.
fn no_change_of_a_file_is_silent(tier: Tier) {
    let mut outcomes = Outcomes::default();
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let base =
            built(dir.path(), &case, &case.file).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let ids = reference(&case.file).unwrap();
        let base = (base, ids);
        for (what, changed) in tier.some(3, changes(&case.file)) {
            outcomes.add(dir.path(), &case, &base, &what, &changed);
        }
    }
    println!("{outcomes:#?}");
    assert_eq!(outcomes.problems, [""; 0]);
    let [said, written, refused] = tier.of([100, 1, 6], [300, 5, 20]);
    assert!(outcomes.said > said && outcomes.written > written && outcomes.refused > refused, "{outcomes:?}");
}

/// Messages of a case after an edit.
fn messages(name: &str, edit: impl FnOnce(&mut Case)) -> Vec<String> {
    let mut case = cases().into_iter().find(|case| case.name == name).unwrap();
    edit(&mut case);
    let dir = tempfile::tempdir().unwrap();
    match built(dir.path(), &case, &case.file) {
        Ok(built) => built.warnings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn usual_files_are_read_without_a_word() {
    for case in cases() {
        // A file without a step that joins blanks, though its configuration says that they are joined.
        let expected = usize::from(case.name == "xlm-roberta");
        assert_eq!(messages(case.name, |_| ()).len(), expected, "{}", case.name);
    }
    let sentences = |case: &mut Case| {
        case.file["padding"] = json!({"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
        case.file["truncation"] =
            json!({"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0});
    };
    assert_eq!(messages("word pieces", sentences), [""; 0]);
    assert_eq!(messages("byte level", sentences), [""; 0]);
}

#[test]
fn padding_and_truncation_change_no_ids() {
    let mut case = cases().remove(1);
    let ids = reference(&case.file);
    case.file["padding"] = json!({"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    case.file["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    assert_eq!(reference(&case.file), ids);
}

#[test]
fn the_step_is_named() {
    let split =
        json!({"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated", "invert": false});
    let found = messages("gemma", |case| {
        let own = case.file["pre_tokenizer"].clone();
        case.file["pre_tokenizer"] = sequence("pretokenizers", &[split, own]);
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("tokenizer.json: `pre_tokenizer`: llama.cpp does not apply the step `{"),
        "{found:?}"
    );
    assert!(found[0].contains(r"\\p{N}"), "{found:?}");
    let token = json!({"content": "<pad>", "special": true, "normalized": false, "rstrip": true});
    for in_config in [false, true] {
        let found = messages("llama", |case| {
            if in_config {
                case.config["added_tokens_decoder"] = json!({"0": &token});
            } else {
                case.file["added_tokens"][0]["rstrip"] = json!(true);
            }
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("llama.cpp keeps white space behind `<pad>`"), "{found:?}");
    }
    let found = messages("llama", |case| case.config["add_prefix_space"] = json!(false));
    assert!(found[0].starts_with("tokenizer_config.json: `add_prefix_space` is false"), "{found:?}");
    let found = messages("word pieces", |case| case.config["do_lower_case"] = json!(false));
    assert!(found[0].starts_with("tokenizer_config.json: `do_lower_case` is false"), "{found:?}");
    let found = messages("byte level", |case| case.config["add_prefix_space"] = json!(true));
    assert!(found[0].starts_with("tokenizer_config.json: `add_prefix_space` is true"), "{found:?}");
}

#[test]
fn blanks_behind_the_tokens_of_phi_3_are_no_loss() {
    let case = cases().remove(7);
    let mut file = case.file.clone();
    file["added_tokens"][7]["rstrip"] = json!(true);
    let dir = tempfile::tempdir().unwrap();
    built(dir.path(), &case, &file).unwrap();
    let found = |name: &str| {
        let request = TokenizerRequest { name: name.to_owned(), ..TokenizerRequest::of(case.modes) };
        build(dir.path(), &request).unwrap().warnings.len()
    };
    assert_eq!((found("Phi-3-mini"), found("Other")), (0, 1));
}

#[test]
fn a_token_under_two_ids_is_reported_or_refused() {
    let twice = |case: &mut Case| {
        let added = case.file["added_tokens"].as_array_mut().unwrap();
        let mut copy = added.last().unwrap().clone();
        copy["id"] = json!(copy["id"].as_u64().unwrap() + 1);
        added.push(copy);
        case.size = Some(1024);
    };
    for name in ["byte level", "word pieces", "whitespace", "gemma", "unigram"] {
        let found = messages(name, |case| twice(case));
        let is_named = |text: &String| text.contains("with ids") || text.contains("are both");
        assert!(found.iter().any(is_named), "{name}: {found:?}");
    }
}

/// A model of pieces next to a `tokenizer.json` of the same pieces.
fn with_model(edit: impl FnOnce(&mut Json)) -> Built {
    try_with_model(edit).unwrap()
}

fn try_with_model(edit: impl FnOnce(&mut Json)) -> Result<Built, gguf_tokenizer::TokenizerError> {
    let dir = tempfile::tempdir().unwrap();
    let model = fs_err::read(fixture("vocab/baichuan").join("tokenizer.model")).unwrap();
    fs_err::write(dir.path().join("tokenizer.model"), &model).unwrap();
    let plain = build(dir.path(), &TokenizerRequest::of(&[Mode::Spm])).unwrap();
    let Some(Array::String(tokens)) = plain.rows.get("tokenizer.ggml.tokens").and_then(Value::as_array)
    else {
        panic!("no tokens")
    };
    let vocab: serde_json::Map<String, Json> =
        (0..).zip(tokens).map(|(id, text)| (String::from_utf8_lossy(text).into_owned(), json!(id))).collect();
    let mut file = json!({
        "normalizer": sequence("normalizers", &[json!({"type": "Prepend", "prepend": "▁"}), blanks()]),
        "decoder": sequence("decoders", &[json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]),
        "post_processor": begin("<s>", 1),
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    edit(&mut file);
    fs_err::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let size = Some(tokens.len() as u64 + 4);
    build(dir.path(), &TokenizerRequest { size, ..TokenizerRequest::of(&[Mode::Spm]) })
}

fn tokens_of(built: &Built) -> Vec<String> {
    match built.rows.get("tokenizer.ggml.tokens").and_then(Value::as_array) {
        Some(Array::String(tokens)) => {
            tokens.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
        }
        _ => panic!("no tokens"),
    }
}

#[test]
fn merges_of_whole_tokens_matter_only_for_tokens_that_they_do_not_make() {
    let ignores = |case: &mut Case| case.file["model"]["ignore_merges"] = json!(true);
    assert_eq!(messages("byte level", ignores), [""; 0]);
    let found = messages("byte level", |case| {
        ignores(case);
        // A token that its own merge no longer makes.
        case.file["model"]["merges"].as_array_mut().unwrap().pop();
    });
    assert!(found.iter().any(|text| text.contains("`model.ignore_merges`")), "{found:?}");
}

#[test]
fn tokens_that_only_the_json_file_has_are_written() {
    let of_files = |built: &Built| -> Vec<TokenizerWarning> {
        let is_own = |warning: &&TokenizerWarning| {
            matches!(warning, TokenizerWarning::TokensOfJson { .. } | TokenizerWarning::FilesDiffer { .. })
        };
        built.warnings.iter().filter(is_own).cloned().collect()
    };
    let plain = with_model(|_| ());
    assert_eq!(of_files(&plain), []);
    let n = tokens_of(&plain).len() - 4;
    let built = with_model(|file| {
        let token =
            |id: usize, text: &str, special: bool| json!({"id": id, "content": text, "special": special});
        file["added_tokens"] = json!([
            token(n, "<|im_start|>", true),
            token(n + 1, "<tool>", false),
            token(n + 2, "<extra_id_0>", true)
        ]);
    });
    let (Some(Array::String(tokens)), Some(Array::I32(types))) = (
        built.rows.get("tokenizer.ggml.tokens").and_then(Value::as_array),
        built.rows.get("tokenizer.ggml.token_type").and_then(Value::as_array),
    ) else {
        panic!("no tokens")
    };
    assert_eq!((tokens[n].as_slice(), types[n]), (b"<|im_start|>".as_slice(), 3));
    assert_eq!((tokens[n + 1].as_slice(), types[n + 1]), (b"<tool>".as_slice(), 4));
    let names = vec!["<|im_start|>".to_owned(), "<tool>".to_owned()];
    assert_eq!(
        of_files(&built),
        [TokenizerWarning::TokensOfJson { lacks: "tokenizer.model", tokens: names }]
    );
    let plain = with_model(|file| {
        file["added_tokens"] = json!([{"id": 300, "content": tokens_of(&plain)[300], "special": true}]);
    });
    let is_text = |warning: &TokenizerWarning| matches!(warning, TokenizerWarning::AddedAsText { .. });
    assert!(plain.warnings.iter().any(is_text), "{:?}", plain.warnings);
    let built = with_model(|file| {
        let vocab = file["model"]["vocab"].as_object_mut().unwrap();
        let (first, last) = (vocab.keys().nth(9).unwrap().clone(), vocab.keys().nth(10).unwrap().clone());
        let (a, b) = (vocab[&first].clone(), vocab[&last].clone());
        vocab[&first] = b;
        vocab[&last] = a;
    });
    assert!(
        matches!(of_files(&built)[..], [TokenizerWarning::FilesDiffer { n: 2, .. }]),
        "{:?}",
        built.warnings
    );
}

/// Files of two models side by side: nothing says which is this one's.
#[test]
fn a_vocabulary_of_another_model_beside_the_model_file_is_refused() {
    let error = try_with_model(|file| {
        let vocab = file["model"]["vocab"].as_object_mut().unwrap();
        let shifted: serde_json::Map<String, Json> =
            vocab.iter().map(|(text, id)| (format!("{text}x"), id.clone())).collect();
        *vocab = shifted;
        file["model"]["merges"] = json!([]);
        file["added_tokens"] = json!([]);
    })
    .unwrap_err();
    assert!(error.to_string().contains("another model's than tokenizer.model beside it"), "{error}");
    assert!(gguf_core::Hint::hints(&error)[0].starts_with("remove tokenizer.json or tokenizer.model"));
}

#[test]
fn what_the_library_does_not_have_is_refused() {
    let parts = [
        ("normalizer", "normalizers"),
        ("pre_tokenizer", "pretokenizers"),
        ("post_processor", "processors"),
        ("decoder", "decoders"),
    ];
    let (mut n, mut wrong) = (0, Vec::new());
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let known = match built(dir.path(), &case, &case.file) {
            Ok(built) => built.warnings.len(),
            Err(error) => panic!("{}: {error}", case.name),
        };
        for (member, steps) in parts {
            let step = json!({"type": "Regroup", "content": "x"});
            for file in
                [step.clone(), sequence(steps, &[sequence(steps, &[case.file[member].clone(), step])])]
            {
                let mut changed = case.file.clone();
                changed[member] = file;
                n += 1;
                match built(dir.path(), &case, &changed) {
                    Err(error) if error.to_string().contains("unknown") => {}
                    other => {
                        wrong.push(format!(
                            "{} {member}: {:?}",
                            case.name,
                            other.map(|built| built.warnings)
                        ));
                    }
                }
            }
            // The library passes over members that it does not know, and so does the conversion, with a warning.
            if let Some(step) =
                case.file.get(member).filter(|step| step["type"] != "Sequence" && step.is_object())
            {
                let (mut changed, mut step) = (case.file.clone(), step.clone());
                step["regroups"] = json!(1);
                changed[member] = step;
                let warnings = built(dir.path(), &case, &changed).unwrap().warnings;
                let said = warnings
                    .iter()
                    .filter(|warning| warning.to_string().contains(&format!("`{member}.regroups`")));
                if (said.count(), warnings.len()) != (1, known + 1) {
                    wrong.push(format!("{} {member}: {warnings:?}", case.name));
                }
            }
        }
        for (pointer, found) in [("", "regroup"), ("/model", "type")] {
            let mut changed = case.file.clone();
            changed.pointer_mut(pointer).unwrap()[found] = json!("Regroup");
            if built(dir.path(), &case, &changed).is_ok() {
                wrong.push(format!("{} {pointer}", case.name));
            }
        }
    }
    assert!(wrong.is_empty() && n == 80, "{n}\n{}", wrong.join("\n"));
}
