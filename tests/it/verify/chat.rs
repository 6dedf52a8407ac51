//! Chat templates against what transformers writes out (`scripts/peers/chat_fixtures.py`).

use gguf_foundry::verify::{ChatError, ChatTemplate};
use serde_json::Value;

use crate::support::{conformance, fixture, report_cases, sha256};

fn json(path: &str) -> Value {
    serde_json::from_str(&fs_err::read_to_string(fixture(path)).unwrap()).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
    ChatTemplate::new(source, tokens.map(|(name, text)| (name, text.to_owned())).to_vec()).unwrap()
}

/// Renders every chat and compares; returns how many were compared.
fn compare(name: &str, source: &str, expected: &Value) -> usize {
    let template = template(source);
    let chats = json("chat/chats.json");
    let mut n = 0;
    for (chat, messages) in chats.as_object().unwrap() {
        let expected = &expected[chat];
        match template.render(messages) {
            Ok(text) => assert_eq!(Some(text.as_str()), expected["text"].as_str(), "{name}: {chat}"),
            Err(ChatError::Refused { reason }) => {
                assert_eq!(Some(reason.as_str()), expected["refused"].as_str(), "{name}: {chat}");
            }
            // Messages of failures are Python's own.
            Err(error) => assert!(expected["failed"].is_string(), "{name}: {chat}: {error}"),
        }
        n += 1;
    }
    n
}

#[test]
fn templates_are_rendered_as_transformers_does() {
    let expected = json("chat/expected.json");
    let mut names = Vec::new();
    for entry in fs_err::read_dir(fixture("chat/templates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let source = fs_err::read_to_string(&path).unwrap();
        assert_eq!(compare(&name, &source, &expected["templates"][&name]), 7);
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(names, ["chatml", "features", "gemma", "llama3", "mistral"]);
}

#[test]
fn templates_of_released_models_are_rendered_as_transformers_does() {
    let Some(corpus) = conformance() else { return };
    let expected = json("chat/expected.json");
    let mut n_cases = 0;
    for (name, expected) in expected["corpus"].as_object().unwrap() {
        let path = corpus.join("vocab").join(name).join("hf/tokenizer_config.json");
        let config: Value = serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap();
        let source = config["chat_template"].as_str().unwrap();
        assert_eq!(Some(sha256(source.as_bytes()).as_str()), expected["template_sha256"].as_str(), "{name}");
        n_cases += compare(name, source, &expected["chats"]);
    }
    report_cases("verify: chat templates", n_cases);
}
