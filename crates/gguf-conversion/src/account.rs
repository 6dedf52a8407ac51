//! The account of a checkpoint: what becomes of each of its files, of each key of these, and of each tensor.
//!
//! The readers of the files fill it while they read, and the plan of the conversion says which outputs a tensor is part of.

use std::collections::{HashMap, HashSet};

use crate::left_out::first_names;
use crate::metadata::sampling_key;
use crate::{Conversion, ModelSource};
use gguf_arch::{CardKind, DropReason, Mapping};
use gguf_checkpoint::pieces::{of_file, of_keys};
use gguf_core::TensorSource as _;
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::text::plural;
use gguf_format::Metadata;
use indexmap::IndexMap;

const CONFIG: &str = "config.json";
const PARAMS: &str = "params.json";
const GENERATION: &str = "generation_config.json";
/// Key of the configuration whose members are those of the quantization's settings.
const QUANTIZATION: &str = "quantization_config";
const TOWERS: [&str; 3] =
    ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"];
/// Files with settings of a quantization, which one of them or the configuration describes.
const DESCRIPTORS: [&str; 3] = ["quantize_config.json", "hf_quant_config.json", "quanto_qmap.json"];

/// Returns what becomes of the keys of a checkpoint's files, without those of its tokenizer.
pub(super) fn keys(source: &ModelSource, mapping: &Mapping) -> Vec<Piece> {
    let dir = &source.dir;
    let main = if dir.is_mistral_format() { PARAMS } else { CONFIG };
    // Settings in the configuration are members of one of its keys, under any of its names.
    let parent = match dir.config() {
        _ if dir.is_mistral_format() => "quantization",
        config if config.contains_key(QUANTIZATION) => QUANTIZATION,
        _ => "text_config.quantization_config",
    };
    let own = |piece: &Piece| match piece.name.strip_prefix(QUANTIZATION) {
        Some(rest) => Piece { name: format!("{parent}{rest}"), ..piece.clone() }.within(main),
        None => piece.clone(),
    };
    let settings = source.quantization.iter().flat_map(|own| &own.pieces);
    let settings: Vec<Piece> = settings.filter(|piece| piece.kind == PieceKind::Key).map(own).collect();
    let has = |file: &str| settings.iter().any(|own| own.file.as_deref() == Some(file));
    let of_config = mapping.config_keys.iter().filter(|key| !(has(main) && key.name == parent));
    let mut keys: Vec<Piece> = of_config.map(|key| key.clone().within(main)).collect();
    let mut add = |file: &str, group: &str| {
        let map = dir.json(file).ok().flatten().unwrap_or_default();
        keys.extend(of_keys(group, file, &map));
    };
    let towers = if mapping.card.kind == CardKind::Mmproj { "preprocessor" } else { "no preprocessor" };
    for file in &TOWERS {
        add(file, towers);
    }
    add(GENERATION, GENERATION);
    add("chat_template.json", "chat_template.json");
    for file in DESCRIPTORS.iter().filter(|file| !has(file)) {
        add(file, "no settings");
    }
    for name in dir.file_names().unwrap_or_default() {
        match name.strip_suffix(".json") {
            Some(stem) if stem.rsplit('.').next() == Some("index") => add(&name, "*.index.json"),
            Some(stem) if stem.starts_with("quant_model_description") => {
                add(&name, "quant_model_description.json");
            }
            _ => {}
        }
    }
    keys.extend(settings);
    keys
}

/// Marks the keys of sampling that a file has.
pub(super) fn sampling(metadata: &Metadata, keys: &mut [Piece]) {
    for piece in keys.iter_mut().filter(|piece| piece.file.as_deref() == Some(GENERATION)) {
        if let Some(key) = sampling_key(&piece.name).filter(|key| metadata.contains(key)) {
            *piece = Piece::written(PieceKind::Key, &*piece.name, vec![key]).within(GENERATION);
        }
    }
}

/// Returns the warning about a key that is left out.
pub(super) fn warning(piece: &Piece) -> Option<String> {
    let why = piece.why.as_ref().filter(|_| piece.fate == Fate::LeftOut)?;
    Some(format!("{}: {why}", piece.file.as_deref().unwrap_or_default()))
}

/// Returns warnings about keys that no rule knows, by file.
pub(super) fn unknown_keys(keys: &[Piece]) -> Vec<String> {
    let unknown = || keys.iter().filter(|key| key.fate == Fate::Unknown);
    let mut files: Vec<&str> = unknown().filter_map(|key| key.file.as_deref()).collect();
    files.dedup();
    let sentence = |file: &str| {
        let own = unknown().filter(|key| key.file.as_deref() == Some(file));
        let names: Vec<&str> = own.map(|key| key.name.as_str()).collect();
        let (what, them) = if names.len() == 1 { ("a key", "it") } else { ("keys", "them") };
        format!(
            "{file}: {what} that no rule knows: {}; if the model's own code computes with {them}, the file computes something \
             else (`gguf-inspect checkpoint DIR --account` lists all keys)",
            first_names(&names)
        )
    };
    files.into_iter().map(sentence).collect()
}

impl Conversion {
    /// Returns the account of the checkpoint: files, their keys, tensors, each in their own order.
    pub fn account(&self) -> Vec<Piece> {
        let mut pieces = self.files();
        pieces.extend(self.keys.iter().cloned());
        pieces.extend(self.source.pieces.iter().filter(|piece| piece.kind == PieceKind::Key).cloned());
        pieces.extend(self.stored_tensors());
        pieces
    }

    /// Returns what the file does not have of the checkpoint: a sentence for each key, and one for the tensors of each reason.
    pub fn lost(&self) -> Vec<String> {
        let mut lost: Vec<String> = self.mapping().lost.iter().map(ToString::to_string).collect();
        lost.extend(self.mapping().differs.iter().cloned());
        let is_main = |piece: &&Piece| [CONFIG, PARAMS].contains(&piece.file.as_deref().unwrap_or_default());
        lost.extend(self.keys.iter().filter(|piece| !is_main(piece)).filter_map(warning));
        let mut tensors: IndexMap<String, Vec<String>> = IndexMap::new();
        for piece in self.stored_tensors().into_iter().filter(|piece| piece.fate == Fate::LeftOut) {
            tensors.entry(piece.why.unwrap_or_default()).or_default().push(piece.name);
        }
        for (why, names) in tensors {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let n = plural(names.len() as u64, "tensor");
            lost.push(format!("{n} of the checkpoint left out ({why}): {}", first_names(&names)));
        }
        lost
    }

    fn files(&self) -> Vec<Piece> {
        let weights: Vec<&str> =
            self.source.paths.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        // A folder that cannot be listed was reported when it was opened.
        let names = self.source.dir.file_names().unwrap_or_default();
        let keys: HashSet<&str> = self.keys.iter().filter_map(|key| key.file.as_deref()).collect();
        let written = |name: &str, to: &str| Piece::written(PieceKind::File, name, vec![to.to_owned()]);
        let piece = |name: &String| match of_file(name) {
            piece if piece.fate == Fate::Written => piece,
            _ if weights.contains(&name.as_str()) => written(name, "tensors, listed below"),
            _ if name == PARAMS && keys.contains(PARAMS) => written(name, "keys, listed below"),
            _ if keys.iter().any(|file| file.split_once('/').is_some_and(|split| split.0 == name)) => {
                written(name, "keys, listed below")
            }
            _ if self.source.dir.path().join(name).is_dir() => {
                let why = "no file of this folder is read";
                Piece::not(PieceKind::File, name, Fate::WithoutEffect, why)
            }
            piece => piece,
        };
        names.iter().map(piece).collect()
    }

    /// Returns the stored tensors: those that an output is made of, members of quantized weights among them, and the others
    /// with their reason.
    fn stored_tensors(&self) -> Vec<Piece> {
        let source = &self.source;
        let mut outputs: HashMap<&str, Vec<String>> = HashMap::new();
        for (at, tensor) in self.tensors().iter().enumerate() {
            for weight in self.sources(at) {
                outputs.entry(weight).or_default().push(tensor.name.clone());
            }
        }
        let dropped: HashMap<&str, &DropReason> = self.dropped().collect();
        let of_weight = |name: &str| match (outputs.get(name), dropped.get(name)) {
            (Some(to), _) => Piece::written(PieceKind::Tensor, name, to.clone()),
            (None, Some(why)) => Piece::not(PieceKind::Tensor, name, why.fate(), why.to_string()),
            (None, None) => Piece::not(PieceKind::Tensor, name, Fate::LeftOut, "no output is made of it"),
        };
        // A member has the fate of its weights, of which several may be parts of one output.
        let of_member = |piece: &Piece| {
            let mut made: Vec<Piece> = piece.to.iter().map(|weight| of_weight(weight)).collect();
            let Some(at) = made.iter().position(|weight| weight.fate == Fate::Written) else {
                return made
                    .pop()
                    .map_or_else(|| piece.clone(), |made| Piece { name: piece.name.clone(), ..made });
            };
            let mut to: Vec<String> = made.iter().flat_map(|weight| weight.to.clone()).collect();
            let mut seen = HashSet::new();
            to.retain(|name| seen.insert(name.clone()));
            Piece { name: piece.name.clone(), to, ..made.swap_remove(at) }
        };
        let others = source.quantization.iter().flat_map(|own| &own.pieces).chain(&source.pieces);
        let members = others.filter(|piece| piece.kind == PieceKind::Tensor);
        let mut pieces: Vec<Piece> = members.map(of_member).collect();
        let known: HashSet<&str> = pieces.iter().map(|piece| piece.name.as_str()).collect();
        let is_coded =
            |name: &String| source.quantization.as_ref().is_some_and(|own| own.encodings.contains_key(name));
        let is_stored = |name: &&String| !known.contains(name.as_str()) && !is_coded(name);
        let weights = self.weights().iter().map(|weight| &weight.name).filter(is_stored);
        let weights: Vec<Piece> = weights.map(|name| of_weight(name)).collect();
        pieces.splice(0..0, weights);
        for piece in &mut pieces {
            if let Some(stored) = source.stored_names.get(&piece.name) {
                piece.name.clone_from(stored);
            }
        }
        pieces
    }
}
