//! Chat templates: one text, or several with names. They are copied, not rendered.

use crate::Result;
use serde_json::Value as Json;

use gguf_format::{Metadata, Value};

use super::TokenizerWarning;
use super::files::{CONFIG, Directory};

const JINJA: &str = "chat_template.jinja";
/// Folder of the named templates beside it.
const FOLDER: &str = "additional_chat_templates";
/// Files that hold templates, in order of precedence. transformers prefers the template file over the configuration,
/// and also reads the processor's files for multimodal models.
const SOURCES: [&str; 4] = [JINJA, CONFIG, "chat_template.json", "processor_config.json"];
/// Maximum number of characters of a template in messages.
const SHOWN: usize = 60;
/// Name of the template that applies by default.
const DEFAULT: &str = "default";

/// Templates of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ChatTemplates {
    /// No template.
    #[default]
    None,
    /// A single template.
    One(String),
    /// Several templates: name and text. The one named `default` is written under the plain key.
    Many(Vec<(String, String)>),
}

impl ChatTemplates {
    /// Reads the templates. If files hold different ones, the first of [`SOURCES`] applies, as in transformers, with a
    /// warning. Files that agree complete one another.
    pub(crate) fn read(
        directory: &Directory<'_>,
        config: &Json,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self> {
        Ok(Self::find(directory, config, warnings)?.map_or(Self::None, |found| found.templates))
    }

    fn find(
        directory: &Directory<'_>,
        config: &Json,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Option<FoundTemplates>> {
        let mut taken: Option<FoundTemplates> = None;
        for file in SOURCES {
            let templates = match file {
                JINJA => of_files(directory, warnings)?,
                CONFIG => Self::of_member(config, file, warnings),
                _ => Self::of_member(&directory.lenient_tree(file)?, file, warnings),
            };
            let is_default = templates.default_text().is_some();
            let file = if file == JINJA && !is_default { FOLDER } else { file };
            let found = FoundTemplates { file, templates };
            match &mut taken {
                _ if found.templates == Self::None => {}
                None => taken = Some(found),
                Some(first) if first.agrees_with(&found) => first.complete(&found),
                Some(first) => warnings.push(TokenizerWarning::ChatTemplatesDiffer {
                    taken: first.file,
                    n_taken: first.templates.n_bytes(),
                    other: found.file,
                    n_other: found.templates.n_bytes(),
                }),
            }
        }
        Ok(taken)
    }

    /// Reads the member `chat_template` of a file; null and an empty text count as absent.
    fn of_member(json: &Json, file: &'static str, warnings: &mut Vec<TokenizerWarning>) -> Self {
        let member = json.get("chat_template").unwrap_or(&Json::Null);
        match Self::of(member) {
            Some(Self::One(text)) if text.is_empty() => Self::None,
            Some(templates) => templates,
            None => {
                warnings.push(TokenizerWarning::BadChatTemplate { file });
                Self::None
            }
        }
    }

    /// Parses a member `chat_template`; `None` if it is neither a text, a list of names and texts, nor a table of texts by
    /// name.
    pub fn of(member: &Json) -> Option<Self> {
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
            Json::Object(choices) => {
                let text = |(name, text): (&String, &Json)| Some((name.clone(), text.as_str()?.to_owned()));
                Self::Many(choices.iter().map(text).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// Returns names and texts; the name of a single template is `default`.
    fn named(&self) -> Vec<(&str, &str)> {
        match self {
            Self::None => Vec::new(),
            Self::One(text) => vec![(DEFAULT, text)],
            Self::Many(choices) => {
                choices.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
            }
        }
    }

    fn default_text(&self) -> Option<&str> {
        self.named().into_iter().find(|choice| choice.0 == DEFAULT).map(|choice| choice.1)
    }

    fn n_bytes(&self) -> usize {
        self.named().iter().map(|choice| choice.1.len()).sum()
    }

    /// Writes the keys: named templates in their order, then the sorted list of names, then the plain one. An empty
    /// text is not written. (The reference lists the names in the random order of a set.)
    pub fn write(&self, out: &mut Metadata) {
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
                        DEFAULT => plain = Some(text),
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

/// Templates with the file that holds them.
struct FoundTemplates {
    file: &'static str,
    templates: ChatTemplates,
}

impl FoundTemplates {
    /// Returns true if no name has two different texts. Jinja ignores the line feed at the end of a template.
    fn agrees_with(&self, other: &Self) -> bool {
        let own = self.templates.named();
        let plain = |text: &str| text.strip_suffix('\n').unwrap_or(text).to_owned();
        other.templates.named().iter().all(|(name, text)| {
            own.iter().all(|(own_name, own_text)| own_name != name || plain(own_text) == plain(text))
        })
    }

    /// Adds the templates of a file that agrees. If both have one, it is spelled as in the tokenizer's configuration,
    /// like in files of the reference.
    fn complete(&mut self, other: &Self) {
        if self.templates.default_text().is_none() && other.templates.default_text().is_some() {
            self.file = other.file;
        }
        let (first, second) = if other.file == CONFIG {
            (&other.templates, &self.templates)
        } else {
            (&self.templates, &other.templates)
        };
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, text) in first.named().into_iter().chain(second.named()) {
            if !all.iter().any(|known| known.0 == name) {
                all.push((name.to_owned(), text.to_owned()));
            }
        }
        self.templates = match all.as_slice() {
            [(name, text)] if name == DEFAULT => ChatTemplates::One(text.clone()),
            _ => ChatTemplates::Many(all),
        };
    }
}

/// Reads `chat_template.jinja` and `additional_chat_templates/*.jinja`, sorted by name.
fn of_files(directory: &Directory<'_>, warnings: &mut Vec<TokenizerWarning>) -> Result<ChatTemplates> {
    let default = directory.text(JINJA)?.filter(|text| {
        if text.is_empty() {
            warnings.push(TokenizerWarning::EmptyChatTemplate { file: JINJA });
        }
        !text.is_empty()
    });
    let mut others = additional(directory)?;
    Ok(match default {
        None if others.is_empty() => ChatTemplates::None,
        Some(default) if others.is_empty() => ChatTemplates::One(default),
        default => {
            others.splice(0..0, default.map(|text| (DEFAULT.to_owned(), text)));
            ChatTemplates::Many(others)
        }
    })
}

fn additional(directory: &Directory<'_>) -> Result<Vec<(String, String)>> {
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

/// Warns about templates that were not written to the keys of a vocabulary, and about a conversational model without
/// any.
pub(super) fn settle(
    directory: &Directory<'_>,
    rows: &Metadata,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<()> {
    let config = directory.lenient_tree(CONFIG)?;
    let written = rows.get("tokenizer.chat_template").and_then(Value::as_str);
    let found = ChatTemplates::find(directory, &config, &mut Vec::new())?;
    match (found, written) {
        (Some(found), _) => match found.templates.default_text() {
            // A name of a file, for example: no message has a place in it.
            Some(text) if written == Some(text) && !text.contains("{{") => {
                let (file, text) = (found.file, text.chars().take(SHOWN).collect());
                warnings.push(TokenizerWarning::PlainChatTemplate { file, text });
            }
            Some(text) if written == Some(text) => {}
            Some(_) => warnings.push(TokenizerWarning::ChatTemplateNotWritten { file: found.file }),
            None if written.is_none() => {
                warnings.push(TokenizerWarning::NoDefaultTemplate { file: found.file });
            }
            None => {}
        },
        // Already reported for vocabularies in Mistral's own format.
        (None, None)
            if warnings.iter().any(|told| matches!(told, TokenizerWarning::NoMistralTemplate { .. })) => {}
        (None, None) => {
            let name = conversational_name(directory)?;
            warnings.extend(name.map(|name| TokenizerWarning::NoChatTemplate { name }));
        }
        (None, Some(_)) => {}
    }
    Ok(())
}

/// Returns the name of a generative model if the name indicates a conversational model.
fn conversational_name(directory: &Directory<'_>) -> Result<Option<String>> {
    const CLASSES: [&str; 3] = ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];
    const WORDS: [&str; 3] = ["instruct", "chat", "it"];
    let config = directory.lenient_tree("config.json")?;
    let class = config.get("architectures").and_then(|classes| classes.get(0)?.as_str()).unwrap_or_default();
    // Models saved by sentence-transformers receive instructions but return vectors.
    let is_embedding = directory.join("modules.json").is_file();
    if is_embedding || !CLASSES.iter().any(|end| class.ends_with(end)) {
        return Ok(None);
    }
    let own = directory.path().file_name().map(|name| name.to_string_lossy().into_owned());
    let origin = config.get("_name_or_path").and_then(Json::as_str);
    let origin = origin.and_then(|name| name.rsplit('/').next()).map(str::to_owned);
    let is_meant = |name: &String| {
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)))
    };
    Ok([own, origin].into_iter().flatten().find(is_meant))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use gguf_core::limits::Limits;

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
    fn a_table_has_templates_by_name() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let table = ChatTemplates::of(&json!({"default": "D", "rag": "R"}));
        assert_eq!(table, Some(ChatTemplates::Many(vec![pair("default", "D"), pair("rag", "R")])));
        assert_eq!(ChatTemplates::of(&json!({"default": 1})), None);
    }

    #[test]
    fn a_template_that_takes_no_message_and_one_without_a_default_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join(CONFIG);
        let said = || {
            let directory = Directory::new(dir.path(), Limits::default());
            let (mut rows, mut warnings) = (Metadata::new(), Vec::new());
            let config = directory.tree(CONFIG).unwrap();
            ChatTemplates::read(&directory, &config, &mut Vec::new()).unwrap().write(&mut rows);
            settle(&directory, &rows, &mut warnings).unwrap();
            warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        fs_err::write(&config, json!({"chat_template": "{{ messages }}"}).to_string()).unwrap();
        assert_eq!(said(), [""; 0]);
        fs_err::write(&config, json!({"chat_template": "chat_template.jinja"}).to_string()).unwrap();
        assert!(said()[0].contains("is the plain text `chat_template.jinja`"), "{:?}", said());
        fs_err::remove_file(&config).unwrap();
        fs_err::create_dir(dir.path().join(FOLDER)).unwrap();
        fs_err::write(dir.path().join(FOLDER).join("rag.jinja"), "{{ messages }}").unwrap();
        assert!(
            said()[0].starts_with("additional_chat_templates: no chat template is named"),
            "{:?}",
            said()
        );
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
        let of_files = ChatTemplates::Many(vec![pair("default", "main"), pair("a", "a"), pair("b", "b")]);
        assert_eq!(read(json!({"chat_template": null}), &mut warnings), of_files);
        assert_eq!(read(json!({"chat_template": "main\n"}), &mut warnings).default_text(), Some("main\n"));
        assert!(warnings.is_empty());
        assert_eq!(read(json!({"chat_template": 5}), &mut warnings), of_files);
        assert_eq!(warnings.len(), 1);
        let list = json!({"chat_template": [{"name": "default", "template": "main"}, {"name": "a", "template": "x"}]});
        assert_eq!(read(list, &mut warnings), of_files);
        assert_eq!(warnings.len(), 2);
        let all = read(json!({"chat_template": [{"name": "c", "template": "c"}]}), &mut warnings);
        assert_eq!(all.named().len(), 4);
        assert_eq!(warnings.len(), 2);
    }
}
