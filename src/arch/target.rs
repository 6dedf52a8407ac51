//! The model that a draft model works for (`--target-model-dir`): what cards of draft models see of it.

use serde_json::{Map, Value as Json};

use crate::arch::check::each_expr;
use crate::arch::detect::with_text_config;
use crate::arch::eval::{Root, Scope};
use crate::arch::expr::Expr;
use crate::arch::schema::Card;

/// The name of the root.
pub(super) const ROOT: &str = "target";

/// What is known of the target model, from its directory.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// `config.json`, with the members of its text part on top as [`target_config`] makes it.
    pub config: &'a Map<String, Json>,
    /// `tokenizer_config.json`, if there.
    pub tokenizer_config: Option<&'a Map<String, Json>>,
    /// Names of the files in its directory.
    pub files: &'a [String],
}

/// The configuration of a target as expressions see it: members of the text part count before those around them.
#[must_use]
pub fn target_config(config: &Map<String, Json>) -> Map<String, Json> {
    let mut config = with_text_config(config);
    if let Some(Json::Object(text)) = config.get("text_config").cloned() {
        config.extend(text);
    }
    config
}

impl Target<'_> {
    /// The root that expressions name.
    pub(super) fn root(&self) -> (&'static str, Root<'static>) {
        (ROOT, Root::Value(Json::Object(self.config.clone())))
    }
}

impl<'a> Scope<'a> {
    /// Lets the tokenizer's expressions see the target's files in place of the model's own.
    pub(super) fn look_at_files_of(&mut self, target: &Target<'a>) {
        self.files = target.files;
        let config = target.tokenizer_config.cloned().unwrap_or_default();
        for (_, root) in self.roots.iter_mut().filter(|root| root.0 == "tokenizer_config") {
            *root = Root::Value(Json::Object(config.clone()));
        }
    }
}

/// True if a card reads anything of a target.
pub(super) fn is_used_by(card: &Card) -> bool {
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
