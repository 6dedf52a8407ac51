//! Choice of the renderer for a file's chat templates.

use crate::core::isolated::installed;
use crate::gguf::Metadata;
use crate::verify::{ChatRenderer, ChatTemplate, IsolatedChat};

/// Returns a renderer for the templates of a file: in a child process, if programs have installed one.
pub(crate) fn renderer(metadata: &Metadata) -> Box<dyn ChatRenderer> {
    match installed() {
        Some(isolation) => Box::new(IsolatedChat::of(metadata, isolation)),
        None => Box::new(ChatTemplate::of(metadata)),
    }
}
