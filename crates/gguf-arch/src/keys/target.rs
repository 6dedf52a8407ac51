//! Target model of a draft model (`--target-model-dir`): the facts that cards of draft models can read.

use serde_json::{Map, Value as Json};

use crate::language::eval::{Root, Scope};
use crate::language::expr::Expr;
use crate::read::schema::Card;
use crate::read::visit::each_expr;
use crate::registry::detect::with_text_config;

pub(crate) const ROOT: &str = "target";

/// Facts about the target model, from its directory.
#[derive(Clone, Copy, Debug)]
pub struct TargetModel<'a> {
    /// Members of `config.json`, with those of its text part on top (see [`target_config`]).
    pub config: &'a Map<String, Json>,
    /// Members of `tokenizer_config.json`, if it exists.
    pub tokenizer_config: Option<&'a Map<String, Json>>,
    /// Names of the files in its directory.
    pub files: &'a [String],
}

/// Returns the configuration of a target for expressions: members of the text part override those around them.
pub fn target_config(config: &Map<String, Json>) -> Map<String, Json> {
    let mut config = with_text_config(config);
    if let Some(Json::Object(text)) = config.get("text_config").cloned() {
        config.extend(text);
    }
    config
}

impl TargetModel<'_> {
    pub(crate) fn root(&self) -> (&'static str, Root<'static>) {
        (ROOT, Root::Value(Json::Object(self.config.clone())))
    }
}

impl<'a> Scope<'a> {
    /// Makes the tokenizer's expressions read the target's files instead of the model's own.
    pub(crate) fn look_at_files_of(&mut self, target: &TargetModel<'a>) {
        self.files = target.files;
        let config = target.tokenizer_config.cloned().unwrap_or_default();
        for (_, root) in self.roots.iter_mut().filter(|root| root.0 == "tokenizer_config") {
            *root = Root::Value(Json::Object(config.clone()));
        }
    }
}

/// Returns true if a card reads anything of a target.
pub(crate) fn is_used_by(card: &Card) -> bool {
    let found = std::cell::Cell::new(card.tokenizer.from.is_some());
    let _ = each_expr(card, &|_, expr| {
        expr.walk(&mut |expr| {
            if matches!(expr, Expr::Path(path) if path.root == ROOT) {
                found.set(true);
            }
        });
        Ok(())
    });
    found.get()
}
