//! Checks of a file's chat templates: each is searched for unknown names, and rendered with built-in chats. Answers must
//! end with a token at which the runtime ends.

use crate::chat::builtin::{Chat, turns};
use crate::chat::names::{free, is_known_elsewhere, unknown};
use crate::chat::stop::endless;
use crate::chat::{ChatError, ChatRenderer, KEY};
use crate::{Check, Finding, Severity};
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};
use serde_json::json;

const CHECK: Check = Check::ChatTemplate;
/// Description of the simplest chat.
const QUESTION: &str = "a single question";

/// Checks the templates of a file. A template may refuse a chat (no system messages, no tools), but not every chat.
pub(super) fn check(metadata: &Metadata, renderer: &dyn ChatRenderer) -> Vec<Finding> {
    let (mut found, answers) = findings(metadata, renderer);
    found.extend(answers);
    found
}

/// Returns the findings about the rendering of a file's templates, and those about what they write of a chat.
pub fn findings(metadata: &Metadata, renderer: &dyn ChatRenderer) -> (Vec<Finding>, Vec<Finding>) {
    let alone = |finding| (vec![finding], Vec::new());
    match renderer.check() {
        Err(ChatError::Missing) => return Default::default(),
        Err(error) if error.is_finding() => return alone(Finding::error(CHECK, error.to_string())),
        Err(error) => return alone(Finding::unchecked(CHECK, error.to_string())),
        Ok(()) => {}
    }
    let prefix = format!("{KEY}.");
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let named = metadata.iter().filter_map(|(key, _)| key.strip_prefix(&prefix));
    let names = std::iter::once(None).chain(named.map(|name| Some(name.to_owned())));
    let (mut found, mut answers) = (Vec::new(), Vec::new());
    for name in names {
        let key = name.as_ref().map_or_else(|| KEY.to_owned(), |name| format!("{prefix}{name}"));
        let of_this = check_one(&text(&key), name.as_deref(), renderer);
        let whose = name.as_ref().map(|name| format!("template `{}`: ", escape(name))).unwrap_or_default();
        if of_this.iter().all(|finding| finding.severity == Severity::Warning)
            && let Some(why) = ignores_chats(name.as_deref(), renderer)
                .map(str::to_owned)
                .or_else(|| endless(metadata, name.as_deref(), renderer))
        {
            answers.push(Finding::warning(CHECK, format!("{whose}{why}")));
        }
        found.extend(
            of_this
                .into_iter()
                .map(|finding| Finding { message: format!("{whose}{}", finding.message), ..finding }),
        );
    }
    (found, answers)
}

/// Says so if the default template writes something of a question, but not its text, which some templates expect in parts.
fn ignores_chats(name: Option<&str>, renderer: &dyn ChatRenderer) -> Option<&'static str> {
    let chat = Chat::builtin("user").filter(|_| name.is_none())?;
    let text = chat.messages[0]["content"].as_str()?.to_owned();
    let written = renderer.render_chat(&chat).ok()?;
    let in_parts = json!([{ "role": "user", "content": [{ "type": "text", "text": text }] }]);
    let has_text = |written: String| written.contains(&text);
    let is_ignored = !written.trim().is_empty()
        && !has_text(written)
        && !renderer.render_chat(&Chat { messages: in_parts, ..chat }).is_ok_and(has_text);
    is_ignored.then_some("it writes the same for every chat: the user's text is not in it")
}

fn check_one(source: &str, name: Option<&str>, renderer: &dyn ChatRenderer) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for unknown in unknown(source) {
        let (what, name) = (unknown.used_as.name(), escape(&unknown.name).into_owned());
        findings.push(Finding::error(CHECK, format!("line {}: no {what} is named `{name}`", unknown.line)));
    }
    if name.is_some() {
        findings.extend(none_renders(name, renderer, &findings));
        return findings;
    }
    let render = |chat: Chat| renderer.render_chat(&Chat { template: name.map(str::to_owned), ..chat });
    let plain = |messages, add_generation_prompt| Chat { add_generation_prompt, ..Chat::of(messages) };
    let user = Chat::builtin("user").unwrap_or_else(|| Chat::of(turns(false)));
    let first = render(user.clone()).and_then(|_| render(Chat { add_generation_prompt: false, ..user }));
    match &first {
        Err(error @ ChatError::Refused { .. }) => {
            let others = render(plain(turns(true), true)).or_else(|_| render(plain(turns(false), true)));
            if others.is_err() {
                findings.push(Finding::error(
                    CHECK,
                    format!("no chat is rendered, not a single question: {error}"),
                ));
            }
        }
        // If a template reads variables that are not standard, its users must set them.
        Err(ChatError::Failed { reason, .. }) if reason.contains("undefined") && !free(source).is_empty() => {
            let names = free(source).join("`, `");
            let message = format!("it reads `{}`, which has to be set for it", escape(&names));
            findings.push(Finding::warning(CHECK, message));
        }
        Err(error) => findings.extend(failure(error, QUESTION, &findings)),
        Ok(_) => {}
    }
    // A template that refuses system messages is tried without them.
    if first.is_ok()
        && let Err(error) = render(plain(turns(true), true)).or_else(|error| match error {
            ChatError::Refused { .. } => render(plain(turns(false), true)),
            error => Err(error),
        })
    {
        findings.extend(failure(&error, "several turns", &findings));
    }
    // No further chat if the template fails on a question.
    let is_fit = !matches!(first, Err(ref error) if error.is_finding());
    if let (true, Some(chat)) = (is_fit && source.contains("tool"), Chat::builtin("tools"))
        && let Err(error) = render(chat)
    {
        findings.extend(failure(&error, "a call of a tool", &findings));
    }
    findings
}

/// Checks a named template, which is for one kind of chat: it is at fault if it renders no chat.
fn none_renders(name: Option<&str>, renderer: &dyn ChatRenderer, told: &[Finding]) -> Option<Finding> {
    let mut first = None;
    for chat in ["tools", "user", "turns"].into_iter().filter_map(Chat::builtin) {
        match renderer.render_chat(&Chat { template: name.map(str::to_owned), ..chat }) {
            Ok(_) => return None,
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.and_then(|error| match error {
        ChatError::Refused { .. } => None,
        error => failure(&error, QUESTION, told),
    })
}

/// Returns the finding for a chat that a template fails on: an error for the simplest chat or an unknown name,
/// otherwise a warning.
fn failure(error: &ChatError, chat: &str, told: &[Finding]) -> Option<Finding> {
    let message = format!("{error}, with {chat}");
    match error {
        ChatError::Refused { .. } => None,
        error if !error.is_finding() => Some(Finding::unchecked(CHECK, error.to_string())),
        ChatError::Failed { reason, .. } if is_known_elsewhere(reason) => {
            let message = format!("{message}: not known to this program");
            Some(if chat == QUESTION {
                Finding::unchecked(CHECK, message)
            } else {
                Finding::warning(CHECK, message)
            })
        }
        // The name was reported with its line.
        ChatError::Failed { reason, .. } if is_unknown_name(reason) && !told.is_empty() => None,
        ChatError::Failed { reason, .. } if !is_unknown_name(reason) && chat != QUESTION => {
            Some(Finding::warning(CHECK, message))
        }
        _ => Some(Finding::error(CHECK, message)),
    }
}

fn is_unknown_name(reason: &str) -> bool {
    ["unknown filter", "unknown test", "unknown function", "unknown method"]
        .iter()
        .any(|kind| reason.starts_with(kind))
}
