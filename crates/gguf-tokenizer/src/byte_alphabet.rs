//! Byte alphabet of GPT-2: each byte as a printable character.

use std::sync::LazyLock;

/// Characters by byte: printable bytes represent themselves, the others follow from U+0100 on.
static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(byte);
        }
        let other = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
        next += 1;
        other
    })
});

/// Returns the character of a byte.
pub fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// Returns the byte of a character, if it belongs to the alphabet.
pub fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(u32::from(c)).ok(),
        // The other bytes, in order.
        0x100..=0x143 => CHARS.iter().position(|&own| own == c).and_then(|at| u8::try_from(at).ok()),
        _ => None,
    }
}

pub(super) fn written(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char_of(byte)).collect()
}

/// Returns the bytes of a text in the alphabet; `None` if a character does not belong to it.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// Returns the text of a token. A token with a character outside the alphabet is returned unchanged, and invalid UTF-8
/// is replaced.
pub(super) fn decoded(token: &str) -> String {
    bytes_of(token).map_or_else(|| token.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
        let all: Vec<u8> = (0..=255).collect();
        let distinct: std::collections::HashSet<char> = written(&all).chars().collect();
        assert_eq!(distinct.len(), 256);
        assert_eq!(written(b" a\n\x7f\xad\xc3"), "\u{120}a\u{10a}\u{121}\u{143}\u{c3}");
        assert_eq!(bytes_of("\u{120}a"), Some(b" a".to_vec()));
        assert_eq!(bytes_of(" a"), None);
    }
}
