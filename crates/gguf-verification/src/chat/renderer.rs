//! Choice of the renderer for a file's chat templates.

use crate::{ChatRenderer, ChatTemplate, IsolatedChat};
use gguf_core::isolated::installed;
use gguf_format::Metadata;

/// Returns a renderer for the templates of a file: in a child process, if programs have installed one.
pub fn renderer(metadata: &Metadata) -> Box<dyn ChatRenderer> {
    match installed() {
        Some(isolation) => Box::new(IsolatedChat::of(metadata, isolation)),
        None => Box::new(ChatTemplate::of(metadata)),
    }
}
