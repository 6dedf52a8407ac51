//! Checks of chat templates before they are written: each is parsed and rendered.

use crate::gguf::Metadata;
use crate::inspect::chat_templates;
use crate::verify::{ChatError, Severity, chat_template_findings, renderer};

/// Number of templates that are parsed, each in a child process. Models have a few.
const MAX_PARSED: usize = 64;

/// Findings about the templates of a file that is to be written.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TemplateFindings {
    /// Templates that no runtime renders: name and reason.
    pub(crate) faults: Vec<(String, String)>,
    /// Findings about answers that do not end.
    pub(crate) warnings: Vec<String>,
}

impl TemplateFindings {
    /// Checks the templates among the keys of a file. A template is an untrusted program: it runs in a child process, if
    /// programs have installed one.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let mut found = Self { faults: unparsed(metadata), warnings: Vec::new() };
        if !found.faults.is_empty() || !metadata.contains(PLAIN) {
            return found;
        }
        // Other findings than errors may be a limit of this interpreter.
        let (rendering, answers) = chat_template_findings(metadata, &*renderer(metadata));
        let errors = rendering.iter().filter(|finding| finding.severity == Severity::Error);
        found.faults.extend(errors.map(|finding| (DEFAULT.to_owned(), plain(&finding.message))));
        found.warnings.extend(answers.iter().map(|finding| format!("chat template: {}", finding.message)));
        found
    }
}

const PLAIN: &str = "tokenizer.chat_template";
const DEFAULT: &str = "default";

/// Returns the names of the templates that cannot be parsed, each with the reason.
fn unparsed(metadata: &Metadata) -> Vec<(String, String)> {
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
        alone.set(PLAIN, String::from_utf8_lossy(template.text).into_owned());
        let error = renderer(&alone).check().err().filter(ChatError::is_finding);
        let why =
            |error: ChatError| plain(&error.to_string()) + if is_of_go(template.text) { OF_GO } else { "" };
        (template.name.to_owned(), error.map(why))
    });
    templates.chain(beyond).filter_map(|(name, fault)| Some((name, fault?))).collect()
}

/// Added to the fault of a template in Go's language.
const OF_GO: &str =
    " (this is a template of Ollama's, in the language of Go; expected Jinja, as in `chat_template.jinja`)";

/// Returns true for a text with an action of Go's templates on a field: `{{ .Prompt }}`, `{{- if .System }}`.
fn is_of_go(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.split("{{").skip(1).any(|action| {
        let mut words = action.trim_start_matches('-').split_whitespace();
        let first = words.next().unwrap_or_default();
        let is_block = ["if", "range", "with"].contains(&first);
        let named = if is_block { words.next().unwrap_or_default() } else { first };
        named.strip_prefix('.').is_some_and(|rest| rest.starts_with(char::is_uppercase))
    })
}

fn plain(message: &str) -> String {
    message.strip_prefix("chat template: ").unwrap_or(message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &str) -> TemplateFindings {
        let mut metadata = Metadata::new();
        metadata.set(PLAIN, template);
        TemplateFindings::of(&metadata)
    }

    #[test]
    fn a_template_that_is_none_is_told() {
        let faults = of("{{ .System }}\nUSER: {{ .Prompt }}").faults;
        assert!(faults[0].1.ends_with(OF_GO), "{faults:?}");
        assert!(of("{{- if .System }}{{ .System }}{{ end }}").faults[0].1.ends_with(OF_GO));
        assert!(!of("{{ messages | }}").faults[0].1.ends_with(OF_GO));
        let told = |template: &str| {
            of(template).warnings.iter().filter(|text| text.contains("the user's text is not in it")).count()
        };
        assert_eq!(told("<|im_start|>user\n{prompt}<|im_end|>"), 1);
        assert_eq!(told("{{ messages[0].content }}"), 0);
        let parts =
            "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
        assert_eq!(told(parts), 0);
    }
}
