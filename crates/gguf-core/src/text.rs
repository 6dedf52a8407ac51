//! Text for users: escaping of untrusted strings, sizes in bytes.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Makes a string from a file safe to print: control characters, terminal escapes and bidirectional overrides appear as
/// `\u{..}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_but(text, |_| false)
}

/// Escapes a text of several lines and keeps line breaks and tabs.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_but(text, |c| matches!(c, '\n' | '\t'))
}

/// Returns true for a character that a terminal may obey, or that is invisible: controls, changes of direction, line
/// separators, tags.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

fn escape_but(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_unsafe = |c: char| is_unsafe(c) && !is_kept(c);
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_kept(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_unsafe(c) => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes bytes that may not be UTF-8, like [`escape`]: invalid bytes appear as `\xNN`.
pub fn escape_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&escape(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Quotes a word so that a shell reads it as it is; control characters are escaped.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    let text = escape(text).into_owned();
    // zsh replaces `=name` by the path of a program.
    if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes the path of a file for a shell, as [`shell_word`]: a program does not take it for an option.
pub fn shell_path(path: &str) -> String {
    shell_word(&if path.starts_with('-') { format!("./{path}") } else { path.to_owned() })
}

/// Formats bytes as lower-case hexadecimal digits, two for each byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Formats a byte count with a binary unit and three significant digits: `1.91 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{n} B"),
        (_, v) if v < 10.0 => format!("{v:.2} {}", UNITS[unit]),
        (_, v) if v < 100.0 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// Formats a number in groups of three digits separated by spaces: `12 345 678`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun: `1 tensor`, `2 tensors`, `3 matrices`, `4 entries`.
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {}", count(n), noun_of(n, noun))
}

/// Returns the noun for a count, in the singular or the plural.
pub fn noun_of(n: u64, noun: &str) -> Cow<'_, str> {
    const ENDINGS: [(&str, &str); 5] =
        [("rix", "rices"), ("ry", "ries"), ("ty", "ties"), ("ch", "ches"), ("x", "xes")];
    if n == 1 {
        return Cow::Borrowed(noun);
    }
    let ending = ENDINGS.iter().find_map(|(one, many)| Some(noun.strip_suffix(one)?.to_owned() + many));
    Cow::Owned(ending.unwrap_or_else(|| format!("{noun}s")))
}

/// Parses a size with an optional unit K, M, G or T (powers of 1024): `128M`, `1.5G`, `4096`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let factor: u64 = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    if let Ok(n) = digits.parse::<u64>() {
        return n.checked_mul(factor);
    }
    let n = digits.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)? * factor as f64;
    (n < u64::MAX as f64).then_some(n as u64)
}

/// Returns year, month, day, hour, minute and second in UTC of a number of seconds since 1970.
pub fn date_time(seconds: u64) -> [u64; 6] {
    // Counted from 1 March of the year 0, so that a leap day ends a year: 400 years have 146097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year + month / 10;
    let time = seconds % 86_400;
    [year, (month + 2) % 12 + 1, day, time / 3600, time / 60 % 60, time % 60]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_a_terminal_would_obey() {
        assert_eq!(escape("plain ünïcode"), "plain ünïcode");
        assert_eq!(escape("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(escape_bytes(b"ok\xff\xfe"), "ok\\xff\\xfe");
    }

    #[test]
    fn a_shell_reads_words_as_they_are() {
        for (text, expected) in [
            ("plain-name.Q4_K_M/ü:=,+@%", "plain-name.Q4_K_M/ü:=,+@%"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(id)`id`${IFS};&|<>()*?[~!#\"\\", "'$(id)`id`${IFS};&|<>()*?[~!#\"\\'"),
            ("it's", r"'it'\''s'"),
            ("=ls", "'=ls'"),
            ("a\nb\u{1b}[2J\u{202e}", r"'a\nb\u{1b}[2J\u{202e}'"),
        ] {
            assert_eq!(shell_word(text), expected);
        }
        assert_eq!([shell_path("-rf"), shell_path("- x"), shell_path("a-b")], ["./-rf", "'./- x'", "a-b"]);
    }

    #[test]
    fn nouns_follow_their_count() {
        let shown =
            [(1, "matrix"), (2, "matrix"), (1, "entry"), (0, "entry"), (3, "batch"), (1000, "tensor")]
                .map(|(n, noun)| plural(n, noun));
        assert_eq!(shown, ["1 matrix", "2 matrices", "1 entry", "0 entries", "3 batches", "1 000 tensors"]);
    }

    #[test]
    fn sizes_both_ways() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(2_200_000_000), "2.05 GiB");
        assert_eq!(parse_bytes("128M"), Some(128 << 20));
        assert_eq!(parse_bytes("1.5G"), Some(3 << 29));
        assert_eq!(parse_bytes("2GiB"), Some(2 << 30));
        assert_eq!(parse_bytes("4096"), Some(4096));
        for bad in ["", "M", "-1", "12X", "99999999999999999999", "18446744073709551615K", "nanG"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }
}
