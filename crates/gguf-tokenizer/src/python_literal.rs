//! Python's string literals, as used in RWKV's vocabulary, and Python's notation of bytes.

/// Parses a literal to bytes: text as UTF-8, or raw bytes. `None` for anything but one plain literal.
pub(super) fn bytes(literal: &str) -> Option<Vec<u8>> {
    let (is_bytes, quoted) = match literal.strip_prefix(['b', 'B']) {
        Some(quoted) => (true, quoted),
        None => (false, literal),
    };
    let quote = quoted.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        if c == quote || c == '\n' || (is_bytes && !c.is_ascii()) {
            return None;
        }
        if c != '\\' {
            push(&mut out, c);
            continue;
        }
        let code = match chars.next()? {
            'n' => 0x0a,
            't' => 0x09,
            'r' => 0x0d,
            'a' => 0x07,
            'b' => 0x08,
            'f' => 0x0c,
            'v' => 0x0b,
            same @ ('\\' | '\'' | '"') => u32::from(same),
            'x' => digits(&mut chars, 2)?,
            'u' if !is_bytes => digits(&mut chars, 4)?,
            'U' if !is_bytes => digits(&mut chars, 8)?,
            first @ '0'..='7' => {
                let mut code = first.to_digit(8)?;
                for _ in 0..2 {
                    let Some(next) = chars.peek().and_then(|next| next.to_digit(8)) else { break };
                    code = code * 8 + next;
                    chars.next();
                }
                code
            }
            _ => return None,
        };
        if is_bytes {
            out.push(u8::try_from(code).ok()?);
        } else {
            push(&mut out, char::from_u32(code)?);
        }
    }
    Some(out)
}

fn digits(chars: &mut impl Iterator<Item = char>, n: usize) -> Option<u32> {
    (0..n).try_fold(0u32, |code, _| Some((code << 4) | chars.next()?.to_digit(16)?))
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Writes bytes as Python prints them, without the enclosing quotes: GGUF's text of an RWKV token.
pub(super) fn written(bytes: &[u8]) -> String {
    // Python encloses in `'`, unless the text contains `'` and no `"`.
    let escapes_quote = bytes.contains(&b'\'') && bytes.contains(&b'"');
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => out.push_str(r"\\"),
            b'\t' => out.push_str(r"\t"),
            b'\n' => out.push_str(r"\n"),
            b'\r' => out.push_str(r"\r"),
            b'\'' if escapes_quote => out.push_str(r"\'"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.push_str(r"\x");
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    out
}

/// Parses such a text to bytes, as leniently as the runtime.
pub(super) fn read(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                if let (Some(high), Some(low)) = (digit(), digit()) {
                    out.push((high << 4 | low) as u8);
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_bytes() {
        for (literal, expected) in [
            (r"'a'", &b"a"[..]),
            (r#"" \"""#, b" \""),
            (r"'\n\t\\'", b"\n\t\\"),
            (r"'\x80'", "\u{80}".as_bytes()),
            (r"b'\x80\xff'", b"\x80\xff"),
            (r"'\u00e9\U0001f680'", "\u{e9}\u{1f680}".as_bytes()),
            (r"'\0\07\177'", b"\0\x07\x7f"),
            ("'\u{4f60}'", "\u{4f60}".as_bytes()),
        ] {
            assert_eq!(bytes(literal).as_deref(), Some(expected), "{literal}");
        }
        for bad in [
            "",
            "'",
            "a",
            "'a",
            "'a\"",
            "'a'b'",
            r"'\'",
            r"'\x8'",
            r"'\q'",
            r"b'\u0041'",
            "b'\u{e9}'",
            r"'\ud800'",
        ] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn bytes_are_written_as_python_prints_them() {
        for (bytes, expected) in [
            (&b"a b"[..], "a b"),
            (b"\n\\\x00\x7f\xff", r"\n\\\x00\x7f\xff"),
            (b"'", "'"),
            (b"\"", "\""),
            (b"'\"", r#"\'""#),
        ] {
            assert_eq!(written(bytes), expected);
            assert_eq!(read(expected.as_bytes()), bytes);
        }
        assert_eq!(read(br"\x4"), b"");
        assert_eq!(read(br"a\"), b"a");
    }
}
