//! Origin of a value: a key of `config.json`.

use std::fmt;

use serde_json::Value as Json;

use gguf_core::text::escape;

/// Maximum length of a displayed value, in characters.
const MAX_SHOWN: usize = 60;

/// Configuration key, with its stated and its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The key.
    pub key: String,
    /// Value in the configuration; `None` if the key is absent.
    pub stated: Option<Json>,
    /// Effective value: an absent key has its default.
    pub taken: Json,
}

impl Origin {
    /// Returns true if the configuration has no value, and no default takes its place.
    pub(crate) fn is_absent(&self) -> bool {
        self.stated.as_ref().is_none_or(Json::is_null) && self.taken.is_null()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |json: &Json| {
            let text = json.to_string();
            match text.char_indices().nth(MAX_SHOWN) {
                Some((at, _)) => format!("{}…", escape(&text[..at])),
                None => escape(&text).into_owned(),
            }
        };
        write!(f, "`{}`", escape(&self.key))?;
        match &self.stated {
            Some(stated) if *stated == self.taken => write!(f, " = {}", shown(stated)),
            Some(stated) => write!(f, " = {} (counts as {})", shown(stated), shown(&self.taken)),
            None if self.taken.is_null() => f.write_str(", absent"),
            None => write!(f, ", absent (counts as {})", shown(&self.taken)),
        }
    }
}
