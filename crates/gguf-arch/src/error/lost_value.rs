//! Values of the configuration that a file does not carry.

use std::fmt;

use serde_json::Value as Json;

use gguf_core::text::escape;

/// Maximum length of a value in a message, in bytes.
const MAX_TEXT: usize = 2000;

/// Value of the configuration that the file does not carry.
#[derive(Clone, Debug, PartialEq)]
pub struct LostValue {
    /// Configuration key, with dots for nested members.
    pub key: String,
    /// Its value.
    pub value: Json,
    /// Value for which the runtime computes correctly, if it is known.
    pub(crate) assumed: Option<Json>,
    /// Value of `general.architecture`.
    pub gguf: String,
    /// True if an annotation can carry the value.
    pub can_be_annotated: bool,
    /// True if the configuration omits the key, and the value is the class's default.
    pub is_absent: bool,
}

impl fmt::Display for LostValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (escape(&self.key), text(&self.value));
        if self.is_absent {
            return write!(
                f,
                "`{key}` is absent: transformers takes {value}, and the file says something else; with `\"{key}\": {value}` in \
                 config.json it says so, too"
            );
        }
        write!(f, "`{key}` = {value} is lost: a `{}` file has no key or tensor for it", self.gguf)?;
        match &self.assumed {
            Some(Json::Null) => f.write_str(", and runtimes compute without it")?,
            Some(assumed) => write!(f, ", and runtimes compute with {}", text(assumed))?,
            None => f.write_str(", and runtimes ignore it")?,
        }
        if self.can_be_annotated {
            f.write_str(" (`--annotate` keeps it for `gguf-verify`)")?;
        }
        Ok(())
    }
}

/// Returns a value as JSON text, truncated if it is long.
fn text(value: &Json) -> String {
    let mut text = escape(&value.to_string()).to_string();
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
