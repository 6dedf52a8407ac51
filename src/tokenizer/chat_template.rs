//! Chat templates: one text, or several with names. They are carried, not rendered.

use serde_json::Value as Json;

use crate::gguf::Metadata;

use super::files::{CONFIG, Directory};
use super::{TokenizerError, TokenizerWarning};

/// The templates of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ChatTemplates {
    /// None.
    #[default]
    None,
    /// One.
    One(String),
    /// Several: name and text. The one named `default` is the plain key's.
    Many(Vec<(String, String)>),
}

impl ChatTemplates {
    /// Finds the templates: the member `chat_template` of the configuration if it is there (even as null), else
    /// `chat_template.jinja` with `additional_chat_templates/`, else `chat_template.json`.
    ///
    /// # Errors
    /// I/O errors, malformed JSON, text that is not UTF-8.
    pub(crate) fn read(
        directory: &Directory<'_>,
        config: &Json,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self, TokenizerError> {
        if let Some(member) = config.get("chat_template") {
            return Ok(Self::from_json(member, CONFIG, warnings));
        }
        if let Some(default) = directory.text("chat_template.jinja")? {
            let mut others = additional(directory)?;
            if others.is_empty() {
                return Ok(Self::One(default));
            }
            others.insert(0, ("default".to_owned(), default));
            return Ok(Self::Many(others));
        }
        let file = directory.tree("chat_template.json")?;
        let member = file.get("chat_template").unwrap_or(&Json::Null);
        Ok(Self::from_json(member, "chat_template.json", warnings))
    }

    fn from_json(member: &Json, file: &'static str, warnings: &mut Vec<TokenizerWarning>) -> Self {
        Self::of(member).unwrap_or_else(|| {
            warnings.push(TokenizerWarning::BadChatTemplate { file });
            Self::None
        })
    }

    /// What a member `chat_template` says; `None` if it is neither a text nor a list of names and texts.
    pub(crate) fn of(member: &Json) -> Option<Self> {
        Some(match member {
            Json::Null => Self::None,
            Json::String(text) => Self::One(text.clone()),
            Json::Array(choices) => Self::Many(
                choices
                    .iter()
                    .filter_map(|choice| {
                        let name = choice.get("name")?.as_str()?;
                        Some((name.to_owned(), choice.get("template")?.as_str()?.to_owned()))
                    })
                    .collect(),
            ),
            _ => return None,
        })
    }

    /// Writes the keys: named templates in their order, then the sorted list of names, then the plain one. An empty
    /// text is not written. (The reference lists the names in the random order of a set.)
    pub(crate) fn write(&self, out: &mut Metadata) {
        let mut plain = None;
        match self {
            Self::None => {}
            Self::One(text) => plain = Some(text),
            Self::Many(choices) => {
                let mut names = Vec::new();
                for (name, text) in choices {
                    let name: String =
                        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
                    match name.as_str() {
                        "" => {}
                        "default" => plain = Some(text),
                        _ => {
                            if !text.is_empty() {
                                out.set(format!("tokenizer.chat_template.{name}"), text.as_str());
                            }
                            names.push(name);
                        }
                    }
                }
                names.sort_unstable();
                names.dedup();
                if !names.is_empty() {
                    out.set("tokenizer.chat_templates", names);
                }
            }
        }
        if let Some(text) = plain.filter(|text| !text.is_empty()) {
            out.set("tokenizer.chat_template", text.as_str());
        }
    }
}

/// `additional_chat_templates/*.jinja`, sorted by name.
fn additional(directory: &Directory<'_>) -> Result<Vec<(String, String)>, TokenizerError> {
    const FOLDER: &str = "additional_chat_templates";
    let folder = directory.join(FOLDER);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut templates = Vec::new();
    for entry in fs_err::read_dir(&folder)? {
        let file = entry?.file_name();
        let Some(file) = file.to_str() else { continue };
        if let Some(name) = file.strip_suffix(".jinja")
            && let Some(text) = directory.text(&format!("{FOLDER}/{file}"))?
        {
            templates.push((name.to_owned(), text));
        }
    }
    templates.sort_unstable();
    Ok(templates)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::limits::Limits;

    fn keys(templates: &ChatTemplates) -> Vec<(String, String)> {
        let mut out = Metadata::new();
        templates.write(&mut out);
        out.iter().map(|(key, value)| (key.to_owned(), format!("{value:?}"))).collect()
    }

    #[test]
    fn a_list_is_written_with_sorted_names() {
        let config = json!({"chat_template": [
            {"name": "tool use", "template": "T"}, {"name": "default", "template": "D"}, {"name": "rag", "template": "R"},
        ]});
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::new(dir.path(), Limits::default());
        let mut warnings = Vec::new();
        let templates = ChatTemplates::read(&directory, &config, &mut warnings).unwrap();
        let keys: Vec<_> = keys(&templates).into_iter().map(|(key, _)| key).collect();
        assert_eq!(
            keys,
            [
                "tokenizer.chat_template.tool_use",
                "tokenizer.chat_template.rag",
                "tokenizer.chat_templates",
                "tokenizer.chat_template"
            ]
        );
        let mut out = Metadata::new();
        templates.write(&mut out);
        let names = vec!["rag".to_owned(), "tool_use".to_owned()];
        assert_eq!(out.get("tokenizer.chat_templates"), Some(&names.into()));
    }

    #[test]
    fn files_are_found_when_the_configuration_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("chat_template.jinja"), "main").unwrap();
        fs_err::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        for name in ["b", "a"] {
            let path = dir.path().join("additional_chat_templates").join(format!("{name}.jinja"));
            fs_err::write(path, name).unwrap();
        }
        let directory = Directory::new(dir.path(), Limits::default());
        let mut warnings = Vec::new();
        let read =
            |config: Json, warnings: &mut Vec<_>| ChatTemplates::read(&directory, &config, warnings).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            read(json!({"x": 1}), &mut warnings),
            ChatTemplates::Many(vec![pair("default", "main"), pair("a", "a"), pair("b", "b")])
        );
        assert_eq!(read(json!({"chat_template": null}), &mut warnings), ChatTemplates::None);
        assert!(warnings.is_empty());
        assert_eq!(read(json!({"chat_template": 5}), &mut warnings), ChatTemplates::None);
        assert_eq!(warnings.len(), 1);
    }
}
