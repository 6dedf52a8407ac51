//! Chat templates that are about to be written: what no runtime could read is said before.

use crate::core::isolated::installed;
use crate::gguf::Metadata;
use crate::inspect::chat_templates;
use crate::verify::{ChatError, ChatRenderer, ChatTemplate, IsolatedChat};

/// What writes out chats by a file's templates: in a child of this program, where programs do so.
pub(crate) fn renderer(metadata: &Metadata) -> Box<dyn ChatRenderer> {
    match installed() {
        Some(isolation) => Box::new(IsolatedChat::of(metadata, isolation)),
        None => Box::new(ChatTemplate::of(metadata)),
    }
}

/// What is wrong with the templates among these keys: their names, and why they are none. A template is a stranger's program: it is
/// parsed in a child of this one, where programs do so.
pub(super) fn faults(metadata: &Metadata) -> Vec<(String, String)> {
    let templates = chat_templates(metadata).into_iter().map(|template| {
        let mut alone = Metadata::new();
        // What is no text is another finding, and not one of Jinja's.
        alone.set("tokenizer.chat_template", String::from_utf8_lossy(template.text).into_owned());
        (template.name.to_owned(), fault(&alone))
    });
    templates.filter_map(|(name, fault)| Some((name, fault?))).collect()
}

fn fault(metadata: &Metadata) -> Option<String> {
    let error = renderer(metadata).check().err().filter(ChatError::is_finding)?.to_string();
    Some(error.strip_prefix("chat template: ").unwrap_or(&error).to_owned())
}
