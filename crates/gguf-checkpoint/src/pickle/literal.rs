//! Literals of the text protocols: decimal numbers, strings with Python's escapes.

pub(super) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Parses a decimal integer with an optional `L` suffix (a Python 2 long); `None` for anything else, also beyond 64
/// bits.
pub(super) fn integer(line: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(line).ok()?;
    text.strip_suffix('L').unwrap_or(text).parse().ok()
}

/// Parses a quoted string with Python's byte escapes; the bytes are decoded as Latin-1.
pub(super) fn quoted(line: &[u8]) -> Option<String> {
    let (quote, rest) = line.split_first().filter(|(quote, _)| matches!(quote, b'\'' | b'"'))?;
    let (last, body) = rest.split_last()?;
    if last != quote {
        return None;
    }
    let mut out = String::with_capacity(body.len());
    let mut bytes = body.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(char::from(byte));
            continue;
        }
        out.push(char::from(match bytes.next()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => u8::try_from(hex(&mut bytes, 2)?).ok()?,
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        }));
    }
    Some(out)
}

/// Decodes Latin-1 with `\uXXXX` and `\UXXXXXXXX`; other backslashes are literal.
pub(super) fn raw_unicode(line: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let digits = match (byte, bytes.peek()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                out.push(char::from(byte));
                continue;
            }
        };
        bytes.next();
        out.push(char::from_u32(hex(&mut bytes, digits)?)?);
    }
    Some(out)
}

fn hex(bytes: &mut impl Iterator<Item = u8>, n_digits: usize) -> Option<u32> {
    let mut value = 0;
    for _ in 0..n_digits {
        value = value * 16 + char::from(bytes.next()?).to_digit(16)?;
    }
    Some(value)
}
