//! Identification of a byte-level BPE tokenizer's pre-tokenizer by llama.cpp's name.
//!
//! The structure (the steps of `pre_tokenizer`) identifies it, by the table `pretokenizers.toml`. So a fine-tune with
//! more tokens is recognized like its base model. The reference only has the hash over the ids of a check text. Here,
//! it decides between names of the same structure and serves as a cross-check.

mod excerpt;

use crate::Result;
use gguf_core::isolated;
use gguf_core::similar::nearest;
use gguf_core::text::hex;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::hf_json::HfJson;
use super::reference::ReferenceTokenizer;
use super::{TokenizerError, TokenizerWarning};

/// Member of `tokenizer_config.json` in files made from a GGUF file; it records which of several names of one structure
/// they had.
pub(super) const HINT: &str = "gguf_pre";

/// Regex inside GPT-2's byte-level step.
pub(super) const GPT2_REGEX: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Text whose ids are hashed: whitespace, emoji, digits, scripts, quotes, contractions. It is a fact of the format: the
/// hashes in the table are over exactly these characters.
const CHECK_TEXT: &str = "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\u{1f680} (normal) \u{1f636}\u{200d}\u{1f32b}\u{fe0f} (multiple emojis concatenated) \u{2705} \u{1f999}\u{1f999} 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច\u{1f601} ?我想在apple工作1314151天～ ------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL";

/// Steps of one pre-tokenizer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreStructure {
    pub(super) name: String,
    pub(super) steps: Vec<String>,
}

/// Pre-tokenizer that the runtime knows by name.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreTokenizer {
    pub(super) name: String,
    pub(super) structure: Option<String>,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(default = "yes")]
    pub(super) clean_spaces: bool,
    pub(super) normalizer: Option<String>,
    /// True if the runtime adds the begin token to texts by default.
    #[serde(default)]
    pub(super) add_bos: bool,
    /// True if the runtime has a begin token even if the file names none.
    #[serde(default = "yes")]
    pub(super) has_bos: bool,
    /// True if the structure does not determine the name.
    #[serde(default)]
    by_hash: bool,
    #[serde(default)]
    pub(super) hashes: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Table of structures and names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreTable {
    structure: Vec<PreStructure>,
    pre: Vec<PreTokenizer>,
}

impl PreTable {
    pub(super) fn get() -> &'static Self {
        static TABLE: LazyLock<PreTable> = LazyLock::new(|| {
            toml::from_str(include_str!("pretokenizers.toml")).expect("a test parses the built-in table")
        });
        &TABLE
    }

    #[cfg(test)]
    pub(super) fn structures(&self) -> &[PreStructure] {
        &self.structure
    }

    pub(super) fn pre(&self, name: &str) -> Option<&PreTokenizer> {
        self.pre.iter().find(|pre| pre.name == name)
    }

    /// Returns true if one of these hashes belongs to a name.
    fn knows_any(&self, hashes: &[String]) -> bool {
        self.pre.iter().any(|pre| hashes.iter().any(|hash| pre.hashes.contains(hash)))
    }

    /// Returns the steps of a name, if its structure is known.
    pub(super) fn steps(&self, pre: &PreTokenizer) -> Option<&[String]> {
        let name = pre.structure.as_ref()?;
        self.structure.iter().find(|structure| structure.name == *name).map(|found| found.steps.as_slice())
    }
}

/// Settings of `tokenizer_config.json` that affect the hash or the choice between names.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashSettings {
    /// Id of the begin token.
    pub bos: Option<u64>,
    /// True or false for tokenizer classes that always or never add the begin token, regardless of the file.
    pub(crate) class_adds_bos: Option<bool>,
    /// Value of `clean_up_tokenization_spaces`, if present.
    pub(crate) clean_up: Option<bool>,
    /// Value of `HINT`: the name, if it is one of the structure's.
    pub hint: Option<String>,
}

/// Result of the identification.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identified {
    /// Value of `tokenizer.ggml.pre`.
    pub name: String,
    /// Doubts.
    pub warnings: Vec<TokenizerWarning>,
}

/// Identifies the pre-tokenizer of a file. `text` is the file's own text, for the check text's hash.
pub(crate) fn identify(path: &Path, hf: &HfJson, text: &[u8], setting: &HashSettings) -> Result<Identified> {
    let table = PreTable::get();
    let steps = steps(&hf.pre_tokenizer);
    let normalizer = normalizer(&hf.normalizer);
    let plain = matches!(normalizer.as_str(), "none" | "nfc");
    let structure = table.structure.iter().find(|structure| structure.steps == steps).filter(|_| plain);
    let mut candidates: Vec<&PreTokenizer> = match structure {
        Some(structure) => {
            let has = |pre: &&PreTokenizer| pre.structure.as_ref() == Some(&structure.name) && !pre.by_hash;
            table.pre.iter().filter(has).collect()
        }
        None => Vec::new(),
    };
    // Only known steps ensure that the parts left out of an excerpt never match.
    let part = structure.and_then(|_| excerpt::excerpt(path, text, hf));
    let of_part = part.and_then(|part| check_hashes(&part, setting).ok());
    let hashes = match of_part.filter(|hashes| table.knows_any(hashes)) {
        Some(hashes) => Ok(hashes),
        None => check_hashes(text, setting),
    };
    stop_if_interrupted(&hashes)?;
    let hashed_by = |pre: &PreTokenizer| match &hashes {
        Ok(hashes) => hashes.iter().position(|hash| pre.hashes.contains(hash)),
        Err(_) => None,
    };
    let hashed = table.pre.iter().filter(|pre| hashed_by(pre).is_some()).min_by_key(|pre| hashed_by(pre));
    let mut warnings = Vec::new();
    // The runtime's handling of whole-piece tokens affects the ids; the hash must not override it.
    if candidates.iter().any(|pre| pre.ignore_merges == hf.ignores_merges()) {
        candidates.retain(|pre| pre.ignore_merges == hf.ignores_merges());
    }
    let rank = |pre: &&&PreTokenizer| {
        let wanted = pre.normalizer.as_deref().unwrap_or("none");
        let other_blanks = setting.clean_up.is_some_and(|clean_up| clean_up != pre.clean_spaces);
        let other_hint = setting.hint.as_ref() != Some(&pre.name);
        (other_hint, hashed_by(pre).unwrap_or(usize::MAX), other_blanks, wanted != normalizer)
    };
    let name = match (candidates.iter().min_by_key(rank), hashed) {
        (Some(pre), hashed) => {
            let chosen = pre.name.clone();
            match (&hashes, hashed) {
                (Err(reason), _) => {
                    let (chosen, reason) = (chosen.clone(), reason.clone());
                    warnings.push(TokenizerWarning::HashUnavailable { chosen, reason });
                }
                // Names of one structure split alike; only another structure's hash is a contradiction.
                (Ok(_), Some(other)) if pre.structure != other.structure => {
                    let (chosen, hashed) = (chosen.clone(), other.name.clone());
                    warnings.push(TokenizerWarning::HashContradicts { chosen, hashed });
                }
                _ => {}
            }
            chosen
        }
        (None, Some(pre)) => {
            warnings.push(TokenizerWarning::HashOnly { chosen: pre.name.clone() });
            pre.name.clone()
        }
        (None, None) => {
            let mut found = steps.join(" + ");
            if found.contains('\u{2581}') || normalizer.contains('\u{2581}') {
                let vocab = hf.bpe_vocab(path.into())?;
                let starts = |c: char| vocab.iter().filter(|(text, _)| text.starts_with(c)).count();
                if starts('\u{120}') > starts('\u{2581}') {
                    let found = if plain { found } else { normalizer };
                    return Err(TokenizerError::StepsOfPieces { path: path.into(), found });
                }
            }
            if !plain {
                found = format!("normalizer {normalizer}: {found}");
            }
            let (nearest, nearest_steps) = nearest_structure(table, &steps);
            return Err(TokenizerError::UnknownPreTokenizer {
                path: path.into(),
                found,
                nearest,
                nearest_steps,
            });
        }
    };
    Ok(Identified { name, warnings })
}

/// Ends a run whose check text was not encoded because the user wants to stop: that says nothing about the file.
fn stop_if_interrupted<T>(hashes: &Result<T, String>) -> Result<()> {
    match hashes {
        Err(_) if isolated::is_cancelled() => {
            Err(std::io::Error::new(std::io::ErrorKind::Interrupted, "interrupted").into())
        }
        _ => Ok(()),
    }
}

/// Identifies the pre-tokenizer of a WordPiece vocabulary by the check text's hash, since all of them split alike. An
/// unknown one gets the name of BERT's English one; the runtime ignores it.
pub(crate) fn word_piece(text: &[u8]) -> Result<Identified> {
    const NAMES: [&str; 2] = ["jina-v2-en", "bert-bge-large"];
    let chosen = NAMES[0].to_owned();
    let hashes = check_hashes(text, &HashSettings::default());
    stop_if_interrupted(&hashes)?;
    Ok(match hashes {
        Ok(hashes) => {
            let table = PreTable::get();
            let known = NAMES.iter().filter_map(|name| table.pre(name));
            let found = known.into_iter().find(|pre| pre.hashes.iter().any(|hash| hashes.contains(hash)));
            Identified { name: found.map_or(chosen, |pre| pre.name.clone()), warnings: Vec::new() }
        }
        Err(reason) => {
            let warnings = vec![TokenizerWarning::HashUnavailable { chosen: chosen.clone(), reason }];
            Identified { name: chosen, warnings }
        }
    })
}

/// Accepts a name given by the user if some runtime knows it.
pub(crate) fn accept(name: &str) -> Result<String> {
    let table = PreTable::get();
    if table.pre(name).is_some() {
        return Ok(name.to_owned());
    }
    Err(TokenizerError::UnknownPreName { found: name.to_owned(), nearest: nearest_name(name) })
}

/// Returns true for a name that some runtime knows.
pub fn is_pre_tokenizer(name: &str) -> bool {
    PreTable::get().pre(name).is_some()
}

/// Iterates over the names that [`accept`] allows.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PreTable::get().pre.iter().map(|pre| pre.name.as_str())
}

/// Returns the known name with the most similar spelling, if there is a similar one.
pub(super) fn nearest_name(name: &str) -> Option<&'static str> {
    nearest(name, names())
}

/// Returns the end of a message about an unknown name.
pub(super) fn offer(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", the nearest is `{nearest}`"))
}

/// Returns the first name and the steps of the most similar structure (one equal step counts more than two half-similar
/// ones).
fn nearest_structure(table: &'static PreTable, found: &[String]) -> (&'static str, String) {
    let alike = |structure: &PreStructure| {
        let best =
            |step: &String| structure.steps.iter().map(|own| likeness(own, step).powi(2)).fold(0.0, f64::max);
        found.iter().take(16).map(best).sum::<f64>() / found.len().max(structure.steps.len()) as f64
    };
    let near = table.structure.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    near.map_or(("default", String::new()), |structure| {
        let first = table.pre.iter().find(|pre| pre.structure.as_ref() == Some(&structure.name));
        (first.map_or("default", |pre| pre.name.as_str()), structure.steps.join(" + "))
    })
}

/// Returns the similarity of two texts, from 0 to 1: shared pairs of characters (Dice's coefficient), over at most 4096
/// of them.
fn likeness(a: &str, b: &str) -> f64 {
    let pairs = |text: &str| {
        let chars: Vec<char> = text.chars().take(4096).collect();
        let mut pairs: Vec<(char, char)> = chars.windows(2).map(|pair| (pair[0], pair[1])).collect();
        pairs.sort_unstable();
        pairs
    };
    let (a, b) = (pairs(a), pairs(b));
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                shared += 1;
                i += 1;
                j += 1;
            }
        }
    }
    2.0 * f64::from(shared) / (a.len() + b.len()).max(1) as f64
}

/// Returns the steps of a `pre_tokenizer`, each as one line in the spelling of the table.
pub(super) fn steps(pre_tokenizer: &Json) -> Vec<String> {
    let mut lines = Vec::new();
    flatten(pre_tokenizer, "pretokenizers", 0, &mut |step| lines.push(step_line(step)));
    // The byte-level step's own regex may be written as a split before it.
    if let [.., split, bytes] = lines.as_slice()
        && split.strip_prefix("split isolated ") == Some(GPT2_REGEX)
        && bytes == "byte_level"
    {
        lines.truncate(lines.len() - 2);
        lines.push("byte_level regex".to_owned());
    }
    lines
}

/// Visits the steps of a member, those of sequences one by one.
pub(super) fn flatten<'j>(part: &'j Json, members: &str, depth: usize, visit: &mut impl FnMut(&'j Json)) {
    match part.get("type").and_then(Json::as_str) {
        Some("Sequence") if depth < 8 => {
            for part in part.get(members).and_then(Json::as_array).into_iter().flatten() {
                flatten(part, members, depth + 1, visit);
            }
        }
        _ if part.is_null() => {}
        _ => visit(part),
    }
}

fn step_line(step: &Json) -> String {
    let flag = |name: &str, default: bool| step.get(name).and_then(Json::as_bool).unwrap_or(default);
    let behavior = || step.get("behavior").and_then(Json::as_str).unwrap_or("Isolated").to_ascii_lowercase();
    match step.get("type").and_then(Json::as_str) {
        Some("ByteLevel") => {
            let prefix = if flag("add_prefix_space", true) { " prefix_space" } else { "" };
            let regex = if flag("use_regex", true) { " regex" } else { "" };
            format!("byte_level{prefix}{regex}")
        }
        Some("Digits") if flag("individual_digits", false) => "digits individual".to_owned(),
        Some("Digits") => "digits grouped".to_owned(),
        Some("Punctuation") => format!("punctuation {}", behavior()),
        Some("Split") => {
            let pattern = step.get("pattern");
            let member = |name: &str| pattern.and_then(|pattern| pattern.get(name)?.as_str());
            let regex = match (member("Regex"), member("String")) {
                (Some(regex), _) => regex.replace('\r', r"\r").replace('\n', r"\n"),
                (None, text) => regex::escape(text.unwrap_or_default()),
            };
            // "Remove what does not match" leaves the matches, as "isolate" does if everything matches.
            match (behavior().as_str(), flag("invert", false)) {
                ("removed", true) => format!("split isolated {regex}"),
                (behavior, false) => format!("split {behavior} {regex}"),
                (behavior, true) => format!("split {behavior}_inverted {regex}"),
            }
        }
        _ => step.to_string(),
    }
}

/// Converts a step of the table to JSON: the inverse of [`steps`].
pub(super) fn step_json(line: &str) -> Option<Json> {
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    Some(match kind {
        "byte_level" => {
            let has = |word: &str| rest.split(' ').any(|own| own == word);
            serde_json::json!({
                "type": "ByteLevel",
                "add_prefix_space": has("prefix_space"),
                "trim_offsets": true,
                "use_regex": has("regex"),
            })
        }
        "digits" => serde_json::json!({"type": "Digits", "individual_digits": rest == "individual"}),
        "punctuation" => serde_json::json!({"type": "Punctuation", "behavior": behavior_name(rest)?}),
        "split" => {
            let (behavior, regex) = rest.split_once(' ')?;
            let (behavior, invert) = match behavior.strip_suffix("_inverted") {
                Some(behavior) => (behavior, true),
                None => (behavior, false),
            };
            serde_json::json!({
                "type": "Split",
                "pattern": {"Regex": regex},
                "behavior": behavior_name(behavior)?,
                "invert": invert,
            })
        }
        _ => return None,
    })
}

fn behavior_name(lower: &str) -> Option<&'static str> {
    let names = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    names.into_iter().find(|name| name.eq_ignore_ascii_case(lower))
}

/// Formats the normalizer in one line: `none`, `nfc`, or its JSON.
fn normalizer(normalizer: &Json) -> String {
    let mut parts = Vec::new();
    flatten(normalizer, "normalizers", 0, &mut |part| {
        parts.push(match part.get("type").and_then(Json::as_str) {
            Some("NFC") => "nfc".to_owned(),
            _ => part.to_string(),
        });
    });
    if parts.is_empty() { "none".to_owned() } else { parts.join(" + ") }
}

// This is the only place of the library, apart from `gguf-verification`, that runs the `tokenizers` library. The hash depends on
// how that library processes an untrusted file: its normalizers, splits, added tokens and post-processor. Our own
// implementation knows only those of the table. The hash must distinguish names with equal structures, and is the only
// evidence if the structure is not in the table. Ids of our own would agree with the table exactly when the answer is
// already known.
/// Computes hashes over the ids of the check text, likeliest first: as encoded by transformers, then with other special
/// tokens around the same ids (for a template that was changed after the release).
fn check_hashes(text: &[u8], setting: &HashSettings) -> Result<Vec<String>, String> {
    let tokenizer = ReferenceTokenizer::new(text)?;
    let ids = |special| tokenizer.ids(CHECK_TEXT, special);
    let (full, bare) = (hash(&ids(true)?), ids(false)?);
    let bos = setting.bos.and_then(|bos| u32::try_from(bos).ok());
    let begun = bos.map(|bos| hash(&[&[bos], bare.as_slice()].concat()));
    let bare = hash(&bare);
    Ok(match (setting.class_adds_bos, begun) {
        (Some(true), Some(begun)) => vec![begun, full, bare],
        (Some(false), begun) => [Some(bare), Some(full), begun].into_iter().flatten().collect(),
        (_, begun) => [Some(full), Some(bare), begun].into_iter().flatten().collect(),
    })
}

/// Computes the SHA-256 of the ids in Python's notation of a list.
fn hash(ids: &[u32]) -> String {
    let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    hex(&Sha256::digest(format!("[{list}]")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_is_sound() {
        let table = PreTable::get();
        for (at, pre) in table.pre.iter().enumerate() {
            assert!(table.pre[..at].iter().all(|other| other.name != pre.name), "{} twice", pre.name);
            assert!(pre.structure.is_none() || table.steps(pre).is_some(), "{}: no such structure", pre.name);
            assert!(pre.structure.is_some() || !pre.hashes.is_empty(), "{} can never be found", pre.name);
            for hash in &pre.hashes {
                assert_eq!(hash.len(), 64, "{}", pre.name);
                let owners = table.pre.iter().filter(|other| other.hashes.contains(hash)).count();
                assert_eq!(owners, 1, "{hash} belongs to several names");
            }
        }
        for structure in &table.structure {
            for other in &table.structure {
                assert!(std::ptr::eq(structure, other) || structure.steps != other.steps, "{}", other.name);
            }
            crate::encode::Splitter::new(&structure.steps).unwrap();
            for regex in structure.steps.iter().filter_map(|step| step.strip_prefix("split isolated ")) {
                assert!(fancy_regex::Regex::new(regex).is_ok(), "{}: {regex}", structure.name);
            }
        }
    }

    #[test]
    fn every_structure_of_the_table_has_an_inverse() {
        for structure in &PreTable::get().structure {
            let parts: Vec<Json> = structure.steps.iter().filter_map(|step| step_json(step)).collect();
            assert_eq!(steps(&json!({"type": "Sequence", "pretokenizers": parts})), structure.steps);
            for part in parts {
                let parsed = serde_json::from_value::<tokenizers::PreTokenizerWrapper>(part.clone());
                assert!(parsed.is_ok(), "{}: {part}", structure.name);
            }
        }
    }

    #[test]
    fn steps_are_told_apart_and_spellings_are_not() {
        let split = |regex: &str, behavior: &str, invert: bool| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
        let sequence = |parts: &[&Json]| json!({"type": "Sequence", "pretokenizers": parts});
        let isolated = steps(&sequence(&[&split("[\r\n]", "Isolated", false), &bytes]));
        assert_eq!(isolated, [r"split isolated [\r\n]", "byte_level"]);
        assert_eq!(steps(&sequence(&[&split(r"[\r\n]", "Removed", true), &bytes])), isolated);
        assert_ne!(steps(&sequence(&[&split(r"[\r\n]", "Removed", false), &bytes])), isolated);
        let written_out = steps(&sequence(&[&split(GPT2_REGEX, "Isolated", false), &bytes]));
        assert_eq!(written_out, steps(&json!({"type": "ByteLevel", "add_prefix_space": false})));
        assert_eq!(steps(&Json::Null), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_structure_names_the_nearest() {
        let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "use_regex": true}]});
        let hf = HfJson { pre_tokenizer, ..HfJson::default() };
        let error = identify(Path::new("t.json"), &hf, b"{}", &HashSettings::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "t.json: unknown pre-tokenizer\n  found:   digits individual + byte_level prefix_space regex\n  \
             nearest: `smollm`: digits individual + byte_level regex"
        );
        assert!(accept("llama-bpe").is_ok());
        let error = accept("lama-bpe").unwrap_err();
        assert!(error.to_string().ends_with("the nearest is `llama-bpe`"), "{error}");
        let error = accept("zz").unwrap_err();
        assert_eq!(error.to_string(), "`--pre zz`: not a pre-tokenizer that llama.cpp knows");
    }

    #[test]
    fn the_hash_is_over_a_python_list() {
        // echo -n '[1, 2]' | sha256sum
        assert_eq!(hash(&[1, 2]), "3a316d6d3226f84c1e46e4447fa8d5fd800bff4a1bc6498152523cd4a602b69b");
    }
}
