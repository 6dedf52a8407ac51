//! Identification of pre-tokenizers by structure, with the hash as a cross-check, on variations of released files.

use gguf_format::Value;
use gguf_tokenizer::{Built, Mode, TokenizerRequest, TokenizerWarning, build};
use serde_json::{Value as Json, json};

use super::case;
use gguf_testkit::goldens::{Goldens, conformance_tests, corpus_tests};
use gguf_testkit::{files, report_cases};

/// Builds a released vocabulary after `edit` has changed its `tokenizer.json`.
fn edited(corpus: &Goldens, name: &str, edit: impl FnOnce(&mut Json)) -> Option<Built> {
    let released = case(corpus, name)?.join("hf");
    let dir = tempfile::tempdir().unwrap();
    let mut file = files::json(released.join("tokenizer.json"));
    edit(&mut file);
    fs_err::write(dir.path().join("tokenizer.json"), serde_json::to_vec(&file).unwrap()).unwrap();
    for other in ["tokenizer_config.json", "config.json"] {
        fs_err::copy(released.join(other), dir.path().join(other)).unwrap();
    }
    Some(build(dir.path(), &TokenizerRequest::of(&[Mode::Bpe])).unwrap())
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(regex: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// Warnings, without the unrelated one about Llama 3.1's further end tokens.
fn but_for_ends(built: &Built) -> Vec<&TokenizerWarning> {
    built.warnings.iter().filter(|warning| !matches!(warning, TokenizerWarning::FurtherEnds { .. })).collect()
}

fn pre(built: &Built) -> &str {
    built.rows.get("tokenizer.ggml.pre").and_then(Value::as_str).unwrap()
}

corpus_tests!(llama_3_without_a_begin_token_stays_llama_bpe);
fn llama_3_without_a_begin_token_stays_llama_bpe(corpus: &Goldens) {
    let built = edited(corpus, "llama3_1", |file| file["post_processor"] = byte_level(false)).unwrap();
    // The hash of the check text is that of Smaug here, whose runtime merges whole-piece tokens; the file forbids that.
    assert_eq!(pre(&built), "llama-bpe");
    assert_eq!(built.rows.get("tokenizer.ggml.add_bos_token"), Some(&Value::Bool(false)));
    assert_eq!(but_for_ends(&built), [] as [&TokenizerWarning; 0]);
    report_cases("llama 3 without begin token", 1);
}

conformance_tests!(a_fine_tune_with_more_tokens_is_recognized);
fn a_fine_tune_with_more_tokens_is_recognized(corpus: &Goldens) {
    let mut n_cases = 0;
    for (name, expected) in
        [("qwen2_5", "qwen2"), ("llama3_1", "llama-bpe"), ("gpt2", "gpt-2"), ("mistral_nemo", "tekken")]
    {
        // A token that occurs in the check text changes its ids, and with them the hash.
        let Some(built) = edited(corpus, name, |file| {
            let tokens = file["added_tokens"].as_array_mut().unwrap();
            tokens.push(json!({"id": 900_000, "content": "\u{1f999}", "special": false, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false}));
        }) else {
            continue;
        };
        assert_eq!(pre(&built), expected, "{name}");
        let moved = |warning: &TokenizerWarning| matches!(warning, TokenizerWarning::AddedTokensMoved { .. });
        assert!(but_for_ends(&built).into_iter().all(moved), "{name}: {:?}", built.warnings);
        n_cases += 1;
    }
    report_cases("fine-tunes", n_cases);
}

corpus_tests!(a_hash_that_contradicts_the_structure_is_a_warning);
fn a_hash_that_contradicts_the_structure_is_a_warning(corpus: &Goldens) {
    // With the steps of MiniCPM 5 the check text has the pieces, and with Llama 3's vocabulary the ids, of Llama 3.
    let edit = |file: &mut Json| {
        let steps = file["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap();
        let regex = steps[0]["pattern"]["Regex"].as_str().unwrap().replace(r"\p{N}{1,3}", r"\p{N}+");
        steps[0]["pattern"]["Regex"] = regex.into();
        steps.insert(0, split(r"\p{N}{1,3}"));
    };
    let built = edited(corpus, "llama3_1", edit).unwrap();
    assert_eq!(pre(&built), "minicpm5");
    let (chosen, hashed) = ("minicpm5".to_owned(), "llama-bpe".to_owned());
    assert_eq!(but_for_ends(&built), [&TokenizerWarning::HashContradicts { chosen, hashed }]);
    report_cases("contradicting hash", 1);
}

conformance_tests!(changed_steps_are_another_pre_tokenizer);
fn changed_steps_are_another_pre_tokenizer(corpus: &Goldens) {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let sequence = |steps: &[&Json]| json!({"type": "Sequence", "pretokenizers": steps});
    let qwen = split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    );
    // GPT-2's configuration asks for blanks to be cleaned up, which distinguishes names with the same structure.
    for (steps, expected) in [
        (sequence(&[&digits, &byte_level(true)]), "starcoder"),
        (sequence(&[&qwen, &byte_level(false)]), "stablelm2"),
    ] {
        let built = edited(corpus, "gpt2", |file| file["pre_tokenizer"] = steps).unwrap();
        assert_eq!(pre(&built), expected);
        assert_eq!(built.warnings, []);
    }
    report_cases("changed steps", 2);
}
