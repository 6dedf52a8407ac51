//! Checks of chat templates before they are written: reports those that no runtime could parse.

use crate::gguf::Metadata;
use crate::inspect::chat_templates;
use crate::verify::{ChatError, renderer};

/// Number of templates that are parsed, each in a child process. Models have a few.
const MAX_PARSED: usize = 64;

/// Returns the names of the templates among these keys that cannot be parsed, each with the reason. A template is an
/// untrusted program: it is parsed in a child process, if programs have installed one.
pub(crate) fn template_faults(metadata: &Metadata) -> Vec<(String, String)> {
    let all = chat_templates(metadata);
    let beyond = all.get(MAX_PARSED).map(|template| {
        (
            template.name.to_owned(),
            Some(format!("this one and all behind it are not checked: {} templates", all.len())),
        )
    });
    let templates = all.iter().take(MAX_PARSED).map(|template| {
        let mut alone = Metadata::new();
        // Bytes that are not UTF-8 are another finding, not one of Jinja's.
        alone.set("tokenizer.chat_template", String::from_utf8_lossy(template.text).into_owned());
        (template.name.to_owned(), fault(&alone))
    });
    templates.chain(beyond).filter_map(|(name, fault)| Some((name, fault?))).collect()
}

fn fault(metadata: &Metadata) -> Option<String> {
    let error = renderer(metadata).check().err().filter(ChatError::is_finding)?.to_string();
    Some(error.strip_prefix("chat template: ").unwrap_or(&error).to_owned())
}
