//! Words of a target: the literals in the source files of its parser, so that a new key or opcode is a word at once.

use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::support::{files, root};

/// Largest word in bytes. Longer literals are messages.
const MAX_BYTES: usize = 24;

/// Values and punctuation of text formats, at their limits.
const TEXT: [&str; 18] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-1",
    "-0",
    "1e400",
    "0.5",
    "9223372036854775807",
    "\\ud83d",
];

/// Comments and characters, which are skipped, or a literal: of bytes or text, raw or not, or a byte.
static LITERAL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r##"(?s)//[^\n]*|'(?:[^'\\\n]|\\.)'|r#+"(?P<hashed>.*?)"#+|\br"(?P<raw>[^"]*)"|"(?P<text>(?:[^"\\]|\\.)*)"|b'(?P<byte>(?:[^'\\]|\\.)+)'"##,
    )
    .unwrap()
});

/// Returns the words of the parsers in these places: `CRATE/PATH` of a source file without its suffix, or of a folder.
pub fn of(places: &[&str]) -> Vec<Vec<u8>> {
    let sources: Vec<String> = places.iter().flat_map(|place| place.split(' ')).flat_map(sources).collect();
    let mut words: Vec<Vec<u8>> = TEXT.map(|word| word.as_bytes().to_vec()).to_vec();
    for source in &sources {
        words.extend(literals(source).into_iter().filter(|word| (1..=MAX_BYTES).contains(&word.len())));
    }
    let quoted =
        words.iter().filter(|word| word.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_'));
    let quoted: Vec<Vec<u8>> = quoted.map(|word| [b"\"", word.as_slice(), b"\""].concat()).collect();
    words.extend(quoted);
    words.sort();
    words.dedup();
    words
}

/// Reads the source file of a place, and all files of a folder of its name.
fn sources(place: &str) -> Vec<String> {
    let (name, path) = place.split_once('/').unwrap();
    let path = root().join(format!("crates/gguf-{name}/src/{path}"));
    let file = path.with_extension("rs");
    let inside = if path.is_dir() { files::below(&path) } else { Vec::new() };
    let read = |path: &Path| fs_err::read_to_string(path).unwrap();
    let found: Vec<String> =
        inside.iter().chain(file.exists().then_some(&file)).map(|path| read(path)).collect();
    assert!(!found.is_empty(), "{place}: no source file");
    found
}

fn literals(source: &str) -> Vec<Vec<u8>> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let literal = |found: regex::Captures<'_>| {
        let raw = found.name("hashed").or(found.name("raw")).map(|text| text.as_str().as_bytes().to_vec());
        raw.or_else(|| unescaped(found.name("text").or(found.name("byte"))?.as_str()))
    };
    LITERAL.captures_iter(source).filter_map(literal).collect()
}

/// Returns the bytes of a literal; `None` for one with a continued line.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut chars) = (Vec::new(), text.chars());
    while let Some(c) = chars.next() {
        if c != '\\' {
            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match chars.next()? {
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            '0' => bytes.push(0),
            'x' => bytes.push(u8::from_str_radix(&chars.by_ref().take(2).collect::<String>(), 16).ok()?),
            same @ ('\\' | '"' | '\'') => bytes.push(same as u8),
            _ => return None,
        }
    }
    Some(bytes)
}

/// Returns the words as a dictionary of libFuzzer.
pub fn dictionary(words: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for word in words {
        text.push('"');
        for byte in word {
            write!(text, "\\x{byte:02x}").unwrap();
        }
        text.push_str("\"\n");
    }
    text
}

#[test]
fn literals_are_words_and_messages_are_none() {
    let source = r##"// "no"
        const A: &[u8] = b"\x80\x02}q"; let b = ["lm_head", r#"a"b"#, 'x', '"']; match c { b'X' => "é\n" }
        "a message that is much too long for a word"
        #[cfg(test)] "neither""##;
    let mut own: Vec<Vec<u8>> = literals(source);
    own.retain(|word| word.len() <= MAX_BYTES);
    assert_eq!(own, [&b"\x80\x02}q"[..], b"lm_head", b"a\"b", b"X", "é\n".as_bytes()]);
    assert_eq!(dictionary(&own[3..4]), "\"\\x58\"\n");
}
