//! `gguf-inspect template`: prints, renders or sets chat templates.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use crate::cli::inspect::edit::EditArgs;
use crate::cli::inspect::get::print_bytes;
use crate::cli::remote::open_header;
use crate::cli::{Session, UsageError};
use crate::core::text::{escape, escape_bytes};
use crate::gguf::{OpenOptions, Value};
use crate::inspect::{Edit, NamedTemplate, ShownValue, chat_templates, read_templates};
use crate::verify::{Chat, renderer};

/// Arguments of `template`.
#[derive(Debug, Args)]
pub(super) struct TemplateArgs {
    /// File, or any part of a split model
    file: PathBuf,
    /// Print the template of this name [default: the one that is used if no name is given]
    #[arg(long, conflicts_with = "set")]
    name: Option<String>,
    /// Replace all templates by this: a Jinja file, or a .json file such as tokenizer_config.json with one template
    /// or several under `chat_template`
    #[arg(long, value_name = "PATH")]
    set: Option<PathBuf>,
    /// Print a chat as the template writes it: a built-in one (`user`, `turns`, `tools`), or a JSON file: the messages,
    /// or an object with `messages`, `tools`, `add_generation_prompt` [default: true] and variables of the template
    #[arg(long, value_name = "CHAT", conflicts_with = "set")]
    render: Option<PathBuf>,
    #[command(flatten)]
    edit: EditArgs,
}

/// Report of `template`: the templates, or a chat that one of them rendered.
#[derive(Default, Serialize)]
struct TemplateReport {
    /// Texts of the chat templates by name: all, or the one of `--name`. `default` is used if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    templates: Option<Map<String, Json>>,
    /// With `--render`, in place of `templates`: the chat as rendered by the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl TemplateReport {
    fn of(templates: &[NamedTemplate<'_>]) -> Self {
        let member = |template: &NamedTemplate<'_>| {
            let text = Value::String(template.text.to_vec());
            (template.name.to_owned(), json!(ShownValue::whole(&text)))
        };
        Self { templates: Some(templates.iter().map(member).collect()), ..Self::default() }
    }
}

impl TemplateArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        if let Some(path) = &self.set {
            let edits = [Edit::Templates(read_templates(path)?)];
            return self.edit.run(&self.file, &edits, std::slice::from_ref(path), session);
        }
        if self.edit.is_given() {
            bail!(UsageError("`--output`, `--dry-run` and `--force` go with `--set`".to_owned()));
        }
        match &self.render {
            Some(chat) => self.render(chat, session),
            None => self.show(session),
        }
    }

    fn render(&self, chat: &Path, session: &Session) -> anyhow::Result<()> {
        let file = open_header(session, &self.file, &OpenOptions::foreign())?;
        let chat = chat.to_str().and_then(Chat::builtin).map_or_else(|| read_chat(chat), Ok)?;
        let template = self.name.clone().filter(|name| name != "default");
        let text = renderer(file.metadata()).render_chat(&Chat { template, ..chat }).map_err(|error| {
            let path = file.path().display().to_string();
            anyhow::anyhow!("{}: {error}", escape(&path))
        })?;
        if session.common.json {
            return session.print_json(&TemplateReport { text: Some(text), ..TemplateReport::default() });
        }
        print_bytes(text.as_bytes(), session)
    }

    fn show(&self, session: &Session) -> anyhow::Result<()> {
        let file = open_header(session, &self.file, &OpenOptions::foreign())?;
        let templates = chat_templates(file.metadata());
        let names: Vec<_> = templates.iter().map(|template| escape(template.name)).collect();
        let path = file.path().display().to_string();
        let path = escape(&path);
        if templates.is_empty() {
            bail!("{path}: no chat template");
        }
        if session.common.json && self.name.is_none() {
            return session.print_json(&TemplateReport::of(&templates));
        }
        let wanted = self.name.as_deref().unwrap_or("default");
        let Some(template) = templates.iter().find(|template| template.name == wanted) else {
            let wanted = escape_bytes(wanted.as_bytes());
            bail!("{path}: no chat template `{wanted}`; there are {}", names.join(", "));
        };
        if session.common.json {
            return session.print_json(&TemplateReport::of(std::slice::from_ref(template)));
        }
        if self.name.is_none() && names.len() > 1 {
            session.note(&format!("--name prints another template: {}", names.join(", ")));
        }
        print_bytes(template.text, session)
    }
}

/// Maximum number of bytes of a chat file.
const MAX_CHAT_BYTES: u64 = 16 << 20;

/// Reads a chat: a list of messages, or an object with `messages`. Its other members are variables of the template, as the
/// arguments of `apply_chat_template` are.
fn read_chat(path: &Path) -> anyhow::Result<Chat> {
    let name = path.display().to_string();
    let name = escape(&name);
    let found = fs_err::metadata(path);
    let n_bytes =
        found.with_context(|| format!("{name}: neither `user`, `turns` or `tools` nor a JSON file"))?.len();
    if n_bytes > MAX_CHAT_BYTES {
        bail!("{name}: {n_bytes} bytes: expected a chat of at most {MAX_CHAT_BYTES}");
    }
    let bytes = fs_err::read(path)?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let chat: Json = serde_json::from_slice(text).with_context(|| format!("{name}: no JSON"))?;
    let (messages, mut variables) = match chat {
        Json::Array(_) => (chat, Map::new()),
        Json::Object(mut chat) => (take(&mut chat, "messages"), chat),
        _ => (Json::Null, Map::new()),
    };
    if !is_list_of_objects(&messages) {
        bail!("{name}: no chat: expected a list of messages, or an object with `messages`");
    }
    match take(&mut variables, "chat_template_kwargs") {
        Json::Null => {}
        Json::Object(more) => variables.extend(more),
        _ => bail!("{name}: `chat_template_kwargs`: expected an object"),
    }
    let tools = take(&mut variables, "tools");
    for (key, value) in [("tools", Some(&tools)), ("documents", variables.get("documents"))] {
        if value.is_some_and(|value| !value.is_null() && !is_list_of_objects(value)) {
            bail!("{name}: `{key}`: expected a list of objects");
        }
    }
    let is_no = |value: &Json| value.is_null() || *value == Json::Bool(false);
    if !is_no(&take(&mut variables, "continue_final_message")) {
        bail!(
            "{name}: `continue_final_message` is not implemented: remove it, and the last message is closed"
        );
    }
    let add_generation_prompt = match take(&mut variables, "add_generation_prompt") {
        Json::Null => true,
        Json::Bool(prompt) => prompt,
        _ => bail!("{name}: `add_generation_prompt`: expected true or false"),
    };
    Ok(Chat { tools, variables, add_generation_prompt, ..Chat::of(messages) })
}

fn take(chat: &mut Map<String, Json>, key: &str) -> Json {
    chat.remove(key).unwrap_or_default()
}

fn is_list_of_objects(value: &Json) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Json::is_object))
}
