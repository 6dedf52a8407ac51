//! Types of steps and models that the `tokenizers` library has (release 0.23), with their members.
//!
//! The library refuses a file with another type or another member at its top: a file of a later release, or a damaged one.
//! Nobody can tell which ids it stands for. Other members of a step are passed over by the library and are a warning.

use gguf_checkpoint::pieces::is_off;
use serde_json::Value as Json;

use crate::hf_json::{FILE, HfJson};
use crate::pretokenizer::flatten;
use crate::{Result, TokenizerError, TokenizerRequest};

/// Member, key of the steps of its sequences, and each type with its members.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const BYTES: &str = "add_prefix_space trim_offsets use_regex";
const METASPACE: &str = "replacement add_prefix_space prepend_scheme split str_rep";

pub(super) const STEPS: [Row; 4] = [
    (
        "normalizer",
        "normalizers",
        &[
            ("BertNormalizer", "clean_text handle_chinese_chars strip_accents lowercase"),
            ("ByteLevel", ""),
            ("Lowercase", ""),
            ("NFC", ""),
            ("NFD", ""),
            ("NFKC", ""),
            ("NFKD", ""),
            ("Nmt", ""),
            ("Precompiled", "precompiled_charsmap"),
            ("Prepend", "prepend"),
            ("Replace", "pattern content"),
            ("Sequence", "normalizers"),
            ("Strip", "strip_left strip_right"),
            ("StripAccents", ""),
        ],
    ),
    (
        "pre_tokenizer",
        "pretokenizers",
        &[
            ("BertPreTokenizer", ""),
            ("ByteLevel", BYTES),
            ("CharDelimiterSplit", "delimiter"),
            ("Digits", "individual_digits"),
            ("FixedLength", "length"),
            ("Metaspace", METASPACE),
            ("Punctuation", "behavior"),
            ("Sequence", "pretokenizers"),
            ("Split", "pattern behavior invert"),
            ("UnicodeScripts", ""),
            ("Whitespace", ""),
            ("WhitespaceSplit", ""),
        ],
    ),
    (
        "post_processor",
        "processors",
        &[
            ("BertProcessing", "sep cls"),
            ("ByteLevel", BYTES),
            ("RobertaProcessing", "sep cls trim_offsets add_prefix_space"),
            ("Sequence", "processors"),
            ("TemplateProcessing", "single pair special_tokens"),
        ],
    ),
    (
        "decoder",
        "decoders",
        &[
            ("BPEDecoder", "suffix"),
            ("ByteFallback", ""),
            ("ByteLevel", BYTES),
            ("CTC", "pad_token word_delimiter_token cleanup"),
            ("Fuse", ""),
            ("Metaspace", METASPACE),
            ("Replace", "pattern content"),
            ("Sequence", "decoders"),
            ("Strip", "content start stop"),
            ("WordPiece", "prefix cleanup"),
        ],
    ),
];

const MODELS: [&str; 4] = ["BPE", "Unigram", "WordLevel", "WordPiece"];
/// Members at the top that no field of [`HfJson`] reads.
const TOP: [&str; 3] = ["version", "truncation", "padding"];

/// Returns the members of a step that the library does not have.
pub(super) fn other_members<'j>(member: &str, step: &'j Json) -> impl Iterator<Item = &'j String> {
    let kind = step.get("type").and_then(Json::as_str).unwrap_or_default();
    let row = STEPS.iter().find(|row| row.0 == member);
    let known = row.and_then(|row| row.2.iter().find(|own| own.0 == kind)).map(|own| own.1);
    let keys = step.as_object().filter(|_| known.is_some()).into_iter().flat_map(|map| map.keys());
    keys.filter(move |key| *key != "type" && !known.unwrap_or_default().split(' ').any(|own| own == *key))
}

/// Refuses what the library does not have. A pre-tokenizer that the user names takes the place of the file's steps.
pub(crate) fn check(hf: &HfJson, request: &TokenizerRequest, path: &std::path::Path) -> Result<()> {
    let refused = |member: &str, found: &str| {
        let (path, member, found) = (path.to_owned(), member.to_owned(), found.to_owned());
        Err(TokenizerError::UnknownStep { path, member, found })
    };
    if let Some((key, _)) = hf.rest.iter().find(|row| !TOP.contains(&row.0.as_str()) && !is_off(row.1)) {
        return refused(FILE, key);
    }
    if let Some(kind) = hf.model.kind.as_deref().filter(|kind| !MODELS.contains(kind)) {
        return refused("model", kind);
    }
    let parts = [&hf.normalizer, &hf.pre_tokenizer, &hf.post_processor, &hf.decoder];
    for ((member, steps, known), part) in STEPS.into_iter().zip(parts) {
        if member == "pre_tokenizer" && request.pre.is_some() {
            continue;
        }
        let mut unknown = None;
        flatten(part, steps, 0, &mut |step| {
            // Old releases wrote steps without a type.
            let kind = step.get("type").and_then(Json::as_str);
            let is_other = |kind: &&str| !known.iter().any(|own| own.0 == *kind);
            unknown = unknown.or(kind.filter(is_other));
        });
        if let Some(kind) = unknown {
            return refused(member, kind);
        }
    }
    Ok(())
}
