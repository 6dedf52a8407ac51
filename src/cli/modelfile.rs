//! Form of a model's prompts, by its own chat template, and Ollama's description of a model.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::core::output::MODELFILE;
use crate::core::text::escape;
use crate::gguf::{Metadata, Value};
use crate::tokenizer::EndTokens;
use crate::verify::{Chat, renderer};

/// Places of a prompt's texts.
const SYSTEM: &str = "{system_prompt}";
const PROMPT: &str = "{prompt}";
const RESPONSE: &str = "{response}";

#[derive(Clone, Debug, Serialize)]
pub(super) struct PromptForm {
    /// Lines of a prompt with `{system_prompt}` and `{prompt}`; empty without a chat template.
    #[serde(rename = "prompt_lines")]
    pub(super) lines: Vec<String>,
    /// Tokens that end an answer.
    pub(super) stop: Vec<String>,
    /// Ollama's template; `None` without a chat template, and if it has no such form.
    #[serde(skip)]
    template: Option<String>,
}

impl PromptForm {
    /// Renders a prompt by the chat template of a model.
    pub(super) fn of(metadata: &Metadata) -> Self {
        let renderer = renderer(metadata);
        let system = json!({ "role": "system", "content": SYSTEM });
        let user = json!({ "role": "user", "content": PROMPT });
        let answer = json!({ "role": "assistant", "content": RESPONSE });
        let render = |messages: &[&Json], is_open: bool, wanted: &str| {
            let messages: Json = messages.iter().copied().cloned().collect();
            let chat = Chat { add_generation_prompt: is_open, ..Chat::of(messages) };
            renderer.render_chat(&chat).ok().filter(|text| text.matches(wanted).count() == 1)
        };
        let plain = render(&[&user], true, PROMPT);
        let with_system = render(&[&system, &user], true, SYSTEM).filter(|text| text.contains(PROMPT));
        let whole = render(&[&user, &answer], false, RESPONSE);
        let closing = whole.as_deref().and_then(|text| text.split_once(RESPONSE)).map(|(_, closing)| closing);
        let stop = stop_tokens(metadata, closing.unwrap_or_default());
        let shown = with_system.as_ref().or(plain.as_ref());
        let lines = shown.map(|text| text.lines().map(|line| escape(line).into_owned()).collect());
        let template = plain.and_then(|plain| {
            let bos = token(metadata, "bos").unwrap_or_default();
            ollama_template(&plain, with_system.as_deref(), closing.unwrap_or_default(), &bos)
        });
        Self { lines: lines.unwrap_or_default(), stop, template }
    }

    /// Returns a Modelfile; `files` are the model and, if it has some, its towers.
    pub(super) fn modelfile(&self, name: &str, files: &[String]) -> String {
        let mut text = format!("{MODELFILE}\n# ollama create {name} -f Modelfile\n");
        for file in files {
            let _ = writeln!(text, "FROM ./{file}");
        }
        if let Some(template) = &self.template {
            let _ = writeln!(text, "TEMPLATE \"\"\"{template}\"\"\"");
        }
        for stop in &self.stop {
            let _ = writeln!(text, "PARAMETER stop {}", Json::from(stop.as_str()));
        }
        text
    }
}

/// Returns Ollama's template of one turn; `None` for texts that it would read otherwise. Ollama adds the token `bos`
/// itself.
fn ollama_template(plain: &str, with_system: Option<&str>, closing: &str, bos: &str) -> Option<String> {
    let is_literal = |text: &str| !text.contains("{{") && !text.contains("}}") && !text.contains("\"\"\"");
    let all = [Some(plain), with_system, Some(closing)];
    if !all.into_iter().flatten().all(is_literal) {
        return None;
    }
    let open = |text: &str| {
        let text = text.strip_prefix(bos).filter(|_| !bos.is_empty()).unwrap_or(text);
        text.replace(SYSTEM, "{{ .System }}").replace(PROMPT, "{{ .Prompt }}")
    };
    let begin = match with_system {
        Some(text) => format!("{{{{ if .System }}}}{}{{{{ else }}}}{}{{{{ end }}}}", open(text), open(plain)),
        None => open(plain),
    };
    Some(format!("{begin}{{{{ .Response }}}}{closing}"))
}

/// Text of a special token.
fn token(metadata: &Metadata, name: &str) -> Option<String> {
    let id = metadata.get(&format!("tokenizer.ggml.{name}_token_id")).and_then(Value::as_u64)?;
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array)?;
    Some(tokens.get(usize::try_from(id).ok()?)?.as_str()?.to_owned())
}

/// Returns the tokens that end an answer: those at which the runtime ends it, and the one that the template puts after an answer.
fn stop_tokens(metadata: &Metadata, closing: &str) -> Vec<String> {
    let Some(ends) = EndTokens::of(metadata) else { return Vec::new() };
    let (mut found, closing) = (ends.texts(), closing.trim());
    if ends.special(closing).is_some() && !found.iter().any(|own| own == closing) {
        found.push(closing.to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Array;

    fn model(template: &str) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", "gpt-2");
        metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![3; 4])));
        let tokens = ["<s>", "<|im_start|>", "<|im_end|>", "</s>"].map(|token| token.as_bytes().to_vec());
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.to_vec())));
        metadata.set("tokenizer.ggml.bos_token_id", 0_u32);
        metadata.set("tokenizer.ggml.eos_token_id", 3_u32);
        metadata.set("tokenizer.chat_template", template);
        metadata
    }

    const CHATML: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                          {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn a_prompt_has_the_form_of_the_template() {
        let form = PromptForm::of(&model(CHATML));
        let lines = [
            "<s><|im_start|>system",
            "{system_prompt}<|im_end|>",
            "<|im_start|>user",
            "{prompt}<|im_end|>",
            "<|im_start|>assistant",
        ];
        assert_eq!(form.lines, lines);
        assert_eq!(form.stop, ["</s>", "<|im_end|>"], "the end of an answer in a chat, too");
        let file = form.modelfile("m", &["m-Q4_0.gguf".to_owned(), "mmproj-m-F16.gguf".to_owned()]);
        let turn = "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n";
        let expected = format!(
            "TEMPLATE \"\"\"{{{{ if .System }}}}<|im_start|>system\n{{{{ .System }}}}<|im_end|>\n{turn}{{{{ else }}}}{turn}{{{{ end \
             }}}}{{{{ .Response }}}}<|im_end|>\n\"\"\"\nPARAMETER stop \"</s>\"\nPARAMETER stop \"<|im_end|>\"\n"
        );
        assert!(file.starts_with(MODELFILE), "{file}");
        assert!(file.contains("FROM ./m-Q4_0.gguf\nFROM ./mmproj-m-F16.gguf\n"), "{file}");
        assert!(file.ends_with(&expected), "{file}");
    }

    #[test]
    fn what_a_template_refuses_is_left_out() {
        let refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}[INST] {{ messages[0].content }} \
                        [/INST]{% if messages|length > 1 %}{{ messages[1].content }}</s>{% endif %}";
        let form = PromptForm::of(&model(refusing));
        assert_eq!(
            (form.lines.as_slice(), form.stop.as_slice()),
            (
                &["[INST] {prompt} [/INST]".to_owned()][..],
                &["</s>", "<|im_end|>"].map(str::to_owned)[..] // the runtime ends at both
            )
        );
        assert!(
            form.modelfile("m", &[]).contains("\"\"\"[INST] {{ .Prompt }} [/INST]{{ .Response }}</s>\"\"\"")
        );
        let none = PromptForm::of(&Metadata::new());
        assert!(none.lines.is_empty() && none.stop.is_empty());
        // Text that Ollama would read as its own.
        let form = PromptForm::of(&model("{{ '{{' }}{{ messages[0].content }}"));
        assert!(!form.modelfile("m", &[]).contains("TEMPLATE"));
        assert!(PromptForm::of(&model("{{ broken")).lines.is_empty());
    }
}
