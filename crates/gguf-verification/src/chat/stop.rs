//! The end of an answer: a chat stops only if the template writes a token at which the runtime ends.

use serde_json::{Value as Json, json};

use super::ChatRenderer;
use super::builtin::{Chat, turns};
use gguf_core::text::escape;
use gguf_format::Metadata;
use gguf_tokenizer::EndTokens;

const MAX_MARKER_BYTES: usize = 48;
/// Maximum number of end tokens in a message.
const MAX_NAMED: usize = 3;

/// Returns why answers do not end: after none of them does the template write a token that ends an answer in this file.
/// `None` if they end, if the file has no vocabulary, and if the template writes no answer.
pub(crate) fn endless(
    metadata: &Metadata,
    template: Option<&str>,
    renderer: &dyn ChatRenderer,
) -> Option<String> {
    let behind = behind_answers(template, renderer);
    if behind.is_empty() {
        return None;
    }
    let ends = EndTokens::of(metadata)?;
    let texts = ends.texts();
    let end = |text: &str| texts.iter().filter_map(|end| text.find(end.as_str())).min();
    let is_text = |text: &str| marker(text).is_some_and(|marker| ends.special(marker).is_none());
    // The end of a whole chat is not that of an answer, if a marker comes first that no token is.
    let stops = |text: &Behind| end(&text.text).is_some_and(|at| text.is_turn || !is_text(&text.text[..at]));
    if behind.iter().any(stops) {
        return None;
    }
    let named: Vec<_> = texts.iter().take(MAX_NAMED).map(|text| format!("`{}`", escape(text))).collect();
    let named = named.join(" or ");
    let never = match behind.iter().any(|text| end(&text.text).is_some()) {
        _ if texts.is_empty() => "the file has no end token".to_owned(),
        true => format!("the template writes {named} only at the end of the chat"),
        false => format!("the template never writes {named} after an answer"),
    };
    let marker = behind.iter().find_map(|text| marker(&text.text));
    Some(match marker.map(|marker| (escape(marker), ends.special(marker))) {
        Some((marker, None)) => {
            format!("`{marker}` is text here, not a token; {never}: the answer will not stop")
        }
        Some((marker, Some(id))) => format!(
            "`{marker}` is no end token here; {never}: the answer will not stop (unless \
             `tokenizer.ggml.eot_token_id` is {id})"
        ),
        None => format!("{never}: the answer will not stop"),
    })
}

/// What the template writes after an answer.
struct Behind {
    text: String,
    /// True if the user's next words follow; false for the end of the chat.
    is_turn: bool,
}

/// Returns what the template writes after an answer, up to the user's next words or the end of the chat.
fn behind_answers(template: Option<&str>, renderer: &dyn ChatRenderer) -> Vec<Behind> {
    let turns = turns(false);
    let messages: Vec<Json> = turns.as_array().cloned().unwrap_or_default();
    let content = |at: usize| messages.get(at).and_then(|message| message["content"].as_str());
    let (Some(answer), Some(next)) = (content(1), content(2)) else { return Vec::new() };
    let chats = [turns.clone(), messages.iter().take(2).cloned().collect()];
    // Templates of models that see images read a list of parts.
    [chats.clone(), chats.map(in_parts)]
        .into_iter()
        .map(|chats| {
            let texts = chats.into_iter().filter_map(|messages| {
                let chat = Chat { template: template.map(str::to_owned), ..Chat::of(messages) };
                let text = renderer.render_chat(&chat).ok()?;
                let behind = text.split_once(answer)?.1;
                let turn = behind.split_once(next).map(|(behind, _)| behind);
                Some(Behind { text: turn.unwrap_or(behind).to_owned(), is_turn: turn.is_some() })
            });
            texts.collect::<Vec<_>>()
        })
        .find(|behind| !behind.is_empty())
        .unwrap_or_default()
}

/// Returns the messages with lists of parts in place of texts.
fn in_parts(mut messages: Json) -> Json {
    for message in messages.as_array_mut().into_iter().flatten() {
        let text = message["content"].take();
        message["content"] = json!([{ "type": "text", "text": text }]);
    }
    messages
}

/// Returns the first marker of a text: a word in angle or square brackets.
fn marker(text: &str) -> Option<&str> {
    text.char_indices().find_map(|(start, open)| {
        let close = match open {
            '<' => '>',
            '[' => ']',
            _ => return None,
        };
        let rest = &text[start..];
        let end = rest.find(close)? + close.len_utf8();
        let word = &rest[..end];
        let is_marker = (3..=MAX_MARKER_BYTES).contains(&end)
            && !word.contains(char::is_whitespace)
            && !word[1..].contains(open);
        is_marker.then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatTemplate;

    const CHATML: &str =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

    /// Returns what is said about a template of a vocabulary of pieces. `more` are control tokens from 4 on.
    fn said(more: &[&str], template: &str) -> String {
        let tokens: Vec<&str> = ["<unk>", "<s>", "</s>", "a"].iter().chain(more).copied().collect();
        let kinds = tokens.iter().map(|text| if *text == "a" { 1_i32 } else { 3 });
        let mut keys = Metadata::new();
        keys.set("tokenizer.ggml.model", "llama");
        keys.set("tokenizer.ggml.token_type", kinds.collect::<Vec<_>>());
        keys.set("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()]);
        keys.set("tokenizer.ggml.tokens", tokens);
        keys.set("tokenizer.ggml.eos_token_id", 2_u32);
        keys.set("tokenizer.chat_template", template);
        endless(&keys, None, &ChatTemplate::of(&keys).unwrap()).unwrap_or_default()
    }

    #[test]
    fn a_template_of_another_vocabulary_is_found() {
        const NEVER: &str = "the template never writes `</s>` after an answer: the answer will not stop";
        let turn = |end: &str| {
            format!("{{% for m in messages %}}<|{{{{ m.role }}}}|>\n{{{{ m.content }}}}{end}\n{{% endfor %}}")
        };
        let text = |marker: &str| format!("`{marker}` is text here, not a token; {NEVER}");
        assert_eq!(said(&[], CHATML), text("<|im_end|>"));
        assert_eq!(said(&["<|im_start|>"], CHATML), text("<|im_end|>"));
        for end in ["<|end|>", "<end_of_turn>", "<|eot_id|>", "[/ANSWER]", "<\u{ff5c}end\u{ff5c}>"] {
            assert_eq!(said(&[], &turn(end)), text(end));
        }
        assert_eq!(said(&[], &turn("")), text("<|user|>"));
        // A token of the vocabulary at which the runtime does not end.
        let known = said(&["<|end_of_turn|>"], &turn("<|end_of_turn|>"));
        assert!(known.contains("no end token here") && known.contains("eot_token_id` is 4"), "{known}");
        let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
        assert_eq!(said(&[], plain), NEVER);
        // Only the calls of tools end; a macro that writes the turns; parts in place of texts.
        let tools = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}</s>{% endif %}{% endfor %}";
        assert_eq!(said(&[], tools), text("<|user|>"));
        let of_macro = "{% macro turn(m) %}[{{ m.role }}] {{ m.content }}<end_of_turn>{% endmacro %}\
             {% for m in messages %}{{ turn(m) }}{% endfor %}";
        assert_eq!(said(&[], of_macro), text("<end_of_turn>"));
        let parts =
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}<|end|>{% endfor %}";
        assert_eq!(said(&[], parts), text("<|end|>"));
    }

    #[test]
    fn answers_that_end_are_no_finding() {
        let turns = |end: &str| format!("{{% for m in messages %}}{{{{ m.content }}}}{end}{{% endfor %}}");
        assert_eq!(said(&["<|im_start|>", "<|im_end|>"], CHATML), "");
        assert_eq!(said(&["<end_of_turn>"], &turns("<end_of_turn>\n")), "");
        // Markers that are text, and an end token.
        assert_eq!(said(&[], &turns("{{ eos_token }}\n<|user|>\n")), "");
        let mistral = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]\
             {% else %}{{ m.content }}</s>{% endif %}{% endfor %}";
        assert_eq!(said(&[], mistral), "");
        assert_eq!(said(&["<|end|>"], &turns("<|end|>\n")), "");
        // Only the last answer ends; no answer is written; no chat is rendered; the name of a template.
        let last = "{% for m in messages %}{{ m.content }}{% if loop.last %}</s>{% endif %}{% endfor %}";
        assert_eq!(said(&[], last), "");
        for other in ["{{ messages[-1].role }}", "{{ raise_exception('no') }}", "chatml"] {
            assert_eq!(said(&[], other), "");
        }
    }
}
