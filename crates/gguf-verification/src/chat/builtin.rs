//! Built-in chats, with which every template is rendered.

use serde_json::{Map, Value as Json, json};

/// Chat with its settings, like the arguments of transformers' `apply_chat_template`.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// List of messages.
    pub messages: Json,
    /// Tools that the model may call, or null.
    pub tools: Json,
    /// Further variables of the template, such as `enable_thinking` or `documents`.
    pub variables: Map<String, Json>,
    /// True to end with the prompt for the assistant's answer.
    pub add_generation_prompt: bool,
    /// Name of the template; `None` for the default one.
    pub template: Option<String>,
}

impl Chat {
    /// Creates a chat of messages only: no tools, no generation prompt.
    pub fn of(messages: Json) -> Self {
        Self {
            messages,
            tools: Json::Null,
            variables: Map::new(),
            add_generation_prompt: false,
            template: None,
        }
    }

    /// Returns a built-in chat, with the generation prompt: `user` (a question), `turns` (several after a system message) or
    /// `tools` (tool calls).
    pub fn builtin(name: &str) -> Option<Self> {
        let chat = |messages, tools| Self { tools, add_generation_prompt: true, ..Self::of(messages) };
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

/// Returns several turns, with or without a system message.
pub(crate) fn turns(has_system: bool) -> Json {
    let system =
        json!({ "role": "system", "content": "You are a helpful assistant. Answer in one sentence." });
    let rest = [
        json!({ "role": "user", "content": "What is the capital of France?" }),
        json!({ "role": "assistant", "content": "The capital of France is Paris." }),
        json!({ "role": "user", "content": "And of Italy?" }),
    ];
    has_system.then_some(system).into_iter().chain(rest).collect()
}

/// Returns a tool call, its result, and the answer.
fn calls() -> Json {
    // Some templates require an id of nine letters and digits.
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
