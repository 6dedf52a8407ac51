//! The byte alphabet of GPT-2: each byte as a printable character.

use std::sync::LazyLock;

/// Characters by byte: printable bytes stand for themselves, the others follow from U+0100 on.
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

/// The character of a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte of a character, if it belongs to the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(u32::from(c)).ok(),
        // The others, in the order of the bytes.
        0x100..=0x143 => CHARS.iter().position(|&own| own == c).and_then(|at| u8::try_from(at).ok()),
        _ => None,
    }
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
    }
}
