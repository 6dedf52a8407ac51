//! The bytes that a token stands for.

use crate::tokenizer::byte_alphabet::bytes_of;
use crate::tokenizer::emit::TokenType;

use super::vocab::Vocab;

/// How the texts of a vocabulary's normal tokens are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In the byte alphabet.
    Bytes,
    /// As they are, with `▁` for a blank.
    Metaspace,
    /// As they are.
    Plain,
}

/// Appends the bytes of a token: special tokens written out, unused ones nothing.
pub(super) fn piece(vocab: &Vocab, spelling: Spelling, id: u32, out: &mut Vec<u8>) {
    let Some(text) = vocab.token(id) else { return };
    match (vocab.kind(id), std::str::from_utf8(text)) {
        (TokenType::Unused, _) => {}
        (TokenType::Byte, Ok(written)) if byte(written).is_some() => out.extend(byte(written)),
        (TokenType::Normal, Ok(written)) if spelling == Spelling::Bytes => {
            // A token with a character that is not of the alphabet was added as it is.
            match bytes_of(written) {
                Some(bytes) => out.extend(bytes),
                None => out.extend(text),
            }
        }
        (TokenType::Normal, Ok(written)) if spelling == Spelling::Metaspace => {
            out.extend(written.replace('\u{2581}', " ").bytes());
        }
        _ => out.extend(text),
    }
}

/// The byte of `<0xNN>`.
fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let two = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| two)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_two_hexadecimal_digits() {
        assert_eq!(byte("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x+1>", "0x0A", "<0x0AA>"] {
            assert_eq!(byte(text), None, "{text}");
        }
    }
}
