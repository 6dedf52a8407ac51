//! Decoder of `tokenizer.json`, as far as it converts a single token to text: GGUF stores added tokens in decoded form.

use regex::{Regex, RegexBuilder};
use serde_json::Value as Json;

use super::byte_alphabet;

/// Maximum nesting depth of sequences.
const MAX_DEPTH: usize = 8;
/// Maximum number of steps of all sequences together; released files have up to six.
const MAX_STEPS: usize = 64;
/// Maximum size in bytes of a compiled pattern, and of the cache of its search.
const MAX_PATTERN_BYTES: usize = 1 << 18;
/// Maximum factor by which all steps together may lengthen a token.
const MAX_GROWTH: usize = 64;

/// One step of a decoder.
///
/// # Exactness
/// Each step equals the `tokenizers` library's decoder of the same name for a list of one token.
#[derive(Debug)]
pub(super) enum HfDecoder {
    /// `ByteLevel`: bytes in the byte alphabet.
    ByteLevel,
    /// `ByteFallback`: `<0xNN>` is a byte.
    ByteFallback,
    /// `Fuse`: joins tokens; here there is only one.
    Fuse,
    /// `Metaspace`: spaces are written as another character.
    Metaspace {
        /// Character that represents a space.
        replacement: char,
        /// True if a space in front of a text is removed; every space of the first token counts as such.
        prepends: bool,
    },
    /// `Replace`: replaces matches of a pattern.
    Replace {
        /// Pattern to replace.
        pattern: Regex,
        /// Replacement.
        content: String,
    },
    /// `Strip`: removes a character at both ends.
    Strip {
        /// Character to remove.
        content: char,
        /// Maximum number removed at the start.
        start: usize,
        /// Maximum number removed at the end.
        stop: usize,
    },
    /// `WordPiece`: cleans up spaces, or leaves a first token unchanged.
    WordPiece { cleanup: bool },
    /// `BPEDecoder`: a suffix marks the end of words.
    Suffix(String),
    /// `Sequence`: applies steps in order.
    Sequence(Vec<HfDecoder>),
}

impl HfDecoder {
    /// Parses the member of the file; the error is the name of a step that is unknown or incomplete.
    pub(super) fn read(decoder: &Json) -> Result<Self, String> {
        let mut left = StepBudget { steps: MAX_STEPS, growth: MAX_GROWTH };
        Self::read_at(decoder, 0, &mut left)
    }

    fn read_at(decoder: &Json, depth: usize, left: &mut StepBudget) -> Result<Self, String> {
        let name = decoder.get("type").and_then(Json::as_str).unwrap_or_default();
        let Some(steps) = left.steps.checked_sub(1) else {
            return Err(format!("{name}: more than {MAX_STEPS} steps"));
        };
        left.steps = steps;
        let read = match name {
            "ByteLevel" => Some(Self::ByteLevel),
            "ByteFallback" => Some(Self::ByteFallback),
            "Fuse" => Some(Self::Fuse),
            "Metaspace" => Self::metaspace(decoder),
            "Replace" => {
                left.growth /= growth(decoder);
                if left.growth == 0 {
                    return Err(format!("{name}: a token may become more than {MAX_GROWTH} times as long"));
                }
                Self::replace(decoder)
            }
            "Strip" => Self::strip(decoder),
            "WordPiece" => {
                decoder.get("cleanup").and_then(Json::as_bool).map(|cleanup| Self::WordPiece { cleanup })
            }
            "BPEDecoder" => text(decoder, "suffix").map(|suffix| Self::Suffix(suffix.to_owned())),
            "Sequence" if depth < MAX_DEPTH => {
                let steps =
                    decoder.get("decoders").and_then(Json::as_array).ok_or_else(|| name.to_owned())?;
                let steps = steps.iter().map(|step| Self::read_at(step, depth + 1, left));
                return steps.collect::<Result<_, _>>().map(Self::Sequence);
            }
            _ => None,
        };
        read.ok_or_else(|| name.to_owned())
    }

    fn metaspace(decoder: &Json) -> Option<Self> {
        let prepends = match text(decoder, "prepend_scheme") {
            Some(scheme) => scheme != "never",
            None => decoder.get("add_prefix_space").and_then(Json::as_bool) != Some(false),
        };
        Some(Self::Metaspace { replacement: char_of(decoder, "replacement")?, prepends })
    }

    fn replace(decoder: &Json) -> Option<Self> {
        let pattern = decoder.get("pattern")?;
        let pattern = match text(pattern, "String") {
            Some(literal) => bounded(&regex::escape(literal)),
            None => bounded(text(pattern, "Regex")?),
        };
        Some(Self::Replace { pattern: pattern.ok()?, content: text(decoder, "content")?.to_owned() })
    }

    fn strip(decoder: &Json) -> Option<Self> {
        let count = |key: &str| usize::try_from(decoder.get(key)?.as_u64()?).ok();
        Some(Self::Strip {
            content: char_of(decoder, "content")?,
            start: count("start")?,
            stop: count("stop")?,
        })
    }

    pub(super) fn decode(&self, token: &str) -> String {
        match self {
            Self::ByteLevel => byte_alphabet::decoded(token),
            Self::ByteFallback => match byte_token(token) {
                Some(byte) if byte.is_ascii() => char::from(byte).to_string(),
                Some(_) => char::REPLACEMENT_CHARACTER.to_string(),
                None => token.to_owned(),
            },
            Self::Fuse | Self::WordPiece { cleanup: false } => token.to_owned(),
            Self::Metaspace { replacement, prepends } => {
                token.replace(*replacement, if *prepends { "" } else { " " })
            }
            Self::Replace { pattern, content } => {
                pattern.replace_all(token, regex::NoExpand(content)).into_owned()
            }
            Self::Strip { content, start, stop } => stripped(token, *content, *start, *stop),
            Self::WordPiece { cleanup: true } => tidied(token),
            Self::Suffix(suffix) => token.replace(suffix.as_str(), ""),
            Self::Sequence(steps) => steps.iter().fold(token.to_owned(), |text, step| step.decode(&text)),
        }
    }
}

fn text<'j>(json: &'j Json, key: &str) -> Option<&'j str> {
    json.get(key).and_then(Json::as_str)
}

/// Remaining budget of the steps not read yet.
struct StepBudget {
    steps: usize,
    growth: usize,
}

/// Returns the factor by which a `Replace` can lengthen a text.
fn growth(decoder: &Json) -> usize {
    let content = text(decoder, "content").map_or(0, str::len);
    match decoder.get("pattern").and_then(|pattern| text(pattern, "String")).map(str::len) {
        Some(n) if n > 0 => content.div_ceil(n).max(1),
        // A regex may match the empty string, between all characters.
        _ => content + 1,
    }
}

fn bounded(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES).build()
}

fn char_of(json: &Json, key: &str) -> Option<char> {
    let mut chars = text(json, key)?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// Returns the byte of `<0xNN>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// Removes up to the given numbers of a character at both ends; a single character may count for both.
fn stripped(token: &str, content: char, start: usize, stop: usize) -> String {
    let chars: Vec<char> = token.chars().collect();
    let head = chars.iter().take(start).take_while(|c| **c == content).count();
    let tail = chars.iter().rev().take(stop).take_while(|c| **c == content).count();
    chars.get(head..chars.len() - tail).unwrap_or_default().iter().collect()
}

/// Removes spaces before punctuation and contractions.
fn tidied(text: &str) -> String {
    const PAIRS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    PAIRS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::Decoder;

    use super::*;

    #[test]
    fn steps_are_bounded_together() {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let of = |step: &Json, n| HfDecoder::read(&json!({"type": "Sequence", "decoders": vec![step; n]}));
        assert_eq!(of(&double, 6).unwrap().decode("a"), "a".repeat(64));
        assert!(of(&double, 7).unwrap_err().contains("64 times as long"));
        let fuse = json!({"type": "Fuse"});
        assert!(of(&fuse, 63).is_ok());
        assert!(of(&fuse, 64).unwrap_err().contains("64 steps"));
        let large = json!({"type": "Replace", "pattern": {"Regex": "(?:x{900}){90}"}, "content": ""});
        assert_eq!(HfDecoder::read(&large).unwrap_err(), "Replace");
    }

    #[test]
    fn tokens_read_as_in_the_tokenizers_library() {
        let metaspace =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "never", "split": true});
        let replace = json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 2});
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let fallback = json!({"type": "ByteFallback"});
        let fuse = json!({"type": "Fuse"});
        let decoders = [
            bytes.clone(),
            fallback.clone(),
            fuse.clone(),
            metaspace.clone(),
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true}),
            json!({"type": "Metaspace", "replacement": "\u{2581}", "add_prefix_space": true}),
            replace.clone(),
            json!({"type": "Replace", "pattern": {"Regex": "[a-c]+"}, "content": "$0"}),
            strip.clone(),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
            json!({"type": "BPEDecoder", "suffix": "</w>"}),
            json!({"type": "Sequence", "decoders": [replace, fallback, fuse, strip]}),
            json!({"type": "Sequence", "decoders": [metaspace, bytes]}),
        ];
        let tokens = [
            "\u{120}a",
            " a",
            "<|im_end|>",
            "\u{2581}\u{2581}a\u{2581}",
            "<0x41>",
            "<0xE4>",
            "<0x4>",
            "<0xZZ>",
            "abc_abd",
            "  x   ",
            "##a",
            "a ' b . do n't",
            "low</w>",
            "\u{c3}",
            "\u{e9}",
            "\u{c3}\u{a9}",
            "x",
        ];
        for json in decoders {
            let theirs: tokenizers::DecoderWrapper = serde_json::from_value(json.clone()).unwrap();
            let ours = HfDecoder::read(&json).unwrap();
            for token in tokens {
                assert_eq!(
                    ours.decode(token),
                    theirs.decode(vec![token.to_owned()]).unwrap(),
                    "{json} {token:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_known_is_named_and_nothing_panics() {
        for (json, name) in [
            (json!({"type": "CTC"}), "CTC"),
            (json!({}), ""),
            (json!({"type": "Strip", "content": "ab", "start": 0, "stop": 0}), "Strip"),
            (json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}), "Replace"),
            (json!({"type": "Sequence", "decoders": [{"type": "Odd"}]}), "Odd"),
        ] {
            assert_eq!(HfDecoder::read(&json).unwrap_err(), name);
        }
        let mut deep = json!({"type": "Fuse"});
        for _ in 0..20 {
            deep = json!({"type": "Sequence", "decoders": [deep]});
        }
        assert_eq!(HfDecoder::read(&deep).unwrap_err(), "Sequence");
        assert_eq!(stripped("", ' ', 1, 1), "");
        assert_eq!(stripped("  ", ' ', 2, 2), "");
        assert_eq!(HfDecoder::ByteFallback.decode("<0x\u{e4}>"), "<0x\u{e4}>");
    }
}
