//! Markdown for a model card, in the dialect of GitHub and Hugging Face.

use minijinja::value::{Serde, ValueKind};
use minijinja::{Value as Jinja, context};

use super::data::PageData;
use super::render;
use crate::cli::render::markdown::escape;

pub(super) fn render(page: &PageData) -> anyhow::Result<String> {
    let mut environment = render::environment();
    environment.set_formatter(|out, _, value| {
        let text = match value.kind() {
            ValueKind::String if !value.is_safe() => escape(value.as_str().unwrap_or_default()),
            _ => value.to_string(),
        };
        Ok(out.write_str(&text)?)
    });
    environment.add_template("card.md", include_str!("card.md"))?;
    Ok(environment.get_template("card.md")?.render(context! { page => Jinja::from(Serde(page)) })?)
}
