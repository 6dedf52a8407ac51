//! Chat templates: listing those of a file, and reading new ones.

use std::path::Path;

use serde_json::Value as Json;

use crate::EditError;
use gguf_checkpoint::json;
use gguf_core::input;
use gguf_core::limits::Limits;
use gguf_format::{Metadata, Value};
use gguf_tokenizer::chat_template::ChatTemplates;

/// Key of the template that is used by default.
pub(super) const PLAIN: &str = "tokenizer.chat_template";
/// Name of the plain template among others.
const DEFAULT: &str = "default";

/// A template with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedTemplate<'a> {
    /// Name; `default` for the plain template.
    pub name: &'a str,
    /// Text of the template.
    pub text: &'a [u8],
}

/// Returns the templates of a file, the plain one first.
pub fn chat_templates(metadata: &Metadata) -> Vec<NamedTemplate<'_>> {
    let mut found: Vec<_> = metadata
        .iter()
        .filter_map(|(key, value)| {
            let Value::String(text) = value else { return None };
            Some(NamedTemplate { name: name_of(key)?, text })
        })
        .collect();
    found.sort_by_key(|template| template.name != DEFAULT);
    found
}

/// Returns the name of the template that a key holds.
fn name_of(key: &str) -> Option<&str> {
    match key.strip_prefix(PLAIN)? {
        "" => Some(DEFAULT),
        rest => rest.strip_prefix('.').filter(|name| !name.is_empty()),
    }
}

/// Returns true for a template key: of one template, or of the list of names.
pub(super) fn is_template(key: &str) -> bool {
    key == "tokenizer.chat_templates" || name_of(key).is_some()
}

/// Reads templates from a file and returns them as keys.
///
/// A `.json` file is a configuration with a member `chat_template` (a text, or a list of names and texts), or such a
/// list itself. Any other file is the text of one template.
///
/// # Errors
/// I/O errors, malformed JSON, text that is not UTF-8, a file without a template.
pub fn read_templates(path: &Path) -> Result<Metadata, EditError> {
    let bytes =
        input::read(path).map_err(|error| EditError::TemplateFile { path: path.to_owned(), error })?;
    let no_template = || EditError::NoTemplate { path: path.to_owned() };
    let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    let templates = if is_json {
        let document: Json = json::parse(&bytes, Limits::default().depth)
            .map_err(|error| EditError::TemplateJson { path: path.to_owned(), error })?;
        let member = if document.is_array() { Some(&document) } else { document.get("chat_template") };
        member.and_then(ChatTemplates::of).ok_or_else(no_template)?
    } else {
        let text = String::from_utf8(bytes).map_err(|error| EditError::TemplateUtf8 {
            path: path.to_owned(),
            offset: error.utf8_error().valid_up_to(),
        })?;
        // A mark of the byte order would be a character of every chat.
        ChatTemplates::One(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
    };
    let mut keys = Metadata::new();
    templates.write(&mut keys);
    if keys.is_empty() { Err(no_template()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_names() {
        let mut metadata = Metadata::new();
        metadata.set("tokenizer.chat_template.tool_use", "T");
        metadata.set("tokenizer.chat_templates", vec!["tool_use"]);
        metadata.set("tokenizer.chat_template", "D");
        metadata.set("tokenizer.chat_template.", "no name");
        let found: Vec<_> =
            chat_templates(&metadata).iter().map(|template| (template.name, template.text)).collect();
        assert_eq!(found, [("default", &b"D"[..]), ("tool_use", &b"T"[..])]);
        for (key, expected) in
            [(PLAIN, true), ("tokenizer.chat_templates", true), ("tokenizer.chat_templated", false)]
        {
            assert_eq!(is_template(key), expected, "{key}");
        }
    }

    #[test]
    fn files_are_read_by_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs_err::write(&path, text).unwrap();
            read_templates(&path).map(|keys| {
                keys.iter()
                    .map(|(key, value)| (key.to_owned(), crate::value_text(value, None, None)))
                    .collect::<Vec<_>>()
            })
        };
        let marked = read("m.jinja", "\u{feff}{{ x }}").unwrap();
        assert_eq!(marked, [(PLAIN.to_owned(), "{{ x }}".to_owned())]);
        let key = |key: &str, text: &str| (key.to_owned(), text.to_owned());
        assert_eq!(read("a.jinja", "{{ x }}\n").unwrap(), [key(PLAIN, "{{ x }}\\n")]);
        assert_eq!(read("c.json", r#"{"chat_template": "one"}"#).unwrap(), [key(PLAIN, "one")]);
        let many = r#"[{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]"#;
        let expected = [
            key("tokenizer.chat_template.tool_use", "t"),
            key("tokenizer.chat_templates", "[\"tool_use\"]"),
            key(PLAIN, "d"),
        ];
        assert_eq!(read("list.json", many).unwrap(), expected);
        let inside = format!("{{\"chat_template\": {many}}}");
        assert_eq!(read("config.json", &inside).unwrap(), expected);
        for (name, text) in [("e.jinja", ""), ("e.json", "{}"), ("n.json", r#"{"chat_template": 5}"#)] {
            assert!(matches!(read(name, text), Err(EditError::NoTemplate { .. })), "{name}");
        }
        assert!(matches!(read("b.json", "{"), Err(EditError::TemplateJson { .. })));
    }
}
