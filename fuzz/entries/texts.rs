//! Untrusted text: configurations, cards, prompts, tasks, templates, values of options; and logit files.

use gguf_foundry::checkpoint::{json, parse_object};
use gguf_foundry::convert::{MetadataFiles, MetadataInputs, ParameterCounts, general_metadata};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::gguf::{FileType, parse_assignment};
use gguf_foundry::quantize::{Override, TensorTypeRule, parse_file_type, parse_ggml_type, parse_layers};
use gguf_foundry::verify::{ChatTemplate, LogitFile, PromptForm, TaskKind, TaskSet, read_prompts};
use serde_json::{Map, Value as Json};

use super::bundle::{self, accepted};
use super::model::EMBEDDED;

/// Checks that JSON accepted by our reader has the same value in serde_json, unless it has Python's non-finite numbers.
pub(super) fn config(data: &[u8]) -> bool {
    let Some(object) = accepted(parse_object(data, &Limits::default())) else { return false };
    // `-0` is the integer 0, as in Python; serde_json parses it as a float.
    if !data.windows(2).any(|pair| pair == b"-0")
        && let Ok(other) = serde_json::from_slice::<Map<String, Json>>(data)
    {
        assert_eq!(Json::Object(object), Json::Object(other));
    }
    let _ = accepted(json::parse(data, 8));
    true
}

/// Adds an untrusted card of an architecture to the built-in ones.
pub(super) fn card(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut registry = EMBEDDED.clone();
    accepted(registry.add("fuzzed.toml", text)).is_some() && !registry.classes().is_empty()
}

/// Derives keys from files about a model, and names of outputs from these.
fn general(files: &MetadataFiles, config: &Map<String, Json>) {
    let counts =
        ParameterCounts { total: 7_000_000_000, shared: 7_000_000_000, ..ParameterCounts::default() };
    let inputs =
        MetadataInputs { dir_name: "Some-Model-7B-Instruct", config, files, model_name: None, counts };
    let keys = general_metadata(&inputs);
    for name in [keys.default_file_name("Q4_K_M"), keys.default_vocab_file_name()] {
        assert!(!name.contains('/') && !name.contains('\0'), "{name:?}");
    }
}

/// Reads `README.md` with its front matter.
pub(super) fn model_card(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut files = MetadataFiles::default();
    files.add_card(text);
    general(&files, &Map::new());
    files.warnings.is_empty() && !files.card.is_empty()
}

/// Reads the same JSON as the file of `--metadata`, as a generation configuration and as a configuration.
pub(super) fn metadata_json(data: &[u8]) -> bool {
    let Some(object) = accepted(parse_object(data, &Limits::default())) else { return false };
    let overrides = MetadataFiles { overrides: object.clone(), ..MetadataFiles::default() };
    general(&overrides, &object);
    let generation = MetadataFiles { generation_config: object.clone(), ..MetadataFiles::default() };
    general(&generation, &object);
    !object.is_empty()
}

/// Reads prompts in any format.
pub(super) fn prompts(data: &[u8]) -> bool {
    let path = bundle::file("prompts.json", data);
    let _ = read_prompts(&path, PromptForm::PlainText);
    let detected = read_prompts(&path, PromptForm::Detected);
    let lines = read_prompts(&bundle::file("prompts.jsonl", data), PromptForm::Detected);
    let text = read_prompts(&bundle::file("prompts.txt", data), PromptForm::Detected);
    let detected = [detected, lines, text].map(accepted);
    detected.iter().any(Option::is_some)
}

/// Reads questions with answers; the first byte selects the kind.
pub(super) fn tasks(data: &[u8]) -> bool {
    let Some((&first, rest)) = data.split_first() else { return false };
    let kinds = [TaskKind::HellaSwag, TaskKind::Winogrande, TaskKind::MultipleChoice];
    let path = bundle::file("tasks", rest);
    let kind = kinds[usize::from(first) % kinds.len()];
    let _ = TaskSet::read(kind, &path, Some(2));
    accepted(TaskSet::read(kind, &path, None)).is_some()
}

/// Reads a file of logits and checks the number of tokens.
pub(super) fn logits(data: &[u8]) -> bool {
    let path = bundle::file("fuzz.logits", data);
    let _ = accepted(LogitFile::is_one(&path));
    let Some(file) = accepted(LogitFile::open(&path)) else { return false };
    assert_eq!(file.tokens().count(), file.n_ctx() * file.n_chunks());
    assert!(file.tokens().all(|token| (token as usize) < file.n_vocab()));
    true
}

/// Maximum bytes of a template that is run here: longer ones nest deeper than the stack, which only a separate process
/// limits.
const MAX_TEMPLATE_BYTES: usize = 1 << 10;

/// Runs a chat template on three chats in the interpreter. Programs run it in a separate process with limited memory
/// and time; templates that need those limits are skipped here.
pub(super) fn template(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    // Numbers of several digits can be widths and counts of gigabytes; nested loops can take hours.
    let is_wide = data.windows(4).any(|digits| digits.iter().all(u8::is_ascii_digit));
    let n_loops = text.matches("for").count() + text.matches("macro").count();
    // A namespace can contain itself, and is then shown or compared without end.
    let is_endless = n_loops > 3 || text.contains("namespace");
    if data.len() > MAX_TEMPLATE_BYTES || is_wide || is_endless || text.contains("**") {
        return false;
    }
    let Some(template) = accepted(ChatTemplate::new(text, vec![("bos_token", "<s>".to_owned())])) else {
        return false;
    };
    let chats = [
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#,
        r#"[{"role": "system", "content": ["a", 1, null]}, {"content": {"x": [true]}}]"#,
        "[]",
    ];
    let chats = chats.map(|chat| serde_json::from_str::<Json>(chat).expect("JSON of ours"));
    chats.iter().filter(|chat| accepted(template.render(chat)).is_some()).count() > 0
}

/// Parses values of options, one per line.
pub(super) fn options(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut is_any = false;
    for line in text.lines() {
        is_any |= accepted(parse_assignment(line)).is_some();
        is_any |= accepted(parse_ggml_type(line)).is_some();
        is_any |= accepted(parse_file_type(line)).is_some() | FileType::parse(line).is_some();
        is_any |= accepted(parse_layers(line)).is_some();
        is_any |= accepted(Override::parse(line)).map(|set| set.file_value()).is_some();
        if let Some(rules) = accepted(TensorTypeRule::parse_list(line)) {
            is_any |= rules.iter().any(|rule| rule.matches("blk.1.attn_q.weight"));
        }
    }
    is_any
}
