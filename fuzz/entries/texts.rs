//! What people write: configurations, cards, prompts, tasks, templates, values of options; and logit files.

use gguf_foundry::checkpoint::{json, parse_object};
use gguf_foundry::convert::{MetadataFiles, MetadataInputs, ParameterCounts, general_metadata};
use gguf_foundry::core::limits::Limits;
use gguf_foundry::gguf::{FileType, parse_assignment};
use gguf_foundry::quantize::{Override, TensorTypeRule, parse_file_type, parse_ggml_type, parse_layers};
use gguf_foundry::verify::{ChatTemplate, LogitFile, PromptForm, TaskKind, TaskSet, read_prompts};
use serde_json::{Map, Value as Json};

use super::bundle::{self, accepted};
use super::model::EMBEDDED;

/// JSON that our reader accepts is the same to serde_json, unless it has Python's numbers that are none.
pub(super) fn config(data: &[u8]) -> bool {
    let Some(object) = accepted(parse_object(data, &Limits::default())) else { return false };
    // `-0` is the integer 0, as in Python; serde_json has a float for it.
    if !data.windows(2).any(|pair| pair == b"-0")
        && let Ok(other) = serde_json::from_slice::<Map<String, Json>>(data)
    {
        assert_eq!(Json::Object(object), Json::Object(other));
    }
    let _ = accepted(json::parse(data, 8));
    true
}

/// A card of an architecture that someone wrote, beside those that are built in.
pub(super) fn card(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut registry = EMBEDDED.clone();
    accepted(registry.add("fuzzed.toml", text)).is_some() && !registry.classes().is_empty()
}

/// The keys that come of files about a model, and the names of outputs that come of them.
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

/// `README.md` with its front matter.
pub(super) fn model_card(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut files = MetadataFiles::default();
    files.add_card(text);
    general(&files, &Map::new());
    files.warnings.is_empty() && !files.card.is_empty()
}

/// The file of `--metadata`, a generation configuration and a configuration, all of them the same JSON.
pub(super) fn metadata_json(data: &[u8]) -> bool {
    let Some(object) = accepted(parse_object(data, &Limits::default())) else { return false };
    let overrides = MetadataFiles { overrides: object.clone(), ..MetadataFiles::default() };
    general(&overrides, &object);
    let generation = MetadataFiles { generation_config: object.clone(), ..MetadataFiles::default() };
    general(&generation, &object);
    !object.is_empty()
}

/// Prompts in any form.
pub(super) fn prompts(data: &[u8]) -> bool {
    let path = bundle::file("prompts.json", data);
    let _ = read_prompts(&path, PromptForm::PlainText);
    let detected = read_prompts(&path, PromptForm::Detected);
    let lines = read_prompts(&bundle::file("prompts.jsonl", data), PromptForm::Detected);
    let text = read_prompts(&bundle::file("prompts.txt", data), PromptForm::Detected);
    let detected = [detected, lines, text].map(accepted);
    detected.iter().any(Option::is_some)
}

/// Questions with answers; the first byte picks the kind.
pub(super) fn tasks(data: &[u8]) -> bool {
    let Some((&first, rest)) = data.split_first() else { return false };
    let kinds = [TaskKind::HellaSwag, TaskKind::Winogrande, TaskKind::MultipleChoice];
    let path = bundle::file("tasks", rest);
    let kind = kinds[usize::from(first) % kinds.len()];
    let _ = TaskSet::read(kind, &path, Some(2));
    accepted(TaskSet::read(kind, &path, None)).is_some()
}

/// A file of logits: its tokens are tokens.
pub(super) fn logits(data: &[u8]) -> bool {
    let path = bundle::file("fuzz.logits", data);
    let _ = accepted(LogitFile::is_one(&path));
    let Some(file) = accepted(LogitFile::open(&path)) else { return false };
    assert_eq!(file.tokens().count(), file.n_ctx() * file.n_chunks());
    assert!(file.tokens().all(|token| (token as usize) < file.n_vocab()));
    true
}

/// Bytes of a template that is run here: longer ones nest deeper than a stack, which only a process of its own bounds.
const MAX_TEMPLATE_BYTES: usize = 1 << 10;

/// A chat template, run on three chats by the interpreter itself. Programs run it in a process of its own, whose memory
/// and time are bounded; what needs those bounds is left out here.
pub(super) fn template(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    // Numbers of several digits are widths and counts of gigabytes; loops over loops are hours.
    let is_wide = data.windows(4).any(|digits| digits.iter().all(u8::is_ascii_digit));
    let n_loops = text.matches("for").count() + text.matches("macro").count();
    // A namespace can hold itself, and is then shown or compared without end.
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

/// Values of options, a line each.
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
