//! Escaping for Markdown, in the dialect of GitHub and Hugging Face.

use std::fmt::Write as _;

/// Escapes text so that Markdown shows it unchanged, in tables, too. The text has no line breaks.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            // Some readers end a cell even at an escaped pipe.
            '|' => out.push_str("&#124;"),
            // These would create mentions and links.
            '@' | ':' => {
                let _ = write!(out, "&#{};", c as u32);
            }
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '#' | '~' | '!' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// Percent-encodes a file name for a link: all bytes except ASCII letters, digits and `-_.~`.
pub(crate) fn link(name: &str) -> String {
    let byte = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_names() {
        assert_eq!(escape("plain-name.Q4 (1)"), "plain-name.Q4 (1)");
        assert_eq!(escape("a|b`c`_d_<b>&"), r"a&#124;b\`c\`\_d\_&lt;b&gt;&amp;");
        assert_eq!(escape("![x](http://y)"), r"\!\[x\](http&#58;//y)");
    }
}
