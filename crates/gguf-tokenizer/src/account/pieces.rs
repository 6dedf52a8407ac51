//! What becomes of the keys of the tokenizer's files, by the table of keys and the warnings about them.

use gguf_checkpoint::pieces::of_keys;
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::text::escape;
use serde_json::{Map, Value as Json};

use super::known::{STEPS, other_members};
use super::reads_json;
use super::steps::shown;
use crate::files::{CONFIG, Directory};
use crate::hf_json::{FILE, HfJson};
use crate::pretokenizer::flatten;
use crate::{Mode, Result, TokenizerWarning};

/// Flags that BPE models do not have.
const OTHERS: [&str; 2] = ["unk_id", "max_input_chars_per_word"];
/// File with roles of tokens.
const SPECIAL: &str = "special_tokens_map.json";

/// Returns what becomes of each key of the tokenizer's files. Keys that no rule knows are added to the warnings.
pub(crate) fn pieces(
    directory: &Directory<'_>,
    hf: Option<&HfJson>,
    mode: Mode,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<Vec<Piece>> {
    let mut pieces = hf.map(|hf| of_keys(FILE, FILE, &members(hf))).unwrap_or_default();
    pieces.extend(hf.into_iter().flat_map(steps).flat_map(|(name, step)| {
        let others = other_members(name.split('[').next().unwrap_or_default(), step);
        others.map(|key| unknown(format!("{name}.{key}"))).collect::<Vec<_>>()
    }));
    if !reads_json(mode) {
        for piece in &mut pieces {
            none(piece, "another file of the folder has the vocabulary");
        }
    }
    for file in [CONFIG, SPECIAL] {
        let tree = directory.lenient_tree(file)?;
        let Some(map) = tree.as_object() else { continue };
        let mut own = of_keys(file, file, map);
        // A class of transformers reads the keys that it knows, unless code beside the model takes its place.
        if !map.contains_key("auto_map") {
            let unknown = own.iter_mut().filter(|piece| piece.fate == Fate::Unknown);
            unknown.for_each(|piece| none(piece, "transformers' class of this tokenizer does not read it"));
        }
        pieces.append(&mut own);
    }
    let lost = pieces.iter().filter(|piece| piece.fate == Fate::LeftOut);
    warnings.extend(lost.map(|piece| TokenizerWarning::ReadOtherwise {
        file: CONFIG,
        member: piece.name.clone(),
        effect: piece.why.clone().unwrap_or_default(),
    }));
    for warning in &*warnings {
        lose(&mut pieces, hf, warning);
    }
    for file in [FILE, CONFIG] {
        let is_own = |piece: &&Piece| piece.fate == Fate::Unknown && piece.file.as_deref() == Some(file);
        let keys: Vec<String> = pieces.iter().filter(is_own).map(|piece| piece.name.clone()).collect();
        if !keys.is_empty() {
            warnings.push(TokenizerWarning::UnknownKeys { file, keys });
        }
    }
    Ok(pieces)
}

/// A member of a step that the library passes over.
fn unknown(name: String) -> Piece {
    Piece::not(PieceKind::Key, name, Fate::Unknown, "no rule knows this member: it is not read").within(FILE)
}

fn none(piece: &mut Piece, why: &str) {
    let of = std::mem::take(&mut piece.name);
    *piece = Piece { file: piece.file.take(), ..Piece::not(PieceKind::Key, of, Fate::WithoutEffect, why) };
}

/// Returns the steps of the file by name: that of the member, with a number for each step of a sequence.
fn steps(hf: &HfJson) -> Vec<(String, &Json)> {
    let parts = [&hf.normalizer, &hf.pre_tokenizer, &hf.post_processor, &hf.decoder];
    let mut all = Vec::new();
    for ((member, parts_key, _), part) in STEPS.into_iter().zip(parts) {
        let mut own = Vec::new();
        flatten(part, parts_key, 0, &mut |step| own.push(step));
        let is_single = own.first().is_some_and(|first| std::ptr::eq(*first, part));
        let name = |at| if is_single { member.to_owned() } else { format!("{member}[{at}]") };
        all.extend(own.into_iter().enumerate().map(|(at, step)| (name(at), step)));
    }
    all
}

/// Returns the keys of the file: members, steps, flags of the model and of added tokens.
fn members(hf: &HfJson) -> Map<String, Json> {
    let model = &hf.model;
    let flags = [
        ("type", model.kind.is_some()),
        ("vocab", true),
        ("merges", !model.merges.is_empty()),
        ("byte_fallback", model.byte_fallback.is_some()),
        ("ignore_merges", model.ignore_merges.is_some()),
        ("unk_token", model.unk_token.is_some()),
        ("unk_id", model.unk_id.is_some()),
        ("fuse_unk", model.fuse_unk.is_some()),
        ("dropout", model.dropout.is_some()),
        ("continuing_subword_prefix", model.continuing_subword_prefix.is_some()),
        ("end_of_word_suffix", model.end_of_word_suffix.is_some()),
        ("max_input_chars_per_word", model.max_input_chars_per_word.is_some()),
    ];
    let added = ["lstrip", "rstrip", "single_word", "normalized", "special"];
    let has_added = !hf.added_tokens.is_empty();
    let added = added.map(|flag| format!("added_tokens.{flag}")).into_iter();
    let added = std::iter::once("added_tokens".to_owned()).chain(added);
    let mut keys = Map::new();
    let steps: Vec<String> = steps(hf).into_iter().map(|(name, _)| name).collect();
    for (member, ..) in STEPS.iter().filter(|row| !steps.iter().any(|step| step.starts_with(row.0))) {
        keys.insert((*member).to_owned(), Json::Null);
    }
    keys.extend(steps.into_iter().chain(added.filter(|_| has_added)).map(|name| (name, true.into())));
    // A BPE model has most flags, with null for those that are off.
    let is_listed = |flag: &&(&str, bool)| flag.1 || !model.merges.is_empty() && !OTHERS.contains(&flag.0);
    let value = |is_set: bool| if is_set { true.into() } else { Json::Null };
    keys.extend(flags.iter().filter(is_listed).map(|flag| (format!("model.{}", flag.0), value(flag.1))));
    keys.extend(hf.rest.clone());
    keys.extend(model.rest.iter().map(|(key, value)| (format!("model.{key}"), value.clone())));
    keys
}

/// Marks the key that a warning is about as left out; a step that it names by its text, if there is one.
fn lose(pieces: &mut Vec<Piece>, hf: Option<&HfJson>, warning: &TokenizerWarning) {
    let Some((file, name)) = warning.about() else { return };
    let why = warning.to_string();
    let is_step =
        |(own, step): &(String, &Json)| own.starts_with(&name) && why.contains(&*escape(&shown(step)));
    let step = hf.and_then(|hf| steps(hf).into_iter().find(is_step)).map(|step| step.0);
    let name = step.unwrap_or(name);
    let lost = Piece::not(PieceKind::Key, &*name, Fate::LeftOut, why).within(file);
    match pieces.iter_mut().find(|piece| piece.name == name && piece.file.as_deref() == Some(file)) {
        Some(piece) => *piece = lost,
        None => pieces.push(lost),
    }
}
