//! Steps of normalizer, pre-tokenizer and decoder, by what llama.cpp does instead of them.

use gguf_core::text::escape;
use serde_json::Value as Json;

use super::{Account, Algorithm};
use crate::TokenizerWarning;
use crate::encode::reads_as_blank;
use crate::hf_json::FILE;
use crate::pretokenizer::flatten;

const PREFIX_KEY: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_KEY: &str = "tokenizer.ggml.remove_extra_whitespaces";
const BLANK: &str = "\u{2581}";
/// Maximum number of characters of a step in messages.
const SHOWN: usize = 100;

/// White space that a map of SentencePiece's usual rules replaces by blanks.
const WHITE_SPACE: [char; 5] = ['\t', '\n', '\r', '\u{a0}', '\u{3000}'];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Nothing,
    /// Puts `▁` in front of the text.
    Prefix,
    /// Writes blanks as `▁`.
    Blanks,
    JoinBlanks,
    /// Splits at white space, which disappears.
    Words,
    /// Removes white space at the end, or at both ends.
    Trim,
    /// Splits at blanks. `▁` is none.
    SplitBlanks,
    Charsmap,
    Nfc,
    Lowercase,
    /// BERT's normalizer with all its other steps.
    Bert {
        lowercase: bool,
        strip_accents: Option<bool>,
    },
    BertWords,
    WhitespaceWords,
    /// Writes blanks as `▁`, with one in front of the text if it has none, and splits there.
    Metaspace {
        prefix: bool,
        only_first: bool,
        split: bool,
    },
    Other,
}

impl Effect {
    fn of(step: &Json) -> Self {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        let flag = |key: &str| step.get(key).and_then(Json::as_bool);
        let pattern = |kind: &str| step.get("pattern").and_then(|pattern| pattern.get(kind)?.as_str());
        match text("type") {
            Some("Prepend") if text("prepend") == Some("") => Self::Nothing,
            Some("Prepend") if text("prepend") == Some(BLANK) => Self::Prefix,
            Some("Replace") => match (pattern("String"), pattern("Regex"), text("content")) {
                (Some(" "), _, Some(BLANK)) | (_, Some(" "), Some(BLANK)) => Self::Blanks,
                (_, Some(" {2,}"), Some(" " | BLANK)) => Self::JoinBlanks,
                (Some(from), _, Some(to)) if from == to => Self::Nothing,
                _ => Self::Other,
            },
            Some("Strip") => match (flag("strip_left"), flag("strip_right")) {
                (Some(false), Some(false)) => Self::Nothing,
                (Some(_), Some(true)) => Self::Trim,
                _ => Self::Other,
            },
            Some("NFC") => Self::Nfc,
            Some("Lowercase") => Self::Lowercase,
            Some("Precompiled") => Self::Charsmap,
            Some("BertNormalizer")
                if flag("clean_text") != Some(false) && flag("handle_chinese_chars") != Some(false) =>
            {
                Self::Bert {
                    lowercase: flag("lowercase").unwrap_or(true),
                    strip_accents: flag("strip_accents"),
                }
            }
            Some("BertPreTokenizer") => Self::BertWords,
            Some("WhitespaceSplit") => Self::Words,
            Some("Whitespace") => Self::WhitespaceWords,
            Some("Split")
                if flag("invert") != Some(true)
                    && [pattern("String"), pattern("Regex")].contains(&Some(" ")) =>
            {
                Self::SplitBlanks
            }
            Some("Metaspace") if text("replacement").is_none_or(|own| own == BLANK) => {
                let scheme = text("prepend_scheme");
                let prefix = scheme.map_or(flag("add_prefix_space") != Some(false), |own| own != "never");
                Self::Metaspace {
                    prefix,
                    only_first: scheme == Some("first"),
                    split: flag("split").unwrap_or(true),
                }
            }
            _ => Self::Other,
        }
    }
}

/// Collected effects of the steps that are known.
#[derive(Default)]
struct Sum {
    prefix: bool,
    only_first: bool,
    blanks: bool,
    joins: bool,
    trims: bool,
    charsmap: bool,
    words: bool,
    nfc: bool,
    lowercase: bool,
    bert: Option<(bool, bool)>,
}

impl Account<'_> {
    /// Compares the steps. `earlier` are the warnings of the pre-tokenizer's identification.
    pub(super) fn steps(&mut self, earlier: &[TokenizerWarning]) {
        let by_hash = |warning: &TokenizerWarning| matches!(warning, TokenizerWarning::HashOnly { .. });
        // The steps are not in the table, which is reported already.
        if self.algorithm == Algorithm::ByteLevel && earlier.iter().any(by_hash) {
            return self.decoder();
        }
        let mut sum = Sum::default();
        let (normalizer, pre_tokenizer) = (&self.hf.normalizer, &self.hf.pre_tokenizer);
        flatten(normalizer, "normalizers", 0, &mut |step| {
            if !self.takes_normalizer(Effect::of(step), &mut sum) {
                self.not_applied("normalizer", step);
            }
        });
        // The name of a byte-level pre-tokenizer stands for its steps.
        if self.algorithm != Algorithm::ByteLevel {
            flatten(pre_tokenizer, "pretokenizers", 0, &mut |step| {
                if !self.takes_split(Effect::of(step), &mut sum) {
                    self.not_applied("pre_tokenizer", step);
                }
            });
        }
        match self.algorithm {
            Algorithm::Pieces | Algorithm::RankedPieces => self.pieces(&sum),
            Algorithm::Unigram => self.unigram(&sum),
            Algorithm::WordPiece => self.word_piece(&sum),
            Algorithm::ByteLevel => self.byte_level(&sum),
            Algorithm::Whitespace => {
                if sum.lowercase != self.vocab.lowercase {
                    self.lowercase_differs(self.vocab.lowercase);
                }
                if !sum.words {
                    self.say(
                        "pre_tokenizer",
                        "llama.cpp splits words as the step `Whitespace` does, which the file lacks",
                    );
                }
            }
        }
        self.decoder();
    }

    /// Returns true if the runtime's algorithm includes a normalizer's step, and notes it.
    fn takes_normalizer(&self, effect: Effect, sum: &mut Sum) -> bool {
        use Algorithm::{ByteLevel, Pieces, RankedPieces, Unigram, Whitespace, WordPiece};
        let named = self.vocab.pre.and_then(|pre| pre.normalizer.as_deref());
        match (self.algorithm, effect) {
            (_, Effect::Nothing) => true,
            (Pieces | Unigram, Effect::Prefix) => !std::mem::replace(&mut sum.prefix, true),
            (Pieces | RankedPieces | Unigram, Effect::Blanks) => note(&mut sum.blanks),
            (ByteLevel, Effect::Blanks) => named == Some("metaspace") && note(&mut sum.blanks),
            (Unigram, Effect::Charsmap) => !std::mem::replace(&mut sum.charsmap, true),
            (Unigram, Effect::JoinBlanks) => note(&mut sum.joins),
            (Unigram, Effect::Trim) => note(&mut sum.trims),
            (ByteLevel, Effect::Nfc) => note(&mut sum.nfc),
            (ByteLevel, Effect::Lowercase) => named == Some("lowercase") && note(&mut sum.lowercase),
            (Whitespace, Effect::Lowercase) => note(&mut sum.lowercase),
            (WordPiece, Effect::Bert { lowercase, strip_accents }) => {
                sum.bert.replace((lowercase, strip_accents.unwrap_or(lowercase))).is_none()
            }
            _ => false,
        }
    }

    /// Returns true if the runtime's algorithm includes a pre-tokenizer's step, and notes it.
    fn takes_split(&self, effect: Effect, sum: &mut Sum) -> bool {
        use Algorithm::{Pieces, RankedPieces, Unigram, Whitespace, WordPiece};
        match (self.algorithm, effect) {
            // No blank is left.
            (Pieces | RankedPieces, Effect::SplitBlanks) => sum.blanks,
            (Pieces | RankedPieces | Unigram, Effect::Metaspace { prefix, only_first, split }) => {
                let twice = prefix && std::mem::replace(&mut sum.prefix, true);
                sum.prefix |= prefix;
                sum.only_first |= only_first;
                sum.blanks = true;
                !twice && (!split || !self.has_piece_across_words())
            }
            (Unigram, Effect::Words) => {
                sum.joins = true;
                !sum.blanks && note(&mut sum.words)
            }
            (WordPiece, Effect::BertWords) | (Whitespace, Effect::WhitespaceWords) => {
                !std::mem::replace(&mut sum.words, true)
            }
            _ => false,
        }
    }

    fn not_applied(&mut self, member: &str, step: &Json) {
        let step = shown(step);
        let step = escape(&step);
        self.say(member, format!("llama.cpp does not apply the step `{step}` to this kind of vocabulary"));
    }

    fn pieces(&mut self, sum: &Sum) {
        let prefix = self.vocab.add_space_prefix && self.algorithm == Algorithm::Pieces;
        self.blanks_and_prefix(sum, prefix);
        // SentencePiece itself puts a space after each special token, too.
        if sum.only_first && prefix && !self.has_model {
            self.only_first();
        }
    }

    fn unigram(&mut self, sum: &Sum) {
        // ref: spaces are prepended if they are joined, too
        self.blanks_and_prefix(sum, self.vocab.add_space_prefix || self.vocab.remove_extra_whitespaces);
        if sum.only_first {
            self.only_first();
        }
        let removes = self.vocab.remove_extra_whitespaces;
        let ends = if sum.trims || sum.words { "" } else { " and removes those at the ends of texts" };
        if removes && !self.is_by_hand(REMOVE_KEY) && !(sum.joins && ends.is_empty()) {
            let effect = format!(
                "llama.cpp joins repeated blanks{ends}, by `{REMOVE_KEY}`; the steps of the file keep some"
            );
            self.say("normalizer", effect);
        } else if !removes && !self.is_by_hand(REMOVE_KEY) && (sum.joins || sum.trims) {
            let effect =
                format!("llama.cpp keeps all blanks, by `{REMOVE_KEY}`; the steps of the file remove some");
            self.say("normalizer", effect);
        }
        if sum.words && !WHITE_SPACE.iter().all(|&c| reads_as_blank(&self.vocab.precompiled_charsmap, c)) {
            self.say(
                "pre_tokenizer",
                "the step `WhitespaceSplit` removes white space that the character map keeps, and llama.cpp keeps it, too",
            );
        }
    }

    fn blanks_and_prefix(&mut self, sum: &Sum, prefix: bool) {
        if !sum.blanks {
            self.say("normalizer", "llama.cpp writes blanks as `▁`, and no step of the file does");
        }
        if sum.prefix != prefix && !self.is_by_hand(PREFIX_KEY) {
            let (does, steps) =
                if prefix { ("puts a blank", "put none") } else { ("puts no blank", "put one") };
            self.say("normalizer", format!("llama.cpp {does} in front of texts, by `{PREFIX_KEY}`; the steps of the file {steps} there; `--set {PREFIX_KEY}=bool:{}` follows the file", sum.prefix));
        }
    }

    fn only_first(&mut self) {
        self.say("pre_tokenizer", "`prepend_scheme` is `first`, and llama.cpp puts a blank in front of text after special tokens, too");
    }

    fn word_piece(&mut self, sum: &Sum) {
        match sum.bert {
            None => self.say("normalizer", "llama.cpp cleans texts and splits Chinese characters as `BertNormalizer` does with all its flags, which the file lacks"),
            Some((lowercase, strip_accents)) => {
                if lowercase != self.vocab.lowercase {
                    self.lowercase_differs(self.vocab.lowercase);
                } else if strip_accents != self.vocab.strip_accents {
                    let does = if self.vocab.strip_accents { "removes" } else { "keeps" };
                    self.say("normalizer", format!("llama.cpp {does} accents, by `tokenizer.ggml.normalizer.strip_accents`; the file does not"));
                }
            }
        }
        if !sum.words {
            self.say(
                "pre_tokenizer",
                "llama.cpp splits words as the step `BertPreTokenizer` does, which the file lacks",
            );
        }
    }

    fn lowercase_differs(&mut self, lowercase: bool) {
        let does = if lowercase { "lower-cases texts" } else { "keeps upper case" };
        self.say(
            "normalizer",
            format!(
                "llama.cpp {does}, by `tokenizer.ggml.normalizer.lowercase`; the steps of the file do not"
            ),
        );
    }

    /// Compares the Unicode normal form with that of the pre-tokenizer's name: llama.cpp applies none.
    fn byte_level(&mut self, sum: &Sum) {
        let Some(pre) = self.vocab.pre else { return };
        match (sum.nfc, pre.normalizer.as_deref() == Some("nfc")) {
            (true, false) => self.say("normalizer", "llama.cpp does not apply the step `NFC`: letters with separate accents stay as they are"),
            (false, true) => self.say("normalizer", format!(
                "the pre-tokenizer `{}` stands for a tokenizer with the step `NFC`, which the file lacks: programs that apply it compose accents", pre.name)),
            _ => {}
        }
        if pre.normalizer.as_deref() == Some("metaspace") && !sum.blanks {
            self.say("normalizer", "llama.cpp writes blanks as `▁`, and no step of the file does");
        }
    }

    /// Compares the decoder: it changes no ids, only the text that is written for them.
    fn decoder(&mut self) {
        let of_pieces: &[&str] = &["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"];
        let known: &[&str] = match self.algorithm {
            Algorithm::Pieces | Algorithm::RankedPieces | Algorithm::Unigram => of_pieces,
            Algorithm::ByteLevel if self.vocab.escape_whitespaces => of_pieces,
            Algorithm::ByteLevel => &["ByteLevel"],
            Algorithm::WordPiece => &["WordPiece"],
            Algorithm::Whitespace => &[],
        };
        let decoder = &self.hf.decoder;
        let mut others = Vec::new();
        flatten(decoder, "decoders", 0, &mut |step| {
            let kind = step.get("type").and_then(Json::as_str).unwrap_or_default();
            if !known.contains(&kind) || !is_usual(kind, step) {
                others.push(shown(step));
            }
        });
        if !others.is_empty() {
            let steps: Vec<String> = others.iter().map(|step| format!("`{}`", escape(step))).collect();
            let effect = format!(
                "llama.cpp writes the bytes of tokens as text without the steps {}",
                steps.join(", ")
            );
            self.found.push(TokenizerWarning::Decoded { file: FILE, effect });
        }
    }
}

/// Formats a step for messages.
pub(super) fn shown(step: &Json) -> String {
    let text = step.to_string();
    let start: String = text.chars().take(SHOWN).collect();
    if start.len() < text.len() { start + "…" } else { text }
}

/// Returns true if the fields of a decoder's step are those that llama.cpp stands for.
fn is_usual(kind: &str, step: &Json) -> bool {
    let text = |key: &str| step.get(key).and_then(Json::as_str);
    match kind {
        "Replace" => {
            let pattern = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
            pattern == Some(BLANK) && text("content") == Some(" ")
        }
        "Strip" => {
            let at_most = |key: &str, n: u64| step.get(key).and_then(Json::as_u64).is_none_or(|own| own <= n);
            text("content") == Some(" ") && at_most("start", 1) && at_most("stop", 0)
        }
        "Metaspace" => text("replacement").is_none_or(|own| own == BLANK),
        "WordPiece" => text("prefix").is_none_or(|own| own == "##"),
        _ => true,
    }
}

/// Notes an effect; returns true.
fn note(slot: &mut bool) -> bool {
    *slot = true;
    true
}
