//! Chats that come with the program, to render every template with.

use serde_json::{Value as Json, json};

/// A chat and what belongs to it, as transformers' `apply_chat_template` takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The messages: a list.
    pub messages: Json,
    /// The tools that the model may call, or null.
    pub tools: Json,
    /// Ends with the prompt for the assistant's answer.
    pub add_generation_prompt: bool,
    /// The template of this name; the one for all chats where none is named.
    pub template: Option<String>,
}

impl Chat {
    /// Messages alone: no tools, no prompt for an answer.
    #[must_use]
    pub fn of(messages: Json) -> Self {
        Self { messages, tools: Json::Null, add_generation_prompt: false, template: None }
    }

    /// The names of the built-in chats: a question; several turns behind a system message; tools that are called.
    pub const BUILTIN: [&'static str; 3] = ["user", "turns", "tools"];

    /// A built-in chat, with the prompt for an answer.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        let chat = |messages, tools| Self { messages, tools, add_generation_prompt: true, template: None };
        match name {
            "user" => Some(chat(
                json!([{ "role": "user", "content": "What is the capital of France?" }]),
                Json::Null,
            )),
            "turns" => Some(chat(turns(true), Json::Null)),
            "tools" => Some(chat(calls(), json!([weather()]))),
            _ => None,
        }
    }
}

/// Several turns, with a system message or without.
pub(super) fn turns(has_system: bool) -> Json {
    let system =
        json!({ "role": "system", "content": "You are a helpful assistant. Answer in one sentence." });
    let rest = [
        json!({ "role": "user", "content": "What is the capital of France?" }),
        json!({ "role": "assistant", "content": "The capital of France is Paris." }),
        json!({ "role": "user", "content": "And of Italy?" }),
    ];
    has_system.then_some(system).into_iter().chain(rest).collect()
}

/// A call of a tool, its result, and the answer.
fn calls() -> Json {
    // Some templates want an id of nine letters and digits.
    let call = json!({
        "id": "call12345", "type": "function",
        "function": { "name": "get_weather", "arguments": { "city": "Paris", "days": 2 } },
    });
    json!([
        { "role": "user", "content": "What is the weather in Paris?" },
        { "role": "assistant", "content": "", "tool_calls": [call] },
        { "role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"degrees\": 18}" },
        { "role": "assistant", "content": "It is 18 degrees in Paris." },
        { "role": "user", "content": "Thank you!" },
    ])
}

fn weather() -> Json {
    json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Returns the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": { "type": "string", "description": "Name of the city." },
                    "days": { "type": "integer", "description": "Days ahead." },
                },
                "required": ["city"],
            },
        },
    })
}
