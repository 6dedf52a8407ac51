//! Messages as templates get them.

use serde_json::{Map, Value as Json};

/// Names of a message's reasoning; the first that is set counts.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Returns messages without members that are null, and with the reasoning under the names that templates read.
///
/// # Exactness
/// transformers 5.24, `_normalize_chat_messages` and `_alias_reasoning_fields`.
pub(super) fn messages(given: &Json) -> Json {
    match given.as_array() {
        Some(messages) => messages.iter().map(message).collect(),
        None => given.clone(),
    }
}

fn message(given: &Json) -> Json {
    let Some(members) = given.as_object() else { return given.clone() };
    let stated = members.iter().filter(|(_, value)| !value.is_null());
    let stated: Map<String, Json> = stated.map(|(key, value)| (key.clone(), value.clone())).collect();
    let Some(reasoning) = REASONING.iter().find_map(|name| stated.get(*name)).cloned() else {
        return Json::Object(stated);
    };
    let mut message = Map::new();
    message.insert("thinking".to_owned(), reasoning.clone());
    message.extend(stated);
    message.insert("reasoning_content".to_owned(), reasoning);
    Json::Object(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_absent_and_reasoning_has_both_names() {
        let given = json!([
            {"role": "assistant", "content": null, "reasoning": "r"},
            {"thinking": "t", "reasoning": "r"},
            {"reasoning_content": null, "content": {"a": null}},
            "no message",
        ]);
        let expected = json!([
            {"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"},
            {"thinking": "t", "reasoning": "r", "reasoning_content": "t"},
            {"content": {"a": null}},
            "no message",
        ]);
        assert_eq!(messages(&given).to_string(), expected.to_string());
    }
}
