//! Rendering of chats in a separate process: the worker and the parent's side of it.

use std::sync::Mutex;

use serde_json::{Value as Json, json};

use super::{Chat, ChatError, ChatRenderer, ChatTemplate, MAX_OUTPUT_BYTES, TOKENS, TemplateSource};
use gguf_core::isolated::{Bounds, IsolatedError, Isolation, Worker};
use gguf_core::sync::Unpoisoned;
use gguf_format::Metadata;

/// Chat template that is parsed and run in a child process, with 256 MiB and five seconds for each chat.
///
/// The child is started with the first chat and renders all of them. If it does not survive a chat (no memory, no time,
/// a crash), every later chat fails immediately for the same reason.
#[derive(Debug)]
pub struct IsolatedChat {
    worker: Mutex<Worker>,
}

impl IsolatedChat {
    /// Name of the job.
    pub const JOB: &'static str = "chat";

    /// Prepares the template of a file's metadata, without parsing it.
    ///
    /// # Errors
    /// No template, or one that is too long.
    pub fn of(metadata: &Metadata, isolation: &Isolation) -> Result<Self, ChatError> {
        let TemplateSource { source, named, tokens } = TemplateSource::of(metadata)?;
        let setup = json!({ "source": source, "named": named, "tokens": tokens });
        let bounds = Bounds { reply_bytes: MAX_OUTPUT_BYTES, ..Bounds::default() };
        let worker = Worker::new(isolation, Self::JOB, setup.to_string().into_bytes(), bounds);
        Ok(Self { worker: Mutex::new(worker) })
    }

    /// Returns the child's request handler: the first request sets the template up, each later one renders a chat.
    pub fn job() -> impl FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let mut template: Option<ChatTemplate> = None;
        move |request| match &template {
            Some(template) => {
                let mut chat: Json = serde_json::from_slice(request).map_err(|_| b"chat".to_vec())?;
                let chat = Chat {
                    messages: chat["messages"].take(),
                    tools: chat["tools"].take(),
                    variables: chat["variables"].as_object().cloned().unwrap_or_default(),
                    add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap_or(false),
                    template: chat["template"].as_str().map(str::to_owned),
                };
                template.render_chat(&chat).map(String::into_bytes).map_err(|error| written(&error))
            }
            None => {
                let setup: Json = serde_json::from_slice(request).map_err(|_| b"setup".to_vec())?;
                let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
                let given = setup["tokens"].as_array().into_iter().flatten();
                let tokens = given.filter_map(|pair| {
                    let name = TOKENS.iter().find(|(name, _)| pair[0] == **name)?.0;
                    Some((name, text(&pair[1])))
                });
                let source = text(&setup["source"]);
                let named = setup["named"].as_array().into_iter().flatten();
                let named = named.map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
                let made = ChatTemplate::new(&source, tokens.collect()).map_err(|error| written(&error))?;
                template = Some(made.with_named(named));
                Ok(Vec::new())
            }
        }
    }

    fn run(
        &self,
        work: impl FnOnce(&mut Worker) -> Result<Vec<u8>, IsolatedError>,
    ) -> Result<Vec<u8>, ChatError> {
        let mut worker = self.worker.lock().unpoisoned();
        work(&mut worker).map_err(|error| match error {
            IsolatedError::Refused { reason } => read(&reason),
            error => ChatError::Isolated(error),
        })
    }
}

impl ChatRenderer for IsolatedChat {
    fn check(&self) -> Result<(), ChatError> {
        self.run(|worker| worker.start().map(Option::unwrap_or_default)).map(|_| ())
    }

    fn render_chat(&self, chat: &Chat) -> Result<String, ChatError> {
        let request = json!({
            "messages": chat.messages, "tools": chat.tools, "template": chat.template,
            "variables": chat.variables,
            "add_generation_prompt": chat.add_generation_prompt,
        });
        let text = self.run(|worker| worker.ask(request.to_string().as_bytes()))?;
        String::from_utf8(text).map_err(|_| ChatError::Isolated(IsolatedError::Garbage))
    }
}

/// Encodes an error for the parent.
fn written(error: &ChatError) -> Vec<u8> {
    let (kind, line, reason) = match error {
        ChatError::Syntax { line, reason } => ("syntax", *line, reason.clone()),
        ChatError::Refused { reason } => ("refused", 0, reason.clone()),
        ChatError::Failed { line, reason } => ("failed", *line, reason.clone()),
        ChatError::Output { .. } => ("output", 0, String::new()),
        ChatError::Missing => ("missing", 0, String::new()),
        other => ("failed", 0, other.to_string()),
    };
    json!([kind, line, reason]).to_string().into_bytes()
}

/// Decodes an error that came from the child.
fn read(bytes: &[u8]) -> ChatError {
    let error: Json = serde_json::from_slice(bytes).unwrap_or_default();
    let line = error[1].as_u64().and_then(|line| usize::try_from(line).ok()).unwrap_or(0);
    let reason = error[2].as_str().unwrap_or_default().to_owned();
    match error[0].as_str() {
        Some("syntax") => ChatError::Syntax { line, reason },
        Some("refused") => ChatError::Refused { reason },
        Some("failed") => ChatError::Failed { line, reason },
        Some("missing") => ChatError::Missing,
        Some("output") => ChatError::Output { limit: MAX_OUTPUT_BYTES },
        _ => ChatError::Isolated(IsolatedError::Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_way_to_the_parent() {
        let reason = "no\u{1b}".to_owned();
        for error in [
            ChatError::Syntax { line: 3, reason: reason.clone() },
            ChatError::Refused { reason: reason.clone() },
            ChatError::Failed { line: 9, reason },
            ChatError::Output { limit: MAX_OUTPUT_BYTES },
        ] {
            assert_eq!(read(&written(&error)), error);
        }
        assert_eq!(read(b"?"), ChatError::Isolated(IsolatedError::Garbage));
    }

    #[test]
    fn the_job_takes_a_template_and_then_chats() {
        let mut job = IsolatedChat::job();
        assert!(job(br#"{"source": "{% if %}", "tokens": []}"#).is_err());
        let setup = br#"{"source": "{{ bos_token }}{{ messages[0] }}", "tokens": [["bos_token", "<s>"]]}"#;
        assert_eq!(job(setup), Ok(Vec::new()));
        assert_eq!(job(b"{\"messages\": [\"a\"]}"), Ok(b"<s>a".to_vec()));
        assert_eq!(job(b"{\"messages\": [\"b\"]}"), Ok(b"<s>b".to_vec()));
        assert!(job(b"{\"messages\": [\"b\"], \"template\": \"rag\"}").is_err());
    }
}
