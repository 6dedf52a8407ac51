//! Lists of names in messages.

use gguf_core::text::escape;

/// Returns up to eight names in backticks; `…` follows if there are more.
pub(crate) fn first_few_names(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(8).map(|name| format!("`{}`", escape(name))).collect();
    let more = if names.len() > 8 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
