//! Splitting of text into the pieces within which byte-level BPE merges, by the steps of `pretokenizers.toml`.
//!
//! # Exactness
//! The pieces of the `tokenizers` library for the same steps. The regexes of released tokenizers use lookahead in only
//! three forms. These are hand-written, the rest runs on automata, so the time is linear in the text.

use std::ops::Range;

use regex::Regex;

use crate::byte_alphabet::written;
use crate::pretokenizer::GPT2_REGEX;

/// End of most patterns: whitespace before a word except its last character; otherwise all whitespace.
const KEEP_ONE: &str = r"|\s+(?!\S)|\s+";
/// End of Jais 2's pattern: as above, in powers of two.
const POWERS: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Groups of up to three digits, counted from the end of a number that no letter follows.
const TRIPLES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Positions before the last three, six, … digits of a number.
const TRIPLE_CUTS: &str = r"(?=(\d{3})+(?!\d))";
/// Characters for which `is_punctuation` of the `tokenizers` library is true.
const PUNCTUATION: &str = r"[\p{P}!-/:-@\[-`{-~]";

/// Compiled steps of one pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Splitter {
    before: Vec<SplitStep>,
    after: Vec<SplitStep>,
    /// True if pieces are written in the byte alphabet.
    pub(crate) byte_level: bool,
}

#[derive(Debug)]
struct SplitStep {
    pattern: SplitPattern,
    behavior: SplitBehavior,
}

/// Treatment of the matches of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitBehavior {
    /// Matches are pieces.
    Isolated,
    /// Matches are dropped.
    Removed,
    /// Matches belong to the preceding piece.
    MergedWithPrevious,
}

#[derive(Debug)]
enum SplitPattern {
    Regex(Regex),
    /// `head` or a run of whitespace.
    Blanks {
        either: Regex,
        /// `head` at the start of a text.
        head: Regex,
        powers: bool,
    },
    Triples {
        digits: Regex,
        /// A word character at the start of a text. Any number is one in Oniguruma, which the originals use.
        word: Regex,
    },
    TripleCuts(Regex),
}

impl Splitter {
    /// Compiles the steps of a structure; `None` for a step that no structure of the table has.
    pub(crate) fn new(steps: &[String]) -> Option<Self> {
        let mut out = Self { before: Vec::new(), after: Vec::new(), byte_level: false };
        for step in steps {
            let (kind, rest) = step.split_once(' ').unwrap_or((step, ""));
            let (behavior, regex) = match (kind, rest) {
                ("byte_level", "") => {
                    out.byte_level = true;
                    continue;
                }
                ("byte_level", "regex") => ("isolated", GPT2_REGEX),
                ("digits", "individual") => ("isolated", r"\p{N}"),
                ("digits", "grouped") => ("isolated", r"\p{N}+"),
                ("punctuation", "isolated") => ("isolated", PUNCTUATION),
                // Adjacent matches form one piece.
                ("punctuation", "contiguous") => ("isolated", r"[\p{P}!-/:-@\[-`{-~]+"),
                ("split", rest) => rest.split_once(' ')?,
                _ => return None,
            };
            let behavior = match behavior {
                "isolated" => SplitBehavior::Isolated,
                "removed" => SplitBehavior::Removed,
                "mergedwithprevious" => SplitBehavior::MergedWithPrevious,
                _ => return None,
            };
            let split = SplitStep { pattern: SplitPattern::new(regex)?, behavior };
            if out.byte_level { &mut out.after } else { &mut out.before }.push(split);
            out.byte_level |= kind == "byte_level";
        }
        Some(out)
    }

    /// Returns the pieces as byte ranges of the text. Steps after the byte alphabet may split inside a character.
    pub(crate) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let pieces = run(&self.before, text);
        if self.after.is_empty() {
            return pieces;
        }
        let mut out = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let bytes = text.as_bytes().get(piece.clone()).unwrap_or_default();
            let written = written(bytes);
            let mut at = piece.start;
            for part in run(&self.after, &written) {
                // One character is one byte.
                let n_bytes = written.get(part).unwrap_or_default().chars().count();
                out.push(at..at + n_bytes);
                at += n_bytes;
            }
        }
        out
    }
}

fn run(splits: &[SplitStep], text: &str) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    if !text.is_empty() {
        pieces.push(0..text.len());
    }
    for split in splits {
        let mut next = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let start = piece.start;
            let mut after_match = true;
            split.pattern.each(text.get(piece).unwrap_or_default(), &mut |part, is_match| {
                if part.is_empty() {
                    return;
                }
                let part = start + part.start..start + part.end;
                match split.behavior {
                    SplitBehavior::Removed if is_match => {}
                    SplitBehavior::MergedWithPrevious if is_match && !after_match => {
                        if let Some(last) = next.last_mut() {
                            *last = Range { end: part.end, ..*last };
                        }
                    }
                    _ => next.push(part),
                }
                after_match = is_match;
            });
        }
        pieces = next;
    }
    pieces
}

impl SplitPattern {
    fn new(regex: &str) -> Option<Self> {
        let compile = |regex: &str| Regex::new(regex).ok();
        let blanks = |head: &str, powers| {
            let either = compile(&format!(r"{head}|\s+"))?;
            Some(Self::Blanks { either, head: compile(&format!(r"\A(?:{head})"))?, powers })
        };
        // The text after these possessive quantifiers cannot match their contents, so greedy ones are equivalent.
        let regex = regex.replace("]?+", "]?").replace("]++", "]+");
        if let Some(head) = regex.strip_suffix(KEEP_ONE) {
            return blanks(head, false);
        }
        if let Some(head) = regex.strip_suffix(POWERS) {
            return blanks(head, true);
        }
        Some(match regex.as_str() {
            TRIPLES => Self::Triples { digits: compile(r"\d+")?, word: compile(r"\A[\w\p{N}]")? },
            TRIPLE_CUTS => Self::TripleCuts(compile(r"\d+")?),
            regex => Self::Regex(compile(regex)?),
        })
    }

    /// Visits all matches and the text between them, in order.
    fn each(&self, text: &str, visit: &mut impl FnMut(Range<usize>, bool)) {
        let mut done = 0;
        let mut found = |range: Range<usize>| {
            visit(done..range.start, false);
            done = range.end;
            visit(range, true);
        };
        match self {
            Self::Regex(regex) => regex.find_iter(text).for_each(|m| found(m.range())),
            Self::Blanks { either, head, powers } => {
                let mut at = 0;
                while let Some(m) = either.find_at(text, at).filter(|m| !m.is_empty()) {
                    let blanks = m.as_str().chars().all(char::is_whitespace) && !head.is_match(m.as_str());
                    // A following word takes the last whitespace character.
                    let last = m.as_str().chars().next_back().map_or(0, char::len_utf8);
                    let keeps = blanks && m.end() < text.len() && m.len() > last;
                    at = if keeps { m.end() - last } else { m.end() };
                    if blanks && *powers {
                        each_power(text, m.start()..at, &mut found);
                    } else {
                        found(m.start()..at);
                    }
                }
            }
            Self::Triples { digits, word } => {
                for run in digits.find_iter(text) {
                    if !word.is_match(text.get(run.end()..).unwrap_or_default()) {
                        let mut start = run.start();
                        for end in triple_ends(text, run.range()) {
                            found(start..end);
                            start = end;
                        }
                    }
                }
            }
            Self::TripleCuts(digits) => {
                for run in digits.find_iter(text) {
                    let ends = triple_ends(text, run.range());
                    let whole = run.as_str().chars().count().is_multiple_of(3);
                    let first = whole.then_some(run.start());
                    for cut in first.into_iter().chain(ends).filter(|&cut| cut < run.end()) {
                        found(cut..cut);
                    }
                }
            }
        }
        visit(done..text.len(), false);
    }
}

/// Returns the ends of a number's groups of three digits; the first group may have fewer.
fn triple_ends(text: &str, run: Range<usize>) -> Vec<usize> {
    let number = text.get(run.clone()).unwrap_or_default();
    let n = number.chars().count();
    let starts = number.char_indices().map(|(at, _)| run.start + at).chain([run.end]);
    starts.enumerate().filter(|(i, _)| *i > 0 && (n - i).is_multiple_of(3)).map(|(_, at)| at).collect()
}

/// Splits whitespace into the largest powers of two, of at most 512 characters.
fn each_power(text: &str, blanks: Range<usize>, found: &mut impl FnMut(Range<usize>)) {
    let run = text.get(blanks.clone()).unwrap_or_default();
    let mut starts: Vec<usize> = run.char_indices().map(|(at, _)| blanks.start + at).collect();
    let n = starts.len();
    starts.push(blanks.end);
    let mut at = 0;
    while at < n {
        let power = (0..10).rev().map(|exponent| 1 << exponent).find(|&power| power <= n - at).unwrap_or(1);
        found(starts[at]..starts[at + power]);
        at += power;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretokenizer::{PreTable, step_json};
    use gguf_testkit::tiers::{Tier, two_tiers};

    /// Difficult texts for the hand-written parts: runs of whitespace before words, lines and ends, numbers next to
    /// letters.
    const TEXTS: [&str; 12] = [
        "  a   b\n\n c \t\n  \n",
        "x          ",
        "\u{3000}\u{a0} wide\u{2003}\u{2003}\u{2003}end",
        "1 12 123 1234 12345 1234567x x1234567 _12 12_ 1234.5678",
        "a½12 ٣٤٥٦ १२३४ Ⅷ",
        "I'm you'LL 's 'ſ don't '''tis",
        "e\u{301}a\u{301} नमस्ते กำ עִבְ",
        "你好abc日本語ひらがなカタカナ한국어",
        "!?…。 (a|b) [x] .,;: $a^b~`c` <sentinel:12> IMGIMGABZ",
        "a\r\nb\r\r\n \r\n  c",
        "ÀÉîõÜ ΑΒΓ абв Ǆǅ ﬁ ªº ²³ 🦙🚀👩‍🔬",
        "CamelCase HTTPServer's a b c d",
    ];

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        splitter.split(text).into_iter().map(|range| written(&text.as_bytes()[range])).collect()
    }

    #[test]
    fn the_pieces_are_those_of_the_tokenizers_library() {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let mut n_texts = 0;
        for structure in PreTable::get().structures() {
            let splitter = Splitter::new(&structure.steps).unwrap();
            if !splitter.byte_level {
                continue;
            }
            let parts: Vec<_> = structure.steps.iter().filter_map(|step| step_json(step)).collect();
            let sequence = serde_json::json!({"type": "Sequence", "pretokenizers": parts});
            let theirs: tokenizers::PreTokenizerWrapper = serde_json::from_value(sequence).unwrap();
            let blanks: Vec<String> =
                (1..40).chain([600]).map(|n| format!("{0}a{0}\n{0}", " ".repeat(n))).collect();
            for text in TEXTS.into_iter().chain(blanks.iter().map(String::as_str)) {
                let mut string = PreTokenizedString::from(text);
                theirs.pre_tokenize(&mut string).unwrap();
                let splits = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
                let expected: Vec<&str> = splits.into_iter().map(|split| split.0).collect();
                assert_eq!(pieces(&splitter, text), expected, "{}: {text:?}", structure.name);
                n_texts += 1;
            }
        }
        assert!(n_texts > 1000, "{n_texts}");
    }

    two_tiers!(a_long_text_of_one_character_is_split);
    /// With quadratic time, this test would not finish; every day with a tenth of the text.
    fn a_long_text_of_one_character_is_split(tier: Tier) {
        for structure in PreTable::get().structures() {
            let splitter = Splitter::new(&structure.steps).unwrap();
            for text in [" ", "a", "A", "7", "\n", "\n ", "!", "é", "a ", "'"] {
                let text = text.repeat(tier.of(20_000, 200_000) / text.len());
                let n_bytes: usize = splitter.split(&text).into_iter().map(|range| range.len()).sum();
                assert!(n_bytes == text.len() || structure.name == "whitespace", "{}", structure.name);
            }
        }
    }

    #[test]
    fn a_match_joins_the_piece_before_unless_that_is_a_match() {
        let splitter = Splitter::new(&["split mergedwithprevious  ".to_owned()]).unwrap();
        let cut = |text: &'static str| -> Vec<&str> {
            splitter.split(text).into_iter().map(|range| &text[range]).collect()
        };
        assert_eq!(cut("  a b  c"), [" ", " ", "a ", "b ", " ", "c"]);
    }

    #[test]
    fn an_unknown_step_is_refused() {
        assert!(Splitter::new(&["metaspace".to_owned()]).is_none());
        assert!(Splitter::new(&["split isolated (".to_owned()]).is_none());
    }
}
