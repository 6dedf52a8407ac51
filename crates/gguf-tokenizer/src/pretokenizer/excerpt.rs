//! Reduction of a `tokenizer.json` to the parts that can affect the check text.
//!
//! The `tokenizers` library needs most of a second to read a vocabulary of 128 000 tokens, of which the check text uses
//! a few hundred. Merges build a piece of a text from smaller pieces of it. So a token that does not occur in the text
//! cannot contribute to its ids.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Serialize;
use serde_json::value::RawValue;

use super::CHECK_TEXT;
use crate::byte_alphabet;
use crate::hf_json::HfJson;
use crate::hf_vocab::HfVocabulary;

/// Minimum number of tokens for which a reduction is worthwhile.
const MIN_TOKENS: usize = 8192;

#[derive(Serialize)]
struct ExcerptFile<'a> {
    #[serde(flatten)]
    others: BTreeMap<String, &'a RawValue>,
    model: ExcerptModel<'a>,
}

#[derive(Serialize)]
struct ExcerptModel<'a> {
    #[serde(flatten)]
    others: BTreeMap<String, &'a RawValue>,
    vocab: BTreeMap<&'a str, u64>,
    merges: Vec<(&'a str, &'a str)>,
}

/// Returns the file with only the tokens and merges that the check text can use; tokens keep their ids.
///
/// `None` if these are not known: a vocabulary that does not use the byte alphabet or marks where words start or end,
/// or malformed merges. Callers ensure that the normalizer leaves the check text unchanged.
pub(super) fn excerpt(path: &Path, text: &[u8], hf: &HfJson) -> Option<Vec<u8>> {
    let tokens = hf.bpe_vocab(path.into()).ok().filter(|tokens| tokens.len() >= MIN_TOKENS)?;
    let mut others: BTreeMap<String, &RawValue> = serde_json::from_slice(text).ok()?;
    let mut of_model: BTreeMap<String, &RawValue> =
        serde_json::from_str(others.remove("model")?.get()).ok()?;
    let is_given =
        |name: &str| of_model.get(name).is_some_and(|value| !matches!(value.get(), "null" | "\"\""));
    if hf.model.byte_fallback == Some(true)
        || is_given("continuing_subword_prefix")
        || is_given("end_of_word_suffix")
    {
        return None;
    }
    of_model.retain(|name, _| !matches!(name.as_str(), "vocab" | "merges"));
    let letters = byte_alphabet::written(CHECK_TEXT.as_bytes());
    let blank = byte_alphabet::char_of(b' ');
    // A space may be put in front of any piece.
    let is_met = |token: &str| letters.contains(token.strip_prefix(blank).unwrap_or(token));
    let is_kept = |token: &str| is_met(token) || hf.model.unk_token.as_deref() == Some(token);
    let mut vocab: BTreeMap<&str, u64> =
        tokens.iter().filter(|(token, _)| is_kept(token)).map(|(token, id)| (token.as_str(), *id)).collect();
    let met: HashSet<&str> = vocab.keys().copied().collect();
    let mut merges = Vec::new();
    let mut merged = String::new();
    for merge in &hf.model.merges {
        let (left, right) = merge.parts()?;
        if !met.contains(left) || !met.contains(right) {
            continue;
        }
        merged.clear();
        merged.push_str(left);
        merged.push_str(right);
        if met.contains(merged.as_str()) {
            merges.push((left, right));
        }
    }
    // Added tokens that the model lacks get ids by the number of its tokens: here, their ids in the whole file are
    // stated.
    let added = HfVocabulary::of_file(hf, path.into(), &mut Vec::new()).ok()?.added;
    vocab.extend(added.iter().map(|added| (added.token.content.as_str(), added.id)));
    serde_json::to_vec(&ExcerptFile { others, model: ExcerptModel { others: of_model, vocab, merges } }).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::pretokenizer::{HashSettings, check_hashes, step_json};

    /// Returns two of the letters from A to Z.
    fn pair_of(at: usize) -> String {
        [at / 26, at % 26].map(|letter| char::from(b'A' + letter as u8)).iter().collect()
    }

    /// Builds a vocabulary of all letters of bytes, of words of the check text with the merges that make them, and of
    /// words that do not occur in it.
    fn file(steps: &Json) -> Json {
        let mut tokens: Vec<String> =
            (0..=255).map(|byte| byte_alphabet::char_of(byte).to_string()).collect();
        let mut known: HashSet<String> = tokens.iter().cloned().collect();
        let mut merges = Vec::new();
        let mut add = |left: &str, right: &str| {
            let merged = format!("{left}{right}");
            if known.insert(merged.clone()) {
                merges.push(json!([left, right]));
                tokens.push(merged);
            }
        };
        let letters: Vec<char> = byte_alphabet::written(CHECK_TEXT.as_bytes()).chars().collect();
        for pair in letters.windows(2).step_by(2) {
            add(&pair[0].to_string(), &pair[1].to_string());
        }
        for four in letters.windows(4).step_by(6) {
            let text = |range: &[char]| range.iter().collect::<String>();
            add(&four[..1].iter().collect::<String>(), &four[1].to_string());
            add(&four[2].to_string(), &four[3].to_string());
            add(&text(&four[..2]), &text(&four[2..]));
        }
        add(&byte_alphabet::written(b" "), "3");
        let pairs: Vec<String> = (0..26 * 26).map(pair_of).collect();
        for pair in &pairs {
            add(&pair[..1], &pair[1..]);
        }
        for (at, pair) in pairs.iter().enumerate() {
            (0..13).for_each(|next| add(pair, &pairs[(at + next) % pairs.len()]));
        }
        let n = tokens.len();
        let vocab: serde_json::Map<String, Json> =
            tokens.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
        let added = |id: usize, content: &str, is_special: bool| {
            json!({"id": id, "content": content, "special": is_special, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": !is_special})
        };
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [added(n, "<s>", true), added(n + 1, "    ", false), added(n + 2, "apple", false)],
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]}}},
            "decoder": step_json("byte_level regex"),
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges},
        })
    }

    fn cut(file: &Json) -> (Vec<u8>, Option<Vec<u8>>) {
        let text = serde_json::to_vec(file).unwrap();
        let hf: HfJson = serde_json::from_slice(&text).unwrap();
        let part = excerpt(Path::new("t.json"), &text, &hf);
        (text, part)
    }

    #[test]
    fn the_check_text_has_the_same_ids() {
        let bytes = step_json("byte_level regex");
        let prefixed = step_json("byte_level prefix_space regex");
        let digits = step_json("digits individual");
        for (steps, ignores_merges) in
            [(json!([bytes]), false), (json!([digits, prefixed]), false), (json!([bytes]), true)]
        {
            let mut file = file(&steps);
            file["model"]["ignore_merges"] = json!(ignores_merges);
            let (text, part) = cut(&file);
            let part = part.unwrap();
            assert!(part.len() < text.len() / 4, "{} of {}", part.len(), text.len());
            let setting = HashSettings { bos: Some(7), ..HashSettings::default() };
            let whole = check_hashes(&text, &setting).unwrap();
            assert_eq!(check_hashes(&part, &setting).unwrap(), whole, "{steps}");
            // Without the merge, the ids differ, and so do the hashes.
            file["model"]["merges"].as_array_mut().unwrap().remove(3);
            assert_ne!(check_hashes(&cut(&file).0, &setting).unwrap(), whole);
        }
    }

    #[test]
    fn what_it_does_not_understand_is_left_whole() {
        let bytes = json!([step_json("byte_level regex")]);
        let changes: [fn(&mut Json); 4] = [
            |model| model["byte_fallback"] = json!(true),
            |model| model["end_of_word_suffix"] = json!("</w>"),
            |model| model["merges"] = json!(["a b c"]),
            |model| model["vocab"] = json!({"a": 0}),
        ];
        for change in changes {
            let mut file = file(&bytes);
            change(&mut file["model"]);
            assert_eq!(cut(&file).1, None);
        }
    }

    #[test]
    fn the_check_text_is_composed_already() {
        use unicode_normalization::UnicodeNormalization as _;
        assert_eq!(CHECK_TEXT.nfc().collect::<String>(), CHECK_TEXT);
    }
}
