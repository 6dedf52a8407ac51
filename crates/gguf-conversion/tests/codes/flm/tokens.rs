//! Vocabularies: as stored, and converted to keys.

use std::path::Path;

use gguf_checkpoint::fastllm::FlmFile;
use gguf_conversion::{Conversion, ConvertOptions, FlmOptions, ModelSource};
use gguf_core::limits::Limits;
use gguf_format::{Array, Metadata, Value};
use gguf_tokenizer::{Mode, TokenizerRequest, build};

use gguf_testkit::flm::{Writer, good, llama};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::noise::Noise;
use gguf_testkit::{files, report_cases};

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

conformance_tests!(the_corpus_has_these_tokens);
fn the_corpus_has_these_tokens(corpus: &Goldens) {
    let mut n_cases = 0;
    for dir in good(corpus).into_iter().filter(|dir| dir.join("vocab.json").exists()) {
        let expected = files::json(dir.join("vocab.json"));
        let file = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        let header = file.header();
        let rows = expected["tokens"].as_array().unwrap();
        assert_eq!(header.tokens.len(), rows.len());
        for (index, (token, row)) in header.tokens.iter().zip(rows).enumerate() {
            assert_eq!(token.text, hex(row[0].as_str().unwrap()), "{}", dir.display());
            assert_eq!(u64::from(token.id), row[1].as_u64().unwrap());
            let score = token.score.unwrap_or(-(index as f32));
            assert_eq!(score, row[2].as_f64().unwrap() as f32);
            assert_eq!(token.score.is_some(), expected["scored"].as_bool().unwrap());
        }
        let special = expected["special"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> = header.special.iter().map(|text| String::from_utf8_lossy(text)).collect();
        assert_eq!(found, special.iter().map(|text| text.as_str().unwrap()).collect::<Vec<_>>());
        n_cases += 1;
    }
    report_cases("flm: vocabularies", n_cases);
}

fn metadata(path: &Path, options: &ConvertOptions) -> Metadata {
    let source = ModelSource::open_flm(path, &FlmOptions::default(), options).unwrap();
    Conversion::of(source, options).unwrap().metadata().clone()
}

fn vocab_only() -> ConvertOptions {
    ConvertOptions { vocab_only: true, ..ConvertOptions::default() }
}

fn texts(metadata: &Metadata, key: &str) -> Vec<String> {
    match metadata.get(key) {
        Some(Value::Array(Array::String(texts))) => {
            texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
        }
        other => panic!("{key}: {other:?}"),
    }
}

conformance_tests!(pieces_become_the_keys_of_the_original_model);
fn pieces_become_the_keys_of_the_original_model(corpus: &Goldens) {
    let dir = corpus.join("formats/flm/llama-sp-tokenizer");
    let found = metadata(&dir.join("model.flm"), &vocab_only());
    let original = build(&dir, &TokenizerRequest::of(&[Mode::Spm])).unwrap().rows;
    for key in ["model", "pre", "tokens", "scores", "token_type"] {
        let key = format!("tokenizer.ggml.{key}");
        assert_eq!(found.get(&key), original.get(&key), "{key}");
    }
    assert_eq!(found.get("tokenizer.ggml.bos_token_id"), Some(&Value::U32(1)));
    report_cases("flm: pieces", 1);
}

conformance_tests!(merges_are_rebuilt_from_scores_and_where_there_are_none_from_ids);
fn merges_are_rebuilt_from_scores_and_where_there_are_none_from_ids(corpus: &Goldens) {
    let corpus = corpus.join("formats/flm");
    let mut n_cases = 0;
    for (case, original, pre) in [
        ("qwen2-bytelevel-special", "qwen2-bytelevel-special", None),
        ("llama-bytelevel", "llama-bytelevel", Some("gpt-2")),
        ("old-llama-fast", "llama-bytelevel", Some("gpt-2")),
    ] {
        let options = ConvertOptions { pre: pre.map(str::to_owned), ..vocab_only() };
        let found = metadata(&corpus.join(case).join("model.flm"), &options);
        let tokenizer = files::json(corpus.join(original).join("tokenizer.json"));
        let merges: Vec<String> = tokenizer["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|merge| match merge.as_str() {
                Some(text) => text.to_owned(),
                None => format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()),
            })
            .collect();
        assert_eq!(texts(&found, "tokenizer.ggml.merges"), merges, "{case}");
        let tokens = texts(&found, "tokenizer.ggml.tokens");
        for (text, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
            assert_eq!(&tokens[id.as_u64().unwrap() as usize], text, "{case}");
        }
        let Some(Value::Array(Array::I32(types))) = found.get("tokenizer.ggml.token_type") else { panic!() };
        // The configuration gives 1 for the begin token, which is a letter here.
        assert_eq!(types[1], 1, "{case}");
        for added in tokenizer["added_tokens"].as_array().unwrap() {
            let id = added["id"].as_u64().unwrap() as usize;
            assert_eq!((tokens[id].as_str(), types[id]), (added["content"].as_str().unwrap(), 3), "{case}");
        }
        n_cases += 1;
    }
    report_cases("flm: merges", n_cases);
}

conformance_tests!(an_end_token_written_by_number_is_put_right);
fn an_end_token_written_by_number_is_put_right(corpus: &Goldens) {
    let path = corpus.join("formats/flm/qwen2-bytelevel-special/model.flm");
    let found = metadata(&path, &vocab_only());
    assert_eq!(found.get("tokenizer.ggml.eos_token_id"), Some(&Value::U32(319)));
    report_cases("flm: end token", 1);
}

fn with_tokens(tokens: &[(&[u8], Option<f32>)], more: &[(&str, &str)]) -> Writer {
    let mut writer = llama(|writer, name, [rows, cols], noise: &mut Noise| {
        writer.f16(name, &[rows, cols], &noise.floats(rows * cols));
    });
    writer.dictionary.extend(gguf_testkit::flm::own(more));
    for (id, (text, score)) in tokens.iter().enumerate() {
        writer.tokens.push((text.to_vec(), id as i32, *score));
    }
    writer
}

fn keys(writer: &Writer) -> Result<(Metadata, Vec<String>), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();
    let options = ConvertOptions::default();
    let source = ModelSource::open_flm(&path, &FlmOptions::default(), &options);
    let conversion =
        Conversion::of(source.map_err(|e| e.to_string())?, &options).map_err(|e| e.to_string())?;
    Ok((conversion.metadata().clone(), conversion.warnings().to_vec()))
}

#[test]
fn few_pieces_are_padded_and_classified() {
    let writer = with_tokens(
        &[
            (b"<unk>", None),
            (b"<s>", None),
            (b"<0x0A>", None),
            (b"\xff\xfe\x80", None),
            ("\u{2581}hi".as_bytes(), None),
        ],
        &[("bos_token_id", "1"), ("eos_token_id", "[4, 2]"), ("tokenizer_add_dummy_prefix", "False")],
    );
    let (keys, _) = keys(&writer).unwrap();
    let Some(Value::Array(Array::String(tokens))) = keys.get("tokenizer.ggml.tokens") else { panic!() };
    assert_eq!(tokens.len(), 32);
    assert_eq!(tokens[3], b"\xff\xfe\x80");
    assert_eq!(tokens[5], b"[PAD5]");
    let Some(Value::Array(Array::I32(types))) = keys.get("tokenizer.ggml.token_type") else { panic!() };
    // Ids of the configuration are control tokens, unless they are bytes.
    assert_eq!(types[..6], [2, 3, 6, 1, 3, 5]);
    let Some(Value::Array(Array::F32(scores))) = keys.get("tokenizer.ggml.scores") else { panic!() };
    assert_eq!(scores[..6], [-0.0, -1.0, -2.0, -3.0, -4.0, -10000.0]);
    assert_eq!(keys.get("tokenizer.ggml.add_space_prefix"), Some(&Value::Bool(false)));
}

#[test]
fn a_model_in_the_dictionary_counts_more_than_the_tokens() {
    // Field 1 (pieces): `<unk>`, score 0, type 2; `x`, score -1.
    let mut model = vec![0x0a, 14, 0x0a, 5];
    model.extend(b"<unk>");
    model.extend([0x15, 0, 0, 0, 0, 0x18, 2]);
    model.extend([0x0a, 8, 0x0a, 1, b'x', 0x15]);
    model.extend((-1.0f32).to_le_bytes());
    // Field 2 (trainer): BPE.
    model.extend([0x12, 2, 0x18, 2]);
    let text = model.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let writer = with_tokens(&[(b"other", None)], &[("tokenizer_serialized", &text)]);
    let (keys, _) = keys(&writer).unwrap();
    assert_eq!(texts(&keys, "tokenizer.ggml.tokens")[..3], ["<unk>", "x", "[PAD2]"]);
    assert_eq!(keys.get("tokenizer.ggml.model"), Some(&Value::String(b"llama".to_vec())));
}

#[test]
fn a_byte_level_vocabulary_asks_for_its_pre_tokenizer() {
    let writer = with_tokens(
        &[(b"a", Some(1.0)), (b"b", Some(1.0)), (b"ab", Some(0.0))],
        &[("tokenizer_byte_as_char", "True"), ("tokenizer_use_score", "1")],
    );
    let error = keys(&writer).unwrap_err();
    assert!(error.contains("its pre-tokenizer is not declared"), "{error}");
}

#[test]
fn two_texts_of_one_id_are_told_and_the_later_counts() {
    let mut writer = with_tokens(&[(b"<unk>", None), (b"a", None)], &[]);
    writer.tokens.push((b"b".to_vec(), 1, None));
    let (keys, warnings) = keys(&writer).unwrap();
    assert_eq!(texts(&keys, "tokenizer.ggml.tokens")[1], "b");
    assert!(
        warnings.iter().any(|text| text == "token id 1 is `a` and `b`, the later counts"),
        "{warnings:?}"
    );
}
