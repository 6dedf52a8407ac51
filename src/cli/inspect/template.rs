//! `gguf-inspect template`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::{Map, json};

use crate::cli::inspect::edit::EditArgs;
use crate::cli::inspect::get::print_bytes;
use crate::cli::{Session, UsageError};
use crate::core::text::{escape, escape_bytes};
use crate::gguf::{GgufFile, Value};
use crate::inspect::{Edit, chat_templates, read_templates, value_json};

/// Arguments of `template`.
#[derive(Debug, Args)]
pub(super) struct TemplateArgs {
    /// File, or any part of a split model
    file: PathBuf,
    /// Print the template of this name [default: the one that is used where none is named]
    #[arg(long, conflicts_with = "set")]
    name: Option<String>,
    /// Put this in the place of all templates: a Jinja file, or a .json file such as tokenizer_config.json with one template
    /// or several under `chat_template`
    #[arg(long, value_name = "PATH")]
    set: Option<PathBuf>,
    #[command(flatten)]
    edit: EditArgs,
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
        self.show(session)
    }

    fn show(&self, session: &Session) -> anyhow::Result<()> {
        let file = GgufFile::open_foreign(&self.file)?;
        let templates = chat_templates(file.metadata());
        let names: Vec<_> = templates.iter().map(|template| escape(template.name)).collect();
        let path = self.file.display().to_string();
        let path = escape(&path);
        if templates.is_empty() {
            bail!("{path}: no chat template");
        }
        if session.common.json && self.name.is_none() {
            let member = |text: &[u8]| value_json(&Value::String(text.to_vec()), None);
            let members: Map<_, _> =
                templates.iter().map(|template| (template.name.to_owned(), member(template.text))).collect();
            return session.print_json(&json!({ "templates": members }));
        }
        let wanted = self.name.as_deref().unwrap_or("default");
        let Some(template) = templates.iter().find(|template| template.name == wanted) else {
            let wanted = escape_bytes(wanted.as_bytes());
            bail!("{path}: no chat template `{wanted}`; there are {}", names.join(", "));
        };
        if session.common.json {
            let text = value_json(&Value::String(template.text.to_vec()), None);
            return session.print_json(&json!({ "templates": { template.name: text } }));
        }
        if self.name.is_none() && names.len() > 1 {
            session.note(&format!("--name prints another template: {}", names.join(", ")));
        }
        print_bytes(template.text, session)
    }
}
